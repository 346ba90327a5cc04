"""The page of implementations is made from the code, needs none of the optional packages, and its blocks work."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from editfoundry.models.cli import app
from editfoundry.models.implementations import describe, first_sentence, implementations, markdown
from editfoundry.models.registry import DEFAULTS, REGISTRY, ModelSpec, check

PAGE = Path(__file__).parents[2] / "docs" / "implementations.md"
HEAVY = ("torch", "transformers", "diffusers", "open_clip", "faiss", "peft", "httpx", "ultralytics", "sam2")
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"no {{name}}", name=name)
sys.meta_path.insert(0, Missing())
from editfoundry.models.implementations import implementations, markdown
assert len(list(implementations())) == {count}
sys.stdout.write(markdown())
"""
REQUIRED = {"base_url": "http://localhost:8000/v1", "model": "m"}


def test_the_page_is_what_the_command_prints() -> None:
    printed = CliRunner().invoke(app, ["implementations", "--markdown"])
    assert printed.exit_code == 0
    assert printed.stdout == markdown()
    remedy = "write it again: editfoundry models implementations --markdown > docs/implementations.md"
    assert PAGE.read_text("utf-8") == markdown(), remedy


def test_every_registered_implementation_is_there_with_its_stack() -> None:
    found = {(one.role, one.name): one for one in implementations()}
    assert set(found) == {(role, name) for role, names in REGISTRY.items() for name in names}
    assert {(role, name) for stack in DEFAULTS.values() for role, name in stack.items()} == {
        key for key, one in found.items() if one.default
    }
    assert found["scorer", "conse"].stack == "embedded" and found["scorer", "clip"].stack == "full"
    assert all(one.summary.endswith(".") and 10 < len(one.summary) < 300 for one in found.values())


def test_an_implementation_is_described_by_its_class() -> None:
    one = describe("adjuster", "sdxl-canny")
    assert one.checkpoints == ("sdxl-inpainting", "sdxl-controlnet-canny", "depth-anything-v2-small")
    assert one.summary.startswith("`Inpainter` that repaints an object along its own edges")
    assert one.options["condition"].choices == ("canny", "depth")
    assert one.options["steps"].default == 21 and not one.options["steps"].required
    assert describe("writer", "openai").options["base_url"].required
    assert describe("detector", "ssd").checkpoints == ("ssd-mobilenet-v2-coco",)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("One. Two.", "One."),
        ("CLIP (Radford et al. 2021) of FLUX.1 Fill,\n\nand more. `Then` this.", "CLIP (Radford et al. 2021) of "
         "FLUX.1 Fill, and more."),
        ('Says "A photograph.", with no nouns.', 'Says "A photograph.", with no nouns.'),
        ("Without a stop", "Without a stop"),
        ("", ""),
    ],
)  # fmt: skip
def test_first_sentences(text: str, sentence: str) -> None:
    assert first_sentence(text) == sentence


def test_the_blocks_of_the_page_are_configurations() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 20
    for block in blocks:
        [(role, options)] = yaml.safe_load(block).items()
        described = describe(role, options["name"]).options
        assert {name: one.default for name, one in described.items() if not one.required} == {
            name: options[name] for name, one in described.items() if not one.required
        }
        check(role, ModelSpec.of({**options, **{name: REQUIRED[name] for name, o in described.items() if o.required}}))


def test_it_needs_no_optional_package_and_loads_nothing() -> None:
    assert importlib.util.find_spec("torch") is not None  # what the child may not import is there to be imported
    count = sum(len(names) for names in REGISTRY.values())
    child = subprocess.run([sys.executable, "-c", WITHOUT.format(names=HEAVY, count=count)], capture_output=True,
                           text=True, check=False, timeout=60)  # fmt: skip
    assert child.returncode == 0, child.stderr
    assert child.stdout == markdown()


def test_json_and_table() -> None:
    rows = json.loads(CliRunner().invoke(app, ["implementations", "--json"]).stdout)
    fill = next(row for row in rows if row["name"] == "flux-fill")
    assert fill["role"] == "painter" and fill["checkpoints"] == ["flux1-fill-dev"] and fill["default"] is True
    assert fill["options"]["offload"] == {
        "default": "none", "required": False, "choices": ["none", "model", "sequential"]
    }  # fmt: skip
    table = CliRunner().invoke(app, ["implementations"]).stdout
    assert "flux-fill *" in table and "qwen2.5-vl" in table
