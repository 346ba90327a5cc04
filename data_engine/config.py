"""The configuration of a run: one section per stage, plus what all stages share."""

from typing import Any, Literal

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
from editfoundry.data_engine.stages.similar import SimilarConfig
from editfoundry.data_engine.stages.verify import VerifyConfig
from editfoundry.models.registry import DEFAULTS, ModelSpec, check, stack_name


class RunConfig(Config):
    """Everything that decides a dataset's bytes.

    stack: where the models of roles that are not named come from. models: implementation by role, each a name or a
    name with options; null leaves a role out.
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
    models: dict[str, ModelSpec] = Field(default_factory=dict)

    ingest: IngestConfig
    duplicates: DuplicatesConfig = DuplicatesConfig()
    filter: FilterConfig = FilterConfig()
    similar: SimilarConfig = SimilarConfig()
    caption: CaptionConfig = CaptionConfig()
    detect: DetectConfig = DetectConfig()
    segment: SegmentConfig = SegmentConfig()
    qualify: QualifyConfig = QualifyConfig()
    catalogue: CatalogueConfig = CatalogueConfig()
    instruct: InstructConfig = InstructConfig()
    render: RenderConfig = RenderConfig()
    verify: VerifyConfig = VerifyConfig()
    emit: EmitConfig = EmitConfig()

    @model_validator(mode="before")
    @classmethod
    def _models_of_the_stack(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("models", {}), dict):
            return data
        named = {**DEFAULTS.get(data.get("stack", "embedded"), {}), **data.get("models", {})}
        return {**data, "models": {role: spec for role, spec in named.items() if spec is not None}}

    @field_validator("models")
    @classmethod
    def _known_models(cls, value: dict[str, ModelSpec]) -> dict[str, ModelSpec]:
        for role, spec in value.items():
            try:
                check(role, spec)
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return value

    @property
    def made_by(self) -> str:
        """What the dataset says made it: `embedded`, `full`, or `mixed` when models of both work together."""
        return stack_name(self.models)

    def shared(self) -> dict[str, object]:
        """The settings every stage's fingerprint includes."""
        return {
            key: getattr(self, key)
            for key in ("seed", "shard_size", "grid_area", "jpeg_quality", "val_fraction")
        } | {"stack": self.made_by}
