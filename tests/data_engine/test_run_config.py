"""The run's configuration: only settings that can be kept are taken."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from editfoundry.core.errors import ModelMissing
from editfoundry.data_engine.config import RunConfig
from editfoundry.data_engine.pipeline import STAGES
from editfoundry.data_engine.runner import check_models
from editfoundry.data_engine.sources import Manifest
from editfoundry.models.registry import DEFAULTS

SOURCES = {"ingest": {"sources": [{"path": "x"}]}}


def models(**settings: Any) -> dict[str, Any]:
    return RunConfig.model_validate({**SOURCES, **settings}).model_dump()["models"]


def test_roles_that_are_not_named_keep_their_stacks_default() -> None:
    assert models(models={"detector": "ssd"}) == DEFAULTS["embedded"]
    assert models(stack="full") == DEFAULTS["full"]
    assert models(stack="full", models={"judge": None})["captioner"] == "qwen2.5-vl"
    assert "judge" not in models(stack="full", models={"judge": None})


def test_one_line_swaps_one_model_and_the_dataset_says_so() -> None:
    swapped = RunConfig.model_validate({**SOURCES, "models": {"detector": "grounding-dino"}})
    assert swapped.made_by == "mixed"
    assert RunConfig.model_validate(SOURCES).made_by == "embedded"
    assert RunConfig.model_validate({**SOURCES, "stack": "full"}).made_by == "full"


def test_a_model_may_come_with_options_and_keeps_them_in_the_saved_configuration() -> None:
    spec = {"name": "grounding-dino", "checkpoint": "/weights/dino"}
    assert models(models={"detector": spec})["detector"] == spec
    config = RunConfig.model_validate({**SOURCES, "models": {"detector": spec}})
    assert RunConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(("settings", "message"), [
    ({"models": {"detectr": "ssd"}}, "models.detectr: unknown role; did you mean models.detector?"),
    ({"models": {"detector": "sdd"}}, "models.detector: no implementation 'sdd'; did you mean 'ssd'?"),
    ({"models": {"detector": {"name": "ssd", "checkpoint": "x"}}}, "ssd takes no options (given: checkpoint)"),
    ({"models": {"detector": {"name": "grounding-dino", "chekpoint": "x"}}}, "did you mean checkpoint?"),
    ({"models": {"captioner": {"name": "tags", "min_tag": 2}}}, "less than or equal to 1"),
    ({"instruct": {"donor_rates": {"add": -1}}}, "greater than or equal to 0"),
    ({"instruct": {"donor_rates": {"add": 1e12}}}, "less than or equal to 1000"),
    ({"instruct": {"conversation_rates": {"content_memory": float("nan")}}}, "finite number"),
    ({"filter": {"max_quality": float("nan")}}, "finite number"),
    ({"batch_timeout_s": float("inf")}, "finite number"),
    ({"verify": {"gates": ["geometry", "geometry"]}}, "a gate is listed twice"),
])
def test_what_cannot_be_kept_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate({**SOURCES, **settings})
    assert message in str(caught.value)


def test_a_manifest_names_each_file_once() -> None:
    with pytest.raises(ValidationError, match=r"a\.png is listed twice"):
        Manifest.model_validate({"photographs": [{"file": "a.png"}, {"file": "./a.png", "text": "other"}]})


def test_every_missing_weight_is_named_before_a_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITFOUNDRY_CACHE", str(tmp_path))
    config = RunConfig.model_validate({**SOURCES, "stack": "full", "instruct": {"generated_rates": {"replace": 1}}})
    with pytest.raises(ModelMissing) as caught:
        check_models([stage(config) for stage in STAGES])
    for role in ("captioner", "detector", "segmenter", "painter", "quality"):
        assert f"models.{role}: " in str(caught.value)
    assert str(caught.value).count("qwen2.5-vl-7b-instruct:") <= 2
