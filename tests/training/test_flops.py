import pytest
import torch
from diffusers import FluxTransformer2DModel
from tiny.trained_model import tiny_config, tiny_inputs, tiny_model
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from editfoundry.models.editor.connector import Connector
from editfoundry.models.editor.model import EditorModel
from editfoundry.models.editor.stages import Stage
from editfoundry.training.flops import Flops, Lengths, peak_flops
from editfoundry.training.parameters import prepare_parameters

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("stage", "lora", "visual", "references", "distilled"),
    [
        ("connector", None, False, 0, True),
        ("connector", None, False, 1, False),
        ("joint", None, True, 1, True),
        ("joint", None, True, 0, False),
        ("joint", {"rank": 3}, True, 2, True),
        ("full", None, True, 1, True),
        ("full", None, False, 0, False),
    ],
)
def test_counts_are_those_of_pytorchs_counter(
    stage: Stage,
    lora: dict[str, int] | None,
    visual: bool,
    references: int,
    distilled: bool,
) -> None:
    """Forward, and forward with backward, exactly; attention by plain products, which flash kernels compute anew."""
    model = tiny_model(guidance=distilled)
    prepare_parameters(model, tiny_config(stage, lora=lora), CPU)
    noisy, sigma, condition, guidance = tiny_inputs(visual=visual, references=references)
    flops, lengths = Flops(model), Lengths.of(noisy.shape, condition)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        velocity = model(noisy, sigma, condition, guidance)
    assert counter.get_total_flops() == flops.forward(lengths)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        velocity.square().mean().backward()
    assert flops.forward(lengths) + counter.get_total_flops() == flops.step(lengths)


def test_what_checkpointing_computes_again_counts_once() -> None:
    counts = []
    for checkpointing in (False, True):
        model = tiny_model()
        prepare_parameters(model, tiny_config("joint", gradient_checkpointing=checkpointing), CPU)
        noisy, sigma, condition, guidance = tiny_inputs()
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model(noisy, sigma, condition, guidance).square().mean().backward()
        counts.append((Flops(model).step(Lengths.of(noisy.shape, condition)), counter.get_total_flops()))
    (plain, counted), (checkpointed, counted_again) = counts
    assert plain == checkpointed == counted < counted_again


def test_stage_1_at_real_size_by_hand() -> None:
    """512² with 60 tokens of text beside the picture's 256: 18.6 T forward, 19.9 T backward."""
    with torch.device("meta"):
        model = EditorModel(Connector(3584, 12288, 4096, 768), None, FluxTransformer2DModel(guidance_embeds=True))
    prepare_parameters(model, tiny_config("connector"), torch.device("meta"))
    text, image, width = 316, 1024, 3072
    flops, lengths = Flops(model), Lengths(samples=1, text=text, visual=0, image=image)

    blocks = 2 * (text + image) * 12 * width**2 * (19 + 38)  # q, k, v, out and twice 4 of the feed-forward layers
    modulation = 2 * width**2 * (19 * 12 + 38 * 3 + 2) + 2 * (2 * (256 + width) + 768 + width) * width
    text_in, image_in, image_out = 2 * text * 4096 * width, 2 * image * 64 * width, 2 * image * 64 * width
    up, down = 2 * text * 3584 * 12288, 2 * text * 12288 * 4096
    attention = 4 * (19 + 38) * (text + image) ** 2 * width
    forward = blocks + modulation + text_in + image_in + image_out + up + down + attention
    assert flops.forward(lengths) == forward == 18_632_115_683_328

    first = 2 * image * 3 * width**2  # the first q, k and v of the image: nothing trained comes before them
    backward = blocks - first + text_in + image_out + up + 2 * down + 2 * attention
    assert flops.step(lengths) == forward + backward


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989.5e12),
        ("NVIDIA H100 80GB HBM3", 989.5e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200 NVL", 835.5e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("AMD Instinct MI300X", 1307.4e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("Tesla V100-SXM2-32GB", None),
        ("", None),
    ],
)
def test_peaks_by_device_name(name: str, peak: float | None) -> None:
    assert peak_flops(name) == peak


def test_an_unknown_layer_is_refused() -> None:
    model = tiny_model()
    model.transformer.extra = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"the layer transformer\.extra is not one of an editor's"):
        Flops(model)
