"""Frame pairs of a still camera in which one person moved: shot boundaries, moving areas, pair selection."""

from pydantic import Field

from editfoundry.core.config import Config


class VideoConfig(Config):
    """How frame pairs are chosen from a video.

    analysis_width: pixels across at which motion is measured. stride_s: seconds between sampled frames.
    min_gap_s, max_gap_s: time between the two frames. max_pairs: pairs kept per video, the clearest first.
    max_frames: frames read per video. min_area, max_area: the subject's share of the frame.
    min_shift: how far it moved, in its own widths. max_elsewhere: share of the rest that may differ strongly.
    difference: 8-bit step that counts as a strong difference.
    """

    enabled: bool = True
    analysis_width: int = Field(default=768, ge=64)
    stride_s: float = Field(default=0.2, gt=0)
    min_gap_s: float = Field(default=0.6, gt=0)
    max_gap_s: float = Field(default=3.0, gt=0)
    max_pairs: int = Field(default=12, ge=1)
    max_frames: int = Field(default=6000, ge=2)
    min_area: float = Field(default=0.003, gt=0, le=1)
    max_area: float = Field(default=0.15, gt=0, le=1)
    min_shift: float = Field(default=1.5, gt=0)
    max_elsewhere: float = Field(default=0.0015, gt=0, le=1)
    difference: int = Field(default=30, ge=1, le=255)
