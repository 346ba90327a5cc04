"""SAM 2 on tiny checkpoints of its classes: the mattes are the library's, one image is encoded once, batches agree."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PillowImage

from editfoundry.core.errors import ModelMissing
from editfoundry.core.geometry import Box
from editfoundry.models.perception.sam2 import Sam2Segmenter, matte
from editfoundry.models.perception.sam2_original import OriginalSam2Segmenter
from editfoundry.models.protocols import Float, Image

BOXES = [Box(3, 4, 50, 60), Box(20.5, 20, 119, 89), Box(0, 0, 120, 90), Box(60, 10, 61, 12), Box(-20, 50, 30.2, 200)]
Tiny = Callable[[str], str]


def noise(height: int, width: int, seed: int = 0) -> Image:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def segmenter(folder: str, **options: Any) -> Sam2Segmenter:
    made = Sam2Segmenter(Sam2Segmenter.Options(checkpoint=folder, **options))
    made.load()
    return made


def encoder_calls(made: Sam2Segmenter) -> list[int]:
    """Grows by one with every forward pass of the vision encoder."""
    calls: list[int] = []
    made._model.vision_encoder.register_forward_hook(lambda *_: calls.append(1))
    return calls


def by_hand(made: Sam2Segmenter, image: Image, box: Box, multimask: bool) -> tuple[Float, list[float]]:
    """Probabilities [masks, H, W] and predicted IoUs of one box, by the library's own way from pixels to masks."""
    processor = made._processor
    inputs = processor(images=PillowImage.fromarray(image), input_boxes=[[box.as_list()]], return_tensors="pt")
    with torch.inference_mode():
        answer = made._model(
            pixel_values=inputs["pixel_values"], input_boxes=inputs["input_boxes"], multimask_output=multimask
        )
    (logits,) = processor.post_process_masks(answer.pred_masks, inputs["original_sizes"], binarize=False)
    return logits[0].sigmoid().numpy(), answer.iou_scores[0, 0].tolist()


@pytest.mark.parametrize("checkpoint", ["sam2", "sam2_video"])
def test_mattes_are_the_librarys_inside_the_box(tiny_folder: Tiny, checkpoint: str) -> None:
    made, image = segmenter(tiny_folder(checkpoint)), noise(90, 120)
    found = made.segment(image, BOXES)
    assert len(found) == len(BOXES)
    for one, box in zip(found, BOXES, strict=True):
        inside = box.clip(120, 90)
        assert inside is not None
        (alpha,), (score,) = by_hand(made, image, inside, multimask=False)
        x0, y0, x1, y1 = inside.to_ints()
        expected = np.zeros((90, 120), np.float32)
        expected[y0:y1, x0:x1] = alpha[y0:y1, x0:x1]
        assert one.alpha.dtype == np.float32
        assert np.allclose(one.alpha, expected, atol=1e-5)
        assert one.score == pytest.approx(score, abs=1e-5)
    assert np.std(found[2].alpha) > 0.01, "the tiny model's mattes vary"
    assert abs(found[0].score - found[2].score) > 1e-3, "and so do its scores"


def test_batches_agree_with_single_boxes(tiny_folder: Tiny) -> None:
    image, boxes = noise(90, 120), [*BOXES, *BOXES[::-1]]
    together = segmenter(tiny_folder("sam2"), batch=32).segment(image, boxes)
    for size in (1, 3):
        apart = segmenter(tiny_folder("sam2"), batch=size).segment(image, boxes)
        for one, other in zip(together, apart, strict=True):
            assert np.abs(one.alpha - other.alpha).max() < 1e-5
            assert one.score == pytest.approx(other.score, abs=1e-5)


def test_one_image_is_encoded_once_for_any_number_of_boxes(tiny_folder: Tiny) -> None:
    made = segmenter(tiny_folder("sam2"), batch=2)
    calls = encoder_calls(made)
    first, second, third = (noise(64, 64, seed) for seed in range(3))
    alone = made.segment(first, [BOXES[0]])[0]
    made.segment(first, [Box(0, 0, 60, 60)] * 7)
    assert len(calls) == 1
    again = made.segment(first.copy(), [BOXES[0]])[0]
    assert len(calls) == 1, "another array with the same pixels"
    assert np.array_equal(alone.alpha, again.alpha)
    made.segment(second, [BOXES[0]])
    made.segment(first, [BOXES[0]])
    assert len(calls) == 2
    made.segment(third, [BOXES[0]])
    made.segment(first, [BOXES[0]])
    assert len(calls) == 3, "the one used last is kept"
    made.segment(second, [BOXES[0]])
    assert len(calls) == 4, "two are kept"


def test_an_image_changed_in_place_is_encoded_anew(tiny_folder: Tiny) -> None:
    made, image = segmenter(tiny_folder("sam2")), noise(64, 64)
    before = made.segment(image, [Box(0, 0, 64, 64)])[0]
    image[:] = 255 - image
    after = made.segment(image, [Box(0, 0, 64, 64)])[0]
    fresh = segmenter(tiny_folder("sam2")).segment(image, [Box(0, 0, 64, 64)])[0]
    assert np.array_equal(after.alpha, fresh.alpha)
    assert not np.array_equal(after.alpha, before.alpha)


def test_the_best_of_three_masks_can_be_asked_for(tiny_folder: Tiny) -> None:
    image = noise(90, 120)
    made = segmenter(tiny_folder("sam2"), multimask=True)
    chosen = set()
    for one, box in zip(made.segment(image, BOXES[:3]), BOXES[:3], strict=True):
        alphas, scores = by_hand(made, image, box, multimask=True)
        assert len(scores) == 3
        best = int(np.argmax(scores))
        chosen.add(best)
        x0, y0, x1, y1 = box.to_ints()
        assert one.score == pytest.approx(min(scores[best], 1), abs=1e-5)
        assert np.allclose(one.alpha[y0:y1, x0:x1], alphas[best, y0:y1, x0:x1], atol=1e-5)
    assert made.digest() != segmenter(tiny_folder("sam2")).digest()


def test_no_boxes_need_no_weights(tmp_path: Path) -> None:
    absent = Sam2Segmenter(Sam2Segmenter.Options(checkpoint=str(tmp_path / "nothing")))
    assert absent.segment(noise(30, 30), []) == []


def test_a_box_outside_the_image_is_refused(tiny_folder: Tiny) -> None:
    made = segmenter(tiny_folder("sam2"))
    with pytest.raises(ValueError, match=r"box \[130, 10, 150, 30\] lies outside the 120x90 image"):
        made.segment(noise(90, 120), [BOXES[0], Box(130, 10, 150, 30)])


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (3, 40), (1, 9000)])
def test_strips_and_single_pixels(tiny_folder: Tiny, shape: tuple[int, int]) -> None:
    height, width = shape
    (one,) = segmenter(tiny_folder("sam2")).segment(noise(*shape), [Box(0, 0, width, height)])
    assert one.alpha.shape == shape
    assert 0 < one.alpha.min() <= one.alpha.max() < 1


def test_arrays_need_not_be_contiguous(tiny_folder: Tiny) -> None:
    made, view = segmenter(tiny_folder("sam2")), noise(90, 240)[::-1, ::2]
    calls = encoder_calls(made)
    first, second = made.segment(view, BOXES[:1])[0], made.segment(view.copy(), BOXES[:1])[0]
    assert len(calls) == 1
    assert np.array_equal(first.alpha, second.alpha)


def test_half_precision_is_for_the_encoder_only(tiny_folder: Tiny) -> None:
    image = noise(90, 120)
    exact = segmenter(tiny_folder("sam2")).segment(image, BOXES)
    half = segmenter(tiny_folder("sam2"), dtype="bfloat16").segment(image, BOXES)
    differences = [np.abs(one.alpha - other.alpha).max() for one, other in zip(exact, half, strict=True)]
    assert 0 < max(differences) < 0.1
    assert {one.alpha.dtype for one in half} == {np.dtype(np.float32)}


def test_predicted_iou_is_brought_into_its_range() -> None:
    alpha = np.ones((4, 4), np.float32)
    assert [matte(alpha, score, Box(0, 0, 4, 4)).score for score in (-0.2, 0.4, 1.03)] == [0.0, 0.4, 1.0]


# ---- the authors' package -------------------------------------------------------------------------------------------


@pytest.mark.skipif(find_spec("sam2") is not None, reason="the sam2 package is installed")
def test_the_original_says_what_to_install(tmp_path: Path) -> None:
    made = OriginalSam2Segmenter(OriginalSam2Segmenter.Options(checkpoint=str(tmp_path)))
    assert made.segment(noise(30, 30), []) == []
    with pytest.raises(ModelMissing, match=r"the package sam2 is not installed; pip install 'editfoundry\[sam2\]'"):
        made.load()


@pytest.mark.slow
def test_the_original_agrees_with_itself_in_batches(tmp_path: Path) -> None:
    build = pytest.importorskip("sam2.build_sam", reason="needs the sam2 package (extra `sam2`)")
    from safetensors.torch import save_file

    options = {"architecture": "configs/sam2.1/sam2.1_hiera_t.yaml", "device": "cpu"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = build.build_sam2(options["architecture"], ckpt_path=None, device="cpu").state_dict()
    save_file({name: weight.contiguous() for name, weight in state.items()}, tmp_path / "model.safetensors")
    image = noise(90, 120)
    together, apart = (
        OriginalSam2Segmenter(OriginalSam2Segmenter.Options(checkpoint=str(tmp_path), batch=batch, **options)).segment(
            image, BOXES
        )
        for batch in (8, 1)
    )
    for one, other in zip(together, apart, strict=True):
        assert one.alpha.shape == (90, 120)
        assert np.abs(one.alpha - other.alpha).max() < 1e-4
        assert one.score == pytest.approx(other.score, abs=1e-4)
    assert together[0].alpha[61:].max() == 0
