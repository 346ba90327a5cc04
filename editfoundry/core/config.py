"""YAML → OmegaConf (interpolation, overrides) → pydantic; errors name the file, the key and the nearest valid key."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, ValidationError

from editfoundry.core.errors import ConfigError
from editfoundry.core.yaml_text import load_yaml

MAX_CONFIG_BYTES = 4 * 1024 * 1024
SECRET = "secret"
"""Type of a pydantic error about a value that is not to be repeated."""
CONFIG_ROOT = Path(__file__).parents[1] / "configs"


class Config(BaseModel):
    """Base of every configuration: frozen; unknown keys, NaN and infinities are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


C = TypeVar("C", bound=BaseModel)


def cache_root() -> Path:
    """Where fetched files live: `$EDITFOUNDRY_CACHE`, or `~/.cache/editfoundry`; in configs `${cache:photographs}`."""
    configured = os.environ.get("EDITFOUNDRY_CACHE")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "editfoundry"


OmegaConf.register_new_resolver("cache", lambda name="": str(cache_root() / name), replace=True)


def load_config(model: type[C], path: str | Path, overrides: Sequence[str] = ()) -> C:
    """Read `path`, apply `a.b=c` overrides in order, and validate into `model`.

    A path that does not exist is looked up among the packaged configs (`data/quickstart.yaml`). A file that says
    `extends: OTHER` (beside it, or packaged) is laid over that one: mappings are merged, everything else is replaced.
    Raises ConfigError, on one line, naming every wrong key.
    """
    file = find_config(path)
    return _resolved(model, _read(file), overrides, str(file))


def from_overrides(model: type[C], plain: Mapping[str, Any], overrides: Sequence[str]) -> C:
    """Validate plain data and `a.b=c` overrides into `model`, without a file. Raises ConfigError as `load_config`."""
    return _resolved(model, OmegaConf.create(dict(plain)), overrides, "--set")


def find_config(path: str | Path) -> Path:
    """The file itself, or the packaged config of that name. Raises ConfigError naming both places."""
    for candidate in (Path(path), CONFIG_ROOT / path):
        if _is_file(candidate):
            return candidate
    raise ConfigError(f"{path}: no such config file, nor a packaged one; packaged configs: {', '.join(_packaged())}")


def read_yaml(file: Path) -> Any:
    """Plain data of a YAML file, without interpolation. Raises ConfigError naming the file and what is wrong in it."""
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{file}: larger than {MAX_CONFIG_BYTES} bytes; split it, if it is the right file")
        return load_yaml(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text (byte {error.start})") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not valid YAML: {_first_line(error)}") from error
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error


def validate(model: type[C], plain: Any, where: str) -> C:
    """Validate plain data into `model`; `where` names the file in the error."""
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        problems = [_explain(model, detail) for detail in _causes(error.errors())]
        raise ConfigError(f"{where}: {'; '.join(problems)}") from error


def _resolved(model: type[C], tree: DictConfig, overrides: Sequence[str], where: str) -> C:
    for override in overrides:
        tree = _override(tree, override)
    try:
        plain = OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{where}: {_first_line(error)}") from error
    return validate(model, plain, where=where)


def require_known(names: Iterable[str], known: Collection[str], what: str) -> None:
    """Raise ValueError, for a validator, unless every name is a known one; `what` the names are, in the plural."""
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ValueError(f"unknown {what} {unknown}; known: {', '.join(known)}")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file system takes
        return False


def _packaged() -> list[str]:
    return sorted(str(p.relative_to(CONFIG_ROOT)) for p in CONFIG_ROOT.rglob("*.yaml"))


def _read(file: Path, above: tuple[Path, ...] = ()) -> DictConfig:
    """The file's settings, over those of the file it extends. `above`: the files on the way here."""
    try:
        tree = OmegaConf.create((_read_extended(file) if above else read_yaml(file)) or {})
    except OmegaConfBaseException as error:
        if above:
            raise ConfigError(f"{file}: not a configuration mapping") from None
        raise ConfigError(f"{file}: not a configuration: {_first_line(error)}") from error
    if not isinstance(tree, DictConfig):
        raise ConfigError(f"{file}: the top level must be a mapping of keys to values")
    base = tree.pop("extends", None)
    if base is None:
        return tree
    if not isinstance(base, str):
        raise ConfigError(f"{file}: extends names one other configuration file")
    beside = file.parent / base
    parent = beside if _is_file(beside) else find_config(base)
    chain = (*above, file.resolve())
    if parent.resolve() in chain:
        raise ConfigError(f"{file}: extends {base}, which extends it")
    try:
        merged = OmegaConf.merge(_read(parent, chain), tree)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{file}: does not fit over {base}, which it extends: {_first_line(error)}") from error
    assert isinstance(merged, DictConfig)
    return merged


def _read_extended(file: Path) -> Any:
    """`read_yaml` of a file that another one names: its errors quote nothing of what the file holds."""
    try:
        plain = read_yaml(file)
    except ConfigError as error:
        if not isinstance(error.__cause__, yaml.YAMLError):
            raise
        mark = getattr(error.__cause__, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{file}: not valid YAML{place}") from None
    if plain is not None and not isinstance(plain, dict):
        raise ConfigError(f"{file}: not a configuration mapping")
    return plain


def _override(tree: DictConfig, override: str) -> DictConfig:
    key, separator, value = override.partition("=")
    if not separator or not all(part.strip() for part in key.split(".")):
        raise ConfigError(f"--set {override}: expected KEY=VALUE, for example --set seed=7")
    try:
        OmegaConf.update(tree, key.strip(), load_yaml(value), force_add=True)
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, TypeError) as error:
        raise ConfigError(f"--set {override}: {_first_line(error)}") from error
    return tree


def _causes(details: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Without what only follows from another problem: containers of a wrong value, keys missing because misspelt."""
    containers = {detail["loc"][:depth] for detail in details for depth in range(len(detail["loc"]))}
    misspelt = {detail["loc"][:-1] for detail in details if detail["type"] == "extra_forbidden"}
    return [detail for detail in details if detail["loc"] not in containers
            and not (detail["type"] == "missing" and detail["loc"][:-1] in misspelt)]


def _explain(model: type[BaseModel], detail: Mapping[str, Any]) -> str:
    location = [str(part) for part in detail["loc"]]
    key = ".".join(location) or "(top level)"
    if detail["type"] != "extra_forbidden":
        hidden = isinstance(detail["input"], Mapping) or detail["type"] == SECRET
        got = "" if hidden else f" (got {str(detail['input'])[:80]!r})"
        return f"{key}: {detail['msg'].removeprefix('Value error, ')}{got}"
    known = _known_keys(model, location[:-1])
    near = get_close_matches(location[-1], known, n=1, cutoff=0.4)
    hint = f"did you mean {'.'.join([*location[:-1], near[0]])}?" if near else f"valid keys: {', '.join(sorted(known))}"
    return f"{key}: unknown key; {hint}"


def _known_keys(model: type[BaseModel], location: list[str]) -> list[str]:
    """Keys of the model at that place; positions in lists of models and names in mappings to them are passed over."""
    current: Any = model
    chosen = False
    for part in location:
        if chosen or part.isdigit():
            chosen = False
            continue
        field = current.model_fields.get(part) if _is_model(current) else None
        current = _model_in(field.annotation) if field else None
        chosen = field is not None and get_origin(field.annotation) is dict
    return list(current.model_fields) if _is_model(current) else []


def _model_in(annotation: Any) -> Any:
    """The model itself, or the first one inside `tuple[Model, ...]`, `Model | None` and the like."""
    if _is_model(annotation):
        return annotation
    return next((model for model in map(_model_in, get_args(annotation)) if model is not None), None)


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
