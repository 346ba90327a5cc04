"""What an editor's folder holds, checked before anything of it is imported or read into a model.

The classes are named here, not taken from the folder: `model_index.json` may only confirm them. Weights are
safetensors.
"""

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import Field

from editfoundry.core.config import Config, validate
from editfoundry.core.errors import ModelMissing, UsageError
from editfoundry.models.checkpoint import TorchOptions
from editfoundry.models.diffusion.runtime import from_folder

Precision = Literal["auto", "float32", "bfloat16", "float16"]
INDEX = "model_index.json"
PIPELINE = "EditorPipeline"
VERSIONS = ("_class_name", "_diffusers_version", "_name_or_path")
MODELS = {
    "vlm": ("transformers", "Qwen2_5_VLModel"),
    "visual_encoder": ("transformers", "SiglipVisionModel"),
    "connector": ("editfoundry.models.editor.connector", "Connector"),
    "visual_connector": ("editfoundry.models.editor.connector", "Connector"),
    "transformer": ("diffusers", "FluxTransformer2DModel"),
    "vae": ("diffusers", "AutoencoderKL"),
}
"""Library and class of the components with weights, in the order of loading."""
OTHERS = {
    "processor": ("transformers", "Qwen2_5_VLProcessor"),
    "visual_processor": ("transformers", "SiglipImageProcessor"),
    "scheduler": ("diffusers", "FlowMatchEulerDiscreteScheduler"),
}
VISUAL = ("visual_encoder", "visual_processor", "visual_connector")
ALWAYS_FLOAT32 = ("vae", "connector", "visual_connector")
"""The VAE loses detail in less; connectors are small, and trained in float32."""
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack")


class EditorSettings(Config):
    """The settings in an editor's `model_index.json`; see `EditorPipeline`."""

    vlm_pixels: int = Field(default=448 * 448, ge=1)
    max_text_tokens: int = Field(default=256, ge=1)
    reference_latents: Literal["none", "kontext"] = "none"
    details: bool = True
    miniature: bool = False


def read_index(folder: Path) -> tuple[EditorSettings, list[str]]:
    """Settings of an editor's folder, and the names of the components it has. Imports and loads nothing.

    Raises ModelMissing for a folder that is none of an editor, names any class but those above, or whose weights are
    not all safetensors inside it; ConfigError for a wrong setting.
    """
    file = folder / INDEX
    try:
        index = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelMissing(
            f"{file}: cannot be read, so this is no folder of an editor; name one that `editfoundry train init-editor` "
            f"or `editfoundry train export` made ({error!s:.200})"
        ) from error
    if not isinstance(index, dict) or index.get("_class_name") != PIPELINE:
        found = index.get("_class_name") if isinstance(index, dict) else index
        raise ModelMissing(f"{file}: is of a {found!s:.80}; expected {PIPELINE}")
    classes = MODELS | OTHERS
    present = [name for name in classes if _is_present(file, name, index.pop(name, None))]
    settings = {key: value for key, value in index.items() if key not in VERSIONS}
    checked = validate(EditorSettings, settings, str(file))
    for name in present:
        if not (folder / name).is_dir():
            raise ModelMissing(f"{folder / name}: the editor lacks this component")
        if name in MODELS:
            _check_weights(folder / name)
    return checked, present


def refuse_existing(out: Path) -> None:
    """Raise UsageError when there is something where an editor is to be written."""
    if out.exists():
        raise UsageError(f"{out}: already exists; an editor is never written over: name another folder, or delete it")


def change_settings(folder: Path, **changes: Any) -> None:
    """Change settings in an editor's `model_index.json`. Raises as `read_index`, and before anything is changed."""
    settings, _ = read_index(folder)
    changed = validate(EditorSettings, settings.model_dump() | changes, str(folder / INDEX))
    index = json.loads((folder / INDEX).read_text("utf-8")) | changed.model_dump()
    part = folder / f"{INDEX}.part"
    part.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    part.replace(folder / INDEX)


def load_parts(folder: Path, present: list[str], dtypes: Mapping[str, Precision]) -> dict[str, Any]:
    """The components of a checked folder on the CPU, None for those it does not have.

    dtypes: by component, with `default` for the rest. Raises ModelMissing for a component that cannot be loaded, or
    that lacks a weight.
    """
    import diffusers
    import transformers

    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()
    parts: dict[str, Any] = dict.fromkeys(MODELS | OTHERS)
    for name in present:
        kind = _class(name)
        if name in MODELS:
            parts[name] = _model(kind, folder / name, dtypes.get(name, dtypes["default"]))
        else:
            parts[name] = _other(kind, folder / name)
    return parts


def _is_present(file: Path, name: str, entry: Any) -> bool:
    """Whether the index has the component. Raises ModelMissing unless it is of the class it has to be."""
    expected = (MODELS | OTHERS)[name]
    if entry == list(expected):
        return True
    if entry in (None, [None, None]) and name in VISUAL:
        return False
    raise ModelMissing(f"{file}: {name} is {json.dumps(entry)[:120]}; expected {'.'.join(expected)}")


def _check_weights(folder: Path) -> None:
    """Raise ModelMissing unless the folder has safetensors, and an index of shards, if any, names files in it."""
    if not any(folder.glob("*.safetensors")):
        pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
        if pickled:
            raise ModelMissing(f"{folder}: holds {pickled[0]} and no safetensors; nothing else is loaded: convert it")
        raise ModelMissing(f"{folder}: holds no weights (*.safetensors)")
    for index in folder.glob("*.safetensors.index.json"):
        try:
            shards = {str(shard) for shard in json.loads(index.read_text("utf-8"))["weight_map"].values()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelMissing(f"{index}: not an index of shards") from error
        for shard in sorted(shards):
            if PurePosixPath(shard).name != shard or not (folder / shard).is_file():
                raise ModelMissing(f"{index}: names {shard[:120]}, which is no file of that folder")


def _class(name: str) -> Any:
    """The component's class, imported."""
    if name in ("connector", "visual_connector"):
        from editfoundry.models.editor.connector import Connector

        return Connector
    import diffusers
    import transformers

    library, kind = (MODELS | OTHERS)[name]
    return getattr({"diffusers": diffusers, "transformers": transformers}[library], kind)


def _model(kind: Any, folder: Path, dtype: Precision) -> Any:
    """A component with weights, in evaluation mode."""
    import diffusers
    import transformers

    ours = {"attn_implementation": "sdpa"} if issubclass(kind, transformers.PreTrainedModel) else {}
    known = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()  # an output layer that is left out is no news
    try:
        model = from_folder(kind, folder, TorchOptions(checkpoint=str(folder), device="cpu", dtype=dtype), **ours)
    finally:
        transformers.utils.logging.set_verbosity(known)
    if issubclass(kind, diffusers.ModelMixin):
        model.register_to_config(_name_or_path="")  # the folder would be written wherever the model is saved
    return model.eval()


def _other(kind: Any, folder: Path) -> Any:
    """A processor or the scheduler. Code that the folder may hold is never run."""
    remote = {} if kind.__module__.startswith("diffusers.") else {"trust_remote_code": False}
    try:
        return kind.from_pretrained(str(folder), local_files_only=True, **remote)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelMissing(f"{folder}: not one that {kind.__name__} can load: {reason}") from error
