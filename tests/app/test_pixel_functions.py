"""Functions of pixels beyond those of a CRF: forests, LightGBM and networks."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import potentia as pt
from potentia.app import pixel_functions
from potentia.app.image_files import Given
from potentia.app.pixel_functions import PixelForest
from potentia.app.pixels import PixelRows, whole
from potentia.app.training import Run
from potentia.potentials import Potential
from potentia.potentials.tree_ensemble import encode

pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")


def striped(n: int, channels: int = 3, seed: int = 0, size: tuple[int, int] = (33, 27)):
    """Images with a bright part, and where it is; the first row is unknown."""
    rng = np.random.default_rng(seed)
    masks = [np.tile(np.arange(size[1]) > rng.integers(8, 18), (size[0], 1)).astype(np.int64) for _ in range(n)]
    images = [
        np.clip(60 + 90 * mask[..., None] + rng.normal(0, 35, (*mask.shape, channels)), 0, 255).astype(np.uint8)
        for mask in masks
    ]
    for mask in masks:
        mask[0] = -1
    return [image[..., 0] if channels == 1 else image for image in images], masks


@pytest.fixture(params=["forest", "lightgbm", "network"])
def node(request, monkeypatch):
    if request.param == "network":
        network = pytest.importorskip("potentia.app.pixel_network")
        monkeypatch.setattr(network, "_STEPS", 12)
        monkeypatch.setattr(network, "_CROP", 32)
    elif request.param == "lightgbm":
        pytest.importorskip("lightgbm")
    return request.param


@pytest.mark.parametrize(("n", "channels"), [(1, 1), (2, 12), (4, 3)])
def test_functions_of_pixels_fit_save_and_predict(node, n, channels, tmp_path):
    images, masks = striped(n, channels)
    model = pt.ImageSegmenter(node=node, class_weight="balanced").fit(images, masks)
    assert model.score(*striped(2, channels, seed=1)) > 0.9
    model.save(tmp_path / "model")
    loaded = pt.load(tmp_path / "model")
    for image in (images[0], *striped(1, channels, seed=2, size=(7, 70))[0]):
        np.testing.assert_array_equal(loaded.predict_marginals(image), model.predict_proba(image))
    assert loaded.facts()["pixel classifier"] == model.pipeline_.facts()["pixel classifier"]


def test_features_of_the_user_and_positions_go_with_every_function(node, tmp_path):
    images, masks = striped(3)
    for name in ("images", "masks", "extra"):
        (tmp_path / name).mkdir()
    from PIL import Image

    for k, (image, mask) in enumerate(zip(images, masks, strict=True)):
        Image.fromarray(image).save(tmp_path / "images" / f"{k}.png")
        Image.fromarray(np.where(mask < 0, 255, mask).astype(np.uint8)).save(tmp_path / "masks" / f"{k}.png")
        np.save(
            tmp_path / "extra" / f"{k}.npy", np.random.default_rng(k).normal(size=(*mask.shape, 2)) + mask[..., None]
        )
    model = pt.ImageSegmenter(
        node=node, position="yes", void="255", features=tmp_path / "extra", feature_set="given", groups=r"(\d)"
    ).fit(tmp_path / "images", tmp_path / "masks")
    extra = np.load(tmp_path / "extra" / "0.npy")
    found = model.pipeline_.predict(images[0], features=extra)
    assert np.mean(found[1:] == masks[0][1:]) > 0.85
    with pytest.raises(pt.PotentiaError, match="needs 2 given features"):
        model.predict(images[0])


def test_a_forest_is_scikit_learns_on_codes():
    from sklearn.ensemble import ExtraTreesClassifier

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 5)).astype(np.float32), rng.integers(3, size=300)
    y += x[:, 0] > 0
    y[y == 2] = 3
    forest = PixelForest(trees=7, min_samples_leaf=3, seed=4).fit(x, y, weight=rng.random(300) + 0.5, n_outputs=4)
    rng = np.random.default_rng(0)
    rng.normal(size=(300, 5)), rng.integers(3, size=300)
    twin = ExtraTreesClassifier(7, min_samples_leaf=3, random_state=4)
    twin.fit(encode(x, forest.edges_).astype(np.float32), y, rng.random(300) + 0.5)
    new = rng.normal(size=(90, 5)).astype(np.float32)
    expected = np.zeros((90, 4))
    expected[:, twin.classes_] = twin.predict_proba(encode(new, forest.edges_).astype(np.float32))
    np.testing.assert_allclose(np.exp(forest.scores(new)), np.maximum(expected, 1e-4), atol=1e-12)


def test_a_damaged_forest_is_refused():
    rng = np.random.default_rng(0)
    forest = PixelForest(trees=2).fit(rng.normal(size=(60, 3)), rng.integers(2, size=60))
    content, arrays = forest.state()
    again = Potential.from_state(content, arrays)
    np.testing.assert_array_equal(again.scores(np.eye(3)), forest.scores(np.eye(3)))
    name = next(key for key in arrays if key.endswith("nodes_"))
    arrays[name] = arrays[name] + (1 << 30)
    with pytest.raises(pt.PotentiaError, match="damaged"):
        Potential.from_state(content, arrays)


# -- networks ---------------------------------------------------------------------------------------------------


def test_networks_are_refused_where_they_cannot_be(monkeypatch):
    images, masks = striped(2)
    with pytest.raises(pt.PotentiaError, match="labels images, not volumes"):
        pt.ImageSegmenter(node="network", stacks="volumes").fit(images, masks)
    with pytest.raises(pt.PotentiaError, match="--learner ilr cannot train --node network"):
        pt.ImageSegmenter(node="network", superpixels=20).fit(images, masks)
    monkeypatch.setattr(pixel_functions, "find_spec", lambda name: None)
    with pytest.raises(pt.PotentiaError, match=r"pip install potentia\[torch\]"):
        pt.ImageSegmenter(node="network").fit(images, masks)


needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")


@needs_torch
def test_crops_keep_labels_with_their_pixels_and_show_one_that_is_known():
    from potentia.app.pixel_network import LabelledPart, _crop

    rng = np.random.default_rng(0)
    for size in ((50, 23), (8, 40), (1, 5)):
        labels = rng.integers(0, 5, size)
        labels[rng.random(size) < 0.97] = -1
        labels[0, 0] = 3
        known = np.flatnonzero(labels >= 0)
        part = LabelledPart(labels[..., None].astype(np.float32), labels)
        seen = []
        for _ in range(40):
            x, y = _crop(part, known, 32, (True, True), np.zeros(1), rng)
            assert x.shape == (32, 32, 1)
            assert np.any(y >= 0)
            factor = x[..., 0][y > 0] / y[y > 0]
            assert np.ptp(factor) < 1e-5 if len(factor) else True
            seen.append(y.tobytes())
        assert len(set(seen)) > 10 or size == (1, 5)


@needs_torch
def test_images_are_mirrored_only_where_classes_do_not_lie_to_one_side():
    from potentia.app.pixel_network import LabelledPart, allowed_flips

    rng = np.random.default_rng(0)

    def part(top: bool, left: bool) -> LabelledPart:
        labels = rng.integers(0, 2, (20, 20))
        labels[:8] |= 2 * top
        labels[:, :8] |= 2 * left
        return LabelledPart(labels[..., None].astype(np.float32), labels)

    for top, left in ((False, False), (True, False), (False, True), (True, True)):
        assert allowed_flips([part(top, left) for _ in range(6)], 4) == (not top, not left)
    assert allowed_flips([part(True, True) for _ in range(2)], 4) == (True, True)


@needs_torch
def test_a_network_has_the_same_bits_for_the_same_seed_and_leaves_other_random_numbers(monkeypatch):
    import torch

    from potentia.app import pixel_network as module

    monkeypatch.setattr(module, "_STEPS", 3)
    rng = np.random.default_rng(0)
    part = module.LabelledPart(rng.random((40, 30, 2), dtype=np.float32), rng.integers(-1, 3, (40, 30)))
    fits = []
    for seed in (0, 0, 1):
        torch.manual_seed(5)
        state = module.train_network([part], 3, np.array([1.0, 2.0, 3.0]), (True, True), [seed, 0], lambda: None)
        fits.append((state, torch.rand(3).tolist()))
    assert fits[0][1] == fits[1][1] == fits[2][1]
    assert all(np.array_equal(fits[0][0][name], fits[1][0][name]) for name in fits[0][0])
    assert not np.array_equal(fits[0][0]["last.weight"], fits[2][0]["last.weight"])


@needs_torch
def test_networks_score_windows_as_whole_images_and_tiles_as_one(monkeypatch):
    from potentia.app import pixel_network as module

    monkeypatch.setattr(module, "_STEPS", 10)
    images, masks = striped(2, size=(90, 110))
    rows = PixelRows("image", False, 0, 3)
    parts = [module.LabelledPart(i.astype(np.float32) / 255, m) for i, m in zip(images, masks, strict=True)]
    states = [module.train_network(parts, 2, None, (True, True), [k], lambda: None) for k in range(2)]
    stage = module.NetworkStage(rows, 2, states)
    values = parts[0].values
    scores = stage.image_scores(values, Given(None, None))
    assert scores.dtype == np.float32
    assert scores.shape == (90, 110, 2)
    np.testing.assert_allclose(np.exp(scores).sum(-1), 1.0, atol=3e-4)
    window = (slice(10, 40), slice(30, 77))
    monkeypatch.setattr(module, "_MARGIN", 200)
    np.testing.assert_array_equal(stage.scores(values, window, Given(None, None)), scores[window])
    monkeypatch.setattr(module, "_MARGIN", 24)
    monkeypatch.setattr(module, "_TILE", 48)
    tiled = stage.scores(values, whole((90, 110)), Given(None, None))
    assert np.abs(np.exp(tiled) - np.exp(scores)).mean() < 0.05
    for size in ((1, 1), (5, 40)):
        assert stage.image_scores(np.zeros((*size, 3), np.float32), Given(None, None)).shape == (*size, 2)


@needs_torch
def test_damaged_networks_are_one_sentence():
    from potentia.app import pixel_network as module

    rows = PixelRows("image", False, 0, 3)
    state = module.to_arrays(module.PixelUNet(3, 2).state_dict())
    content, arrays = module.NetworkStage(rows, 2, [state]).state()
    assert module.NetworkStage.restore(rows, content, arrays).n_features == 3
    for more in ({"networks": 2}, {"networks": -1}, {"networks": "1"}, {"states": 3}, {"states": None}):
        with pytest.raises(pt.PotentiaError):
            module.NetworkStage.restore(rows, content | more, arrays)
    with pytest.raises(pt.PotentiaError, match="another module"):
        module.NetworkStage.restore(PixelRows("image", False, 2, 3), content, arrays)


@needs_torch
def test_a_network_stops_in_time_and_a_first_model_takes_its_place(monkeypatch):
    from potentia.app import pixel_network as module

    monkeypatch.setattr(module, "_STEPS", 100_000)
    said: list[str] = []
    images, masks = striped(4)
    model = pt.ImageSegmenter(node="network", minutes=0.02).fit(images, masks, run=Run(say=said.append))
    assert "the time is over, so the first model is kept." in said
    assert model.score(images, masks) > 0.8
