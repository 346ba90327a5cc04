"""What an instruction says comes and goes, and pairs whose source and result are swapped."""

from pathlib import Path
from typing import Any

import import_data as tiny
import numpy as np
import pytest

from editfoundry.core.geometry import Grid, Mask, resize, to_grid
from editfoundry.core.images import decode, decode_rgba
from editfoundry.data_engine.direction import Reading, direction, noun_phrase, read_instruction
from editfoundry.data_engine.gates.base import EdgeView, GateFailed
from editfoundry.data_engine.records import Edge, Sample, Source, Turn
from editfoundry.data_engine.taxonomy import TYPES
from editfoundry.photographs import photographs_home

PHOTOGRAPH, CUTOUTS = "photographs/tree.jpg", {"basketball": "basketball", "elephant": "elephant"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Remove the group of people snowshoeing in winter clothing.",
            Reading("remove", gone="group of people snowshoeing"),
        ),
        ("add a green vest in the middle-right area", Reading("add", come="green vest")),
        ("Please replace the old car by two red bikes.", Reading("replace", "old car", "red bikes")),
        ("Turn the dog into a cat", Reading("replace", "dog", "cat")),
        ("Put a vase where the cup on the left is.", Reading("replace", "cup", "vase")),
        ("Swap it for a lamp.", Reading("replace", come="lamp")),
        ("Get rid of the man, who is waving", Reading("remove", gone="man")),
        ("I do not want it any more; erase it.", Reading("remove")),
        ("withdraw the previous round of modifications, adjust the vest in round1", Reading("adjust")),
        ("Change the color of the car to red", Reading("adjust")),
        ("Add a tree in the background", Reading("add", come="tree")),
        ("Change the background to a beach", Reading("background")),
        ("Remove the car and add a bike", Reading("compose")),
        ("Make the cup larger", Reading("resize")),
        ("Render this as a pencil drawing", Reading("style")),
        ("What if it froze?", Reading()),
        ("", Reading()),
        ("Add", Reading()),
        ("a" * 5000, Reading()),
    ],
)
def test_instructions_are_read_by_their_verb(text: str, expected: Reading) -> None:
    assert read_instruction(text) == expected


def test_the_engines_own_wordings_are_read_as_what_they_are() -> None:
    fields = {
        "the_object": "the red cup",
        "a_object": "a red cup",
        "position": "on the left",
        "first": "Remove the cup",
        "second": "add a dog",
        "objects": "cups",
        "objects_after": "cups",
        "before": "two",
        "after": "three",
    }
    results = {"resize": "twice as large, and much bigger"}
    for name, row in TYPES.items():
        for template in row.templates:
            text = " ".join(template.format_map({**fields, "result": results.get(name, "a green vase")}).split())
            assert read_instruction(text.replace(" .", ".")).type == name, text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the small dog on the sofa", "small dog"),
        ("a cup of the tea with milk", "cup of tea"),
        ("it", ""),
        ("", ""),
        ("one two three four five six seven eight nine ten eleven", "six seven eight nine ten eleven"),
        ('"big" (red) box', "big red box"),
        ("a cup of", "cup"),
    ],
)
def test_noun_phrases(text: str, expected: str) -> None:
    assert noun_phrase(text) == expected


class Scorer:
    """Says how red the middle of a picture is, whatever the text."""

    metric, directional = "redness", False

    def __init__(self) -> None:
        self.asked: list[str] = []

    def score(self, images: Any, texts: Any) -> list[float]:
        self.asked += texts
        return [float(image[..., 0].mean() - image[..., 2].mean()) / 255 for image in images]


def view(kind: str, before: np.ndarray, after: np.ndarray, mask: bool = True, **turn: Any) -> tuple[EdgeView, Scorer]:
    made = Turn(index=1, type=kind, parent=0, instruction="x", origin="imported", **turn)
    source = Source(id="s", sha256="0" * 64, uri="u", grid=tiny.SIZE)
    edge = Edge(turn=1, source_node="a", result_node="b", source_sha256="", result_sha256="")
    area = Mask(np.pad(np.ones((40, 40), bool), ((28, 28), (44, 44)))) if mask else None
    scorer = Scorer()
    seen = EdgeView(
        Sample(id="s", kind="single", source=source, turns=(made,)),
        made,
        edge,
        before,
        after,
        area,
        {"scorer": scorer},
        lambda _: np.zeros(1),
    )
    return seen, scorer


def test_the_wrong_picture_has_to_be_clearly_ahead() -> None:
    plain, red = tiny.scene(1), tiny.with_disc(tiny.scene(1))
    right, scorer = view("add", plain, red, target_label="red ball")
    gap = direction(right, 0.1)["direction_gain"]
    assert isinstance(gap, float)
    assert gap > 0.1
    assert scorer.asked == ["red ball", "red ball"]
    swapped, _ = view("add", red, plain, target_label="red ball")
    with pytest.raises(GateFailed) as failed:
        direction(swapped, 0.1)
    assert (failed.value.reason, failed.value.score) == ("swapped_direction", pytest.approx(-gap, abs=1e-3))
    assert "'red ball'" in failed.value.detail
    assert direction(swapped, 1.0) == {"direction_gain": pytest.approx(-gap, abs=1e-3)}
    gone, _ = view("remove", red, plain, target_label="red ball")
    assert direction(gone, 0.1) == {"direction_gain": pytest.approx(gap, abs=1e-3)}
    both, scorer = view("replace", red, plain, target_label="red ball", result_phrase="blue ball")
    assert direction(both, 0.1) == {"direction_gain": pytest.approx(0, abs=1e-3)}
    assert scorer.asked == ["red ball", "red ball", "blue ball", "blue ball"]


@pytest.mark.parametrize(
    ("kind", "turn", "mask"),
    [
        ("add", {}, True),
        ("style", {"target_label": "ball"}, False),
        ("adjust", {"target_label": "ball"}, True),
        ("add", {"target_label": "ball"}, False),
        ("remove", {"result_phrase": "ball"}, True),
    ],
)
def test_what_cannot_be_decided_passes(kind: str, turn: dict[str, Any], mask: bool) -> None:
    seen, scorer = view(kind, tiny.with_disc(tiny.scene(1)), tiny.scene(1), mask, **turn)
    assert direction(seen, 0.1) == {"direction_gain": None}
    assert not scorer.asked


def placed(photograph: np.ndarray, cutout: Path) -> np.ndarray:
    """The photograph with a cut-out in its middle, half its height."""
    rgba = decode_rgba(cutout.read_bytes())
    height = photograph.shape[0] // 2
    small = resize(rgba, round(rgba.shape[1] * height / rgba.shape[0]), height)
    top, left = (photograph.shape[0] - height) // 2, (photograph.shape[1] - small.shape[1]) // 2
    area = photograph[top : top + height, left : left + small.shape[1]]
    alpha = small[..., 3:].astype(np.float32) / 255
    out = photograph.copy()
    out[top : top + height, left : left + small.shape[1]] = np.rint(area * (1 - alpha) + small[..., :3] * alpha)
    return out


@pytest.mark.weights
@pytest.mark.slow
def test_swapped_pairs_on_a_real_photograph_are_caught_and_right_ones_pass(tmp_path: Path) -> None:
    paths = [photographs_home() / PHOTOGRAPH, *(photographs_home() / f"cutouts/{name}.png" for name in CUTOUTS)]
    if missing := [str(path) for path in paths if not path.is_file()]:
        pytest.skip(f"not there: {', '.join(missing)}; `editfoundry quickstart` fetches them")
    photograph = decode(paths[0].read_bytes())
    grid = Grid.for_size(photograph.shape[1], photograph.shape[0], 100_000)
    photograph = to_grid(photograph, grid)
    empty = tiny.png(photograph)
    rows: list[tuple[str, str, bytes, bytes]] = []
    for path, label in zip(paths[1:], CUTOUTS.values(), strict=True):
        there = tiny.png(placed(photograph, path))
        rows += [
            ("add", f"Add a {label} in the middle.", empty, there),
            ("add", f"Add the swapped {label} in the middle.", there, empty),
            ("remove", f"Remove the {label}.", there, empty),
            ("remove", f"Remove the swapped {label}.", empty, there),
        ]
    kinds, texts, sources, results = (list(column) for column in zip(*rows, strict=True))
    path = tiny.table(tmp_path / "x.parquet", {"k": kinds, "t": texts, "a": sources, "b": results})
    result = tiny.imported(
        tmp_path / "run",
        {
            "layout": "parquet",
            "path": str(path),
            "certificate": False,
            "columns": {"source": "a", "result": "b", "instruction": "t", "type": "k"},
        },
        gates=("geometry", "change", "direction"),
        shard_size=20,
    )
    assert sorted(result.rows) == sorted(text for text in texts if "swapped" not in text)
    assert result.reasons == ["swapped_direction"] * 4
    assert all(reject.score < -0.12 for reject in result.rejects["verify"])
    assert all(row["gate_direction_gain"] > 0.12 for row in result.rows.values())
