"""Makes `tests/support` importable, and offers the tiny checkpoints."""

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

SUPPORT = str(Path(__file__).parents[1] / "support")
if SUPPORT not in sys.path:
    sys.path.insert(0, SUPPORT)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The folder of a tiny perception checkpoint by the name of its function, written when first asked for."""
    from tiny import perception

    @cache
    def folder(name: str) -> str:
        return str(getattr(perception, name)(tmp_path_factory.mktemp(name)))

    return folder
