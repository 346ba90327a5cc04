"""The editor: connectors and FLUX. The frozen encoders before it are in `encoders.py`, the VAE in `latents.py`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from editfoundry.models.editor.connector import Connector
from editfoundry.models.editor.latents import image_ids, pack
from editfoundry.models.editor.sequence import attention_mask, join
from editfoundry.models.editor.types import Condition


class EditorModel(nn.Module):  # type: ignore[misc]
    """Predicts the velocity (noise minus picture) of noisy latents, given what the frozen encoders made of a request.

    connector: of the vision-language model's states, with FLUX's pooled projection. visual_connector: of SigLIP's
    states, None for an editor without SigLIP. transformer: a diffusers FluxTransformer2DModel.
    Letters of shapes: see `types.py`; T is the length of the joint text and detail sequence.
    """

    def __init__(self, connector: Connector, visual_connector: Connector | None, transformer: Any) -> None:
        super().__init__()
        self.connector = connector
        self.visual_connector = visual_connector
        self.transformer = transformer

    def forward(self, noisy: Tensor, sigma: Tensor, condition: Condition, guidance: float) -> Tensor:
        """`velocity` of a condition that is not yet embedded."""
        sequence, mask = self.embed(condition)
        return self.velocity(noisy, sigma, sequence, mask, guidance, condition.reference_latents)

    def embed(self, condition: Condition) -> tuple[Tensor, Tensor]:
        """What FLUX reads in place of a prompt: sequence [B, T, E] and its mask bool [B, T], False is padding.

        Raises ValueError for SigLIP states when the editor has no visual connector.
        """
        # Whatever the padding holds, it reaches neither the answer nor a gradient.
        states = condition.text_states.masked_fill(~condition.text_mask[..., None], 0)
        return join(self.connector(states), condition.text_mask, condition.vision_end, self._visual(condition))

    def velocity(
        self,
        noisy: Tensor,
        sigma: Tensor,
        sequence: Tensor,
        mask: Tensor,
        guidance: float,
        reference_latents: Tensor | None,
    ) -> Tensor:
        """noisy: [B, C, h, w] at noise levels sigma [B] in [0, 1]. Returns the packed velocity, float32 [B, N, 4C].

        Padded text is never attended to. reference_latents [B, R, C, h, w] join the image tokens, as in FLUX.1-Kontext;
        what FLUX answers for them is dropped. guidance: of a guidance-distilled FLUX; others take none.
        """
        (height, width), device, dtype = noisy.shape[-2:], noisy.device, self.transformer.dtype
        pictures = [noisy, *([] if reference_latents is None else reference_latents.unbind(1))]
        tokens = torch.cat([pack(picture) for picture in pictures], dim=1)
        ids = [image_ids(height, width, number, device) for number in range(len(pictures))]
        # The fastest attention kernels take no mask, so there is one only where something is padded.
        allowed = None if mask.all() else attention_mask(mask, tokens.shape[1])
        strength = torch.full_like(sigma, guidance) if self.transformer.config.guidance_embeds else None
        with exact_times(self.transformer, sigma, strength):
            (velocity,) = self.transformer(
                hidden_states=tokens.to(dtype),
                encoder_hidden_states=sequence.to(dtype),
                pooled_projections=self.connector.pooled_projection.to(dtype).expand(len(noisy), -1),
                timestep=sigma,
                guidance=strength,
                img_ids=torch.cat(ids),
                txt_ids=torch.zeros(sequence.shape[1], 3, device=device),
                joint_attention_kwargs={"attention_mask": allowed},
                return_dict=False,
            )
        return velocity[:, : height * width // 4].float()

    def _visual(self, condition: Condition) -> Tensor | None:
        """SigLIP's states through their connector: [B, R, S, E], or None for an editor without one.

        A condition without states gives none (S = 0), but by way of the connector, so that all its parameters have a
        gradient (of zeros) and no rank of a distributed run waits for one.
        """
        states = condition.visual_states
        if self.visual_connector is None:
            if states is not None:
                raise ValueError("the condition has SigLIP states, but the editor has no visual connector")
            return None
        if states is None:
            states = condition.text_states.new_zeros(
                *condition.vision_end.shape, 0, self.visual_connector.config.in_features
            )
        return self.visual_connector(states)


@contextmanager
def exact_times(transformer: Any, sigma: Tensor, guidance: Tensor | None) -> Iterator[None]:
    """Within it, FLUX embeds noise level and guidance [B] as they are.

    FLUX rounds both to the dtype of its tokens first: in bfloat16, 0.7 becomes 0.699 and 3.5 * 1000 becomes 3504.
    """
    times = [1000 * value.float() for value in (sigma, guidance) if value is not None]
    hook = transformer.time_text_embed.register_forward_pre_hook(lambda _, inputs: (*times, inputs[-1]))
    try:
        yield
    finally:
        hook.remove()
