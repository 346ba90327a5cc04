"""Text from outside on one printable line."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from editfoundry.core.text import one_line


def test_what_would_hide_or_break_a_line_becomes_a_blank() -> None:
    assert one_line("red\u202e\ncup\x1b[2J \udc00 on\u00a0it", 100) == "red cup [2J on it"
    assert one_line("wide  open spaces", 6) == "wide o"
    assert one_line("wide  open", 5) == "wide"


@given(st.text(st.characters(exclude_categories=())), st.integers(1, 40))
def test_any_text_becomes_a_printable_line_that_stays_as_it_is(text: str, most: int) -> None:
    line = one_line(text, most)
    assert len(line) <= most and line == one_line(line, most)
    assert not any(unicodedata.category(sign).startswith("C") for sign in line)
    line.encode()
