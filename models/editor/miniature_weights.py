"""Weights of the miniature that random ones would take long to become: an autoencoder that is nearly linear, and a

transformer that passes its tokens through. Both are ordinary checkpoints of their classes, and training goes on from
them.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FACTOR = 4
"""Pixels along a latent; the autoencoder has three resolutions."""
CONSTANT, LINEAR, SMALL = 10.0, 30.0, 0.1
"""How a group norm and a SiLU are made to change nothing: two channels hold plus and minus CONSTANT, which outweighs

the others, scaled by SMALL, in the norm's statistics; and SiLU is the identity around LINEAR.
"""
LOG_VARIANCE = -12.0
LEARNING_RATE = 1e-2


def fit_autoencoder(vae: Any, pictures: Tensor, *, seed: int, steps: int = 200, batch: int = 8) -> None:
    """Set the weights of an AutoencoderKL of three resolutions and one norm group, in place; the same for one seed.

    pictures: float32 [M, 3, H, W] in [-1, 1]. The encoder becomes the principal components of blocks of 4 x 4 pixels,
    exactly. The decoder, whose convolutions on enlarged pictures cannot be the inverse exactly, is fitted for `steps`
    steps as the linear map that it is while its residual branches are zero. The configuration's `scaling_factor` and
    `shift_factor` become those that give the latents of the pictures mean 0 and variance 1.
    """
    blocks = F.pixel_unshuffle(pictures, FACTOR).movedim(1, -1).reshape(-1, 3 * FACTOR**2)
    mean = blocks.mean(0)
    _, vectors = torch.linalg.eigh((blocks - mean).T @ (blocks - mean) / len(blocks))
    components = vectors.flip(1)[:, : vae.config.latent_channels].T  # [C, 48], the strongest first
    with torch.no_grad():
        _silence_residuals(vae)
        _set_encoder(vae.encoder, components, mean)
        latents = vae.encode(pictures).latent_dist.mean
        chain = _fit_chain(vae.decoder, latents, pictures, seed, steps, batch)
        _set_decoder(vae.decoder, chain)
    vae.register_to_config(scaling_factor=float(1 / latents.std()), shift_factor=float(latents.mean()))


def pass_through(transformer: Any, *, seed: int, gate: float = 0.3, nearness: float = 0.5, gain: float = 1.0) -> None:
    """Set what the stages of training leave alone in a FluxTransformer2DModel, in place, so that they have a chance.

    A released transformer is a denoiser before its first step as an editor; one of random weights cannot become one
    while its input and output layers stay frozen. Here these two are each other's transpose, times `gain`, the final
    norm is not modulated, and blocks are modulated evenly, as a diffusion transformer begins: shift and scale 0, gate
    `gate` on attention and on single blocks, 0 on the image's feed-forward. Keys start as queries, and biases as strong
    as `nearness` make tokens attend to those near them, in their own picture and in the pictures they edit.
    """
    width, channels = transformer.inner_dim, transformer.config.in_channels
    generator = torch.Generator().manual_seed(seed)
    rows, _ = torch.linalg.qr(torch.randn(width, channels, generator=generator))
    near = nearness * _fastest_rotations(transformer.config.axes_dims_rope).repeat(
        transformer.config.num_attention_heads
    )
    with torch.no_grad():
        for layer, weight in ((transformer.x_embedder, rows), (transformer.proj_out, gain * rows.T)):
            layer.weight.copy_(weight)
            layer.bias.zero_()
        modulations = [transformer.norm_out.linear]
        for block in transformer.transformer_blocks:
            modulations.append(block.norm1.linear)
        for block in transformer.single_transformer_blocks:
            modulations.append(block.norm.linear)
        for layer in modulations:
            layer.weight.zero_()
            layer.bias.zero_()
        for block in (*transformer.transformer_blocks, *transformer.single_transformer_blocks):
            block.attn.to_k.weight.copy_(block.attn.to_q.weight)
            block.attn.to_q.bias.copy_(near)
            block.attn.to_k.bias.copy_(near)
        for layer in modulations[1:]:
            layer.bias[2 * width : 3 * width] = gate


def _fastest_rotations(axes: tuple[int, ...]) -> Tensor:
    """[head width] of unit root mean square: ones where rotary positions turn fastest, two rotations an axis."""
    starts = torch.tensor([0, *axes[:-1]]).cumsum(0)
    ones = torch.zeros(sum(axes))
    ones[(starts[:, None] + torch.arange(4)).flatten()] = 1
    return ones / ones.square().mean().sqrt()


def _silence_residuals(vae: Any) -> None:
    """Zero the residual branches, and make the shortcuts between widths pass on what fits."""
    for module in vae.modules():
        if hasattr(module, "conv_shortcut"):
            module.conv2.weight.zero_()
            module.conv2.bias.zero_()
            if module.conv_shortcut is not None:
                nn.init.dirac_(module.conv_shortcut.weight)
                module.conv_shortcut.bias.zero_()


def _set_encoder(encoder: Any, components: Tensor, mean: Tensor) -> None:
    """Gather blocks of 4 x 4 pixels in two steps of 2 x 2, the second of which projects onto the components."""
    first, second = (encoder.down_blocks[level].downsamplers[0].conv for level in (0, 1))
    for layer in (encoder.conv_in, first, second, encoder.conv_out):
        layer.weight.zero_()
        layer.bias.zero_()
    nn.init.dirac_(encoder.conv_in.weight)
    first.weight[:12, :3, :2, :2] = torch.eye(12).reshape(12, 3, 2, 2)  # channel, row, column of the pixel
    # A component's weights [colour, block row, row in it, block column, column in it], by what `first` gathered.
    weights = components.reshape(-1, 3, 2, 2, 2, 2).permute(0, 1, 3, 5, 2, 4)
    second.weight[: len(components), :12, :2, :2] = weights.reshape(-1, 12, 2, 2)
    count = len(components)
    second.weight.mul_(SMALL)
    features = _linear_end(encoder.conv_norm_out, encoder.down_blocks[2].resnets[0].conv_shortcut)
    encoder.conv_out.weight[:count, :, 1, 1] = features[:count] / SMALL
    encoder.conv_out.bias[:count] = -components @ mean
    encoder.conv_out.bias[count:] = LOG_VARIANCE


def _set_decoder(decoder: Any, chain: nn.Sequential) -> None:
    """Put the fitted linear chain where the decoder has its convolutions."""
    start, first, second, end = (layer for layer in chain if isinstance(layer, nn.Conv2d))
    ups = [decoder.up_blocks[level].upsamplers[0].conv for level in (0, 1)]
    for layer, fitted in zip((decoder.conv_in, *ups), (start, first, second), strict=True):
        layer.weight.zero_()
        layer.bias.zero_()
        layer.weight[: fitted.out_channels] = fitted.weight
        layer.bias[: fitted.out_channels] = fitted.bias
    ups[1].weight.mul_(SMALL)
    ups[1].bias.mul_(SMALL)
    features = _linear_end(decoder.conv_norm_out, decoder.up_blocks[2].resnets[0].conv_shortcut)
    decoder.conv_out.weight.copy_(torch.einsum("ofyx,fc->ocyx", end.weight, features[: end.in_channels]) / SMALL)
    decoder.conv_out.bias.copy_(end.bias)


def _linear_end(norm: nn.GroupNorm, shortcut: nn.Conv2d) -> Tensor:
    """Make the norm and the SiLU before a part's last convolution pass on their input: [n, n], input from output.

    The last two channels get the constants, from the bias of the last shortcut; subtracting their mean from the others
    takes away LINEAR and gives back the mean that the norm took, also at the border, where convolutions see zeros.
    """
    shortcut.weight[-2:] = 0
    shortcut.bias[-2:] = torch.tensor([CONSTANT, -CONSTANT])
    norm.weight.fill_(CONSTANT * (2 / norm.num_channels) ** 0.5)
    norm.bias.fill_(LINEAR)
    features = torch.eye(norm.num_channels)
    features[:, -2:] -= 0.5
    return features


def _fit_chain(decoder: Any, latents: Tensor, pictures: Tensor, seed: int, steps: int, batch: int) -> nn.Sequential:
    """The linear chain from latents to pictures that the decoder can hold, with the least squared error on batches."""
    wide, middle, narrow = (decoder.up_blocks[level].resnets[0].out_channels for level in (0, 1, 2))
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        chain = nn.Sequential(
            nn.Conv2d(latents.shape[1], wide, 3, padding=1),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(wide, middle, 3, padding=1),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(middle, narrow - 2, 3, padding=1),
            nn.Conv2d(narrow - 2, 3, 3, padding=1),
        )
        optimiser = torch.optim.Adam(chain.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98))
        rate = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1, (step + 1) / 20) * (1 - step / steps))
        for _ in range(steps):
            chosen = torch.randint(len(pictures), (batch,), generator=generator)
            loss = F.mse_loss(chain(latents[chosen]), pictures[chosen])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            rate.step()
    return chain
