"""The report of a run: one self-contained HTML page with its numbers, its accepted samples and its rejects.

Deterministic: the same run gives the same page. No dates, no machine, nothing from outside the run.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from pydantic import BaseModel

from editfoundry.core import charts
from editfoundry.core.errors import UsageError
from editfoundry.core.grids import GRID_MULTIPLE
from editfoundry.core.pages import render
from editfoundry.core.pages.thumbnails import Thumbnails
from editfoundry.data_engine.audit import FunnelRow, funnel
from editfoundry.data_engine.ledger import StageStore, replace_file
from editfoundry.data_engine.report_gallery import Card, Gallery, Sampler
from editfoundry.data_engine.report_rejects import UNSURE, RejectGroup, reject_groups
from editfoundry.data_engine.report_summary import AREA_BINS, Summary
from editfoundry.data_engine.rundir import RunDir
from editfoundry.data_engine.shards import read_table
from editfoundry.data_engine.taxonomy import CONVERSATIONS, FAMILIES, TYPES
from editfoundry.models.registry import ModelSpec, stack_name

BINS = 12
TOP_PHOTOGRAPHS = 8
STACKS = {
    "embedded": "The embedded stack: small models with real weights from registry packages, on a CPU, without a "
                "model hub. Its detector knows a closed list of classes, its text-image score is ConSE and not "
                "CLIPScore, and no vision-language model judged these edits.",
    "full": "The full stack: models from the hub, named below.",
    "mixed": "Models of both stacks worked together; which one did what is named below. Numbers of the embedded models "
             "are not those of the full stack's, whatever their columns hold.",
}


class _Settings(BaseModel):
    """What the page says of the configuration; a run of an older version may have other keys besides."""

    name: str
    models: dict[str, ModelSpec]


def write_report(run: Path) -> Path:
    """Write RUN/report/index.html and return its path.

    Raises UsageError when `run` is not a run or has no finished dataset, EditFoundryError when its files are damaged.
    """
    folder = RunDir.existing(run)
    index = folder.dataset / "index.parquet"
    if not index.is_file():
        raise UsageError(f"{run}: has no dataset/index.parquet yet; finish it with `editfoundry data run -o {run}`")
    page = render("editfoundry.data_engine:report.html.jinja", **_context(folder, index))
    target = run / "report" / "index.html"
    target.parent.mkdir(exist_ok=True)
    replace_file(target, page.encode())
    return target


def _context(folder: RunDir, index: Path) -> dict[str, Any]:
    """Everything the template shows."""
    config = folder.config(_Settings)
    stores = {stage.name: folder.store(stage.name, stage.fingerprint)
              for stage in folder.state().stages if stage.fingerprint}
    summary, sampler = Summary(), Sampler()
    for row in read_table(index):
        summary.add(row)
        sampler.add(row)
    chosen, thumbnails = sampler.chosen(), Thumbnails()
    cards = Gallery(folder.dataset, thumbnails).cards(
        row for row in read_table(index) if row["conversation_id"] in chosen)
    rejects = reject_groups(stores, thumbnails)
    accounts = funnel(folder)
    return {
        "title": f"{config.name} · dataset report",
        "name": config.name,
        "lede": _lede(summary, stack_name(config.models)),
        "headline": _headline(summary, rejects),
        "gallery_note": _gallery_note(len(cards), sampler.offered),
        "filters": _filters(cards),
        "cards": cards,
        "funnel": accounts.rows,
        "problems": accounts.problems,
        "charts": _charts(summary, accounts.rows),
        "notes": _notes(summary),
        "photographs": _most_used(summary, stores),
        "rejects": rejects,
        "models": [(role, _spelt(spec)) for role, spec in sorted(config.models.items())],
        "stack_note": STACKS[stack_name(config.models)],
        "licences": summary.licences.most_common(),
        "images": thumbnails.images,
    }


def _spelt(spec: ModelSpec) -> str:
    options = ", ".join(f"{name} {value}" for name, value in sorted(spec.options.items()))
    return f"{spec.name} ({options})" if options else spec.name


def _lede(summary: Summary, stack: str) -> str:
    return (f"{_count(summary.pairs.total(), 'single edit')} and "
            f"{_count(summary.conversations.total(), 'conversation')} from "
            f"{_count(len(summary.photographs), 'photograph')}, made and checked by the {stack} stack.")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _headline(summary: Summary, rejects: list[RejectGroup]) -> list[tuple[str, str, str]]:
    edges = max(summary.edges, 1)
    real = summary.origins["photograph"]
    largest = max(summary.photographs.values(), default=0)
    unsure = sum(group.count for group in rejects if group.reason == UNSURE)
    return [
        ("Single edits", f"{summary.pairs.total():,}", f"of {_count(len(summary.pairs), 'type')}"),
        ("Conversations", f"{summary.conversations.total():,}", _count(summary.turns, "turn")),
        ("Photographs", f"{len(summary.photographs):,}", f"{largest / edges:.0%} of the edits from the most used one"),
        ("On real objects", f"{real:,}", f"{real / edges:.0%} of the edits change a thing really in the photograph"),
        ("Distinct words", f"{len(summary.tokens):,}", f"{summary.words / edges:.1f} words an instruction"),
        ("Outside the mask", f"{summary.outside_max:g}", "largest difference of a pixel in any local edit"),
        ("Unsure labels", f"{unsure:,}", "nouns the models disagreed on, kept out of every instruction"),
    ]


def _gallery_note(shown: int, offered: int) -> str:
    if shown == offered:
        return f"All {offered:,} are shown."
    return (f"This page shows {shown:,} of {offered:,}: a sample stratified by type and origin, chosen by the hash of "
            "each sample's id, so that another report of this dataset shows the same ones.")


def _filters(cards: list[Card]) -> dict[str, list[str]]:
    kinds = {card.kind for card in cards}
    return {
        "type": [name for name in TYPES if any(name in card.types for card in cards)],
        "kind": [kind for kind in ("single", *CONVERSATIONS) if kind in kinds],
        "origin": sorted({origin for card in cards for origin in card.origins}),
        "split": sorted({card.split for card in cards}),
    }


def _charts(summary: Summary, stages: Sequence[FunnelRow]) -> dict[str, Markup]:
    survival = [(stage.stage, {"accepted": stage.accepted, "rejected": stage.rejected}) for stage in stages]
    label = "Accepted and rejected inputs of each stage; the table has the numbers"
    types = {name: summary.pairs[name] for name in TYPES if summary.pairs[name] or name in FAMILIES}
    kinds = {kind.replace("_", " "): summary.conversations[kind] for kind in CONVERSATIONS}
    short_sides, uses = Counter[int](), Counter(summary.photographs.values())
    for size, edges in summary.sizes.items():
        short_sides[min(size)] += edges
    return {
        "funnel_wide": charts.stacked(survival, label=label, width=charts.WIDE),
        "funnel_narrow": charts.stacked(survival, label=label, width=charts.NARROW),
        "types": charts.bars(types, label="Single edits by type"),
        "conversations": charts.bars(kinds, label="Conversations by kind"),
        "origins": charts.bars(dict(summary.origins.most_common()), label="Edits by origin of the edited object"),
        "areas": charts.histogram([i / AREA_BINS for i in range(AREA_BINS + 1)], summary.areas, format=".0%",
                                  label="Edits by share of the image edited", title="share of the image in the mask"),
        "sizes": charts.histogram(*binned(short_sides, GRID_MULTIPLE), format=",d",
                                  label="Edits by short side of the image", title="short side in pixels"),
        "photographs": charts.histogram(*binned(uses, 1), format=",d", title="edits made from one photograph",
                                        label="Photographs by number of edits made from them"),
    }


def binned(counts: Mapping[int, int], step: int) -> tuple[list[float], list[int]]:
    """Edges and counts of at most 12 equal bins over the values that `counts` counts; a bin is a multiple of `step`.

    Bins of single integers are centred on them.
    """
    low, high = min(counts, default=0), max(counts, default=0)
    width = step * math.ceil((high - low + step) / (step * BINS))
    totals = [0] * ((high - low) // width + 1)
    for value, count in counts.items():
        totals[(value - low) // width] += count
    start = low - 0.5 if width == 1 else low
    return [start + width * index for index in range(len(totals) + 1)], totals


def _notes(summary: Summary) -> dict[str, str]:
    sizes = ", ".join(f"{width}×{height} ({edges:,})" for (width, height), edges in summary.sizes.most_common(4))
    return {
        "conversations": f"{_count(summary.turns, 'turn')} in all.",
        "origins": "donor: a cut-out placed into the photograph; photograph: a thing really in it; video: two frames.",
        "areas": "Edits of the whole image, which have no mask, count as 100%.",
        "sizes": f"Most frequent: {sizes}." if sizes else "",
        "photographs": f"{_count(len(summary.photographs), 'photograph')} in all.",
    }


def _most_used(summary: Summary, stores: Mapping[str, StageStore]) -> list[dict[str, Any]]:
    """The photographs with most edits, by the name they were ingested under."""
    top = summary.photographs.most_common(TOP_PHOTOGRAPHS)
    names = dict(_names(next(iter(stores.values())), {digest for digest, _ in top}))
    return [{"name": names.get(digest, digest[:16]), "count": count, "share": count / summary.edges}
            for digest, count in top]


def _names(first: StageStore, digests: set[str]) -> Iterator[tuple[str, str]]:
    for commit in first.commits():
        for row in first.rows(commit):
            data = row.data()
            data = data.get("source", data)  # of an import, the first stage makes samples
            if data["sha256"] in digests:
                yield data["sha256"], data["uri"].partition("#")[0]
