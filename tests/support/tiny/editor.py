"""The smallest editor: every component of the real classes, with random weights, in an editor's folder layout."""

from pathlib import Path
from typing import Literal

from editfoundry.models.editor.miniature import Size, miniature_parts, save_editor


def tiny_editor(
    folder: Path,
    *,
    visual: bool = True,
    reference_latents: Literal["none", "kontext"] = "none",
    width: int = 32,
    seed: int = 0,
) -> Path:
    """Fills a folder that `load_editor` reads and returns it; the same bytes for the same arguments and versions.

    width: of the transformer and its text, a multiple of 32. Its autoencoder (4 channels) halves a picture, so a
    64 x 64 picture is 256 image tokens; the vision-language model (width 64) sees 4 tokens of a square picture, SigLIP
    (width 32) 16. Pictures come out as noise: no part was fitted to anything.
    """
    size = Size(
        heads=2,
        axes=(width // 8, width // 8, width // 4),
        blocks=2,
        pooled=16,
        vlm=64,
        visual=32,
        vlm_pixels=56 * 56,
        picture=32,
        hidden=2 * width,
        latents=4,
        autoencoder=(8, 16),
    )
    parts = miniature_parts(size, seed=seed, visual=visual)
    return save_editor(parts, folder, size=size, reference_latents=reference_latents)
