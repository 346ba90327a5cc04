"""Untrusted instructions: markup and control characters out, length checked."""

import html
from html.parser import HTMLParser
from typing import Any

from editfoundry.data_engine.imports.rows import RowRefused
from editfoundry.data_engine.source_spec import MAX_TEXT, clean_text

MAX_MARKUP = 10 * MAX_TEXT
_HIDDEN = ("script", "style", "template")


def clean_instruction(value: Any, max_words: int) -> str:
    """An instruction as one printable line. Raises RowRefused `no_instruction`, `not_utf8` or `long_instruction`."""
    if isinstance(value, bytes):
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise RowRefused("not_utf8", f"the instruction is not UTF-8 text (byte {error.start})") from error
    if not isinstance(value, str):
        raise RowRefused("no_instruction", f"the instruction is {type(value).__name__}, not text")
    if len(value) > MAX_MARKUP:
        raise RowRefused("long_instruction", f"{len(value)} characters, more than {MAX_MARKUP}")
    visible = _without_markup(value).encode("utf-8", "ignore").decode()
    if len(visible.strip()) > MAX_TEXT:
        raise RowRefused("long_instruction", f"{len(visible.strip())} characters, more than {MAX_TEXT}")
    text = clean_text(visible)
    words = len(text.split())
    if not any(char.isalnum() for char in text):
        raise RowRefused("no_instruction", "the instruction is empty")
    if words > max_words:
        raise RowRefused("long_instruction", f"{words} words, more than {max_words}")
    return text


def _without_markup(text: str) -> str:
    if "<" not in text and "&" not in text:
        return text
    parser = _Visible()
    parser.feed(html.unescape(text))
    parser.close()
    return "".join(parser.parts)


class _Visible(HTMLParser):
    """Collects what a reader of the HTML would see."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._hidden += tag in _HIDDEN
        self.parts.append(" ")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(0, self._hidden - (tag in _HIDDEN))
        self.parts.append(" ")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)
