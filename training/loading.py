"""The editor that a run begins with, in the precision that training needs of each part."""

import torch

from editfoundry.models.editor.pipeline import EditorPipeline
from editfoundry.training.config import TrainConfig
from editfoundry.training.parameters import frozen_dtype, store_float8


def open_editor(config: TrainConfig, device: torch.device) -> EditorPipeline:
    """The folder `config.model` as a pipeline on the CPU, its `details` as in the stage; to be prepared and placed.

    Weights that are trained must not be rounded on the way: the transformer is read in float32 where the stage trains
    its weights themselves (twice FLUX's size in memory until they are prepared), else as frozen weights are stored.
    Raises ModelMissing for a folder that is no editor.
    """
    frozen = frozen_dtype(config, device)
    trains_transformer = config.stage != "connector" and config.lora is None
    dtypes = {"default": frozen, "transformer": torch.float32 if trains_transformer else frozen}
    pipeline = EditorPipeline.from_pretrained(config.model, dtype=dtypes)
    pipeline.register_to_config(details=config.stage != "connector")
    if config.frozen == "float8":
        store_float8(*filter(None, (pipeline.vlm, pipeline.visual_encoder)))
    return pipeline
