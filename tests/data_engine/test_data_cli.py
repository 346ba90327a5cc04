import json
from pathlib import Path
from typing import Any

import pytest
import toy_engine as toy

from editfoundry import cli
from editfoundry.data_engine.rundir import RunDir


@pytest.fixture
def run(tmp_path: Path) -> Path:
    toy.run_here(toy.write_sources(tmp_path / "src", 5, {1: "bad", 2: "odd"}), tmp_path / "run")
    return tmp_path / "run"


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `editfoundry data ARGUMENTS`."""
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["editfoundry", "data", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    captured = capsys.readouterr()
    return int(caught.value.code or 0), captured.out, captured.err


def test_funnel_prints_a_table_and_json(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                        ) -> None:
    code, out, _ = call(monkeypatch, capsys, "funnel", run, "--check")
    assert code == 0
    assert "ingest" in out
    assert "catalogue *" in out
    code, out, _ = call(monkeypatch, capsys, "funnel", run, "--check", "--json")
    rows = {row["stage"]: row for row in json.loads(out)["rows"]}
    assert (rows["ingest"]["inputs"], rows["ingest"]["rejects"]) == (5, {"truncated_image": 1})
    assert rows["filter"]["parts"] == {"region": {"tiny": 4}}


def test_funnel_check_fails_with_the_reason(run: Path, monkeypatch: pytest.MonkeyPatch,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    sorted((run / "stages").glob("render-*/commits/00000.json"))[0].unlink()
    code, _, err = call(monkeypatch, capsys, "funnel", run, "--check")
    assert code == 1
    assert "problem: render: 1 of 2 shards are not committed, first 0" in err
    assert call(monkeypatch, capsys, "funnel", run)[0] == 0


def test_verify_says_what_is_wrong(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                   ) -> None:
    assert call(monkeypatch, capsys, "verify", run)[:2] == (0, "")
    (run / "dataset/extra.tar").write_bytes(b"x")
    code, out, _ = call(monkeypatch, capsys, "verify", run)
    assert (code, out) == (1, "extra_file: dataset/extra.tar: the manifest does not name it\n")
    code, out, _ = call(monkeypatch, capsys, "verify", run, "--json")
    assert (code, json.loads(out)[0]["kind"]) == (1, "extra_file")


def test_stats_export_and_forget(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(monkeypatch, capsys, "stats", run, "--json")
    assert (code, json.loads(out)["pairs"]) == (0, {"add": 3})
    code, out, _ = call(monkeypatch, capsys, "stats", run)
    assert "distinct scenes" in out
    code, _, err = call(monkeypatch, capsys, "export", run, tmp_path / "out", "--format", "imgedit")
    assert (code, (tmp_path / "out/multi_turn/parquet").is_dir()) == (0, True)
    assert str(tmp_path / "out") in err
    code, _, err = call(monkeypatch, capsys, "forget", run, "--url", "https://example.org/s000")
    assert code == 0
    assert "forgot 1 source(s); " in err
    assert call(monkeypatch, capsys, "verify", run)[0] == 0


@pytest.mark.parametrize(("arguments", "message"), [
    (["funnel", "nowhere"], "error: nowhere: not a run"),
    (["forget", "RUN"], "error: data forget: give either --sha256 H or --url U"),
    (["forget", "RUN", "--sha256", "0", "--url", "u"], "error: data forget: give either"),
    (["export", "RUN", "out", "--format", "zip"], "error: --format zip: unknown; choose imgedit or parquet"),
    (["run", "-c", "x.yaml", "-o", "out", "--executor", "cloud"], "error: --executor cloud: unknown; available: local"),
    (["run", "-c", "nowhere.yaml", "-o", "out"], "error: nowhere.yaml: no such config file"),
])
def test_wrong_calls_are_one_line_and_exit_2(run: Path, monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str], arguments: list[str], message: str,
                                             ) -> None:
    code, _, err = call(monkeypatch, capsys, *[run if argument == "RUN" else argument for argument in arguments])
    assert code == 2
    assert err.startswith(message)
    assert len(err.strip().splitlines()) == 1


def test_a_locked_run_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                 ) -> None:
    with RunDir(run).lock():
        code, _, err = call(monkeypatch, capsys, "forget", run, "--sha256", "0" * 64)
    assert code == 1
    assert "is working on this run" in err
