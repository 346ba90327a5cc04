"""Schemas as servers take them, and the strict reading of replies."""

import json
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from editfoundry.core.chat.structured import (
    MAX_REPLY_CHARACTERS,
    BadReply,
    schema_instruction,
    strict_schema,
    validate_reply,
)
from editfoundry.core.config import Config


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Thing(Config):
    """One object."""

    name: str = Field(min_length=1, description="a noun")
    size: Size = Size.SMALL


class Scene(Config):
    things: list[Thing]
    mood: Literal["calm", "wild"] | None = None
    score: int = Field(default=3, ge=1, le=5)
    share: float = Field(default=0.5, ge=0, le=1)


SCENE = {"things": [{"name": "cup", "size": "large"}], "mood": None, "score": 4, "share": 0.25}


def test_the_schema_is_strict_all_the_way_down() -> None:
    assert strict_schema(Scene) == {
        "type": "object",
        "additionalProperties": False,
        "required": ["things", "mood", "score", "share"],
        "properties": {
            "things": {"type": "array", "items": {"$ref": "#/$defs/Thing"}},
            "mood": {"anyOf": [{"type": "string", "enum": ["calm", "wild"]}, {"type": "null"}]},
            "score": {"type": "integer", "enum": [1, 2, 3, 4, 5]},
            "share": {"type": "number"},
        },
        "$defs": {
            "Size": {"type": "string", "enum": ["small", "large"]},
            "Thing": {
                "type": "object",
                "description": "One object.",
                "additionalProperties": False,
                "required": ["name", "size"],
                "properties": {"name": {"type": "string", "description": "a noun"}, "size": {"$ref": "#/$defs/Size"}},
            },
        },
    }


def test_properties_keep_their_order() -> None:
    """Models write them in this order: a reason that is asked for before a score is thought of before it."""
    assert list(strict_schema(Scene)["properties"]) == list(Scene.model_fields) == strict_schema(Scene)["required"]
    assert json.loads(schema_instruction(Scene).partition("\n")[2]) == strict_schema(Scene)
    assert schema_instruction(Scene).index('"things": {') < schema_instruction(Scene).index('"mood": {')


def test_one_of_several_models() -> None:
    class Other(Config):
        kind: Literal["other"]

    class Either(Config):
        value: Annotated[Other | Literal[7], Field()]

    value = strict_schema(Either)["properties"]["value"]
    assert value == {"anyOf": [{"$ref": "#/$defs/Other"}, {"type": "integer", "const": 7}]}


def test_what_strict_mode_cannot_express_is_named() -> None:
    class Mapping(Config):
        inner: dict[str, int]

    class Pair(Config):
        inner: tuple[int, int]

    for schema, words in ((Mapping, "Mapping.inner: .*free mappings"), (Pair, "Pair.inner: .*tuples")):
        with pytest.raises(ValueError, match=words):
            strict_schema(schema)


TEXT = json.dumps(SCENE)


@pytest.mark.parametrize(
    "text",
    [TEXT, f"  {TEXT}\n", f"```json\n{TEXT}\n```", f"```\r\n{TEXT}```", f"Here it is:\n```JSON\n{TEXT}\n```\nDone."],
)
def test_good_replies(text: str) -> None:
    scene = validate_reply(text, Scene)
    assert (scene.things[0].size, scene.mood, scene.score, scene.share) == (Size.LARGE, None, 4, 0.25)


@pytest.mark.parametrize(
    ("text", "reason", "words"),
    [
        ("", "invalid_json", "not JSON"),
        ("A cup.", "invalid_json", "not JSON"),
        (TEXT + " and", "invalid_json", "not JSON: Extra data"),
        (TEXT[:-5], "invalid_json", "not JSON"),
        (TEXT.replace("0.25", "NaN"), "invalid_json", "NaN is no JSON number"),
        (TEXT.replace("0.25", "-Infinity"), "invalid_json", "-Infinity"),
        (TEXT.replace("0.25", "1e999"), "schema", "share"),
        (TEXT.replace('"mood": null', '"score": 4'), "invalid_json", "twice"),
        (TEXT.replace("0.25", "9" * 5000), "invalid_json", "not JSON"),
        (f"```json\n{TEXT}\n```\n```json\n{TEXT}\n```", "invalid_json", "2 fenced blocks"),
        ("[" * 100_000, "invalid_json", "nested too deeply"),
        ('{"things":' * 300, "invalid_json", "not JSON"),
        (json.dumps("x" * MAX_REPLY_CHARACTERS), "invalid_json", "longer than"),
        (TEXT.replace("cup", "\\ud800"), "invalid_json", "not JSON"),
        (TEXT.replace("cup", "\ud800"), "invalid_json", "surrogate"),
        ("[]", "schema", "(whole reply)"),
        (TEXT.replace("4", '"4"'), "schema", "score"),
        (TEXT.replace("4", "4.0"), "schema", "score"),
        (TEXT.replace("4", "true"), "schema", "score"),
        (TEXT.replace("4", "6"), "schema", "score"),
        (TEXT.replace("cup", ""), "schema", "things.0.name"),
        (TEXT.replace("large", "huge"), "schema", "things.0.size"),
        (TEXT.replace("mood", "mode"), "schema", "mode"),
        (TEXT.replace('"name": "cup", ', ""), "schema", "things.0.name"),
    ],
)
def test_bad_replies(text: str, reason: str, words: str) -> None:
    with pytest.raises(BadReply) as caught:
        validate_reply(text, Scene)
    assert caught.value.reason == reason
    assert words in str(caught.value)
    assert len(str(caught.value)) < 600


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(st.text() | json_values.map(json.dumps))
def test_anything_is_an_object_of_the_schema_or_a_bad_reply(text: str) -> None:
    try:
        assert isinstance(validate_reply(text, Scene), Scene)
    except BadReply as error:
        assert error.reason in ("invalid_json", "schema")


@given(st.builds(Scene, things=st.lists(st.builds(Thing, name=st.text(min_size=1)), max_size=3)))
def test_what_a_model_writes_is_read_back(scene: Any) -> None:
    text = scene.model_dump_json()
    assert validate_reply(text, Scene) == validate_reply(f"```json\n{text}\n```", Scene) == scene
