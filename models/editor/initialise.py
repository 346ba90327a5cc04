"""An editor from released parts: Qwen2.5-VL, FLUX, SigLIP2 and Redux, joined by connectors still to be trained.

    init_editor(load_config(InitConfig, "train/init-editor.yaml"), Path("models/editor-init"))

The folder that comes out is an `EditorPipeline`'s. Released parts keep the precision they were released in (FLUX.1-dev
and Qwen2.5-VL: bfloat16, SigLIP2: float32); the connectors, which are trained, are float32. Parts are read, written and
let go one after another, so the memory needed is that of the largest (FLUX.1-dev's transformer, 24 GB).
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from rich.console import Console
from safetensors import safe_open

from editfoundry.core.config import Config
from editfoundry.core.errors import ConfigError, ModelMissing
from editfoundry.core.hashing import seed_for
from editfoundry.models.checkpoint import TorchOptions, checkpoint_path
from editfoundry.models.diffusion.runtime import from_folder
from editfoundry.models.editor.connector import Connector
from editfoundry.models.editor.loading import INDEX, MODELS, OTHERS, PIPELINE, EditorSettings, refuse_existing

STORED: dict[str, Literal["float32", "bfloat16", "float16"]] = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Names of precisions in a safetensors header, and torch's."""


class InitConfig(Config):
    """What an editor is made of.

    vlm, flux, siglip, redux: ids of the model store, or folders in the released layout. redux: its projection starts
    the visual connector; null starts that one at random too. visual: whether the editor has SigLIP and a connector for
    it at all. hidden_features: between the two layers of both connectors. reference_latents: `kontext` lets the
    transformer see the pictures' latents (start from `flux1-kontext-dev` then). vlm_pixels: of each picture for the
    vision-language model. max_text_tokens: of an instruction with its history. seed: of the random connectors.
    """

    vlm: str
    flux: str
    siglip: str | None = None
    redux: str | None = None
    visual: bool = True
    hidden_features: int = Field(default=12288, ge=1)
    reference_latents: Literal["none", "kontext"] = "none"
    vlm_pixels: int = Field(default=448 * 448, ge=28 * 28)
    max_text_tokens: int = Field(default=256, ge=1)
    seed: int = Field(default=0, ge=0)


def init_editor(config: InitConfig, out: Path) -> Path:
    """Write the editor's folder, whole or not at all, and return it; the same bytes for the same parts and versions.

    Raises UsageError when `out` exists, ModelMissing naming what is not there and how to get it, ConfigError when parts
    do not fit each other.
    """
    with new_folder(out) as staging:
        folders = _folders(config)
        parts = _parts(config, folders, _widths(config, folders))
        console = Console(stderr=True)
        with _quiet():
            for number, (name, build) in enumerate(parts.items(), start=1):
                console.print(f"init-editor {number}/{len(parts)}: {name}", highlight=False)
                _save(staging, name, build())
        _save_index(staging, parts, config)
    return out


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yields a folder beside `out` that becomes it at the end, or is removed when anything fails; to save an editor in.

    Raises UsageError when `out` exists.
    """
    refuse_existing(out)
    if not torch.cuda.is_available():  # saving looks at DeepSpeed, which would say on stdout that it finds no GPU
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield staging
        staging.chmod(0o755)
        staging.rename(out)
    except BaseException:
        shutil.rmtree(staging)
        raise


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' reports of weights that are left out (SigLIP's text tower, the VLM's output layer)."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


@contextmanager
def drawn(seed: int, part: str) -> Iterator[None]:
    """Draws a part's weights from its own seed and leaves torch's own generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, part) % 2**63)
        yield


def _save(folder: Path, name: str, part: Any) -> None:
    from diffusers import ModelMixin

    if isinstance(part, ModelMixin) and "_name_or_path" in part.config:
        part.register_to_config(_name_or_path="")  # diffusers would keep the folder it was read from
    part.save_pretrained(folder / name)


def _save_index(folder: Path, names: Collection[str], config: InitConfig) -> None:
    """Write `model_index.json` as `EditorPipeline.save_pretrained` does, which would need all parts at once."""
    import diffusers

    settings = EditorSettings(
        vlm_pixels=config.vlm_pixels,
        max_text_tokens=config.max_text_tokens,
        reference_latents=config.reference_latents,
    )
    kinds = {name: kind if name in names else (None, None) for name, kind in (MODELS | OTHERS).items()}
    versions = {"_class_name": PIPELINE, "_diffusers_version": diffusers.__version__}
    index = {**versions, **kinds, **settings.model_dump()}
    (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _folders(config: InitConfig) -> dict[str, Path]:
    """Where the parts are. Raises ModelMissing naming all that are not there."""
    wanted = {"vlm": config.vlm, "flux": config.flux}
    if config.visual:
        if config.siglip is None:
            raise ConfigError("siglip: name one, or set `visual: false` for an editor without it")
        wanted |= {"siglip": config.siglip} | ({"redux": config.redux} if config.redux else {})
    folders, missing = {}, []
    for key, checkpoint in wanted.items():
        try:
            folders[key] = checkpoint_path(checkpoint)
        except ModelMissing as error:
            missing.append(str(error))
    if missing:
        raise ModelMissing("; ".join(missing))
    return folders


class _Widths(NamedTuple):
    """Of what the connectors join: states of the VLM and of SigLIP, the text that FLUX takes, its pooled text."""

    vlm: int
    visual: int
    text: int
    pooled: int


def _widths(config: InitConfig, folders: Mapping[str, Path]) -> _Widths:
    """From the parts' configs, before anything large is read. Raises ConfigError when FLUX is not one for an editor."""
    from transformers import CLIPTextConfig, Qwen2_5_VLConfig, SiglipVisionConfig

    flux = folders["flux"]
    transformer = _settings(flux / "transformer", "in_channels", "joint_attention_dim", "pooled_projection_dim")
    channels = 4 * _settings(flux / "vae", "latent_channels")["latent_channels"]
    if transformer["in_channels"] != channels:
        raise ConfigError(
            f"flux: {config.flux} takes {transformer['in_channels']} channels a token where its latents have "
            f"{channels}; an editor starts from FLUX.1-dev or FLUX.1-Kontext-dev"
        )
    pooled = CLIPTextConfig.from_pretrained(flux / "text_encoder", local_files_only=True).hidden_size
    if transformer["pooled_projection_dim"] != pooled:
        raise ConfigError(
            f"flux: {config.flux} takes a pooled text of width {transformer['pooled_projection_dim']}, but its text "
            f"encoder gives {pooled}"
        )
    vlm = Qwen2_5_VLConfig.from_pretrained(folders["vlm"], local_files_only=True).text_config.hidden_size
    siglip = SiglipVisionConfig.from_pretrained(folders["siglip"]).hidden_size if config.visual else 0
    return _Widths(vlm, siglip, transformer["joint_attention_dim"], pooled)


def _settings(folder: Path, *keys: str) -> dict[str, int]:
    """Whole numbers of a component's config.json. Raises ModelMissing."""
    file = folder / "config.json"
    try:
        settings = json.loads(file.read_text("utf-8"))
        return {key: int(settings[key]) for key in keys}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelMissing(f"{file}: not the config of a released part: {error!r:.200}") from error


def _parts(config: InitConfig, folders: Mapping[str, Path], widths: _Widths) -> dict[str, Callable[[], Any]]:
    """What builds each component, in the order of writing: what may be refused comes first."""
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel
    from transformers import Qwen2_5_VLModel, Qwen2_5_VLProcessor, SiglipImageProcessor, SiglipVisionModel

    vlm, flux, siglip = folders["vlm"], folders["flux"], folders.get("siglip", Path())
    visual: dict[str, Callable[[], Any]] = {
        "visual_connector": lambda: _visual_connector(config, folders, widths),
        "visual_processor": lambda: _unweighted(SiglipImageProcessor, siglip),
        "visual_encoder": lambda: released(SiglipVisionModel, siglip),
    }
    return (visual if config.visual else {}) | {
        "connector": lambda: _connector(config, flux, widths),
        "scheduler": lambda: _unweighted(FlowMatchEulerDiscreteScheduler, flux / "scheduler"),
        "processor": lambda: _unweighted(Qwen2_5_VLProcessor, vlm),
        "vae": lambda: released(AutoencoderKL, flux / "vae"),
        "vlm": lambda: released(Qwen2_5_VLModel, vlm),
        "transformer": lambda: released(FluxTransformer2DModel, flux / "transformer"),
    }


def released(kind: Any, folder: Path) -> Any:
    """A released part in the precision of its own file. Raises ModelMissing saying what the folder lacks."""
    return from_folder(kind, folder, TorchOptions(checkpoint=str(folder), device="cpu", dtype=_stored(folder)))


def _unweighted(kind: Any, folder: Path) -> Any:
    """A scheduler, processor or tokenizer. Raises ModelMissing saying what the folder lacks."""
    try:
        return kind.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelMissing(f"{folder}: holds no {kind.__name__}: {reason}") from error


def _stored(folder: Path) -> Literal["float32", "bfloat16", "float16"]:
    """The precision of the weights in a folder: that of the first floating-point one."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118
                kind = weights.get_slice(name).get_dtype()
                if kind in STORED:
                    return STORED[kind]
    return "float32"


def _connector(config: InitConfig, flux: Path, widths: _Widths) -> Connector:
    """Random, with the CLIP embedding of the empty text, as FLUX computes it, in its buffer."""
    from transformers import CLIPTextModel, CLIPTokenizer

    tokenizer = _unweighted(CLIPTokenizer, flux / "tokenizer")
    encoder = released(CLIPTextModel, flux / "text_encoder").float()
    empty = tokenizer("", padding="max_length", max_length=tokenizer.model_max_length, return_tensors="pt")
    with drawn(config.seed, "connector"):
        connector: Connector = Connector(widths.vlm, config.hidden_features, widths.text, pooled_features=widths.pooled)
    with torch.inference_mode():
        connector.pooled_projection.copy_(encoder(empty.input_ids).pooler_output[0])
    return connector


def _visual_connector(config: InitConfig, folders: Mapping[str, Path], widths: _Widths) -> Connector:
    """Redux's projection of SigLIP states to text, or random. Raises ConfigError when their shapes differ."""
    with drawn(config.seed, "visual_connector"):
        connector: Connector = Connector(widths.visual, config.hidden_features, widths.text)
    if "redux" not in folders:
        return connector
    from diffusers.pipelines.flux.modeling_flux import ReduxImageEncoder

    redux = released(ReduxImageEncoder, folders["redux"] / "image_embedder").float()
    for ours, theirs in ((connector.up, redux.redux_up), (connector.down, redux.redux_down)):
        if ours.weight.shape != theirs.weight.shape:
            raise ConfigError(
                f"redux: {config.redux} has a layer of {_shape(theirs)} where the visual connector has {_shape(ours)}; "
                "set hidden_features and siglip to fit it, or `redux: null`"
            )
        ours.load_state_dict(theirs.state_dict())
    return connector


def _shape(layer: torch.nn.Linear) -> str:
    return f"{layer.in_features} -> {layer.out_features}"
