"""Repainting changes the colour asked for, keeps shading, and touches nothing else."""

import cv2
import numpy as np
import pytest

from editfoundry.data_engine.paint import PAINTS, choices, colour_distance, repaint


def shaded_disc() -> tuple[np.ndarray, np.ndarray]:
    y, x = np.mgrid[0:96, 0:96].astype(np.float32)
    shade = (0.35 + 0.6 * x / 96)[..., None]
    image = (shade * np.float32([200, 170, 120])).astype(np.uint8)
    weight = ((x - 48) ** 2 + (y - 48) ** 2 < 30**2).astype(np.float32)
    return image, weight


@pytest.mark.parametrize("name", [n for n, p in PAINTS.items() if p.lab])
def test_mean_hue_becomes_the_paints(name: str) -> None:
    image, weight = shaded_disc()
    lab = cv2.cvtColor(repaint(image, weight, PAINTS[name]).astype(np.float32) / 255, cv2.COLOR_RGB2LAB)
    mean = lab[weight > 0.5][:, 1:].mean(axis=0)
    target = np.array(PAINTS[name].lab[1:])
    cosine = float(mean @ target / np.linalg.norm(mean) / np.linalg.norm(target))
    assert cosine > 0.93


@pytest.mark.parametrize("name", PAINTS)
def test_shading_survives_and_the_rest_is_untouched(name: str) -> None:
    image, weight = shaded_disc()
    painted = repaint(image, weight, PAINTS[name])
    grey = cv2.cvtColor(painted, cv2.COLOR_RGB2GRAY).astype(float)
    before = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(float)
    assert np.corrcoef(grey[weight > 0.5], before[weight > 0.5])[0, 1] > 0.9
    assert np.array_equal(painted[weight == 0], image[weight == 0])
    assert colour_distance(image, painted, weight > 0.5) > 10


def test_no_weight_changes_nothing() -> None:
    image, weight = shaded_disc()
    assert np.array_equal(repaint(image, np.zeros_like(weight), PAINTS["red"]), image)


def test_choices_leave_out_what_nobody_would_see() -> None:
    assert "red" not in choices("red")
    assert "blue" in choices("red")
    assert "gold" not in choices("yellow")
