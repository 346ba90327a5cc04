"""Which parameters each stage of training changes, by name."""

import re
from typing import Literal

from editfoundry.models.editor.model import EditorModel

Stage = Literal["connector", "joint", "full"]

_LINEAR = (
    r"transformer_blocks\.\d+\.(?:attn\.(?:to_[qkv]|to_out\.0)|norm1\.linear)"
    r"|single_transformer_blocks\.\d+\.(?:attn\.to_[qkv]|norm\.linear)"
)
IMAGE_BRANCH = re.compile(rf"transformer\.(?:{_LINEAR}|(?:single_)?transformer_blocks\.\d+\.attn\.norm_[qk])")
"""Names, in an EditorModel, of the modules of FLUX's blocks that serve the image stream in attention.

Source: the stage 2 of UniWorld-V1. Feed-forward layers, the text stream and everything outside the blocks stay frozen.
"""
LORA_TARGETS = rf"(?:transformer\.)?(?:{_LINEAR})"
"""The linear layers among them, as peft's `target_modules` for the transformer or for the whole EditorModel.

The norms of queries and keys are left out: a low rank means nothing for a vector of 128 factors.
"""


def trainable(model: EditorModel, stage: Stage) -> list[str]:
    """Names of the parameters that a stage trains, in the model's order.

    `connector`: the connector. `joint`: both connectors and the image branch of all of FLUX's blocks. `full`:
    everything, for a transformer that was not trained before.
    """
    names = [name for name, _ in model.named_parameters()]
    if stage == "full":
        return names
    if stage == "connector":
        return [name for name in names if name.startswith("connector.")]
    return [
        name
        for name in names
        if name.startswith(("connector.", "visual_connector.")) or IMAGE_BRANCH.fullmatch(name.rpartition(".")[0])
    ]
