"""Values of a row by the names that a configuration gives them."""

import math
from collections.abc import Mapping
from typing import Any

from editfoundry.data_engine.imports.config import Score
from editfoundry.data_engine.imports.rows import RowRefused
from editfoundry.data_engine.readers.records import parse

MAX_JSON = 4 * 1024 * 1024


def top_column(name: str, columns: set[str]) -> str | None:
    """The column that holds `name`: itself, or the struct `a` of `a.b`; None if there is none."""
    if name in columns:
        return name
    head = name.partition(".")[0]
    return head if head != name and head in columns else None


def field_at(row: Mapping[str, Any], name: str) -> Any:
    """The value of `name`, or of the field `b` of the struct `a` for `a.b`; None where there is none."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def row_id(value: Any) -> str:
    """A row's own id as text, "" for none."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    return str(value)


def image_bytes(value: Any, name: str, max_bytes: int) -> bytes:
    """The encoded picture in a column: bytes, or the struct of bytes and path that Hugging Face `datasets` writes.

    Raises RowRefused `missing_image` or `too_many_bytes`.
    """
    data = value.get("bytes") if isinstance(value, Mapping) else value
    if not isinstance(data, bytes) or not data:
        raise RowRefused("missing_image", f"{name} holds no picture")
    if len(data) > max_bytes:
        raise RowRefused("too_many_bytes", f"{name}: {len(data)} bytes exceed {max_bytes}")
    return data


def parse_json(data: bytes, name: str) -> dict[str, Any]:
    """An untrusted JSON object. Raises ImageError `bad_record`."""
    if len(data) > MAX_JSON:
        raise RowRefused("bad_record", f"{name}: {len(data)} bytes of JSON, more than {MAX_JSON}")
    value = parse(data, name)
    if not isinstance(value, dict):
        raise RowRefused("bad_record", f"{name}: JSON, but not an object")
    return value


def checked_score(name: str, value: Any, score: Score) -> float | None:
    """A score as a number. Raises RowRefused `bad_score` for what is none or out of range, `low_score` below the cut.

    A score that is absent is None, unless a least value is asked of it.
    """
    if value is None and score.minimum is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RowRefused("bad_score", f"{name} is {value!r:.60}, not a number")
    number = float(value)
    if not score.low <= number <= score.high:
        raise RowRefused("bad_score", f"{name} is {number:g}, outside of {score.low:g} to {score.high:g}", number)
    if score.minimum is not None and number < score.minimum:
        raise RowRefused("low_score", f"{name} is {number:g}, less than {score.minimum:g}", number)
    return number
