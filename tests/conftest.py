"""Settings and fixtures that several areas share."""

import os

# Before any import that reads them: no hub, one thread in every library, no forks of the tokenizer.
os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from editfoundry.models.store import Store

CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                  "--disable-background-networking", "--disable-component-update", "--disable-sync"]
REQUIRE_WEIGHTS = os.environ.get("EDITFOUNDRY_REQUIRE_WEIGHTS") == "1"


@cache
def missing_weights() -> str:
    """Which embedded weights are absent and what to do, or an empty string."""
    store = Store()
    missing = [model for model in store.manifest.ids("embedded") if not store.present(model)]
    if not missing:
        return ""
    return f"weights not in {store.cache_dir}: {', '.join(missing)}; run `editfoundry models pull`"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked `weights` are skipped without them, or fail if EDITFOUNDRY_REQUIRE_WEIGHTS=1 says they must run."""
    if item.get_closest_marker("weights") and (reason := missing_weights()):
        if REQUIRE_WEIGHTS:
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout the tests are in."""
    return Path(__file__).parents[1]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium (the system's own), or a skip that says what is missing."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `dev`)")
    executable = shutil.which("chromium")
    if executable is None:
        pytest.skip("no chromium on the PATH: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_FLAGS)
        yield chromium
        chromium.close()
