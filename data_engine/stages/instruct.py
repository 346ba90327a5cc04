"""instruct: what could be done to each source, and in which words. Reads no pixels.

Every plan draws from a generator of its own, seeded by (run seed, source id, type, origin): adding a type or changing
a rate leaves the other plans as they were. Everything is planned and worded by templates first; a writer, where the
run names one, then words a whole batch in one call.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import Field, field_validator

from editfoundry.core.config import Config, require_known
from editfoundry.core.geometry import Box, Grid
from editfoundry.core.hashing import rng_for, seed_for
from editfoundry.data_engine.conversations import GENERATED_MEMORY_WORDS, Graph, PlannedTurn, plan_conversation
from editfoundry.data_engine.ideas import content_hash
from editfoundry.data_engine.recipes.base import Draft, Plan, Refused, recipe
from editfoundry.data_engine.records import Donor, Origin, Reject, Sample, Source, Turn
from editfoundry.data_engine.stages.base import Artifacts, Item, Outcome, Stage
from editfoundry.data_engine.taxonomy import CONVERSATION_WORDS, CONVERSATIONS, TYPES
from editfoundry.data_engine.vetting import misplaced
from editfoundry.data_engine.wording import fill, problems, same_request
from editfoundry.data_engine.writing import Drafted, write

if TYPE_CHECKING:
    from editfoundry.data_engine.config import RunConfig

Rate = Annotated[float, Field(ge=0, le=1000)]
GENERATED = ("add", "adjust", "background", "compose", "extract", "remove", "replace", "visual")
"""Types that generative models can make of a photograph's own objects."""


class InstructConfig(Config):
    """How many edits of each type to plan per source; a fraction is a chance.

    donor_rates: with an object placed into the photograph. photograph_rates: on what the photograph really shows.
    generated_rates: on what it really shows, painted by generative models. conversation_rates: by kind.
    generated_conversations: hold them about the photograph's own objects instead of donors.
    templates: replaces the taxonomy's wordings of a type. paraphrase: share of instructions offered to the paraphraser;
    a rewording that asks for anything else is refused. writer_retries: how often a writer (`models.writer`) is asked
    again, with the complaints, after a reply that may not be used; then the template's wording stands.
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
    generated_rates: dict[str, Rate] = Field(default_factory=dict)
    conversation_rates: dict[str, Rate] = Field(default_factory=lambda: dict.fromkeys(CONVERSATIONS, 0.2))
    generated_conversations: bool = False
    templates: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]] = Field(default_factory=dict)
    paraphrase: float = Field(default=0.0, ge=0, le=1)
    writer_retries: int = Field(default=1, ge=0, le=10)

    @field_validator("donor_rates", "photograph_rates", "templates")
    @classmethod
    def _known_types(cls, value: dict[str, Any]) -> dict[str, Any]:
        require_known(value, TYPES, "edit types")
        return value

    @field_validator("generated_rates")
    @classmethod
    def _generated_types(cls, value: dict[str, float]) -> dict[str, float]:
        require_known(value, GENERATED, "types of generated edits")
        return value

    @field_validator("conversation_rates")
    @classmethod
    def _known_kinds(cls, value: dict[str, float]) -> dict[str, float]:
        require_known(value, CONVERSATIONS, "conversations")
        return value


class Instruct(Stage):
    """One source in, its planned samples out."""

    name = "instruct"
    row = Sample
    roles: ClassVar[tuple[str, ...]] = ("paraphraser", "writer")
    artifacts: ClassVar[tuple[str, ...]] = ("catalogue",)

    @classmethod
    def needs(cls, config: "RunConfig") -> tuple[str, ...]:
        wanted = {"paraphraser": config.instruct.paraphrase > 0, "writer": "writer" in config.models}
        return tuple(role for role in cls.roles if wanted[role])

    def settings(self) -> dict[str, Any]:
        settings = super().settings() | {
            "templates": {name: list(self.templates(name)) for name in TYPES},
            "conversations": {k: {t: list(w) for t, w in v.items()} for k, v in CONVERSATION_WORDS.items()},
        }
        if self.config.generated_conversations:
            settings["generated_memory"] = {t: list(w) for t, w in GENERATED_MEMORY_WORDS.items()}
        if self.config.generated_conversations or any(self.config.generated_rates.values()):
            settings["ideas"] = content_hash()
        return settings

    def templates(self, name: str) -> Sequence[str]:
        replaced: Mapping[str, Sequence[str]] = self.config.templates
        return replaced.get(name, TYPES[name].templates)

    def setup(self, artifacts: Artifacts) -> None:
        super().setup(artifacts)
        self.donors = [Donor.model_validate(row) for row in artifacts.rows("catalogue")]

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        planned = [self._plan_source(item.record) for item in batch]
        drafted = [part for parts in planned for part in parts if isinstance(part, Drafted)]
        worded = iter(self._write(drafted))
        outcomes: list[Outcome] = []
        for parts in planned:
            outcome: Outcome = []
            for part in parts:
                outcome += next(worded) if isinstance(part, Drafted) else [part]
            outcomes.append(outcome)
        return outcomes

    def _write(self, drafted: Sequence[Drafted]) -> list[Outcome]:
        """Each sample as the writer words it, if there is one, behind the reject that says why it does not."""
        if "writer" not in self.models or not drafted:
            return [[Item(one.sample)] for one in drafted]
        outcomes: list[Outcome] = []
        replies = write(self.models["writer"], drafted, self.config.writer_retries)
        for one, (sample, refused) in zip(drafted, replies, strict=True):
            name = one.planned[0].type if sample.kind == "single" else sample.kind
            unused = [self._candidate(f"{sample.id}_w", sample.source, name, refused)] if refused else []
            outcomes.append([*unused, Item(sample)])
        return outcomes

    def _plan_source(self, source: Source) -> list[Drafted | Reject]:
        parts: list[Drafted | Reject] = []
        if source.kind == "frames":
            self._singles(source, "motion", "photograph", 1.0, parts)
        else:
            for name, rate in sorted(self.config.donor_rates.items()):
                self._singles(source, name, "donor", rate, parts)
            for name, rate in sorted(self.config.photograph_rates.items()):
                if name != "motion":
                    self._singles(source, name, "photograph", rate, parts)
            for name, rate in sorted(self.config.generated_rates.items()):
                self._singles(source, name, "generated", rate, parts)
            for kind, rate in sorted(self.config.conversation_rates.items()):
                self._conversations(source, kind, rate, parts)
        if not any(isinstance(part, Drafted) for part in parts):
            parts.append(
                Reject(
                    stage=self.name,
                    id=source.id,
                    reason="nothing_planned",
                    unit="source",
                    detail="no edit type fits this source",
                    source_sha256=source.sha256,
                )
            )
        return parts

    def _plan(self, source: Source, rng: np.random.Generator, origin: Origin = "donor") -> Plan:
        mine = [d for d in self.donors if d.split == source.split]
        return Plan(
            source,
            [d for d in mine if d.kind == "cutout"],
            [d for d in mine if d.kind == "style"],
            [d for d in mine if d.kind == "background"],
            rng,
            origin,
        )

    def _singles(self, source: Source, name: str, origin: Origin, rate: float, parts: list[Drafted | Reject]) -> None:
        rng = rng_for(self.run.seed, source.id, name, origin)
        wanted = int(rate) + int(rng.random() < rate - int(rate))
        prefix = f"{source.id}_{name}_{origin[0]}"
        made = 0
        try:
            for draft in islice(recipe(name).plan(self._plan(source, rng, origin)), wanted):
                graph = Graph((PlannedTurn(name, 0, draft, self.templates(name)),))
                parts.append(self._drafted(f"{prefix}{made}", "single", source, graph, rng, parts))
                made += 1
        except Refused as refused:
            parts.append(self._candidate(f"{prefix}{made}", source, name, refused))

    def _conversations(self, source: Source, kind: str, rate: float, parts: list[Drafted | Reject]) -> None:
        origin: Origin = "generated" if self.config.generated_conversations else "donor"
        about = (origin,) if self.config.generated_conversations else ()
        rng = rng_for(self.run.seed, source.id, kind, *about)
        for index in range(int(rate) + int(rng.random() < rate - int(rate))):
            key = f"{source.id}_{kind}_{origin[0] if about else ''}{index}"
            try:
                graph = plan_conversation(kind, self._plan(source, rng, origin), CONVERSATION_WORDS[kind])
                parts.append(self._drafted(key, kind, source, graph, rng, parts))
            except Refused as refused:
                parts.append(self._candidate(key, source, kind, refused))

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

    def _drafted(
        self,
        key: str,
        kind: Any,
        source: Source,
        graph: Graph,
        rng: np.random.Generator,
        parts: list[Drafted | Reject],
    ) -> Drafted:
        turns = []
        for index, planned in enumerate(graph.turns, start=1):
            instruction, reworded = self._word(f"{key}_t{index}", source, planned, rng, parts)
            turns.append(
                Turn(
                    index=index,
                    type=planned.type,
                    parent=planned.parent,
                    target=planned.draft.target,
                    target_label=planned.draft.target_label,
                    instruction=instruction,
                    operation=planned.draft.operation,
                    result_phrase=planned.draft.result_phrase,
                    origin=planned.draft.origin,
                    worded_by="paraphraser" if reworded else "template",
                )
            )
        sample = Sample(
            id=key,
            kind=kind,
            source=source,
            premise=graph.premise,
            initial=graph.turns[0].draft.initial,
            turns=tuple(turns),
            donors=tuple(dict.fromkeys(sha for planned in graph.turns for sha in planned.draft.donors)),
            split=source.split,
        )
        return Drafted(sample, graph.turns, graph.constraint)

    def _word(
        self, key: str, source: Source, planned: PlannedTurn, rng: np.random.Generator, parts: list[Drafted | Reject]
    ) -> tuple[str, bool]:
        """The instruction in a template's words, and whether the paraphraser reworded it."""
        draft = planned.draft
        text = fill(planned.templates, draft.fields, rng)
        wrong = problems(text, draft.names) + _misplaced(text, draft, source)
        if wrong:
            raise Refused("bad_instruction", f"{text!r}: {'; '.join(wrong)}")
        # Only a request that says by itself what and where is reworded: a turn that points back loses too easily.
        if rng.random() >= self.config.paraphrase or not draft.fields.get("position"):
            return text, False
        reworded = " ".join(
            self.models["paraphraser"].paraphrase(text, seed_for(self.run.seed, key, "paraphrase")).split()
        )
        kept = (value for value in draft.fields.values() if value and value in text)
        wrong = problems(reworded, (*draft.names, *kept))
        if not wrong and same_request(text, reworded) and not _misplaced(reworded, draft, source):
            return reworded, True
        parts.append(self._candidate(key, source, planned.type, Refused("paraphrase_refused", reworded[:200])))
        return text, False


def _misplaced(text: str, draft: Draft, source: Source) -> list[str]:
    """The plan's own position words, where the text says them, must fit the box they are about."""
    position = draft.fields.get("position", "")
    if draft.box is None or not position or position not in text:
        return []
    return misplaced(position, Box.from_list(draft.box), Grid(*source.grid))
