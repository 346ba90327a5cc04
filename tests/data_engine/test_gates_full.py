"""The gates that only the full stack's models can do: each passes what is right and names what is wrong."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from editfoundry.core.geometry import Box, Grid, Mask
from editfoundry.data_engine.gates import GATES
from editfoundry.data_engine.gates.base import EdgeView, GateFailed, Thresholds
from editfoundry.data_engine.gates.detector import detector
from editfoundry.data_engine.gates.quality import quality
from editfoundry.data_engine.gates.text_image import text_image
from editfoundry.data_engine.records import Caption, Edge, Region, Sample, Source, Turn
from editfoundry.data_engine.stages.verify import JudgeUntrusted, Verify
from editfoundry.models.protocols import Detection, Judgement, Pair, Unanswered

LIMITS = Thresholds()
BOX = (20.0, 20.0, 60.0, 60.0)
GOOD = Judgement(5, 4, True, "as asked")


def view(kind: str, phrase: str = "red fox", **models: Any) -> EdgeView:
    region = Region(id="r0", label="cup", kind="object", box=BOX, detector="detector", detector_score=0.9)
    caption = Caption(text="A cup on a table.", summary="a cup on a table")
    source = Source(id="a" * 16, sha256="b" * 64, uri="u", grid=(96, 96), regions=(region,), caption=caption)
    turn = Turn(index=1, type=kind, parent=0, instruction="Do it.", target="r0", target_label="cup",
                result_phrase=phrase, origin="generated", operation={"generated": True})  # fmt: skip
    sample = Sample(id="s", kind="single", source=source, turns=(turn,))
    edge = Edge(turn=1, source_node="node0.jpg", result_node="node1.jpg", source_sha256="", result_sha256="")
    before = np.random.default_rng(0).integers(90, 150, (96, 96, 3), dtype=np.uint8)
    after = before.copy()
    after[20:60, 20:60, 0] += 60
    return EdgeView(sample, turn, edge, before, after, Mask.from_box(Box(*BOX), Grid(96, 96)), models, lambda _: before)


def reason(gate: Any, seen: EdgeView) -> str:
    with pytest.raises(GateFailed) as failed:
        gate(seen, LIMITS)
    return failed.value.reason


class Finder:
    """An open-vocabulary Detector that finds what it was told is there, at the object's box."""

    open_vocabulary = True

    def __init__(self, in_result: dict[str, float]) -> None:
        self.in_result = in_result

    def detect(self, image: np.ndarray, vocabulary: Sequence[str]) -> list[Detection]:
        return [Detection(label, self.in_result[label], Box(*BOX)) for label in vocabulary if label in self.in_result]


def test_what_was_painted_is_there_and_what_it_replaced_is_gone() -> None:
    assert detector(view("replace", detector=Finder({"red fox": 0.8})), LIMITS) == {"there": 0.8, "still_there": 0.0}
    assert reason(detector, view("replace", detector=Finder({}))) == "not_there"
    assert reason(detector, view("replace", detector=Finder({"red fox": 0.8, "cup": 0.7}))) == "still_there"
    assert detector(view("adjust", "brass cup", detector=Finder({"cup": 0.6})), LIMITS) == {"there": 0.6}
    assert reason(detector, view("adjust", "brass cup", detector=Finder({"red fox": 1.0}))) == "not_there"
    assert reason(detector, view("remove", "", detector=Finder({"cup": 0.7}))) == "still_there"


class Clip:
    """A directional scorer with fixed answers."""

    metric, directional = "clip_score", True

    def __init__(self, score: float, direction: float) -> None:
        self.answers = score, direction

    def score(self, images: Sequence[np.ndarray], texts: Sequence[str]) -> list[float]:
        return [self.answers[0] for _ in zip(images, texts, strict=True)]

    def direction(self, before: np.ndarray, after: np.ndarray, said_before: str, said_after: str) -> float:
        assert said_before in ("cup", "a cup on a table") and said_after == "red fox"
        return self.answers[1]


@pytest.mark.parametrize("kind", ["replace", "visual", "adjust", "background", "style"])
def test_clip_must_name_the_result_and_agree_with_the_direction(kind: str) -> None:
    values = text_image(view(kind, scorer=Clip(0.6, 0.2)), LIMITS)
    assert values == {"clip_score": 0.6, "clip_direction": 0.2}
    assert reason(text_image, view(kind, scorer=Clip(0.4, 0.2))) == "text_mismatch"
    assert reason(text_image, view(kind, scorer=Clip(0.6, 0.0))) == "wrong_direction"


class Fixed:
    """Quality and aesthetic scores: the picture's own mean red, so that the edit moves them."""

    name, sign = "fixed", 0.0

    def __init__(self, sign: float) -> None:
        self.sign = sign

    def quality(self, image: np.ndarray) -> float:
        return 0.0

    def aesthetic(self, images: Sequence[np.ndarray]) -> list[float]:
        return [self.sign * float(image[..., 0].mean()) for image in images]


def test_an_edit_may_not_make_a_picture_uglier() -> None:
    assert quality(view("replace", quality=Fixed(0), aesthetic=Fixed(1)), LIMITS)["aesthetic_drop"] < 0
    assert reason(quality, view("replace", quality=Fixed(0), aesthetic=Fixed(-1))) == "aesthetic_drop"


class Scripted:
    """A judge that gives its answers in order, and counts its calls."""

    name = "scripted"

    def __init__(self, *answers: Judgement | Unanswered) -> None:
        self.answers, self.calls = list(answers), 0

    def judge(self, pairs: Sequence[Pair]) -> list[Judgement | Unanswered]:
        self.calls += 1
        return [self.answers[i % len(self.answers)] for i, _ in enumerate(pairs)]


def test_the_judge_sees_all_edges_in_one_call_and_each_verdict_has_its_reason() -> None:
    judge = Scripted(
        GOOD,
        Judgement(5, 5, False, "another cup"),
        Judgement(3, 5, True, "half done"),
        Judgement(5, 2, True, "smeared"),
        Unanswered("refused", "refused", "no"),
        Unanswered("failed", "timeout", "late"),
    )
    answers = GATES["judge"]([view("replace", judge=judge) for _ in range(6)], LIMITS)
    assert judge.calls == 1
    assert answers[0] == {"judge_following": 5, "judge_naturalness": 4, "judge_reason": "as asked"}
    reasons = [answer.reason for answer in answers[1:] if isinstance(answer, GateFailed)]
    assert reasons == ["wrong_object", "not_followed", "unnatural", "judge_refused", "judge_failed"]


def checked(judge: Scripted, pairs: int, views: int = 3) -> None:
    """What Verify asks of the judge before it believes it."""
    stage = object.__new__(Verify)
    stage.models, stage._canaries_due = {"judge": judge}, pairs
    stage._canaries([view("replace", judge=judge) for _ in range(views)])


def test_a_judge_that_praises_canaries_stops_the_run_and_silence_does_not() -> None:
    bad = Judgement(1, 1, False, "no")
    checked(Scripted(GOOD, bad, bad, bad, bad), pairs=3)
    with pytest.raises(JudgeUntrusted, match="fails 3 of 3 canaries: identity follows the instruction with 5"):
        checked(Scripted(GOOD), pairs=3)
    checked(Scripted(Unanswered("failed", "timeout")), pairs=3)
    blind = Scripted(GOOD)
    checked(blind, pairs=0)
    assert blind.calls == 0
