"""A plan counts what it can, names what it assumes, and refuses what cannot fit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from editfoundry.core.config import CONFIG_ROOT, load_config
from editfoundry.core.errors import ConfigError, EditFoundryError, UsageError
from editfoundry.data_engine.config import RunConfig
from editfoundry.data_engine.footprint import Weights, count_weights, resident_gb, weights_of
from editfoundry.data_engine.plan import DataPlan, Measured, PlannedModel, plan
from editfoundry.data_engine.rundir import RunDir
from editfoundry.models.manifest import packaged_manifest

FULL = sorted(str(path.relative_to(CONFIG_ROOT)) for path in CONFIG_ROOT.glob("data/full/*.yaml"))
SETTINGS = ["ingest.sources=[{path: x}]"]


def planned(config: str, *overrides: str, images: int = 600_000, gpu: float = 80) -> DataPlan:
    return plan(load_config(RunConfig, config, [*SETTINGS, *overrides]), images, gpu)


def models(result: DataPlan, stage: str) -> dict[str, PlannedModel]:
    return {model.role: model for one in result.stages if one.stage == stage for model in one.models}


def test_six_hundred_thousand_images_are_budgeted_with_every_assumption_named() -> None:
    result = planned("data/full.yaml")
    assert result.fits and result.images == 600_000
    filtered = next(stage for stage in result.stages if stage.stage == "caption")
    assert filtered.inputs == round(600_000 * 0.98 * 0.45)
    captioner = models(result, "caption")["captioner"]
    assert captioner.gpu_hours == pytest.approx(filtered.inputs * 1.2 / 3600, rel=1e-3)
    assert captioner.memory_gb == pytest.approx(8.29 * 2, abs=0.01)
    assert result.gpu_hours == pytest.approx(sum(stage.gpu_hours for stage in result.stages), abs=0.05)
    used = {f"{model.role}/{model.name}" for stage in result.stages for model in stage.models if model.gpu_hours}
    assert all(any(f"seconds of {name}:" in note for note in result.assumptions) for name in used)


def test_twice_the_images_take_twice_the_time() -> None:
    once, twice = planned("data/full.yaml", images=10_000), planned("data/full.yaml", images=20_000)
    assert twice.gpu_hours == pytest.approx(2 * once.gpu_hours, rel=1e-3)


@pytest.mark.parametrize("config", ["data/full.yaml", *FULL])
def test_every_full_configuration_fits_its_gpu(config: str) -> None:
    assert planned(config, images=1000).problems == ()


def test_the_cluster_configuration_needs_the_gpu_it_names_and_pays_for_nothing_it_serves_itself() -> None:
    assert planned("data/full-cluster.yaml", gpu=141).fits
    refused = planned("data/full-cluster.yaml", gpu=80)
    assert not refused.fits and "render needs" in refused.problems[0]
    assert refused.api_usd == 0


def test_what_cannot_fit_is_refused_with_settings_that_exist() -> None:
    (problem,) = planned("data/full/replace.yaml", "models.judge=null", "verify.gates=[geometry]", gpu=20).problems[:1]
    assert problem.startswith("caption needs") and "serve it by URL" in problem
    whole = planned("data/full/replace.yaml", "models.painter.offload=none", gpu=40)
    assert any("models.painter.offload=model or .quantisation=nf4" in problem for problem in whole.problems)


def test_apis_cost_tokens_times_their_price() -> None:
    spec = "models.captioner={name: openai, base_url: 'http://x/v1', model: m, price_input: 2.0, price_output: 10.0}"
    captioner = models(planned("data/full.yaml", spec, images=1000), "caption")["captioner"]
    assert captioner.api_usd == pytest.approx(captioner.calls * (1900 * 2 + 260 * 10) / 1e6, abs=0.01)
    assert captioner.gpu_hours == 0 and captioner.memory_gb == 0


def test_only_the_models_of_the_planned_edits_are_loaded() -> None:
    assert set(models(planned("data/full/remove.yaml"), "render")) == {"inpainter"}
    assert set(models(planned("data/full/replace.yaml"), "render")) == {"painter"}
    assert set(models(planned("data/full/style.yaml"), "render")) == {"style"}
    assert set(models(planned("data/full/motion.yaml"), "render")) == set()
    assert set(models(planned("data/full/conversations.yaml"), "render")) == {"inpainter", "painter", "adjuster"}


def test_shared_weights_count_once_and_of_offloaded_ones_the_largest_counts() -> None:
    flux = Weights("flux", "", 10, 20e9, True)
    assert resident_gb([Weights("a", "", 1, 2e9, False), Weights("a", "", 1, 2e9, False)]) == 2
    assert resident_gb([flux, Weights("fill", "", 10, 24e9, True), Weights("a", "", 1, 2e9, False)]) == 26


def test_a_folder_is_counted_by_its_headers(tmp_path: Path) -> None:
    save_file({"a": np.zeros((3, 5), np.float32), "b": np.zeros(7, np.float16)}, tmp_path / "model.safetensors")
    assert count_weights(tmp_path) == 22
    (weights,) = weights_of({"checkpoint": str(tmp_path), "dtype": "float32"})
    assert (weights.parameters, weights.bytes) == (22, 88)
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(EditFoundryError, match="not a safetensors file"):
        count_weights(tmp_path)


def test_comments_of_the_full_configuration_say_what_the_store_says() -> None:
    text = (CONFIG_ROOT / "data/full.yaml").read_text(encoding="utf-8")
    known = packaged_manifest().models
    config = load_config(RunConfig, "data/full.yaml")
    used = {w.checkpoint for spec_role, spec in config.models.items() for w in _weights(spec_role, spec)}
    assert used and all(checkpoint in text for checkpoint in used)
    for checkpoint in used:
        licence = known[checkpoint].licence
        assert licence in text, f"{checkpoint}: {licence}"


def _weights(role: str, spec: Any) -> list[Weights]:
    from editfoundry.data_engine.plan import _options

    return weights_of(_options(role, spec))


def test_the_command_prints_a_table_and_exits_1_when_it_cannot_fit(tmp_path: Path) -> None:
    base = [sys.executable, "-m", "editfoundry", "data", "plan", "-c", "data/full/style.yaml", "--images", "1000"]
    done = subprocess.run([*base, "--json"], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert json.loads(done.stdout)["fits"] is True
    small = subprocess.run([*base, "--gpu-memory", "10"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert small.returncode == 1 and "problem: caption needs" in small.stderr
    assert "style: sdxl-ip-adapter" in small.stdout and "seconds of style/sdxl-ip-adapter" in small.stdout
    assert "seconds assumed for one H100 80 GB, bfloat16; checked against GPUs of 10 GB" in small.stdout


def test_assumptions_name_every_registered_full_model() -> None:
    assumed = yaml.safe_load((CONFIG_ROOT / "data/assumptions.yaml").read_text(encoding="utf-8"))["models"]
    from editfoundry.models.registry import REGISTRY, stack_of

    full = {f"{role}/{name}" for role, names in REGISTRY.items() for name in names if stack_of(role, name) == "full"}
    assert full - {"depth/depth-anything"} == set(assumed)


@pytest.mark.parametrize("role", ["painter", "captioner", "judge", "detector", "segmenter", "style", "scorer"])
def test_a_role_that_is_needed_and_left_out_is_named_as_a_run_names_it(role: str) -> None:
    with pytest.raises(ConfigError, match=f"models.{role}: .* needs one and none is named; available: "):
        planned("data/full.yaml", f"models.{role}=null")


def test_what_is_served_elsewhere_is_said_to_be_uncounted() -> None:
    notes = planned("data/full-cluster.yaml", gpu=141).assumptions
    assert "judge/openai is served elsewhere: its GPU-hours are not counted" in notes
    assert not any(note.startswith("seconds of judge/openai") for note in notes)


@pytest.mark.parametrize("memory", ["inf", "nan"])
def test_memory_that_is_no_number_of_gb_is_refused(memory: str) -> None:
    with pytest.raises(UsageError, match=f"--gpu-memory {memory}"):
        planned("data/full.yaml", gpu=float(memory))


def test_notes_of_figures_that_a_run_measured_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Measured(survives={"caption": 0.5}, seconds={"caption": 2.0})
    monkeypatch.setattr(Measured, "of", staticmethod(lambda _: seen))
    settings = load_config(RunConfig, "data/full.yaml", SETTINGS)
    notes = plan(settings, 1000, 80, RunDir(tmp_path)).assumptions
    assert not any(note.startswith(("seconds of captioner/", "share that passes")) for note in notes)
    assert any(note.startswith("seconds of inserter/flux-redux") for note in notes)
