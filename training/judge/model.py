"""The judge as it trains: Qwen2.5-VL on a packed row, and a regression head on the last state of each prompt.

In a packed row every sequence attends to itself alone and has its own rotary positions: the first row of `positions`
starts again at 0 with each sequence, which is how transformers knows.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from editfoundry.core.errors import UsageError
from editfoundry.core.hashing import seed_for
from editfoundry.models.judge.folder import DIMENSIONS
from editfoundry.training.judge.batch import Row
from editfoundry.training.judge.config import Heads, JudgeTrainConfig

LANGUAGE_LINEAR = r".*language_model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"
LEAST_LOG_VARIANCE, MOST_LOG_VARIANCE = -8.0, 8.0


class Outputs(NamedTuple):
    """What the heads say about a row, float32; logits over the whole vocabulary at the places that losses need.

    reply [G, vocabulary], score [S, vocabulary], second [S, vocabulary] (zeros where the row has no second place),
    regression [R, 2 * 3], choice [C, vocabulary]. Heads that are off have no rows.
    """

    reply: Tensor
    score: Tensor
    second: Tensor
    regression: Tensor
    choice: Tensor
    tie: Tensor


class JudgeModel(nn.Module):  # type: ignore[misc]
    """vlm: a transformers Qwen2_5_VLForConditionalGeneration. heads: which have a weight.

    The regression head is there only if it is trained; `tie` is the ranking's learned log of Davidson's tie parameter.
    """

    def __init__(self, vlm: Any, heads: Heads, regression: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        self.vlm, self.heads = vlm, heads
        hidden = int(vlm.config.text_config.hidden_size)
        self.regression: nn.Linear | None = None
        self.log_tie: nn.Parameter | None = None
        if heads.regression or heads.ranking:
            self.regression = nn.Linear(hidden, 2 * DIMENSIONS)
            nn.init.zeros_(self.regression.weight)
            nn.init.zeros_(self.regression.bias)
            if regression is not None:
                self.regression.load_state_dict(regression)
        if heads.ranking:
            self.log_tie = nn.Parameter(torch.zeros(()))

    def forward(self, row: Row) -> Outputs:
        """Logits and regressions at the row's places."""
        states = self._states(row)
        none = states.new_zeros(0, 1, dtype=torch.float32)
        heads = self.heads
        scores = bool(heads.expected)
        return Outputs(
            reply=self._logits(states, row.reply_places) if heads.generate else none,
            score=self._logits(states, row.score_places) if scores else none,
            second=self._logits(states, row.second_places.clamp_min(0)) if scores else none,
            regression=self.regression(states[row.regression_places].to(self.regression.weight.dtype)).float()
            if self.regression is not None
            else none,
            choice=self._logits(states, row.choice_places) if heads.preference else none,
            tie=self.log_tie if self.log_tie is not None else none.new_zeros(()),
        )

    def _states(self, row: Row) -> Tensor:
        """The last hidden state of every token, [L, H]."""
        model = self.vlm.model
        embeds = model.get_input_embeddings()(row.ids)
        features = model.get_image_features(
            row.pixel_values.to(model.visual.dtype), row.grids, return_dict=True
        ).pooler_output
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


def prepare_parameters(model: JudgeModel, config: JudgeTrainConfig, device: torch.device) -> dict[str, nn.Parameter]:
    """Make the model what trains, in place: a LoRA on the language model's linear layers or the language model itself,

    the vision tower if asked, and the heads. Trained parameters are float32; gives them by name.
    """
    model.requires_grad_(False)
    if config.trains == "lora":
        _add_lora(model.vlm, config)
    wanted = [r"^(regression\.|log_tie$)"]
    wanted += [r"\.lora_[AB]\."] if config.trains == "lora" else [r"^vlm\.model\.language_model\."]
    heads = config.heads
    if config.trains == "language" and (heads.generate or heads.expected or heads.preference):
        wanted += [r"^vlm\.lm_head\."]
    wanted += [r"^vlm\.model\.visual\."] if config.vision else []
    named = {
        name: parameter
        for name, parameter in model.named_parameters()
        if any(re.search(pattern, name) for pattern in wanted)
    }
    if not named:
        raise UsageError("nothing would train: no layer of this model matches; is it a Qwen2.5-VL?")
    for parameter in named.values():
        parameter.data = parameter.data.float()
        parameter.requires_grad_()
    model.to(device)
    if config.gradient_checkpointing:
        model.vlm.gradient_checkpointing_enable({"use_reentrant": False})
        model.vlm.enable_input_require_grads()
    return named


def _add_lora(vlm: Any, config: JudgeTrainConfig) -> None:
    from peft import LoraConfig

    options = LoraConfig(r=config.lora.rank, lora_alpha=config.lora.alpha, target_modules=LANGUAGE_LINEAR)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(config.seed, "lora") % 2**63)
        vlm.add_adapter(options)
