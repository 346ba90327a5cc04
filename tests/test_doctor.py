"""`editfoundry doctor` tells what is absent from what is broken."""

import json
from importlib import metadata
from pathlib import Path

import pytest
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


def test_every_extra_of_the_distribution_has_its_row_and_is_no_part_of_the_core() -> None:
    offered = metadata.metadata("editfoundry").get_all("Provides-Extra")
    assert set(offered) == set(doctor.EXTRAS)
    core = {row["name"] for row in doctor._packages() if row["extra"] == "core"}
    assert core.isdisjoint({"bitsandbytes", "sam2", "ultralytics", "diffusers"}) and "numpy" in core
