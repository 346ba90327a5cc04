"""Grounding DINO on a tiny checkpoint of its class, and YOLO-World's export on tiny ONNX files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PillowImage
from tiny import onnx_files

from editfoundry.core.errors import EditFoundryError, ModelMissing
from editfoundry.core.geometry import Box
from editfoundry.models.perception.base import CheckpointError
from editfoundry.models.perception.grounding_dino import GroundingDinoDetector
from editfoundry.models.perception.yolo_world import YoloWorldDetector
from editfoundry.models.protocols import Detection, Image

VOCABULARY = ["cup", "dog", "red table", "person on a tree"]
Tiny = Callable[[str], str]


def noise(height: int, width: int, seed: int = 0) -> Image:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def detector(tiny_folder: Tiny) -> GroundingDinoDetector:
    loaded = GroundingDinoDetector(GroundingDinoDetector.Options(checkpoint=tiny_folder("grounding_dino")))
    loaded.load()
    return loaded


def with_options(detector: GroundingDinoDetector, **options: Any) -> GroundingDinoDetector:
    return GroundingDinoDetector(detector.options.model_copy(update=options))


def counted(module: torch.nn.Module) -> list[int]:
    """Grows by one with every forward pass."""
    calls: list[int] = []
    module.register_forward_hook(lambda *_: calls.append(1))
    return calls


def flat(found: list[Detection]) -> list[Any]:
    return [[one.label, one.score, *one.box.as_list()] for one in found]


def close(found: list[Detection], expected: list[Detection], tolerance: float = 1e-4) -> bool:
    return len(found) == len(expected) and all(
        one.label == other.label
        and one.score == pytest.approx(other.score, abs=tolerance)
        and one.box.as_list() == pytest.approx(other.box.as_list(), abs=100 * tolerance)
        for one, other in zip(found, expected, strict=True)
    )


def by_hand(detector: GroundingDinoDetector, image: Image, vocabulary: list[str]) -> list[Detection]:
    """What the model says of each query, by the library's own processing, without suppression."""
    processor, model = detector._processor, detector._model
    inputs = processor(images=PillowImage.fromarray(image), text=[vocabulary], return_tensors="pt")
    with torch.inference_mode():
        answer = model(**inputs)
    text = inputs["input_ids"][0].tolist()
    likely = answer.logits[0].sigmoid().numpy()
    of_labels = []
    for label in vocabulary:
        own = processor.tokenizer(label, add_special_tokens=False)["input_ids"]
        start = next(at for at in range(len(text)) if text[at : at + len(own)] == own)
        of_labels.append(likely[:, start : start + len(own)].mean(axis=1))
    scores = np.stack(of_labels, axis=1)
    height, width = image.shape[:2]
    found = []
    for row, (cx, cy, w, h) in zip(scores, answer.pred_boxes[0].tolist(), strict=True):
        box = Box((cx - w / 2) * width, (cy - h / 2) * height, (cx + w / 2) * width, (cy + h / 2) * height)
        inside = box.clip(width, height)
        assert inside is not None
        found.append(Detection(vocabulary[int(row.argmax())], float(row.max()), inside))
    return sorted(found, key=lambda one: -one.score)


def greedy(found: list[Detection], overlap: float) -> list[Detection]:
    kept: list[Detection] = []
    for one in found:
        if all(one.label != other.label or one.box.iou(other.box) <= overlap for other in kept):
            kept.append(one)
    return kept


def test_detections_are_the_models_own_scores_of_the_labels(detector: GroundingDinoDetector) -> None:
    image = noise(90, 120)
    expected = by_hand(detector, image, VOCABULARY)
    everything = with_options(detector, box_threshold=0.0, overlap=1.0).detect(image, VOCABULARY)
    assert len(everything) == 20
    assert close(everything, expected)
    assert len({one.label for one in everything}) > 2, "the tiny model tells labels apart"
    confident = detector.detect(image, VOCABULARY)
    assert close(confident, greedy([one for one in expected if one.score > 0.25], 0.5))
    assert 0 < len(confident) < 20


def test_boxes_lie_in_the_image_and_the_best_comes_first(detector: GroundingDinoDetector) -> None:
    found = with_options(detector, box_threshold=0.0).detect(noise(61, 213), VOCABULARY)
    assert {one.label for one in found} <= set(VOCABULARY)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert all(0 <= one.score <= 1 for one in found)
    assert all(one.box.clip(213, 61) == one.box for one in found)


def test_the_weaker_of_two_overlapping_boxes_of_a_label_goes(detector: GroundingDinoDetector) -> None:
    image = noise(90, 120)
    everything = with_options(detector, box_threshold=0.0, overlap=1.0).detect(image, ["cup", "dog"])
    apart = with_options(detector, box_threshold=0.0, overlap=0.01).detect(image, ["cup", "dog"])
    assert close(apart, greedy(everything, 0.01))
    assert len(apart) < len(everything)
    best = with_options(detector, box_threshold=0.0, overlap=1.0, top=3).detect(image, ["cup", "dog"])
    assert flat(best) == flat(everything[:3])


def test_the_order_of_the_vocabulary_does_not_matter(detector: GroundingDinoDetector) -> None:
    image = noise(80, 80, seed=3)
    assert close(detector.detect(image, VOCABULARY[::-1]), detector.detect(image, VOCABULARY))


def test_labels_come_back_as_they_were_given(detector: GroundingDinoDetector) -> None:
    image = noise(90, 120)
    given = [" Cup ", "cup", "DOG.", "red  Table?", "[SEP] person [CLS]"]
    plain = detector.detect(image, ["cup", "dog", "red table", "sep person cls"])
    found = detector.detect(image, given)
    back = {"cup": " Cup ", "dog": "DOG.", "red table": "red  Table?", "sep person cls": "[SEP] person [CLS]"}
    assert flat(found) == [[back[label], *rest] for label, *rest in flat(plain)]
    assert len({one.label for one in found}) > 1


@pytest.mark.parametrize("vocabulary", [[], [""], ["?!", "…", "\x00", "[]"], ["cup " * 300], ["ㅤ" * 400]])
def test_labels_without_a_word_and_endless_ones_are_never_found(
    detector: GroundingDinoDetector, vocabulary: list[str]
) -> None:
    image = noise(60, 60)
    assert detector.detect(image, vocabulary) == []
    assert flat(detector.detect(image, [*vocabulary, "dog"])) == flat(detector.detect(image, ["dog"]))


def test_a_vocabulary_is_required(detector: GroundingDinoDetector) -> None:
    with pytest.raises(ValueError, match="grounding-dino finds what it is asked for: name a vocabulary"):
        detector.detect(noise(60, 60))
    assert detector.open_vocabulary


def test_a_long_vocabulary_is_asked_in_several_texts(detector: GroundingDinoDetector) -> None:
    image, labels = noise(64, 64), [f"cup {number}" for number in range(120)]
    prompts = detector._prompts(tuple(labels))
    assert [label for prompt in prompts for label in prompt.labels] == labels
    sizes = [prompt.tokens["input_ids"].shape[1] for prompt in prompts]
    assert len(sizes) > 1
    assert max(sizes) <= 256
    assert sizes[0] > 256 - 5, "texts are filled"
    every = with_options(detector, overlap=1.0)
    every.load()
    calls = counted(every._model)
    found = every.detect(image, labels)
    assert len(calls) == len(prompts)
    apart = [one for prompt in prompts for one in every.detect(image, prompt.labels)]
    assert flat(found) == flat(sorted(apart, key=lambda one: -one.score)[:100])


def test_a_repeated_vocabulary_is_tokenised_once(tiny_folder: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = GroundingDinoDetector(GroundingDinoDetector.Options(checkpoint=tiny_folder("grounding_dino")))
    fresh.load()
    calls: list[str] = []
    kind = type(fresh._processor)
    tokenise = kind.__call__
    monkeypatch.setattr(kind, "__call__", lambda self, *a, **k: calls.append(k["text"]) or tokenise(self, *a, **k))
    for seed in range(3):
        fresh.detect(noise(60, 60, seed), VOCABULARY)
    assert calls == [[VOCABULARY]]
    fresh.detect(noise(60, 60), ["cup"])
    assert calls == [[VOCABULARY], [["cup"]]]


@pytest.mark.parametrize("shape", [(1, 1), (1, 400), (400, 1), (3, 50), (1, 9000), (7000, 2)])
def test_strips_and_single_pixels(detector: GroundingDinoDetector, shape: tuple[int, int]) -> None:
    height, width = shape
    found = with_options(detector, box_threshold=0.0).detect(noise(height, width), VOCABULARY)
    assert found
    assert all(one.box.clip(width, height) == one.box for one in found)


def test_arrays_need_not_be_contiguous(detector: GroundingDinoDetector) -> None:
    view = noise(90, 240)[:, ::-2]
    assert flat(detector.detect(view, VOCABULARY)) == flat(detector.detect(view.copy(), VOCABULARY))


def test_half_precision_stays_close(detector: GroundingDinoDetector) -> None:
    options = {"box_threshold": 0.0, "overlap": 1.0}
    exact = with_options(detector, **options).detect(noise(90, 120), ["cup"])
    half = with_options(detector, **options, dtype="bfloat16").detect(noise(90, 120), ["cup"])
    assert [one.score for one in half] == pytest.approx([one.score for one in exact], abs=0.06)
    assert [one.score for one in half] != [one.score for one in exact]


# ---- YOLO-World -----------------------------------------------------------------------------------------------------

TOLD = {"names": "{0: 'cup', 1: 'red car'}", "task": "detect", "imgsz": "[64, 64]"}
ROWS = np.array(
    [
        # cx, cy, width, height in the network's 64 x 64, then a score for each label
        [32, 32, 16, 16, 0.9, 0.1],
        [33, 32, 16, 16, 0.8, 0.2],  # the same cup
        [32, 32, 16, 16, 0.1, 0.7],  # a car at the same place
        [10, 32, 40, 8, 0.3, 0.001],  # sticks out of the image on the left
        [32, 4, 16, 4, 0.0, 0.6],  # in the grey above the image
        [50, 40, 4, 4, 0.001, 0.004],
    ],
    np.float32,
)


@pytest.fixture
def export(tmp_path: Path) -> Path:
    answer = np.ascontiguousarray(ROWS.T[None])
    return onnx_files.one_node(tmp_path / "yolo.onnx", "Identity", (1, 3, 64, 64), answer.shape, answer, TOLD)


def yolo(file: Path, **options: Any) -> YoloWorldDetector:
    return YoloWorldDetector(YoloWorldDetector.Options(checkpoint=str(file), **options))


def test_yolo_boxes_are_brought_back_to_the_image(export: Path) -> None:
    found = yolo(export).detect(noise(64, 128))  # half the size in the network, 16 rows of grey above and below
    assert [[one.label, round(one.score, 4), *one.box.as_list()] for one in found] == [
        ["cup", 0.9, 48, 16, 80, 48],
        ["red car", 0.7, 48, 16, 80, 48],
        ["cup", 0.3, 0, 24, 60, 40],
    ]


def test_yolo_options_and_vocabulary_select(export: Path) -> None:
    image = noise(64, 128)
    assert [one.label for one in yolo(export).detect(image, ["red car", "dog"])] == ["red car"]
    assert yolo(export).detect(image, []) == []
    assert [round(one.score, 4) for one in yolo(export, overlap=1.0).detect(image)] == [0.9, 0.8, 0.7, 0.3]
    assert len(yolo(export, box_threshold=0.65).detect(image)) == 2
    assert len(yolo(export, top=1).detect(image)) == 1
    assert not YoloWorldDetector.open_vocabulary


def test_yolo_sees_red_green_blue_from_0_to_1(tmp_path: Path) -> None:
    shape = np.array([1, 5, 12], np.int64)  # the last of five rows, the score, is the end of the blue channel
    told = {"names": "{0: 'cup'}"}
    file = onnx_files.one_node(tmp_path / "pixels.onnx", "Reshape", (1, 3, 4, 5), (1, 5, 12), shape, told)
    image = np.full((4, 5, 3), (255, 255, 128), np.uint8)
    found = yolo(file).detect(image)
    assert found[0].score == pytest.approx(128 / 255)
    assert found[0].box.x1 == pytest.approx(1.5)


@pytest.mark.parametrize("shape", [(1, 1), (1, 3000), (3000, 1)])
def test_yolo_takes_strips(export: Path, shape: tuple[int, int]) -> None:
    for one in yolo(export).detect(noise(*shape)):
        assert one.box.clip(shape[1], shape[0]) == one.box


def test_yolo_says_how_to_get_the_file(tmp_path: Path, export: Path) -> None:
    with pytest.raises(ModelMissing, match=r"nowhere.onnx: no such file; export .*pip install ultralytics.*AGPL-3.0"):
        yolo(tmp_path / "nowhere.onnx").load()
    with pytest.raises(ModelMissing, match="pip install ultralytics"):
        YoloWorldDetector().digest()
    with pytest.raises(CheckpointError, match="never a pickle"):
        yolo(tmp_path / "yolov8x-worldv2.pt").load()
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(export.read_bytes()[:200])
    with pytest.raises(CheckpointError, match="not a YOLO-World export"):
        yolo(broken).load()
    shape, answer = (1, 3, 64, 64), np.zeros((1, 300, 6), np.float32)
    suppressed = onnx_files.one_node(tmp_path / "nms.onnx", "Identity", shape, answer.shape, answer, TOLD)
    with pytest.raises(CheckpointError, match="export with nms=False"):
        yolo(suppressed).load()
    nameless = onnx_files.one_node(tmp_path / "nameless.onnx", "Identity", shape, answer.shape, answer, {})
    with pytest.raises(EditFoundryError, match="names"):
        yolo(nameless).load()


def test_yolo_digest_follows_file_and_options(tmp_path: Path, export: Path) -> None:
    moved = tmp_path / "moved.onnx"
    moved.write_bytes(export.read_bytes())
    assert yolo(moved).digest() == yolo(export).digest()
    assert yolo(export, overlap=0.7).digest() != yolo(export).digest()
    moved.write_bytes(export.read_bytes() + b"\x08\x08")
    assert yolo(moved).digest() != yolo(export).digest()
