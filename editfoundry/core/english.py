"""English nouns: their article and their plural."""

import re

_VOWEL_SOUND = re.compile(r"^(?:[aeio]|u(?!ni|k|s[ae]))", re.IGNORECASE)
_IRREGULAR = {
    "sheep": "sheep",
    "fish": "fish",
    "deer": "deer",
    "bison": "bison",
    "goose": "geese",
    "mouse": "mice",
    "person": "people",
    "ox": "oxen",
    "wolf": "wolves",
    "calf": "calves",
    "foot": "feet",
    "woodlouse": "woodlice",
    "scissors": "scissors",
    "pliers": "pliers",
    "broccoli": "broccoli",
    "butterflyfish": "butterflyfish",
}


def a(noun: str) -> str:
    """The noun with its indefinite article: `an owl`, `a unicorn`, `scissors` stays bare."""
    head = noun.split()[-1]
    if _IRREGULAR.get(head) == head and head in {"scissors", "pliers"}:
        return f"a pair of {noun}"
    return f"{'an' if _VOWEL_SOUND.match(noun) else 'a'} {noun}"


def plural(noun: str) -> str:
    """English plural of a noun phrase's last word: `red apples`, `mice`, `sheep`, `berries`, `brushes`."""
    noun, of, rest_of = noun.partition(" of ")
    *rest, head = noun.split()
    if head in _IRREGULAR:
        word = _IRREGULAR[head]
    elif re.search(r"(?:[sxz]|[cs]h)$", head):
        word = head + "es"
    elif re.search(r"[^aeiou]y$", head):
        word = head[:-1] + "ies"
    elif re.search(r"(?:tomat|potat|mang|buffal)o$", head):
        word = head + "es"
    else:
        word = head + "s"
    return " ".join([*rest, word]) + of + rest_of
