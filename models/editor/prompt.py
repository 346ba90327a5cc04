"""The one prompt and the one resize: what training, validation and inference show the encoders for an edit.

The text is the instruction, after a line for each turn before it; the pictures follow it; the assistant's header closes
the prompt. Text is data: special tokens that are spelt out in it are read letter by letter.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from editfoundry.core.errors import EditFoundryError
from editfoundry.core.geometry import Grid, resize, to_grid
from editfoundry.core.hashing import fingerprint, sha256
from editfoundry.models.editor import latents
from editfoundry.models.editor.types import EditRequest, EncoderInputs
from editfoundry.models.protocols import Image

PROMPT_VERSION = 1
"""Raised whenever the code gives other tensors for the same request."""
HEAD = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
TAIL = "<|im_end|>\n<|im_start|>assistant\n"
EARLIER = "Earlier edit: "
VISION = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")


class InstructionTooLong(EditFoundryError):
    """An instruction with its history has more tokens than the editor was made for."""


def request_on_grid(instruction: str, images: Sequence[Image], grid: Grid, history: Sequence[str] = ()) -> EditRequest:
    """The request for pictures of any size (uint8 [H, W, 3]): all of them cover the grid of the result."""
    return EditRequest(instruction, tuple(to_grid(image, grid) for image in images), tuple(history))


def levels(images: Sequence[Image]) -> Tensor:
    """Pictures of one size, uint8 [H, W, 3], as one tensor: uint8 [R, 3, H, W], a quarter of the bytes of `pixels`."""
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()


def pixels(images: Sequence[Image]) -> Tensor:
    """Pictures of one size, uint8 [H, W, 3], as the autoencoder takes them: float32 [R, 3, H, W] in [-1, 1]."""
    return latents.unit(levels(images))


def pictures(pixels: Tensor) -> list[Image]:
    """The inverse of `pixels`: [B, 3, H, W] -> B pictures, uint8 [H, W, 3]. Raises EditFoundryError for NaN."""
    if not torch.isfinite(pixels).all():
        raise EditFoundryError(
            "the editor made pixels that are not finite: its weights are damaged, or float16 is too narrow for it"
        )
    rounded = ((pixels.float() + 1) * 127.5).round().clamp(0, 255).to("cpu", torch.uint8)
    return list(rounded.permute(0, 2, 3, 1).contiguous().numpy())


def vlm_size(width: int, height: int, area: int, face: int) -> tuple[int, int]:
    """Width and height at which the vision-language model sees a picture: at most about `area` pixels, whatever the

    picture's size, in multiples of `face`, the pixels along one of its tokens.

    >>> vlm_size(1024, 768, 448 * 448, 28)
    (504, 392)
    """
    short, long = min(width, height), max(width, height)
    across = max(1, round(math.sqrt(area * short / long) / face))
    most = area // (face * face * across)
    along = max(across, min(round(math.sqrt(area * long / short) / face), most))
    return (along * face, across * face) if width >= height else (across * face, along * face)


class EditorProcessor:
    """Makes the encoders' inputs of requests.

    processor: of Qwen2.5-VL. visual_processor: of SigLIP, None for an editor without it. vlm_pixels: of a picture for
    the vision-language model. max_text_tokens: of an instruction with its history.
    """

    def __init__(
        self, processor: Any, visual_processor: Any | None, vlm_pixels: int = 448 * 448, max_text_tokens: int = 256
    ) -> None:
        self.tokenizer = processor.tokenizer
        self.image_processor = processor.image_processor
        self.visual_processor = visual_processor
        self.vlm_pixels = vlm_pixels
        self.max_text_tokens = max_text_tokens
        self.face = self.image_processor.patch_size * self.image_processor.merge_size
        self.start, self.pad, self.end = (self._special(token) for token in VISION)
        self.head, self.tail = (self.tokenizer(text, add_special_tokens=False).input_ids for text in (HEAD, TAIL))

    def __call__(self, requests: Sequence[EditRequest]) -> EncoderInputs:
        """The tensors of a batch. Raises InstructionTooLong, and ValueError for requests that are no batch."""
        counts = {len(request.images) for request in requests}
        if len(counts) != 1 or counts == {0}:
            raise ValueError(f"requests of one batch have equally many pictures, one at least; got {sorted(counts)}")
        seen = self._seen([image for request in requests for image in request.images])
        faces = (seen["image_grid_thw"].prod(1) // self.image_processor.merge_size**2).view(len(requests), -1).tolist()
        rows = [self._row(request, tokens) for request, tokens in zip(requests, faces, strict=True)]
        length = max(map(len, rows))
        ids = torch.full((len(rows), length), self.tokenizer.pad_token_id)
        mask = torch.zeros_like(ids)
        for row, tokens, filled in zip(rows, ids, mask, strict=True):
            tokens[: len(row)] = torch.tensor(row)
            filled[: len(row)] = 1
        return EncoderInputs(
            input_ids=ids,
            attention_mask=mask,
            mm_token_type_ids=(ids == self.pad).long(),
            pixel_values=seen["pixel_values"],
            image_grid_thw=seen["image_grid_thw"],
            vision_end=(ids == self.end).nonzero()[:, 1].view(len(rows), -1),
            visual_pixels=self._visual_pixels(requests),
        )

    def text_tokens(self, instruction: str, history: Sequence[str] = ()) -> list[int]:
        """The tokens of an instruction and of the turns before it, all plain text. Raises InstructionTooLong."""
        lines = [*(EARLIER + _plain(line) for line in history), _plain(instruction)]
        tokens: list[int] = self.tokenizer(
            "\n".join(lines), add_special_tokens=False, split_special_tokens=True
        ).input_ids
        if len(tokens) > self.max_text_tokens:
            whose = f"the instruction and the {len(history)} before it have" if history else "the instruction has"
            raise InstructionTooLong(
                f"{whose} {len(tokens)} tokens, and the editor takes {self.max_text_tokens}; shorten it "
                f"({_plain(instruction)[:60]!r})"
            )
        return tokens

    def fingerprint(self) -> str:
        """Names everything that decides which tensors a request gives."""
        visual = None if self.visual_processor is None else _settings(self.visual_processor)
        vocabulary = sha256(self.tokenizer.backend_tokenizer.to_str())
        return fingerprint(PROMPT_VERSION, vocabulary, _settings(self.image_processor), visual, self.vlm_pixels)

    def _special(self, token: str) -> int:
        identity = self.tokenizer.get_vocab().get(token)
        if identity is None:
            raise EditFoundryError(f"the tokenizer has no {token}: it is not one of Qwen2.5-VL")
        return int(identity)

    def _row(self, request: EditRequest, faces: Sequence[int]) -> list[int]:
        """The tokens of one request whose pictures take so many tokens each."""
        pictures = [token for count in faces for token in (self.start, *[self.pad] * count, self.end)]
        return [*self.head, *self.text_tokens(request.instruction, request.history), *pictures, *self.tail]

    def _seen(self, images: Sequence[Image]) -> Any:
        """What the vision-language model sees of pictures of any size."""
        sizes = [vlm_size(image.shape[1], image.shape[0], self.vlm_pixels, self.face) for image in images]
        scaled = [resize(image, width, height) for image, (width, height) in zip(images, sizes, strict=True)]
        return self.image_processor(scaled, do_resize=False, input_data_format="channels_last", return_tensors="pt")

    def _visual_pixels(self, requests: Sequence[EditRequest]) -> Tensor | None:
        """What SigLIP sees: every picture as a square."""
        if self.visual_processor is None:
            return None
        width, height = self.visual_processor.size["width"], self.visual_processor.size["height"]
        squares = [resize(image, width, height) for request in requests for image in request.images]
        seen: Tensor = self.visual_processor(
            squares, do_resize=False, input_data_format="channels_last", return_tensors="pt"
        )["pixel_values"]
        return seen.view(len(requests), -1, *seen.shape[1:])


def _plain(text: str) -> str:
    """One line of valid text: runs of whitespace are one space, halves of surrogate pairs question marks."""
    return " ".join(text.encode("utf-8", "replace").decode("utf-8").split())


def _settings(processor: Any) -> dict[str, Any]:
    """A processor's settings, without the version that wrote them."""
    settings: dict[str, Any] = json.loads(processor.to_json_string())
    return {key: value for key, value in settings.items() if key != "transformers_version"}
