"""`editfoundry doctor` tells what is absent from what is broken."""

import json
import tomllib
from email.message import Message
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from editfoundry import doctor
from editfoundry.models.store import Store


@pytest.fixture
def empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("EDITFOUNDRY_CACHE", str(tmp_path / "cache"))
    return Store()


@pytest.mark.slow
def test_absent_weights_are_no_fault(empty_store: Store) -> None:
    result = CliRunner().invoke(doctor.app, ["--json"])
    findings = json.loads(result.stdout)
    assert (result.exit_code, findings["faults"]) == (0, [])
    weights = {row["id"]: row for row in findings["models"]["weights"]}
    assert set(weights) == set(empty_store.manifest.models)
    assert not any(row["present"] for row in weights.values())
    assert weights["open-nsfw"]["enables"] == "probability that a photograph is not safe for work"
    installed = {row["name"]: row["state"] for row in findings["packages"] if row["extra"] == "core"}
    assert set(installed.values()) == {"ok"}
    assert {"torch", "opencv-python-headless", "dlib-bin"} <= set(installed)


@pytest.mark.slow
def test_a_damaged_weight_is_a_fault_with_its_remedy(empty_store: Store) -> None:
    [file] = empty_store.manifest.entry("u2netp").files
    damaged = empty_store.cache_dir / "u2netp" / empty_store.manifest.pins("u2netp")[:12] / file.name
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"cut short")
    result = CliRunner().invoke(doctor.app, [])
    assert result.exit_code == 1
    assert "9 bytes instead of 4574861" in result.stdout
    assert "editfoundry models pull u2netp --verify" in result.stdout


def test_a_package_whose_import_fails_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = {"fine": "", "faulty": "raise OSError('libmissing.so')", "deadly": "import os; os._exit(9)"}
    for name, body in bodies.items():
        (tmp_path / f"{name}_module.py").write_text(body)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "top_level.txt").write_text(f"{name}_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert doctor.broken_imports(["fine", "faulty"]) == {"faulty": "OSError: libmissing.so"}
    assert doctor.broken_imports(["fine", "deadly"]) == {"deadly": "the process ended with code 9"}


def test_every_extra_has_its_row() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["optional-dependencies"]) == set(doctor.EXTRAS)


def test_an_extra_unknown_to_the_table_is_no_part_of_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    offers = Message()
    offers["Provides-Extra"] = "later"
    needs = ["numpy", "absent-package; extra == 'later'"]
    monkeypatch.setattr(doctor.metadata, "metadata", lambda _: offers)
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: needs)
    packages = doctor._packages()
    assert [(row["extra"], row["name"]) for row in packages] == [("core", "numpy"), ("later", "absent-package")]
    with Console(record=True, width=120, file=StringIO()) as console:
        doctor._show_packages(console, packages)
    shown = console.export_text()
    assert "later" in shown and "0 of 1" in shown
