"""Micro-batches: what is random in them, what is not, and what happens to samples that cannot be used."""

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import training_data
from micro_batches import PLAIN, ProcessBuilder, builder, indexed, member, patch, tiny_processor
from scipy import stats
from tiny.editor import tiny_editor
from torch import Tensor
from training_data import DrawnEdit, edits, scene, write_dataset

from editfoundry.core.geometry import Grid
from editfoundry.core.images import decode
from editfoundry.models.editor.prompt import EditorProcessor, request_on_grid
from editfoundry.models.editor.types import EditRequest
from editfoundry.training import flow
from editfoundry.training.config import Dropout, MaskWeight, Timesteps
from editfoundry.training.data import examples
from editfoundry.training.data.batch import MicroBatch, Pictures
from editfoundry.training.data.buckets import Buckets
from editfoundry.training.data.examples import BadSample, MissingShard
from editfoundry.training.data.loader import WorkerLost, build_loader
from editfoundry.training.data.micro import draw_kept
from editfoundry.training.data.order import Order, Positions
from editfoundry.training.mask_weight import changed, token_weights

SQUARE = 2
"""The bucket of square pictures without a reference."""


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> EditorProcessor:
    return tiny_processor(tiny_editor(tmp_path_factory.mktemp("editor") / "tiny"))


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data", edits(8), per_shard=3)


def pictures(batch: MicroBatch) -> Pictures:
    assert isinstance(batch.content, Pictures)
    return batch.content


def text(batch: MicroBatch, number: int) -> list[int]:
    """The tokens of a sample's prompt, without padding."""
    inputs = pictures(batch).inputs
    return inputs.input_ids[number][inputs.attention_mask[number].bool()].tolist()


def samples(batch: MicroBatch) -> Iterator[dict[str, Any]]:
    """Each sample of a batch by itself, whatever it was padded to."""
    content = pictures(batch)
    patches = content.inputs.pixel_values.view(len(batch.keys), -1, content.inputs.pixel_values.shape[-1])
    assert content.inputs.visual_pixels is not None
    for number, key in enumerate(batch.keys):
        yield {
            "key": key,
            "type": batch.types[number],
            "text": text(batch, number),
            "patches": patches[number],
            "visual": content.inputs.visual_pixels[number],
            "target": content.target[number],
            "weight": batch.weight[number],
            "noise": batch.noise[number],
            "sigma": batch.sigma[number],
            "posterior": batch.posterior_noise[number],
            "kept": batch.visual_kept[number],
        }


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(torch.equal(v, other[k]) if isinstance(v, Tensor) else v == other[k] for k, v in one.items())


def test_shapes_and_ranges(dataset: Path, processor: EditorProcessor) -> None:
    batch = builder(dataset, processor).build([0, 1], SQUARE, 5, range(2))
    content = pictures(batch)
    assert content.target.shape == (2, 3, 64, 64)
    assert content.references is not None
    assert content.references.shape == (2, 1, 3, 64, 64)
    assert batch.weight.shape == (2, 256)
    assert batch.noise.shape == batch.posterior_noise.shape == (2, 4, 32, 32)
    assert batch.valid.tolist() == batch.visual_kept.tolist() == [True, True]
    assert {t.dtype for t in (batch.weight, batch.noise, batch.sigma)} == {torch.float32}
    assert content.target.dtype == content.references.dtype == torch.uint8
    assert 0 < batch.sigma.min() < batch.sigma.max() < 1
    assert (batch.position, batch.keys, batch.types) == (5, ("edit00000", "edit00001"), ("add", "add"))
    assert batch.problems == ()
    _, result, _ = scene(edits(1)[0])
    stored = [decode(member(indexed(dataset), 0, name)) for name in ("result", "source")]
    for tensor, image in zip((content.target[0], content.references[0, 0]), stored, strict=True):
        assert torch.equal(tensor, torch.from_numpy(image).permute(2, 0, 1))
    assert np.abs(stored[0].astype(int) - result).max() < 30


def test_content_equals_what_inference_builds(tmp_path: Path, processor: EditorProcessor) -> None:
    """The tensors of the encoders, for pictures of another size than the grid, with a reference and a history."""
    first = DrawnEdit("talk_t1", "add a duck", size=(96, 64))
    drawn = [first, DrawnEdit("talk_t2", "make it  blue", "visual", (96, 64), reference=True, parent="talk_t1", turn=2)]
    dataset = write_dataset(tmp_path / "data", drawn)
    index = indexed(dataset)
    buckets = Buckets(64, (0.75, 1.0, 1.3333))
    bucket = int(buckets.of(96, 64, 2))
    assert buckets.grid(bucket) == Grid(80, 64) or buckets.grid(bucket).area < 96 * 64
    batch = builder(dataset, processor).build([1], bucket, 0, range(1))
    given = [decode(member(index, 1, name)) for name in ("source", "reference")]
    wanted = processor([request_on_grid("make it  blue", given, buckets.grid(bucket), ["add a duck"])])
    for name, tensor in wanted._asdict().items():
        assert torch.equal(getattr(pictures(batch).inputs, name), tensor), name


@pytest.mark.parametrize(("ranks", "accumulation", "micro"), [(1, 1, 4), (1, 2, 2), (2, 1, 2), (4, 1, 1), (2, 2, 1)])
def test_a_sample_depends_on_position_and_slot_alone(
    dataset: Path, processor: EditorProcessor, tmp_path: Path, ranks: int, accumulation: int, micro: int
) -> None:
    made = builder(dataset, processor, dropout={"text": 0.3, "visual": 0.3, "all": 0.1})
    order = Order(made.index, made.buckets, made.data, 4, 0, tmp_path)
    got: dict[int, dict[str, Any]] = {}
    for rank in range(ranks):
        positions = Positions(order, rank, ranks, accumulation, micro, start=3, stop=4)
        for batch, (position, step) in zip(build_loader(made, order, positions, 0, 2), positions, strict=True):
            assert batch.position == position == 3
            got.update(zip(positions.slots(step), samples(batch), strict=True))
    bucket, rows = order.batch(3)
    whole = made.build(rows.tolist(), bucket, 3, range(4))
    assert sorted(got) == [0, 1, 2, 3]
    assert all(same(got[slot], sample) for slot, sample in enumerate(samples(whole)))


def test_noise_differs_between_slots_positions_seeds_and_uses(dataset: Path, processor: EditorProcessor) -> None:
    made = builder(dataset, processor)
    batch = made.build([0, 0], SQUARE, 1, range(2))
    others = [
        made.build([0], SQUARE, 2, range(1)),
        made.build([0], SQUARE, 1, range(5, 6)),
        builder(dataset, processor, seed=8).build([0], SQUARE, 1, range(1)),
    ]
    noises = [batch.noise[0], batch.noise[1], *batch.posterior_noise, *(other.noise[0] for other in others)]
    firsts = {noise.flatten()[0].item() for noise in noises}
    assert len(firsts) == len(noises)
    assert len({batch.sigma[0].item(), batch.sigma[1].item(), *(other.sigma.item() for other in others)}) == 5
    assert torch.equal(made.build([3], SQUARE, 1, range(1)).noise[0], batch.noise[0])
    everything = torch.cat([noise.flatten() for noise in noises])
    assert abs(everything.mean()) < 0.03
    assert abs(everything.std() - 1) < 0.03


def test_sigma_is_logit_normal_and_shifted_for_the_tokens(dataset: Path, processor: EditorProcessor) -> None:
    sigma = builder(dataset, processor)._sigma(1024, 0, range(4000)).double()
    factor = np.exp(flow.mu(1024, Timesteps()))
    u = sigma / (factor - (factor - 1) * sigma)
    normal = torch.log(u / (1 - u)).numpy()
    assert stats.kstest(normal, "norm").pvalue > 0.01


def test_dropout_falls_in_its_shares() -> None:
    shares = Dropout(text=0.1, visual=0.2, all=0.05)
    generator = torch.Generator().manual_seed(0)
    count = 40_000
    drawn = Counter((kept.text, kept.visual) for kept in (draw_kept(shares, generator) for _ in range(count)))
    for kept, share in {(False, True): 0.1, (True, False): 0.2, (False, False): 0.05, (True, True): 0.65}.items():
        assert abs(drawn[kept] / count - share) < 4 * np.sqrt(share * (1 - share) / count)


@pytest.mark.parametrize(
    ("dropped", "words", "visual"), [("text", False, True), ("visual", True, False), ("all", False, False)]
)
def test_dropout_takes_the_instruction_or_the_details(
    dataset: Path, processor: EditorProcessor, dropped: str, words: bool, visual: bool
) -> None:
    batch = builder(dataset, processor, dropout={**PLAIN["dropout"], dropped: 1}).build([2], SQUARE, 0, range(1))
    picture = decode(member(indexed(dataset), 2, "source"))
    instruction = edits(3)[2].instruction if words else ""
    assert text(batch, 0) == processor([EditRequest(instruction, (picture,))]).input_ids[0].tolist()
    assert batch.visual_kept.tolist() == [visual]
    assert batch.valid.tolist() == [True]


def test_dropped_text_takes_the_history_with_it(tmp_path: Path, processor: EditorProcessor) -> None:
    drawn = [DrawnEdit("t1", "add a duck"), DrawnEdit("t2", "make it blue", parent="t1", turn=2)]
    dataset = write_dataset(tmp_path / "data", drawn)
    picture = decode(member(indexed(dataset), 1, "source"))
    for history, dropout, wanted in [
        (True, {}, EditRequest("make it blue", (picture,), ("add a duck",))),
        (False, {}, EditRequest("make it blue", (picture,))),
        (True, {"text": 1}, EditRequest("", (picture,))),
    ]:
        made = builder(dataset, processor, history=history, dropout={**PLAIN["dropout"], **dropout})
        assert text(made.build([1], SQUARE, 0, range(1)), 0) == processor([wanted]).input_ids[0].tolist()


def test_weights_come_from_the_mask_or_else_from_the_difference(tmp_path: Path, processor: EditorProcessor) -> None:
    drawn = [*edits(1), DrawnEdit("bare", "more", mask=False, seed=4), DrawnEdit("whole", "restyle", "style", seed=5)]
    dataset = write_dataset(tmp_path / "data", drawn)
    batch = builder(dataset, processor).build([0, 1, 2], SQUARE, 0, range(3))
    exact = token_weights(scene(drawn[0])[2], (16, 16), MaskWeight())
    index = indexed(dataset)
    found = changed([decode(member(index, 1, "source"))], decode(member(index, 1, "result")), 18)
    assert batch.weight[0].tolist() == exact.tolist()
    assert batch.weight[1].tolist() == token_weights(found, (16, 16), MaskWeight()).tolist()
    assert batch.weight[1].max() > 3
    assert batch.weight[2].tolist() == [1.0] * 256


def test_a_mask_on_a_smaller_grid_keeps_every_token_it_touches(tmp_path: Path, processor: EditorProcessor) -> None:
    drawn = edits(1, size=(256, 256))
    batch = builder(write_dataset(tmp_path / "data", drawn), processor).build([0], SQUARE, 0, range(1))
    touched = scene(drawn[0])[2].reshape(16, 16, 16, 16).any(axis=(1, 3))
    assert np.array_equal(batch.weight[0].reshape(16, 16).numpy() > 1, touched)


@pytest.mark.parametrize("mask", [True, False])
def test_a_sample_without_change(
    tmp_path: Path, processor: EditorProcessor, monkeypatch: pytest.MonkeyPatch, mask: bool
) -> None:
    """Nothing changes: an empty mask, or equal pictures."""
    original = training_data.scene
    with monkeypatch.context() as patched:
        patched.setattr(
            training_data, "scene", lambda edit: (original(edit)[0], original(edit)[0], original(edit)[2] & False)
        )
        dataset = write_dataset(tmp_path / "data", edits(2, mask=mask))
    assert builder(dataset, processor).build([0], SQUARE, 0, range(1)).weight[0].tolist() == [1.0] * 256
    reject = {"mask_weight": {"unchanged": "reject"}}
    with pytest.raises(BadSample, match="edit00000: nothing changes between source and result"):
        builder(dataset, processor, **reject).build([0], SQUARE, 0, range(1))
    skipped = builder(dataset, processor, bad_samples="skip", **reject).build([0], SQUARE, 0, range(1))
    assert (skipped.valid.tolist(), skipped.weight.sum().item()) == ([False], 0)
    assert "nothing changes" in skipped.problems[0]


def test_a_corrupt_sample_stops_or_is_skipped(dataset: Path, processor: EditorProcessor) -> None:
    good = builder(dataset, processor).build([0, 1, 2], SQUARE, 0, range(3))
    index = indexed(dataset)
    patch(index, 1, "result", bytes(200), at=700)
    with pytest.raises(BadSample, match=rf"{index.shards[0].path}: sample at byte \d+: the result of edit00001: "):
        builder(dataset, processor).build([0, 1, 2], SQUARE, 0, range(3))
    batch = builder(dataset, processor, bad_samples="skip").build([0, 1, 2], SQUARE, 0, range(3))
    assert batch.valid.tolist() == [True, False, True]
    assert batch.weight[1].abs().sum() == 0
    assert batch.keys == ("edit00000", "row_1", "edit00002")
    assert len(batch.problems) == 1
    assert "the result of edit00001" in batch.problems[0]
    assert pictures(batch).target[1].unique().numel() == 1
    for number in (0, 2):
        assert same(list(samples(batch))[number], list(samples(good))[number])


def test_a_skipped_sample_with_a_reference_fits_its_batch(tmp_path: Path, processor: EditorProcessor) -> None:
    dataset = write_dataset(tmp_path / "data", edits(2, type="visual", reference=True))
    patch(indexed(dataset), 0, "reference", bytes(100), at=50)
    batch = builder(dataset, processor, bad_samples="skip").build([0, 1], SQUARE + 1, 0, range(2))
    assert batch.valid.tolist() == [False, True]
    assert pictures(batch).inputs.vision_end.shape == (2, 2)
    assert "the reference of edit00000" in batch.problems[0]


def test_an_instruction_that_is_too_long(tmp_path: Path, processor: EditorProcessor) -> None:
    dataset = write_dataset(tmp_path / "data", [*edits(1), DrawnEdit("talker", "very " * 300 + "long")])
    with pytest.raises(BadSample, match=r"talker: the instruction has \d+ tokens, and the editor takes 256"):
        builder(dataset, processor).build([0, 1], SQUARE, 0, range(2))
    batch = builder(dataset, processor, bad_samples="skip").build([0, 1], SQUARE, 0, range(2))
    assert batch.valid.tolist() == [True, False]
    always = {"text": 1, "visual": 0, "all": 0}
    with pytest.raises(BadSample, match="talker"):
        builder(dataset, processor, dropout=always).build([1], SQUARE, 0, range(1))


def test_a_shard_that_goes_missing_stops_the_run_whatever_is_skipped(
    dataset: Path, processor: EditorProcessor, tmp_path: Path
) -> None:
    made = builder(dataset, processor, bad_samples="skip")
    order = Order(made.index, made.buckets, made.data, 4, 0, tmp_path)
    batches = iter(build_loader(made, order, Positions(order, 0, 1, 1, 4, stop=6), 0, 2))
    assert next(batches).valid.all()
    made.index.shards[1].path.unlink()
    with pytest.raises(MissingShard, match=rf"{made.index.shards[1].path}: the shard cannot be opened"):
        list(batches)


def test_every_picture_is_decoded_once(
    tmp_path: Path, processor: EditorProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = [
        *edits(2, type="visual", reference=True),
        DrawnEdit("t2", "again", "visual", reference=True, parent="edit00000", turn=2),
    ]
    dataset = write_dataset(tmp_path / "data", drawn)
    calls: Counter[str] = Counter()
    for name in ("decode", "decode_mask_png"):
        original = getattr(examples, name)

        def counted(*given: Any, name: str = name, original: Any = original, **named: Any) -> Any:
            calls[name] += 1
            return original(*given, **named)

        monkeypatch.setattr(examples, name, counted)
    builder(dataset, processor).build([0, 1, 2], SQUARE + 1, 0, range(3))
    assert calls == {"decode": 9, "decode_mask_png": 3}


def test_a_cache_that_is_set_has_to_be_given(dataset: Path, processor: EditorProcessor) -> None:
    with pytest.raises(ValueError, match="open it with `open_cache`"):
        builder(dataset, processor, feature_cache="somewhere")


def test_the_loader_leaves_the_global_generator_alone(
    dataset: Path, processor: EditorProcessor, tmp_path: Path
) -> None:
    made = builder(dataset, processor)
    order = Order(made.index, made.buckets, made.data, 4, 0, tmp_path)
    before = torch.get_rng_state()
    batches = list(build_loader(made, order, Positions(order, 0, 1, 2, 2, stop=3), 0, 2))
    assert [batch.position for batch in batches] == [0, 0, 1, 1, 2, 2]
    assert torch.equal(torch.get_rng_state(), before)
    assert all(isinstance(batch.keys, tuple) for batch in batches)


@pytest.mark.slow
def test_worker_processes(dataset: Path, processor: EditorProcessor, tmp_path: Path) -> None:
    """The same batches, errors as they are, one thread each, and a clear word for a worker that was killed."""
    made = builder(dataset, processor)
    order = Order(made.index, made.buckets, made.data, 4, 0, tmp_path)
    positions = Positions(order, 0, 1, 2, 2, stop=4)
    before = torch.get_rng_state()
    loader = build_loader(made, order, positions, 2, 2)
    assert loader.multiprocessing_context.get_start_method() == "forkserver"
    alone = [list(samples(batch)) for batch in build_loader(made, order, positions, 0, 2)]
    apart = [list(samples(batch)) for batch in loader]
    assert all(
        same(one, other)
        for mine, theirs in zip(alone, apart, strict=True)
        for one, other in zip(mine, theirs, strict=True)
    )
    assert torch.equal(torch.get_rng_state(), before)

    told = list(build_loader(ProcessBuilder(), order, positions, 2, 2))  # type: ignore[arg-type]
    assert {(one["torch"], one["cv2"]) for one in told} == {(1, 1)}  # type: ignore[call-overload]
    assert len({one["pid"] for one in told} - {os.getpid()}) == 2  # type: ignore[call-overload]

    endless = iter(build_loader(made, order, Positions(order, 0, 1, 1, 4), 2, 2))
    for _ in range(2):  # one of each worker, so that both have started
        next(endless)
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):  # a scheduler's, to every process of the job
        for child in multiprocessing.active_children():
            os.kill(child.pid or 0, number)
    assert [next(endless).position for _ in range(8)] == list(range(2, 10))
    for child in multiprocessing.active_children():
        os.kill(child.pid or 0, signal.SIGKILL)
    with pytest.raises(WorkerLost, match=r"a data worker process ended by itself .*lower data.workers"):
        list(endless)

    patch(made.index, 1, "result", bytes(200), at=700)
    messages = []
    for workers in (0, 2):
        with pytest.raises(BadSample) as caught:
            list(build_loader(made, order, positions, workers, 2))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "the result of edit00001" in messages[0]
