"""Instructions by a language model: briefs for planned samples, one call for a batch, and the vetting of every reply.

The plan and its template wording exist before anything is asked, so a reply that may not be used costs nothing but
itself: the sample keeps the template's words and the planned results, and a reject says why.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from editfoundry.core.geometry import Box, Grid, size_words
from editfoundry.data_engine.conversations import COLOUR_WORDS, PlannedTurn
from editfoundry.data_engine.recipes.base import Draft, Refused
from editfoundry.data_engine.records import Sample, Turn
from editfoundry.data_engine.vetting import (
    agrees_with_result,
    asks_for,
    goes_back,
    misplaced,
    missized,
    plain,
    points_back,
    repeated,
    result_problems,
    says,
    states_position,
    unsaid,
    wording_problems,
)
from editfoundry.data_engine.wording import POSITIONS
from editfoundry.models.protocols import Brief, InstructionWriter, TurnBrief, Unanswered, Written

MOST_OTHERS = 5
MOST_COMPLAINTS = 12
SIDES = frozenset({"left", "right"})

_PLACED_NOUN = re.compile(rf"\w+ (?:{'|'.join(map(re.escape, POSITIONS.values()))})", re.IGNORECASE)

_GOAL = re.compile(r"the (?:(?:upper|lower) )?(?:left|right|top|bottom|middle)\b")
"""Where a fixed result says that something goes: `the upper left`."""


@dataclass(frozen=True)
class Drafted:
    """A planned sample in template wording. `constraint`: the words that only a conversation's premise may say."""

    sample: Sample
    planned: tuple[PlannedTurn, ...]
    constraint: tuple[str, ...] = ()

    def brief(self) -> Brief:
        """What a writer is asked for."""
        source, caption = self.sample.source, self.sample.source.caption
        mine = {turn.draft.target_label for turn in self.planned}
        others = dict.fromkeys(r.label for r in source.regions if r.qualified and r.label not in mine)
        return Brief(
            kind=self.sample.kind,
            turns=tuple(self._turn_brief(p, t) for p, t in zip(self.planned, self.sample.turns, strict=True)),
            caption=caption.text if caption else "",
            summary=caption.summary if caption else "",
            sha256=source.sha256,
            others=tuple(others)[:MOST_OTHERS],
            premise=self.sample.premise,
        )

    def _turn_brief(self, planned: PlannedTurn, turn: Turn) -> TurnBrief:
        draft = planned.draft
        position = _position(draft, turn)
        share = _share(draft, self.sample.source.grid)
        return TurnBrief(
            type=planned.type,
            label=draft.target_label,
            position=position,
            size=f"{size_words(share)} of the image" if position and share is not None else "",
            draft=turn.instruction,
            result=draft.result_phrase if draft.open_result else draft.fields.get("result", ""),
            open_result=draft.open_result,
            names=draft.names,
        )


def write(writer: InstructionWriter, drafted: Sequence[Drafted], retries: int) -> list[tuple[Sample, Refused | None]]:
    """Every sample in the writer's words, or as it was drafted with the reason why not; in order.

    One call for all of them, and one more for those whose reply was invalid, with the complaints, at most `retries`
    times. Reasons: writer_refused, writer_failed (no reply), writer_invalid. Raises RuntimeError when the writer does
    not answer every brief.
    """
    settled: dict[int, tuple[Sample, Refused | None]] = {}
    briefs = {index: one.brief() for index, one in enumerate(drafted)}
    for attempt in range(retries + 1):
        replies = writer.write(list(briefs.values()))
        if len(replies) != len(briefs):
            raise RuntimeError(f"writer {writer.name}: {len(replies)} replies to {len(briefs)} briefs")
        again: dict[int, Brief] = {}
        for (index, brief), reply in zip(briefs.items(), replies, strict=True):
            one = drafted[index]
            if isinstance(reply, Unanswered):
                settled[index] = one.sample, Refused(f"writer_{reply.kind}", f"{reply.reason}: {reply.detail}")
                continue
            sample, complaints = vetted(one, reply)
            if not complaints:
                settled[index] = sample, None
            elif attempt < retries:
                again[index] = replace(brief, complaints=complaints)
            else:
                settled[index] = one.sample, Refused("writer_invalid", "; ".join(complaints))
        briefs = again
        if not briefs:
            break
    return [settled[index] for index in range(len(drafted))]


def vetted(drafted: Drafted, reply: object) -> tuple[Sample, tuple[str, ...]]:
    """The sample in the reply's words, and complaints; with any complaint the sample is as it was drafted."""
    sample, count = drafted.sample, len(drafted.planned)
    if not isinstance(reply, Written) or not all(
        isinstance(part, tuple | list) and len(part) == count for part in (reply.instructions, reply.results)
    ):
        return sample, (f"the reply must hold {count} instructions and {count} results",)
    premise, complaints = _premise(drafted, reply.premise)
    turns = []
    for number, planned in enumerate(drafted.planned):
        text, phrase, wrong = _turn(drafted, number, planned, reply.instructions[number], reply.results[number])
        complaints += [f"turn {number + 1}: {complaint}" for complaint in wrong]
        update = {"instruction": text, "result_phrase": phrase, "worded_by": "writer"}
        turns.append(sample.turns[number].model_copy(update=update))
    if complaints:
        return sample, tuple(dict.fromkeys(complaints))[:MOST_COMPLAINTS]
    return sample.model_copy(update={"turns": tuple(turns), "premise": premise}), ()


def with_result(draft: Draft, phrase: str) -> Draft:
    """The draft with another result phrase, in its fields as well."""
    return replace(draft, result_phrase=phrase, fields={**draft.fields, "result": phrase})


def _turn(
    drafted: Drafted, number: int, planned: PlannedTurn, instruction: object, result: object
) -> tuple[str, str, list[str]]:
    """One turn's instruction and result phrase, and all that is wrong with them."""
    draft = planned.draft
    text, complaints = plain(instruction)
    given, unusable = plain(result)
    complaints += [f"the result {problem}" for problem in unusable]
    if complaints:
        return "", "", complaints
    if given and draft.open_result:
        phrase, complaints = result_problems(planned.type, given, draft.target_label)
        if complaints:
            return "", "", complaints
        draft = with_result(draft, phrase)
    elif given.lower() not in ("", draft.fields.get("result", "").lower(), draft.result_phrase.lower()):
        complaints = ["the result is fixed and may not be chosen"]
    complaints += wording_problems(text, allowed=drafted.sample.turns[number].instruction)
    complaints += asks_for(text, planned.type)
    complaints += _content(text, planned.type, draft)
    complaints += _place(text, planned.type, draft, drafted.sample, _position(draft, drafted.sample.turns[number]))
    complaints += _conversation(text, drafted, number, draft)
    return _sentence(text), draft.result_phrase, complaints


def _content(text: str, kind: str, draft: Draft) -> list[str]:
    """Whether the text says what it must: the plan's names, its fixed results, and the result that was chosen."""
    found = [f"does not name {name!r}" for name in draft.names if name != "it" and not says(text, name)]
    if "objects" in draft.fields and not any(says(text, draft.fields[k]) for k in ("objects", "objects_after")):
        found.append(f"does not name {draft.fields['objects']!r}")
    if draft.open_result or kind == "visual":
        return found + agrees_with_result(kind, text, draft.result_phrase, draft.target_label)
    fixed = " ".join(draft.fields.get(key, "") for key in ("result", "first", "second"))
    missing = unsaid(text, fixed)
    return found + ([f"does not say {' '.join(missing)!r}"] if missing else [])


def _place(text: str, kind: str, draft: Draft, sample: Sample, position: str) -> list[str]:
    """Whether every place and size the text states is the box's, and it says where if the label alone does not tell."""
    found, rest = [], text
    for anchor in _PLACED_NOUN.findall("; ".join(draft.fields.get(key, "") for key in ("first", "second"))):
        found += [] if anchor.lower() in rest.lower() else [f"does not say {anchor!r}"]
        rest = re.sub(re.escape(anchor), ";", rest, flags=re.IGNORECASE)
    goal = _GOAL.search("" if draft.open_result else draft.fields.get("result", ""))
    if goal:
        found += [] if goal[0] in rest.lower() else [f"does not say {goal[0]!r}"]
        rest = re.sub(rf"(?:\w+ )?{goal[0]}\b", ";", rest, flags=re.IGNORECASE)
    grid, share = sample.source.grid, _share(draft, sample.source.grid)
    if draft.box is None or share is None:
        found += ["states a place that was not asked for"] if states_position(rest) else []
    else:
        found += misplaced(rest, Box.from_list(draft.box), Grid(*grid)) + missized(rest, draft.target_label, share)
    alone = sample.source.counts.get(draft.target_label, 0) <= (0 if draft.origin == "donor" else 1)
    if position and (kind == "add" or not alone) and not states_position(rest):
        found.append(f"does not say where: {position}")
    return found


def _conversation(text: str, drafted: Drafted, number: int, draft: Draft) -> list[str]:
    """What the kind of conversation asks of its turn `number`, counted from 0."""
    kind = drafted.sample.kind
    if kind == "content_understanding" and number > 0:
        result = draft.fields.get("result", "")
        return points_back(
            re.sub(re.escape(result), ";", text, flags=re.IGNORECASE) if result else text, draft.target_label
        )
    if kind == "version_backtracking" and number == 2 and not goes_back(text):
        return ["does not say that it goes back to the earlier version"]
    return repeated(text, drafted.constraint) if kind == "content_memory" else []


def _premise(drafted: Drafted, given: object) -> tuple[str, list[str]]:
    """The premise of a conversation in the reply's words; it must say the plan's constraint and no other one."""
    planned = drafted.sample.premise
    text, wrong = plain(given)
    if not planned:
        wrong = [] if isinstance(given, str) and not given.strip() else ["must be empty"]
        return "", [f"the premise {problem}" for problem in wrong]
    wrong += [] if wrong else wording_problems(text)
    if not wrong:
        constraint = set(drafted.constraint)
        wrong += [f"does not say {word!r}" for word in drafted.constraint if not says(text, word)]
        others = (SIDES if constraint & SIDES else COLOUR_WORDS) - constraint
        wrong += ["says another constraint"] if others & set(re.findall(r"[a-z]+", text.lower())) else []
        if not constraint & SIDES and states_position(text):
            wrong.append("states a place that was not asked for")
    return _sentence(text), [f"the premise {problem}" for problem in wrong]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text[-1:] in (".", "!", "?") else ".")


def _position(draft: Draft, turn: Turn) -> str:
    """The position that the turn's drafted wording gives; a turn that gives none in a template's words need not."""
    position = draft.fields.get("position", "")
    return position if position in turn.instruction else ""


def _share(draft: Draft, grid: tuple[int, int]) -> float | None:
    """The share of the image, in [0, 1], that the draft's box covers; None where it has none."""
    if draft.box is None:
        return None
    return min(1.0, max(0.0, Box.from_list(draft.box).area / (grid[0] * grid[1])))
