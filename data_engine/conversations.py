"""The three kinds of conversation, planned from the recipes of single edits.

Content memory: a premise that both turns honour and neither repeats. Content understanding: turns 2 and 3 say "it".
Version backtracking: turn 3 starts from the result of turn 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from editfoundry.core.english import a
from editfoundry.core.geometry import Box
from editfoundry.data_engine.paint import PAINTS, choices
from editfoundry.data_engine.recipes.add import adding
from editfoundry.data_engine.recipes.base import Draft, Plan, Refused, object_fields
from editfoundry.data_engine.recipes.replace import find_swap
from editfoundry.data_engine.records import Donor, Placement
from editfoundry.data_engine.wording import fill

Words = Mapping[str, Sequence[str]]
COLOUR_WORDS = frozenset(PAINTS) | {"white", "black", "gray", "brown", "teal"}
COLOURS = tuple(name for name, paint in PAINTS.items() if paint.lab is not None)


@dataclass(frozen=True)
class PlannedTurn:
    """One turn of a conversation before wording: its type, parent node, draft and templates."""

    type: str
    parent: int
    draft: Draft
    templates: Sequence[str]


@dataclass(frozen=True)
class Graph:
    """A planned conversation."""

    turns: tuple[PlannedTurn, ...]
    premise: str = ""


def plan_conversation(kind: str, plan: Plan, words: Words) -> Graph:
    """A conversation of the kind on this source. Raises Refused."""
    return {"content_memory": _memory, "content_understanding": _understanding, "version_backtracking": _backtracking}[
        kind
    ](plan, words)


def _add(plan: Plan, donor: Donor, placement: Placement, paint: str = "") -> Draft:
    return Draft(
        adding(placement, paint),
        object_fields(donor.label, plan.where(placement.box)),
        target=placement.object,
        target_label=donor.label,
        result_phrase=f"{paint} {donor.label}".strip(),
        names=(donor.label,),
        donors=(donor.sha256,),
    )


def _adjust(plan: Plan, donor: Donor, names: tuple[str, ...]) -> Draft:
    paint = str(plan.rng.choice(choices(donor.colour)))
    return Draft(
        {"paint": paint},
        object_fields(donor.label, "", PAINTS[paint].words),
        target="o1",
        target_label=donor.label,
        result_phrase=f"{paint} {donor.label}",
        names=names,
        donors=(donor.sha256,),
    )


def _replace(plan: Plan, donor: Donor, placement: Placement) -> Draft:
    new, placed = find_swap(plan, donor, placement)
    return Draft(
        placed.model_dump(mode="json"),
        object_fields(donor.label, "", a(new.label)),
        target="o1",
        target_label=donor.label,
        result_phrase=new.label,
        names=(new.label,),
        donors=(donor.sha256, new.sha256),
    )


def _memory(plan: Plan, words: Words) -> Graph:
    if plan.rng.random() < 0.65:
        return _memory_colour(plan, words)
    return _memory_side(plan, words)


def _memory_colour(plan: Plan, words: Words) -> Graph:
    colour = str(plan.rng.choice(COLOURS))

    def neutral(donor: Donor) -> bool:
        return colour in choices(donor.colour) and not COLOUR_WORDS & set(donor.label.split())

    first, one = plan.place(accept=neutral)
    second, two = plan.place(name="o2", avoid=(one,), accept=lambda d: neutral(d) and d.label != first.label)
    return Graph(
        (
            PlannedTurn("add", 0, _add(plan, first, one, colour), words["add"]),
            PlannedTurn("add", 1, _add(plan, second, two, colour), words["add"]),
        ),
        fill(words["premise_colour"], {"colour": PAINTS[colour].words}, plan.rng),
    )


def _memory_side(plan: Plan, words: Words) -> Graph:
    side = str(plan.rng.choice(("left", "right")))
    placed: list[tuple[Donor, Placement]] = []
    for _ in range(24):
        taken = [p for _, p in placed]
        donor, placement = plan.place(
            name=f"o{len(placed) + 1}",
            avoid=taken,
            accept=lambda d: d.label not in {other.label for other, _ in placed},
        )
        if _on_side(plan, placement, side):
            placed.append((donor, placement))
        if len(placed) == 2:
            turns = tuple(PlannedTurn("add", i, _add(plan, d, p), words["add"]) for i, (d, p) in enumerate(placed))
            return Graph(turns, fill(words["premise_side"], {"side": side}, plan.rng))
    raise Refused("no_room", f"two objects do not fit in the {side} half")


def _on_side(plan: Plan, placement: Placement, side: str) -> bool:
    box, middle = Box.from_list(placement.box), plan.grid.width / 2
    return box.x1 <= middle if side == "left" else box.x0 >= middle


def _understanding(plan: Plan, words: Words) -> Graph:
    donor, placement = plan.place()
    turns = [
        PlannedTurn("add", 0, _add(plan, donor, placement), words["add"]),
        PlannedTurn("adjust", 1, _adjust(plan, donor, names=("it",)), words["adjust"]),
    ]
    if plan.rng.random() < 0.5:
        last = Draft(
            {},
            object_fields(donor.label, ""),
            target="o1",
            target_label=donor.label,
            names=("it",),
            donors=(donor.sha256,),
        )
        turns.append(PlannedTurn("remove", 2, last, words["remove"]))
    else:
        turns.append(PlannedTurn("replace", 2, _replace(plan, donor, placement), words["replace"]))
    return Graph(tuple(turns))


def _backtracking(plan: Plan, words: Words) -> Graph:
    donor, placement = plan.place()
    return Graph(
        (
            PlannedTurn("add", 0, _add(plan, donor, placement), words["add"]),
            PlannedTurn("replace", 1, _replace(plan, donor, placement), words["replace"]),
            PlannedTurn("adjust", 1, _adjust(plan, donor, names=(donor.label,)), words["adjust"]),
        )
    )
