"""A judge's folder: a checkpoint of Qwen2.5-VL and, where it was trained here, what it was trained with."""

from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from editfoundry.core.config import Config
from editfoundry.core.errors import EditFoundryError, UsageError
from editfoundry.core.hashing import canonical_json
from editfoundry.models.judge.types import Head, Order

SETTINGS = "judge.json"
REGRESSION = "regression.safetensors"
DIMENSIONS = 3
"""Outputs of the regression head: one for each dimension of a section, by its place, at most this many."""


class JudgeSettings(Config):
    """What a judge was trained with. head: the one to ask unless told otherwise. heads: all that were trained.

    miniature: its weights were random before; it only shows that the parts work.
    """

    format: Literal[1] = 1
    rubric: str
    rubric_digest: str
    order: Order
    head: Head
    heads: tuple[Head | Literal["ranking", "preference"], ...]
    min_pixels: int
    max_pixels: int
    base: str
    miniature: bool = False


def read_settings(folder: Path) -> JudgeSettings | None:
    """The settings of a judge's folder; None for one that holds a model as it was released.

    Raises EditFoundryError when the file is damaged.
    """
    file = folder / SETTINGS
    if not file.is_file():
        return None
    try:
        return JudgeSettings.model_validate_json(file.read_bytes(), strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise EditFoundryError(f"{file}: damaged ({where}: {first['msg']}); export the judge again") from error


def write_settings(folder: Path, settings: JudgeSettings) -> None:
    """Write them into a folder."""
    (folder / SETTINGS).write_text(canonical_json(settings.model_dump(mode="json")) + "\n", encoding="utf-8")


def read_regression(folder: Path, hidden: int) -> dict[str, Any]:
    """weight [2 * 3, hidden] and bias [2 * 3] of the regression head: three means, then three log-variances.

    Raises UsageError for a judge that was trained without it, EditFoundryError for another model's.
    """
    from safetensors.torch import load_file

    file = folder / REGRESSION
    if not file.is_file():
        raise UsageError(f"{folder}: was trained without a regression head; use --head expected or --head generate")
    tensors: dict[str, Any] = load_file(file)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != {"weight": (2 * DIMENSIONS, hidden), "bias": (2 * DIMENSIONS,)}:
        raise EditFoundryError(f"{file}: not the regression head of this model; export the judge again")
    return tensors
