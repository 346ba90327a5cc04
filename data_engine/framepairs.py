"""Choosing frame pairs: one subject moved, and in the part of the frame that is shown nothing else did.

A still camera's median is the background, what differs from it moves. Movers are tracked from sample to sample, so both
ends of a pair are the same subject. Other movers would contradict an instruction about one subject: the pair shows the
largest window of the frame that holds the subject and none of them. Pixels are never blended.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from editfoundry.core.geometry import Box
from editfoundry.data_engine.readers.storage import File
from editfoundry.data_engine.video import Frame, Shot, VideoConfig, read_frames, shots

BACKGROUND_SAMPLES = 40
MIN_BLOB = 0.0008
MIN_TRACK = 3
MARGIN = 0.15
SNAP = 16
MAX_VIEW_ASPECT = 1.6
UPRIGHT = (1.7, 4.5)
SAME_SIZE = 1.6
SPECK = 8
MAX_OCCUPIED = 0.02


@dataclass(frozen=True)
class FramePair:
    """Two frames of one shot, cropped alike. `window` is in pixels of the video, `before` and `after` of the window.

    `shift` is the subject's way in its own widths, `elsewhere` the share of the rest that differs strongly.
    """

    frame_before: int
    frame_after: int
    seconds: float
    window: Box
    before: Box
    after: Box
    shift: float
    elsewhere: float
    first: Frame
    second: Frame


@dataclass(frozen=True)
class Failure:
    """Why a shot or a moving subject gave no pair; `frame` is where it starts."""

    frame: int
    reason: str
    detail: str


@dataclass(frozen=True)
class _Candidate:
    start: int
    end: int
    before: Box
    after: Box
    window: Box
    shift: float


Track = list[tuple[int, Box]]


def select_pairs(path: File, config: VideoConfig) -> tuple[list[FramePair], list[Failure]]:
    """Up to `max_pairs` pairs of the video at `path`, in time order, and what failed.

    Raises ImageError `bad_video` when the file cannot be decoded.
    """
    chosen: list[tuple[Shot, _Candidate]] = []
    failures: list[Failure] = []
    for shot in shots(path, config):
        candidates, failed = _shot_candidates(shot, config)
        light = Shot((), shot.numbers, shot.seconds, shot.scale)
        chosen += [(light, candidate) for candidate in candidates]
        failures += failed
    chosen.sort(key=lambda pair: (-pair[1].window.area, pair[0].numbers[pair[1].start]))
    kept = chosen[: 2 * config.max_pairs]
    frames = read_frames(path, {shot.numbers[i] for shot, c in kept for i in (c.start, c.end)})
    pairs: list[FramePair] = []
    for shot, candidate in kept:
        result = _finish(shot, candidate, frames, config)
        if isinstance(result, Failure):
            failures.append(result)
        elif len(pairs) < config.max_pairs:
            pairs.append(result)
        else:
            failures.append(Failure(result.frame_before, "enough_pairs", f"{config.max_pairs} larger views were kept"))
    failures += [
        Failure(shot.numbers[c.start], "enough_pairs", f"{config.max_pairs} larger views were kept")
        for shot, c in chosen[len(kept) :]
    ]
    return sorted(pairs, key=lambda p: p.frame_before), sorted(failures, key=lambda f: (f.frame, f.reason))


def _shot_candidates(shot: Shot, config: VideoConfig) -> tuple[list[_Candidate], list[Failure]]:
    first = shot.numbers[0]
    if shot.seconds[-1] - shot.seconds[0] < config.min_gap_s:
        return [], [Failure(first, "shot_too_short", f"{len(shot.frames)} sampled frames")]
    step = max(1, len(shot.frames) // BACKGROUND_SAMPLES)
    background = np.median(np.stack(shot.frames[::step]), axis=0).astype(np.uint8)
    moving = [_strong(frame, background, config.difference) for frame in shot.frames]
    share = float(np.median([mask.mean() for mask in moving]))
    if share > config.max_moving:
        return [], [Failure(first, "camera_moves", f"{share:.0%} of the frame differs from the background")]
    tracks = _tracks([_blobs(mask) for mask in moving])
    candidates: list[_Candidate] = []
    failures: list[Failure] = []
    for track in tracks:
        found = _track_candidates(shot, moving, track, config)
        candidates += found
        if not found:
            detail = f"it moved for {len(track)} samples, never alone and whole in {config.min_side} pixels"
            failures.append(Failure(shot.numbers[track[0][0]], "subject_not_alone", detail))
    return candidates, failures


def _strong(a: Frame, b: Frame, difference: int) -> NDArray[np.bool_]:
    """Pixels that differ by more than `difference` in some channel, without single-pixel noise."""
    red, green, blue = cv2.split(cv2.absdiff(a, b))
    mask = (cv2.max(cv2.max(red, green), blue) > difference).astype(np.uint8)
    opened: NDArray[np.bool_] = cv2.morphologyEx(mask, cv2.MORPH_OPEN, np.ones((2, 2), np.uint8)).astype(np.bool_)
    return opened


def _boxes(mask: NDArray[np.bool_], min_pixels: float) -> list[Box]:
    _, _, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8))
    return [Box(x, y, x + w, y + h) for x, y, w, h, area in stats[1:].tolist() if area >= min_pixels]


def _blobs(moving: NDArray[np.bool_]) -> list[Box]:
    """Boxes of the things that differ from the background; parts a few pixels apart are one thing."""
    reach = max(3, round(moving.shape[1] / 80)) | 1
    closed = cv2.morphologyEx(moving.astype(np.uint8), cv2.MORPH_CLOSE, np.ones((reach, reach), np.uint8))
    return _boxes(closed.astype(np.bool_), MIN_BLOB * moving.size)


def _tracks(blobs: Sequence[list[Box]]) -> list[Track]:
    """Chains of boxes that are each other's best overlap in neighbouring samples and keep their size."""
    open_tracks: list[Track] = []
    tracks: list[Track] = []
    for index, boxes in enumerate(blobs):
        continued: list[Track] = []
        for box in boxes:
            match = max(open_tracks, key=lambda track: track[-1][1].iou(box), default=None)
            if match is not None and _follows(match[-1][1], box, boxes) and match not in continued:
                match.append((index, box))
                continued.append(match)
            else:
                fresh: Track = [(index, box)]
                tracks.append(fresh)
                continued.append(fresh)
        open_tracks = continued
    return [track for track in tracks if len(track) >= MIN_TRACK]


def _follows(last: Box, box: Box, boxes: Sequence[Box]) -> bool:
    overlap = last.iou(box)
    ratio = max(last.area, box.area) / min(last.area, box.area)
    return overlap > 0.1 and ratio < SAME_SIZE and all(last.iou(other) <= overlap for other in boxes)


def _track_candidates(
    shot: Shot, moving: Sequence[NDArray[np.bool_]], track: Track, config: VideoConfig
) -> list[_Candidate]:
    """The best pairs of one subject that do not overlap in time, largest views first."""
    height, width = shot.frames[0].shape[:2]
    found = []
    for start, end, shift in _moves(shot, track, config):
        (i, before), (j, after) = track[start], track[end]
        if _occupied(moving[j], before, after) or _occupied(moving[i], after, before):
            continue
        window = _window(_strong(shot.frames[i], shot.frames[j], config.difference), before, after)
        sides = None if window is None else (window.width / shot.scale, window.height / shot.scale)
        if window is None or sides is None or min(sides) < config.min_side + SNAP:
            continue
        if window.clip(width, height) == window:
            found.append(_Candidate(i, j, before, after, window, shift))
    found.sort(key=lambda c: (-round(c.window.area * c.shift), c.start, c.end))
    kept: list[_Candidate] = []
    for candidate in found:
        if all(candidate.end <= other.start or candidate.start >= other.end for other in kept):
            kept.append(candidate)
    return kept


def _occupied(moving: NDArray[np.bool_], place: Box, subject: Box) -> bool:
    """Whether something other than the subject moves at `place`, where the subject is not at that time."""
    height, width = moving.shape
    rest = moving.copy()
    x0, y0, x1, y1 = _grown(subject, width, height).to_ints()
    rest[y0:y1, x0:x1] = False
    x0, y0, x1, y1 = _grown(place, width, height).to_ints()
    return bool(rest[y0:y1, x0:x1].mean() > MAX_OCCUPIED)


def _moves(shot: Shot, track: Track, config: VideoConfig) -> Iterator[tuple[int, int, float]]:
    """(start, end, shift) within the track: upright, whole, same size, far enough apart in time and place.

    Per start the nearest and the farthest end in time, to bound the work.
    """
    height, width = shot.frames[0].shape[:2]
    whole = [_is_upright(box) and _is_inside(box, width, height) for _, box in track]
    for start, (i, before) in enumerate(track):
        ends: list[tuple[int, float]] = []
        for end in range(start + 1, len(track)):
            j, after = track[end]
            seconds = shot.seconds[j] - shot.seconds[i]
            if seconds > config.max_gap_s:
                break
            shift = _shift(before, after)
            ratio = max(before.area, after.area) / min(before.area, after.area)
            if seconds >= config.min_gap_s and shift > config.min_shift and ratio < SAME_SIZE and whole[end]:
                ends.append((end, shift))
        if whole[start]:
            yield from ((start, end, shift) for end, shift in sorted({*ends[:1], *ends[-1:]}))


def _is_upright(box: Box) -> bool:
    return UPRIGHT[0] <= box.height / box.width <= UPRIGHT[1]


def _is_inside(box: Box, width: int, height: int) -> bool:
    return box.x0 >= 2 and box.y0 >= 2 and box.x1 <= width - 2 and box.y1 <= height - 2


def _shift(before: Box, after: Box) -> float:
    (ax, ay), (bx, by) = before.center, after.center
    return float(np.hypot(bx - ax, by - ay)) / ((before.width + after.width) / 2)


def _window(changed: NDArray[np.bool_], before: Box, after: Box) -> Box | None:
    """The largest rectangle around both boxes that no other changed area reaches into; None when there is none."""
    height, width = changed.shape
    own = [_grown(box, width, height) for box in (before, after)]
    rest = changed.copy()
    for box in own:
        x0, y0, x1, y1 = box.to_ints()
        rest[y0:y1, x0:x1] = False
    core = Box(min(b.x0 for b in own), min(b.y0 for b in own), max(b.x1 for b in own), max(b.y1 for b in own))
    obstacles = _boxes(rest, SPECK)
    if any(core.intersection(box) > 0 for box in obstacles):
        return None
    lefts = sorted({0.0, *(b.x1 for b in obstacles if b.x1 <= core.x0)})
    rights = sorted({float(width), *(b.x0 for b in obstacles if b.x0 >= core.x1)})
    options = [_column(core, obstacles, left, right, height) for left in lefts for right in rights]
    fitting = [_cut_to_aspect(box, core) for box in options if box is not None]
    return max(fitting, key=lambda b: (b.area, -b.x0, -b.y0), default=None)


def _grown(box: Box, width: int, height: int) -> Box:
    grown = box.expand(MARGIN).clip(width, height)
    assert grown is not None, "a blob lies inside its frame"
    return grown


def _column(core: Box, obstacles: Sequence[Box], left: float, right: float, height: int) -> Box | None:
    """The tallest box over [left, right] around `core` without obstacles."""
    inside = [b for b in obstacles if b.x0 < right and b.x1 > left]
    if any(b.y0 < core.y1 and b.y1 > core.y0 for b in inside):
        return None
    top = max((b.y1 for b in inside if b.y1 <= core.y0), default=0.0)
    bottom = min((b.y0 for b in inside if b.y0 >= core.y1), default=float(height))
    return Box(left, top, right, bottom)


def _cut_to_aspect(box: Box, core: Box) -> Box:
    """Trim the longer side to MAX_VIEW_ASPECT, keeping `core` inside and as central as it can be."""
    x0, x1 = _trim(box.x0, box.x1, core.x0, core.x1, box.height * MAX_VIEW_ASPECT)
    y0, y1 = _trim(box.y0, box.y1, core.y0, core.y1, box.width * MAX_VIEW_ASPECT)
    return Box(x0, y0, x1, y1)


def _trim(low: float, high: float, core_low: float, core_high: float, length: float) -> tuple[float, float]:
    length = max(length, core_high - core_low)
    if high - low <= length:
        return low, high
    start = min(max((core_low + core_high - length) / 2, low), high - length)
    return start, start + length


def _finish(shot: Shot, c: _Candidate, frames: dict[int, Frame], config: VideoConfig) -> FramePair | Failure:
    """Crop at full size to sides that are multiples of 16, and check there what the analysis found."""
    numbers = shot.numbers[c.start], shot.numbers[c.end]
    window, before, after = (
        Box(*(value / shot.scale for value in box.as_list())) for box in (c.window, c.before, c.after)
    )
    window = _snap(window, before, after)
    x0, y0, x1, y1 = window.to_ints()
    first, second = (np.ascontiguousarray(frames[number][y0:y1, x0:x1]) for number in numbers)
    before, after = (Box(b.x0 - x0, b.y0 - y0, b.x1 - x0, b.y1 - y0) for b in (before, after))
    changed = _strong(first, second, config.difference)
    for box in (before, after):
        bx0, by0, bx1, by1 = _grown(box, x1 - x0, y1 - y0).to_ints()
        changed[by0:by1, bx0:bx1] = False
    elsewhere = float(changed.mean())
    if elsewhere > config.max_elsewhere:
        return Failure(numbers[0], "background_changes", f"{elsewhere:.2%} of the rest of the view differs")
    area = max(before.area, after.area) / window.area
    if not config.min_area <= area <= config.max_area:
        return Failure(numbers[0], "subject_size", f"the subject's box is {area:.1%} of the view")
    seconds = shot.seconds[c.end] - shot.seconds[c.start]
    return FramePair(*numbers, seconds, window, before, after, c.shift, elsewhere, first, second)


def _snap(window: Box, before: Box, after: Box) -> Box:
    """Shrink to whole pixels and sides that are multiples of 16, cutting where the subject is farther away."""
    x0, y0 = int(np.ceil(window.x0)), int(np.ceil(window.y0))
    x1, y1 = int(window.x1), int(window.y1)
    spare_x, spare_y = (x1 - x0) % SNAP, (y1 - y0) % SNAP
    x0 += spare_x if min(before.x0, after.x0) - x0 > x1 - max(before.x1, after.x1) else 0
    y0 += spare_y if min(before.y0, after.y0) - y0 > y1 - max(before.y1, after.y1) else 0
    return Box(x0, y0, x0 + (x1 - x0) // SNAP * SNAP, y0 + (y1 - y0) // SNAP * SNAP)
