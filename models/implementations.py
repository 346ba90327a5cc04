"""What a configuration can name under `models`: every registered implementation, described from its code."""

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from editfoundry.core.config import Config
from editfoundry.models.manifest import packaged_manifest
from editfoundry.models.registry import DEFAULTS, REGISTRY, implementation, stack_of

SENTENCE = re.compile(r"(.+?\.)(?=\s+[A-Z`]|$)")
"""Up to a full stop that ends a sentence: "et al. 2021", "FLUX.1 Fill" and "e.g. this" go on."""
BARE = re.compile(r"[A-Za-z.][\w./-]*")
"""Texts that YAML takes without quotes."""
PAGE = """\
# Implementations

Everything that a configuration can name under `models`, by role, with the options it takes and their defaults. A block
can be copied into a configuration; leave out what should stay at its default. Checkpoints are ids of
`editfoundry models list`, or folders of your own. [The full stack](full-stack.md) says what the common options do.

This page is what `editfoundry models implementations --markdown` prints.
"""


@dataclass(frozen=True)
class Option:
    """A setting. required: it has no default. choices: all values it takes, where they are listed."""

    default: Any
    required: bool
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Implementation:
    """A model of a role. checkpoints: ids of the model store that it loads by default. default: its stacks' choice."""

    role: str
    name: str
    stack: Literal["embedded", "full"]
    default: bool
    summary: str
    checkpoints: tuple[str, ...]
    options: Mapping[str, Option]

    def row(self) -> dict[str, Any]:
        """As plain data."""
        options = {
            name: {"default": option.default, "required": option.required, "choices": list(option.choices)}
            for name, option in self.options.items()
        }
        return {"role": self.role, "name": self.name, "stack": self.stack, "default": self.default,
                "summary": self.summary, "checkpoints": list(self.checkpoints), "options": options}  # fmt: skip


def implementations() -> Iterator[Implementation]:
    """Every implementation, role after role. Imports their modules; needs no optional package and loads no weights."""
    for role, names in REGISTRY.items():
        for name in names:
            yield describe(role, name)


def describe(role: str, name: str) -> Implementation:
    """One implementation, from its class, the `Options` beside it, and the model store."""
    found = implementation(role, name)
    options = _options(found.Options) if hasattr(found, "Options") else {}
    known = packaged_manifest().models
    named = [*getattr(found, "weights", ()), *(option.default for option in options.values())]
    return Implementation(
        role=role,
        name=name,
        stack=stack_of(role, name),
        default=name in {DEFAULTS["embedded"].get(role), DEFAULTS["full"].get(role)},
        summary=first_sentence(inspect.getdoc(found) or ""),
        checkpoints=tuple(dict.fromkeys(one for one in named if isinstance(one, str) and one in known)),
        options=options,
    )


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line.

    >>> first_sentence("CLIP (Radford et al. 2021),\\n\\non FLUX.1 too. More.")
    'CLIP (Radford et al. 2021), on FLUX.1 too.'
    """
    line = " ".join(text.split())
    match = SENTENCE.match(line)
    return match[1] if match else line


def _options(kind: type[Config]) -> dict[str, Option]:
    return {name: _option(field) for name, field in kind.model_fields.items()}


def _option(field: FieldInfo) -> Option:
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    if field.is_required():
        return Option(None, True, choices)
    return Option(json.loads(json.dumps(field.get_default(call_default_factory=True), default=str)), False, choices)


def markdown() -> str:
    """The reference page: a section per role, and in it one per implementation."""
    parts = [PAGE]
    role = ""
    for one in implementations():
        if one.role != role:
            role = one.role
            parts.append(f"## `{role}`\n")
        parts.append(_section(one))
    return "\n".join(parts)


def _section(one: Implementation) -> str:
    standing = f"{one.stack} stack{', its default' if one.default else ''}"
    lines = [f"### `{one.role}: {one.name}`", "", f"{one.summary} *({standing})*", ""]
    if one.checkpoints:
        known = packaged_manifest().models
        named = [f"`{checkpoint}` ({known[checkpoint].licence})" for checkpoint in one.checkpoints]
        lines += [f"Weights: {', '.join(named)}.", ""]
    if one.options:
        lines += ["```yaml", f"{one.role}:", f"  name: {one.name}"]
        lines += [f"  {_yaml(name, option)}" for name, option in one.options.items()]
        lines += ["```", ""]
    return "\n".join(lines)


def _yaml(name: str, option: Option) -> str:
    if option.required:
        return f"{name}: …  # required"
    choices = f"  # {', '.join(option.choices)}" if option.choices else ""
    bare = isinstance(option.default, str) and BARE.fullmatch(option.default)
    value = option.default if bare else json.dumps(option.default, ensure_ascii=False)
    return f"{name}: {value}{choices}"
