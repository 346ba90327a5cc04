"""Frame pairs from made videos whose truth is known: who moved, what else did, where the cuts are."""

from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from numpy.typing import NDArray
from source_stages import ingest

from editfoundry.core.errors import ImageError
from editfoundry.core.geometry import Box
from editfoundry.data_engine.framepairs import _cut_to_aspect, _window, select_pairs
from editfoundry.data_engine.video import VideoConfig, container, probe, read_frames, shots

WIDTH, HEIGHT, RATE = 640, 480, 10
Frame = NDArray[np.uint8]
CONFIG = VideoConfig(analysis_width=320)


def scene(seed: int) -> Frame:
    """A textured background with no sharp noise."""
    coarse = np.random.default_rng(seed).integers(70, 180, (24, 32, 3), np.uint8)
    return np.kron(coarse, np.ones((20, 20, 1), np.uint8))[:HEIGHT, :WIDTH]


def put(frame: Frame, x: float, y: float, colour: int = 10, size: tuple[int, int] = (36, 90)) -> None:
    """A standing figure whose left upper corner is at (x, y)."""
    left, top = round(x), round(y)
    frame[top : top + size[1], left : left + size[0]] = colour


def write(path: Path, frames: int, draw: Callable[[int], Frame]) -> Path:
    with av.open(str(path), "w") as output:
        stream = output.add_stream("mpeg4", rate=RATE)
        stream.width, stream.height, stream.bit_rate = WIDTH, HEIGHT, 8_000_000
        stream.thread_count = 1
        for index in range(frames):
            output.mux(stream.encode(av.VideoFrame.from_ndarray(draw(index), format="rgb24")))
        output.mux(stream.encode())
    return path


def one_walker(index: int) -> Frame:
    frame = scene(1).copy()
    put(frame, 100 + 12 * index, 200)
    return frame


def walker_and_stranger(index: int) -> Frame:
    """The same walker on the left; someone else walks slowly on the right."""
    frame = scene(1).copy()
    put(frame, 60 + 8 * index, 200)
    put(frame, 480 + 3 * index, 60, colour=250)
    return frame


def test_the_subject_is_found_where_it_was_and_went(tmp_path: Path) -> None:
    pairs, _ = select_pairs(write(tmp_path / "one.avi", 30, one_walker), CONFIG)
    assert pairs
    for pair in pairs:
        x0, y0 = pair.window.x0, pair.window.y0
        for box, number in ((pair.before, pair.frame_before), (pair.after, pair.frame_after)):
            left = 100 + 12 * number
            assert Box(left - x0, 200 - y0, left + 36 - x0, 290 - y0).iou(box) > 0.6
        assert pair.shift > 1.5
        assert 0.6 <= pair.seconds <= 3.0
        assert pair.seconds == pytest.approx((pair.frame_after - pair.frame_before) / RATE)
        assert pair.first.shape == pair.second.shape
        assert pair.first.shape[0] % 16 == pair.first.shape[1] % 16 == 0


def test_the_pair_is_of_the_video_itself_and_only_the_subject_differs(tmp_path: Path) -> None:
    path = write(tmp_path / "one.avi", 30, one_walker)
    pair = select_pairs(path, CONFIG)[0][0]
    x0, y0, x1, y1 = pair.window.to_ints()
    frames = read_frames(path, {pair.frame_before, pair.frame_after})
    assert np.array_equal(pair.first, frames[pair.frame_before][y0:y1, x0:x1])
    assert np.array_equal(pair.second, frames[pair.frame_after][y0:y1, x0:x1])
    assert pair.elsewhere <= CONFIG.max_elsewhere


def test_another_mover_stays_out_of_the_window(tmp_path: Path) -> None:
    pairs, _ = select_pairs(write(tmp_path / "two.avi", 30, walker_and_stranger), CONFIG)
    assert pairs
    for pair in pairs:
        frames = (pair.frame_before, pair.frame_after)
        walker = [Box(60 + 8 * n, 200, 96 + 8 * n, 290) for n in frames]
        stranger = [Box(480 + 3 * n, 60, 516 + 3 * n, 150) for n in frames]
        shown = [any(pair.window.intersection(box) > 0 for box in boxes) for boxes in (walker, stranger)]
        assert sorted(shown) == [False, True]


def test_moving_camera_gives_no_pair_and_says_so(tmp_path: Path) -> None:
    def panning(index: int) -> Frame:
        return np.roll(one_walker(index), 9 * index, axis=1)

    pairs, failures = select_pairs(write(tmp_path / "pan.avi", 30, panning), CONFIG)
    assert not pairs
    assert {failure.reason for failure in failures} == {"camera_moves"}


def test_shots_end_at_cuts_and_at_the_window_of_samples(tmp_path: Path) -> None:
    def two_shots(index: int) -> Frame:
        return one_walker(index) if index < 20 else np.full((HEIGHT, WIDTH, 3), (200, 40, 40), np.uint8)

    path = write(tmp_path / "cut.avi", 40, two_shots)
    assert [(shot.numbers[0], len(shot.frames)) for shot in shots(path, CONFIG)] == [(0, 10), (20, 10)]
    parts = [len(shot.frames) for shot in shots(path, VideoConfig(window_samples=8))]
    assert parts == [8, 2, 8, 2]
    assert sum(len(shot.frames) for shot in shots(path, VideoConfig(max_frames=10))) == 5


def test_no_pair_crosses_a_cut(tmp_path: Path) -> None:
    def cut(index: int) -> Frame:
        frame = scene(1 if index < 15 else 7).copy()
        put(frame, 100 + 12 * index, 200)
        return frame

    pairs, _ = select_pairs(write(tmp_path / "cut.avi", 30, cut), CONFIG)
    assert all((pair.frame_before < 15) == (pair.frame_after < 15) for pair in pairs)


def test_ingest_gives_one_source_a_pair_with_both_frames(tmp_path: Path) -> None:
    write(tmp_path / "walk.avi", 30, one_walker)
    items, rejects = ingest(tmp_path, grid_area=400_000)
    assert items
    assert {reject.unit for reject in rejects} <= {"candidate"}
    for item in items:
        source = item.record
        assert source.kind == "frames"
        assert source.media_type == "video/x-msvideo"
        assert source.id == f"{source.sha256[:12]}{source.motion.frame_before:04x}"
        assert set(item.blobs) == {"original", "second"}
        assert source.motion.window is not None
    again, _ = ingest(tmp_path, grid_area=400_000)
    assert [(item.record.to_json(), item.blobs) for item in again] == [
        (item.record.to_json(), item.blobs) for item in items
    ]


def test_video_without_a_mover_is_a_reject(tmp_path: Path) -> None:
    write(tmp_path / "still.avi", 20, lambda _: scene(1))
    items, rejects = ingest(tmp_path)
    assert not items
    assert [reject.reason for reject in rejects if reject.unit == "source"] == ["no_frame_pair"]


def test_videos_can_be_switched_off_and_are_limited(tmp_path: Path) -> None:
    path = write(tmp_path / "walk.avi", 10, one_walker)
    assert ingest(tmp_path, ingest={"video": {"enabled": False}})[1][0].reason == "video_disabled"
    with pytest.raises(ImageError, match="exceed") as caught:
        probe(path, max_pixels=1000)
    assert caught.value.reason == "too_many_pixels"
    assert (probe(path, 10**6).width, probe(path, 10**6).height) == (WIDTH, HEIGHT)


def test_truncated_video_is_a_reject_or_gives_what_it_holds(tmp_path: Path) -> None:
    path = write(tmp_path / "cut.avi", 30, one_walker)
    path.write_bytes(path.read_bytes()[:300])
    _, rejects = ingest(tmp_path)
    assert rejects[0].reason in ("bad_video", "no_frame_pair")


def test_container_is_told_by_content() -> None:
    assert container(b"RIFF\0\0\0\0AVI LIST") == ("avi", "video/x-msvideo")
    assert container(b"\0\0\0\x18ftypisom\0\0\0\0") == ("mov", "video/mp4")
    assert container(b"\0\0\0\x18ftypavif\0\0\0\0") is None
    assert container(b"RIFF\0\0\0\0WEBPVP8 ") is None
    assert container(b"#EXTM3U\nhttp://x") is None
    assert container(b"") is None


def test_window_is_the_largest_one_without_other_changes() -> None:
    changed = np.zeros((200, 300), bool)
    before, after = Box(60, 80, 80, 120), Box(120, 80, 140, 120)
    for box in (before, after):
        x0, y0, x1, y1 = box.to_ints()
        changed[y0:y1, x0:x1] = True
    whole = _window(changed, before, after)
    assert whole is not None
    assert (whole.width, whole.height) == (300, 200)
    changed[10:30, 200:240] = True
    window = _window(changed, before, after)
    assert window is not None
    assert window.intersection(Box(200, 10, 240, 30)) == 0
    assert window.contains(before)
    assert window.contains(after)
    changed[90:110, 95:105] = True
    assert _window(changed, before, after) is None


def test_long_windows_are_trimmed_around_the_subject() -> None:
    core = Box(200, 40, 260, 90)
    trimmed = _cut_to_aspect(Box(0, 0, 300, 100), core)
    assert (trimmed.width, trimmed.height) == (160, 100)
    assert trimmed.contains(core)


def test_a_video_on_a_store_gives_what_the_same_file_gives(tmp_path: Path) -> None:
    path = write(tmp_path / "one.avi", 30, one_walker)
    MemoryFileSystem().pipe("/clips/one.avi", path.read_bytes())
    video = {"analysis_width": 320}
    local, _ = ingest(path, ingest={"sources": [{"path": str(path)}], "video": video})
    remote, _ = ingest(path, ingest={"sources": [{"path": "memory://clips"}], "video": video})
    assert local
    assert [item.record.sha256 for item in remote] == [item.record.sha256 for item in local]
    assert [item.record.motion for item in remote] == [item.record.motion for item in local]
    assert remote[0].record.uri.startswith("memory:///clips/one.avi#frames=")
