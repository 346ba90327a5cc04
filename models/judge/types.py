"""What is judged, what comes back, and what every judge offers. Images are uint8 sRGB arrays [H, W, 3]."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from editfoundry.models.protocols import Image, Unanswered

if TYPE_CHECKING:
    from editfoundry.models.judge.rubric import Rubric

Head = Literal["generate", "expected", "regression"]
"""generate: the model writes a reason and the scores. expected: the mean of its probabilities of each score, without a

reason. regression: a trained output on its last state.
"""
Steps = Literal["chained", "independent"]
"""Of the expected-score head. chained: each score after the most probable ones before it, in one reply; independent:

each score by itself, right after the question.
"""
Order = Literal["compat", "fast"]
"""compat: text and instruction, then the picture before, then the picture after, as the released prompts are. fast:

what many questions share comes first (rubric, picture before), then the picture after, then the instruction.
"""


@dataclass(frozen=True)
class Case:
    """An edit to judge. type: of the edit, by which the rubric has its section. Pictures may have any sizes."""

    id: str
    source: Image
    result: Image
    instruction: str
    type: str


@dataclass(frozen=True)
class Scored:
    """Scores of a case by dimension, on the rubric's scale, in the rubric's order.

    probabilities: of each value of the scale, lowest first, by dimension; of the head `expected` alone. uncovered: the
    most probability, over the dimensions, that the model (or what a server shows of it) gave to something else than a
    score. deviations: standard deviation by dimension; of the head `regression` alone. reason: one line; empty where
    none was written. reply: the model's words as they came; empty where it wrote none.
    """

    scores: Mapping[str, float]
    probabilities: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    uncovered: float = 0.0
    deviations: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    reply: str = ""


@dataclass(frozen=True)
class Comparison:
    """Two results of one instruction to choose between."""

    id: str
    source: Image
    first: Image
    second: Image
    instruction: str
    type: str


@dataclass(frozen=True)
class Preference:
    """Probabilities that sum to 1, averaged over both orders of showing the results.

    consistent: whether both orders have the same most probable verdict. uncovered: as in `Scored`.
    """

    first: float
    tie: float
    second: float
    consistent: bool
    uncovered: float = 0.0


class EditJudge(Protocol):
    """A judge with its rubric. Cheap to construct; `load` loads or connects.

    served: names of the models that answered so far, as a server says them; empty for a model in this process.
    """

    @property
    def rubric(self) -> "Rubric": ...

    @property
    def served(self) -> frozenset[str]: ...

    def provenance(self) -> dict[str, Any]:
        """What a score depends on: kind, model and its digest or name, rubric (name, version, digest), head, steps,

        order, pixels, and whether a reason is written. Plain values; loads nothing.
        """
        ...

    def load(self) -> None:
        """Load the weights, or open the client, unless that is done. Raises ModelMissing naming the remedy."""
        ...

    def score(self, cases: Sequence[Case]) -> list[Scored | Unanswered]:
        """One verdict per case, in order; a case that cannot be judged is Unanswered with a reason, never a score."""
        ...

    def prefer(self, comparisons: Sequence[Comparison]) -> list[Preference | Unanswered]:
        """One preference per comparison, in order."""
        ...
