"""What an executor is: it decides where a stage runs on which shard, and nothing else."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, Self

from editfoundry.core.errors import EditFoundryError
from editfoundry.data_engine.execution import Plan, Task
from editfoundry.data_engine.ledger import Commit

Advance = Callable[[int], None]


class WorkerFailure(EditFoundryError):
    """Workers cannot do the work at all: they do not start, or die where no sample can be blamed."""


class Executor(Protocol):
    """Runs tasks of one stage at a time; a context manager that ends its workers on the way out."""

    def execute(self, plan: Plan, tasks: Sequence[Task], advance: Advance) -> Iterator[Commit]:
        """Run the tasks, yielding commits as they come. `advance(n)`: n more inputs done (negative: to be redone).

        Raises the error that stopped a shard (DiskFull, ModelMissing, …), or WorkerFailure.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...
