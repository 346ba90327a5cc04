"""YAML from anyone: plain data only, every key once, and no aliases that multiply or contain themselves."""

from collections.abc import Hashable
from typing import Any

import yaml
from yaml.constructor import ConstructorError

MAX_ALIASED = 10_000
MAX_DEPTH = 50


class _Loader(yaml.SafeLoader):
    """yaml.SafeLoader that refuses a key given twice, where the original keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # the original names the place
            if key in seen:
                raise ConstructorError(None, None, f"the key {key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """Plain data of a YAML text. Raises yaml.YAMLError for anything but one document of plain data.

    Refused besides what is no YAML: object tags, a key given twice, nesting deeper than 50, aliases that repeat more
    than 10,000 values in all or contain themselves, and numbers too long to be read.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        repeated = _size(node, {}, ()) - len(_distinct(node))
        if repeated > MAX_ALIASED:
            raise yaml.YAMLError(f"its aliases repeat {repeated} values, more than {MAX_ALIASED}")
        return loader.construct_document(node)
    except RecursionError as error:
        raise yaml.YAMLError("nested too deeply") from error
    except ValueError as error:
        raise yaml.YAMLError(f"a value cannot be read: {error}") from error
    finally:
        loader.dispose()


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _size(node: yaml.Node, known: dict[int, int], above: tuple[int, ...]) -> int:
    """How many nodes a tree has with every alias written out."""
    if id(node) in above:
        raise yaml.YAMLError("an alias contains itself")
    if len(above) > MAX_DEPTH:
        raise yaml.YAMLError(f"nested deeper than {MAX_DEPTH}")
    if id(node) not in known:
        known[id(node)] = 1 + sum(_size(child, known, (*above, id(node))) for child in _children(node))
    return known[id(node)]


def _distinct(root: yaml.Node) -> set[int]:
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            waiting += _children(node)
    return seen
