"""The three kinds of conversation, planned from the recipes of single edits: on donors, or on real objects.

Content memory: a premise that both turns honour and neither repeats. Content understanding: turns 2 and 3 say "it".
Version backtracking: turn 3 starts from the result of turn 1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from editfoundry.core.english import a
from editfoundry.core.geometry import Box
from editfoundry.data_engine.ideas import ideas
from editfoundry.data_engine.paint import PAINTS, choices
from editfoundry.data_engine.recipes.add import adding
from editfoundry.data_engine.recipes.base import Draft, Plan, Refused, object_fields
from editfoundry.data_engine.recipes.generated import (
    adjusting,
    apart,
    generated_add,
    generated_adjust,
    generated_remove,
    generated_replace,
)
from editfoundry.data_engine.recipes.remove import removable
from editfoundry.data_engine.recipes.replace import find_swap
from editfoundry.data_engine.records import Donor, Placement, Region
from editfoundry.data_engine.wording import content_words, fill

Words = Mapping[str, Sequence[str]]
COLOUR_WORDS = frozenset(PAINTS) | {"white", "black", "gray", "brown", "teal"}
GENERATED_MEMORY_WORDS: dict[str, tuple[str, ...]] = {
    "premise": (
        "From now on, everything you change must become {look}.",
        "Remember for all later edits: whatever you change has to turn out {look}.",
    ),
    "adjust": (
        "Change the look of {the_object} {position}.",
        "Give {the_object} {position} its new look.",
        "Now redo {the_object} {position}.",
    ),
}
"""Content memory on real objects, which are changed where donors would be added; the other kinds share their words."""
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
    """A planned conversation. `constraint`: the words of the premise that no turn may repeat."""

    turns: tuple[PlannedTurn, ...]
    premise: str = ""
    constraint: tuple[str, ...] = ()


def plan_conversation(kind: str, plan: Plan, words: Words) -> Graph:
    """A conversation of the kind on this source: on its own objects where `plan.origin` is "generated", else on donors

    placed into it. Raises Refused.
    """
    if plan.origin == "generated":
        return _GENERATED[kind](plan, words)
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
        box=placement.box,
    )


def _adjust(plan: Plan, donor: Donor, placement: Placement, names: tuple[str, ...]) -> Draft:
    paint = str(plan.rng.choice(choices(donor.colour)))
    return Draft(
        {"paint": paint},
        object_fields(donor.label, "", PAINTS[paint].words),
        target="o1",
        target_label=donor.label,
        result_phrase=f"{paint} {donor.label}",
        names=names,
        donors=(donor.sha256,),
        box=placement.box,
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
        box=placement.box,
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
        tuple(PAINTS[colour].words.split()),
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
            return Graph(turns, fill(words["premise_side"], {"side": side}, plan.rng), (side,))
    raise Refused("no_room", f"two objects do not fit in the {side} half")


def _on_side(plan: Plan, placement: Placement, side: str) -> bool:
    box, middle = Box.from_list(placement.box), plan.grid.width / 2
    return box.x1 <= middle if side == "left" else box.x0 >= middle


def _understanding(plan: Plan, words: Words) -> Graph:
    donor, placement = plan.place()
    turns = [
        PlannedTurn("add", 0, _add(plan, donor, placement), words["add"]),
        PlannedTurn("adjust", 1, _adjust(plan, donor, placement, names=("it",)), words["adjust"]),
    ]
    if plan.rng.random() < 0.5:
        last = Draft(
            {},
            object_fields(donor.label, ""),
            target="o1",
            target_label=donor.label,
            names=("it",),
            donors=(donor.sha256,),
            box=placement.box,
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
            PlannedTurn("adjust", 1, _adjust(plan, donor, placement, names=(donor.label,)), words["adjust"]),
        )
    )


def _generated_memory(plan: Plan, words: Words) -> Graph:
    """Two different real objects take the look that only the premise says."""
    del words
    looks = ideas("adjust")
    regions = _shuffled(plan, [r for r in plan.lone_objects() if ideas("adjust", r.label)])
    pairs = [(r, s) for r in regions for s in regions if r.label != s.label and apart(plan, r.box, s.box)]
    for first, second in pairs:
        labels = {word for region in (first, second) for word in region.label.lower().split()}
        fitting = [look for look in looks if not labels & (set(content_words(look)) | COLOUR_WORDS)]
        if fitting:
            look = str(plan.rng.choice(fitting))
            drafts = [adjusting(plan, region, look) for region in (first, second)]
            silent = [replace(d, fields={**d.fields, "result": ""}, open_result=False) for d in drafts]
            turns = (PlannedTurn("adjust", i, d, GENERATED_MEMORY_WORDS["adjust"]) for i, d in enumerate(silent))
            premise = fill(GENERATED_MEMORY_WORDS["premise"], {"look": look}, plan.rng)
            return Graph(tuple(turns), premise, tuple(content_words(look)))
    raise Refused("no_pair", "no two lone objects that stand apart and may be given one look")


def _generated_understanding(plan: Plan, words: Words) -> Graph:
    last = "remove" if plan.rng.random() < 0.5 else "replace"
    for region in _shuffled(plan, removable(plan)):
        try:
            adjust = _later(generated_adjust(plan, region), names=("it",))
            ending = generated_remove if last == "remove" else generated_replace
            end = _later(ending(plan, region), names=("it",))
        except Refused:
            continue
        return Graph(
            (
                PlannedTurn("add", 0, generated_add(plan, region), words["add"]),
                PlannedTurn("adjust", 1, adjust, words["adjust"]),
                PlannedTurn(last, 2, end, words[last]),
            )
        )
    raise Refused("no_idea", "no removable object of this photograph may be changed")


def _generated_backtracking(plan: Plan, words: Words) -> Graph:
    for region in _shuffled(plan, removable(plan)):
        try:
            swap = _later(generated_replace(plan, region), names=())
            adjust = _later(generated_adjust(plan, region), names=(region.label,))
        except Refused:
            continue
        return Graph(
            (
                PlannedTurn("add", 0, generated_add(plan, region), words["add"]),
                PlannedTurn("replace", 1, swap, words["replace"]),
                PlannedTurn("adjust", 1, adjust, words["adjust"]),
            )
        )
    raise Refused("no_idea", "no removable object of this photograph may be changed")


def _later(draft: Draft, names: tuple[str, ...]) -> Draft:
    """The draft for a turn about what the turns before spoke of: it names these, and no position."""
    return replace(draft, names=names, fields={**draft.fields, "position": ""})


def _shuffled(plan: Plan, regions: Sequence[Region]) -> list[Region]:
    return [regions[index] for index in plan.rng.permutation(len(regions))]


_GENERATED: dict[str, Callable[[Plan, Words], Graph]] = {
    "content_memory": _generated_memory,
    "content_understanding": _generated_understanding,
    "version_backtracking": _generated_backtracking,
}
