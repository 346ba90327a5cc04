"""What all embedded models share: a store, a digest from its pins, lazy loading, one thread."""

from typing import Any, ClassVar

import cv2
import onnxruntime as ort

from editfoundry.core.hashing import canonical_json, sha256
from editfoundry.models.store import Store


class EmbeddedModel:
    """Base of the embedded models. Construction is cheap; `load()` reads the weights, once.

    A subclass sets `name`, `version` (raised whenever its code gives other results for the same weights) and `weights`
    (ids in the model store), and implements `_load`.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    weights: ClassVar[tuple[str, ...]] = ()

    def __init__(self, store: Store | None = None) -> None:
        self.store = store or Store()
        self._loaded = False

    def digest(self) -> str:
        """SHA-256 over the pinned weights and the implementation's version; reads no weights."""
        return sha256(canonical_json({"name": self.name, "version": self.version, "weights": self._weight_digests()}))

    def load(self) -> None:
        """Load the weights unless they are loaded. Raises `ModelMissing` naming the command that fetches them."""
        if not self._loaded:
            cv2.setNumThreads(1)
            self._load()
            self._loaded = True

    def _weight_digests(self) -> dict[str, str]:
        return {model: self.store.digest(model) for model in self.weights}

    def _load(self) -> None:
        raise NotImplementedError


def onnx_session(path: str, *, precise: bool = True) -> Any:
    """An onnxruntime CPU session with one thread: the thread count changes the last bits of some models.

    Quantised kernels run in their precise form. The default one saturates on processors that have AVX2 without VNNI,
    which ruins int8 transformers there: two frames of one scene then match worse than two unrelated photographs.
    `precise=False` is for networks in which one quantised tensor serves several nodes: onnxruntime refuses to load
    those in the precise form.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = False  # the arena keeps the peak: two to three times the memory for a tenth of time
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    if precise:
        options.add_session_config_entry("session.x64quantprecision", "1")
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
