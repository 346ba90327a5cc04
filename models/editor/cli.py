"""`editfoundry edit`: edit a picture with an editor, once or turn by turn."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field

from editfoundry.core.config import Config, read_yaml, validate
from editfoundry.core.errors import ConfigError, ImageError, UsageError
from editfoundry.core.progress import progress
from editfoundry.models.editor.loading import read_index

if TYPE_CHECKING:
    from editfoundry.models.editor.pipeline import EditorPipeline
    from editfoundry.models.protocols import Image

MAX_IMAGE_BYTES = 256 * 1024 * 1024
FORMATS = (".jpg", ".jpeg", ".png")

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class Turn(Config):
    """One turn of a conversation.

    parent: the turn whose result is edited, 0 for the given image; the turn before, if left out. references: pictures
    that the instruction speaks of, beside the file of turns.
    """

    instruction: str
    parent: int | None = Field(default=None, ge=0)
    references: tuple[str, ...] = ()


class Turns(Config):
    """A file of turns, in order."""

    turns: tuple[Turn, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Planned:
    """A turn that is ready to run. history: the instructions of the turns that lead to its parent, and the parent's."""

    instruction: str
    parent: int
    references: tuple["Image", ...]
    history: tuple[str, ...]
    output: Path


@app.command()
def edit(
    image: Annotated[
        Path, typer.Argument(metavar="IMAGE", help="The picture to edit: JPEG, PNG, WebP, TIFF, GIF or BMP.")
    ],
    model: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the editor.", show_default=False)],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="OUT", help="New .jpg or .png; with --turns a new folder.", show_default=False
        ),
    ],
    instruction: Annotated[
        str | None,
        typer.Argument(metavar="INSTRUCTION", help="What to do; leave it out with --turns.", show_default=False),
    ] = None,
    turns: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML or JSON list of turns.", show_default=False)
    ] = None,
    reference: Annotated[
        list[Path] | None,
        typer.Option(metavar="IMAGE", help="A picture that the instruction speaks of; repeatable.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**62, help="Of the noise; turn n has seed + n - 1.")] = 0,
    steps: Annotated[int, typer.Option(min=1, max=1000, help="Of the sampler.")] = 28,
    guidance: Annotated[float, typer.Option(min=0, help="Distilled guidance of FLUX.")] = 3.5,
    cfg: Annotated[float, typer.Option(min=0, help="True classifier-free guidance; 1 is none.")] = 1.0,
    size: Annotated[
        int | None,
        typer.Option(min=16, help="Square root of the result's pixels; 1024 for FLUX.", show_default=False),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Edit a picture by an instruction, or turn by turn."""
    started = time.perf_counter()
    picture = read_image(image)
    planned = plan(instruction, turns, reference or (), output)
    read_index(model)  # before torch and the rest take their seconds
    from editfoundry.models.perception.base import required

    for package in ("diffusers", "torchvision"):
        required(package, package, "pip install 'editfoundry[train]'")
    from editfoundry.models.editor.pipeline import load_editor

    pipeline = load_editor(model, device=device)
    processor = pipeline.editor_processor()
    for turn in planned:  # what would stop a turn stops before the first
        processor.text_tokens(turn.instruction, turn.history)
    pipeline.grid(picture.shape[1], picture.shape[0], size)
    if turns is not None:
        output.mkdir()
    results, rows = [picture], list[dict[str, Any]]()
    for number, turn in enumerate(planned):
        options = {"seed": seed + number, "steps": steps, "guidance": guidance, "cfg": cfg, "size": size}
        result, row = run_turn(pipeline, results[turn.parent], turn, options)
        results.append(result)
        rows.append(row)
        if not as_json:
            typer.echo(row["output"])
    if as_json:
        last = {key: rows[-1][key] for key in ("width", "height")}
        seconds = round(time.perf_counter() - started, 3)
        common = {"output": str(output), "model": str(model), "seed": seed, "seconds": seconds}
        typer.echo(json.dumps({**common, **last, "turns": rows}, indent=2))


def plan(instruction: str | None, turns: Path | None, references: Sequence[Path], output: Path) -> list[Planned]:
    """What to run, by the arguments. Raises UsageError for a wrong call, before anything is loaded."""
    if (instruction is None) == (turns is None):
        raise UsageError("give an instruction, or --turns FILE without one")
    if turns is None:
        check_output(output, FORMATS)
        return [Planned(str(instruction), 0, tuple(read_image(path) for path in references), (), output)]
    if references:
        raise UsageError("--reference: with --turns, each turn of the file names its own")
    check_output(output, ())
    return read_turns(turns, output)


def run_turn(
    pipeline: "EditorPipeline", picture: "Image", turn: Planned, options: dict[str, Any]
) -> tuple["Image", dict[str, Any]]:
    """Edit once, with progress on stderr, and write the result; returns it and its row of the JSON."""
    started = time.perf_counter()
    with progress("editing", options["steps"] * (1 if options["cfg"] == 1 else 2)) as advance:
        result: Image = pipeline(
            picture,
            turn.instruction,
            references=turn.references,
            history=turn.history,
            on_pass=lambda: advance(1),
            **options,
        ).images[0]
    write_image(turn.output, result)
    row = {"instruction": turn.instruction, "parent": turn.parent, "output": str(turn.output), "seed": options["seed"]}
    seconds = round(time.perf_counter() - started, 3)
    return result, {**row, "seconds": seconds, "width": result.shape[1], "height": result.shape[0]}


def read_image(path: Path) -> "Image":
    """The pixels of an image file; transparency lies on white. Raises UsageError, or ImageError naming the file."""
    from editfoundry.core.images import decode

    try:
        size = path.stat().st_size
        if size > MAX_IMAGE_BYTES:
            raise UsageError(f"{path}: {size} bytes are more than {MAX_IMAGE_BYTES}; make the picture smaller")
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; name a picture") from error
    try:
        return decode(data)
    except ImageError as error:
        raise ImageError(error.reason, f"{path}: {error}") from error


def check_output(path: Path, suffixes: Sequence[str]) -> None:
    """Raises UsageError for an output that exists, has no folder to be in, or is of no known format."""
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path}: already exists, and nothing is overwritten; name another output")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} does not exist; make it first")
    if suffixes and path.suffix.lower() not in suffixes:
        raise UsageError(f"{path}: name a file that ends in {', '.join(suffixes)}")


def read_turns(file: Path, folder: Path) -> list[Planned]:
    """The turns of a file, checked: every parent is a turn before, every reference can be read.

    A turn's history is the instructions on the way from the given image to its parent, so a turn that goes back to an
    earlier version does not know of what came after that. Raises ConfigError and UsageError.
    """
    plain = read_yaml(file)
    if not isinstance(plain, list):
        raise ConfigError(f"{file}: expected a list of turns, each with an `instruction`")
    planned: list[Planned] = []
    for number, turn in enumerate(validate(Turns, {"turns": plain}, str(file)).turns, start=1):
        parent = number - 1 if turn.parent is None else turn.parent
        if parent >= number:
            raise ConfigError(
                f"{file}: turns.{number - 1}.parent: turn {number} edits turn {parent}, which is not before it"
            )
        above = planned[parent - 1] if parent else None
        history = (*above.history, above.instruction) if above else ()
        shown = tuple(read_image(file.parent / reference) for reference in turn.references)
        planned.append(Planned(turn.instruction, parent, shown, history, folder / f"turn-{number}.jpg"))
    return planned


def write_image(path: Path, image: "Image") -> None:
    """Write a picture whole or not at all, by the ending of its name: 4:4:4 JPEG, or PNG."""
    from PIL import Image as Pillow

    from editfoundry.core.images import encode_jpeg

    if path.suffix.lower() == ".png":
        buffer = BytesIO()
        Pillow.fromarray(image).save(buffer, "PNG")
        data = buffer.getvalue()
    else:
        data = encode_jpeg(image)
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(data)
    part.replace(path)
