"""The judge as it trains: Qwen2.5-VL on a packed row, and a regression head on the last state of each prompt.

In a packed row every sequence attends to itself alone and has its own rotary positions: the first row of `positions`
starts again at 0 with each sequence, which is how transformers knows.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from editfoundry.models.checkpoint import checkpoint_path
from editfoundry.models.judge.folder import DIMENSIONS, REGRESSION, read_regression
from editfoundry.models.judge.rubric import Scale
from editfoundry.models.language.local import Resident, load_resident
from editfoundry.training.judge.batch import Row
from editfoundry.training.judge.config import Heads, JudgeTrainConfig
from editfoundry.training.parameters import add_lora, is_lora, precision

LANGUAGE_LINEAR = r".*language_model\.layers\.\d+\.(?:self_attn\.[qkvo]_proj|mlp\.(?:gate|up|down)_proj)"


class Outputs(NamedTuple):
    """What the heads say about a row, float32; logits over the whole vocabulary at the places that losses need.

    reply [G, vocabulary], score [S, vocabulary], second [S, vocabulary] (of no meaning where the row has no second
    place), choice [C, vocabulary]. regression [R, 2 * 3], means and then log-variances, and tie [1], the log of
    Davidson's tie parameter; 0 in a model without them.
    """

    reply: Tensor
    score: Tensor
    second: Tensor
    regression: Tensor
    choice: Tensor
    tie: Tensor


class JudgeModel(nn.Module):  # type: ignore[misc]
    """vlm: a transformers Qwen2_5_VLForConditionalGeneration. heads: which have a weight. scale: of the rubric.

    The regression head, and the tie parameter of the ranking, are there only if they are trained. The head begins with
    the middle of the scale for every edit, and a standard deviation of 1.
    """

    def __init__(self, vlm: Any, heads: Heads, scale: Scale) -> None:
        super().__init__()
        self.vlm = vlm
        self.regression: nn.Linear | None = None
        self.log_tie: nn.Parameter | None = None
        if heads.regression or heads.ranking:
            self.regression = nn.Linear(int(vlm.config.text_config.hidden_size), 2 * DIMENSIONS)
            with torch.no_grad():
                self.regression.weight.zero_()
                self.regression.bias.zero_()[:DIMENSIONS] = (scale.low + scale.high) / 2
        if heads.ranking:
            self.log_tie = nn.Parameter(torch.zeros(1))

    def forward(self, row: Row) -> Outputs:
        """Logits and regressions at the row's places."""
        states = self._states(row)
        zero = torch.zeros(1, device=states.device)
        return Outputs(
            reply=self._logits(states, row.reply_places),
            score=self._logits(states, row.score_places),
            second=self._logits(states, row.second_places.clamp_min(0)),
            regression=self._regress(states[row.regression_places]),
            choice=self._logits(states, row.choice_places),
            tie=zero if self.log_tie is None else self.log_tie + zero,
        )

    def _states(self, row: Row) -> Tensor:
        """The last hidden state of every token, [L, H]."""
        model = self.vlm.model
        embeds = model.get_input_embeddings()(row.ids)
        features = model.get_image_features(row.pixel_values, row.grids, return_dict=True).pooler_output
        shown = torch.cat([features[number] for number in row.picture_of_run.tolist()]).to(embeds.dtype)
        places = (row.ids == self.vlm.config.image_token_id)[..., None]
        embeds = embeds.masked_scatter(places, shown)
        states: Tensor = model.language_model(
            inputs_embeds=embeds, position_ids=row.positions, attention_mask=None, use_cache=False
        ).last_hidden_state
        return states[0]

    def _logits(self, states: Tensor, places: Tensor) -> Tensor:
        logits: Tensor = self.vlm.lm_head(states[places])
        return logits.float()

    def _regress(self, states: Tensor) -> Tensor:
        """[R, 2 * 3]; in float32 whatever the states are, as inference does."""
        if self.regression is None:
            return torch.zeros(len(states), 2 * DIMENSIONS, device=states.device)
        with torch.autocast(states.device.type, enabled=False):
            regression: Tensor = self.regression(states.float())
        return regression


def open_judge(config: JudgeTrainConfig, scale: Scale, device: torch.device) -> tuple[JudgeModel, Resident]:
    """The model that a run begins with, on the CPU, to be prepared; and the same with its processor, for prompts.

    Where the language model or the vision tower trains it is read in float32: what is rounded is not found again. A
    regression head that the folder has is taken up.
    Raises ModelMissing for a model that is not there, CheckpointError for one of another kind.
    """
    folder = checkpoint_path(config.model)
    whole = config.trains == "language" or config.vision
    held = load_resident(folder, "cpu", torch.float32 if whole else precision(config, device))
    model = JudgeModel(held.model, config.heads, scale)
    if model.regression is not None and (Path(folder) / REGRESSION).is_file():
        model.regression.load_state_dict(read_regression(folder, model.regression.in_features))
    return model, held


def prepare_parameters(model: JudgeModel, config: JudgeTrainConfig, device: torch.device) -> dict[str, nn.Parameter]:
    """Make the model what trains, on `device`, in place; returns the trained parameters by name.

    They are a LoRA on the language model's linear layers or the language model itself, the vision tower if asked, and
    the heads, all float32; the rest is stored in the precision of forward passes.
    Raises UsageError for a model without these layers.
    """
    model.requires_grad_(False)
    if config.trains == "lora":
        add_lora(model.vlm, LANGUAGE_LINEAR, config.lora, config.seed)
    named = {name: parameter for name, parameter in model.named_parameters() if _trains(name, config)}
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(torch.float32 if name in named else precision(config, device))
        parameter.requires_grad_(name in named)
    model.to(device)
    if config.gradient_checkpointing:
        model.vlm.activation_checkpointing_enable({"use_reentrant": False})
    return named


def _trains(name: str, config: JudgeTrainConfig) -> bool:
    """Whether a parameter of that name is trained."""
    if name.startswith(("regression.", "log_tie")) or is_lora(name):
        return True
    heads = config.heads
    if config.trains == "language" and name.startswith("vlm.lm_head."):
        return bool(heads.generate or heads.expected or heads.preference)
    language = config.trains == "language" and name.startswith("vlm.model.language_model.")
    return language or (config.vision and name.startswith("vlm.model.visual."))
