"""What two answers to one comparison, with the results shown in either order, come to."""

from collections.abc import Sequence

from editfoundry.models.judge.types import Preference


def preference(straight: Sequence[float], swapped: Sequence[float]) -> Preference:
    """The mean over both orders. Each: probabilities of A, B and neither, as shown; in the swapped order A is the

    second result. They need not sum to 1: the rest went to other answers.
    """
    covered = sum(straight), sum(swapped)
    one = [share / covered[0] for share in straight]
    two = [swapped[1] / covered[1], swapped[0] / covered[1], swapped[2] / covered[1]]
    first, second, tie = ((a + b) / 2 for a, b in zip(one, two, strict=True))
    return Preference(first, tie, second, one.index(max(one)) == two.index(max(two)), max(0.0, 1 - min(covered)))
