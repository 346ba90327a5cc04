"""Progress on stderr: a bar with throughput and ETA on a terminal, a line now and then everywhere else."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

LINE_EVERY_S = 5.0
Advance = Callable[[int], None]


class Throughput(ProgressColumn):
    """Items per second, `-` until it is known."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f}/s" if task.speed else "-", style="progress.data.speed")


@contextmanager
def progress(description: str, total: int, console: Console | None = None) -> Iterator[Advance]:
    """Yields `advance(n)`; n may be negative when work has to be done again."""
    console = console or Console(file=sys.stderr)
    if not console.is_terminal:
        yield from _lines(description, total, console)
        return
    columns = (TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), Throughput(),
               TextColumn("ETA"), TimeRemainingColumn())
    with RichProgress(*columns, console=console) as bar:
        task = bar.add_task(description, total=total)
        yield lambda count: bar.advance(task, count)


def _lines(description: str, total: int, console: Console) -> Iterator[Advance]:
    started = last = time.monotonic()
    done = 0

    def line(now: float) -> str:
        speed = done / max(now - started, 1e-9)
        left = f", {(total - done) / speed:.0f} s left" if 0 < done < total else ""
        return f"{description}: {done}/{total} ({speed:.1f}/s{left})"

    def advance(count: int) -> None:
        nonlocal done, last
        done += count
        now = time.monotonic()
        if now - last >= LINE_EVERY_S and done < total:
            last = now
            console.print(line(now), highlight=False, markup=False)

    yield advance
    console.print(line(time.monotonic()), highlight=False, markup=False)
