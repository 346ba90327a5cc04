"""`editfoundry edit`, called as a user calls it: results, turns, and every way to call it wrongly."""

import json
import shutil
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny.editor import tiny_editor
from typer.testing import CliRunner

from editfoundry.core.errors import EditFoundryError
from editfoundry.core.images import decode, encode_jpeg
from editfoundry.models.editor.cli import app
from editfoundry.models.editor.pipeline import EditorPipeline, load_editor


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_editor(tmp_path_factory.mktemp("editor") / "editor", reference_latents="kontext")


@pytest.fixture(scope="module")
def editor(folder: Path) -> EditorPipeline:
    return load_editor(folder, device="cpu")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "photo.jpg").write_bytes(encode_jpeg(photo()))
    (tmp_path / "other.png").write_bytes(png(photo(seed=1)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def photo(width: int = 80, height: int = 64, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def png(pixels: np.ndarray) -> bytes:
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def call(folder: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments, "--model", str(folder), "--steps", "2", "--device", "cpu"])


def answer(folder: Path, *arguments: str) -> dict[str, Any]:
    result = call(folder, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def refusal(folder: Path, *arguments: str) -> str:
    result = call(folder, *arguments)
    assert isinstance(result.exception, EditFoundryError), result.output
    assert result.exception.exit_code in (1, 2)
    return str(result.exception)


def pixels(path: Path) -> np.ndarray:
    return decode(path.read_bytes())


def test_one_edit_is_the_pipelines(folder: Path, editor: EditorPipeline, here: Path) -> None:
    options = ("--seed", "5", "--guidance", "2", "--reference", "other.png")
    told = answer(folder, "photo.jpg", "make it red", "-o", "out.png", *options)
    source = pixels(here / "photo.jpg")
    expected = editor(source, "make it red", references=[photo(seed=1)], seed=5, steps=2, guidance=2.0).images[0]
    assert np.array_equal(pixels(here / "out.png"), expected)
    seconds = told.pop("seconds")
    (turn,) = told.pop("turns")
    assert 0 < turn.pop("seconds") <= seconds
    common = {"output": "out.png", "seed": 5, "width": 80, "height": 64}
    assert told == common | {"model": str(folder)}
    assert turn == common | {"instruction": "make it red", "parent": 0}
    assert sorted(path.name for path in here.iterdir()) == ["other.png", "out.png", "photo.jpg"]


def test_a_jpeg_is_the_datasets_kind_and_the_path_is_printed(folder: Path, editor: EditorPipeline, here: Path) -> None:
    result = call(folder, "photo.jpg", "make it red", "-o", "out.JPG")
    assert (result.exit_code, result.stdout) == (0, "out.JPG\n")
    assert "editing: 2/2" in result.stderr
    expected = encode_jpeg(editor(pixels(here / "photo.jpg"), "make it red", steps=2).images[0])
    assert (here / "out.JPG").read_bytes() == expected


def test_cfg_shows_twice_the_passes_and_size_sets_the_grid(folder: Path, here: Path) -> None:
    (here / "large.jpg").write_bytes(encode_jpeg(photo(200, 150)))
    result = call(folder, "large.jpg", "", "-o", "out.jpg", "--cfg", "2", "--size", "96", "--json")
    assert "editing: 4/4" in result.stderr
    told = json.loads(result.stdout)
    assert (told["width"], told["height"]) == (112, 80)
    assert pixels(here / "out.jpg").shape == (80, 112, 3)


def test_turns_follow_their_parents_and_know_only_of_them(folder: Path, editor: EditorPipeline, here: Path) -> None:
    (here / "lists").mkdir()
    shutil.copy(here / "other.png", here / "lists" / "near.png")
    (here / "lists" / "turns.yaml").write_text(
        "- instruction: make it red\n"
        "- instruction: add a cat\n"
        "- {instruction: make it blue, parent: 1, references: [near.png]}\n"
        "- {instruction: from the start, parent: 0}\n"
    )
    told = answer(folder, "photo.jpg", "-o", "out", "--turns", "lists/turns.yaml", "--seed", "7")
    start, near = pixels(here / "photo.jpg"), photo(seed=1)
    first = editor(start, "make it red", seed=7, steps=2).images[0]
    second = editor(first, "add a cat", history=["make it red"], seed=8, steps=2).images[0]
    third = editor(first, "make it blue", history=["make it red"], references=[near], seed=9, steps=2).images[0]
    fourth = editor(start, "from the start", seed=10, steps=2).images[0]
    for number, expected in enumerate((first, second, third, fourth), start=1):
        assert (here / "out" / f"turn-{number}.jpg").read_bytes() == encode_jpeg(expected), number
    assert sorted(path.name for path in (here / "out").iterdir()) == [f"turn-{n}.jpg" for n in (1, 2, 3, 4)]
    assert [turn["parent"] for turn in told["turns"]] == [0, 1, 1, 0]
    assert [turn["seed"] for turn in told["turns"]] == [7, 8, 9, 10]
    assert [turn["output"] for turn in told["turns"]] == [f"out/turn-{n}.jpg" for n in (1, 2, 3, 4)]
    assert (told["output"], told["seed"]) == ("out", 7)


def test_json_is_a_file_of_turns_too(folder: Path, here: Path) -> None:
    (here / "turns.json").write_text(json.dumps([{"instruction": "make it red"}]))
    result = call(folder, "photo.jpg", "-o", "out", "--turns", "turns.json")
    assert (result.exit_code, result.stdout) == (0, "out/turn-1.jpg\n")


def test_transparency_lies_on_white(folder: Path, here: Path) -> None:
    clear = np.dstack([photo(64, 64), np.zeros((64, 64), np.uint8)])
    (here / "clear.png").write_bytes(png(clear))
    (here / "white.png").write_bytes(png(np.full((64, 64, 3), 255, np.uint8)))
    answer(folder, "clear.png", "make it red", "-o", "a.png")
    answer(folder, "white.png", "make it red", "-o", "b.png")
    assert (here / "a.png").read_bytes() == (here / "b.png").read_bytes()


WRONG_TURNS = {
    "{}": "turns.yaml: expected a list of turns",
    "instruction: x": "turns.yaml: expected a list of turns",
    "": "turns.yaml: expected a list of turns",
    "[]": "turns.yaml: turns: ",
    "- x": "turns.yaml: turns.0: ",
    "- {parent: 0}": "turns.yaml: turns.0.instruction: Field required",
    "- {instruction: 5}": "turns.yaml: turns.0.instruction: ",
    "- {instruction: x, parents: 0}": "did you mean turns.0.parent?",
    "- {instruction: x, parent: -1}": "turns.yaml: turns.0.parent: ",
    "- {instruction: x, parent: 1}": "turns.0.parent: turn 1 edits turn 1, which is not before it",
    "- instruction: x\n- {instruction: x, parent: 5}": "turns.1.parent: turn 2 edits turn 5, which is not before it",
    "- {instruction: x, references: [none.jpg]}": "none.jpg: cannot be read",
    "- {instruction: x, references: [turns.yaml]}": "turns.yaml: ",
    "- !!python/object/apply:os.system [x]": "turns.yaml: not valid YAML",
    "- {instruction: x": "turns.yaml: not valid YAML",
    "- &a [*a]": "turns.yaml: not valid YAML",
}


@pytest.mark.parametrize("text", WRONG_TURNS)
def test_a_wrong_file_of_turns_is_refused_before_anything_is_made(folder: Path, here: Path, text: str) -> None:
    (here / "turns.yaml").write_text(text)
    assert WRONG_TURNS[text] in refusal(folder, "photo.jpg", "-o", "out", "--turns", "turns.yaml")
    assert not (here / "out").exists()


def test_a_turn_that_is_too_long_stops_before_the_first(folder: Path, here: Path) -> None:
    turns = [{"instruction": "make it red"}, {"instruction": "red green blue " * 200}]
    (here / "turns.json").write_text(json.dumps(turns))
    said = refusal(folder, "photo.jpg", "-o", "out", "--turns", "turns.json")
    assert "the instruction and the 1 before it have" in said and "takes 256" in said
    assert not (here / "out").exists()


def wrong_calls() -> dict[str, tuple[tuple[str, ...], str]]:
    return {
        "neither": (("photo.jpg", "-o", "out.jpg"), "give an instruction, or --turns FILE"),
        "both": (("photo.jpg", "x", "-o", "out", "--turns", "turns.yaml"), "give an instruction, or --turns FILE"),
        "no turns": (("photo.jpg", "-o", "out", "--turns", "none.yaml"), "none.yaml: cannot be read: No such file"),
        "references": (("photo.jpg", "-o", "o", "--turns", "t", "--reference", "other.png"), "names its own"),
        "no image": (("none.jpg", "x", "-o", "out.jpg"), "none.jpg: cannot be read: No such file or directory"),
        "a folder": ((".", "x", "-o", "out.jpg"), ".: cannot be read: Is a directory"),
        "no picture": (("text.jpg", "x", "-o", "out.jpg"), "text.jpg: "),
        "empty": (("empty.jpg", "x", "-o", "out.jpg"), "empty.jpg: "),
        "cut": (("cut.jpg", "x", "-o", "out.jpg"), "cut.jpg: "),
        "tiny": (("tiny.png", "x", "-o", "out.jpg"), "too small or too elongated"),
        "huge": (("huge.png", "x", "-o", "out.jpg"), "huge.png: "),
        "no reference": (("photo.jpg", "x", "-o", "out.jpg", "--reference", "no.png"), "no.png: cannot be read"),
        "exists": (("photo.jpg", "x", "-o", "other.png"), "other.png: already exists"),
        "dangling": (("photo.jpg", "x", "-o", "link.png"), "link.png: already exists"),
        "format": (("photo.jpg", "x", "-o", "out.gif"), "name a file that ends in .jpg, .jpeg, .png"),
        "no format": (("photo.jpg", "x", "-o", "out"), "name a file that ends in .jpg, .jpeg, .png"),
        "no parent": (("photo.jpg", "x", "-o", "no/out.jpg"), "the folder no does not exist"),
        "long": (("photo.jpg", "red green blue " * 200, "-o", "out.jpg"), "takes 256"),
    }


@pytest.mark.parametrize("name", wrong_calls())
def test_a_wrong_call_says_what_is_wrong_and_makes_nothing(folder: Path, here: Path, name: str) -> None:
    (here / "text.jpg").write_text("no picture")
    (here / "empty.jpg").write_bytes(b"")
    (here / "cut.jpg").write_bytes(encode_jpeg(photo(400, 300))[:-2000])
    (here / "tiny.png").write_bytes(png(photo(3, 3)))
    header = png(photo(8, 8))
    (here / "huge.png").write_bytes(header[:16] + b"\x00\x0f\xff\xff" * 2 + header[24:])
    (here / "link.png").symlink_to("nowhere.png")
    before = sorted(here.rglob("*"))
    arguments, message = wrong_calls()[name]
    assert message in refusal(folder, *arguments)
    assert sorted(here.rglob("*")) == before


def test_no_editor_is_refused_in_one_line(here: Path) -> None:
    command = [sys.executable, "-m", "editfoundry", "edit", "photo.jpg", "x", "--model", "nowhere", "-o", "out.jpg"]
    child = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert (child.returncode, child.stdout) == (1, "")
    assert child.stderr.count("\n") == 1 and "no folder of an editor" in child.stderr


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("package", ["diffusers", "torchvision"])
def test_a_package_that_is_missing_is_named_with_the_remedy(
    folder: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    said = refusal(folder, "photo.jpg", "x", "-o", "out.jpg")
    assert said == f"the package {package} is not installed; pip install 'editfoundry[train]'"


@pytest.mark.usefixtures("here")
def test_help_and_wrong_calls_load_no_torch() -> None:
    code = (
        "import sys\nfrom editfoundry.cli import app\ntry:\n    app(sys.argv[1:])\n"
        "except BaseException as end:\n    print(repr(end), 'torch' in sys.modules)\n"
    )
    for arguments in (["--help"], ["photo.jpg", "x", "--model", "nowhere", "-o", "out.png"]):
        child = subprocess.run(
            [sys.executable, "-c", code, "edit", *arguments], capture_output=True, text=True, check=True
        )
        assert child.stdout.endswith("False\n"), child.stdout
