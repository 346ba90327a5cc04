"""Style transfer with the real weights: colours move to the reference's, shapes stay."""

import cv2
import numpy as np
import pytest
from skimage import data

from editfoundry.models.embedded.style import ArbitraryStyleTransfer
from editfoundry.models.protocols import Restyle

pytestmark = pytest.mark.weights


@pytest.fixture(scope="module")
def model() -> ArbitraryStyleTransfer:
    transfer = ArbitraryStyleTransfer()
    transfer.load()
    return transfer


def photograph() -> np.ndarray:
    return np.asarray(data.coffee())[:400, :592]


def reference() -> np.ndarray:
    """Blue and white waves."""
    y, x = np.mgrid[:300, :300]
    wave = (np.sin(x / 7 + 4 * np.sin(y / 23)) + 1) / 2
    return np.dstack([wave * 180, wave * 200, 120 + wave * 135]).astype(np.uint8)


def stylised(model: ArbitraryStyleTransfer, strength: float = 1.0) -> np.ndarray:
    (result,) = model.stylise([Restyle(photograph(), reference(), "blue waves", seed=0, strength=strength)])
    return result


def test_the_style_is_taken_and_the_structure_kept(model: ArbitraryStyleTransfer) -> None:
    image = photograph()
    result = stylised(model)
    assert result.shape == image.shape and result.dtype == np.uint8
    warmth = image[..., 0].mean() - image[..., 2].mean()
    assert result[..., 0].mean() - result[..., 2].mean() < warmth - 60, "a red table turns blue"
    edges = [cv2.GaussianBlur(np.abs(cv2.Laplacian(cv2.cvtColor(i, cv2.COLOR_RGB2GRAY), cv2.CV_32F)), (0, 0), 3)
             for i in (image, result)]
    assert np.corrcoef(edges[0].ravel(), edges[1].ravel())[0, 1] > 0.4


def test_less_strength_stays_nearer_to_the_photograph(model: ArbitraryStyleTransfer) -> None:
    image = photograph()
    weak, strong = (stylised(model, strength) for strength in (0.3, 1.0))
    distance = [np.abs(result.astype(int) - image).mean() for result in (weak, strong)]
    assert distance[0] < 0.8 * distance[1]


def test_the_result_is_the_same_every_time(model: ArbitraryStyleTransfer) -> None:
    assert np.array_equal(*(stylised(m, 0.7) for m in (model, ArbitraryStyleTransfer())))


@pytest.mark.parametrize("strength", [0.0, -0.1, 1.01])
def test_strength_out_of_range_is_refused(model: ArbitraryStyleTransfer, strength: float) -> None:
    with pytest.raises(ValueError, match="strength"):
        stylised(model, strength)
