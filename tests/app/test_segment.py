"""`pt.segment`: one image and a few strokes."""

from __future__ import annotations

import numpy as np
import pytest

import potentia as pt


def disc(seed: int = 0, size: tuple[int, int] = (40, 48)) -> tuple[np.ndarray, np.ndarray]:
    """A noisy bright disc in 8 bits, and the truth."""
    rows, columns = np.indices(size)
    truth = ((rows - 20) ** 2 + (columns - 22) ** 2 < 120).astype(int)
    noise = np.random.default_rng(seed).normal(0, 30, (*size, 3))
    return np.clip(80 + 90 * truth[..., None] + noise, 0, 255).astype(np.uint8), truth


def strokes(size: tuple[int, int] = (40, 48)) -> np.ndarray:
    marks = np.full(size, -1)
    marks[18:22, 18:28] = 5
    marks[2:4, 4:40] = marks[36:38, 4:40] = 2
    marks[4:36, 3:5] = marks[4:36, 42:44] = 2
    return marks


def test_a_disc_is_found_with_the_values_of_the_strokes():
    image, truth = disc()
    found = pt.segment(image, strokes())
    assert found.classes.tolist() == [2, 5]
    assert found.labels.shape == truth.shape
    assert np.mean((found.labels == 5) == truth) > 0.95
    np.testing.assert_allclose(found.probabilities.sum(axis=-1), 1.0)
    assert found.entropy().shape == truth.shape
    assert found.entropy().min() >= 0
    assert np.array_equal(found.labels[strokes() >= 0], strokes()[strokes() >= 0])


def test_a_warm_start_gives_what_a_cold_one_does():
    image, _ = disc()
    first = strokes()
    first[36:38] = -1
    warm = pt.segment(image, strokes(), warm_start=pt.segment(image, first))
    cold = pt.segment(image, strokes())
    np.testing.assert_array_equal(warm.probabilities, cold.probabilities)


def test_strokes_of_one_image_label_the_next():
    image, truth = disc(1)
    marks = np.full(truth.shape, -1)
    marks[0, 0] = 2
    found = pt.segment(image, marks, warm_start=pt.segment(disc()[0], strokes()))
    assert np.mean((found.labels == 5) == truth) > 0.9


def test_the_model_predicts_and_is_saved(tmp_path):
    image, _truth = disc()
    found = pt.segment(image, strokes())
    free = strokes() < 0
    agreed = (found.classes[found.model.predict(image)] == found.labels)[free]
    assert agreed.mean() > 0.97
    found.model.save(tmp_path / "model")
    loaded = pt.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(disc(2)[0]), found.model.predict(disc(2)[0]))


def test_large_images_are_reduced(monkeypatch):
    monkeypatch.setattr("potentia.app.segment._MAX_PIXELS", 1000)
    image, truth = disc()
    found = pt.segment(image, strokes())
    assert found.labels.shape == truth.shape
    assert np.mean((found.labels == 5) == truth) > 0.9


@pytest.mark.parametrize("channels", [0, 1, 4, 6])
def test_any_number_of_channels_and_types(channels):
    image, truth = disc()
    grey = image[..., 0] / 255.0
    given = grey if channels == 0 else np.repeat(grey[..., None], channels, axis=2)
    assert np.mean((pt.segment(given, strokes()).labels == 5) == truth) > 0.9


def test_bad_input_is_one_sentence():
    image, _ = disc()
    marks = strokes()
    for bad, message in (
        (marks[1:], "scribbles has shape"),
        (np.full(marks.shape, -1), "no class"),
        (np.zeros(marks.shape, int), "every pixel a class"),
        (np.where(marks == 5, -1, marks), "class 2 only"),
        (np.where(marks == 5, 300, marks), "classes are 0 to 255"),
    ):
        with pytest.raises(pt.PotentiaError, match=message):
            pt.segment(image, bad)
    with pytest.raises(pt.PotentiaError, match="image must have shape"):
        pt.segment(np.zeros(5), marks)
    with pytest.raises(pt.PotentiaError, match="warm_start"):
        pt.segment(image, marks, warm_start="model")
