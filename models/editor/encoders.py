"""The frozen encoders: the vision-language model, SigLIP and the VAE, from their inputs to a condition."""

import hashlib
import json
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from editfoundry.core.hashing import canonical_json
from editfoundry.models.editor import latents
from editfoundry.models.editor.types import Condition, EncoderInputs


class Encoders:
    """Computes conditions, without gradients and on the device of its models.

    vlm: a transformers Qwen2_5_VLModel (no output layer: only its states are used). visual_encoder: a
    SiglipVisionModel, None for an editor without it. vae: in float32.
    """

    def __init__(self, vlm: Any, visual_encoder: Any | None, vae: Any) -> None:
        self.vlm = vlm
        self.visual_encoder = visual_encoder
        self.vae = vae

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def condition(self, inputs: EncoderInputs, references: Tensor | None = None) -> Condition:
        """What the encoders make of a batch; states have the dtype of their model.

        references: float [B, R, 3, H, W] in [-1, 1], the pictures whose latents the editor sees, None for an editor
        that does not. Without a visual encoder, `visual_pixels` are left alone and there are no visual states.
        """
        device = self.vlm.device
        text = self.vlm(
            input_ids=inputs.input_ids.to(device),
            attention_mask=inputs.attention_mask.to(device),
            mm_token_type_ids=inputs.mm_token_type_ids.to(device),
            pixel_values=inputs.pixel_values.to(device),
            image_grid_thw=inputs.image_grid_thw.to(device),
            use_cache=False,
        ).last_hidden_state
        return Condition(
            text_states=text,
            text_mask=inputs.attention_mask.to(device).bool(),
            vision_end=inputs.vision_end.to(device),
            visual_states=self._visual_states(inputs.visual_pixels),
            reference_latents=None if references is None else self._reference_latents(references),
        )

    def moments(self, pixels: Tensor) -> Tensor:
        """Mean and log-variance of unscaled latents: [B, 3, H, W] in [-1, 1] -> float32 [B, 2C, h, w]."""
        return latents.moments(self.vae, pixels.to(self.vae.device))

    @cached_property
    def digest(self) -> str:
        """SHA-256 over classes, settings and weights of the encoders as they are in memory; computed once."""
        total = hashlib.sha256()
        for model in (self.vlm, self.visual_encoder, self.vae):
            if model is None:
                continue
            total.update(canonical_json([type(model).__name__, str(model.dtype), _settings(model)]).encode())
            for name, weight in sorted(model.state_dict().items()):
                total.update(f"{name} {list(weight.shape)}".encode())
                total.update(weight.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return total.hexdigest()

    def _visual_states(self, pixels: Tensor | None) -> Tensor | None:
        """SigLIP's last hidden states, [B, R, 3, H, W] -> [B, R, S, D]."""
        if self.visual_encoder is None:
            return None
        if pixels is None:
            raise ValueError("the editor has a visual encoder, but its processor made no pixels for it")
        seen = pixels.flatten(0, 1).to(self.visual_encoder.device, self.visual_encoder.dtype)
        states: Tensor = self.visual_encoder(seen).last_hidden_state
        return states.unflatten(0, pixels.shape[:2])

    def _reference_latents(self, references: Tensor) -> Tensor:
        """Scaled mean latents of every picture, [B, R, 3, H, W] -> float32 [B, R, C, h, w]."""
        means = latents.sample(self.vae, self.moments(references.flatten(0, 1)), None)
        return means.unflatten(0, references.shape[:2])


def _settings(model: Any) -> dict[str, Any]:
    """A model's configuration without what names the version or the place that it came from."""
    config = model.config
    text = config.to_json_string() if hasattr(config, "to_json_string") else model.to_json_string()
    return {
        key: value
        for key, value in json.loads(text).items()
        if not key.startswith("_") and not key.endswith("version") and key not in ("architectures", "dtype")
    }
