"""Structured replies: the JSON schema a server is given, and the check of what it sent back."""

import json
import re
from typing import Any, Literal, TypeVar, cast

from pydantic import BaseModel, ValidationError

from editfoundry.core.errors import EditFoundryError

MAX_REPLY_CHARACTERS = 1_000_000
MAX_ENUMERATED = 64
_FENCE = re.compile(r"```[A-Za-z]*[ \t]*\r?\n(.*?)```", re.DOTALL)
_KEPT_KEYWORDS = ("type", "properties", "items", "enum", "const", "anyOf", "$ref", "$defs", "description")
T = TypeVar("T", bound=BaseModel)


class BadReply(EditFoundryError):
    """A reply that is no JSON (`invalid_json`) or not what the schema asks for (`schema`)."""

    def __init__(self, reason: Literal["invalid_json", "schema"], detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def validate_reply(text: str, schema: type[T]) -> T:
    """The object that a model's reply holds: the whole text, or its only fenced block, is one JSON value.

    Strict: no NaN or infinities, no key twice, no number as text or text as number, nothing after the value. Keys that
    the schema does not know are as its own configuration says (`core.config.Config` forbids them).
    Raises BadReply; its message names the keys that are wrong and never quotes the reply.
    """
    block = _json_block(text)
    try:
        json.loads(block, object_pairs_hook=_unique, parse_constant=_refuse_constant)
        block.encode()
    except RecursionError as error:
        raise BadReply("invalid_json", "the reply is not JSON: nested too deeply") from error
    except UnicodeEncodeError as error:
        raise BadReply("invalid_json", "the reply holds half of a surrogate pair") from error
    except ValueError as error:
        what = error.msg if isinstance(error, json.JSONDecodeError) else str(error).partition("\n")[0]
        raise BadReply("invalid_json", f"the reply is not JSON: {what}"[:200]) from error
    try:
        return schema.model_validate_json(block, strict=True)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False, include_context=False)
        if wrong[0]["type"] == "json_invalid":
            raise BadReply("invalid_json", f"the reply is not JSON: {wrong[0]['msg']}"[:200]) from error
        named = [f"{'.'.join(map(str, entry['loc']))[:60] or '(whole reply)'}: {entry['msg'][:100]}" for entry in wrong]
        raise BadReply("schema", "; ".join(named[:3])) from error


def strict_schema(schema: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a pydantic model in the subset that every server's strict mode takes.

    All properties are required and no others allowed; keywords outside the subset (lengths, patterns, defaults) are
    left out, since the reply is validated against the model anyway; an integer from a small range becomes an enum.
    Raises ValueError for a model with free mappings or tuples of fixed length, which strict mode cannot express.
    """
    return cast(dict[str, Any], _strict(schema.model_json_schema(), schema.__name__))


def schema_instruction(schema: type[BaseModel]) -> str:
    """What a model is told whose server cannot be held to a schema."""
    written = json.dumps(strict_schema(schema), ensure_ascii=False)
    return f"Reply with one JSON object that satisfies this JSON schema, and nothing else:\n{written}"


def _json_block(text: str) -> str:
    if len(text) > MAX_REPLY_CHARACTERS:
        raise BadReply("invalid_json", f"the reply is longer than {MAX_REPLY_CHARACTERS} characters")
    stripped = text.strip()
    blocks = [] if stripped.startswith(("{", "[")) else _FENCE.findall(stripped)
    if len(blocks) > 1:
        raise BadReply("invalid_json", f"the reply holds {len(blocks)} fenced blocks instead of one")
    return blocks[0].strip() if blocks else stripped


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands in it twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _strict(node: Any, where: str) -> Any:
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return {"$ref": node["$ref"]}
    if "prefixItems" in node:
        raise ValueError(f"{where}: strict schemas have no tuples of fixed length; use a list or an object")
    if "oneOf" in node:
        node = {**node, "anyOf": node["oneOf"]}
    kept = {key: node[key] for key in _KEPT_KEYWORDS if key in node}
    for key in ("properties", "$defs"):
        if key in kept:
            kept[key] = {name: _strict(inner, f"{where}.{name}") for name, inner in kept[key].items()}
    if "items" in kept:
        kept["items"] = _strict(kept["items"], f"{where}[]")
    if "anyOf" in kept:
        kept["anyOf"] = [_strict(inner, where) for inner in kept["anyOf"]]
    if kept.get("type") == "object":
        if "properties" not in kept:
            raise ValueError(f"{where}: strict schemas have no free mappings; use a list of objects")
        kept |= {"additionalProperties": False, "required": list(kept["properties"])}
    low, high = node.get("minimum"), node.get("maximum")
    if kept.get("type") == "integer" and low is not None and high is not None and high - low < MAX_ENUMERATED:
        kept["enum"] = list(range(int(low), int(high) + 1))
    return kept
