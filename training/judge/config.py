"""Everything a training run of a judge can be told. One YAML file; every key below can be set by `--set`."""

from typing import Literal

from pydantic import Field, model_validator

from editfoundry.core.config import Config
from editfoundry.core.errors import UsageError
from editfoundry.models.judge.corruption import CANARIES, GRADED
from editfoundry.models.judge.types import Order
from editfoundry.training.config import Checkpoints, Ema, LoraOptions, Optimiser

FACE = 28 * 28
"""Pixels of one token of Qwen2.5-VL."""


class Source(Config):
    """Where judged edits come from.

    kind: `scores`, a JSON file of records with a reply of scores, as the released `all_dataset_gpt_score.json` is
    described; `verification`, a dataset of ours whose edges carry a judge's verdict; `ratings`, a JSONL file of scores
    from people; `preferences`, a JSONL file of choices between two results; `graded`, a dataset of ours whose results
    are corrupted by known degrees. corruptions: which of them `graded` takes, and which canaries; all by default. path:
    that file or dataset. images: the folder that all pictures are under and relative paths start from; the file's own
    by default. columns: name in the file by our name, for those that differ; for a picture also a pattern such as
    `{folder}/{name}.png`; for a dimension of the rubric the label that replies have for it. types: edit type by the
    file's name for it. weight: of its samples in the loss.
    """

    kind: Literal["scores", "verification", "ratings", "preferences", "graded"]
    path: str
    images: str | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    types: dict[str, str] = Field(default_factory=dict)
    weight: float = Field(default=1, gt=0)
    corruptions: tuple[str, ...] | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _corrupted(self) -> "Source":
        if self.corruptions is not None and self.kind != "graded":
            raise ValueError(f"corruptions are for the kind graded, not {self.kind}")
        if unknown := sorted(set(self.corruptions or ()) - {*GRADED, *CANARIES}):
            raise ValueError(f"no corruption {unknown[0]!r:.60}; there are {', '.join((*GRADED, *CANARIES))}")
        return self


class Heads(Config):
    """Weights of the losses; 0 leaves one out.

    generate: cross-entropy of the whole reply. expected: cross-entropy over the scores of the scale at each place where
    one stands, with a fractional score shared between its neighbours. regression: of (mean, log-variance) from the last
    state of the prompt. ranking: Bradley-Terry with ties (Davidson 1970) on the regression's means of two results of
    one instruction. preference: cross-entropy of the choice between two results shown in one prompt.
    """

    generate: float = Field(default=0, ge=0)
    expected: float = Field(default=1, ge=0)
    regression: float = Field(default=0, ge=0)
    ranking: float = Field(default=0, ge=0)
    preference: float = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _any(self) -> "Heads":
        if not any(self.model_dump().values()):
            raise ValueError("every weight is 0, so nothing would be learnt")
        return self


class JudgeData(Config):
    """Which judged edits, and how they are shown.

    holdout: share of the photographs whose edits are kept for validation, chosen by their hash; those of a dataset's
    split `val` are kept besides. min_pixels, max_pixels: pictures with fewer or more are scaled. pack: most tokens of
    one packed row. workers, prefetch: processes that read pictures, and how many rows each is ahead. balance: weight of
    a score against how often it is given: not at all, by 1 / sqrt(count), or by 1 / count, at most 10 times the mean.
    """

    sources: tuple[Source, ...] = Field(min_length=1)
    holdout: float = Field(default=0.1, gt=0, lt=1)
    min_pixels: int = Field(default=4 * FACE, ge=4 * FACE)
    max_pixels: int = Field(default=1_354_752, ge=4 * FACE)
    pack: int = Field(default=8192, ge=64)
    balance: Literal["none", "sqrt", "inverse"] = "sqrt"
    workers: int = Field(default=4, ge=0)
    prefetch: int = Field(default=2, ge=1)

    @model_validator(mode="after")
    def _pixels(self) -> "JudgeData":
        if self.max_pixels < self.min_pixels:
            raise ValueError(f"max_pixels {self.max_pixels} is below min_pixels {self.min_pixels}")
        return self


class JudgeValidation(Config):
    """every: steps between validations (0: none); the weights before the first step are always measured first, so that

    the untuned judge stands beside the tuned one. samples: most edits, drawn by hash.
    """

    every: int = Field(default=200, ge=0)
    samples: int = Field(default=256, ge=2)


class JudgeTrainConfig(Config):
    """A training run of a judge.

    model: a folder of Qwen2.5-VL, or an id of the model store. rubric: as `editfoundry judge score --rubric` takes it.
    order: in which prompts are put together. global_batch: packed rows per optimiser step, over all ranks and
    accumulation steps; a rank takes one row at a time. trains: a LoRA on the language model's linear layers, or all of
    the language model. vision: train the vision tower too. precision: of the forward pass; trained weights are float32.
    """

    name: str
    model: str
    rubric: str = "edit"
    order: Order = "compat"
    seed: int = Field(default=0, ge=0)
    steps: int = Field(ge=1)
    global_batch: int = Field(ge=1)
    data: JudgeData
    heads: Heads = Heads()
    trains: Literal["lora", "language"] = "lora"
    lora: LoraOptions = LoraOptions()
    vision: bool = False
    optimiser: Optimiser = Optimiser(lr=1e-4)
    ema: Ema | None = None
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    gradient_checkpointing: bool = False
    nonfinite: Literal["stop", "skip"] = "stop"
    validation: JudgeValidation = JudgeValidation()
    checkpoints: Checkpoints = Checkpoints()
    trackers: tuple[Literal["tensorboard", "trackio", "wandb"], ...] = ("tensorboard",)

    def accumulation(self, ranks: int) -> int:
        """Accumulation steps on so many ranks. Raises UsageError when they do not divide the global batch."""
        if self.global_batch % ranks:
            raise UsageError(
                f"global_batch {self.global_batch} is not a multiple of {ranks} ranks; change one of them: the unit of "
                "the data's order is the global batch"
            )
        return self.global_batch // ranks
