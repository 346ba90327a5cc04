"""Judges by name."""

from pathlib import Path
from typing import Any

import pytest

from editfoundry.core.errors import ConfigError, UsageError
from editfoundry.models.judge.api import ApiJudge
from editfoundry.models.judge.spec import JudgeOptions, open_judge


def api(spec: str, **options: Any) -> ApiJudge:
    judge = open_judge(spec, JudgeOptions(**options))
    assert isinstance(judge, ApiJudge)
    return judge


def test_a_server_by_name(tmp_path: Path) -> None:
    options = api("openai:Qwen/Qwen2.5-VL-7B-Instruct@http://localhost:8000/v1").options
    assert (options.model, options.base_url) == ("Qwen/Qwen2.5-VL-7B-Instruct", "http://localhost:8000/v1")
    assert (options.rubric, options.head, options.steps, options.order) == ("edit", "expected", "chained", "compat")
    given = api(
        "openai:me/m@rev2@https://host/v1?api-version=7",
        rubric="types", head="generate", steps="independent", order="fast", max_new_tokens=99, api_key_env="MINE",
        concurrency=3, ledger=tmp_path / "l.sqlite", endpoint={"structured": "none", "price_input": 2.0},
    ).options  # fmt: skip
    assert (given.model, given.base_url) == ("me/m@rev2", "https://host/v1?api-version=7")
    assert (given.rubric, given.head, given.steps, given.order) == ("types", "generate", "independent", "fast")
    assert (given.max_tokens, given.api_key_env, given.concurrency) == (99, "MINE", 3)
    assert (given.ledger, given.structured, given.price_input) == (tmp_path / "l.sqlite", "none", 2.0)


@pytest.mark.parametrize(
    "spec",
    ["", "local:", "openai:", "openai:m", "openai:m@", "openai:@http://host", "openai:m@ftp://h", "gpt:m@http://h"],
)
def test_other_forms_are_refused(spec: str) -> None:
    with pytest.raises(UsageError, match="local:DIR or openai:MODEL@URL"):
        open_judge(spec)


def test_options_that_do_not_go_with_a_server() -> None:
    spec = "openai:m@http://localhost/v1"
    with pytest.raises(UsageError, match="--batch, --max-pixels: only for local:DIR"):
        api(spec, batch=4, max_pixels=10_000)
    with pytest.raises(ConfigError, match="regression needs the state of a model in this process"):
        api(spec, head="regression")
    with pytest.raises(ConfigError, match="priec_input: unknown key"):
        api(spec, endpoint={"priec_input": 1})


@pytest.mark.parametrize("spec", ["openai:m@https://me:hunter2@host/v1", "openai:m@https://host/v1?api-key=hunter2"])
def test_a_secret_in_the_address_is_refused_and_not_repeated(spec: str) -> None:
    with pytest.raises(ConfigError, match="must not carry a secret") as error:
        open_judge(spec)
    assert "hunter2" not in str(error.value)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    from editfoundry.core.errors import ModelMissing

    with pytest.raises(ModelMissing):
        open_judge(f"local:{tmp_path / 'nowhere'}").load()


def test_opening_a_server_loads_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from editfoundry.models.judge.spec import open_judge; "
        "open_judge('openai:m@http://localhost/v1').provenance(); "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
