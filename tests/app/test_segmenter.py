"""`ImageSegmenter`: arrays and folders, with the command line's pipeline."""

from __future__ import annotations

import numpy as np
import pytest

import potentia as pt

pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")
QUICK = {"node": "linear", "edge": "constant", "superpixels": 40, "iterations": 30}


def discs(n: int, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    rows, columns = np.indices((16, 18))
    masks = [((rows - rng.integers(6, 11)) ** 2 + (columns - rng.integers(6, 12)) ** 2 < 20) * 7 for _ in range(n)]
    images = [np.clip(90 + 12 * mask[..., None] + rng.normal(0, 30, (16, 18, 3)), 0, 255) for mask in masks]
    return [image.astype(np.uint8) for image in images], masks


@pytest.fixture(scope="module")
def fitted() -> pt.ImageSegmenter:
    return pt.ImageSegmenter(**QUICK).fit(*discs(4))


def test_arrays_in_and_mask_values_out(fitted, tmp_path):
    images, masks = discs(2, seed=1)
    found = fitted.predict(images)
    assert set(np.unique(found[0])) <= {0, 7}
    assert fitted.score(images, masks) > 0.7
    assert np.array_equal(fitted.predict(images[0]), found[0])
    assert fitted.predict_proba(images[0]).shape == (16, 18, 2)
    assert fitted.classes_ == ["0", "7"]
    fitted.save(tmp_path / "model")
    np.testing.assert_array_equal(pt.load(tmp_path / "model").predict(images[0]) * 7, found[0])
