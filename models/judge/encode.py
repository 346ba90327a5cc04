"""From a prompt with pictures to what Qwen2.5-VL reads: tokens, rotary positions and patches. One code for inference

and training. Tensor names: L tokens of a sequence, P patches of a picture.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from editfoundry.core.errors import EditFoundryError
from editfoundry.core.hashing import sha256
from editfoundry.models.judge.rubric import Picture, Prompt, Slot
from editfoundry.models.protocols import Image

Grid = tuple[int, int, int]
"""Patches of a picture by time (1), height and width, before they are merged 2x2 into tokens."""
LONGEST_SIDE_RATIO = 100.0
"""Pictures longer than this many times their width are not judged: the processor refuses them."""


class UnfitPicture(EditFoundryError):
    """A picture that the model cannot be shown."""

    reason = "bad_picture"


@dataclass(frozen=True)
class Patches:
    """A picture as the vision tower reads it: pixel_values float32 [P, D]. digest: of the pixels, as they are read."""

    pixel_values: Tensor
    grid: Grid
    digest: str


@dataclass(frozen=True)
class Tokens:
    """A conversation. ids: int64 [L]; positions: int64 [3, L], rotary, by time, height and width.

    pictures: what stands at each run of image tokens, in order. prompt: how many tokens come before the reply.
    """

    ids: Tensor
    positions: Tensor
    pictures: tuple[Slot, ...]
    prompt: int

    def __len__(self) -> int:
        return len(self.ids)


class PromptEncoder:
    """Makes the inputs of one model. processor: of transformers; config: the whole model's.

    min_pixels, max_pixels: pictures with fewer or more are scaled. control_tokens: of `Resident`, longest first; in
    texts they are broken up, so that no words from outside can end a turn or stand for a picture.
    """

    def __init__(
        self, processor: Any, config: Any, min_pixels: int, max_pixels: int, control_tokens: tuple[str, ...]
    ) -> None:
        self.processor, self.tokenizer = processor, processor.tokenizer
        self.min_pixels, self.max_pixels = min_pixels, max_pixels
        self.image_token = int(config.image_token_id)
        self._image_text: str = self.tokenizer.convert_ids_to_tokens(self.image_token)
        self._merge, self._patch = int(config.vision_config.spatial_merge_size), int(config.vision_config.patch_size)
        self._control_tokens = control_tokens

    def patches(self, image: Image) -> Patches:
        """A picture, uint8 [H, W, 3], scaled and cut. Raises UnfitPicture for one that is too narrow."""
        height, width = image.shape[:2]
        grid = self.grid(height, width)
        pixels = np.ascontiguousarray(image)
        size = {"shortest_edge": self.min_pixels, "longest_edge": self.max_pixels}
        made = self.processor.image_processor(
            images=[pixels], size=size, input_data_format="channels_last", return_tensors="pt"
        )
        assert tuple(made["image_grid_thw"][0].tolist()) == grid
        return Patches(made["pixel_values"], grid, self.digest(pixels))

    def digest(self, image: Image) -> str:
        """Names a picture and how it is read."""
        about = f"{list(image.shape)} {self.min_pixels} {self.max_pixels} "
        return sha256(about.encode() + np.ascontiguousarray(image).tobytes())

    def grid(self, height: int, width: int) -> Grid:
        """The grid of a picture of that size; equals `patches(...).grid`. Raises UnfitPicture."""
        from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

        if min(height, width) < 1 or max(height, width) > LONGEST_SIDE_RATIO * min(height, width):
            raise UnfitPicture(
                f"a picture of {width}x{height} pixels is too narrow for the judge; the longer side may be at most "
                f"{LONGEST_SIDE_RATIO:g} times the shorter"
            )
        face = self._patch * self._merge
        tall, wide = smart_resize(height, width, face, self.min_pixels, self.max_pixels)
        return 1, tall // self._patch, wide // self._patch

    def picture_tokens(self, grid: Grid) -> int:
        """How many tokens a picture of that grid has."""
        return math.prod(grid) // self._merge**2

    def tokens(
        self, prompt: Prompt, grids: Mapping[Slot, Grid], reply: str = "", *, reply_ends: bool = False
    ) -> Tokens:
        """The conversation as the chat template lays it out, up to the assistant's turn, then the reply's tokens.

        grids: of the picture of every slot in the prompt. reply_ends: whether the end of the turn follows the reply.
        """
        text = self.processor.apply_chat_template(
            self._conversation(prompt), tokenize=False, add_generation_prompt=True
        )
        pictures = tuple(part.slot for part in prompt.parts if isinstance(part, Picture))
        pieces = text.split(self._image_text)
        assert len(pieces) == len(pictures) + 1
        text = pieces[0]
        for slot, piece in zip(pictures, pieces[1:], strict=True):
            text += self._image_text * self.picture_tokens(grids[slot]) + piece
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        length = len(ids)
        ids = ids + self.reply_ids(reply) + ([self.tokenizer.eos_token_id] if reply_ends else [])
        tensor = torch.tensor(ids, dtype=torch.int64)
        return Tokens(tensor, self.positions(tensor, [grids[slot] for slot in pictures]), pictures, length)

    def reply_ids(self, text: str) -> list[int]:
        """The tokens of (a piece of) a reply."""
        ids: list[int] = self.tokenizer(self.plain(text), add_special_tokens=False)["input_ids"]
        return ids

    def plain(self, text: str) -> str:
        """The text without control tokens, as valid Unicode."""
        text = text.encode("utf-8", "replace").decode()
        for token in self._control_tokens:
            text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    def positions(self, ids: Tensor, grids: list[Grid]) -> Tensor:
        """Rotary positions int64 [3, L], as `Qwen2_5_VLModel.get_rope_index` gives them for still pictures: text counts

        on, a picture spans its rows and columns, and what follows starts after its longer side.
        """
        parts, start, left = [], 0, iter(grids)
        for is_picture, run in groupby((ids == self.image_token).tolist()):
            count = len(list(run))
            if not is_picture:
                parts.append(torch.arange(count).expand(3, count) + start)
                start += count
                continue
            time, height, width = (
                side // scale for side, scale in zip(next(left), (1, self._merge, self._merge), strict=True)
            )
            places = torch.stack(torch.meshgrid(*map(torch.arange, (time, height, width)), indexing="ij"))
            parts.append(places.flatten(1) + start)
            start += max(height, width)
        return torch.cat(parts, 1)

    def _conversation(self, prompt: Prompt) -> list[dict[str, Any]]:
        content = [
            {"type": "image"} if isinstance(part, Picture) else {"type": "text", "text": self.plain(part)}
            for part in prompt.parts
        ]
        turns: list[dict[str, Any]] = [{"role": "user", "content": content}]
        if prompt.system:
            turns.insert(0, {"role": "system", "content": [{"type": "text", "text": self.plain(prompt.system)}]})
        return turns
