"""What a language model wrote is somebody else's text: whether it may become an instruction or a result phrase.

Everything is decided from the words and the plan. Positions are judged by `core.wording.position_agrees`, sizes by
`core.wording.size_words`; nothing here trusts the model. Every function answers with complaints in plain words, which
go back to the model when it is asked again, and never quote its text.
"""

import re
import unicodedata
from collections.abc import Iterable

from editfoundry.core.english import plural
from editfoundry.core.geometry import Box, Grid, position_agrees, size_words
from editfoundry.data_engine.ideas import head, same_noun
from editfoundry.data_engine.wording import POSITIONS, content_words, problems

MAX_CHARACTERS = 400
MAX_RESULT_WORDS = 12
PRONOUNS = ("it", "its", "itself", "that", "this", "them", "they", "those", "these")

_ASCII = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "‐": "-", "‑": "-", "\u00a0": " "})
_MARKUP = re.compile(r"[<>{}\[\]\\`*_#|~^=\"@$&]|://")
_CHATTER = re.compile(
    r"\b(?:as an ai|language model|ai assistant|i(?:'m| am) (?:sorry|unable|afraid|not able)|i can(?:no|')t|i won't"
    r"|system prompt|prompt|instructions?|https?|www|json|here (?:is|are) (?:the|your|a)|sure thing|of course"
    r"|(?:ignore|disregard|forget) (?:all|any|every|the|previous|prior|above|these|those|your|my))\b",
    re.IGNORECASE,
)
_LEAKS = re.compile(r"\b(?:pixels?|coordinates?|bbox|bounding|percent|per cent|axis|degrees?)\b|%", re.IGNORECASE)
_LEADING_ARTICLE = re.compile(r"^(?:a|an|the)\s+", re.IGNORECASE)
_AFTER_NOUN = re.compile(r"^(?:made|covered|painted|in|with|of|full|wrapped|decorated|carved)\b", re.IGNORECASE)

_PLACES = Grid(480, 480)
_NINE = [Box(x - 8.0, y - 8.0, x + 8.0, y + 8.0) for x in (80, 240, 400) for y in (80, 240, 400)]

_PLANNED_PHRASE = re.compile(rf"\b(?:{'|'.join(POSITIONS.values())})\b(?! (?:of|from)\b)", re.IGNORECASE)

_SHARES = {"tenth": 0.1, "eighth": 0.125, "fifth": 0.2, "quarter": 0.25, "fourth": 0.25, "third": 0.33, "half": 0.5,
           "most": 0.75, "nearly all": 0.95, "almost all": 0.95}  # fmt: skip
_SHARE = re.compile(
    rf"\b(?P<share>{'|'.join(_SHARES)}|(?P<part>tiny|small) part)(?: of)? (?:the |this )?(?:whole |entire )?"
    r"(?:image|picture|photo|photograph|frame|scene)\b",
    re.IGNORECASE,
)
_LARGE = r"large|larger|largest|big|bigger|biggest|huge|giant|enormous|massive|gigantic"
_SMALL = r"tiny|tiniest|small|smaller|smallest|little|miniature|minuscule"
_SLACK = (0.75, 1.0, 1.33)
_LITTLE = {size_words(share) for share in (0.01, 0.05)}
_MUCH = {size_words(share) for share in (0.35, 0.5, 0.75, 0.95)}

_INTENTS = {
    "add": r"add|put|place|insert|include|introduce|bring|show|set|lay|stand|position|drop|give|there (?:should|must)|"
    r"with|have|paint|draw|hang|park|plant|let",
    "remove": r"remove|erase|delete|eliminate|clear|wipe|take|get rid|edit|cut|lose|without|disappear|vanish|gone|"
    r"clean|no longer|leave out|drop|strip|away",
    "extract": r"white|extract|isolate|cut|separate",
    "visual": r"reference",
}
_GOES_BACK = re.compile(
    r"\b(?:undo|undone|undoing|revert\w*|go(?:ing)? back|step back|one step|back to|bring\b.*\bback|put\b.*\bback"
    r"|restore\w*|return\w*|previous|earlier|cancel|rewind|roll back|before)\b",
    re.IGNORECASE,
)


def plain(text: object, limit: int = MAX_CHARACTERS) -> tuple[str, list[str]]:
    """The text in one Unicode form with ASCII quotes and dashes, and what makes it unusable whatever it says.

    Refused: anything that is no string, more than `limit` characters, characters that are not printable or not of the
    Latin script (they could hide words from the checks), line breaks, markup, links, and talk to or from a model.
    """
    if not isinstance(text, str):
        return "", ["is no text"]
    if len(text) > limit:
        return "", [f"is longer than {limit} characters"]
    flat = unicodedata.normalize("NFKC", text).translate(_ASCII).strip(" \n\r\t")
    found = []
    if not flat.isprintable():
        found.append("holds line breaks or characters that cannot be printed")
    if not all(_latin(character) for character in flat):
        found.append("holds characters that are not of the Latin script")
    if _MARKUP.search(flat):
        found.append("holds markup, quotes or links")
    if _CHATTER.search(flat):
        found.append("talks about the task instead of asking for the edit")
    return (" ".join(flat.split()), found) if not found else ("", found)


def _latin(character: str) -> bool:
    if character.isascii():
        return True
    return unicodedata.name(character, "").startswith("LATIN ")


def wording_problems(text: str, allowed: str = "") -> list[str]:
    """What `wording.problems` says, and words for measured places that `allowed` (the plan's own wording) lacks."""
    leaked = {match.lower() for match in _LEAKS.findall(text)} - {match.lower() for match in _LEAKS.findall(allowed)}
    return problems(text) + (["tells measurements instead of words"] if leaked else [])


def states_position(text: str) -> bool:
    """Whether a text states any position in the image: then it cannot agree with all nine places."""
    return any(not _fits(text, box, _PLACES) for box in _NINE)


def misplaced(text: str, box: Box, grid: Grid) -> list[str]:
    """Positions that the text states against the centre of the box it is about."""
    return [] if _fits(text, box, grid) else ["says another place than where it is"]


def _fits(text: str, box: Box, grid: Grid) -> bool:
    """`position_agrees` for the text and, alone, for every phrase in it that plans use for a position.

    Alone, because "on the right move" could as well describe a thing, as "on the right shelf" does. Only "of" or "from"
    behind it makes a phrase relative to something else.
    """
    return all(position_agrees(part, box, grid) for part in (text, *_PLANNED_PHRASE.findall(text)))


def missized(text: str, label: str, share: float) -> list[str]:
    """Sizes that the text states against the share of the image, in [0, 1], that the object's box covers.

    "about a third of the image" must be what `size_words` says of the share, or of a third more or less. Before the
    label, words for large things contradict what `size_words` calls tiny or small, words for small things contradict
    what it calls a third or more. Other sizes ("a large hat" for a dog) are not the object's.
    """
    near = {size_words(min(1.0, share * slack)) for slack in _SLACK}
    for match in _SHARE.finditer(text):
        part = match["part"]
        stated = f"a {part.lower()} part" if part else size_words(_SHARES[match["share"].lower()])
        if stated not in near:
            return [f"says another size: it is {size_words(share)} of the image"]
    size = size_words(share)
    wrong = _LARGE if size in _LITTLE else _SMALL if size in _MUCH else ""
    if wrong and re.search(rf"\b(?:{wrong}) (?:[\w-]+ ){{0,2}}?{re.escape(label.lower())}\b", text.lower()):
        return (
            [] if re.search(rf"\b(?:{wrong})\b", label.lower()) else [f"says another size: it is {size} of the image"]
        )
    return []


def says(text: str, noun: str) -> bool:
    """Whether a text holds these words together, the last one in singular or plural; case and hyphens do not count."""
    words = re.findall(r"[^\W_]+", noun.lower())
    if not words:
        return False
    last = "|".join(re.escape(form) for form in (words[-1], plural(words[-1])))
    return (
        re.search(r"\b" + r"\W+".join([*map(re.escape, words[:-1]), f"(?:{last})"]) + r"\b", text.lower()) is not None
    )


def unsaid(text: str, phrase: str) -> list[str]:
    """The content words of a phrase that a text holds in none of their common forms ("walk", "walking"), in order."""
    known = set(re.findall(r"[^\W\d_]+", text.lower()))
    return [word for word in content_words(phrase) if known.isdisjoint(_forms(word))]


def _forms(word: str) -> list[str]:
    return [*(word + ending for ending in ("", "s", "es", "d", "ed", "ly", "ish")), word.removesuffix("e") + "ing"]


def asks_for(text: str, kind: str) -> list[str]:
    """A complaint unless the text can be a request of this edit type (types that no word betrays always can)."""
    wanted = _INTENTS.get(kind)
    return [] if wanted is None or re.search(rf"\b(?:{wanted})\b", text.lower()) else [f"does not ask for: {kind}"]


def goes_back(text: str) -> bool:
    """Whether a turn says that it goes back to an earlier version."""
    return _GOES_BACK.search(text) is not None


def points_back(text: str, label: str) -> list[str]:
    """Complaints unless the text speaks of its object by a pronoun alone."""
    found = [] if set(re.findall(r"[a-z]+", text.lower())) & set(PRONOUNS) else ["uses no pronoun for the object"]
    named = says(text, label) or says(text, head(label))
    return [*found, "names the object, which it must only point back to"] if named else found


def result_problems(kind: str, given: object, label: str) -> tuple[str, list[str]]:
    """The result phrase to use for an edit of this type on an object of this label, and what is wrong with the reply.

    replace, visual: a noun phrase without its article, of another head noun than the label's. adjust: a look, alone
    ("polished brass") or with the label ("polished brass kettle"); the phrase always ends up naming the label, so that
    the object stays what it is. background, style and others: a noun phrase that does not name the label.
    """
    phrase, found = plain(given, 120)
    phrase = phrase.rstrip(".")
    found += [] if found else problems(phrase)
    if len(phrase.split()) > MAX_RESULT_WORDS:
        found.append(f"the result has more than {MAX_RESULT_WORDS} words")
    if re.search(r"[.;:!?/()]", phrase):
        found.append("the result is no plain noun phrase")
    if found:
        return "", found
    if kind in ("replace", "visual", "adjust"):
        phrase = _LEADING_ARTICLE.sub("", phrase)
    if kind == "adjust":
        return _look(phrase, label)
    if same_noun(head(phrase), head(label)) or phrase.lower() == label.lower():
        return "", ["the result is what is there already"]
    if kind not in ("replace", "visual") and label and says(phrase, label):
        return "", ["the result names the object that stays"]
    return (phrase, []) if head(phrase) else ("", ["the result names nothing"])


def _look(phrase: str, label: str) -> tuple[str, list[str]]:
    """An adjust's result phrase: always `label`, with a look before or after it."""
    noun = head(label)
    if any(same_noun(word, noun) for word in re.findall(r"[^\W\d_]+(?:-[^\W\d_]+)*", phrase)):
        if not same_noun(head(phrase), noun):
            return "", ["the result changes what the object is"]
        if not [word for word in content_words(phrase) if word not in content_words(label)]:
            return "", ["the result is what is there already"]
        return phrase, []
    if not content_words(phrase):
        return "", ["the result names no look"]
    whole = f"{label} {phrase}" if _AFTER_NOUN.match(phrase) else f"{phrase} {label}"
    return whole, []


def agrees_with_result(kind: str, text: str, result: str, label: str) -> list[str]:
    """Complaints unless an instruction asks for the result that was chosen with it (visual: never tells it)."""
    telling = [word for word in content_words(result) if word not in content_words(label)]
    if kind == "visual":
        told = [word for word in telling if word not in ("object", "reference") and says(text, word)]
        return ["tells what the reference shows"] if told else []
    if kind == "replace":
        return [] if says(text, head(result)) else ["does not name the result"]
    return [] if not telling or any(says(text, word) for word in telling) else ["does not name the result"]


def repeated(text: str, words: Iterable[str]) -> list[str]:
    """A complaint if a text repeats one of the words that only the premise says, or a word derived from it."""
    forms = "|".join(rf"{re.escape(word.lower())}(?:en|n?ish|dish|y|ly|s)?" for word in words)
    return ["repeats what the premise already says"] if forms and re.search(rf"\b(?:{forms})\b", text.lower()) else []
