"""Checkpoints of the full stack: where `from_pretrained` reads from, how it loads, and what names the weights.

A checkpoint is an id of the model store (`grounding-dino-base`) or a folder. Only safetensors are read.
"""

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock
from pydantic import Field

from editfoundry.core.config import Config, cache_root
from editfoundry.core.errors import ModelMissing
from editfoundry.core.hashing import canonical_json, sha256, sha256_file
from editfoundry.models.store import Store

WEIGHT_SUFFIXES = (".safetensors", ".json", ".txt", ".model", ".jinja")
REMEMBERED_FROM = 64 * 1024 * 1024
"""Bytes from which a hash is worth remembering."""


class TorchOptions(Config):
    """How a torch model is loaded.

    checkpoint: id of the model store, or a folder. device: `auto` is the first GPU, else the CPU. dtype: `auto` is
    bfloat16 on a GPU and float32 on a CPU. batch: most inputs in one forward pass.
    """

    checkpoint: str
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    batch: int = Field(default=8, ge=1)

    def where(self) -> str:
        """The device as torch spells it."""
        import torch

        if self.device != "auto":
            return self.device
        return "cuda" if torch.cuda.is_available() else "cpu"

    def precision(self) -> Any:
        """The torch dtype."""
        import torch

        if self.dtype != "auto":
            return getattr(torch, self.dtype)
        return torch.float32 if self.where() == "cpu" else torch.bfloat16


def checkpoint_path(checkpoint: str, file: str | None = None) -> Path:
    """The folder of a checkpoint, or one file of it. Raises ModelMissing naming the remedy."""
    folder = Path(checkpoint).expanduser()
    if not folder.is_dir():
        if os.sep in checkpoint:
            raise ModelMissing(
                f"{checkpoint}: no such folder; name a folder of weights, or an id of `editfoundry models list`"
            )
        folder = Store().path(checkpoint)
    path = folder / file if file else folder
    if not path.exists():
        raise ModelMissing(f"{path}: the checkpoint lacks this file")
    return path


def checkpoint_digest(checkpoint: str) -> str:
    """SHA-256 that names a checkpoint's weights: the store's for an id, of every file for a folder.

    The hash of a large file is remembered in the cache by its path, size and modification time.
    """
    folder = Path(checkpoint).expanduser()
    if not folder.is_dir():
        return Store().digest(checkpoint) if os.sep not in checkpoint else _missing(checkpoint)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in WEIGHT_SUFFIXES)
    return sha256(canonical_json([[str(path.relative_to(folder)), _file_digest(path)] for path in files]))


def _missing(checkpoint: str) -> str:
    raise ModelMissing(f"{checkpoint}: no such folder of weights")


def _file_digest(path: Path) -> str:
    status = path.stat()
    return _remembered(str(path.resolve()), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4096)
def _remembered(path: str, size: int, modified: int) -> str:
    if size < REMEMBERED_FROM:
        return sha256_file(Path(path))
    memory = cache_root() / "digests.json"
    memory.parent.mkdir(parents=True, exist_ok=True)
    key = f"{path}:{size}:{modified}"
    with FileLock(f"{memory}.lock"):
        known: dict[str, str] = json.loads(memory.read_text("utf-8")) if memory.exists() else {}
        if key not in known:
            known[key] = sha256_file(Path(path))
            part = memory.with_suffix(".part")
            part.write_text(canonical_json(known), encoding="utf-8")
            part.replace(memory)
        return known[key]
