"""A dense CRF on given probabilities in one call."""

import numpy as np
import pytest

import potentia as pt


def sample(seed=0):
    """An image of two areas, their labels, and noisy probabilities."""
    rng = np.random.default_rng(seed)
    truth = (np.indices((24, 30))[1] > 14).astype(int)
    image = np.clip(60 + 120 * truth[..., None] + rng.normal(0, 5, (24, 30, 3)), 0, 255).astype(np.uint8)
    noisy = np.clip(0.5 + 0.2 * (2 * truth - 1) + 0.25 * rng.normal(size=truth.shape), 0.02, 0.98)
    return image, truth, np.stack([1 - noisy, noisy], axis=-1)


def test_it_is_mean_field_with_two_gaussians(tmp_path):
    image, truth, noisy = sample()
    found = pt.refine(image, noisy, smooth=1.0, appearance=3.0, sd_position=8.0, sd_colour=0.1, iterations=4)
    graph = pt.Graph([2] * truth.size, {"node": np.arange(truth.size)[:, None]})
    theta = {
        "node": np.log(noisy).astype(np.float32).reshape(-1, 2),
        "smooth": pt.DenseGaussian(pt.features.bilateral(image, 3), 1.0),
        "alike": pt.DenseGaussian(pt.features.bilateral(image, 8, 0.1 * np.ptp(image)), 3.0),
    }
    expected = pt.MeanField(iterations=4, tol=0).infer(graph, theta).variable_marginals
    np.testing.assert_allclose(found.probabilities.reshape(-1, 2), expected, atol=1e-6)
    assert np.mean(found.labels == truth) > np.mean(noisy.argmax(axis=-1) == truth) + 0.1
    assert found.entropy().shape == truth.shape
    pil = pytest.importorskip("PIL.Image")
    pil.fromarray(image).save(tmp_path / "image.png")
    again = pt.refine(tmp_path / "image.png", noisy[..., 1], smooth=1.0, appearance=3.0, sd_position=8.0, sd_colour=0.1)
    assert np.mean(again.labels == found.labels) > 0.99


def test_what_does_not_fit_is_refused():
    image, _, noisy = sample()
    for given, probabilities, sentence in [
        (image, noisy[:-1], "probabilities has shape"),
        (image[:, :, :, None], noisy, "image must have shape"),
        (image, np.full(noisy.shape, np.nan), "not finite"),
        (np.full(image.shape, np.inf), noisy, "not finite"),
        (image, noisy[..., 0] * 3, "must lie in"),
    ]:
        with pytest.raises(pt.PotentiaError, match=sentence):
            pt.refine(given, probabilities)
    with pytest.raises(pt.PotentiaError, match="sd_colour"):
        pt.refine(image, noisy, sd_colour=0)
    with pytest.raises(pt.PotentiaError, match="sd_position"):
        pt.refine(image, noisy, sd_position=0)
