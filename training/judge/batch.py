"""The packed row: what the loader hands to the judge's trainer, one per rank and accumulation step."""

from typing import NamedTuple

from torch import Tensor


class Row(NamedTuple):
    """Judged edits and comparisons as sequences, one after the other in a row of L tokens.

    Places are indices into the row's tokens, int64; the logits at a place predict the token after it. Where a head has
    nothing in the row, its tensors have length 0. Weights are float32 and are the record's, times those of
    `data.balance` for scores and regression.

    ids: int64 [1, L]. positions: int64 [4, 1, L], the text position, which starts again at 0 with each sequence, then
    the three rotary positions of the sequence by itself.

    pixel_values: float32 [P, D], the patches of N distinct pictures, one picture after the other. grids: int64 [N, 3],
    patches of each by time, height and width. picture_of_run: int64 [runs], which of the N pictures stands at each run
    of image tokens, in the order of the runs in `ids`: a picture is encoded once, however often it is shown.

    reply_places, reply_ids: int64 [G], where each token of a reply is predicted, and that token. reply_weights: [G].

    score_places: int64 [S], where the first digit of a score is predicted. second_places: int64 [S], the place of that
    digit where the reply has `1` and the scale goes to 10, so that `0` may follow; else -1. score_targets: float32
    [S, V], shares of the scale's values, lowest first; a fractional score is shared between its neighbours.
    score_weights: [S]. score_records: int64 [S], index into the R records. score_dimensions: int64 [S], index into the
    dimensions of the record's section.

    regression_places: int64 [R], the last token of each record's prompt. regression_targets: float32 [R, 3], scores by
    dimension, 0 where unknown. regression_mask: float32 [R, 3], 1 where known. regression_weights: [R, 3].

    ranking_pairs: int64 [K, 2], indices into R of two results of one picture and instruction. ranking_targets: int64
    [K], 1 where the first is better, 0 for a tie, -1 where the second is. ranking_dimensions: int64 [K].
    ranking_weights: [K].

    choice_places: int64 [C], the last token of each comparison's prompt. choice_targets: float32 [C, 3], shares of the
    answers A, B and neither (`rubric.CHOICES`) as the pictures are shown. choice_weights: [C].

    position, slot: of the global batch, and of this row in it. records, choices: ids of the R records and C choices.
    """

    ids: Tensor
    positions: Tensor
    pixel_values: Tensor
    grids: Tensor
    picture_of_run: Tensor
    reply_places: Tensor
    reply_ids: Tensor
    reply_weights: Tensor
    score_places: Tensor
    second_places: Tensor
    score_targets: Tensor
    score_weights: Tensor
    score_records: Tensor
    score_dimensions: Tensor
    regression_places: Tensor
    regression_targets: Tensor
    regression_mask: Tensor
    regression_weights: Tensor
    ranking_pairs: Tensor
    ranking_targets: Tensor
    ranking_dimensions: Tensor
    ranking_weights: Tensor
    choice_places: Tensor
    choice_targets: Tensor
    choice_weights: Tensor
    position: int
    slot: int
    records: tuple[str, ...]
    choices: tuple[str, ...]
