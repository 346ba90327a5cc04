"""Commands on runs that are damaged, unfinished or no runs: findings, or one line on stderr, never a traceback."""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import toy_engine as toy
from typer.testing import CliRunner

from editfoundry import cli
from editfoundry.core.errors import ConfigError, EditFoundryError, UsageError
from editfoundry.data_engine.audit import funnel, verify
from editfoundry.data_engine.export import export
from editfoundry.data_engine.forget import find_target, forget
from editfoundry.data_engine.repair import repair
from editfoundry.data_engine.rundir import RunDir
from editfoundry.data_engine.shards import DamagedFile

NOBODY = "0" * 64
SOURCES = {1: "bad", 2: "odd"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    toy.run_here(toy.write_sources(folder / "src", 5, SOURCES), folder / "run")
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole / "run", tmp_path / "run")
    return tmp_path / "run"


def first(run: Path, pattern: str) -> Path:
    return sorted(run.glob(pattern))[0]


def garbage(pattern: str) -> Callable[[Path], None]:
    return lambda run: first(run, pattern).write_bytes(b"\xff\xfe{")


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda run: (run / name).write_text(text) and None


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "state": garbage("state.json"), "state_list": write("state.json", "[]"), "config": garbage("config.yaml"),
    "config_list": write("config.yaml", "- a"), "tombstones": write("tombstones.json", "{"),
    "journal": write("forget.json", "{"), "index": garbage("dataset/index.parquet"),
    "manifest": garbage("dataset/manifest.json"), "tar": garbage("dataset/train-000000.tar"),
    "commit": garbage("stages/render-*/commits/00000.json"), "rows": garbage("stages/ingest-*/shards/00000.rows*"),
    "rejects": garbage("stages/ingest-*/shards/00000.rejects*"),
    "members": garbage("stages/render-*/shards/00000.members*"),
    "no_stages": lambda run: shutil.rmtree(run / "stages"), "no_dataset": lambda run: shutil.rmtree(run / "dataset"),
    "no_rows": lambda run: first(run, "stages/filter-*/shards/00000.rows*").unlink(),
    "odd_folder": lambda run: (run / "stages" / "x-y").mkdir(),
    "traversal": write("dataset/manifest.json", '{"files":{"../../x":{"bytes":1,"sha256":""}},"rows":0}'),
}
COMMANDS = (("funnel", "RUN", "--check"), ("funnel", "RUN", "--json"), ("verify", "RUN"), ("stats", "RUN"),
            ("forget", "RUN", "--sha256", NOBODY), ("export", "RUN", "OUT", "--format", "imgedit"),
            ("export", "RUN", "OUT", "--format", "parquet"), ("report", "RUN"))


def calls(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command: an exit code of ours, and an error of one line."""
    for number, words in enumerate(COMMANDS):
        arguments = [{"RUN": str(run), "OUT": str(run.parent / f"out{number}")}.get(word, word) for word in words]
        capsys.readouterr()
        monkeypatch.setattr("sys.argv", ["editfoundry", "data", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        err = capsys.readouterr().err
        assert caught.value.code in (None, 0, 1, 2), words
        assert err.count("error:") <= 1, words
        if "error:" in err:
            assert len(err.splitlines()) == 1, words
            assert caught.value.code, words
            assert not (run.parent / f"out{number}").exists(), words
        shutil.rmtree(run.parent / f"out{number}", ignore_errors=True)


@pytest.mark.parametrize("how", DAMAGE)
def test_every_command_answers_on_a_damaged_run(run: Path, monkeypatch: pytest.MonkeyPatch,
                                                capsys: pytest.CaptureFixture[str], how: str) -> None:
    DAMAGE[how](run)
    calls(run, monkeypatch, capsys)


def test_every_command_answers_on_a_run_with_a_flipped_byte(run: Path, whole: Path, monkeypatch: pytest.MonkeyPatch,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(7)
    files = [path for path in sorted(run.rglob("*"))
             if path.is_file() and path.stat().st_size and "logs" not in path.parts]
    for path in rng.sample(files, 12):
        data = bytearray(path.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        calls(run, monkeypatch, capsys)
        shutil.rmtree(run)
        shutil.copytree(whole / "run", run)


@pytest.mark.parametrize("how", [name for name in DAMAGE if name not in ("no_dataset", "odd_folder")])
def test_verify_or_the_funnel_says_so(run: Path, how: str) -> None:
    DAMAGE[how](run)
    try:
        assert verify(RunDir(run))
    except EditFoundryError as error:
        assert "state.json: damaged" in str(error)


def test_a_damaged_state_is_written_anew_by_the_run(run: Path, whole: Path) -> None:
    (run / "state.json").write_bytes(b"\xff")
    assert toy.run_here(whole / "src", run) == []
    assert verify(RunDir(run)) == []


@pytest.mark.parametrize("name", ["tombstones.json", "forget.json"])
def test_what_was_forgotten_is_never_lost_by_guessing(run: Path, whole: Path, name: str) -> None:
    (run / name).write_text("{")
    with pytest.raises(EditFoundryError, match=f"{name}: damaged"):
        toy.run_here(whole / "src", run)


def test_the_funnel_counts_the_rejects_that_are_stored(run: Path) -> None:
    path, other = (first(run, f"stages/{stage}-*/shards/00000.rejects*") for stage in ("filter", "ingest"))
    path.write_bytes(other.read_bytes())
    assert "filter shard 0: 0 parts rejected are stored, 2 are recorded" in funnel(RunDir(run)).problems


def test_a_folder_with_a_config_of_its_own_is_no_run(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "config.yaml").write_text("mine: 1\n")
    with pytest.raises(UsageError, match="holds other files and no run"):
        toy.run_here(whole / "src", tmp_path)
    assert (tmp_path / "config.yaml").read_text() == "mine: 1\n"


@pytest.mark.parametrize("path", ["file/sub", "x" * 300, "/proc/nowhere"])
def test_a_run_that_cannot_be_there_is_a_wrong_call(tmp_path: Path, whole: Path, path: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be the folder of a run: "):
        toy.run_here(whole / "src", tmp_path / path)


def test_a_run_may_have_any_name(tmp_path: Path, whole: Path) -> None:
    path = tmp_path / "n\udcff\n"
    shutil.copytree(whole / "run", path)
    assert toy.run_here(whole / "src", path) == []
    for words in (["verify", path], ["export", path, "out", "--format", "imgedit"], ["stats", path, "--json"]):
        command = [sys.executable, "-m", "editfoundry", "data", *words]
        answer = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        assert answer.returncode == 0, answer.stderr
    answer = subprocess.run([*command[:4], "funnel", "m\udcff\n"], cwd=tmp_path, capture_output=True, check=False)
    assert (answer.returncode, answer.stderr.split(b": not a run")[0]) == (2, rb"error: m\xff ")


def test_what_looks_like_an_interpolation_in_a_finished_run_is_text(run: Path) -> None:
    folder = RunDir(run)
    settings = folder.settings()
    folder.config_file.write_text(folder.config_file.read_text().replace("Add a {donor}", "Add ${nothing} {donor}"))
    assert "${nothing}" in folder.config(toy.ToyConfig).instruct.template
    assert settings["instruct"]["template"].startswith("Add a {donor}")
    folder.config_file.write_text("a: [")
    with pytest.raises(ConfigError, match=r"config\.yaml: not valid YAML"):
        folder.settings()


def test_an_interrupted_forget_is_found_and_finished_by_repair(run: Path, whole: Path) -> None:
    tombstones = {"salt": "s", "hashes": ()}
    (run / "forget.json").write_text(json.dumps({"tombstones": tombstones, "commits": []}))
    assert [finding.kind for finding in verify(RunDir(run))] == ["unfinished_forget"]
    repair(RunDir(run), lambda state: toy.run_here(whole / "src", run, known=state))
    assert verify(RunDir(run)) == []


def test_an_export_appears_whole_or_not_at_all(run: Path, tmp_path: Path) -> None:
    tar = run / "dataset" / "train-000000.tar"
    data = bytearray(tar.read_bytes())
    place = data.index(b"scene number")
    data[place] ^= 1
    tar.unlink()
    tar.write_bytes(data)
    for layout in ("imgedit", "parquet"):
        with pytest.raises(DamagedFile, match="are not those of the index"):
            export(RunDir(run), layout, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_word_of_a_reject_is_no_address(run: Path) -> None:
    target = find_target(RunDir(run), "filter")
    assert (target.hashes, target.ids) == (set(), set())
    with pytest.raises(UsageError, match="no source or donor"):
        forget(RunDir(run), "Image")


@pytest.mark.parametrize("value", ["xyz", "0" * 63, "g" * 64, " " + "0" * 64])
def test_a_wrong_hash_is_a_wrong_call(run: Path, value: str) -> None:
    answer = CliRunner().invoke(cli.app, ["data", "forget", str(run), "--sha256", value])
    assert isinstance(answer.exception, UsageError)
    assert "64 hexadecimal digits" in str(answer.exception)


def test_a_run_on_top_of_damaged_rows_names_the_file(run: Path, whole: Path) -> None:
    first(run, "stages/ingest-*/shards/00000.rows*").write_bytes(b"xx")
    first(run, "stages/filter-*/commits/00000.json").unlink()
    with pytest.raises(DamagedFile, match=r"ingest-.*\.parquet: damaged .*`editfoundry data repair` mends it"):
        toy.run_here(whole / "src", run)
