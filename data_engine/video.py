"""Reading videos through PyAV: which container it is, sampled frames in still shots, and single frames by number."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import av
import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from editfoundry.core.config import Config
from editfoundry.core.errors import ImageError
from editfoundry.data_engine.readers.storage import File

Frame = NDArray[np.uint8]

# (offset, bytes, FFmpeg demuxer, media type). The demuxer is named so that no playlist or text demuxer ever runs.
_CONTAINERS = (
    (8, b"AVI ", "avi", "video/x-msvideo"),
    (4, b"ftyp", "mov", "video/mp4"),
    (0, b"\x1a\x45\xdf\xa3", "matroska", "video/x-matroska"),
    (0, b"OggS", "ogg", "video/ogg"),
    (0, b"\x00\x00\x01\xba", "mpeg", "video/mpeg"),
    (0, b"FLV\x01", "flv", "video/x-flv"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "asf", "video/x-ms-asf"),
)
_HISTOGRAM_BINS = (8, 8, 8)


class VideoConfig(Config):
    """How frame pairs are chosen from a video.

    stride_s: seconds between sampled frames. analysis_width: pixels across at which motion is measured.
    max_frames: frames read per video, from its start. window_samples: samples looked at together, which bounds memory.
    cut: correlation of colour histograms below which two samples belong to different shots.
    max_moving: share of the frame that may differ from the background before the camera counts as moving.
    difference: 8-bit step that counts as a strong difference.
    min_gap_s, max_gap_s: time between the two frames. min_shift: how far the subject moves, in its own widths.
    min_area, max_area: the subject's share of the view. max_elsewhere: share of the rest of the view that may differ
    strongly. min_side: least width and height of the view; a view narrower than the frame leaves out other movers.
    max_pairs: pairs kept per video, the largest views first.
    """

    enabled: bool = True
    stride_s: float = Field(default=0.2, gt=0)
    analysis_width: int = Field(default=480, ge=64)
    max_frames: int = Field(default=6000, ge=2, le=0xFFFF)
    window_samples: int = Field(default=200, ge=8)
    cut: float = Field(default=0.6, ge=0, le=1)
    max_moving: float = Field(default=0.25, gt=0, le=1)
    difference: int = Field(default=30, ge=1, le=255)
    min_gap_s: float = Field(default=0.6, gt=0)
    max_gap_s: float = Field(default=3.0, gt=0)
    min_shift: float = Field(default=1.5, gt=0)
    min_area: float = Field(default=0.008, gt=0, le=1)
    max_area: float = Field(default=0.15, gt=0, le=1)
    max_elsewhere: float = Field(default=0.0015, gt=0, le=1)
    min_side: int = Field(default=256, ge=64)
    max_pairs: int = Field(default=12, ge=1)


@dataclass(frozen=True)
class Shot:
    """Consecutive samples of one shot: RGB frames [H, W, 3] at the analysis size, their frame numbers and seconds.

    `scale` is analysis pixels per video pixel.
    """

    frames: Sequence[Frame]
    numbers: Sequence[int]
    seconds: Sequence[float]
    scale: float


@dataclass(frozen=True)
class VideoInfo:
    """Size of the frames in pixels and the container's media type."""

    width: int
    height: int
    media_type: str


def container(head: bytes) -> tuple[str, str] | None:
    """(demuxer, media type) of a video file from its first 16 bytes, None for anything else.

    HEIF and AVIF stills share the MP4 signature and are told apart by their brand.
    """
    if head[4:8] == b"ftyp" and head[8:12] in (b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1"):
        return None
    return next(((demuxer, media) for at, magic, demuxer, media in _CONTAINERS if head[at:].startswith(magic)), None)


def probe(path: File, max_pixels: int) -> VideoInfo:
    """Frame size without decoding. Raises ImageError `bad_video` or `too_many_pixels`."""
    with _opened(path) as (stream, media_type):
        width, height = stream.codec_context.width, stream.codec_context.height
        if width <= 0 or height <= 0:
            raise ImageError("bad_video", f"{path.name}: the video stream has no frame size")
        if width * height > max_pixels:
            raise ImageError("too_many_pixels", f"{path.name}: frames of {width}x{height} exceed {max_pixels} pixels")
        return VideoInfo(width, height, media_type)


def shots(path: File, config: VideoConfig) -> Iterator[Shot]:
    """The sampled frames of each shot, in order; a long shot comes in parts of `window_samples`."""
    frames: list[Frame] = []
    numbers: list[int] = []
    seconds: list[float] = []
    histogram: NDArray[np.float32] | None = None
    for number, second, frame, scale in _samples(path, config):
        colours = _histogram(frame)
        is_cut = histogram is not None and cv2.compareHist(histogram, colours, cv2.HISTCMP_CORREL) < config.cut
        if frames and (is_cut or len(frames) >= config.window_samples):
            yield Shot(frames, numbers, seconds, scale)
            frames, numbers, seconds = [], [], []
        histogram = colours
        frames.append(frame)
        numbers.append(number)
        seconds.append(second)
    if frames:
        yield Shot(frames, numbers, seconds, scale)


def read_frames(path: File, numbers: set[int]) -> dict[int, Frame]:
    """The frames of those numbers (counted from 0 in decoding order), RGB [H, W, 3]. ImageError `bad_video`."""
    found: dict[int, Frame] = {}
    with _opened(path) as (stream, _):
        for number, frame in enumerate(stream.container.decode(stream)):
            if number in numbers:
                found[number] = frame.to_ndarray(format="rgb24")
            if len(found) == len(numbers):
                break
    return found


def _samples(path: File, config: VideoConfig) -> Iterator[tuple[int, float, Frame, float]]:
    """(number, seconds, RGB frame at the analysis size, scale) every `stride_s`. The small copy is for looking only."""
    with _opened(path) as (stream, _):
        rate = float(stream.average_rate or 25)
        due = 0.0
        for number, frame in enumerate(stream.container.decode(stream)):
            if number >= config.max_frames:
                break
            second = frame.time if frame.time is not None else number / rate
            if second + 1e-6 >= due:
                due = second + config.stride_s
                scale = min(1.0, config.analysis_width / frame.width)
                width, height = max(1, round(frame.width * scale)), max(1, round(frame.height * scale))
                small = frame.reformat(width, height, "rgb24", interpolation="AREA", threads=1)
                yield number, second, small.to_ndarray(), scale


@contextmanager
def _opened(path: File) -> Iterator[tuple[av.VideoStream, str]]:
    with path.open("rb") as file:
        known = container(file.read(16))
        if known is None:
            raise ImageError("not_an_image", f"{path.name}: neither a known image nor a known video container")
        file.seek(0)
        try:
            with av.open(file, format=known[0]) as opened:
                if not opened.streams.video:
                    raise ImageError("bad_video", f"{path.name}: a {known[1]} file without a video stream")
                stream = opened.streams.video[0]
                stream.thread_count = 1
                yield stream, known[1]
        except (av.FFmpegError, ValueError) as error:
            raise ImageError("bad_video", f"{path.name}: the video cannot be decoded: {error}") from error


def _histogram(frame: Frame) -> NDArray[np.float32]:
    hsv = cv2.cvtColor(frame, cv2.COLOR_RGB2HSV)
    counts = cv2.calcHist([hsv], [0, 1, 2], None, list(_HISTOGRAM_BINS), [0, 180, 0, 256, 0, 256])
    return np.asarray(counts, np.float32).ravel()
