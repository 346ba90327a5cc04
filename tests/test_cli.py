"""The root command, called as a user calls it: in a process of its own, from another directory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from editfoundry import __version__
from editfoundry.cli import AREAS

HEAVY = {"torch", "transformers", "onnxruntime", "cv2", "pyarrow", "numpy"}
REPORT_HEAVY = f"""
import json, sys
from editfoundry.cli import app
try:
    app(sys.argv[1:])
except SystemExit as end:
    print(json.dumps([end.code or 0, sorted({HEAVY!r} & set(sys.modules))]), file=sys.stderr)
"""


def call(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "editfoundry", *arguments], cwd=cwd, capture_output=True, text=True,
                          check=False, timeout=120)


def test_root_help_names_every_area_and_loads_nothing_heavy(tmp_path: Path) -> None:
    child = subprocess.run([sys.executable, "-c", REPORT_HEAVY, "--help"], cwd=tmp_path, capture_output=True, text=True,
                           check=True, timeout=120)
    code, heavy = json.loads(child.stderr)
    assert (code, heavy) == (0, [])
    assert all(name in child.stdout for name in AREAS)


def test_models_commands_load_no_torch(tmp_path: Path) -> None:
    child = subprocess.run([sys.executable, "-c", REPORT_HEAVY, "models", "path"], cwd=tmp_path, capture_output=True,
                           text=True, check=True, timeout=120)
    code, heavy = json.loads(child.stderr)
    assert (code, set(heavy) - {"numpy"}) == (0, set())


def test_version(tmp_path: Path) -> None:
    answer = call("--version", cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (0, f"editfoundry {__version__}\n")


@pytest.mark.parametrize("arguments", [("nonsense",), ("models", "nonsense"), ("data", "run"), ("doctor", "--nonsense"),
                                       ("models", "path", "no-such-model")])
def test_a_wrong_call_exits_2_without_a_traceback(arguments: tuple[str, ...], tmp_path: Path) -> None:
    answer = call(*arguments, cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("area", list(AREAS))
def test_every_area_has_help(area: str, tmp_path: Path) -> None:
    answer = call(area, "--help", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert f"editfoundry {area}" in answer.stdout
    assert answer.stderr == ""


def test_a_missing_weight_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITFOUNDRY_CACHE", str(tmp_path / "empty"))
    answer = call("models", "path", "u2netp", cwd=tmp_path)
    assert answer.returncode == 1
    assert answer.stderr.startswith("error: models: the weights of u2netp are not in ")
    assert answer.stderr.endswith("run `editfoundry models pull u2netp`\n")


def test_errors_of_the_system_are_one_line(tmp_path: Path) -> None:
    answer = call("data", "funnel", "x" * 300, cwd=tmp_path)
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"error: {'x' * 300}/state.json: File name too long; ")
    assert answer.stderr.count("\n") == 1


def test_errors_hold_no_control_characters(tmp_path: Path) -> None:
    answer = call("data", "funnel", "a\nb\x1b[31m\u202e", cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: a b\\x1b[31m\\x202e: not a run")
    assert answer.stderr.count("\n") == 1


def test_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    child = subprocess.run(["bash", "-c", f"{sys.executable} -m editfoundry models list --json | true"], cwd=tmp_path,
                           capture_output=True, text=True, check=False, timeout=120)
    assert (child.returncode, child.stderr) == (0, "")
