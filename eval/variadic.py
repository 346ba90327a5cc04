"""Options that take several values after their name once: `--human A B C` beside `--human A --human B`."""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from typer.core import TyperCommand


class VariadicCommand(TyperCommand):
    """A command whose `variadic` options, declared as lists, take every value up to the next option.

    Where a value begins with a dash, it is written as ./-name, as for any command.
    """

    variadic: ClassVar[frozenset[str]] = frozenset()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(repeat_options(args, self.variadic)))


def repeat_options(args: Iterable[str], names: frozenset[str]) -> Iterator[str]:
    """The arguments, with the name repeated before every further value of a variadic option.

    >>> list(repeat_options(["--human", "a", "b", "--json"], frozenset({"--human"})))
    ['--human', 'a', '--human', 'b', '--json']
    """
    name, values = "", 0
    for argument in args:
        if argument.startswith("-") and argument != "-":
            option, equals, _ = argument.partition("=")
            name, values = (option, len(equals)) if option in names else ("", 0)
        elif name:
            if values:
                yield name
            values += 1
        yield argument
