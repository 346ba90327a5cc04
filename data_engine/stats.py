"""What a finished run holds and what it cost: counts and shares, diversity, elapsed time, and a better gate order."""

from collections import Counter
from typing import Any

from pydantic import Field

from editfoundry.core.errors import EditFoundryError
from editfoundry.data_engine.audit import funnel
from editfoundry.data_engine.ledger import StageStore, Step
from editfoundry.data_engine.records import Record
from editfoundry.data_engine.report_summary import Summary
from editfoundry.data_engine.rundir import RunDir
from editfoundry.data_engine.shards import read_table

LARGE_SIDE = 1000


class GateCost(Record):
    """A step of a stage. refusal_rate: share of calls turned away; rank: seconds to turn one away, lower first."""

    name: str
    calls: int
    seconds_per_call: float
    refused: int
    refusal_rate: float
    rank: float


class Stats(Record):
    """The statistics of a dataset. Shares are of single edits by type, and of all edges by photograph.

    distinct_scenes: photographs that edits were made from; frames of one video count once, and pictures that
    filter found to be the same never count twice. problems: what the funnel found missing, so that numbers of stages
    may be too low. large_photographs: those whose short side is at least 1000 pixels.
    """

    edges: int
    pairs: dict[str, int]
    pair_shares: dict[str, float]
    conversations: dict[str, int]
    turns: int
    origins: dict[str, int]
    splits: dict[str, int]
    licences: dict[str, int]
    stacks: tuple[str, ...]
    photographs: int
    distinct_scenes: int
    large_photographs: int
    largest_photograph_share: float
    photograph_shares: dict[str, float]
    unique_tokens: int
    words_per_instruction: float
    area_histogram: tuple[int, ...]
    sizes: dict[str, int]
    elapsed_s: dict[str, float]
    gates: tuple[GateCost, ...] = ()
    proposed_gate_order: tuple[str, ...] = Field(default=())
    problems: tuple[str, ...] = ()


def stats(run: RunDir) -> Stats:
    """Read the index and the commit records. Raises EditFoundryError when the run has no dataset yet."""
    index = run.dataset / "index.parquet"
    if not index.is_file():
        raise EditFoundryError(f"{run.path}: has no dataset yet; finish it with `editfoundry data run -o {run.path}`")
    summary, splits, stacks = Summary(), Counter[str](), set()
    for row in read_table(index):
        summary.add(row)
        splits[row["shard"].partition("-")[0]] += 1
        stacks.add(row["stack"])
    scenes, large = _scenes(run, summary)
    gates, accounts = _gates(run), funnel(run)
    edges = max(summary.edges, 1)
    shares = {name: round(count / edges, 4) for name, count in summary.photographs.most_common()}
    return Stats(
        edges=summary.edges, pairs=dict(summary.pairs.most_common()), turns=summary.turns,
        pair_shares={name: round(count / max(summary.pairs.total(), 1), 4)
                     for name, count in summary.pairs.most_common()},
        conversations=dict(summary.conversations.most_common()), origins=dict(summary.origins.most_common()),
        splits=dict(splits), licences=dict(summary.licences.most_common()), stacks=tuple(sorted(stacks)),
        photographs=len(summary.photographs), distinct_scenes=scenes, large_photographs=large,
        largest_photograph_share=max(shares.values(), default=0.0), photograph_shares=shares,
        unique_tokens=len(summary.tokens), words_per_instruction=round(summary.words / edges, 2),
        area_histogram=tuple(summary.areas),
        sizes={f"{width}x{height}": count for (width, height), count in summary.sizes.most_common()},
        elapsed_s={row.stage: round(row.elapsed_s, 3) for row in accounts.rows}, gates=gates,
        proposed_gate_order=tuple(gate.name for gate in sorted(gates, key=lambda gate: (gate.rank, gate.name))),
        problems=accounts.problems,
    )


def _scenes(run: RunDir, summary: Summary) -> tuple[int, int]:
    """Distinct scenes among the photographs used, and how many photographs are large."""
    first = run.state().stages[0]
    scenes, large = set(), set()
    for entry in _rows(run.store(first.name, str(first.fingerprint))):
        row = entry.get("source", entry)  # of an import, the first stage makes samples
        if row["sha256"] in summary.photographs:
            scenes.add(row["uri"].rpartition("#")[0] if row["kind"] == "frames" else row["sha256"])
            if min(row["width"], row["height"]) >= LARGE_SIDE:
                large.add(row["sha256"])
    return len(scenes), len(large)


def _rows(store: StageStore) -> Any:
    for commit in store.commits():
        for row in store.rows(commit):
            yield row.data()


def _gates(run: RunDir) -> tuple[GateCost, ...]:
    """Cost and refusals of verify's gates, in the order they first appear in the records."""
    stage = next((stage for stage in run.state().stages if stage.name == "verify" and stage.fingerprint), None)
    totals: dict[str, Step] = {}
    for commit in run.store(stage.name, str(stage.fingerprint)).commits() if stage else ():
        for name, step in commit.steps.items():
            before = totals.get(name, Step())
            totals[name] = Step(seconds=before.seconds + step.seconds, calls=before.calls + step.calls,
                                refused=before.refused + step.refused)
    return tuple(_gate(name, step) for name, step in totals.items())


def _gate(name: str, step: Step) -> GateCost:
    """Cheapest refusals first is the order of least expected cost for independent gates; the rate is smoothed by one

    refusal in two calls, so that a gate that has refused nothing yet goes last and not nowhere.
    """
    per_call = step.seconds / max(step.calls, 1)
    smoothed = (step.refused + 1) / (step.calls + 2)
    return GateCost(name=name, calls=step.calls, seconds_per_call=round(per_call, 6), refused=step.refused,
                    refusal_rate=round(step.refused / max(step.calls, 1), 4), rank=round(per_call / smoothed, 6))
