"""What a run that makes edits and one that imports them have in common: seed, shards, grid, encoding, split, models."""

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from editfoundry.core.config import Config
from editfoundry.core.errors import ConfigError
from editfoundry.models.registry import DEFAULTS, ModelSpec, check, stack_name


class SharedConfig(Config):
    """stack: where the models of roles that are not named come from. models: implementation by role, each a name or a

    name with options; null leaves a role out. grid_area: pixels of the constant-area grid. val_fraction: share of
    sources (and donors) kept for validation. batch_timeout_s: a batch that takes longer is killed and its guilty sample
    rejected (`worker_timeout`).
    """

    default_roles: ClassVar[frozenset[str] | None] = None
    """Roles that a stack's defaults are taken for; None: all it has."""

    name: str
    seed: int = 0
    stack: Literal["embedded", "full"] = "embedded"
    shard_size: int = Field(default=1000, ge=1)
    grid_area: int = Field(default=1024 * 1024, ge=64 * 64)
    jpeg_quality: int = Field(default=92, ge=1, le=100)
    val_fraction: float = Field(default=0.1, ge=0, le=0.5)
    batch_timeout_s: float = Field(default=600, gt=0)
    models: dict[str, ModelSpec] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _models_of_the_stack(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("models", {}), dict):
            return data
        offered = DEFAULTS.get(data.get("stack", "embedded"), {})
        named = {r: n for r, n in offered.items() if cls.default_roles is None or r in cls.default_roles}
        named |= data.get("models", {})
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
        names = ("seed", "shard_size", "grid_area", "jpeg_quality", "val_fraction")
        return {name: getattr(self, name) for name in names}
