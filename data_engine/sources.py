"""Listing the sources of a run: whatever layout they have, in one order on every machine.

Sources are ordered by the bytes of the uri of their file or container (the path as the configuration spells it), and
inside a container as they lie there. A file or container reached twice counts once, under its first name. What cannot
be used is a source all the same, and becomes a reject. Files that belong to the run itself are an error.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from editfoundry.core.errors import ConfigError, UsageError
from editfoundry.data_engine.layouts import layout_of
from editfoundry.data_engine.layouts.base import Block, Listed
from editfoundry.data_engine.layouts.files import real_path
from editfoundry.data_engine.readers.storage import ContainerError, is_remote, local_path
from editfoundry.data_engine.source_spec import (
    SUFFIXES,
    IngestConfig,
    Limits,
    Manifest,
    ManifestEntry,
    ManifestZone,
    SourceFile,
    SourceSpec,
    clean_text,
)

__all__ = [
    "SUFFIXES",
    "IngestConfig",
    "Limits",
    "Manifest",
    "ManifestEntry",
    "ManifestZone",
    "SourceFile",
    "SourceSpec",
    "clean_text",
    "list_sources",
]


def list_sources(config: IngestConfig, run: Path | None = None) -> Sequence[SourceFile]:
    """Every source of the configuration, in order, each once. run: the folder of the run they are listed for.

    Raises ConfigError for a path that does not exist or cannot be read, a glob without a match, a bad manifest, columns
    that are not there, or sources inside `run`.
    """
    found: list[Block] = []
    for number, spec in enumerate(config.sources):
        try:
            layout = layout_of(spec, number)
            blocks = list(layout.blocks())
        except ConfigError:
            raise
        except (UsageError, ContainerError) as error:
            raise ConfigError(f"ingest.sources: {error}") from error
        if not blocks and layout.format != "files":
            raise ConfigError(f"ingest.sources: {spec.path}: holds nothing of the format {layout.format}")
        found += blocks
    found.sort(key=lambda block: block.order)
    seen: set[tuple[str, str]] = set()
    kept: list[Block] = []
    inside = run.resolve() if run else None
    for block in found:
        if block.address:
            place = block.address if is_remote(block.address) else os.fspath(real_path(local_path(block.address)))
            if inside and not is_remote(block.address) and Path(place).is_relative_to(inside):
                raise ConfigError(
                    f"ingest.sources: {block.source(0).uri} belongs to the run itself, {run}; choose a folder outside "
                    "of the sources for the run"
                )
            if (block.layout, place) in seen:
                continue
            seen.add((block.layout, place))
        kept.append(block)
    return Listed(kept)
