"""Features of regions beside those of pixels: what they are, where they are chosen, and what they go with."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

import potentia as pt
from potentia.app.image_stages import CrossFittedStage, Sample, cross_fit
from potentia.app.training import Run, TimeOverError
from potentia.features.image import RegionMeans, n_around, superpixel_edges, superpixels
from potentia.features.pixels import filter_bank, hog
from potentia.metrics import Calibration

pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")
pytest.importorskip("skimage")
Images = tuple[list[np.ndarray], list[np.ndarray]]


def patches(n: int, seed: int = 0) -> Images:
    """Large flat patches; the class is the texture of a patch, of which a single pixel in strong noise shows little."""
    rng = np.random.default_rng(seed)
    rows, columns = np.indices((72, 96))
    images, masks = [], []
    for _ in range(n):
        centres = rng.random((9, 2)) * (72, 96)
        patch = ((rows[..., None] - centres[:, 0]) ** 2 + (columns[..., None] - centres[:, 1]) ** 2).argmin(-1)
        labels, colours = rng.permutation(np.arange(9) % 2), 60 + 120 * rng.random((9, 3))
        mask = labels[patch]
        stripes = np.where(mask == 1, rows, columns) % 4 < 2
        image = colours[patch] + 6 * stripes[..., None] + rng.normal(0, 7, (72, 96, 3))
        images.append(np.clip(image, 0, 255).astype(np.uint8))
        masks.append(mask)
    return images, masks


def lines(n: int, seed: int = 0) -> Images:
    """Lines of one pixel that are seen at the pixel itself."""
    rng = np.random.default_rng(seed)
    images, masks = [], []
    for _ in range(n):
        mask = np.zeros((72, 96), dtype=int)
        mask[rng.choice(72, 6, replace=False)] = 1
        mask[:, rng.choice(96, 8, replace=False)] = 1
        image = 100 + 60 * mask[..., None] + rng.normal(0, 15, (72, 96, 3))
        images.append(np.clip(image, 0, 255).astype(np.uint8))
        masks.append(mask)
    return images, masks


def trained(data: Images, **options) -> tuple[pt.ImageSegmenter, list[str]]:
    said: list[str] = []
    options = {"pixels": 3000, "iterations": 5, "position": "no"} | options
    return pt.ImageSegmenter(**options).fit(*data, run=Run(say=said.append)), said


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_regions_hold_means_of_their_pixels_and_of_their_neighbours(channels):
    values = np.random.default_rng(0).random((40, 30, channels)).astype(np.float32)
    values[:, 15:] *= 0.4
    found = RegionMeans.of(values)
    grey = values if channels == 3 else values.mean(axis=-1, keepdims=True)
    assert np.array_equal(found.segments, superpixels(grey, 150))
    planes = np.concatenate([filter_bank(values, (1.0, 4.0)), hog(grey)], axis=-1)
    n, d = int(found.segments.max()) + 1, planes.shape[-1]
    assert found.features.shape == (n, n_around(channels)) == (n, 2 * d + channels)
    pairs = superpixel_edges(found.segments)[0]
    for region in (0, n // 2, n - 1):
        inside = found.segments == region
        np.testing.assert_allclose(found.features[region, :d], planes[inside].mean(axis=0), rtol=1e-4, atol=1e-5)
        spread = values[inside].std(axis=0)
        np.testing.assert_allclose(found.features[region, d : d + channels], spread, rtol=1e-3, atol=1e-4)
        near = [int(pair[0] if pair[1] == region else pair[1]) for pair in pairs if region in pair]
        around = planes[np.isin(found.segments, near)].mean(axis=0)
        np.testing.assert_allclose(found.features[region, d + channels :], around, rtol=1e-4, atol=1e-5)
    window = (slice(3, 20), slice(5, 9))
    assert np.array_equal(found.at(window, (40, 30)), found.features[found.segments[window]])


def test_large_images_have_their_regions_found_in_a_small_copy():
    values = np.zeros((500, 400, 1), dtype=np.float32)
    values[250:] = 0.8
    found = RegionMeans.of(values)
    assert found.segments.size <= 80_000
    seen = found.at((slice(0, 500), slice(0, 400)), (500, 400))[..., 0]
    assert seen.shape == (500, 400)
    assert np.abs(seen[:200]).max() < 0.01
    assert np.abs(seen[300:] - 0.8).max() < 0.01


def test_regions_are_chosen_where_patches_are_large_and_pixels_say_little(tmp_path):
    model, said = trained(patches(6))
    assert any("classified with the regions around them" in line for line in said), said
    assert model.pipeline_.pixels.rows.regions
    without, _ = trained(patches(6), regions="no")
    held = patches(4, seed=1)
    assert 1 - model.score(*held) < 0.8 * (1 - without.score(*held))
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(
        pt.load(tmp_path / "model").predict_marginals(held[0][0]), model.predict_proba(held[0][0])
    )


def test_regions_are_left_out_where_lines_are_thin(tmp_path):
    model, said = trained(lines(6))
    assert any("classified without the regions around them" in line for line in said), said
    assert not model.pipeline_.pixels.rows.regions
    without, _ = trained(lines(6), regions="no")
    image = lines(1, seed=1)[0][0]
    # the choice costs time, but changes nothing
    assert np.array_equal(model.predict_proba(image), without.predict_proba(image))
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(pt.load(tmp_path / "model").predict_marginals(image), model.predict_proba(image))


@pytest.mark.parametrize(
    "options", [{}, {"reduce": 0.6}, {"class_weight": "balanced"}, {"node": "linear"}, {"position": None}]
)
def test_regions_go_with_one_image_or_few_void_pixels_and_other_options(options):
    images, masks = patches(2 if options else 1)
    masks[0][:, :20] = -1
    model, _ = trained((images, masks), regions="yes", pixels=1000, iterations=2, **options)
    assert model.pipeline_.pixels.rows.regions
    soft = model.predict_proba(images[0])
    assert soft.shape == (72, 96, 2)
    np.testing.assert_allclose(soft.sum(axis=-1), 1.0, rtol=1e-5)


def test_volumes_and_given_features_have_no_regions():
    rng = np.random.default_rng(0)
    masks = [np.repeat(np.arange(12) // 6, 12 * 12).reshape(12, 12, 12) for _ in range(3)]
    images = [(80 * mask + rng.integers(0, 90, mask.shape)).astype(np.uint8) for mask in masks]
    model, _ = trained((images, masks), stacks="volumes", pixels=600)
    assert not model.pipeline_.pixels.rows.regions
    for options in ({"stacks": "volumes"}, {"superpixels": 9}, {"feature_set": "papers"}):
        with pytest.raises(pt.PotentiaError, match="--regions goes with filters of images"):
            pt.ImageSegmenter(regions="yes", **options).fit(images, masks)
    with pytest.raises(pt.PotentiaError, match="regions must be one of 'yes', 'no' or None, not True"):
        pt.ImageSegmenter(regions=True).fit(images, masks)


@pytest.mark.parametrize("options", [{}, {"class_weight": "1,3"}])
def test_trees_of_superpixels_are_as_certain_as_they_are_right(tmp_path, options):
    """Of noise, trees that were fitted to the same regions as the pairs would be certain."""
    rng = np.random.default_rng(0)
    images, masks = patches(6)
    # in a third of the blocks it is the other class: nobody can know where
    noisy = [np.where(rng.random((9, 12)).repeat(8, 0).repeat(8, 1) < 0.3, 1 - mask, mask) for mask in masks]
    model = pt.ImageSegmenter(superpixels=100, **options).fit(images[:4], noisy[:4])
    assert "cross_fitted_accuracy" in model.facts_
    soft = model.predict_proba(images[4])
    calibration = Calibration()
    for image, mask in zip(images[4:], noisy[4:], strict=True):
        calibration.add(mask, model.predict_proba(image))
    if not options:
        assert calibration.error() < 0.12
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(pt.load(tmp_path / "model").predict_marginals(images[4]), soft)
    facts = pt.ImageSegmenter(superpixels=30, iterations=3).fit(images, noisy, run=Run(validation=0.34)).facts_
    assert 0.4 < facts["validation_accuracy"] <= 1.0


@dataclass
class Ending(Run):
    """A run whose time is over after `left` looks at the clock."""

    left: list[int] = field(default_factory=lambda: [0])

    def over(self) -> bool:
        self.left[0] -= 1
        return self.left[0] < 0


def test_classifiers_that_are_fitted_are_kept_when_the_time_ends():
    rng = np.random.default_rng(0)
    samples = []
    for _ in range(4):
        x = rng.normal(size=(100, 3)).astype(np.float32)
        samples.append(Sample(x, (x[:, 0] > 0).astype(int), np.zeros((100, 2), dtype=np.int32)))

    def fitted(looks: int) -> CrossFittedStage:
        run = Ending(left=[looks])
        return cross_fit(lambda: pt.Boosting(rounds=5, more_rounds=5), samples, 2, run=run)

    whole = fitted(1000)
    assert whole.stages > 1
    kept = []
    for looks in range(40):
        try:
            kept.append(fitted(looks))
        except TimeOverError:
            # no fold may be without a classifier
            assert not kept
    assert 30 > len(kept) > 10
    for stage in kept:
        assert stage.loss < 0.6
        assert np.mean(stage.final.scores(samples[0].x).argmax(axis=1) == samples[0].labels) > 0.9
    assert np.array_equal(kept[-1].final.scores(samples[0].x), whole.final.scores(samples[0].x))


@pytest.mark.parametrize("looks", [3, 6, 9, 12, 30])
def test_a_model_is_left_wherever_in_the_pixel_stage_the_time_ends(looks):
    data = patches(4)
    run = Ending(left=[looks])
    options = {"pixels": 800, "iterations": 2, "node": "linear", "regions": "no", "position": "no"}
    try:
        model = pt.ImageSegmenter(**options).fit(*data, run=run)
    except TimeOverError:
        assert looks < 9
    else:
        assert model.predict(data[0][0]).shape == (72, 96)


@pytest.mark.parametrize("looks", [1, 4, 11])
def test_a_fit_killed_in_the_pixel_stage_resumes_from_its_fits(tmp_path, looks, monkeypatch):
    """Same bits as without the kill, and no fit is made twice."""
    data, options = patches(4), {"pixels": 500, "iterations": 2, "position": "no"}
    count, fit = [0], pt.Boosting.fit

    def killed(self, *args, **named):
        count[0] += 1
        if count[0] == looks + 1:
            raise KeyboardInterrupt
        return fit(self, *args, **named)

    whole = pt.ImageSegmenter(**options).fit(*data)
    monkeypatch.setattr(pt.Boosting, "fit", killed)
    run = Run(checkpoint=tmp_path / "checkpoint")
    with pytest.raises(KeyboardInterrupt):
        pt.ImageSegmenter(**options).fit(*data, run=run)
    again = pt.ImageSegmenter(**options).fit(*data, run=run)
    for image in data[0]:
        assert np.array_equal(again.predict_proba(image), whole.predict_proba(image))
    n_fits = count[0]
    pt.ImageSegmenter(**options).fit(*data)
    assert count[0] - n_fits == n_fits - 1
    with pytest.raises(pt.PotentiaError, match="other options or data"):
        pt.ImageSegmenter(**options | {"pixels": 400}).fit(*data, run=run)
