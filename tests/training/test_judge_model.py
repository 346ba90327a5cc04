"""The judge as it trains: a packed row says what its sequences say alone, and is asked as inference asks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from judge_data import SMALLEST, parts_of, preference, rating, row_builder, source, tiny_encoder, write_lines
from judge_run import judge_settings, write_judged
from tiny.language import qwen_vl

from editfoundry.core.images import decode
from editfoundry.models.judge.local import LocalJudge, LocalJudgeOptions
from editfoundry.models.judge.prefix import Question
from editfoundry.models.judge.rubric import Scale, load_rubric
from editfoundry.models.judge.types import Case, Comparison
from editfoundry.training.judge.batch import Row
from editfoundry.training.judge.config import Heads, JudgeTrainConfig
from editfoundry.training.judge.losses import Alphabet, losses
from editfoundry.training.judge.model import JudgeModel, Outputs, open_judge, prepare_parameters
from editfoundry.training.judge.pictures import read
from editfoundry.training.judge.records import Choice, Record
from editfoundry.training.judge.rows import RowBuilder
from editfoundry.training.judge.sequences import Part, is_swapped
from editfoundry.training.judge.sources import read_sources

CPU = torch.device("cpu")
APART = Heads(generate=1, expected=1, regression=1, preference=1)
"""All heads but the ranking, which is of several sequences."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen_vl(tmp_path_factory.mktemp("qwen"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_judged(tmp_path_factory.mktemp("judged"), 4)


@pytest.fixture(scope="module")
def shown(folder: Path) -> list[Record | Choice]:
    """Edits of pictures of three sizes, two of one source, one with a reason; and comparisons."""
    ratings = [rating(0), rating(1), rating(2), rating(1, id="other", result="1-second.jpg")]
    choices = [preference(1), preference(2)]
    files = (
        source("ratings", write_lines(folder / "few.jsonl", ratings)),
        source("preferences", write_lines(folder / "choices.jsonl", choices)),
    )
    judged = read_sources(files, load_rubric("short"))
    first, *others = judged.records
    return [Record(**{**vars(first), "reason": "it is there"}), *others, *judged.choices]


def opened(checkpoint: Path, folder: Path, **changes: Any) -> tuple[JudgeModel, dict[str, torch.nn.Parameter]]:
    """The tiny judge as a run begins with it, but for heads that say something."""
    config = JudgeTrainConfig.model_validate(judge_settings(checkpoint, folder, **changes))
    model, _ = open_judge(config, Scale(1, 5), CPU)
    named = prepare_parameters(model, config, CPU)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for name, parameter in named.items():
            if name.startswith("regression.weight") or "lora_B" in name:
                parameter.normal_(std=0.1)
    return model, named


def short_builder(checkpoint: Path, order: Any = "compat") -> RowBuilder:
    return row_builder(tiny_encoder(checkpoint), APART, load_rubric("short"), order=order)


def alphabet(builder: RowBuilder) -> Alphabet:
    return Alphabet(builder.layout(builder.rubric.section("add").dimensions), tuple(builder.choice_ids), ())


def joined(outputs: list[Outputs]) -> Outputs:
    return Outputs(*(torch.cat(parts) for parts in zip(*outputs, strict=True)))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("trains", ["lora", "language"])
def test_a_packed_row_says_what_its_sequences_say_alone(
    checkpoint: Path, folder: Path, shown: list[Any], attention: str, trains: str
) -> None:
    """Logits and regressions at every place, losses, and gradients of all that trains."""
    model, named = opened(checkpoint, folder, trains=trains, vision=trains == "language")
    model.vlm.set_attn_implementation(attention)
    builder = short_builder(checkpoint)
    parts = parts_of(builder, *shown)
    rows = [builder.row([part]) for part in parts]
    packed = builder.row(parts)
    assert len(parts) == 7
    assert len({tuple(grid) for grid in packed.grids.tolist()}) == 3
    assert len(packed.grids) < sum(len(row.grids) for row in rows)

    def measured(rows: list[Row]) -> tuple[Outputs, dict[str, float], dict[str, torch.Tensor]]:
        model.zero_grad(set_to_none=True)
        found = [model(row) for row in rows]
        made = [losses(outputs, row, APART, alphabet(builder)) for outputs, row in zip(found, rows, strict=True)]
        sums = {name: sum(one[name] for one in made) for name in made[0]}
        torch.stack(list(sums.values())).sum().backward()
        gradients = {name: parameter.grad.clone() for name, parameter in named.items() if parameter.grad is not None}
        return joined([outputs._replace(tie=outputs.tie.detach()) for outputs in found]), sums, gradients

    (together, sums, gradients), (alone, others, expected) = measured([packed]), measured(rows)
    for name in ("reply", "score", "regression", "choice"):
        torch.testing.assert_close(getattr(together, name), getattr(alone, name), rtol=1e-5, atol=2e-6)
    assert len(together.choice) == 2
    assert len(together.score) == 8
    for name, loss in sums.items():
        torch.testing.assert_close(loss, others[name], rtol=1e-5, atol=1e-6)
    assert gradients.keys() == expected.keys()
    assert len(gradients) >= len(named) - 1  # the tie parameter belongs to the ranking
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-4 * float(expected[name].abs().max()))


def test_sequences_that_were_not_told_apart_would_say_something_else(
    checkpoint: Path, folder: Path, shown: list[Any]
) -> None:
    """What the test above would see if a row were one long sequence, or had the rotary positions of one."""
    model, _ = opened(checkpoint, folder)
    builder = short_builder(checkpoint)
    row = builder.row(parts_of(builder, *shown))
    right = model(row).score
    one_text = row.positions.clone()
    one_text[0, 0] = torch.arange(row.ids.shape[1])
    flat = row.positions.clone()
    flat[1:] = flat[:1]
    for wrong in (one_text, flat):
        assert (model(row._replace(positions=wrong)).score - right).abs().max() > 1e-3


def test_a_sequence_says_what_transformers_says(checkpoint: Path, folder: Path, shown: list[Any]) -> None:
    """The whole model as it is called by anyone: it counts positions and places pictures itself."""
    model, _ = opened(checkpoint, folder, trains="language")
    builder = short_builder(checkpoint)
    for part in parts_of(builder, *shown):
        row = builder.row([part])
        with torch.no_grad():
            logits = model.vlm(
                input_ids=row.ids,
                attention_mask=torch.ones_like(row.ids),
                pixel_values=torch.cat(
                    [row.pixel_values.split(row.grids.prod(1).tolist())[n] for n in row.picture_of_run.tolist()]
                ),
                image_grid_thw=row.grids[row.picture_of_run],
                mm_token_type_ids=(row.ids == builder.encoder.image_token).int(),
            ).logits[0]
            outputs = model(row)
        for places, found in (
            (row.reply_places, outputs.reply), (row.score_places, outputs.score), (row.choice_places, outputs.choice),
        ):  # fmt: skip
            torch.testing.assert_close(found, logits[places], rtol=1e-4, atol=1e-5)


def test_checkpointed_activations_give_the_same_gradients(checkpoint: Path, folder: Path, shown: list[Any]) -> None:
    builder = short_builder(checkpoint)
    row = builder.row(parts_of(builder, *shown))
    found = []
    for checkpointing in (False, True):
        model, named = opened(checkpoint, folder, gradient_checkpointing=checkpointing, trains="lora")
        model.train()
        runs = []
        layer = model.vlm.model.language_model.layers[0].mlp
        layer.register_forward_pre_hook(lambda *_, runs=runs: runs.append(1))
        sum(losses(model(row), row, APART, alphabet(builder)).values()).backward()  # type: ignore[union-attr]
        assert len(runs) == 1 + checkpointing
        found.append({name: parameter.grad for name, parameter in named.items() if name != "log_tie"})
    for name, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, {"lora", "regression", "log_tie"}),
        ({"heads": {"ranking": 0}}, {"lora", "regression"}),
        ({"heads": {"ranking": 0, "regression": 0}}, {"lora"}),
        ({"trains": "language"}, {"vlm.model.language_model", "vlm.lm_head", "regression", "log_tie"}),
        ({"trains": "language", "vision": True, "heads": {"generate": 0, "expected": 0, "preference": 0}},
         {"vlm.model.language_model", "vlm.model.visual", "regression", "log_tie"}),
        ({"vision": True}, {"lora", "vlm.model.visual", "regression", "log_tie"}),
    ],
)  # fmt: skip
def test_exactly_what_the_settings_say_trains(
    checkpoint: Path, folder: Path, changes: dict[str, Any], wanted: set[str]
) -> None:
    model, named = opened(checkpoint, folder, **changes)
    assert all(parameter.requires_grad is (name in named) for name, parameter in model.named_parameters())
    assert all(parameter.dtype == torch.float32 for parameter in named.values())

    def kind(name: str) -> str:
        if ".lora_" in name:
            assert ".language_model.layers." in name
            return "lora"
        parts = name.split(".")
        if parts[0] != "vlm":
            return parts[0]
        return ".".join(parts[:2] if parts[1] == "lm_head" else parts[:3])

    assert {kind(name) for name in named} == wanted
    if "lora" in wanted:
        layers = {name.partition(".lora_")[0] for name in named if ".lora_" in name}
        assert len(layers) == 2 * 7  # query, key, value, output; gate, up, down


def test_a_judge_begins_with_the_middle_of_the_scale(checkpoint: Path, folder: Path, shown: list[Any]) -> None:
    config = JudgeTrainConfig.model_validate(judge_settings(checkpoint, folder))
    model, _ = open_judge(config, Scale(0, 10), CPU)
    builder = short_builder(checkpoint)
    outputs = model(builder.row(parts_of(builder, *shown)))
    assert outputs.regression.tolist() == [[5, 5, 5, 0, 0, 0]] * 4
    assert outputs.tie.tolist() == [0]


@pytest.mark.parametrize("order", ["compat", "fast"])
def test_the_trainer_shows_what_inference_shows(
    checkpoint: Path, shown: list[Any], order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens and positions up to where the first score, the regression or the choice is read; and the same patches."""
    options = LocalJudgeOptions(
        checkpoint=str(checkpoint), rubric="short", order=order, device="cpu", dtype="float32", max_pixels=4 * SMALLEST
    )
    judge = LocalJudge(options)
    judge.load()
    asked: list[Question] = []
    run = judge._prefill.run
    monkeypatch.setattr(judge._prefill, "run", lambda questions: (asked.extend(questions), run(questions))[1])
    builder = short_builder(checkpoint, order)
    for part in (part for part in parts_of(builder, *shown) if not part.reasoned):
        asked.clear()
        row = builder.row([part])
        pictures = pictures_of(part)
        if isinstance(part.shown, Choice):
            judge.prefer([Comparison(part.shown.id, *pictures, part.shown.instruction, part.shown.type)])
            question, end = asked[is_swapped(part.shown, 0)], int(row.choice_places[0]) + 1
        else:
            judge.score([Case(part.shown.id, *pictures, part.shown.instruction, part.shown.type)])
            [question], end = asked, int(row.score_places[0]) + 1
        assert question.ids.tolist() == row.ids[0, :end].tolist()
        assert torch.equal(question.positions, row.positions[1:, 0, :end])
        patches = row.pixel_values.split(row.grids.prod(1).tolist())
        for digest, number in zip(question.pictures, row.picture_of_run.tolist(), strict=True):
            assert torch.equal(judge._prefill.patches(digest).pixel_values, patches[number])


def pictures_of(part: Part) -> list[Any]:
    shown = part.shown
    stored = (shown.source, shown.first, shown.second) if isinstance(shown, Choice) else (shown.source, shown.result)
    return [decode(read(picture)) for picture in stored]
