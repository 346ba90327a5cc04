import io
import itertools

import pytest
from rich.console import Console

from editfoundry.core import progress as module
from editfoundry.core.progress import progress


def test_without_a_terminal_there_are_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0, 4)
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(clock)))
    out = io.StringIO()
    with progress("filter", 8, Console(file=out)) as advance:
        for count in (2, 2, -1, 5):
            advance(count)
    assert out.getvalue().splitlines() == ["filter: 4/8 (0.5/s, 8 s left)", "filter: 8/8 (0.4/s)"]


def test_an_error_inside_passes_through() -> None:
    out = io.StringIO()
    with pytest.raises(ZeroDivisionError), progress("filter", 2, Console(file=out)):
        raise ZeroDivisionError
    assert out.getvalue() == ""


def test_a_terminal_gets_a_bar_with_speed_and_eta() -> None:
    out = io.StringIO()
    with progress("filter", 2, Console(file=out, force_terminal=True, width=100)) as advance:
        advance(2)
    assert "filter" in out.getvalue()
    assert "2/2" in out.getvalue()
    assert "ETA" in out.getvalue()
