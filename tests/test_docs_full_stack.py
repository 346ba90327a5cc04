"""The page about the full stack: its blocks are configurations, and what it names exists."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from editfoundry.core.config import load_config
from editfoundry.data_engine.config import RunConfig
from editfoundry.data_engine.pipeline import STAGES

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "full-stack.md").read_text("utf-8")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
FILES = {"prompts/write.yaml": "models/language/prompts/write.yaml"}


def loaded(settings: dict[str, Any], base: str, folder: Path) -> RunConfig:
    file = folder / "page.yaml"
    whole = {"extends": base, "ingest": {"sources": [{"path": "photographs"}]}, **settings}
    file.write_text(yaml.safe_dump(whole), encoding="utf-8")
    return load_config(RunConfig, str(file))


def test_the_page_holds_configurations() -> None:
    assert len(BLOCKS) >= 9


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_over_the_full_configuration_builds_every_stage(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shown, shipped in FILES.items():
        target = tmp_path / shown
        target.parent.mkdir(exist_ok=True)
        target.write_bytes((ROOT / shipped).read_bytes())
    monkeypatch.chdir(tmp_path)
    config = loaded(yaml.safe_load(block), "data/full.yaml", tmp_path)
    for stage in STAGES:
        stage(config)


def test_one_line_swaps_one_model(tmp_path: Path) -> None:
    settings = yaml.safe_load(BLOCKS[0])
    assert len(BLOCKS[0].splitlines()) == 2 and settings == {"models": {"detector": "grounding-dino"}}
    embedded = loaded({}, "data/quickstart.yaml", tmp_path)
    swapped = loaded(settings, "data/quickstart.yaml", tmp_path)
    assert (embedded.made_by, swapped.made_by) == ("embedded", "mixed")
    assert {**swapped.models, "detector": None} == {**embedded.models, "detector": None}


def test_the_reasons_and_files_it_names_exist() -> None:
    code = "\n".join(path.read_text("utf-8") for path in (ROOT / "data_engine").rglob("*.py"))
    for reason in ("wrong_object", "not_followed", "unnatural", "judge_refused", "judge_failed", "writer_invalid",
                   "similar_photograph", "benchmark_contamination"):  # fmt: skip
        assert f"`{reason}`" in TEXT and f'"{reason}"' in code
    for place in ("configs/data/full.yaml", "configs/data/full-cluster.yaml", "configs/data/full/permissive.yaml",
                  "benchmarks/gpu/stages.py", "models/language/prompts/judge.yaml"):  # fmt: skip
        assert place.removeprefix("configs/") in TEXT or Path(place).name in TEXT
        assert (ROOT / place).is_file()
