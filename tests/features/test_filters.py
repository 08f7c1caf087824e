"""The filter bank, features of boundaries, and probabilities of other models as features."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

import potentia as pt
from potentia.base.types import PotentiaError
from potentia.features import edge_features, filter_bank, image_example, pixel_features, typical_contrast
from potentia.features.image import log_probabilities
from potentia.features.pixels import filter_reach, n_filters
from potentia.graph.structure import Graph


def noise(*shape, seed=0):
    return np.random.default_rng(seed).random(shape)


@pytest.mark.parametrize(
    ("shape", "axes"), [((1, 1), 2), ((1, 9, 3), 2), ((20, 31), 2), ((20, 31, 7), 2), ((5, 6, 7), 3), ((1, 6, 7, 2), 3)]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_size_and_number_of_channels_has_its_features(shape, axes, dtype):
    found = filter_bank(noise(*shape), axes=axes, dtype=dtype)
    channels = shape[axes] if len(shape) > axes else 1
    assert found.shape == (*shape[:axes], n_filters(channels, axes=axes))
    assert found.dtype == dtype
    assert np.isfinite(found).all()


def test_filters_are_those_of_their_definitions():
    image = noise(40, 50)
    found = filter_bank(image, scales=(2.0,), dtype=np.float64)
    smooth = ndimage.gaussian_filter(image, 2.0, truncate=3.0)
    down, right = (2.0 * g for g in np.gradient(smooth))
    hessian = np.array([[2 * np.gradient(down, axis=0), 2 * np.gradient(down, axis=1)]] * 2)
    hessian[1] = hessian[0, 1], 2 * np.gradient(right, axis=1)
    tensor = [[ndimage.gaussian_filter(a * b, 2.0, truncate=3.0) for b in (down, right)] for a in (down, right)]
    wanted = [image, smooth, np.hypot(down, right), hessian[0, 0] + hessian[1, 1]]
    wanted += list(np.moveaxis(np.linalg.eigvalsh(np.moveaxis(hessian, (0, 1), (-2, -1))), -1, 0)[::-1])
    tensors = np.linalg.eigvalsh(np.moveaxis(np.array(tensor), (0, 1), (-2, -1)))
    wanted += list(np.sqrt(np.maximum(np.moveaxis(tensors, -1, 0)[::-1], 0)))
    assert np.allclose(found, np.stack(wanted, axis=-1), atol=1e-10)


def test_a_cascade_of_gaussians_is_the_wide_one():
    image = noise(80, 80)
    found = filter_bank(image, dtype=np.float64)
    per_scale = n_filters(1, scales=(1.0,)) - 1
    wide = ndimage.gaussian_filter(image, 8.0, truncate=6.0)
    assert np.abs(found[..., 1 + 3 * per_scale] - wide).max() < 0.02 * np.ptp(image)


def test_features_follow_a_flip_and_sixteen_bits_are_kept():
    image = np.random.default_rng(0).integers(2000, 2221, (30, 40), dtype=np.uint16)
    found = filter_bank(image)
    assert len(np.unique(found[..., 0])) == len(np.unique(image))
    assert np.allclose(filter_bank(image[:, ::-1]), found[:, ::-1], atol=1e-5)
    assert np.allclose(filter_bank(image.T), found.swapaxes(0, 1), atol=1e-5)


def test_a_tile_with_margin_has_the_features_of_the_whole():
    image = noise(300, 40)
    whole, reach = filter_bank(image, dtype=np.float64), filter_reach()
    part = filter_bank(image[: 150 + reach], dtype=np.float64)
    spread = np.ptp(whole, axis=(0, 1))
    assert (np.abs(part[:150] - whole[:150]).max(axis=(0, 1)) < 0.01 * spread).all()


@pytest.mark.parametrize(
    ("image", "options", "message"),
    [
        (np.zeros((2, 2, 2, 2)), {}, "channels"),
        (np.zeros((3, 3)), {"axes": 3}, "d, h, w"),
        (np.full((2, 2), np.inf), {}, "not finite"),
        (np.zeros((2, 2), complex), {}, "real numbers"),
        (np.zeros((2, 2)), {"scales": (2.0, 1.0)}, "ascending"),
        (np.zeros((0, 2)), {}, "at least one pixel"),
    ],
)
def test_what_is_no_image_is_refused(image, options, message):
    with pytest.raises(PotentiaError, match=message):
        filter_bank(image, **options)


def test_boundaries_stand_out_in_images_and_volumes():
    step = np.zeros((6, 8, 2), dtype=np.float32)
    step[:, 4:] = 0.5
    grid = Graph.grid((6, 8), n_states=2)
    edges = grid.scopes["edge"]
    found = edge_features(step, edges)
    assert found.shape == (len(edges), 9)
    across = (edges % 8 == [3, 4]).all(axis=1)
    assert (found[across, 1:4] < 0.6).all()
    assert np.allclose(found[~across, 1], 1.0)
    assert found[across, 4].min() > found[~across, 4].max()
    volume = np.repeat(step[None, ..., 0], 3, axis=0)
    grid = Graph.grid((3, 6, 8), n_states=2)
    deep = edge_features(volume, grid.scopes["edge"], axes=3)
    assert deep.shape == (len(grid.scopes["edge"]), 9)
    flat = edge_features(np.ones((3, 3)), [[0, 1]])
    assert np.allclose(flat, [[1, 1, 1, 1, 0, 0, 0, 0, 0]])


def test_typical_contrast_is_the_unit_of_distances():
    image = noise(9, 9, 3)
    edges = Graph.grid((9, 9), n_states=2).scopes["edge"]
    units = typical_contrast(image, edges)
    assert np.allclose(edge_features(image, edges), edge_features(image, edges, typical=units), atol=1e-5)
    double = edge_features(image, edges, ("contrast",), typical=[u / 2 for u in units])
    single = edge_features(image, edges, ("contrast",), typical=units)
    assert np.allclose(np.expm1(double), 2 * np.expm1(single), rtol=1e-4)
    with pytest.raises(PotentiaError, match="5 finite numbers above zero"):
        edge_features(image, edges, typical=[1.0])


def test_volumes_become_examples():
    volume = noise(3, 4, 5)
    labels = np.random.default_rng(0).integers(-1, 2, (3, 4, 5))
    example = image_example(volume, labels, n_states=2, node="filters-position", axes=3)
    assert example.graph.n_variables == 60
    assert np.array_equal(example.labels, labels.ravel())
    features = example.features["node"].reshape(3, 4, 5, -1)
    assert np.allclose(features[0, 1, 2, -3:], [2.5 / 5, 1.5 / 4, 0.5 / 3])
    assert features.shape[-1] == n_filters(1, axes=3) + 3


def test_averaged_filters_are_block_averages():
    image = noise(20, 30)
    full = pixel_features(image, "filters-position", dtype=np.float64).reshape(20, 30, -1)
    small = pixel_features(image, "filters-position", size=(4, 6), dtype=np.float64)
    assert np.allclose(small, full.reshape(4, 5, 6, 5, -1).mean(axis=(1, 3)).reshape(24, -1))


def test_probabilities_and_logits_are_the_same_features():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5, 6, 3))
    soft = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    by_logits, by_soft = (image_example(noise(5, 6), n_states=3, probabilities=p) for p in (logits + 7, soft))
    assert by_soft.features["node"].shape == (30, 3)
    assert np.allclose(by_soft.features["node"], np.log(soft).reshape(30, 3), atol=1e-5)
    for kind in ("node", "edge"):
        assert np.allclose(by_logits.features[kind], by_soft.features[kind], atol=1e-5)
    one, other = (soft.reshape(30, 3)[by_soft.graph.scopes["edge"][:, k]] for k in (0, 1))
    assert np.allclose(by_soft.features["edge"][:, -2], np.sqrt(one * other).sum(axis=1), atol=1e-5)
    both = image_example(noise(5, 6), n_states=3, probabilities=soft, node="filters")
    assert both.features["node"].shape[1] == 3 + n_filters(1)


def test_certainty_stays_finite_and_two_classes_need_one_map():
    sure = np.array([[0.0, 1.0, 0.25]])
    found = log_probabilities(sure, 2, (1, 3))
    assert np.isfinite(found).all()
    assert np.allclose(np.exp(found[0, 2]), [0.75, 0.25])
    with pytest.raises(PotentiaError, match="not finite"):
        log_probabilities(np.array([[[np.nan, 1.0]]]), 2, (1, 1))


@pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")
def test_pairs_repair_noisy_probabilities():
    rng = np.random.default_rng(0)
    examples, raw = [], []
    for _ in range(4):
        truth = np.zeros((20, 24), dtype=int)
        truth[4:15, 5 : 10 + rng.integers(8)] = 1
        image = truth + 0.1 * rng.normal(size=truth.shape)
        soft = np.clip(0.5 + 0.25 * (2 * truth - 1) + 0.3 * rng.normal(size=truth.shape), 0.02, 0.98)
        examples.append(image_example(image, truth, n_states=2, probabilities=soft))
        raw.append(np.mean((soft > 0.5) == truth))
    model = pt.CRF({"node": pt.Linear(), "edge": pt.Linear()}, pt.IteratedLogistic(iterations=20))
    model.fit(examples[:3])
    assert model.score(examples[3:]) > raw[3] + 0.1
