"""Questions to a local judge from prompts and their pictures, which go by the digest of their pixels."""

from collections.abc import Sequence

import torch

from editfoundry.core.errors import EditFoundryError
from editfoundry.models.judge.encode import Patches, PromptEncoder
from editfoundry.models.judge.prefix import Question
from editfoundry.models.judge.rubric import Prompt, Slot
from editfoundry.models.protocols import Image


class TooLong(EditFoundryError):
    """A question with more tokens than the model reads."""

    reason = "too_long"


class Shown:
    """The pictures of one call, by digest. most: tokens that the model reads."""

    def __init__(self, encoder: PromptEncoder, most: int) -> None:
        self._encoder, self._most = encoder, most
        self._pictures: dict[str, Image] = {}
        self._digests: dict[int, str] = {}

    def patches(self, digest: str) -> Patches:
        """A picture that was shown, scaled and cut."""
        return self._encoder.patches(self._pictures[digest])

    def question(self, prompt: Prompt, pictures: dict[Slot, Image], begun: Sequence[int] = ()) -> Question:
        """A prompt with its pictures, followed by the tokens that its reply has to begin with.

        Raises UnfitPicture, TooLong.
        """
        grids = {slot: self._encoder.grid(*picture.shape[:2]) for slot, picture in pictures.items()}
        tokens = self._encoder.tokens(prompt, grids)
        ids = torch.cat([tokens.ids, torch.tensor(list(begun), dtype=torch.int64)])
        if len(ids) > self._most:
            raise TooLong(f"the question has {len(ids)} tokens, the model reads {self._most}; lower --max-pixels")
        after = tokens.positions.max() + 1 + torch.arange(len(begun))
        positions = torch.cat([tokens.positions, after.expand(3, -1)], 1)
        digests = [self._digest(pictures[slot]) for slot in tokens.pictures]
        return Question.of(ids, positions, digests, self._encoder.image_token)

    def _digest(self, picture: Image) -> str:
        known = self._digests.get(id(picture))
        if known is None:
            known = self._digests[id(picture)] = self._encoder.digest(picture)
            self._pictures[known] = picture
        return known
