"""PP-OCRv6 through the rapidocr package, which ships the weights: text detection, direction and recognition."""

from importlib import metadata
from typing import Any

import numpy as np

from editfoundry.core.errors import ModelMissing
from editfoundry.core.geometry import Box
from editfoundry.models.embedded.base import EmbeddedModel
from editfoundry.models.protocols import Image, TextLine
from editfoundry.models.store import Store

PACKAGE = "rapidocr"
TASKS = ("det", "cls", "rec")


class RapidOcrReader(EmbeddedModel):
    """`TextReader` for Latin and Chinese script. `threshold` is the least recognition score reported."""

    name = "rapidocr-ppocrv6"

    def __init__(self, store: Store | None = None, threshold: float = 0.8) -> None:
        super().__init__(store)
        self.threshold = threshold
        self._engine: Any = None

    def _weight_digests(self) -> dict[str, str]:
        """The weights belong to an installed package: their hashes are the ones its installation record pins."""
        return {file.name: file.hash.value for file in _packaged_weights().values() if file.hash is not None}

    def _load(self) -> None:
        from rapidocr import RapidOCR

        # Explicit paths: left to itself the package would download a model file that is missing.
        paths = {f"{task.title()}.model_path": str(file.locate()) for task, file in _packaged_weights().items()}
        self._engine = RapidOCR(params={
            **paths, "Global.log_level": "error", "Global.text_score": self.threshold,
            "EngineConfig.onnxruntime.intra_op_num_threads": 1, "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        })

    def read(self, image: Image) -> list[TextLine]:
        """Lines of text in a uint8 RGB image [H, W, 3], top to bottom, with scores and upright boxes in pixels."""
        self.load()
        height, width = image.shape[:2]
        result = self._engine(np.ascontiguousarray(image[..., ::-1]))
        if result.boxes is None:
            return []
        lines = []
        for corners, text, score in zip(result.boxes, result.txts, result.scores, strict=True):
            (x0, y0), (x1, y1) = corners.min(axis=0).tolist(), corners.max(axis=0).tolist()
            box = Box(x0, y0, x1, y1).clip(width, height) if x1 > x0 and y1 > y0 else None
            if box is not None:
                lines.append(TextLine(text, float(score), box))
        return sorted(lines, key=lambda line: (line.box.y0, line.box.x0))


def _packaged_weights() -> dict[str, metadata.PackagePath]:
    """The one weight file of each task among the files that the installed package records."""
    try:
        files = [file for file in metadata.files(PACKAGE) or () if file.suffix == ".onnx"]
    except metadata.PackageNotFoundError as error:
        raise ModelMissing(f"models: the package {PACKAGE} is not installed; run `pip install {PACKAGE}`") from error
    found = {task: [file for file in files if f"_{task}_" in file.name] for task in TASKS}
    for task, candidates in found.items():
        if len(candidates) != 1:
            raise ModelMissing(f"models: the installed {PACKAGE} has {len(candidates)} {task} models instead of one; "
                               f"run `pip install --force-reinstall {PACKAGE}`")
    return {task: candidates[0] for task, candidates in found.items()}
