"""The feature cache: the same features as fresh ones, and refused where it is stale, unfinished or damaged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from micro_batches import PLAIN, builder, indexed, patch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny.editor import tiny_editor
from training_data import edits, write_dataset

from editfoundry.core.errors import UsageError
from editfoundry.models.editor.encoders import Encoders
from editfoundry.models.editor.pipeline import EditorPipeline, load_editor
from editfoundry.models.editor.types import Condition
from editfoundry.training.caching import Estimate, estimate, sample_bytes
from editfoundry.training.data import cache as cache_module
from editfoundry.training.data.batch import Features, MicroBatch, Pictures
from editfoundry.training.data.cache import (
    DamagedCache,
    FeatureCache,
    StaleCache,
    build_cache,
    cache_keys,
    open_cache,
    part_path,
)
from editfoundry.training.data.examples import BadSample
from editfoundry.training.data.micro import MicroBatchBuilder
from editfoundry.training.data.pictures import PictureReader

SQUARE = 2


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> EditorPipeline:
    return load_editor(
        tiny_editor(tmp_path_factory.mktemp("editor") / "tiny", reference_latents="kontext"), device="cpu"
    )


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data", edits(6))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of four rows, so that six samples make two."""
    monkeypatch.setattr(cache_module, "PART_ROWS", 4)


class Made:
    """A builder that reads pictures, and all that a cache of the same samples needs."""

    def __init__(self, pipeline: EditorPipeline, dataset: Path, **changes: Any) -> None:
        self.changes = {"dropout": {"text": 0.5, "visual": 0, "all": 0}, **changes}
        self.dataset, self.processor, self.encoders = dataset, pipeline.editor_processor(), pipeline.encoders()
        self.fresh = builder(dataset, self.processor, **self.changes)
        assert isinstance(self.fresh.reader, PictureReader)
        self.reader, self.rows = self.fresh.reader, len(self.fresh.index)

    @property
    def keys(self) -> dict[str, Any]:
        of = self.fresh
        return cache_keys(of.index, of.data, of.buckets, self.processor, self.encoders, True, "float32")

    def build(self, folder: Path, **options: Any) -> None:
        build_cache(self.reader, self.encoders, self.keys, folder, **options)

    def cached(self, folder: Path) -> MicroBatchBuilder:
        of, data = self.fresh, self.fresh.data.model_copy(update={"feature_cache": str(folder)})
        opened = open_cache(data, of.index, of.buckets, self.processor, self.encoders, True, "float32")
        return builder(self.dataset, self.processor, cache=opened, **self.changes, feature_cache=str(folder))

    def features(self, batch: MicroBatch) -> Features:
        """What the encoders make of a batch of pictures, zeros where its text is padded."""
        assert isinstance(batch.content, Pictures)
        condition = self.encoders.condition(batch.content.inputs, batch.content.references)
        states = condition.text_states * condition.text_mask[..., None]
        return Features(condition._replace(text_states=states), self.encoders.moments(batch.content.target))


def tensors(features: Features) -> dict[str, torch.Tensor]:
    named = {name: value for name, value in features.condition._asdict().items() if value is not None}
    return {**named, "moments": features.moments}


def test_cached_features_equal_fresh_ones_bit_for_bit(pipeline: EditorPipeline, dataset: Path, tmp_path: Path) -> None:
    made = Made(pipeline, dataset)
    made.build(tmp_path / "cache")
    cached = made.cached(tmp_path / "cache")
    dropped = set()
    for row in range(6):
        fresh = made.fresh.build([row], SQUARE, 9, range(row, row + 1))
        batch = cached.build([row], SQUARE, 9, range(row, row + 1))
        assert isinstance(batch.content, Features)
        wanted, got = tensors(made.features(fresh)), tensors(batch.content)
        assert list(wanted) == list(got) == [*Condition._fields, "moments"]
        assert {name: got[name].dtype for name in got} == {name: wanted[name].dtype for name in wanted}
        assert all(torch.equal(wanted[name], got[name]) for name in wanted)
        for name in ("weight", "valid", "noise", "posterior_noise", "sigma", "visual_kept"):
            assert torch.equal(getattr(fresh, name), getattr(batch, name)), name
        assert (fresh.keys, fresh.types, fresh.position) == (batch.keys, batch.types, batch.position)
        dropped.add(wanted["text_mask"].shape[1])
    assert len(dropped) > 1  # with and without text


def test_batches_of_cached_features(pipeline: EditorPipeline, dataset: Path, tmp_path: Path) -> None:
    """Text is padded with masked zeros; what is left differs by what batching does to the last bits."""
    made = Made(pipeline, dataset)
    made.build(tmp_path / "cache", batch=3)
    wanted = tensors(made.features(made.fresh.build(list(range(6)), SQUARE, 9, range(6))))
    content = made.cached(tmp_path / "cache").build(list(range(6)), SQUARE, 9, range(6)).content
    assert isinstance(content, Features)
    got = tensors(content)
    assert len(set(wanted["text_mask"].sum(1).tolist())) > 1
    assert torch.equal(wanted["text_mask"], got["text_mask"])
    assert torch.equal(wanted["vision_end"], got["vision_end"])
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name], rtol=1e-4, atol=1e-5)


def test_states_keep_their_dtype(pipeline: EditorPipeline, dataset: Path, tmp_path: Path) -> None:
    made = Made(pipeline, dataset)
    with torch.autocast("cpu", torch.bfloat16):
        made.build(tmp_path / "cache")
    content = made.cached(tmp_path / "cache").build([0], SQUARE, 0, range(1)).content
    assert isinstance(content, Features)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = tensors(made.features(made.fresh.build([0], SQUARE, 0, range(1))))
    assert {name: tensor.dtype for name, tensor in tensors(content).items()} == {n: t.dtype for n, t in wanted.items()}
    assert content.moments.dtype == torch.float32


def test_ranks_build_the_same_files_as_one(pipeline: EditorPipeline, dataset: Path, tmp_path: Path) -> None:
    made = Made(pipeline, dataset)
    made.build(tmp_path / "one")
    done = []
    for rank in range(2):
        made.build(tmp_path / "two", rank=rank, ranks=2, advance=done.append)
    assert done == [4, 2]
    names = ["cache.json", "part-00000000.safetensors", "part-00000001.safetensors"]
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == names
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in names)


def test_an_unfinished_cache_is_refused_and_resumed(
    pipeline: EditorPipeline, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(pipeline, dataset)
    made.build(tmp_path / "cache", rank=1, ranks=2)
    with pytest.raises(DamagedCache, match=r"1 parts are missing, such as part-00000000.safetensors; repeat"):
        made.cached(tmp_path / "cache")
    encoded = []
    original = Encoders.moments
    monkeypatch.setattr(Encoders, "moments", lambda self, pixels: encoded.append(len(pixels)) or original(self, pixels))
    made.build(tmp_path / "cache")
    assert encoded == [1] * 8  # of four samples, the target and the source
    assert made.cached(tmp_path / "cache").build([0], SQUARE, 0, range(1)).keys == ("edit00000",)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"history": False}, "history: was true, is false"),
        ({"dropout": PLAIN["dropout"]}, "without_text: was true, is false"),
        ({"mask_weight": {"threshold": 30}}, "mask_threshold: was 18, is 30"),
        ({"size": 80, "history": False}, r"grids: was .*; history: was true, is false"),
    ],
)
def test_a_stale_cache_is_refused_with_what_differs(
    pipeline: EditorPipeline, dataset: Path, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    Made(pipeline, dataset).build(tmp_path / "cache")
    with pytest.raises(StaleCache, match=rf"cache: the feature cache was made of something else \({named}\); build"):
        Made(pipeline, dataset, **changes).cached(tmp_path / "cache")
    with pytest.raises(StaleCache):
        Made(pipeline, dataset, **changes).build(tmp_path / "cache")


def test_other_weights_prompts_and_data_make_a_cache_stale(
    pipeline: EditorPipeline, dataset: Path, tmp_path: Path
) -> None:
    made = Made(pipeline, dataset)
    keys = made.keys
    other = load_editor(tiny_editor(tmp_path / "other", reference_latents="kontext", seed=1), device="cpu")
    assert {name for name, value in Made(other, dataset).keys.items() if value != keys[name]} == {"encoders"}
    made.processor.vlm_pixels = 28 * 28
    assert {name for name, value in made.keys.items() if value != keys[name]} == {"prompt"}
    more = Made(pipeline, write_dataset(tmp_path / "more", edits(7)))
    assert {name for name, value in more.keys.items() if value != keys[name]} == {"index"}


def test_weights_and_the_share_of_dropout_may_change(pipeline: EditorPipeline, dataset: Path, tmp_path: Path) -> None:
    Made(pipeline, dataset).build(tmp_path / "cache")
    changes = {"dropout": {"text": 0, "visual": 0.1, "all": 0.2}, "mask_weight": {"kind": "exp", "normalised": True}}
    made = Made(pipeline, dataset, **changes)
    weights = [b.build([2], SQUARE, 0, range(1)).weight for b in (made.fresh, made.cached(tmp_path / "cache"))]
    assert torch.equal(*weights)
    assert weights[0].mean().item() == pytest.approx(1)


def no_file(folder: Path) -> None:
    (folder / "cache.json").unlink()


def not_json(folder: Path) -> None:
    (folder / "cache.json").write_bytes(b"\xff[[")


def a_list(folder: Path) -> None:
    (folder / "cache.json").write_text("[1]")


def deep(folder: Path) -> None:
    (folder / "cache.json").write_text("[" * 100_000)


@pytest.mark.parametrize("damage", [no_file, not_json, a_list, deep])
def test_a_folder_that_is_no_cache_is_refused(
    pipeline: EditorPipeline, dataset: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    made = Made(pipeline, dataset)
    made.build(tmp_path / "cache")
    damage(tmp_path / "cache")
    with pytest.raises(DamagedCache, match=r"cache.json: no feature cache"):
        made.cached(tmp_path / "cache")


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5000] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def huge_header(path: Path) -> None:
    path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])


def a_pickle(path: Path) -> None:
    torch.save({"0.text": torch.zeros(2)}, path)


def no_metadata(path: Path) -> None:
    save_file(load_file(path), path)


def described(path: Path, **changes: Any) -> None:
    """The same tensors with something else said of them."""
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["editfoundry"])
    save_file(load_file(path), path, {"editfoundry": json.dumps({**about, **changes})})


def other_rows(path: Path) -> None:
    described(path, rows={"0": [], "1": {}, "2": {"sums": {"text": 0}, "key": 1}})


def of_another_cache(path: Path) -> None:
    described(path, keys="0" * 16)


@pytest.mark.parametrize(
    "damage", [flipped, cut, huge_header, a_pickle, no_metadata, other_rows, of_another_cache], ids=lambda f: f.__name__
)
def test_a_damaged_part_is_refused(
    pipeline: EditorPipeline, dataset: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    made = Made(pipeline, dataset)
    made.build(tmp_path / "cache")
    path = part_path(tmp_path / "cache", 0)
    damage(path)
    cached = made.cached(tmp_path / "cache")
    with pytest.raises(DamagedCache, match=rf"{path}: .*; delete it and repeat `editfoundry train cache`"):
        for row in range(4):
            for slot in range(4):
                cached.build([row], SQUARE, 0, range(slot, slot + 1))
    assert cached.build([4], SQUARE, 0, range(1)).keys == ("edit00004",)


def test_other_files_are_not_overwritten(pipeline: EditorPipeline, dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(UsageError, match="mine: holds other files and no feature cache"):
        Made(pipeline, dataset).build(tmp_path / "mine")


def test_bad_samples_stop_the_building_or_stay_bad(pipeline: EditorPipeline, dataset: Path, tmp_path: Path) -> None:
    patch(indexed(dataset), 1, "result", bytes(200), at=700)
    with pytest.raises(BadSample, match="the result of edit00001"):
        Made(pipeline, dataset).build(tmp_path / "stopped")
    skipping = Made(pipeline, dataset, bad_samples="skip")
    skipping.build(tmp_path / "cache")
    batch = skipping.cached(tmp_path / "cache").build([0, 1], SQUARE, 0, range(2))
    assert batch.valid.tolist() == [True, False]
    assert batch.weight[1].abs().sum() == 0
    assert "the result of edit00001" in batch.problems[0]
    with pytest.raises(BadSample, match="the result of edit00001"):
        Made(pipeline, dataset).cached(tmp_path / "cache").build([0, 1], SQUARE, 0, range(2))


def test_an_editor_without_siglip_and_latents(dataset: Path, tmp_path: Path) -> None:
    editor = load_editor(tiny_editor(tmp_path / "plain", visual=False), device="cpu")
    reader = PictureReader(
        indexed(dataset),
        (data := Made(editor, dataset).fresh.data),
        Made(editor, dataset).fresh.buckets,
        editor.editor_processor(),
        references=False,
    )
    keys = cache_keys(reader.index, data, reader.buckets, reader.processor, editor.encoders(), False, "float32")
    build_cache(reader, editor.encoders(), keys, tmp_path / "cache")
    content = FeatureCache(tmp_path / "cache", keys, 6).read([0, 1], SQUARE, [True, False]).content
    assert isinstance(content, Features)
    assert content.condition.visual_states is None
    assert content.condition.reference_latents is None
    assert content.condition.text_mask.sum(1)[0] > content.condition.text_mask.sum(1)[1]


def test_size_of_a_sample_of_the_production_editor() -> None:
    """512 x 512: 256 image and 30 text tokens of Qwen2.5-VL-7B, SigLIP2-so400m's 1024 states, FLUX's latents."""
    production = sample_bytes(text=(286, 3584), visual=(1024, 1152), latents=(16, 64, 64))
    assert production == 286 * 3584 * 2 + 1024 * 1152 * 2 + 32 * 64 * 64 * 4 + 32 * 32 == 4_934_656
    without = sample_bytes(text=(286, 3584), visual=(1024, 1152), latents=(16, 64, 64), without_text=266)
    assert without - production == 266 * 3584 * 2
    assert sample_bytes(text=(286, 3584), latents=(16, 64, 64), reference_latents=True, pictures=2) == 3_099_648


def test_the_size_of_a_sample_is_that_of_its_tensors(pipeline: EditorPipeline, dataset: Path, tmp_path: Path) -> None:
    made = Made(pipeline, dataset)
    made.build(tmp_path / "cache")
    stored = load_file(part_path(tmp_path / "cache", 0))
    held = sum(
        t.numel() * t.element_size() for name, t in stored.items() if name.startswith("0.") and "end" not in name
    )
    tokens, bare = (len(stored[f"0.{name}"]) for name in ("text", "empty"))
    assert held == sample_bytes(
        text=(tokens, 64),
        visual=tuple(stored["0.visual"].shape[1:]),
        latents=(4, 32, 32),
        reference_latents=True,
        without_text=bare,
        state_bytes=4,
    )


def test_the_estimate_and_its_break_even(pipeline: EditorPipeline, dataset: Path) -> None:
    assert Estimate(1000, 5e6, fresh=0.1, build=0.15, read=0.005).break_even == pytest.approx(0.15 / 0.095)
    assert Estimate(1000, 5e6, fresh=0.1, build=0.2, read=0.1).break_even == float("inf")
    assert str(Estimate(1000, 4.9e6, 0.1, 0.15, 0.005)) == (
        "1000 samples x 4.90 MB = 4.9 GB; per sample 150.0 ms to build, then 5.0 ms instead of 100.0 ms in every "
        "epoch: pays after 1.6 epochs"
    )
    measured = estimate(Made(pipeline, dataset).reader, pipeline.encoders(), without_text=True)
    assert measured.samples == 6
    assert measured.sample_bytes > sample_bytes(text=(30, 64), visual=(1, 32), latents=(4, 32, 32), state_bytes=4)
    assert min(measured.fresh, measured.build, measured.read) > 0
