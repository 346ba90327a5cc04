"""Every edit type the engine makes: one row a type, and one file in `recipes/` that does it.

`local`: pixels the stored mask does not touch stay identical. `recipe`: module:class, imported when first used.
Templates are filled by `wording.fill`; {the_object}, {a_object}, {position}, {result}… come from the planned edit.
A configuration may replace the templates of any type (`instruct.templates.<type>`), which re-runs instruct and below.
"""

from dataclasses import dataclass

FAMILIES = ("add", "remove", "replace", "adjust", "background", "style", "extract", "motion", "visual", "compose")
CONVERSATIONS = ("content_memory", "content_understanding", "version_backtracking")


@dataclass(frozen=True)
class EditType:
    """One row: name, whether it is local, the recipe that does it, and the default wordings of its instruction.

    photograph: roles of the models that make it of what a photograph really shows. generated: of those that make its
    generated variant; empty where it has none.
    """

    name: str
    local: bool
    recipe: str
    templates: tuple[str, ...]
    photograph: tuple[str, ...] = ()
    generated: tuple[str, ...] = ()


TYPES: dict[str, EditType] = {
    row.name: row
    for row in (
        EditType(
            "add",
            True,
            "editfoundry.data_engine.recipes.add:Add",
            (
                "Add {a_object} {position}.",
                "Put {a_object} {position}.",
                "Place {a_object} {position}.",
                "Insert {a_object} {position}, matching the light of the scene.",
                "There should be {a_object} {position}.",
            ),
            photograph=("inpainter",),
        ),
        EditType(
            "remove",
            True,
            "editfoundry.data_engine.recipes.remove:Remove",
            (
                "Remove {the_object} {position}.",
                "Erase {the_object} {position} and fill in what is behind.",
                "Take away {the_object} {position}.",
                "Get rid of {the_object} {position}.",
                "Delete {the_object} {position}, leaving the rest as it is.",
            ),
            photograph=("inpainter",),
        ),
        EditType(
            "replace",
            True,
            "editfoundry.data_engine.recipes.replace:Replace",
            (
                "Replace {the_object} {position} with {result}.",
                "Swap {the_object} {position} for {result}.",
                "Change {the_object} {position} into {result}.",
                "Put {result} where {the_object} {position} is.",
            ),
            generated=("painter",),
        ),
        EditType(
            "adjust",
            True,
            "editfoundry.data_engine.recipes.adjust:Adjust",
            (
                "Make {the_object} {position} {result}.",
                "Change the look of {the_object} {position} so that it is {result}.",
                "Turn {the_object} {position} {result}.",
            ),
            generated=("adjuster",),
        ),
        EditType(
            "background",
            True,
            "editfoundry.data_engine.recipes.background:Background",
            (
                "Keep {the_object} and change the background to this: {result}.",
                "Put {the_object} in front of a new background: {result}.",
                "Replace everything behind {the_object} with a new scene: {result}.",
            ),
            generated=("painter",),
        ),
        EditType(
            "style",
            False,
            "editfoundry.data_engine.recipes.style:Style",
            (
                "Repaint the image in the style of {result}.",
                "Give the whole picture the look of {result}.",
                "Render this photograph as if it were {result}.",
                "Apply the style of {result} to the image.",
            ),
            photograph=("style",),
        ),
        EditType(
            "extract",
            False,
            "editfoundry.data_engine.recipes.extract:Extract",
            (
                "Cut out {the_object} {position} and put it on a pure white background.",
                "Extract {the_object} {position} onto plain white.",
                "Isolate {the_object} {position}; make everything else white.",
            ),
            generated=("reference", "inserter"),
        ),
        EditType(
            "motion",
            False,
            "editfoundry.data_engine.recipes.motion:MotionRecipe",
            (
                "Let {the_object} {position} {result}.",
                "Show the scene a moment later: {the_object} {position} should {result}.",
                "Have {the_object} {position} {result}, keeping the scene the same.",
            ),
        ),
        EditType(
            "visual",
            True,
            "editfoundry.data_engine.recipes.visual:Visual",
            (
                "Replace {the_object} {position} with the object in the reference image.",
                "Swap {the_object} {position} for the object in the reference.",
                "Put the object in the reference image where {the_object} {position} is.",
            ),
            generated=("reference", "inserter"),
        ),
        EditType(
            "compose",
            True,
            "editfoundry.data_engine.recipes.compose:Compose",
            (
                "{first}, and {second}.",
                "{first}; also {second}.",
                "{first}. At the same time, {second}.",
            ),
            generated=("inpainter", "painter", "adjuster"),
        ),
        EditType(
            "move",
            True,
            "editfoundry.data_engine.recipes.move:Move",
            (
                "Move {the_object} {position} to {result}.",
                "Shift {the_object} {position} over to {result}.",
            ),
        ),
        EditType(
            "resize",
            True,
            "editfoundry.data_engine.recipes.resize:Resize",
            (
                "Make {the_object} {position} {result}.",
                "Scale {the_object} {position} so that it is {result}.",
            ),
        ),
        EditType(
            "count",
            True,
            "editfoundry.data_engine.recipes.count:Count",
            (
                "Change the number of {objects} from {before} to {after}.",
                "There should be {after} {objects_after} instead of {before}.",
            ),
        ),
    )
}

CONVERSATION_WORDS: dict[str, dict[str, tuple[str, ...]]] = {
    "content_memory": {
        "premise_colour": (
            "From now on, everything you add must be {colour}.",
            "Remember for all later edits: new objects have to be {colour}.",
        ),
        "premise_side": (
            "From now on, add things only in the {side} half of the picture.",
            "Remember for all later edits: new objects belong in the {side} half.",
        ),
        "add": ("Add {a_object}.", "Put {a_object} into the scene.", "Now add {a_object}."),
    },
    "content_understanding": {
        "add": TYPES["add"].templates,
        "adjust": ("Make it {result}.", "Now make it {result}."),
        "remove": ("Now take it away again.", "Remove it.", "I do not want it any more; erase it."),
        "replace": ("Swap it for {result}.", "Replace it with {result}."),
    },
    "version_backtracking": {
        "add": TYPES["add"].templates,
        "replace": ("Replace it with {result}.", "Swap {the_object} for {result}."),
        "adjust": (
            "Undo that; instead, make {the_object} {result}.",
            "Go back one step and make {the_object} {result} instead.",
            "No, bring {the_object} back and make it {result}.",
        ),
    },
}
