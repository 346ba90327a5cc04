"""verify: gates from cheap to expensive, in the order the configuration lists, each with a reason code."""

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from editfoundry.core.config import Config
from editfoundry.core.errors import EditFoundryError
from editfoundry.core.geometry import Mask
from editfoundry.core.images import decode_jpeg, decode_mask_png, decode_rgba
from editfoundry.data_engine.gates import ALSO, GATES, ROLES
from editfoundry.data_engine.gates.base import EdgeView, GateFailed, Thresholds, Values, gate_order
from editfoundry.data_engine.gates.judge import pair
from editfoundry.data_engine.recipes.base import plain_reference
from editfoundry.data_engine.records import Edge, Reject, Sample
from editfoundry.data_engine.scene import Image
from editfoundry.data_engine.stages.base import Artifacts, Item, Outcome, Stage
from editfoundry.models.language.canaries import judge_canaries
from editfoundry.models.registry import implementation

if TYPE_CHECKING:
    from editfoundry.data_engine.config import RunConfig

CACHED_EMBEDDINGS = 4096
CHEAP_GATES = tuple(name for name in GATES if name != "judge")
OTHER_INSTRUCTION = "Turn the whole picture into a black and white pencil drawing."
"""An instruction that no local edit fulfils: the wrong one of the canaries."""


class VerifyConfig(Config):
    """gates: names in the order they run. thresholds: the limits they apply. canary_pairs: edits of each shard on which

    the judge is tested before it is believed (0: none); most of those it answers must pass, or the run stops.
    """

    gates: tuple[str, ...] = CHEAP_GATES
    thresholds: Thresholds = Field(default_factory=Thresholds)
    canary_pairs: int = Field(default=3, ge=0)

    @field_validator("gates")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return gate_order(value, GATES)


class JudgeUntrusted(EditFoundryError):
    """The judge does not tell good edits from canaries, so nothing it says may decide what goes into a dataset."""


class Verify(Stage):
    """One rendered sample in; the same with gate values on its edges, or a reject with the gate's reason, out.

    The gates run over a whole batch one after the other, and see only samples that no earlier gate refused.
    """

    name = "verify"
    version = 2
    row = Sample
    blobs = "render"
    roles: ClassVar[tuple[str, ...]] = tuple(
        sorted({role for roles in (*ROLES.values(), *ALSO.values()) for role in roles})
    )
    artifacts: ClassVar[tuple[str, ...]] = ("catalogue",)

    @classmethod
    def needs(cls, config: "RunConfig") -> tuple[str, ...]:
        """What the listed gates cannot do without, and what they ask too if the run names it."""
        gates = config.verify.gates
        required = {role for gate in gates for role in ROLES.get(gate, ())}
        offered = {role for gate in gates for role in ALSO.get(gate, ()) if role in config.models}
        segmenter = config.models.get("segmenter")
        if segmenter is not None and not implementation("segmenter", segmenter.name).salient:
            required.discard("segmenter")  # only one that looks for what stands out can see ghosts
        return tuple(sorted(required | offered))

    def setup(self, artifacts: Artifacts) -> None:
        super().setup(artifacts)

        @lru_cache(CACHED_EMBEDDINGS)
        def alone(digest: str) -> NDArray[np.float32]:
            rgba = decode_rgba(artifacts.blob("catalogue", 0, digest, "original"))
            embedding: NDArray[np.float32] = self.models["image_embedder"].embed([plain_reference(rgba)])[0]
            return embedding

        self.alone = alone
        self._canaries_due = self.config.canary_pairs

    def start_shard(self) -> None:
        super().start_shard()
        self._canaries_due = self.config.canary_pairs

    def process(self, batch: Sequence[Item]) -> list[Outcome]:
        views = [self._views(item) for item in batch]
        values: list[list[Values]] = [[{} for _ in edges] for edges in views]
        rejects: dict[int, Reject] = {}
        for gate in self.config.gates:
            asked = [(i, j) for i, edges in enumerate(views) if i not in rejects for j in range(len(edges))]
            if gate == "judge":
                self._canaries([views[i][j] for i, j in asked])
            with self.meter.timed(gate, len(asked)):
                answers = GATES[gate]([views[i][j] for i, j in asked], self.config.thresholds)
            for (i, j), answer in zip(asked, answers, strict=True):
                if not isinstance(answer, GateFailed):
                    values[i][j] |= answer
                elif i not in rejects:
                    self.meter.refuse(gate)
                    rejects[i] = batch[i].record.reject(self.name, answer.reason, answer.detail, answer.score)
        return [[rejects[i] if i in rejects else _measured(item, values[i])] for i, item in enumerate(batch)]

    def _canaries(self, views: Sequence[EdgeView]) -> None:
        """Test the judge on the shard's first edits. Raises JudgeUntrusted when it fails on most that it answers."""
        reports = []
        for view in views[: self._canaries_due]:
            edit: Any = pair(view)
            reports.append(judge_canaries(self.models["judge"], edit.source, edit.result, edit.instruction, edit.type,
                                          OTHER_INSTRUCTION, edit.sha256, reference=edit.reference))  # fmt: skip
        self._canaries_due -= len(reports)
        failed = [report for report in reports if report.verdict == "failed"]
        if len(failed) * 2 > sum(report.verdict != "unknown" for report in reports):
            raise JudgeUntrusted(
                f"verify: the judge {self.models['judge'].name} fails {len(failed)} of {len(reports)} canaries: "
                f"{failed[0].reason}; name another judge, mend its prompt, or leave the judge gate out"
            )

    def _views(self, item: Item) -> list[EdgeView]:
        sample: Sample = item.record
        pixels = {name: decode_jpeg(data) for name, data in sorted(item.blobs.items()) if name.startswith("node")}
        return [self._view(sample, edge, pixels, item) for edge in sample.edges]

    def _view(self, sample: Sample, edge: Edge, pixels: dict[str, Image], item: Item) -> EdgeView:
        mask: Mask | None = decode_mask_png(item.blobs[edge.mask]) if edge.mask else None
        return EdgeView(
            sample,
            sample.turns[edge.turn - 1],
            edge,
            pixels[edge.source_node],
            pixels[edge.result_node],
            mask,
            self.models,
            self.alone,
            decode_jpeg(item.blobs[edge.reference]) if edge.reference else None,
        )


def _measured(item: Item, values: Sequence[Values]) -> Item:
    edges = tuple(
        edge.model_copy(update={"gates": measured}) for edge, measured in zip(item.record.edges, values, strict=True)
    )
    return Item(item.record.model_copy(update={"edges": edges}))
