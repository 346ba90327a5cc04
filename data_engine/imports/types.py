"""From a dataset's word for an edit to a type of the taxonomy."""

import re

from editfoundry.data_engine.direction import read_instruction
from editfoundry.data_engine.imports.config import DatasetSpec
from editfoundry.data_engine.imports.rows import RawTurn, RowRefused
from editfoundry.data_engine.taxonomy import TYPES


def type_of(turn: RawTurn, instruction: str, spec: DatasetSpec) -> str:
    """The type of a turn: the configured one, its own word's, or its verb's. Raises RowRefused `unknown_type`.

    A word is looked up as it is, then without case, spaces, dashes and a leading number (`2.1_object_addition`). Words
    that the taxonomy has itself need no entry.
    """
    if spec.type:
        return spec.type
    if turn.type:
        plain = re.sub(r"[\s-]+", "_", re.sub(r"^[\d.]+_?", "", turn.type.strip().lower()))
        found = spec.types.get(turn.type, spec.types.get(plain, plain if plain in TYPES else ""))
        if not found:
            raise RowRefused("unknown_type", f"no type of ours is configured for {turn.type!r:.80}")
        return found
    found = read_instruction(instruction).type if spec.infer_types else ""
    if not found:
        raise RowRefused("unknown_type", f"the row names no type, nor does its instruction: {instruction:.80}")
    return found
