"""Text from outside (data, servers, models) made fit for a table, a terminal and a page."""

import unicodedata


def one_line(text: str, most: int) -> str:
    """The text as one printable line of at most `most` characters.

    Control, format and unassigned characters and halves of surrogate pairs become spaces, runs of blanks one.

    >>> one_line("a\\u202e\\n  b" + 9 * "c", 5)
    'a bcc'
    """
    printable = "".join(" " if unicodedata.category(sign).startswith("C") else sign for sign in text)
    return " ".join(printable.split())[:most].rstrip()
