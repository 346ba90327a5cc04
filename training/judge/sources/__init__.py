"""Readers of judged edits: one per kind of source, all giving records and choices.

What breaks a file's form is refused with its file and line. A reply of another judge that cannot be read strictly is
left out, counted and listed, never guessed.
"""

from collections.abc import Callable, Sequence

from editfoundry.core.errors import UsageError
from editfoundry.models.judge.rubric import Rubric
from editfoundry.training.judge.config import Source
from editfoundry.training.judge.sources.graded import read_graded
from editfoundry.training.judge.sources.judged import BadRecord, Judged
from editfoundry.training.judge.sources.preferences import read_preferences
from editfoundry.training.judge.sources.ratings import read_ratings
from editfoundry.training.judge.sources.scores import read_scores
from editfoundry.training.judge.sources.verification import read_verification

__all__ = ["BadRecord", "Judged", "read_sources"]

_READERS: dict[str, Callable[[Source, Rubric, Judged, str], None]] = {
    "scores": read_scores,
    "verification": read_verification,
    "ratings": read_ratings,
    "preferences": read_preferences,
    "graded": read_graded,
}


def read_sources(sources: Sequence[Source], rubric: Rubric) -> Judged:
    """Everything that the sources hold, in order; ids begin with the number of their source.

    Raises BadRecord, UsageError, and what datasets raise.
    """
    judged = Judged()
    for number, source in enumerate(sources):
        _READERS[source.kind](source, rubric, judged, f"{number}:")
    seen: set[str] = set()
    for id in (*(one.id for one in judged.records), *(one.id for one in judged.choices)):
        if id in seen:
            raise UsageError(
                f"data.sources: the id {id.partition(':')[2]!r:.80} stands twice in source {id.partition(':')[0]}"
            )
        seen.add(id)
    if not seen:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(judged.left_out.items()))
        raise UsageError(f"data.sources: no usable record ({reasons or 'they are empty'})")
    return judged
