"""The configuration of a run: one section per stage, plus what all stages share."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from editfoundry.core.config import Config
from editfoundry.core.errors import ConfigError
from editfoundry.data_engine.stages.caption import CaptionConfig
from editfoundry.data_engine.stages.catalogue import CatalogueConfig
from editfoundry.data_engine.stages.detect import DetectConfig
from editfoundry.data_engine.stages.duplicates import DuplicatesConfig
from editfoundry.data_engine.stages.emit import EmitConfig
from editfoundry.data_engine.stages.filter import FilterConfig
from editfoundry.data_engine.stages.ingest import IngestConfig
from editfoundry.data_engine.stages.instruct import InstructConfig
from editfoundry.data_engine.stages.qualify import QualifyConfig
from editfoundry.data_engine.stages.render import RenderConfig
from editfoundry.data_engine.stages.segment import SegmentConfig
from editfoundry.data_engine.stages.verify import VerifyConfig
from editfoundry.models.registry import check, stack_of

EMBEDDED = {
    "detector": "ssd",
    "saliency": "u2net",
    "segmenter": "u2net",
    "tagger": "efficientnet",
    "scorer": "conse",
    "image_embedder": "clip-int8",
    "text_embedder": "minilm",
    "quality": "brisque",
    "safety": "open-nsfw",
    "reader": "rapidocr",
    "faces": "dlib",
    "paraphraser": "smollm2",
    "inpainter": "patchmatch",
    "style": "arbitrary",
}


class RunConfig(Config):
    """Everything that decides a dataset's bytes.

    models: implementation by role; roles that are not named keep their default. stack: what the models named are.
    grid_area: pixels of the constant-area grid. val_fraction: share of sources (and donors) kept for validation.
    batch_timeout_s: a batch that takes longer is killed and its guilty sample rejected (`worker_timeout`).
    """

    name: str = "editfoundry"
    seed: int = 0
    stack: Literal["embedded", "full"] = "embedded"
    shard_size: int = Field(default=1000, ge=1)
    grid_area: int = Field(default=1024 * 1024, ge=64 * 64)
    jpeg_quality: int = Field(default=92, ge=1, le=100)
    val_fraction: float = Field(default=0.1, ge=0, le=0.5)
    batch_timeout_s: float = Field(default=600, gt=0)
    models: dict[str, str] = Field(default_factory=lambda: dict(EMBEDDED))

    ingest: IngestConfig
    duplicates: DuplicatesConfig = DuplicatesConfig()
    filter: FilterConfig = FilterConfig()
    caption: CaptionConfig = CaptionConfig()
    detect: DetectConfig = DetectConfig()
    segment: SegmentConfig = SegmentConfig()
    qualify: QualifyConfig = QualifyConfig()
    catalogue: CatalogueConfig = CatalogueConfig()
    instruct: InstructConfig = InstructConfig()
    render: RenderConfig = RenderConfig()
    verify: VerifyConfig = VerifyConfig()
    emit: EmitConfig = EmitConfig()

    @field_validator("models")
    @classmethod
    def _known_models(cls, value: dict[str, str]) -> dict[str, str]:
        for role, name in value.items():
            try:
                check(role, name)
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return {**EMBEDDED, **value}

    @model_validator(mode="after")
    def _true_stack(self) -> Self:
        others = {role: name for role, name in self.models.items() if stack_of(role, name) != self.stack}
        if others:
            role, name = min(others.items())
            raise ValueError(f"stack is {self.stack}, but models.{role} is {name}, which is not of that stack")
        return self

    def shared(self) -> dict[str, object]:
        """The settings every stage's fingerprint includes."""
        return {
            key: getattr(self, key)
            for key in ("seed", "stack", "shard_size", "grid_area", "jpeg_quality", "val_fraction")
        }
