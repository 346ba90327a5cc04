"""YOLO-World (Cheng et al. 2024) as exported by ultralytics: a fast detector of the nouns chosen at export.

Ultralytics releases the weights as pickles, which are never loaded here. Export them once, with the vocabulary wanted,
on a machine where that risk is acceptable; the file then needs onnxruntime only. Package and weights are AGPL-3.0.

    model = ultralytics.YOLOWorld("yolov8x-worldv2.pt")        # pip install ultralytics (extra `yolo`)
    model.set_classes(["cup", "red car", "dog"])
    model.export(format="onnx", imgsz=640)

Because the vocabulary is in the file, this is a closed-vocabulary detector; Grounding DINO is the open one.
"""

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from pydantic import Field

from editfoundry.core.config import Config
from editfoundry.core.errors import ModelMissing
from editfoundry.core.geometry import Box
from editfoundry.core.hashing import canonical_json, sha256, sha256_file
from editfoundry.models.embedded.base import onnx_session
from editfoundry.models.perception.base import CheckpointError, rgb
from editfoundry.models.protocols import Detection, Float, Image

GREY = 114
"""What the network was trained to see beside an image that does not fill its input."""


class YoloWorldDetector:
    """`Detector` over the labels in the exported file, on the CPU, one thread."""

    name = "yolo-world"
    version = 1
    open_vocabulary = False

    class Options(Config):
        """checkpoint: the exported `.onnx` file. box_threshold: least score reported. top: most detections per image.

        overlap: IoU above which the weaker of two boxes of one label is dropped. Defaults as in the released ImgEdit
        tools, whose scores are lower than other detectors'.
        """

        checkpoint: str = "./yolo_world.onnx"
        box_threshold: float = Field(default=0.005, ge=0, le=1)
        overlap: float = Field(default=0.5, ge=0, le=1)
        top: int = Field(default=100, ge=1)

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or self.Options()
        self._session: Any = None
        self._labels: list[str] = []
        self._side = (0, 0)

    def digest(self) -> str:
        """SHA-256 over name, version, the options that change results, and the file. Raises ModelMissing without it."""
        options = self.options.model_dump(mode="json", exclude={"checkpoint"})
        parts = {"name": self.name, "version": self.version, "options": options, "weights": sha256_file(self._file())}
        return sha256(canonical_json(parts))

    def load(self) -> None:
        """Load the network, once. Raises ModelMissing, or CheckpointError for a file that is no such export."""
        if self._session is not None:
            return
        file = self._file()
        try:
            session = onnx_session(str(file))
            told = session.get_modelmeta().custom_metadata_map
            names = ast.literal_eval(told["names"])
            self._labels = [str(names[number]) for number in range(len(names))]
            height, width = session.get_inputs()[0].shape[2:]
            self._side = (int(height), int(width))
        except Exception as error:  # onnxruntime's errors share no narrower base
            reason = " ".join(str(error).split())[:300]
            raise CheckpointError(f"{file}: not a YOLO-World export: {reason}; {_remedy()}") from error
        shape = session.get_outputs()[0].shape
        if len(shape) != 3 or shape[1] != 4 + len(self._labels):
            raise CheckpointError(
                f"{file}: its output is {shape}, not [1, 4 + {len(self._labels)} labels, boxes]: export with nms=False"
            )
        self._session = session

    def detect(self, image: Image, vocabulary: Sequence[str] | None = None) -> list[Detection]:
        """Objects of a uint8 RGB image [H, W, 3], best first, boxes in pixels clipped to the image.

        With a vocabulary only labels in it are reported; words that are not in the file can never be.
        """
        import torch
        from torchvision.ops import batched_nms, box_convert

        self.load()
        height, width = image.shape[:2]
        pixels, scale, left, top = self._letterbox(image)
        (answer,) = self._session.run(None, {self._session.get_inputs()[0].name: pixels})
        rows = torch.from_numpy(answer[0].T.astype(np.float32))  # [boxes, 4 + labels]
        scores, labels = rows[:, 4:].max(dim=1)
        wanted = torch.tensor([vocabulary is None or label in vocabulary for label in self._labels])
        kept = ((scores > self.options.box_threshold) & wanted[labels]).nonzero()[:, 0]
        scores, labels, boxes = scores[kept], labels[kept], box_convert(rows[kept, :4], "cxcywh", "xyxy")
        found: list[Detection] = []
        for row in batched_nms(boxes, scores, labels, self.options.overlap)[: self.options.top].tolist():
            x0, y0, x1, y1 = boxes[row].tolist()
            if x1 > x0 and y1 > y0:
                box = Box((x0 - left) / scale[0], (y0 - top) / scale[1], (x1 - left) / scale[0], (y1 - top) / scale[1])
                inside = box.clip(width, height)
                found += [Detection(self._labels[labels[row]], float(scores[row]), inside)] if inside else []
        return found

    def _letterbox(self, image: Image) -> tuple[Float, tuple[float, float], int, int]:
        """The network's input [1, 3, H, W] in [0, 1], its scale across and down, and the grey left of and above it."""
        height, width = image.shape[:2]
        rows, columns = self._side
        ratio = min(rows / height, columns / width)
        size = (max(round(width * ratio), 1), max(round(height * ratio), 1))
        left, top = (columns - size[0]) // 2, (rows - size[1]) // 2
        canvas = np.full((rows, columns, 3), GREY, np.uint8)
        canvas[top : top + size[1], left : left + size[0]] = cv2.resize(rgb(image), size)
        pixels = np.ascontiguousarray(canvas.transpose(2, 0, 1)[None], np.float32) / np.float32(255)
        return pixels, (size[0] / width, size[1] / height), left, top

    def _file(self) -> Path:
        file = Path(self.options.checkpoint).expanduser()
        if file.suffix != ".onnx":
            raise CheckpointError(f"{file}: only an exported .onnx file is read, never a pickle; {_remedy()}")
        if not file.is_file():
            raise ModelMissing(f"{file}: no such file; {_remedy()}")
        return file


def _remedy() -> str:
    return (
        "export YOLO-World once: `pip install ultralytics` (AGPL-3.0, and so are the weights), then "
        'YOLOWorld("yolov8x-worldv2.pt"), set_classes([...]), export(format="onnx")'
    )
