"""A vision-language model in this process (Qwen2.5-VL and its like, through transformers), asked like an API.

Nothing constrains decoding: the schema of a reply is only described in the prompt, so a reply may break it, and then is
a `Failed` like one from a server.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from PIL import Image as PillowImage
from pydantic import Field

from editfoundry.core.chat.messages import Answered, ChatRequest, Failed, Reply
from editfoundry.core.chat.structured import BadReply, strict_schema, validate_reply
from editfoundry.core.hashing import canonical_json, sha256
from editfoundry.models.checkpoint import TorchOptions, checkpoint_digest, checkpoint_path
from editfoundry.models.language.prompts import Prompt
from editfoundry.models.perception.base import CheckpointError, pretrained
from editfoundry.models.perception.base import processor as checked_processor

VERSION = 1
"""Raised when the same checkpoint is asked differently."""
LONGEST_SIDE_RATIO = 100.0
"""Pictures longer than this many times their width are not asked about: processors refuse them."""
PIXELS_PER_TOKEN = 28 * 28


class ChatModelOptions(TorchOptions):
    """How a local chat model is loaded. max_pixels: pictures with more are shrunk (28x28 pixels are one token)."""

    checkpoint: str = "qwen2.5-vl-7b-instruct"
    max_pixels: int = Field(default=1280 * PIXELS_PER_TOKEN, ge=4 * PIXELS_PER_TOKEN)


@dataclass(eq=False)
class Resident:
    """A loaded model with its processor. end: ids of the tokens that end a reply."""

    model: Any
    processor: Any
    end: tuple[int, ...]

    @cached_property
    def control_tokens(self) -> tuple[str, ...]:
        """What must not stand in a text, longest first: the tokenizer would read it as a turn's end, a picture…"""
        added = (token.content for token in self.processor.tokenizer.added_tokens_decoder.values())
        return tuple(sorted((text for text in added if len(text) > 2 and not text.isspace()), key=len, reverse=True))


_RESIDENTS: "WeakValueDictionary[tuple[str, str, str], Resident]" = WeakValueDictionary()
_LOADING = Lock()


def resident(checkpoint: str, device: str, dtype: Any) -> Resident:
    """The model, loaded unless somebody in this process holds it already. It goes when nobody does.

    Raises ModelMissing if the checkpoint is not there, CheckpointError if it is of no such model.
    """
    path = checkpoint_path(checkpoint)
    key = (str(path.resolve()), device, str(dtype))
    with _LOADING:
        held = _RESIDENTS.get(key)
        if held is None:
            if device == "cpu":
                import torch

                torch.set_num_threads(1)  # the number of threads changes the last bits
            held = _RESIDENTS[key] = load_resident(path, device, dtype)
        return held


def load_resident(path: Path, device: str, dtype: Any) -> Resident:
    """A model of its own for whoever changes it, as training does. Raises CheckpointError if it is of no such model."""
    from transformers import AutoModelForImageTextToText, AutoProcessor, GenerationConfig

    processor = checked_processor(AutoProcessor, path)
    if not hasattr(processor, "image_processor") or not getattr(processor, "chat_template", None):
        raise CheckpointError(f"{path}: no chat model that sees: it lacks an image processor or a chat template")
    processor.tokenizer.padding_side = "left"
    model = pretrained(AutoModelForImageTextToText, path, device, dtype)
    stops = model.generation_config.eos_token_id
    end = tuple(stops) if isinstance(stops, list) else (processor.tokenizer.eos_token_id if stops is None else stops,)
    pad = processor.tokenizer.pad_token_id
    # The released settings sample, with a repetition penalty that breaks JSON: only where to stop is kept.
    model.generation_config = GenerationConfig(eos_token_id=list(end), pad_token_id=end[0] if pad is None else pad)
    return Resident(model, processor, end)


class LocalChat:
    """`Chat` on a local model. Greedy, or sampled at a request's temperature from a generator of its own seed.

    Requests with as many pictures and the same form and limit are served in batches of about equal length, padded on
    the left. A reply does not depend on its neighbours but for the rounding of batched arithmetic.
    """

    def __init__(self, options: ChatModelOptions) -> None:
        self.options = options
        self._form = Prompt.load("reply", frozenset({"schema"}))
        self._resident: Resident | None = None

    def digest(self) -> str:
        """Hash of the weights and of all that changes a reply to a given request; loads nothing."""
        options = self.options
        settings = {"dtype": options.dtype, "max_pixels": options.max_pixels, "form": self._form.digest}
        return sha256(canonical_json([VERSION, checkpoint_digest(options.checkpoint), settings]))

    def load(self) -> None:
        """Load the weights unless they are loaded. Raises ModelMissing naming the remedy."""
        if self._resident is None:
            self._resident = resident(self.options.checkpoint, self.options.where(), self.options.precision())

    def ask(self, requests: Sequence[ChatRequest]) -> list[Reply]:
        """One reply per request, in order: Answered, or Failed with invalid_json, schema, truncated or bad_request."""
        replies: dict[int, Reply] = {}
        buckets: dict[Any, list[int]] = {}
        for index, request in enumerate(requests):
            if flaw := _unaskable(request):
                replies[index] = Failed("bad_request", flaw)
            else:
                pictures = sum(not isinstance(part, str) for part in request.parts)
                buckets.setdefault((pictures, request.schema, request.max_tokens), []).append(index)
        for members in buckets.values():
            members.sort(key=lambda index: self._length(requests[index]))
            for start in range(0, len(members), self.options.batch):
                batch = members[start : start + self.options.batch]
                answers = self._generate([requests[index] for index in batch])
                replies.update(zip(batch, answers, strict=True))
        return [replies[index] for index in range(len(requests))]

    def _length(self, request: ChatRequest) -> float:
        """About how many tokens a request has."""
        texts = sum(len(part) for part in request.parts if isinstance(part, str))
        areas = [int(part.shape[0]) * int(part.shape[1]) for part in request.parts if not isinstance(part, str)]
        return texts / 4 + sum(min(area, self.options.max_pixels) for area in areas) / PIXELS_PER_TOKEN

    def encode(self, requests: Sequence[ChatRequest]) -> Any:
        """Model inputs of a batch, padded on the left: what the processor makes of the conversations."""
        self.load()
        assert self._resident is not None
        smallest = 4 * PIXELS_PER_TOKEN
        return self._resident.processor.apply_chat_template(
            [self._conversation(request) for request in requests],
            tokenize=True,
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs={
                "text_kwargs": {"padding": True},
                "images_kwargs": {"size": {"shortest_edge": smallest, "longest_edge": self.options.max_pixels}},
            },
        ).to(self._resident.model.device)

    def _conversation(self, request: ChatRequest) -> list[dict[str, Any]]:
        parts = list(request.parts)
        if request.schema is not None:
            schema = json.dumps(strict_schema(request.schema), ensure_ascii=False)
            parts.append(self._form.user({}, schema=schema))
        lines = [f"{part}\n" if isinstance(part, str) else part for part in parts[:-1]]
        turns = [{"role": "user", "content": [self._part(part) for part in (*lines, *parts[-1:])]}]
        if request.system:
            turns.insert(0, {"role": "system", "content": [self._part(request.system)]})
        return turns

    def _part(self, part: Any) -> dict[str, Any]:
        assert self._resident is not None
        if not isinstance(part, str):
            return {"type": "image", "image": PillowImage.fromarray(np.ascontiguousarray(part))}
        for token in self._resident.control_tokens:
            part = part.replace(token, f"{token[0]} {token[1:]}")
        return {"type": "text", "text": part}

    def _generate(self, requests: Sequence[ChatRequest]) -> list[Reply]:
        import torch

        inputs = self.encode(requests)
        assert self._resident is not None
        with torch.inference_mode():
            output = self._resident.model.generate(
                **inputs,
                do_sample=False,
                max_new_tokens=requests[0].max_tokens,
                logits_processor=[Sampler(requests)] if any(request.temperature for request in requests) else None,
            )
        width = inputs["input_ids"].shape[1]
        read = inputs["attention_mask"].sum(dim=1).tolist()
        return [self._reply(*each) for each in zip(requests, read, output[:, width:].tolist(), strict=True)]

    def _reply(self, request: ChatRequest, read: int, tokens: list[int]) -> Reply:
        assert self._resident is not None
        ends = [place for place, token in enumerate(tokens) if token in self._resident.end]
        if not ends:
            return Failed("truncated", f"no end within {request.max_tokens} tokens")
        decode = self._resident.processor.tokenizer.decode
        text: str = decode(tokens[: ends[0]], skip_special_tokens=True).strip()
        if request.schema is None:
            return Answered(text, None, read, ends[0] + 1)
        try:
            return Answered(text, validate_reply(text, request.schema), read, ends[0] + 1)
        except BadReply as error:
            return Failed(error.reason, str(error))


class Sampler:
    """Makes greedy search draw: adds Gumbel noise to the logits over the temperature (Maddison et al. 2014).

    The largest of these is distributed as a draw from the softmax. Each row has a generator of its own, on the CPU, so
    that a request draws the same next to any neighbours and on any device. A row at temperature 0 is left as it is.
    """

    def __init__(self, requests: Sequence[ChatRequest]) -> None:
        import torch

        self._rows = [
            (row, request.temperature, torch.Generator().manual_seed(request.seed))
            for row, request in enumerate(requests)
            if request.temperature > 0
        ]

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Logits [B, V] with the noise in, float32."""
        import torch

        del input_ids
        drawn = scores.float().clone()
        for row, temperature, generator in self._rows:
            uniform = torch.rand(drawn.shape[1], generator=generator).clamp_(1e-20, 1 - 1e-7)
            drawn[row] = drawn[row] / temperature - torch.log(-torch.log(uniform)).to(drawn.device)
        return drawn


def _unaskable(request: ChatRequest) -> str:
    """What is wrong with a request that no processor takes, or nothing."""
    if not request.parts:
        return "a request without a part"
    for part in request.parts:
        if isinstance(part, str):
            continue
        if part.dtype != np.uint8 or part.ndim != 3 or part.shape[2] != 3 or not part.size:
            return f"a picture has to be uint8 [H, W, 3], not {part.dtype} {list(part.shape)}"
        if max(part.shape[:2]) > LONGEST_SIDE_RATIO * min(part.shape[:2]):
            return f"a picture of {part.shape[1]}x{part.shape[0]} pixels is too narrow"
    return ""
