"""Edits of real objects by generative models: their drafts, the prompt, and what the recipes of several types share.

The drafts suit single edits and conversations alike: an object that an earlier turn put back is a layer named by its
region, so that changing it, removing it and going back are exact.
"""

from collections.abc import Iterator, Sequence

from editfoundry.core.english import a
from editfoundry.core.geometry import Box
from editfoundry.data_engine.ideas import ideas
from editfoundry.data_engine.recipes.base import Draft, Plan, Refused, on_region
from editfoundry.data_engine.records import BoxList, Region, Source

MIN_GAP_AT_1024 = 100
"""Two objects edited in one picture stand at least this far apart, in pixels where its short side has 1024."""
_DETERMINERS = frozenset(["a", "an", "the", "some", "one", "two", "three", "several"])


def generated_add(plan: Plan, region: Region) -> Draft:
    """The real object put back where it was inpainted away at the start."""
    return on_region(plan, region, {"reversed": True}, phrase=region.label)


def generated_remove(plan: Plan, region: Region) -> Draft:
    """The real object inpainted away; one that was put back by an earlier turn leaves exactly what was there before."""
    return on_region(plan, region, {})


def generated_replace(plan: Plan, region: Region) -> Draft:
    """Something else painted in the object's place, by an idea drawn for its label. Raises Refused without one."""
    return replacing(plan, region, _drawn(plan, "replace", region))


def generated_adjust(plan: Plan, region: Region) -> Draft:
    """The object given another look, by an idea drawn for its label. Raises Refused without one."""
    return adjusting(plan, region, _drawn(plan, "adjust", region))


def replacing(plan: Plan, region: Region, noun: str) -> Draft:
    """The draft that replaces a region's object by what a bare noun names."""
    return on_generated(plan, region, result=a(noun), phrase=noun)


def adjusting(plan: Plan, region: Region, look: str) -> Draft:
    """The draft that gives a region's object a look, in words that go before its label."""
    return on_generated(plan, region, result=look, phrase=f"{look} {region.label}")


def on_generated(plan: Plan, region: Region, *, phrase: str, result: str = "", open_result: bool = True) -> Draft:
    """A draft about a real object that a generative model changes, prompted with the turn's result phrase."""
    return on_region(
        plan, region, {"generated": True}, result=result, phrase=phrase, origin="generated", open_result=open_result
    )


def proposals(plan: Plan, kind: str, regions: Sequence[Region]) -> Iterator[tuple[Region, str]]:
    """Regions with ideas of a kind, each region in turn, in an order drawn by the plan's generator.

    Raises Refused when there are no regions, or no ideas for any.
    """
    if not regions:
        raise Refused("no_object", "no lone object of this photograph is surely known")
    drawn = [(region, _shuffled(plan, kind, region)) for region in regions]
    if not any(found for _, found in drawn):
        raise Refused("no_idea", f"{kind}: none for {', '.join(sorted({region.label for region in regions}))}")
    for index in range(max(len(found) for _, found in drawn)):
        for region, found in drawn:
            if index < len(found):
                yield region, found[index]


def _shuffled(plan: Plan, kind: str, region: Region) -> list[str]:
    known = ideas(kind, region.label)
    return [known[index] for index in plan.rng.permutation(len(known))]


def _drawn(plan: Plan, kind: str, region: Region) -> str:
    return next(proposals(plan, kind, [region]))[1]


def apart(plan: Plan, first: BoxList, second: BoxList) -> bool:
    """Whether two boxes are so far from each other that an edit of one leaves the other alone."""
    return Box.from_list(first).distance(Box.from_list(second)) >= MIN_GAP_AT_1024 * min(plan.source.grid) / 1024


def described(phrase: str) -> str:
    """The phrase with an article, unless it begins with one: what a prompt says of an object."""
    return phrase if phrase.split()[0].lower() in _DETERMINERS else a(phrase)


def in_context(phrase: str, source: Source) -> str:
    """The prompt that shows a thing as part of the photograph: `a red fox, in a garden with a fence`."""
    summary = source.caption.summary.strip(" .") if source.caption else ""
    return f"{described(phrase)}, in {summary}" if summary else described(phrase)
