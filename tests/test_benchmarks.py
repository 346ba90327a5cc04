"""Every benchmark runs, from another folder, and prints what it promises. Nothing here looks at a time."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from skimage import data

KEYS = {"benchmark", "machine", "versions", "rounds", "data", "results", "facts"}
RESULT_KEYS = {"case", "peer", "items", "ours_seconds", "peer_seconds", "ratio"}
MACHINE_KEYS = {"cpu", "cores", "memory_gib", "system", "load_average_1min"}
SPREAD_KEYS = {"median", "min", "max"}


def run(repository: Path, folder: Path, name: str, *arguments: str) -> str:
    script = repository / "benchmarks" / f"{name}.py"
    child = subprocess.run([sys.executable, str(script), "--rounds", "1", *arguments], cwd=folder, check=False,
                           capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr
    return child.stdout


def check(text: str, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(text)
    assert set(content) == KEYS
    assert content["benchmark"] == name
    assert content["rounds"] == 1
    assert set(content["machine"]) == MACHINE_KEYS
    assert {"python", "editfoundry"} < set(content["versions"])
    for result in content["results"]:
        assert set(result) == RESULT_KEYS
        for spread in ("ours_seconds", "peer_seconds", "ratio"):
            assert set(result[spread]) == SPREAD_KEYS
            assert 0 < result[spread]["min"] == result[spread]["median"] == result[spread]["max"]
    return content


def cases(content: dict[str, Any]) -> set[str]:
    return {result["case"] for result in content["results"]}


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Two JPEGs, one of them with a colour profile."""
    photograph = Image.fromarray(data.astronaut())
    profile = Image.open(Path(data.__file__).parent / "astronaut.png").info["icc_profile"]
    folder = tmp_path / "photographs"
    folder.mkdir()
    photograph.save(folder / "plain.jpg")
    photograph.save(folder / "profiled.jpg", icc_profile=profile)
    return folder


def test_decode(repository: Path, tmp_path: Path, photographs: Path) -> None:
    arguments = ("--photographs", str(photographs), "--min-short-side", "512", "--area", "10000")
    content = check(run(repository, tmp_path, "decode", *arguments, "--json"), "decode")
    assert cases(content) == {"decode to the grid", "decode at full size", "encode on the grid, 4:4:4 JPEG",
                              "read a header", "decode to the grid, with profile"}
    assert content["data"]["photographs"] == content["data"]["with_profile"] == 1
    table = run(repository, tmp_path, "decode", *arguments)
    assert all(result["case"] in table and result["peer"] in table for result in content["results"])


def test_decode_says_how_to_get_photographs(repository: Path, tmp_path: Path) -> None:
    child = subprocess.run([sys.executable, str(repository / "benchmarks/decode.py"), "--photographs", str(tmp_path)],
                           check=False, capture_output=True, text=True, timeout=60)
    assert child.returncode == 1
    assert "`editfoundry quickstart` fetches photographs" in child.stderr


def test_shards(repository: Path, tmp_path: Path) -> None:
    text = run(repository, tmp_path, "shards", "--samples", "3", "--folder", str(tmp_path), "--json")
    content = check(text, "shards")
    assert cases(content) == {"write a shard", "read members at random", "read a shard in order"}
    assert content["data"]["members"] == 12
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_runner(repository: Path, tmp_path: Path) -> None:
    content = check(run(repository, tmp_path, "runner", "--records", "4", "--milliseconds", "1", "--shard-size", "2",
                        "--workers", "2", "--memory-records", "2", "20", "--memory-rounds", "1", "--json"), "runner")
    peers = [result["peer"] for result in content["results"]]
    assert peers == ["floor: bare loop, 2 processes", "bare loop, 1 process"]
    facts = content["facts"]
    assert set(facts["start_up_s_2"]) == SPREAD_KEYS
    assert facts["memory_records"] == [2, 20]
    assert facts["driver_peak_pss_mib"]["20"]["min"] > 10
    assert facts["driver_peak_pss_ratio"]["min"] > 0
