"""BRISQUE (Mittal, Moorthy & Bovik 2012): technical quality of a photograph without a reference.

Natural photographs have locally normalised luminances (MSCN coefficients) of a characteristic distribution, and
blur, noise and compression bend it. At two scales, an asymmetric generalised Gaussian is fitted to the coefficients and
to their products with four neighbours; a support vector regressor maps the 36 fitted numbers to a score.
"""

import json
from functools import lru_cache
from importlib import resources
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.special import gamma

from editfoundry.models.embedded.base import EmbeddedModel
from editfoundry.models.protocols import Image
from editfoundry.models.store import Store

Array = NDArray[np.float64]
WINDOW, SIGMA = 7, 7 / 6
LEAST_SIDE = 32
LONGEST_SIDE = 1024


class BrisqueScorer(EmbeddedModel):
    """`QualityScorer`: about 0 for pristine photographs, about 100 for ruined ones; it is not clipped to that range."""

    name = "brisque"
    weights = ("brisque-svm",)

    def __init__(self, store: Store | None = None) -> None:
        super().__init__(store)
        self._svm: Any = None

    def _load(self) -> None:
        from libsvm import svmutil

        self._svm = svmutil.svm_load_model(str(self.store.path("brisque-svm")))

    def quality(self, image: Image) -> float:
        """Score of a uint8 RGB image [H, W, 3], lower is better; measured at 1,024 pixels on the long side or less.

        A flat image (no local contrast at all) has no statistics to judge and gets 100. Raises ValueError for an image
        under 32 pixels on a side.
        """
        from libsvm import svmutil

        self.load()
        if min(image.shape[:2]) < LEAST_SIDE:
            raise ValueError(f"BRISQUE needs at least {LEAST_SIDE}x{LEAST_SIDE} pixels, got "
                             f"{image.shape[1]}x{image.shape[0]}")
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float64)
        scale = LONGEST_SIDE / max(grey.shape)
        if scale < 1:
            grey = cv2.resize(grey, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
        if grey.min() == grey.max():
            return 100.0
        scaled = scale_features(features(grey))
        nodes, _ = svmutil.gen_svm_nodearray(scaled.tolist())
        return float(svmutil.libsvm.svm_predict(self._svm, nodes))


def features(grey: Array) -> Array:
    """The 36 BRISQUE features, float64, of a luminance image [H, W] in 0..255: 18 at full scale, 18 at half scale."""
    half = cv2.resize(grey, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_CUBIC)
    return np.concatenate([_scale_features(grey), _scale_features(half)])


def scale_features(values: Array) -> Array:
    """Features scaled from the training range to [-1, 1]."""
    low, high = _training_range()
    return 2 * (values - low) / (high - low) - 1


def _scale_features(grey: Array) -> Array:
    mscn = _mscn(grey)
    shape, _, left, right = fit_asymmetric_gaussian(mscn)
    fitted = [shape, (left + right) / 2]
    for product in (mscn[:, :-1] * mscn[:, 1:], mscn[:-1] * mscn[1:],
                    mscn[:-1, :-1] * mscn[1:, 1:], mscn[1:, :-1] * mscn[:-1, 1:]):
        fitted.extend(fit_asymmetric_gaussian(product))
    return np.array(fitted)


def _mscn(grey: Array) -> Array:
    """Mean-subtracted, contrast-normalised luminance."""
    def blur(values: Array) -> Array:
        return np.asarray(cv2.GaussianBlur(values, (WINDOW, WINDOW), SIGMA, borderType=cv2.BORDER_REPLICATE))

    mean = blur(grey)
    deviation = np.sqrt(np.abs(blur(grey * grey) - mean * mean))
    return (grey - mean) / (deviation + 1.0)


def fit_asymmetric_gaussian(values: Array) -> tuple[float, float, float, float]:
    """Moment fit of an asymmetric generalised Gaussian (Lasmar et al. 2009): shape, mean, left and right variance."""
    negative, positive = values[values < 0], values[values >= 0]
    left = float(np.mean(negative**2)) if negative.size else 0.0
    right = float(np.mean(positive**2)) if positive.size else 0.0
    shapes, ratios = _shape_table()
    second = float(np.mean(values**2))
    if second == 0 or right == 0:
        return float(shapes[0]), 0.0, left, right
    skew = np.sqrt(left / right)
    ratio = float(np.mean(np.abs(values))) ** 2 / second
    ratio *= (skew**3 + 1) * (skew + 1) / (skew**2 + 1) ** 2
    shape = float(shapes[np.argmin((ratios - ratio) ** 2)])
    spread = np.sqrt(gamma(1 / shape) / gamma(3 / shape))
    mean = (np.sqrt(right) - np.sqrt(left)) * spread * gamma(2 / shape) / gamma(1 / shape)
    return shape, float(mean), left, right


@lru_cache(maxsize=1)
def _shape_table() -> tuple[Array, Array]:
    shapes = np.arange(0.2, 10.0, 0.001)
    return shapes, gamma(2 / shapes) ** 2 / (gamma(1 / shapes) * gamma(3 / shapes))


@lru_cache(maxsize=1)
def _training_range() -> tuple[Array, Array]:
    data = json.loads((resources.files("editfoundry.models.embedded") / "brisque_range.json").read_text("utf-8"))
    return np.array(data["minimum"]), np.array(data["maximum"])
