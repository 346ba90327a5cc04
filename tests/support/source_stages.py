"""Drives the source stages by themselves, as the runner does: prepare, process, rejects for what prepare refuses."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from editfoundry.core.errors import ImageError
from editfoundry.data_engine.config import RunConfig
from editfoundry.data_engine.records import Reject, Source
from editfoundry.data_engine.sources import list_sources
from editfoundry.data_engine.stages.base import Artifacts, Item, Stage
from editfoundry.data_engine.stages.duplicates import Duplicates
from editfoundry.data_engine.stages.ingest import Ingest


class Committed(Artifacts):
    """Barrier rows given by hand."""

    def __init__(self, rows: Sequence[dict[str, Any]] = ()) -> None:
        self._rows = rows

    def rows(self, stage: str) -> Iterator[dict[str, Any]]:
        del stage
        return iter(self._rows)

    def blob(self, stage: str, shard: int, record_id: str, member: str) -> bytes:
        raise KeyError((stage, shard, record_id, member))


def config(path: Path | str, **settings: Any) -> RunConfig:
    """A run over one folder, on a small grid."""
    ingest = settings.pop("ingest", {})
    plain = {"grid_area": 200_000, "ingest": {"sources": [{"path": str(path)}], **ingest}, **settings}
    return RunConfig.model_validate(plain)


def run(stage: Stage, items: Sequence[Item], artifacts: Artifacts | None = None) -> tuple[list[Item], list[Reject]]:
    """Accepted items (with their blobs) and all rejects. Fails the test if an input is lost."""
    stage.setup(artifacts or Committed())
    accepted: list[Item] = []
    rejects: list[Reject] = []
    for item in items:
        try:
            ready = stage.prepare(item)
        except ImageError as error:
            rejects.append(Reject(stage=stage.name, id=item.record.id, reason=error.reason, detail=str(error)))
            continue
        (outcome,) = stage.process([ready])
        items_out = [one for one in outcome if isinstance(one, Item)]
        refused = [one for one in outcome if isinstance(one, Reject)]
        assert items_out or any(reject.unit == "source" for reject in refused), f"{item.record.id} vanished"
        for one in items_out:
            one.blobs = one.blobs or item.blobs
        accepted += items_out
        rejects += refused
    return accepted, rejects


def ingest(path: Path | str, **settings: Any) -> tuple[list[Item], list[Reject]]:
    """List and ingest a folder."""
    run_config = config(path, **settings)
    return run(Ingest(run_config), [Item(source) for source in list_sources(run_config.ingest)])


def duplicate_groups(items: Sequence[Item], **settings: Any) -> list[dict[str, Any]]:
    """Rows of the duplicates barrier over ingested items."""
    stage = Duplicates(config(".", **settings))
    rows = [(0, item.record.model_dump(mode="json")) for item in items]
    return [group.record.model_dump(mode="json") for group in stage.gather(lambda _: iter(rows))]


def text_source(item: Item, text: str) -> Item:
    """The item with a text that came with the photograph."""
    source: Source = item.record
    return Item(source.model_copy(update={"text": text}), item.blobs)


