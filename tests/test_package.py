"""What a user installs: the wheel and the sdist carry everything, and work away from the checkout."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

LOCAL = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "runs", "site", "dist",
                               "build", "*.egg-info")
DATA = (".yaml", ".json", ".html", ".css", ".js", ".jinja", ".typed")
FROM_WHEEL = """
import editfoundry.data_engine.pipeline
from editfoundry.core.config import load_config
from editfoundry.data_engine.config import RunConfig
from editfoundry.models.manifest import packaged_manifest

assert packaged_manifest().ids("embedded")
load_config(RunConfig, "data/quickstart.yaml")
print(editfoundry.__file__)
print(editfoundry.data_engine.__file__)
"""

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    child = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False,
                           timeout=300, env={**os.environ, **environment})
    assert child.returncode == 0, child.stdout + child.stderr
    return child.stdout


@pytest.fixture(scope="module")
def archives(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel built from it, of a copy of the checkout."""
    copy = tmp_path_factory.mktemp("package") / "checkout"
    shutil.copytree(repository, copy, symlinks=True, ignore=LOCAL)
    run(sys.executable, "-m", "build", "--no-isolation", ".", cwd=copy)
    return copy / "dist"


@pytest.fixture(scope="module")
def expected(repository: Path) -> set[str]:
    """Every module and data file of the package, through its links, as paths below the package's parent."""
    files = set()
    for folder, subfolders, names in os.walk(repository / "editfoundry", followlinks=True):
        subfolders[:] = [name for name in subfolders if name != "__pycache__"]
        files |= {str((Path(folder) / name).relative_to(repository)) for name in names if name.endswith((".py", *DATA))}
    assert {"editfoundry/models/store.yaml", "editfoundry/configs/data/quickstart.yaml"} <= files
    return files


def test_the_wheel_carries_every_file_and_nothing_beside_the_package(archives: Path, expected: set[str]) -> None:
    [wheel] = archives.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert expected - names == set()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"editfoundry"}


def test_the_sdist_carries_every_file(archives: Path, expected: set[str]) -> None:
    [sdist] = archives.glob("*.tar.gz")
    with tarfile.open(sdist) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert expected - names == set()
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names


def test_the_installed_wheel_works_from_another_directory(archives: Path, tmp_path: Path) -> None:
    [wheel] = archives.glob("*.whl")
    target, elsewhere = tmp_path / "target", tmp_path / "elsewhere"
    elsewhere.mkdir()
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, wheel, cwd=elsewhere)
    answer = run(sys.executable, "-c", FROM_WHEEL, cwd=elsewhere, PYTHONPATH=str(target))
    assert all(Path(line).is_relative_to(target) for line in answer.splitlines())
    assert "Usage: " in run(target / "bin" / "editfoundry", "--help", cwd=elsewhere, PYTHONPATH=str(target))
