"""The shared look of every page: one base template, one before/after component, everything escaped and inlined.

A page makes no external request and runs no script but its own: styles and scripts are inlined from package data,
images are data URIs, and the content security policy lists the hash of every script, so that an injected script would
not run even if it reached the page unescaped.

Templates, styles and scripts are named `file` (this package's own) or `package:file` (that package's `templates`
folder), for example `editfoundry.data_engine:report.html.jinja`. A page template starts with
`{% extends "base.html.jinja" %}` and may `{% set styles = [...] %}` and `{% set scripts = [...] %}`.
"""

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

_OWN_STYLES = ("base.css",)
_OWN_SCRIPTS = ("compare.js",)


def render(template: str, /, **context: Any) -> str:
    """The HTML of a page. Every value is escaped, except `Markup`.

    `context` goes to the template. The base template reads `title`, and `images`: data URIs by key, which
    `_compare.html.jinja` refers to and which are decoded only when they scroll into view.
    Raises FileNotFoundError for an unknown template, style or script, jinja2.UndefinedError for a missing value and
    ValueError for NaN in embedded JSON.
    """
    return _ENVIRONMENT.get_template(template).render(context)


def data_uri(data: bytes, media_type: str) -> str:
    """`data` as a base64 data URI, the only form of image that the content security policy allows."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"


def content_security_policy(scripts: Sequence[str] = ()) -> str:
    """The policy of a page that runs the base scripts and `scripts` (resource names), and loads nothing."""
    hashes = " ".join(f"'sha256-{_digest(name)}'" for name in (*_OWN_SCRIPTS, *scripts))
    return (f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {hashes}; "
            "base-uri 'none'; form-action 'none'")


def _digest(name: str) -> str:
    return base64.b64encode(hashlib.sha256(_text(name).encode()).digest()).decode("ascii")


def _inline(name: str) -> Markup:
    """A style or script as markup. Raises ValueError if the text could end its own element."""
    text = _text(name)
    if "</" in text or "<!--" in text:
        raise ValueError(f"{name}: holds '</' or '<!--', which cannot be inlined into a page; write it another way")
    return Markup(text)


def _text(name: str) -> str:
    return _resource(name).read_text(encoding="utf-8")


def _resource(name: str) -> Traversable:
    package, separator, file = name.rpartition(":")
    resource = files(package).joinpath("templates", file) if separator else files(__name__).joinpath(file)
    if not resource.is_file():
        raise FileNotFoundError(f"page resource {name!r} is not among the data of package {package or __name__!r}")
    return resource


def _number(value: float, digits: int = 0) -> str:
    """1234.5 → 1,234 (or 1,234.50 with `digits=2`)."""
    return f"{value:,.{digits}f}"


def _percent(share: float, digits: int = 0) -> str:
    """0.256 → 26%."""
    return f"{share:.{digits}%}"


def _environment() -> Environment:
    environment = Environment(autoescape=True, loader=FunctionLoader(_text), undefined=StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"sort_keys": True, "allow_nan": False, "separators": (",", ":")}
    environment.filters.update(number=_number, percent=_percent)
    environment.globals.update(inline=_inline, content_security_policy=content_security_policy,
                               own_styles=_OWN_STYLES, own_scripts=_OWN_SCRIPTS)
    return environment


_ENVIRONMENT = _environment()
