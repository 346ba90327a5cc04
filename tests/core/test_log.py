import json
from pathlib import Path
from typing import Any

import pytest

from editfoundry.core.log import close_log, open_log, run_log


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_carry_their_context_and_traceback(tmp_path: Path) -> None:
    log = open_log(tmp_path / "run7" / "logs", "worker0")
    log.info("committed %d", 3, extra={"stage": "filter", "shard": 2})
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("failed", extra={"ids": ["s1"]})
    close_log()
    first, second = lines(tmp_path / "run7/logs/worker0.jsonl")
    assert {key: first[key] for key in first if key != "time"} == {
        "level": "info", "message": "committed 3", "run": "run7", "worker": "worker0", "stage": "filter", "shard": 2}
    assert second["ids"] == ["s1"]
    assert second["traceback"].endswith("ValueError: two\nlines")


def test_secrets_of_the_environment_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hunter2-hunter2")
    monkeypatch.setenv("SHORT_TOKEN", "abc")
    open_log(tmp_path / "logs", "w").warning("sent hunter2-hunter2 to abc")
    close_log()
    assert lines(tmp_path / "logs/w.jsonl")[0]["message"] == "sent *** to abc"


def test_opening_again_moves_the_log_and_closing_silences_it(tmp_path: Path) -> None:
    open_log(tmp_path / "logs", "a")
    open_log(tmp_path / "logs", "b").info("once")
    close_log()
    run_log().info("to nobody")
    assert (tmp_path / "logs/a.jsonl").read_text() == ""
    assert [line["message"] for line in lines(tmp_path / "logs/b.jsonl")] == ["once"]


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/w.jsonl").symlink_to("/dev/full")
    log = open_log(tmp_path / "logs", "w")
    with pytest.raises(OSError, match="No space left"):
        log.info("lost")
    with pytest.raises(OSError, match="No space left"):
        close_log()
    assert capsys.readouterr().err == ""
