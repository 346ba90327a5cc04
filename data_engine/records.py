"""The rows that flow through the engine.

A `Source` is one photograph (or one frame pair of a video) from ingest to qualify; instruct makes it into `Sample`s,
one conversation graph each: node 0 is the starting image, node *i* the result of turn *i* (counted from 1).
Boxes are [x0, y0, x1, y1] in pixels of the source's grid; masks are COCO compressed RLE on the grid.
"""

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from editfoundry.core.hashing import canonical_json
from editfoundry.core.text import one_line

BoxList = tuple[float, float, float, float]
ZoneKind = Literal["surface", "ground", "water", "sky", "macro"]
Split = Literal["train", "val"]
MAX_DETAIL = 2000


Origin = Literal["photograph", "donor", "video", "generated", "imported"]
"""Where an edit's pixels come from: what the photograph holds, a placed cut-out, a video's frames, a generative model,

or somebody else's dataset.
"""


class Record(BaseModel):
    """Base of all rows: unknown fields are errors, values never change, JSON is canonical."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def to_json(self) -> str:
        return canonical_json(self.model_dump(mode="json"))


class Reject(Record):
    """Why something went no further. `unit` says what it was; `detail` is for people, `reason` is a stable code.

    A detail may quote data, servers and models, so it is held to one printable line.
    """

    stage: str
    id: str
    reason: str
    detail: Annotated[str, AfterValidator(partial(one_line, most=MAX_DETAIL))] = ""
    unit: Literal["source", "region", "candidate", "sample"] = "source"
    type: str = ""
    score: float | None = None
    source_sha256: str = ""
    donors: tuple[str, ...] = ()


class Zone(Record):
    """A place where an object could stand. `width_m`: visible metres across the image at the zone's depth."""

    kind: ZoneKind
    box: BoxList
    width_m: float
    origin: Literal["manifest", "estimated"]


class Caption(Record):
    """What the captioner says. `objects` and `backgrounds` are exact substrings of `text`; `summary` ≤ 15 words."""

    text: str
    summary: str
    objects: tuple[str, ...] = ()
    backgrounds: tuple[str, ...] = ()


class Region(Record):
    """An object or background area. Scores keep their owners' names; None means that model was not asked.

    `scorer_score` is the text-image score of the label on its crop, `aesthetic` the aesthetic score of the crop.
    """

    id: str
    label: str
    kind: Literal["object", "background"]
    box: BoxList
    detector: str
    detector_score: float
    tagger_score: float | None = None
    segmenter_score: float | None = None
    scorer_score: float | None = None
    aesthetic: float | None = None
    mask: dict[str, Any] | None = None
    area: float = 0.0
    box_area: float = 0.0
    parent: str | None = None
    qualified: bool = False


class Motion(Record):
    """Where the subject of a frame pair was and went: boxes on the grid of both frames, seconds between them.

    `window`: the part of the video's frames that the pair shows, in pixels of the video; None is all of it.
    """

    before: BoxList
    after: BoxList
    seconds: float
    frame_before: int
    frame_after: int
    window: BoxList | None = None


class Source(Record):
    """One photograph, or one frame pair of a video. Filled in from ingest to qualify.

    `phash_crops`: perceptual hashes of nine overlapping crops, which twins and crops of one picture share.
    """

    id: str
    sha256: str
    uri: str
    kind: Literal["photograph", "frames"] = "photograph"
    media_type: str = ""
    width: int = 0
    height: int = 0
    licence: str = "unknown"
    source_url: str = ""
    text: str = ""
    split: Split = "train"
    phash: str = ""
    phash_crops: tuple[str, ...] = ()
    grid: tuple[int, int] = (0, 0)
    scores: dict[str, float] = Field(default_factory=dict)
    zones: tuple[Zone, ...] = ()
    caption: Caption | None = None
    regions: tuple[Region, ...] = ()
    counts: dict[str, int] = Field(default_factory=dict)
    protected: tuple[BoxList, ...] = ()
    has_text: bool = False
    faces: int = 0
    motion: Motion | None = None


class Donor(Record):
    """An entry of the catalogue: an alpha cut-out, a style reference, or a photograph usable as background.

    `height_m` is the real height of the thing in metres, `width`/`height` the pixels of its alpha's bounding box,
    `shard` the ingest shard that holds a background's pixels (cut-outs and styles live in the catalogue's own tar).
    """

    sha256: str
    kind: Literal["cutout", "style", "background"]
    label: str
    category: str = ""
    zones: tuple[ZoneKind, ...] = ()
    height_m: float = 0.0
    width: int = 0
    height: int = 0
    colour: str = ""
    licence: str = "unknown"
    source_url: str = ""
    split: Split = "train"
    shard: int | None = None
    source_id: str = ""

    @property
    def id(self) -> str:
        return self.sha256


class Placement(Record):
    """A donor put into the scene. `object` is its name in the scene; `box` is the alpha's bounding box on the grid."""

    object: str
    donor: str
    label: str
    box: BoxList
    zone: ZoneKind
    flip: bool = False


class Turn(Record):
    """One edit. `parent` is the node it starts from; `target` an object or region name; `operation` is the recipe's."""

    index: int
    type: str
    parent: int
    instruction: str
    target: str = ""
    target_label: str = ""
    result_phrase: str = ""
    operation: dict[str, Any] = Field(default_factory=dict)
    origin: Origin = "donor"
    worded_by: Literal["template", "paraphraser", "writer", "dataset"] = "template"


class Edge(Record):
    """What rendering one turn gave. Node and mask names are tar members; hashes are of the stored bytes.

    render: how it was made where that is not plain from the recipe (renderer, candidates, which was chosen and why).
    """

    turn: int
    source_node: str
    result_node: str
    source_sha256: str
    result_sha256: str
    mask: str = ""
    mask_fraction: float = 1.0
    reference: str = ""
    gates: dict[str, int | float | str | bool | None] = Field(default_factory=dict)
    render: dict[str, int | float | str | bool | None] = Field(default_factory=dict)


class Sample(Record):
    """One conversation graph (a single edit is a graph of one turn)."""

    id: str
    kind: Literal["single", "content_memory", "content_understanding", "version_backtracking"]
    source: Source
    premise: str = ""
    initial: tuple[Placement, ...] = ()
    turns: tuple[Turn, ...]
    edges: tuple[Edge, ...] = ()
    donors: tuple[str, ...] = ()
    split: Split = "train"

    def reject(self, stage: str, reason: str, detail: str, score: float | None = None) -> Reject:
        """The reject that ends this sample at a stage."""
        return Reject(
            stage=stage,
            id=self.id,
            reason=reason,
            detail=detail,
            unit="sample",
            type=self.turns[0].type if self.kind == "single" else self.kind,
            score=score,
            source_sha256=self.source.sha256,
            donors=self.donors,
        )
