"""How many floating-point operations a step takes, by counting, and how many a GPU could do.

Matrix products only, two operations for each multiply and add, as PyTorch's FlopCounterMode counts them. These are the
operations of the model, not of the machine: what gradient checkpointing or an attention kernel computes twice counts
once (model FLOPs utilisation, Chowdhery et al. 2022, "PaLM", appendix B). The frozen encoders are not counted.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from editfoundry.models.editor.model import EditorModel
from editfoundry.models.editor.types import Condition

Rows = Literal["text", "visual", "sequence", "image", "joint", "sample"]
ROWS: tuple[tuple[str, Rows], ...] = (
    (r"connector\.", "text"),
    (r"visual_connector\.", "visual"),
    (r"transformer\.(time_text_embed|norm_out)\.|.*\.norm1(_context)?\.linear|.*\.norm\.linear", "sample"),
    (r"transformer\.context_embedder|.*\.(attn\.(add_[qkv]_proj|to_add_out)|ff_context\.)", "sequence"),
    (r"transformer\.single_transformer_blocks\.", "joint"),
    (r"transformer\.(x_embedder|proj_out|transformer_blocks\.)", "image"),
)
"""Which rows a linear layer multiplies, by its name in an EditorModel; the first pattern that its name begins with."""
NO_INPUT_GRADIENT = (
    r"(visual_)?connector\.up|transformer\.(time_text_embed\.|x_embedder)|transformer\.norm_out\.linear"
    r"|.*\.norm1(_context)?\.linear|.*\.norm\.linear"
)
"""Layers whose inputs nothing trained came before: the encoders' states, the noisy latents, and times and guidance."""
NO_INPUT_GRADIENT_IN_FULL = r"(visual_)?connector\.up|transformer\.(x_embedder|time_text_embed\.\w+\.linear_1)"
"""These alone where the embedding of times is trained."""
FIRST_IMAGE_LAYERS = r"transformer\.transformer_blocks\.0\.attn\.to_[qkv]"
"""Beside the former, these too, unless the modulation before them is trained."""


@dataclass(frozen=True)
class Lengths:
    """Rows of a micro-batch of B samples, padding included; all others are of one sample.

    text: L. visual: R * S. image: N, and as many for each reference picture that the editor sees the latents of.
    """

    samples: int
    text: int
    visual: int
    image: int

    @classmethod
    def of(cls, noisy_shape: tuple[int, ...], condition: Condition) -> "Lengths":
        """Those of noisy latents [B, C, h, w] and their condition."""
        samples, _, height, width = noisy_shape
        visual, references = condition.visual_states, condition.reference_latents
        return cls(
            samples=samples,
            text=condition.text_states.shape[1],
            visual=0 if visual is None else visual.shape[1] * visual.shape[2],
            image=height * width // 4 * (1 if references is None else 1 + references.shape[1]),
        )

    def rows(self, kind: Rows) -> int:
        """Rows of a matrix product of this kind, over the micro-batch."""
        sequence = self.text + self.visual
        each = {
            "text": self.text,
            "visual": self.visual,
            "sequence": sequence,
            "image": self.image,
            "joint": sequence + self.image,
            "sample": 1,
        }
        return self.samples * each[kind]


class Flops:
    """Counts operations of an EditorModel whose parameters are prepared; build it before the model is sharded.

    A layer's forward is one product; its backward is one for the gradient of its input, where anything trained came
    before, and one for that of its weights, where they are trained. Attention is two products, and four backward.
    """

    def __init__(self, model: EditorModel) -> None:
        self._forward: dict[Rows, int] = {}
        self._backward: dict[Rows, int] = {}
        config = model.transformer.config
        self._width = int(config.num_attention_heads * config.attention_head_dim)
        self._blocks = int(config.num_layers + config.num_single_layers)
        without = _no_input_gradient(model.transformer)
        for name, layer in _linears(model):
            rows = _rows(name)
            product = 2 * layer.in_features * layer.out_features
            products = int(layer.weight.requires_grad) + _input_gradient(name, without)
            self._forward[rows] = self._forward.get(rows, 0) + product
            self._backward[rows] = self._backward.get(rows, 0) + products * product

    def forward(self, lengths: Lengths) -> int:
        """Operations of one forward pass."""
        layers = sum(count * lengths.rows(rows) for rows, count in self._forward.items())
        return layers + self._attention(lengths)

    def step(self, lengths: Lengths) -> int:
        """Operations of one forward and backward pass."""
        backward = sum(count * lengths.rows(rows) for rows, count in self._backward.items())
        return self.forward(lengths) + backward + 2 * self._attention(lengths)

    def _attention(self, lengths: Lengths) -> int:
        joint = lengths.text + lengths.visual + lengths.image
        return 4 * self._blocks * lengths.samples * joint**2 * self._width


def peak_flops(device_name: str) -> float | None:
    """Dense bfloat16 operations a second that a GPU of this name (`torch.cuda.get_device_name`) is built for, or None.

    From the makers' data sheets, without sparsity (NVIDIA's "with sparsity" figures halved): A100 (80 GB data sheet,
    June 2021), H100 (SXM, PCIe and NVL, data sheet 2023), H200 (data sheet 2024), HGX B200 and GB200 NVL72 (2024), L40S
    and L4 (2023), RTX A6000 (2020), GeForce RTX 4090 (Ada architecture paper, float32 accumulation), AMD MI300X and
    MI325X. A MIG slice of a GPU is not that GPU: None.
    """
    if "MIG" in device_name.split():
        return None
    return next((peak * 1e12 for pattern, peak in PEAKS if re.search(pattern, device_name)), None)


PEAKS = (
    (r"\bGB200\b", 2500.0),
    (r"\bB200\b", 2250.0),
    (r"\bH[12]00 NVL\b", 835.5),
    (r"\bH100 PCIe\b", 756.0),
    (r"\b(H100|H200|GH200)\b", 989.5),
    (r"\bA100\b", 312.0),
    (r"\bL40S\b", 362.0),
    (r"\bL4\b", 121.0),
    (r"\bRTX A6000\b", 154.8),
    (r"\bRTX 4090$", 165.2),
    (r"\bMI3(00|25)X\b", 1307.4),
)
"""Name of a GPU and its peak in 10^12 operations a second; the first that fits."""


def _linears(model: EditorModel) -> Iterator[tuple[str, nn.Linear]]:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            yield name, module


def _rows(name: str) -> Rows:
    """Raises ValueError for a layer that no pattern knows: a count without it would be wrong."""
    for pattern, rows in ROWS:
        if re.match(pattern, name):
            return rows
    raise ValueError(f"the layer {name} is not one of an editor's")


def _no_input_gradient(transformer: Any) -> str:
    """The pattern of layers whose inputs need no gradient."""

    def trained(module: nn.Module) -> bool:
        return any(parameter.requires_grad for parameter in module.parameters())

    if trained(transformer.time_text_embed):
        return NO_INPUT_GRADIENT_IN_FULL
    if trained(transformer.transformer_blocks[0].norm1):
        return NO_INPUT_GRADIENT
    return f"{NO_INPUT_GRADIENT}|{FIRST_IMAGE_LAYERS}"


def _input_gradient(name: str, without: str) -> bool:
    """Whether the gradient of a layer's input is computed; of a LoRA, that of its first half is that of its layer."""
    return ".lora_B." in name or re.match(rf"(?:{without})", name) is None
