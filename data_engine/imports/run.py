"""Running an import, and telling a run that is one from the others."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from editfoundry.data_engine import runner
from editfoundry.data_engine.config import RunConfig
from editfoundry.data_engine.imports.check import Check
from editfoundry.data_engine.imports.config import ImportConfig
from editfoundry.data_engine.imports.listing import list_rows
from editfoundry.data_engine.imports.stage import Import
from editfoundry.data_engine.rundir import RunDir, State
from editfoundry.data_engine.stages.base import Stage
from editfoundry.data_engine.stages.emit import Emit

STAGES: tuple[type[Stage], ...] = (Import, Check, Emit)


def import_datasets(config: ImportConfig, path: Path, *, workers: int = 1, known: State | None = None) -> Path | None:
    """Make a dataset of what `config` names in the folder `path`, resuming what is there; as `runner.run`."""
    return runner.run(config, path, workers=workers, stages=STAGES, find=list_rows, known=known)


def is_import(settings: Mapping[str, Any]) -> bool:
    """Whether the configuration of a run is an import's."""
    ingest = settings.get("ingest")
    return isinstance(ingest, Mapping) and "datasets" in ingest


def rerun(run: RunDir, workers: int) -> Callable[[State], object]:
    """What makes missing shards of a run again, whichever of the two it is. Raises ConfigError for a damaged config."""
    if is_import(run.settings()):
        imported = run.config(ImportConfig)
        return lambda state: import_datasets(imported, run.path, workers=workers, known=state)
    config = run.config(RunConfig)
    return lambda state: runner.run(config, run.path, workers=workers, known=state)
