"""The embedded perception models on real photographs, with their real weights."""

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import skimage
from PIL import Image as PillowImage
from PIL import ImageDraw, ImageFont

from editfoundry.core.errors import ModelMissing
from editfoundry.core.geometry import Box
from editfoundry.models.embedded.brisque import BrisqueScorer, fit_asymmetric_gaussian
from editfoundry.models.embedded.clip_image import ClipImageEmbedder
from editfoundry.models.embedded.conse import ConseScorer
from editfoundry.models.embedded.faces import DlibFaceEmbedder
from editfoundry.models.embedded.labels import agrees
from editfoundry.models.embedded.nsfw import NsfwScorer
from editfoundry.models.embedded.ocr import RapidOcrReader
from editfoundry.models.embedded.saliency import SalientObjectDetector
from editfoundry.models.embedded.sentence import SentenceEmbedder
from editfoundry.models.embedded.smollm import SmolLmParaphraser
from editfoundry.models.embedded.ssd import SsdDetector
from editfoundry.models.embedded.tagger import EfficientNetTagger
from editfoundry.models.embedded.u2net import U2NetSegmenter
from editfoundry.models.protocols import Image, Model
from editfoundry.models.store import Store

EMBEDDED: list[Callable[..., Any]] = [
    BrisqueScorer, ClipImageEmbedder, ConseScorer, DlibFaceEmbedder, NsfwScorer, RapidOcrReader, SalientObjectDetector,
    SentenceEmbedder, SmolLmParaphraser, SsdDetector, EfficientNetTagger, U2NetSegmenter]
COFFEE_CUP = Box(172, 18, 408, 300)  # drawn by hand, handle included
ROCKET = Box(306, 130, 335, 407)


@cache
def photo(name: str) -> Image:
    path = Path(skimage.__file__).parent / "data" / name
    return np.array(PillowImage.open(path).convert("RGB"))


@cache
def loaded(model: Callable[[], Any]) -> Any:
    instance = model()
    instance.load()
    return instance


def crop(image: Image, box: Box) -> Image:
    x0, y0, x1, y1 = box.to_ints()
    return image[y0:y1, x0:x1]


@pytest.mark.parametrize("model", EMBEDDED)
def test_construction_and_digest_read_no_weights(model: Callable[..., Any], tmp_path: Path) -> None:
    absent = model(Store(tmp_path / "nothing"))
    assert isinstance(absent, Model)
    assert absent.digest() == model().digest()
    assert len(absent.digest()) == 64


def test_digests_and_names_tell_models_apart() -> None:
    models = [model() for model in EMBEDDED]
    assert len({model.digest() for model in models}) == len({model.name for model in models}) == len(models)


def test_digest_follows_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = SsdDetector().digest()
    monkeypatch.setattr(SsdDetector, "version", 2)
    assert SsdDetector().digest() != before


@pytest.mark.parametrize("model", [model for model in EMBEDDED if model is not RapidOcrReader])
def test_missing_weights_name_the_command(model: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="editfoundry models pull"):
        model(Store(tmp_path)).load()


@pytest.mark.weights
def test_detector_finds_the_cup_where_it_is() -> None:
    best = loaded(SsdDetector).detect(photo("coffee.png"))[0]
    assert best.label == "cup"
    assert best.score > 0.9
    assert best.box.iou(COFFEE_CUP) > 0.7


@pytest.mark.weights
@pytest.mark.parametrize(("file", "label"), [("chelsea.png", "cat"), ("motorcycle_left.png", "motorcycle"),
                                             ("astronaut.png", "person")])
def test_detector_labels(file: str, label: str) -> None:
    found = loaded(SsdDetector).detect(photo(file))
    assert found[0].label == label
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


@pytest.mark.weights
def test_detector_vocabulary_filters() -> None:
    detector = loaded(SsdDetector)
    assert {one.label for one in detector.detect(photo("coffee.png"))} == {"cup", "dining table"}
    assert [one.label for one in detector.detect(photo("coffee.png"), ["dining table", "saucer"])] == ["dining table"]
    assert detector.detect(photo("coffee.png"), []) == []


@pytest.mark.weights
def test_tagger_supports_true_labels_and_rejects_the_helmet_called_mouse() -> None:
    tagger = loaded(EfficientNetTagger)
    coffee = tagger.tag(crop(photo("coffee.png"), COFFEE_CUP))
    assert coffee[0].label == "espresso"
    assert (agrees("cup", coffee) or 0) > 0.8
    motorcycle = tagger.tag(photo("motorcycle_left.png"))
    assert (agrees("motorcycle", motorcycle) or 0) > 0.5
    mouse = next(one for one in loaded(SsdDetector).detect(photo("astronaut.png")) if one.label == "mouse")
    helmet = tagger.tag(crop(photo("astronaut.png"), mouse.box))
    assert helmet[0].label == "football helmet"
    assert agrees("mouse", helmet) < 0.05


@pytest.mark.weights
def test_segmenter_keeps_the_cup_and_nothing_outside_the_box() -> None:
    box = loaded(SsdDetector).detect(photo("coffee.png"))[0].box
    whole = Box(0, 0, 600, 400)
    cup, scene = loaded(U2NetSegmenter).segment(photo("coffee.png"), [box, whole])
    x0, y0, x1, y1 = box.to_ints()
    outside = np.ones(cup.alpha.shape, bool)
    outside[y0:y1, x0:x1] = False
    assert cup.alpha[outside].max() == 0
    assert cup.alpha.max() == pytest.approx(1)
    assert cup.alpha[120, 290] > 0.95, "the coffee"
    assert cup.alpha[230, 180] < 0.05, "the table in the box's corner"
    assert 0.7 < (cup.alpha > 0.5).sum() / box.area < 0.95
    assert scene.alpha[350, 290] > 0.95, "the saucer belongs to the scene's object, not to the cup's box"
    assert cup.score > 0.85


@pytest.mark.weights
def test_segmenter_refuses_a_box_outside_the_image() -> None:
    with pytest.raises(ValueError, match="outside the 600x400 image"):
        loaded(U2NetSegmenter).segment(photo("coffee.png"), [Box(700, 10, 800, 90)])


@pytest.mark.weights
def test_saliency_finds_the_rocket_that_the_detector_has_no_class_for() -> None:
    assert loaded(SsdDetector).detect(photo("rocket.jpg")) == []
    found = loaded(SalientObjectDetector).detect(photo("rocket.jpg"))
    assert len(found) == 1
    assert found[0].label == "object"
    assert found[0].box.iou(ROCKET) > 0.8
    assert loaded(SalientObjectDetector).detect(photo("rocket.jpg"), ["cup"]) == []


@pytest.mark.weights
@pytest.mark.parametrize("value", [0, 128, 255])
def test_saliency_of_a_flat_image_is_nothing(value: int) -> None:
    assert loaded(SalientObjectDetector).detect(np.full((320, 480, 3), value, np.uint8)) == []


@pytest.mark.weights
@pytest.mark.slow
def test_text_embeddings_order_meanings_and_ignore_the_batch() -> None:
    embedder = loaded(SentenceEmbedder)
    texts = ["a cup of coffee", "an espresso", "a motorcycle"]
    vectors = embedder.embed(texts)
    assert vectors.shape == (3, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1], abs=1e-5)
    assert vectors[0] @ vectors[1] > 0.5 > 0.3 > vectors[0] @ vectors[2]
    alone = SentenceEmbedder().embed(["an espresso"])
    assert np.array_equal(alone[0], vectors[1])


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.parametrize(("file", "best"), [("coffee.png", 0), ("chelsea.png", 1), ("motorcycle_left.png", 2),
                                            ("rocket.jpg", 3)])
def test_conse_names_the_photograph(file: str, best: int) -> None:
    scorer = loaded(ConseScorer)
    texts = ["a cup of coffee", "a cat", "a motorcycle", "a rocket", "a flower"]
    scores = scorer.score([photo(file)] * len(texts), texts)
    assert scorer.metric == "conse"
    assert np.argmax(scores) == best
    assert sorted(scores)[-1] - sorted(scores)[-2] > 0.05


@pytest.mark.weights
def test_image_embedding_knows_two_views_of_one_scene() -> None:
    left, right, cat, cup = loaded(ClipImageEmbedder).embed(
        [photo("motorcycle_left.png"), photo("motorcycle_right.png"), photo("chelsea.png"), photo("coffee.png")])
    assert np.linalg.norm(left) == pytest.approx(1, abs=1e-5)
    assert left @ right > 0.95
    assert max(left @ cat, left @ cup, cat @ cup) < 0.75


@pytest.mark.weights
def test_image_embedding_does_not_depend_on_the_batch() -> None:
    embedder = loaded(ClipImageEmbedder)
    both = embedder.embed([photo("coffee.png"), photo("chelsea.png")])
    assert np.array_equal(embedder.embed([photo("chelsea.png")])[0], both[1])


def blurred(image: Image) -> Image:
    return cv2.GaussianBlur(image, (0, 0), 2.5)


def noisy(image: Image) -> Image:
    noise = np.random.default_rng(0).normal(0, 20, image.shape)
    return np.clip(image + noise, 0, 255).astype(np.uint8)


def compressed(image: Image) -> Image:
    return cv2.imdecode(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 8])[1], cv2.IMREAD_COLOR)


@pytest.mark.weights
@pytest.mark.parametrize("damage", [blurred, noisy, compressed])
@pytest.mark.parametrize("file", ["coffee.png", "chelsea.png", "astronaut.png"])
def test_quality_drops_with_damage(file: str, damage: Callable[[Image], Image]) -> None:
    scorer = loaded(BrisqueScorer)
    clean = scorer.quality(photo(file))
    assert 0 < clean < 25
    assert scorer.quality(damage(photo(file))) > clean + 20


@pytest.mark.weights
def test_quality_of_degenerate_images() -> None:
    assert loaded(BrisqueScorer).quality(np.zeros((64, 64, 3), np.uint8)) == 100.0
    with pytest.raises(ValueError, match="at least 32x32"):
        loaded(BrisqueScorer).quality(np.zeros((31, 64, 3), np.uint8))


@pytest.mark.parametrize(("left", "right"), [(1.0, 1.0), (0.5, 2.0)])
def test_asymmetric_gaussian_fit_recovers_a_known_distribution(left: float, right: float) -> None:
    half = np.abs(np.random.default_rng(1).normal(size=400_000))
    values = np.concatenate([-half[:int(400_000 * left / (left + right))] * left,
                             half[int(400_000 * left / (left + right)):] * right])
    shape, mean, left_variance, right_variance = fit_asymmetric_gaussian(values)
    assert shape == pytest.approx(2.0, abs=0.05), "a Gaussian is the generalised Gaussian of shape 2"
    assert left_variance == pytest.approx(left**2, rel=0.02)
    assert right_variance == pytest.approx(right**2, rel=0.02)
    assert mean == pytest.approx((right - left) * np.sqrt(2 / np.pi), abs=0.02)


@pytest.mark.weights
def test_safe_photographs_score_low() -> None:
    assert loaded(NsfwScorer).unsafe(photo("coffee.png")) < 0.05
    assert loaded(NsfwScorer).unsafe(photo("chelsea.png")) < 0.01


@pytest.mark.slow
def test_reader_reads_rendered_text_exactly() -> None:
    canvas = PillowImage.new("RGB", (640, 400), "white")
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(40)
    draw.text((40, 250), "open until midnight", fill="navy", font=font)
    draw.text((40, 50), "Fresh bread 2025", fill="black", font=font)
    first, second = loaded(RapidOcrReader).read(np.array(canvas))
    assert (first.text, second.text) == ("Fresh bread 2025", "open until midnight")
    drawn = Box.from_list(draw.textbbox((40, 50), "Fresh bread 2025", font=font))
    assert first.box.iou(drawn) > 0.6
    assert min(first.score, second.score) > 0.95


@pytest.mark.slow
def test_reader_reads_nothing_where_nothing_is_written() -> None:
    assert loaded(RapidOcrReader).read(photo("chelsea.png")) == []
    assert loaded(RapidOcrReader).read(np.full((200, 300, 3), 90, np.uint8)) == []


@pytest.mark.weights
def test_one_face_and_its_identity() -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="its wheel holds the second portrait")
    hopper = np.array(PillowImage.open(Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"))
    embedder = loaded(DlibFaceEmbedder)
    astronaut = photo("astronaut.png")
    (face,) = embedder.faces(astronaut)
    assert face.box.iou(Box(175, 76, 265, 166)) > 0.8
    (mirrored,) = embedder.faces(np.ascontiguousarray(astronaut[:, ::-1]))
    (darker,) = embedder.faces((astronaut * 0.6).astype(np.uint8))
    (other,) = embedder.faces(hopper)
    assert np.linalg.norm(face.embedding - mirrored.embedding) < 0.6
    assert np.linalg.norm(face.embedding - darker.embedding) < 0.3
    assert np.linalg.norm(face.embedding - other.embedding) > 0.6


@pytest.mark.weights
def test_no_faces_in_things() -> None:
    assert [loaded(DlibFaceEmbedder).faces(photo(file)) for file in ("coffee.png", "rocket.jpg")] == [[], []]


@pytest.mark.weights
@pytest.mark.slow
def test_paraphraser_rewords_and_repeats_itself() -> None:
    paraphraser = loaded(SmolLmParaphraser)
    replies = [paraphraser.paraphrase("Replace the cup with a strawberry.", seed) for seed in (0, 2, 0)]
    assert replies[0] == replies[2]
    assert "strawberry" in replies[0].lower()
    assert "cup" in replies[0].lower()
    assert replies[0] != "Replace the cup with a strawberry."
    assert "\n" not in replies[0]


@pytest.mark.weights
@pytest.mark.slow
def test_results_are_bit_identical_in_another_process() -> None:
    code = ("import sys; sys.path.insert(0, sys.argv[1]); from test_perception import *; "
            "import hashlib; image = photo('coffee.png'); box = loaded(SsdDetector).detect(image)[0].box; "
            "parts = [box.as_list(), loaded(U2NetSegmenter).segment(image, [box])[0].alpha.tobytes(), "
            "loaded(ClipImageEmbedder).embed([image]).tobytes(), loaded(BrisqueScorer).quality(image), "
            "loaded(EfficientNetTagger).tag(image), loaded(NsfwScorer).unsafe(image)]; "
            "print(hashlib.sha256(repr(parts).encode()).hexdigest())")
    runs = [subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent)], capture_output=True, text=True,
                           timeout=300, check=True).stdout for _ in range(2)]
    assert len(runs[0].strip()) == 64
    assert runs[0] == runs[1]
