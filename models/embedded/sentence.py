"""all-MiniLM-L6-v2 (Reimers & Gurevych 2019; Wang et al. 2020): sentence embeddings, through transformers."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from editfoundry.models.embedded.base import EmbeddedModel
from editfoundry.models.protocols import Float
from editfoundry.models.store import Store

DIMENSION = 384
LONGEST = 256
CACHED_TEXTS = 8192


class SentenceEmbedder(EmbeddedModel):
    """`TextEmbedder`, 384 numbers a text: the mean of the last hidden states, L2-normalised.

    Each text runs alone, so that an embedding never depends on what else is in the batch.
    """

    name = "all-minilm-l6-v2"
    weights = ("all-minilm-l6-v2",)

    def __init__(self, store: Store | None = None) -> None:
        super().__init__(store)
        self._tokenizer: Any = None
        self._model: Any = None
        self._cached: Any = None

    def _load(self) -> None:
        directory = str(self.store.path("all-minilm-l6-v2"))
        import torch
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar

        torch.set_num_threads(1)
        disable_progress_bar()
        self._tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        self._model = AutoModel.from_pretrained(directory, local_files_only=True, use_safetensors=True).eval()
        self._cached = lru_cache(maxsize=CACHED_TEXTS)(self._embed_one)

    def embed(self, texts: Sequence[str]) -> Float:
        """float32 [N, 384], rows of length 1; their dot product is the cosine similarity. Tokens past 256 are cut."""
        self.load()
        if not texts:
            return np.zeros((0, DIMENSION), np.float32)
        return np.stack([self._cached(text) for text in texts])

    def _embed_one(self, text: str) -> Float:
        import torch

        tokens = self._tokenizer(text, return_tensors="pt", truncation=True, max_length=LONGEST)
        with torch.inference_mode():
            hidden = self._model(**tokens).last_hidden_state[0]  # [T, 384]; one text, so no padding to leave out
            mean = hidden.mean(dim=0)
            return np.asarray(torch.nn.functional.normalize(mean, dim=0).numpy(), dtype=np.float32)
