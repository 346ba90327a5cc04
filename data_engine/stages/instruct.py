"""instruct: what could be done to each source, and in which words. Reads no pixels.

Every plan draws from a generator of its own, seeded by (run seed, source id, type, origin): adding a type or changing
a rate leaves the other plans as they were.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field, field_validator

from editfoundry.core.config import Config
from editfoundry.core.geometry import Box, Grid, position_agrees
from editfoundry.core.hashing import rng_for, seed_for
from editfoundry.data_engine.conversations import PlannedTurn, plan_conversation
from editfoundry.data_engine.recipes.base import Draft, Plan, Refused, recipe
from editfoundry.data_engine.records import Donor, Placement, Reject, Sample, Source, Turn
from editfoundry.data_engine.stages.base import Artifacts, Item, Outcome, Stage
from editfoundry.data_engine.taxonomy import CONVERSATION_WORDS, CONVERSATIONS, TYPES
from editfoundry.data_engine.wording import fill, problems, same_request

Rate = Annotated[float, Field(ge=0, le=1000)]


class InstructConfig(Config):
    """How many edits of each type to plan per source; a fraction is a chance.

    donor_rates: with an object placed into the photograph. photograph_rates: on what the photograph really shows.
    conversation_rates: by kind. templates: replaces the taxonomy's wordings of a type.
    paraphrase: share of instructions offered to the paraphraser; a rewording that asks for anything else is refused.
    """

    donor_rates: dict[str, Rate] = Field(
        default_factory=lambda: {
            "add": 0.5,
            "remove": 0.4,
            "replace": 0.4,
            "adjust": 0.3,
            "extract": 0.2,
            "visual": 0.3,
            "compose": 0.4,
            "move": 0.2,
            "resize": 0.2,
            "count": 0.2,
        }
    )
    photograph_rates: dict[str, Rate] = Field(
        default_factory=lambda: {
            "add": 1,
            "remove": 1,
            "adjust": 2,
            "extract": 1,
            "background": 2,
            "style": 0.3,
            "motion": 1,
        }
    )
    conversation_rates: dict[str, Rate] = Field(default_factory=lambda: dict.fromkeys(CONVERSATIONS, 0.2))
    templates: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]] = Field(default_factory=dict)
    paraphrase: float = Field(default=0.0, ge=0, le=1)

    @field_validator("donor_rates", "photograph_rates", "templates")
    @classmethod
    def _known_types(cls, value: dict[str, Any]) -> dict[str, Any]:
        unknown = sorted(set(value) - set(TYPES))
        if unknown:
            raise ValueError(f"unknown edit types {unknown}; known: {', '.join(TYPES)}")
        return value

    @field_validator("conversation_rates")
    @classmethod
    def _known_kinds(cls, value: dict[str, float]) -> dict[str, float]:
        unknown = sorted(set(value) - set(CONVERSATIONS))
        if unknown:
            raise ValueError(f"unknown conversations {unknown}; known: {', '.join(CONVERSATIONS)}")
        return value


class Instruct(Stage):
    """One source in, its planned samples out."""

    name = "instruct"
    row = Sample
    roles: ClassVar[tuple[str, ...]] = ("paraphraser",)
    artifacts: ClassVar[tuple[str, ...]] = ("catalogue",)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {
            "templates": {name: list(self.templates(name)) for name in TYPES},
            "conversations": {k: {t: list(w) for t, w in v.items()} for k, v in CONVERSATION_WORDS.items()},
        }

    def templates(self, name: str) -> Sequence[str]:
        replaced: Mapping[str, Sequence[str]] = self.config.templates
        return replaced.get(name, TYPES[name].templates)

    def setup(self, artifacts: Artifacts) -> None:
        if self.config.paraphrase > 0:
            super().setup(artifacts)
        self.donors = [Donor.model_validate(row) for row in artifacts.rows("catalogue")]

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        return [self._plan_source(item.record) for item in batch]

    def _plan_source(self, source: Source) -> Outcome:
        outcome: Outcome = []
        if source.kind == "frames":
            self._singles(source, "motion", "photograph", 1.0, outcome)
        else:
            for name, rate in sorted(self.config.donor_rates.items()):
                self._singles(source, name, "donor", rate, outcome)
            for name, rate in sorted(self.config.photograph_rates.items()):
                if name != "motion":
                    self._singles(source, name, "photograph", rate, outcome)
            for kind, rate in sorted(self.config.conversation_rates.items()):
                self._conversations(source, kind, rate, outcome)
        if not any(isinstance(part, Item) for part in outcome):
            outcome.append(
                Reject(
                    stage=self.name,
                    id=source.id,
                    reason="nothing_planned",
                    unit="source",
                    detail="no edit type fits this source",
                    source_sha256=source.sha256,
                )
            )
        return outcome

    def _plan(self, source: Source, rng: np.random.Generator, origin: Any = "donor") -> Plan:
        mine = [d for d in self.donors if d.split == source.split]
        return Plan(
            source,
            [d for d in mine if d.kind == "cutout"],
            [d for d in mine if d.kind == "style"],
            [d for d in mine if d.kind == "background"],
            rng,
            origin,
        )

    def _singles(self, source: Source, name: str, origin: str, rate: float, outcome: Outcome) -> None:
        rng = rng_for(self.run.seed, source.id, name, origin)
        wanted = int(rate) + int(rng.random() < rate - int(rate))
        prefix = f"{source.id}_{name}_{origin[0]}"
        made = 0
        try:
            for draft in islice(recipe(name).plan(self._plan(source, rng, origin)), wanted):
                turn = PlannedTurn(name, 0, draft, self.templates(name))
                outcome.append(self._sample(f"{prefix}{made}", "single", source, (turn,), "", rng, outcome))
                made += 1
        except Refused as refused:
            outcome.append(self._candidate(f"{prefix}{made}", source, name, refused))

    def _conversations(self, source: Source, kind: str, rate: float, outcome: Outcome) -> None:
        rng = rng_for(self.run.seed, source.id, kind)
        for index in range(int(rate) + int(rng.random() < rate - int(rate))):
            key = f"{source.id}_{kind}_{index}"
            try:
                graph = plan_conversation(kind, self._plan(source, rng), CONVERSATION_WORDS[kind])
                outcome.append(self._sample(key, kind, source, graph.turns, graph.premise, rng, outcome))
            except Refused as refused:
                outcome.append(self._candidate(key, source, kind, refused))

    def _candidate(self, key: str, source: Source, name: str, refused: Refused) -> Reject:
        return Reject(
            stage=self.name,
            id=key,
            reason=refused.reason,
            detail=refused.detail,
            unit="candidate",
            type=name,
            source_sha256=source.sha256,
        )

    def _sample(
        self,
        key: str,
        kind: Any,
        source: Source,
        planned: Sequence[PlannedTurn],
        premise: str,
        rng: np.random.Generator,
        outcome: Outcome,
    ) -> Item:
        turns = [
            Turn(
                index=i,
                type=p.type,
                parent=p.parent,
                target=p.draft.target,
                target_label=p.draft.target_label,
                instruction=self._word(f"{key}_t{i}", source, p, rng, outcome),
                operation=p.draft.operation,
                result_phrase=p.draft.result_phrase,
                origin=p.draft.origin,
            )
            for i, p in enumerate(planned, start=1)
        ]
        donors = tuple(dict.fromkeys(sha for p in planned for sha in p.draft.donors))
        return Item(
            Sample(
                id=key,
                kind=kind,
                source=source,
                premise=premise,
                initial=planned[0].draft.initial,
                turns=tuple(turns),
                donors=donors,
                split=source.split,
            )
        )

    def _word(self, key: str, source: Source, planned: PlannedTurn, rng: np.random.Generator, outcome: Outcome) -> str:
        draft = planned.draft
        text = fill(planned.templates, draft.fields, rng)
        wrong = problems(text, draft.names) + _misplaced(text, draft, source)
        if wrong:
            raise Refused("bad_instruction", f"{text!r}: {'; '.join(wrong)}")
        # Only a request that says by itself what and where is reworded: a turn that points back loses too easily.
        if rng.random() >= self.config.paraphrase or not draft.fields.get("position"):
            return text
        reworded = " ".join(
            self.models["paraphraser"].paraphrase(text, seed_for(self.run.seed, key, "paraphrase")).split()
        )
        kept = (value for value in draft.fields.values() if value and value in text)
        wrong = problems(reworded, (*draft.names, *kept))
        if not wrong and same_request(text, reworded) and not _misplaced(reworded, draft, source):
            return reworded
        outcome.append(self._candidate(key, source, planned.type, Refused("paraphrase_refused", reworded[:200])))
        return text


def _misplaced(text: str, draft: Draft, source: Source) -> list[str]:
    """Position words that contradict the box they are about (only where the instruction is about one box)."""
    if not draft.fields.get("position") or "copies" in draft.operation or "steps" in draft.operation:
        return []
    placement = draft.initial[0] if draft.initial else None
    if placement is None and "placement" in draft.operation:
        placement = Placement.model_validate(draft.operation["placement"])
    box = placement.box if placement else next((r.box for r in source.regions if r.id == draft.target), None)
    position = draft.fields["position"]
    if box is None or position not in text:
        return []
    agrees = position_agrees(position, Box.from_list(box), Grid(*source.grid))
    return [] if agrees else [f"{position!r} contradicts the box {[round(v) for v in box]}"]
