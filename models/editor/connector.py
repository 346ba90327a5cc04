"""From the width of a frozen encoder to the width of FLUX's text stream."""

from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn, zeros
from torch.nn import functional as F


class Connector(ModelMixin, ConfigMixin):  # type: ignore[misc]
    """Linear, SiLU, Linear, token by token.

    pooled_features: width of FLUX's pooled projection. The connector then also carries `pooled_projection`, the CLIP
    embedding of the empty text, which takes the place of a pooled text embedding: saved with it, never trained.
    Source: UniWorld-V1 and FLUX.1-Redux, whose projector has the same form.
    """

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(
        self, in_features: int, hidden_features: int, out_features: int, pooled_features: int | None = None
    ) -> None:
        super().__init__()
        self.up = nn.Linear(in_features, hidden_features)
        self.down = nn.Linear(hidden_features, out_features)
        if pooled_features is not None:
            self.register_buffer("pooled_projection", zeros(pooled_features))

    def forward(self, states: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features], in the connector's dtype (or autocast's)."""
        return self.down(F.silu(self.up(states.to(self.dtype))))
