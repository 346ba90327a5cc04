"""The GPU benchmark: released sizes, the whole script on tiny models, what it writes. No time is looked at."""

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from editfoundry.core.config import load_config
from editfoundry.data_engine.config import RunConfig
from editfoundry.data_engine.plan import ASSUMPTIONS, Assumptions, plan
from editfoundry.models.manifest import packaged_manifest

JOBS = {
    "detector/grounding-dino": "image", "segmenter/sam2": "image", "scorer/clip": "region",
    "image_embedder/clip": "image", "inpainter/sdxl-inpaint": "call", "painter/sdxl-inpaint": "call",
    "adjuster/sdxl-canny": "call", "painter/flux-fill": "call", "captioner/qwen2.5-vl": "image",
    "writer/qwen2.5-vl": "edit", "judge/qwen2.5-vl": "edit",
}  # fmt: skip
OURS = ("_configurations", "_models", "_subjects", "_overhead", "_measure", "stages")


@pytest.fixture(scope="module")
def stages(repository: Path) -> Iterator[Any]:
    """The script as a module."""
    path = list(sys.path)
    sys.path.insert(0, str(repository / "benchmarks" / "gpu"))
    try:
        yield importlib.import_module("stages")
    finally:
        sys.path[:] = path
        for name in OURS:
            sys.modules.pop(name, None)


def options(**named: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"only": None, "budget_s": 0.0, "limit_s": 60.0, "rounds": 1, **named})


@pytest.mark.parametrize(
    "checkpoint",
    ["sdxl-inpainting", "sdxl-controlnet-canny", "flux1-fill-dev", "sam2.1-hiera-large", "grounding-dino-base",
     "clip-vit-l14", "qwen2.5-vl-7b-instruct"],
)  # fmt: skip
@pytest.mark.usefixtures("stages")
def test_full_sizes_are_the_released_ones(checkpoint: str) -> None:
    models = sys.modules["_models"]
    with models.building("meta", torch.bfloat16):
        parts = models.RELEASED[checkpoint](sys.modules["_configurations"].FULL)
    entry = packaged_manifest().models[checkpoint]
    assert entry.parameters is not None
    assert models.weights(parts) == pytest.approx(entry.parameters, rel=0.01)
    if entry.largest_part:
        largest = max(models.weights({name: part}) for name, part in parts.items())
        assert largest == pytest.approx(entry.largest_part, rel=0.01)
    parameters = [parameter for part in parts.values() for parameter in part.parameters()]
    assert sum(parameter.numel() for parameter in parameters if parameter.device.type != "meta") < 100_000
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.slow
@pytest.mark.usefixtures("stages")
def test_full_size_editor_is_made_of_released_parts_and_the_planned_connectors() -> None:
    models = sys.modules["_models"]
    with models.building("meta", torch.bfloat16):
        parts = models.editor(sys.modules["_configurations"].FULL)
    counts = {name: models.weights({name: part}) for name, part in parts.items()}
    released = packaged_manifest().models
    flux, redux = released["flux1-dev"].largest_part, released["flux1-redux-dev"].largest_part
    assert counts["transformer"] == pytest.approx(flux, rel=0.01)
    assert counts["visual_encoder"] == pytest.approx(redux, rel=0.01)  # the same tower, at another size
    assert counts["vlm"] == 8_292_166_656 - 152064 * 3584  # Qwen2.5-VL-7B without its output layer
    assert counts["connector"] == 3584 * 12288 + 12288 + 12288 * 4096 + 4096
    assert counts["visual_connector"] == 1152 * 12288 + 12288 + 12288 * 4096 + 4096
    assert counts["vae"] == 83_819_683
    dtypes = {name: {weight.dtype for weight in part.parameters()} for name, part in parts.items()}
    exact = ("connector", "visual_connector", "vae")
    assert dtypes == {name: {torch.float32 if name in exact else torch.bfloat16} for name in parts}
    assert {weight.device.type for part in parts.values() for weight in part.parameters()} == {"meta"}


@pytest.mark.usefixtures("stages")
def test_tiny_and_full_sizes_describe_the_same_parts() -> None:
    configurations = sys.modules["_configurations"]
    assert set(configurations.TINY) == set(configurations.FULL)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device, so the benchmark would run")
@pytest.mark.parametrize("script", ["stages", "training"])
def test_without_a_gpu_it_says_so_and_is_no_failure(script: str, repository: Path, tmp_path: Path) -> None:
    command = [sys.executable, repository / f"benchmarks/gpu/{script}.py"]
    child = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert child.returncode == 0, child.stderr
    assert child.stdout.startswith("skipped: no CUDA device")


@pytest.mark.slow
def test_the_whole_script_runs_on_tiny_models(repository: Path, tmp_path: Path) -> None:
    written, assumed = tmp_path / "gpu.json", tmp_path / "assumptions.yaml"
    command = [sys.executable, repository / "benchmarks/gpu/stages.py", "--tiny", "--budget-s", "0", "--json", written,
               "--assumptions", assumed]  # fmt: skip
    child = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400)
    assert child.returncode == 0, child.stdout + child.stderr
    content = json.loads(written.read_text())
    assert content["tiny"] is True and content["device"] == "CPU"
    assert {"python", "torch", "diffusers", "transformers"} < set(content["versions"])
    assert {result["state"] for result in content["results"]} == {"measured"}
    jobs = {result["job"]: result for result in content["results"] if "job" in result}
    assert {name: job["per"] for name, job in jobs.items()} == JOBS
    assert all(job["calls"] == 1 and job["seconds"]["median"] > 0 and job["peak_gb"] is None for job in jobs.values())
    assert all(name in child.stdout for name in JOBS)
    [overhead] = [result for result in content["results"] if result["subject"] == "runner"]
    assert overhead["ratio"]["median"] > 0 and overhead["records"] == 8

    used = load_config(Assumptions, str(assumed))
    assert used.models["painter/flux-fill"].seconds == jobs["painter/flux-fill"]["seconds"]["median"]
    assert used.models["painter/flux-fill"].basis.startswith("measured by benchmarks/gpu on CPU, tiny models, for no")
    config = load_config(RunConfig, "data/full/replace.yaml", ["ingest.sources=[{path: x}]"])
    notes = plan(config, 1000, 80, assumptions=str(assumed)).assumptions
    [note] = [note for note in notes if note.startswith("seconds of painter/flux-fill")]
    assert "measured by benchmarks/gpu" in note


@pytest.mark.slow
def test_training_steps_run_on_tiny_models_in_every_stage(repository: Path, tmp_path: Path) -> None:
    written = tmp_path / "training.json"
    command = [sys.executable, repository / "benchmarks/gpu/training.py", "--tiny", "--rounds", "2", "--json", written]
    stages = ["--stage", "stage1", "--stage", "lora", "--stage", "stage2"]
    child = subprocess.run([*command, *stages], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
    assert child.returncode == 0, child.stdout + child.stderr
    assert "TINY models, the figures mean nothing" in child.stdout
    content = json.loads(written.read_text())
    assert content["benchmark"] == "gpu-training" and content["tiny"] is True and content["device"] == "CPU"
    assert {"python", "torch", "diffusers", "transformers"} < set(content["versions"])
    results = content["results"]
    assert [(result["stage"], result["content"]) for result in results] == [
        (stage, kind) for stage in ("stage1", "lora", "stage2") for kind in ("pictures", "features")
    ]
    for result in results:
        assert (result["state"], result["size"], result["batch"], result["mfu"]) == ("measured", 64, 2, None)
        assert 0 < result["ms_per_step"]["min"] <= result["ms_per_step"]["median"] <= result["ms_per_step"]["max"]
        assert result["tokens_per_s"] * result["ms_per_step"]["median"] == pytest.approx(
            1000 * result["tokens_per_step"], rel=1e-3
        )
        assert result["gradient_checkpointing"] is True
        assert result["teraflop_per_step"] > 0 and 0 < result["loss"] < 10
    by_stage = {result["stage"]: result for result in results}
    parameters = by_stage["stage1"]["parameters"]
    assert by_stage["stage1"]["trained"] == parameters["connector"]
    connectors = parameters["connector"] + parameters["visual_connector"]
    assert connectors < by_stage["stage2"]["trained"] < connectors + parameters["transformer"]
    # SigLIP's four states a picture, in the stages that it is on in
    assert by_stage["lora"]["tokens_per_step"] - by_stage["stage1"]["tokens_per_step"] == 2 * 4


@pytest.mark.slow
def test_a_training_step_that_fails_is_reported(repository: Path, tmp_path: Path) -> None:
    command = [sys.executable, repository / "benchmarks/gpu/training.py", "--tiny", "--set", "optimiser.lr=-1"]
    child = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
    assert child.returncode == 1, child.stderr
    assert "stage1: failed: ConfigError:" in child.stdout and "optimiser.lr" in child.stdout


def test_a_model_that_fails_is_reported_and_the_next_is_measured(
    stages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []

    def broken(_: Any) -> list[Any]:
        raise RuntimeError("CUDA out of memory")

    def working(_: Any) -> list[Any]:
        return [stages.Job("detector/grounding-dino", "image", 4, "a test", lambda: calls.append("ran"))]

    subjects = (stages.Subject("first", (), broken), stages.Subject("second", ("x",), working))
    monkeypatch.setattr(stages, "SUBJECTS", subjects)
    written = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["stages", "--tiny", "--only", "first", "--only", "second", "--rounds", "3",
                                      "--json", str(written)])  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        stages.main()
    assert ended.value.code == 1
    failed, measured = json.loads(written.read_text())["results"]
    assert failed == {"subject": "first", "state": "failed", "reason": "RuntimeError: CUDA out of memory"}
    assert measured["state"] == "measured" and measured["calls"] == 3 and calls == ["ran"] * 4
    assert "first: failed: RuntimeError: CUDA out of memory" in capsys.readouterr().out


def test_what_no_time_is_left_for_is_skipped(stages: Any, tmp_path: Path) -> None:
    results = stages.measure_all(stages.Bench("cpu", True, tmp_path), options(limit_s=0.0))
    assert [(result["subject"], result["state"]) for result in results] == [
        (subject.name, "skipped") for subject in stages.SUBJECTS
    ] + [("runner", "skipped")]


def test_only_takes_names_that_exist(stages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["stages", "--tiny", "--only", "sd15"])
    with pytest.raises(SystemExit, match="--only sd15: there are grounding-dino, sam2"):
        stages.main()


def test_assumptions_take_what_was_measured_and_keep_the_rest(stages: Any, tmp_path: Path) -> None:
    before = load_config(Assumptions, ASSUMPTIONS)
    job = {"subject": "sdxl", "state": "measured", "job": "painter/sdxl-inpaint", "per": "call", "work": "21 steps",
           "seconds": {"median": 1.25, "min": 1.0, "max": 2.0}, "weights_gb": 9.5, "peak_gb": 13.75}  # fmt: skip
    results = [job, {"subject": "flux-fill", "state": "failed", "reason": "x"}]
    why = "measured by benchmarks/gpu on NVIDIA H100, random weights"
    path = tmp_path / "assumptions.yaml"
    path.write_text(yaml.safe_dump(stages.assumptions(before, results, why)))
    after = load_config(Assumptions, str(path))
    cost = after.models["painter/sdxl-inpaint"]
    assert (cost.seconds, cost.per, cost.working_gb, cost.basis) == (1.25, "call", 4.25, f"{why}; 21 steps")
    assert after.machine == f"NVIDIA H100 where measured, else {before.machine}"
    assert {**after.models, "painter/sdxl-inpaint": None} == {**before.models, "painter/sdxl-inpaint": None}
    assert after.survives == before.survives and after.basis == before.basis
