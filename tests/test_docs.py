"""The documents say what is so: commands parse, code runs, tables match the store, and the site builds."""

import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import typer
import yaml

from editfoundry.cli import AREAS, app
from editfoundry.models.manifest import packaged_manifest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CHEAP = {"editfoundry models list", "editfoundry models list --stack embedded --json", "editfoundry models path"}
ELSEWHERE = {"source .venv/bin/activate"}
BUILT_IN = {"--help"}


def fences(page: Path, language: str) -> list[str]:
    return [body for name, body in FENCE.findall(page.read_text()) if name == language]


def lines(page: Path) -> Iterator[str]:
    """Command lines of a page's bash blocks, continuation lines joined and comments dropped."""
    for block in fences(page, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                yield shlex.join(words)


COMMANDS = sorted({(page.name, line) for page in PAGES for line in lines(page)})


def parse(arguments: list[str]) -> None:
    """Parse as the root command would, down to the last sub-command, without calling anything."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("editfoundry", list(arguments))
    while hasattr(command, "resolve_command") and context._protected_args + context.args:
        rest = context._protected_args + context.args
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


def test_the_documents_hold_commands() -> None:
    assert len(COMMANDS) > 20


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[f"{page}: {line}" for page, line in COMMANDS])
def test_every_documented_command_parses(page: str, line: str) -> None:
    del page
    words = shlex.split(line)
    if words[0] == "editfoundry":
        parse(words[1:])
    elif words[0].startswith("./"):
        script = ROOT / words[0]
        assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
        assert script.stat().st_mode & 0o111
    else:
        assert line in ELSEWHERE


def test_the_parser_of_this_file_refuses_what_does_not_exist() -> None:
    with pytest.raises(Exception, match="nonsense"):
        parse(["models", "list", "--nonsense"])
    with pytest.raises(Exception, match="nonsense"):
        parse(["models", "nonsense"])


@pytest.mark.parametrize("line", sorted(CHEAP))
def test_cheap_documented_commands_run(line: str, tmp_path: Path) -> None:
    assert line in {command for _, command in COMMANDS}
    child = subprocess.run([sys.executable, "-m", *shlex.split(line)], cwd=tmp_path, capture_output=True, text=True,
                           check=False, timeout=60)
    assert child.returncode == 0, child.stderr
    assert child.stdout


def commands() -> Iterator[tuple[str, set[str]]]:
    """Every command with its options, as `editfoundry --help` and its descendants would list them."""
    for area, (module, _) in AREAS.items():
        top: Any = typer.main.get_command(importlib.import_module(module).app)
        for name, command in getattr(top, "commands", {"": top}).items():
            options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
            yield f"editfoundry {area} {name}".strip(), options - BUILT_IN


def test_the_reference_lists_every_command_with_exactly_its_options() -> None:
    sections = re.split(r"^#{2,3} `(editfoundry[^`]*)`$", (ROOT / "docs/cli.md").read_text(), flags=re.MULTILINE)
    documented = {title: set(re.findall(r"`(?:-\w`, `)?(--[a-z0-9-]+)", body))
                  for title, body in zip(sections[1::2], sections[2::2], strict=True)}
    assert documented == dict(commands())


def test_the_licence_table_is_the_store() -> None:
    text = (ROOT / "docs/models.md").read_text()
    rows = {cells[0].strip("`"): cells for line in text.splitlines() if line.startswith("| `")
            for cells in [[cell.strip() for cell in line.strip("|").split("|")]]}
    manifest = packaged_manifest()
    assert set(rows) == set(manifest.models)
    for model, entry in manifest.models.items():
        assert any(cell.startswith(entry.licence) for cell in rows[model][1:]), model
        if entry.carrier is not None:
            assert rows[model][-1] == entry.carrier


def test_the_example_recipe_works(monkeypatch: pytest.MonkeyPatch) -> None:
    from editfoundry.data_engine import taxonomy
    from editfoundry.data_engine.recipes import base
    from editfoundry.data_engine.records import Source, Turn
    from editfoundry.data_engine.scene import Scene
    from editfoundry.data_engine.stages.instruct import InstructConfig
    from editfoundry.data_engine.together import run_together

    recipe_code, row_code = fences(ROOT / "docs/edit-types.md", "python")
    module = ModuleType("editfoundry.data_engine.recipes.monochrome")
    exec(recipe_code, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    row = eval(row_code, {"EditType": taxonomy.EditType})
    monkeypatch.setitem(taxonomy.TYPES, row.name, row)
    [config] = fences(ROOT / "docs/edit-types.md", "yaml")
    assert InstructConfig.model_validate(yaml.safe_load(config)["instruct"]).photograph_rates == {"monochrome": 0.2}

    recipe = base.recipe("monochrome")
    source = Source(id="s", sha256="0", uri="s.jpg", grid=(16, 16))
    [draft] = recipe.plan(base.Plan(source, (), (), (), np.random.default_rng(0)))
    turn = Turn(index=1, type="monochrome", parent=0, instruction=row.templates[0].format(**draft.fields))
    assert turn.instruction == "Turn the photograph black and white."
    photograph = np.zeros((16, 16, 3), np.uint8)
    photograph[:, 8:] = (255, 0, 0)
    [edited] = run_together([recipe.render(Scene(photograph), turn, tools=None)], serve=None)  # type: ignore[arg-type,list-item]
    after = edited.scene.pixels
    assert after[0, 0].tolist() == [0, 0, 0]
    assert after[0, 8].tolist() == [76, 76, 76]


def test_every_linked_file_exists() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith("https://"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    child = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
                           cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert child.returncode == 0, child.stdout + child.stderr
    page = (tmp_path / "site" / "index.html").read_text()
    assert "EditFoundry" in page
    assert "fonts.googleapis" not in page
