"""The configuration of an import: the datasets, how their rows become edges, and the gates those pass."""

from collections import Counter
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from editfoundry.core.config import Config
from editfoundry.data_engine.gates.base import Thresholds, gate_order
from editfoundry.data_engine.imports.presets import with_preset
from editfoundry.data_engine.shared_config import SharedConfig
from editfoundry.data_engine.source_spec import CleanText
from editfoundry.data_engine.stages.emit import EmitConfig
from editfoundry.data_engine.taxonomy import TYPES

GATE_NAMES = ("geometry", "change", "direction", "quality")
ROLES = {"direction": ("scorer",), "quality": ("quality",)}
"""Model roles that a gate of an import asks."""

Layout = Literal["imgedit", "scaleedit", "omniedit", "parquet", "webdataset"]


class Columns(Config):
    """Where a row has what. Of Parquet: column names, `a.b` for a field of a struct. Of WebDataset: what follows the

    key in a member's name (`source.jpg`, `txt`), or `json:a.b` for a value inside a JSON member.
    `target`: the name of the edited object, where the dataset gives one. `licence`, `source_url`: of the row, before
    the dataset's. Empty: there is none.
    """

    source: str = ""
    result: str = ""
    instruction: str = ""
    mask: str = ""
    reference: str = ""
    type: str = ""
    target: str = ""
    licence: str = ""
    source_url: str = ""
    id: str = ""


class Score(Config):
    """A score that a row carries: where (the score's own name, unless said), its range, and the least that is taken."""

    column: str = ""
    low: float
    high: float
    minimum: float | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low < self.high:
            raise ValueError("a score's range is low < high")
        return self


class DatasetSpec(Config):
    """One dataset, or a part of one.

    path: its Parquet files or tars (path, glob or braces, local or an fsspec URL). images: of imgedit, the tars with
    the pictures (parts `*.tar.split.NNN` belong together). masks: of imgedit, where the mask of a picture may lie
    ({folder}, {stem}: of its path; {number}: `_0` of `origin_0.png`).
    types: the dataset's names of edit types to ours. type: of every row, where the dataset has no names.
    infer_types: read the type from the instruction's verb where the dataset says none.
    pick: which of several instructions of a row; draw takes one by the run's seed.
    composite: paste the source back outside of the mask, for datasets whose results differ all over.
    certificate: refuse local edits that change pixels outside of the mask; off stores by how much they do.
    resize_masks: take masks of another size with the picture's shape. max_words: of an instruction.
    """

    layout: Layout
    path: str = Field(min_length=1)
    name: str = Field(default="", pattern=r"[0-9a-z_-]*")
    images: tuple[str, ...] = ()
    masks: tuple[str, ...] = ()
    columns: Columns = Columns()
    types: dict[str, str] = Field(default_factory=dict)
    type: str = ""
    infer_types: bool = False
    pick: Literal["first", "last", "draw"] = "first"
    scores: dict[str, Score] = Field(default_factory=dict)
    licence: CleanText = "unknown"
    source_url: CleanText = ""
    composite: bool = False
    certificate: bool = True
    resize_masks: bool = False
    max_words: int = Field(default=120, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, data: Any) -> Any:
        return with_preset(data) if isinstance(data, dict) else data

    @field_validator("masks")
    @classmethod
    def _patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            try:
                pattern.format(folder="", stem="", number="")
            except (KeyError, IndexError, ValueError) as error:
                raise ValueError(f"{pattern}: the fields are {{folder}}, {{stem}} and {{number}}") from error
        return value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        unknown = sorted({kind for kind in (*self.types.values(), self.type) if kind and kind not in TYPES})
        if unknown:
            raise ValueError(f"types: {', '.join(unknown)} is none of ours; there are: {', '.join(TYPES)}")
        if self.layout == "imgedit":
            if not self.images:
                raise ValueError("images: name the tars that hold the pictures")
            return self
        missing = [name for name in ("source", "result", "instruction") if not getattr(self.columns, name)]
        if missing:
            raise ValueError(f"columns: name the {' and the '.join(missing)}")
        if not (self.columns.type or self.type or self.infer_types):
            raise ValueError("say where the type of a row is: columns.type, type, or infer_types")
        return self

    @property
    def label(self) -> str:
        """The name that ids are made with."""
        return self.name or self.layout


class ObservedMask(Config):
    """How the mask of a local edit is found where the dataset ships none: pixels with a channel that differs by more

    than `threshold` levels of 255, without specks of less than `open` pixels' radius, grown by `dilate` pixels.
    """

    threshold: int = Field(default=24, ge=1, le=254)
    open: float = Field(default=1.5, ge=0)
    dilate: float = Field(default=12, ge=0)


class ImportsConfig(Config):
    """datasets: what to read. max_pixels, max_bytes: larger pictures are rejected before they are decoded or read.

    feather: width in pixels of the blend where a dataset is composited. same_picture: mean difference, in levels, up to
    which a turn's input is taken for an earlier picture of its conversation (datasets store it again).
    """

    datasets: tuple[DatasetSpec, ...] = Field(min_length=1)
    max_pixels: int = Field(default=100_000_000, ge=1)
    max_bytes: int = Field(default=256 * 1024 * 1024, ge=1)
    observed: ObservedMask = ObservedMask()
    feather: float = Field(default=8, ge=0)
    same_picture: float = Field(default=2.0, ge=0)

    @field_validator("datasets")
    @classmethod
    def _told_apart(cls, value: tuple[DatasetSpec, ...]) -> tuple[DatasetSpec, ...]:
        twice = [name for name, count in Counter(spec.label for spec in value).items() if count > 1]
        if twice:
            raise ValueError(f"two datasets go by the name {twice[0]!r}; give each a `name`, ids are made with it")
        return value


class CheckConfig(Config):
    """gates: in the order they run. direction_margin: by how much, in the scorer's units, the wrong picture must be

    ahead before a pair counts as swapped. With ConSE the default caught 69 of 88 swapped pairs of pasted cut-outs and
    took none of the 88 right ones for swapped.
    """

    gates: tuple[str, ...] = ("geometry", "change", "direction")
    thresholds: Thresholds = Field(default_factory=Thresholds)
    direction_margin: float = Field(default=0.12, gt=0)

    @field_validator("gates")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return gate_order(value, GATE_NAMES)


class ImportConfig(SharedConfig):
    """Everything that decides what an import makes; `models` are those of its gates."""

    default_roles: ClassVar[frozenset[str] | None] = frozenset(role for roles in ROLES.values() for role in roles)

    name: str = "import"

    ingest: ImportsConfig
    verify: CheckConfig = CheckConfig()
    emit: EmitConfig = EmitConfig()

    @property
    def render(self) -> ImportsConfig:
        """The settings of the stage that takes the place of `render`."""
        return self.ingest

    @property
    def made_by(self) -> str:
        """What the dataset says made its edits."""
        return "imported"
