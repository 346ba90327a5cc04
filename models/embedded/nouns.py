"""The closed vocabulary of nouns: what the tagger's classes add up to, which words of a text name it, what is scenery.

`KINDS` are plain nouns that are true of every class listed: a "tabby cat" or "Siamese cat" is a cat, whichever breed
the tagger guesses. Classes of parts, materials, clothes and scenes are left out on purpose, because a crop is easily
mistaken for them; a noun that is not here can never label a region that only the tagger knows.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache

from editfoundry.models.embedded.labels import SUPPORT, imagenet_nouns
from editfoundry.models.protocols import Tag

Classes = tuple[int | range, ...]

KINDS: dict[str, Classes] = {
    **{label: SUPPORT[label] for label in (
        "bird", "cat", "dog", "horse", "sheep", "elephant", "bear", "zebra", "cow",
        "bicycle", "motorcycle", "airplane", "bus", "truck", "boat", "umbrella", "backpack", "teddy bear", "laptop",
        "banana", "pizza", "broccoli",
    )},
    "car": (407, 436, 468, 511, 609, 627, 656, 661, 734, 751, 817),
    "train": (466, 547, 820), "cup": (504, 967, 968), "bottle": (440, 720, 737, 898, 907),
    "clock": (409, 530, 892), "hat": (515, 808), "chair": (423, 559, 765), "book": (917, 921),
    "fish": (0, 1, range(389, 398)), "shark": (2, 3, 4), "frog": (30, 31, 32), "turtle": (range(33, 38),),
    "lizard": (range(38, 49),), "crocodile": (49, 50), "snake": (range(52, 69),), "spider": (range(72, 78),),
    "crab": (118, 119, 120, 121), "fox": (range(277, 281),), "wolf": (269, 270, 271), "lion": (291,), "tiger": (292,),
    "leopard": (288, 289), "ladybug": (301,), "beetle": (300, range(302, 308)), "bee": (309,), "ant": (310,),
    "grasshopper": (311,), "dragonfly": (319, 320), "butterfly": (range(321, 327),), "starfish": (327,),
    "rabbit": (330, 331, 332), "hamster": (333,), "squirrel": (335,), "pig": (341,), "camel": (354,), "llama": (355,),
    "otter": (360,), "ape": (range(365, 370),), "monkey": (range(370, 383),), "panda": (388,), "red panda": (387,),
    "kangaroo": (104,), "koala": (105,), "jellyfish": (107,), "snail": (113,), "lobster": (122, 123),
    "guitar": (402, 546), "piano": (579, 881), "violin": (889,), "drum": (541,), "trumpet": (513,),
    "saxophone": (776,), "balloon": (417,), "parachute": (701,), "candle": (470,), "camera": (732, 759),
    "lighthouse": (437,), "fountain": (562,), "soccer ball": (805,), "tennis ball": (852,),
    "basketball": (430,), "golf ball": (574,), "teapot": (849,), "coffeepot": (505,), "flowerpot": (738,),
    "vase": (883,), "lamp": (846,), "bench": (703,), "tractor": (866,), "tent": (672,), "mailbox": (637,),
    "traffic light": (920,), "street sign": (919,), "building": (425, 449, 483, 497, 500, 663, 668, 698, 832),
    "flower": (985, 986), "mushroom": (947, 992, 996, 997), "acorn": (988,), "apple": (948,), "strawberry": (949,),
    "orange": (950,), "lemon": (951,), "pineapple": (953,), "pomegranate": (957,), "cucumber": (943,),
    "bell pepper": (945,), "cauliflower": (938,), "ice cream": (928,), "hamburger": (933,), "hot dog": (934,),
}  # fmt: skip

# Other words by which a text names a label.
SYNONYMS: dict[str, tuple[str, ...]] = {
    "person": ("man", "woman", "boy", "girl", "child", "player", "astronaut", "officer", "pedestrian", "walker",
               "people", "men", "women", "children"),
    "cat": ("kitten",), "dog": ("puppy",), "ladybug": ("ladybird",),
    "building": ("house", "church", "palace", "castle", "tower", "pavilion", "pagoda", "temple", "monastery"),
    "cup": ("mug",), "motorcycle": ("motorbike",), "airplane": ("aeroplane", "plane"), "bicycle": ("bike",),
    "boat": ("canoe", "rowboat", "rowing boat", "kayak"), "soccer ball": ("football",), "sports ball": ("ball",),
    "flower": ("daisy", "dahlia", "marigold", "rose", "sunflower", "blossom"), "street sign": ("road sign",),
    "book": ("textbook",), "tv": ("television",), "couch": ("sofa",), "cell phone": ("phone",), "flowerpot": ("pot",),
}  # fmt: skip

# Nouns that are as often a colour: before another word ("an orange suit") they name nothing.
_COLOURS = ("orange", "lemon")
_AFTER_NOUN = "and|or|on|in|at|with|by|next|near|beside|under|over|behind|from|is|are|lies|lying|sits|stands|hangs"

BACKGROUNDS = (
    "sky", "clouds", "sea", "ocean", "lake", "river", "water", "beach", "sand", "grass", "meadow", "lawn", "field",
    "forest", "woods", "garden", "mountains", "hills", "desert", "dune", "snow", "street", "road", "pavement", "path",
    "wall", "fence", "floor", "table", "wooden table", "desk", "room", "window", "garage", "studio", "stadium",
    "square", "city", "shore", "pier", "background",
)  # fmt: skip


@cache
def members(kind: str) -> frozenset[str]:
    """The tagger's labels that add up to a kind; empty for a word that is no kind."""
    nouns = imagenet_nouns()
    classes = KINDS.get(kind, ())
    return frozenset(nouns[i] for entry in classes for i in (entry if isinstance(entry, range) else (entry,)))


def kind_score(kind: str, tags: Sequence[Tag]) -> float:
    """Probability, 0..1, that the tags give to the kind."""
    return min(sum(tag.score for tag in tags if tag.label in members(kind)), 1.0)


def best_kind(tags: Sequence[Tag]) -> str:
    """The kind of the tagger's first choice; empty when that is no kind."""
    return next((kind for kind in KINDS if tags and tags[0].label in members(kind)), "")


def words_for(label: str) -> tuple[str, ...]:
    """Every word, singular and plural, by which a text may name `label`."""
    singular = (label, *SYNONYMS.get(label, ()))
    return tuple(dict.fromkeys(form for word in singular for form in (word, *_plurals(word))))


def _plurals(word: str) -> Iterator[str]:
    yield f"{word}s"
    if word.endswith(("s", "x", "ch", "sh", "to")):
        yield f"{word}es"
    if word.endswith("y"):
        yield f"{word[:-1]}ies"
    if word.endswith("f"):
        yield f"{word[:-1]}ves"


def mentions(text: str, label: str) -> bool:
    """Whether a text names the label, as whole words, in any case."""
    return _pattern(words_for(label)).search(text) is not None


def object_nouns(text: str) -> tuple[str, ...]:
    """Substrings of `text` that name an object of the vocabulary, in order of appearance, each once."""
    return _found(text, _object_words())


def background_nouns(text: str) -> tuple[str, ...]:
    """Substrings of `text` that name scenery, in order of appearance, each once."""
    return _found(text, BACKGROUNDS)


@lru_cache(maxsize=1)
def _object_words() -> tuple[str, ...]:
    labels = (*KINDS, *SUPPORT)
    return tuple(dict.fromkeys(word for label in labels if label not in BACKGROUNDS for word in words_for(label)))


def _found(text: str, words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(match.group() for match in _pattern(words).finditer(text)))


@cache
def _pattern(words: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    colours = "|".join(_COLOURS)
    as_colour = rf"(?!(?:{colours})[ -](?!(?:{_AFTER_NOUN})\b)\w)"
    return re.compile(rf"(?<![\w-]){as_colour}(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])", re.IGNORECASE)
