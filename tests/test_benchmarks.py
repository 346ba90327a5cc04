"""Every benchmark runs, from another folder, and prints what it promises. Nothing here looks at a time."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
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
                           capture_output=True, text=True, timeout=200)
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


@pytest.mark.slow
def test_training_overhead_is_that_of_the_same_training(repository: Path, tmp_path: Path, photographs: Path) -> None:
    text = run(repository, tmp_path, "training/overhead", "--photographs", str(photographs), "--steps", "2",
               "--batch", "2", "--samples", "4", "--json")  # fmt: skip
    content = check(text, "training/overhead")
    assert [result["peer"] for result in content["results"]] == ["bare torch loop"]
    assert content["facts"]["losses"] == "identical"
    [result] = content["results"]
    difference = 1e3 * (result["ours_seconds"]["median"] - result["peer_seconds"]["median"]) / 2
    assert content["facts"]["overhead_ms_per_step"] == pytest.approx(difference, abs=1e-2)


@pytest.mark.slow
def test_training_loader(repository: Path, tmp_path: Path, photographs: Path) -> None:
    text = run(repository, tmp_path, "training/loader", "--photographs", str(photographs), "--samples", "4",
               "--workers", "0", "--json")  # fmt: skip
    content = check(text, "training/loader")
    assert cases(content) == {"pairs, 0 workers", "whole micro-batches, 0 workers"}
    peers = {"webdataset, Pillow", "webdataset, our resize", "floor: raw member reads"}
    assert {result["peer"] for result in content["results"]} == peers
    assert content["data"]["grid"] == "624x416"
    rates = content["facts"]["samples_per_s"]
    [pairs] = [r for r in content["results"] if (r["case"], r["peer"]) == ("pairs, 0 workers", "webdataset, Pillow")]
    assert rates["pairs, 0 workers, editfoundry"] == pytest.approx(4 / pairs["ours_seconds"]["median"], abs=0.1)


@pytest.mark.slow
def test_training_cache(repository: Path, tmp_path: Path, photographs: Path) -> None:
    text = run(repository, tmp_path, "training/cache", "--photographs", str(photographs), "--samples", "4",
               "--batch", "2", "--json")  # fmt: skip
    content = check(text, "training/cache")
    assert cases(content) == {"batch and step, miniature", "batch alone, miniature"}
    facts = content["facts"]
    # states of 286 tokens and of SigLIP in bfloat16, mean and log-variance of 16 x 64 x 64 latents in float32
    expected = 2 * (286 * 3584 + 1024 * 1152) + 4 * (2 * 16 * 64 * 64)
    assert facts["production_bytes_per_sample"] == pytest.approx(expected, rel=1e-3)
    assert "epoch" in facts["miniature"]


@pytest.mark.slow
def test_training_resume(repository: Path, tmp_path: Path) -> None:
    text = run(repository, tmp_path, "training/resume", "--rows", "20000", "--global-batch", "16", "--positions",
               "1000000", "--json")  # fmt: skip
    content = check(text, "training/resume")
    assert [(result["case"], result["peer"]) for result in content["results"]] == [
        ("resume at 1,000,000, warm", "position 0"),
        ("resume at 1,000,000, warm", "torch RandomSampler, walked"),
        ("resume at 1,000,000, cold", "position 0"),
    ]
    slowest = max(result["ours_seconds"]["max"] for result in content["results"])
    assert content["facts"]["slowest resume, seconds"] == slowest


def test_training_padding(repository: Path, tmp_path: Path) -> None:
    """Two shapes of picture, 2:1 and square, of which everything can be worked out."""
    table = tmp_path / "sizes.parquet"
    sizes = {"WIDTH": [2048, 1024] * 8, "HEIGHT": [1024, 1024] * 8, "TEXT": ["four"] * 16}
    pq.write_table(pa.table(sizes), table)
    content = check(run(repository, tmp_path, "training/padding", str(table), "--json"), "training/padding")
    facts = content["facts"]
    assert content["data"]["rows"] == 16
    # letterboxed, the wide half leaves half of its square empty; cropped, it loses half of its pixels
    assert facts["image: square, letterboxed"] == {"padding": 0.25, "tokens": 768.0}
    assert facts["image: square, cropped"] == {"padding": 0.0, "cropped": 0.25, "tokens": 1024}
    assert facts["image: square, stretched"]["stretched"] == 0.5
    assert facts["image: buckets (ours)"]["padding"] == 0.0
    assert facts["image: buckets (ours)"]["cropped"] < 0.05
    assert facts["text, batches of any samples: padding"] == {"of text": 0.0, "of all tokens": 0.0}


@pytest.mark.slow
def test_judge_inference(repository: Path, tmp_path: Path, photographs: Path) -> None:
    """Two pairs of one source: what is counted can be worked out, and both sides have to say the same."""
    arguments = ("--quick", "--photographs", str(photographs), "--json")
    content = check(run(repository, tmp_path, "judge/inference", *arguments), "judge/inference")
    rows = {"scores, chained", "scores, independent", "reason and scores, fast", "reason and scores, compat"}
    against_the_loop = {result["case"] for result in content["results"] if result["peer"] == "naive generate"}
    assert against_the_loop == rows and content["data"]["pairs"] == 2
    facts = content["facts"]
    loop, chained, compat = (facts[f"work, {name}"] for name in (
        "naive generate", "scores, chained", "reason and scores, compat"))  # fmt: skip
    assert (loop["forwards"], loop["decode_tokens"], loop["vision_encodes"]) == (2 * 8, 2 * 7, 4)
    assert {facts[f"work, {name}"]["vision_encodes"] for name in rows} == {3}
    assert facts["work, scores, independent"]["decode_tokens"] == 0
    assert chained["forwards"] == 3, "what both begin with, both ends side by side, the second score"
    assert (compat["forwards"], compat["decode_tokens"]) == (2 + 7, 2 * 7)
    assert compat["prefill_tokens"] < chained["prefill_tokens"] < 0.6 * loop["prefill_tokens"]
    assert facts["replies identical in compat"] == "2 of 2"
    assert facts["largest difference of a probability of the first score"] < 1e-5
