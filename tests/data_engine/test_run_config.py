"""The run's configuration: only settings that can be kept are taken."""

from typing import Any

import pytest
from pydantic import ValidationError

from editfoundry.data_engine.config import EMBEDDED, RunConfig
from editfoundry.data_engine.sources import Manifest

SOURCES = {"ingest": {"sources": [{"path": "x"}]}}


def test_roles_that_are_not_named_keep_their_default() -> None:
    assert RunConfig.model_validate({**SOURCES, "models": {"detector": "ssd"}}).models == EMBEDDED


@pytest.mark.parametrize(("settings", "message"), [
    ({"models": {"detectr": "ssd"}}, "models.detectr: unknown role; did you mean models.detector?"),
    ({"models": {"detector": "sdd"}}, "models.detector: no implementation 'sdd'; did you mean 'ssd'?"),
    ({"stack": "full"}, "stack is full, but models.detector is ssd, which is not of that stack"),
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
