"""An import is a run: any number of workers, every command, and our own export read back."""

import json
from pathlib import Path
from typing import Any

import import_data as tiny
import pytest

from editfoundry import cli
from editfoundry.data_engine.export import export
from editfoundry.data_engine.rundir import RunDir
from editfoundry.data_engine.shards import read_table

SIZE = (160, 128)
BASE = tiny.scene(1, SIZE)
ONE = tiny.with_disc(BASE, (50, 60), 16)
TWO = tiny.with_disc(ONE, (110, 60), 16, (20, 200, 60))
THREE = tiny.with_disc(ONE, (110, 90), 16, (240, 220, 30))
TEXTS = ("Add a red ball.", "Add a lime.", "Undo that; instead, make it yellow.")


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """A table of singles, one of them with a reference and one without a change, and a conversation in split tars."""
    folder = tmp_path_factory.mktemp("datasets")
    rows = [
        ("a", "add", "Put a ball on it.", BASE, ONE, None),
        ("b", "visual", "Replace it with the object in the reference image.", ONE, TWO, tiny.png(tiny.scene(8))),
        ("c", "style", "Render this as a negative.", BASE, 255 - BASE, None),
        ("d", "remove", "Remove nothing.", BASE, BASE, None),
        ("e", "remove", "Remove the lime.", TWO, ONE, None),
    ]
    names = ("id", "kind", "text", "source", "result", "reference")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    columns |= {name: [tiny.png(pixels) for pixels in columns[name]] for name in ("source", "result")}
    table = tiny.table(folder / "singles.parquet", columns, {"reference": tiny.pa.binary()})
    members = [
        (f"results_version_backtracking/7/{name}_{number}.png", tiny.png(pixels))
        for number, pair in enumerate(((BASE, ONE), (ONE, TWO), (ONE, THREE)))
        for name, pixels in zip(("origin", "result"), pair, strict=True)
    ]
    tiny.split(folder, "multi.tar.split", tiny.tar(members), [1000, 30_000])
    turns = [
        {
            "input_images": [f"results_version_backtracking/7/origin_{n}.png"],
            "output_images": [f"results_version_backtracking/7/result_{n}.png"],
            "prompt": TEXTS[n],
        }
        for n in range(3)
    ]
    multi = tiny.table(folder / "multi.parquet", {"data": [turns]})
    names = ("id", "source", "result", "reference")
    by_name = {"type": "kind", "instruction": "text", **{name: name for name in names}}
    return [
        {"layout": "parquet", "path": str(table), "columns": by_name, "licence": "MIT", "source_url": "https://x.org"},
        {"layout": "imgedit", "path": str(multi), "images": [str(folder / "multi.tar.split.*")]},
    ]


@pytest.fixture
def result(datasets: list[dict[str, Any]], tmp_path: Path) -> tiny.Result:
    return tiny.imported(tmp_path / "run", *datasets)


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `editfoundry data ARGUMENTS`."""
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["editfoundry", "data", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    captured = capsys.readouterr()
    return int(caught.value.code or 0), captured.out, captured.err


@pytest.mark.slow
def test_any_number_of_workers_gives_the_same_bytes(
    datasets: list[dict[str, Any]], result: tiny.Result, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """By the command line, from a configuration file, with two workers: the dataset that one process makes."""
    config = tiny.config(*datasets).model_dump(mode="json", exclude={"models"})
    (tmp_path / "import.yaml").write_text(tiny.yaml_text(config))
    arguments = ("import", "-c", tmp_path / "import.yaml", "-o", tmp_path / "two", "--workers", 2)
    code, _, said = call(monkeypatch, capsys, *arguments)
    assert (code, "dataset:" in said) == (0, True)
    assert tiny.tree(tmp_path / "two/dataset") == tiny.tree(result.run.dataset)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "two/stages").rglob("*.json")}
    assert call(monkeypatch, capsys, *arguments)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "two/stages").rglob("*.json")} == before
    tiny.imported(tmp_path / "two", *datasets, ingest={"observed": {"dilate": 3}})
    assert tiny.tree(tmp_path / "two/dataset") != tiny.tree(result.run.dataset)


def test_the_accounts_add_up_and_every_file_is_as_recorded(
    result: tiny.Result, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (len(result.rows), result.reasons) == (7, ["no_visible_change"])
    code, out, _ = call(monkeypatch, capsys, "funnel", result.run.path, "--check", "--json")
    rows = {row["stage"]: row for row in json.loads(out)["rows"]}
    assert (code, list(rows)) == (0, ["render", "verify", "emit"])
    assert [(row["inputs"], row["accepted"], row["rejected"], row["outputs"]) for row in rows.values()] == [
        (6, 5, 1, 5), (5, 5, 0, 5), (5, 5, 0, 7)]  # fmt: skip
    assert call(monkeypatch, capsys, "verify", result.run.path)[0] == 0


def test_stats_and_report_tell_of_an_import(
    result: tiny.Result, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(monkeypatch, capsys, "stats", result.run.path, "--json")
    found = json.loads(out)
    assert (code, found["origins"], found["stacks"]) == (0, {"imported": 7}, ["imported"])
    assert found["conversations"] == {"version_backtracking": 1}
    # Three pictures that edits start from: the bare scene, the one with a ball, and the one with both.
    assert (found["photographs"], found["distinct_scenes"]) == (3, 3)
    assert {gate["name"]: gate["calls"] for gate in found["gates"]} == {"geometry": 7, "change": 7}
    assert call(monkeypatch, capsys, "stats", result.run.path)[0] == 0
    assert call(monkeypatch, capsys, "report", result.run.path)[0] == 0
    page = (result.run.path / "report/index.html").read_text()
    assert "source and result look the same" in page
    assert "Render this as a negative." in page


@pytest.mark.slow
def test_repair_reads_the_dataset_again(
    result: tiny.Result, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tiny.tree(result.run.dataset)
    tar = next((result.run.path / "stages").glob("render-*/shards/00000.members*.tar"))
    tar.write_bytes(tar.read_bytes()[:-600])
    assert call(monkeypatch, capsys, "verify", result.run.path)[0] == 1
    code, _, said = call(monkeypatch, capsys, "repair", result.run.path)
    assert code == 0, said
    assert call(monkeypatch, capsys, "verify", result.run.path)[0] == 0
    assert tiny.tree(result.run.dataset) == whole


@pytest.mark.parametrize("how", ["sha256", "url", "row"])
def test_forget_takes_a_source_out_for_good(
    how: str, result: tiny.Result, datasets: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = result.run.path
    digest = result.rows["Remove the lime."]["photograph_sha256"]
    asked = {"sha256": ("--sha256", digest), "url": ("--url", "https://x.org"),
             "row": ("--url", f"{datasets[0]['path']}#row=4")}[how]  # fmt: skip
    assert call(monkeypatch, capsys, "forget", path, *asked)[0] == 0
    left = {row["instruction"] for row in read_table(path / "dataset/index.parquet")}
    # By the address of the dataset all its rows go, and so does the conversation, which starts from the same picture.
    assert left == (set() if how == "url" else set(result.rows) - {"Remove the lime."})
    assert call(monkeypatch, capsys, "funnel", path, "--check")[0] == 0
    assert call(monkeypatch, capsys, "verify", path)[0] == 0
    for file in (path / "stages").rglob("*.parquet"):
        assert not any(digest in str(row) for row in read_table(file)), file
    # Nor does it come back when the datasets are read again, as they were or with other settings.
    for change in ({}, {"observed": {"dilate": 3}}):
        tiny.imported(path, *datasets, ingest=change)
        assert {row["instruction"] for row in read_table(path / "dataset/index.parquet")} == left


def test_our_own_export_comes_back_as_it_was(result: tiny.Result, tmp_path: Path) -> None:
    """Edges, instructions, masks, references and conversations survive ImgEdit's layout, to the byte."""
    out = export(RunDir(result.run.path), "imgedit", tmp_path / "out", split_bytes=5000)
    entries = [
        {
            "layout": "imgedit",
            "name": folder,
            "path": str(out / folder / "parquet/*.parquet"),
            "images": [str(out / folder / "images/*")],
        }
        for folder in ("single_turn", "multi_turn")
    ]
    back = tiny.imported(tmp_path / "back", *entries)
    assert back.reasons == []
    assert set(back.rows) == set(result.rows)
    assert [text for text in back.rows if text in TEXTS] == list(TEXTS)
    kept = ("type", "source_sha256", "result_sha256", "conversation_kind", "turn", "width", "height", "mask_area",
            "outside_max", "outside_mean", "origin")  # fmt: skip
    keys = {row["key"]: text for text, row in result.rows.items()}
    keys_back = {row["key"]: text for text, row in back.rows.items()}
    for text, row in result.rows.items():
        assert {name: back.rows[text][name] for name in kept} == {name: row[name] for name in kept}
        assert keys_back.get(back.rows[text]["parent_key"]) == keys.get(row["parent_key"])
        for member in ("source", "result", "mask", "reference"):
            assert (row[f"length_{member}"] is None) == (back.rows[text][f"length_{member}"] is None)
            if row[f"length_{member}"] is not None:
                assert back.member(text, member) == result.member(text, member)
