"""Everything a training run of the editor can be told. One YAML file; every key below can be set by `--set`."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from editfoundry.core.config import Config, require_known
from editfoundry.core.errors import UsageError
from editfoundry.data_engine.taxonomy import TYPES


class DatasetSpec(Config):
    """A dataset folder (with `index.parquet`). weight: how often its samples are seen per epoch of the mixture."""

    path: str
    weight: float = Field(default=1, ge=0)


class Dropout(Config):
    """Shares of samples trained without a condition, for classifier-free guidance; at most one falls on a sample.

    text: an empty instruction. visual: no SigLIP states and no reference latents (zeros). all: both.
    """

    text: float = Field(default=0.05, ge=0, le=1)
    visual: float = Field(default=0.05, ge=0, le=1)
    all: float = Field(default=0.05, ge=0, le=1)

    @model_validator(mode="after")
    def _sum(self) -> "Dropout":
        if self.text + self.visual + self.all > 1:
            raise ValueError("text + visual + all is more than 1")
        return self


class MaskWeight(Config):
    """Loss weight of the edited area. kind: `log2` is log2(x) + 1 for x = total / edited area, `exp` 2^(sqrt(x) - 1),

    at most 16. normalised: scale so that the mean weight is 1. types_off: edits of the whole image, weighted evenly.
    threshold: grey difference (levels) from which a pixel counts as changed where a sample has no mask.
    unchanged: what to do with a sample without any change: weigh it evenly, or refuse it as a bad sample.
    """

    kind: Literal["log2", "exp", "none"] = "log2"
    normalised: bool = False
    types_off: tuple[str, ...] = ("style", "compose")
    threshold: int = Field(default=18, ge=1, le=255)
    unchanged: Literal["reconstruct", "reject"] = "reconstruct"


class DataConfig(Config):
    """Which samples, in which order, as what.

    types: weight by edit type (1 where unnamed, 0 leaves a type out). size: the square root of the pixels of every
    bucket. aspect_ratios: the buckets, as width / height. history: instructions of the turns before, in conversations.
    workers: processes that read and decode. bad_samples: `stop` at a sample that cannot be used, or `skip` it: it then
    has no weight, and the run lists it. feature_cache: a folder made by `editfoundry train cache`.
    """

    datasets: tuple[DatasetSpec, ...] = Field(min_length=1)
    types: dict[str, float] = Field(default_factory=dict)
    size: int = Field(default=512, ge=32, multiple_of=16)
    aspect_ratios: tuple[Annotated[float, Field(ge=1 / 8, le=8)], ...] = Field(
        default=(0.5, 0.5625, 0.6667, 0.75, 0.8, 1.0, 1.25, 1.3333, 1.5, 1.7778, 2.0), min_length=1
    )
    history: bool = True
    dropout: Dropout = Dropout()
    mask_weight: MaskWeight = MaskWeight()
    workers: int = Field(default=4, ge=0)
    prefetch: int = Field(default=2, ge=1)
    bad_samples: Literal["stop", "skip"] = "stop"
    feature_cache: str | None = None

    @field_validator("types")
    @classmethod
    def _types(cls, value: dict[str, float]) -> dict[str, float]:
        require_known(value, TYPES, "edit types")
        if any(weight < 0 for weight in value.values()):
            raise ValueError("a weight is negative")
        return value


class Optimiser(Config):
    """name: AdamW, its 8-bit form (bitsandbytes) or Prodigy. warmup: steps from 0 to `lr`. clip: most gradient norm."""

    name: Literal["adamw", "adamw8bit", "prodigy"] = "adamw"
    lr: float = Field(default=1e-3, gt=0)
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = Field(default=0, ge=0)
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    warmup: int = Field(default=0, ge=0)
    clip: float = Field(default=1.0, gt=0)


class LoraOptions(Config):
    """A LoRA on the modules that stage 2 trains, instead of their weights."""

    rank: int = Field(default=64, ge=1)
    alpha: float = Field(default=64, gt=0)


class Ema(Config):
    """Exponential moving average, in fp32, of the trained parameters."""

    decay: float = Field(default=0.999, gt=0, lt=1)


class Timesteps(Config):
    """u = sigmoid(N(mean, std)), then shifted by mu, linear in image tokens from (256, low_mu) to (4096, high_mu)."""

    mean: float = 0.0
    std: float = Field(default=1.0, gt=0)
    low_mu: float = 0.5
    high_mu: float = 1.15


class Validation(Config):
    """every: steps between validations, 0 for none. samples: from the split `val` (or the first of `train`, and said

    so). sigmas: the fixed noise levels of the validation loss. grid: samples whose edits are generated and shown.
    steps, guidance: of the sampler.
    """

    every: int = Field(default=500, ge=0)
    samples: int = Field(default=64, ge=1)
    sigmas: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(default=(0.1, 0.3, 0.5, 0.7, 0.9), min_length=1)
    grid: int = Field(default=4, ge=0)
    steps: int = Field(default=20, ge=1)
    guidance: float = Field(default=3.5, ge=0)


class Checkpoints(Config):
    """every: steps between checkpoints (the last step always has one). keep: the newest that stay."""

    every: int = Field(default=500, ge=1)
    keep: int = Field(default=3, ge=1)


class TrainConfig(Config):
    """One stage of training.

    model: the folder that `init-editor` or `export` made. stage: `connector` trains the connector alone; `joint` both
    connectors and FLUX's image branch; `full` all of connectors and FLUX. global_batch: samples per optimiser step,
    over all ranks and accumulation steps. micro_batch: samples of one forward pass on one rank. precision: of the
    forward pass; trained weights stay float32.
    frozen: how frozen weights are stored; `auto` as the forward pass computes.
    nonfinite: what to do at a loss or gradient that is not finite.
    trackers: of accelerate (`tensorboard`, `trackio`, `wandb`).
    """

    name: str
    model: str
    stage: Literal["connector", "joint", "full"]
    seed: int = Field(default=0, ge=0)
    steps: int = Field(ge=1)
    global_batch: int = Field(ge=1)
    micro_batch: int = Field(ge=1)
    data: DataConfig
    optimiser: Optimiser = Optimiser()
    lora: LoraOptions | None = None
    ema: Ema | None = None
    timesteps: Timesteps = Timesteps()
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    frozen: Literal["auto", "float32", "bfloat16", "float8"] = "auto"
    gradient_checkpointing: bool = False
    compile: bool = False
    nonfinite: Literal["stop", "skip"] = "stop"
    validation: Validation = Validation()
    checkpoints: Checkpoints = Checkpoints()
    trackers: tuple[Literal["tensorboard", "trackio", "wandb"], ...] = ("tensorboard",)

    @model_validator(mode="after")
    def _consistent(self) -> "TrainConfig":
        if self.global_batch % self.micro_batch:
            raise ValueError(f"global_batch {self.global_batch} is not a multiple of micro_batch {self.micro_batch}")
        if self.lora and self.stage != "joint":
            raise ValueError(f"lora: is on what stage `joint` trains; leave it out of stage `{self.stage}`")
        return self

    def accumulation(self, ranks: int) -> int:
        """Accumulation steps on so many ranks. Raises UsageError when they do not divide the global batch."""
        if self.global_batch % (self.micro_batch * ranks):
            raise UsageError(
                f"global_batch {self.global_batch} is not a multiple of {ranks} ranks x micro_batch "
                f"{self.micro_batch}; change one of them: the unit of the data's order is the global batch"
            )
        return self.global_batch // (self.micro_batch * ranks)
