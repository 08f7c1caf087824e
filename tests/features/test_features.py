"""Features of pixels, pairs and superpixels: known values, twins, any size, and what is refused."""

from __future__ import annotations

import sys
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_sets import DATA, needs
from potentia.base.types import PotentiaError
from potentia.features import (
    edge_features,
    fourier,
    hog,
    image_example,
    pixel_features,
    reduce_labels,
    resize,
    superpixel_edges,
    superpixel_example,
    superpixel_features,
    superpixel_labels,
    superpixels,
    upsample_marginals,
)
from potentia.features.colour import as_rgb
from potentia.features.pixels import sobel
from potentia.graph.structure import Graph
from potentia_studies import public_sets

SIZES = [(1, 1), (1, 7), (3, 2), (8, 8), (13, 21), (32, 24)]


def random_image(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def ramp(angle, size=64):
    """A grey image whose gradient points to `angle` everywhere."""
    x, y = np.meshgrid(np.arange(size), np.arange(size))
    values = x * np.cos(angle) + y * np.sin(angle)
    return (values - values.min()) / (values.max() - values.min())


def refused(message):
    return pytest.raises(PotentiaError, match=message)


# -- images as numbers ---------------------------------------------------------------------------------------


def test_all_forms_of_a_picture_mean_the_same():
    image = random_image(5, 4)
    wanted = image / 255
    assert np.allclose(as_rgb(image), wanted)
    assert np.allclose(as_rgb(wanted.astype(np.float32)), wanted, atol=1e-7)
    assert np.allclose(as_rgb(image.astype(np.uint16) * 257), wanted)
    grey = image[..., 0]
    assert np.array_equal(as_rgb(grey), as_rgb(grey[..., None]))
    assert np.array_equal(as_rgb(grey), as_rgb(np.repeat(grey[..., None], 3, axis=2)))
    assert as_rgb(grey > 100).max() == 1.0


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((4, 4, 4), np.uint8), r"an image has shape .* not \(4, 4, 4\)"),
        (np.zeros(4, np.uint8), r"an image has shape .* not \(4,\)"),
        (np.zeros((0, 4), np.uint8), "at least one pixel"),
        (np.full((2, 2), 7.0), r"floats must have values in \[0, 1\]"),
        (np.full((2, 2), np.nan), r"floats must have values in \[0, 1\]"),
        (np.full((2, 2), 7), "unsigned integers or floats in .*, not int64"),
    ],
)
def test_what_is_no_image_is_refused(image, message):
    with refused(message) as caught:
        pixel_features(image, "ilr")
    assert "\n" not in str(caught.value)


# -- pixels ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("node", "n_features"), [("ilr", 42), ("ilr-chapter", 41), ("mbl", 100)])
def test_the_papers_sets_have_their_counts_at_any_size(size, node, n_features):
    features = pixel_features(random_image(*size), node)
    assert features.shape == (size[0] * size[1], n_features)
    assert features.dtype == np.float32
    assert np.isfinite(features).all()


def test_blocks_stand_in_the_order_asked_for():
    image = random_image(6, 5)
    features = pixel_features(image, ["position", "constant", "rgb"], dtype=np.float64)
    assert features.dtype == np.float64
    x, y = np.meshgrid((np.arange(5) + 0.5) / 5, (np.arange(6) + 0.5) / 6)
    assert np.allclose(features[:, 0], x.ravel())
    assert np.allclose(features[:, 1], y.ravel())
    assert np.all(features[:, 2] == 1)
    assert np.allclose(features[:, 3:], image.reshape(-1, 3) / 255)


def test_single_precision_agrees_with_double():
    image = random_image(20, 30)
    for node in ("ilr", "mbl"):
        assert np.allclose(pixel_features(image, node), pixel_features(image, node, dtype=np.float64), atol=2e-5)


def test_averaging_after_features_is_block_averaging():
    image = random_image(20, 30)
    full = pixel_features(image, ("constant", "rgb", "position", "fourier", "hog"), dtype=np.float64)
    small = pixel_features(image, ("constant", "rgb", "position", "fourier", "hog"), size=(4, 6), dtype=np.float64)
    blocks = full.reshape(4, 5, 6, 5, -1).mean(axis=(1, 3)).reshape(24, -1)
    assert np.allclose(small, blocks, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_fourier_is_its_definition(d, seed):
    s = np.random.default_rng(seed).random((7, d))
    vectors = np.array(list(product((0, 1), repeat=d)))[:, ::-1]
    angle = np.pi * s @ vectors.T
    assert np.allclose(fourier(s), np.concatenate([np.cos(angle), np.sin(angle)], axis=1), atol=1e-12)


def test_fourier_keeps_leading_axes_and_takes_a_scale():
    s = np.random.default_rng(0).random((2, 3, 5))
    expanded = fourier(s, scale=1.0)
    assert expanded.shape == (2, 3, 64)
    assert np.allclose(expanded[..., 31], np.cos(s.sum(axis=2)))
    assert np.allclose(expanded[..., 63], np.sin(s.sum(axis=2)))
    assert np.all(expanded[..., 0] == 1)
    assert np.all(expanded[..., 32] == 0)
    with refused("takes 1 to 12 features"):
        fourier(np.zeros((2, 13)))


# -- HOG -------------------------------------------------------------------------------------------------------


def slow_hog_cells(image, cell, floor=1e-4):
    """The definition, vote by vote."""
    height, width = image.shape[:2]
    rows, columns = -(-height // cell), -(-width // cell)
    padded = np.pad(image, [(cell, cell + -height % cell), (cell, cell + -width % cell), (0, 0)], mode="symmetric")
    down, right = np.gradient(padded, axis=(0, 1))
    histogram = np.zeros((rows + 2, columns + 2, 9))
    for i, j in np.ndindex(padded.shape[:2]):
        c = int(np.argmax(down[i, j] ** 2 + right[i, j] ** 2))
        magnitude, angle = np.hypot(down[i, j, c], right[i, j, c]), np.arctan2(down[i, j, c], right[i, j, c])
        at = (angle % np.pi) / (np.pi / 9) - 0.5
        for k in (int(np.floor(at)), int(np.floor(at)) + 1):
            for y, x in product(range(rows + 2), range(columns + 2)):
                near = max(0, 1 - abs((i + 0.5) / cell - 0.5 - y)) * max(0, 1 - abs((j + 0.5) / cell - 0.5 - x))
                histogram[y, x, k % 9] += magnitude * (1 - abs(at - k)) * near / cell**2
    result = np.zeros((rows, columns, 36))
    for y, x in np.ndindex(rows, columns):
        for number, (a, b) in enumerate(product((0, 1), repeat=2)):
            block = histogram[y + a : y + a + 2, x + b : x + b + 2]
            scaled = histogram[y + 1, x + 1] / np.sqrt((block**2).sum() + floor**2)
            result[y, x, 9 * number : 9 * number + 9] = np.minimum(scaled, 0.2)
    return result


@pytest.mark.parametrize(("size", "cell"), [((12, 9), 4), ((8, 8), 4), ((5, 3), 2), ((1, 1), 3), ((4, 4), 1)])
def test_hog_agrees_with_its_slow_twin(size, cell):
    image = random_image(*size) / 255
    slow = slow_hog_cells(image, cell)
    fast = hog(image, cell)
    assert fast.shape == (*size, 36)
    # interpolation between cells, spelled out
    for i, j in np.ndindex(size):
        y, x = (np.clip((p + 0.5) / cell - 0.5, 0, n - 1) for p, n in zip((i, j), slow.shape, strict=False))
        value = sum(max(0, 1 - abs(y - a)) * max(0, 1 - abs(x - b)) * slow[a, b] for a, b in np.ndindex(slow.shape[:2]))
        assert np.allclose(fast[i, j], value, atol=1e-10)


def test_hog_of_a_constant_picture_is_zero():
    assert np.all(hog(np.full((20, 17), 0.3)) == 0)


@pytest.mark.parametrize("k", range(9))
def test_hog_of_a_ramp_points_to_its_orientation(k):
    # the centre of bin k: all votes in one bin, equal cells, so each block divides by 2 and .5 is cut to .2
    middle = hog(ramp((k + 0.5) * np.pi / 9))[24:40, 24:40].reshape(-1, 4, 9)
    wanted = np.zeros(9)
    wanted[k] = 0.2
    assert np.allclose(middle, wanted, atol=1e-3)


def test_hog_between_two_bins_is_shared():
    middle = hog(ramp(np.pi / 9))[32, 32].reshape(4, 9)
    assert np.allclose(middle[:, :2], 0.2, atol=1e-6)
    assert np.allclose(middle[:, 2:], 0, atol=1e-6)


def test_hog_turns_with_the_image():
    image = random_image(24, 32) / 255
    plain = hog(image).reshape(24, 32, 4, 9)
    half_turn = hog(image[::-1, ::-1]).reshape(24, 32, 4, 9)
    # opposite directions are one orientation; the four blocks swap places
    assert np.allclose(half_turn[::-1, ::-1, ::-1], plain, atol=1e-10)


def test_hog_does_not_depend_on_contrast():
    image = random_image(24, 32) / 255
    assert np.allclose(hog(image), hog(0.25 + 0.5 * image), atol=1e-4)


def test_hog_refuses_an_empty_cell():
    with refused("cell must be a whole number >= 1, not 0"):
        hog(random_image(4, 4), cell=0)


# -- pairs -----------------------------------------------------------------------------------------------------


def step_image():
    """4 x 6, black on the left half and white on the right."""
    return np.repeat((np.arange(6) >= 3).astype(float)[None], 4, axis=0)


def test_a_step_has_known_sobel_and_difference():
    assert np.allclose(sobel(step_image())[:, 2:4], 0.5)
    assert np.all(sobel(step_image())[:, [0, 1, 4, 5]] == 0)
    edges = Graph.grid((4, 6), n_states=2).scopes["edge"]
    features = edge_features(step_image(), edges, "ilr", dtype=np.float64)
    columns = edges % 6
    crossing = (columns[:, 0] == 2) & (columns[:, 1] == 3)
    assert np.all(features[:, 0] == 1)
    assert np.allclose(features[:, 1], np.where(crossing, np.sqrt(3), 0))
    beside = np.isin(columns, (2, 3)).any(axis=1)
    assert np.allclose(features[:, 2], np.where(beside, 0.5, 0))


def test_thresholds_count_how_large_a_value_is():
    image = np.zeros((1, 2, 3))
    image[0, 1, 0] = 0.27
    features = edge_features(image, [[0, 1]], ("difference_steps", "sobel_steps"), dtype=np.float64)
    assert features[0, :10].tolist() == [1] * 5 + [0] * 5
    response = 0.27 * 0.299 * 0.5
    assert features[0, 10:].sum() == np.sum(response > np.arange(1, 11) * 0.02)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("edge", "n_features"), [("ilr", 3), ("mbl", 42), ("mbl-backgrounds", 22)])
def test_the_papers_edge_sets_have_their_counts_at_any_size(size, edge, n_features):
    edges = Graph.grid(size, n_states=2).scopes["edge"]
    features = edge_features(random_image(*size), edges, edge)
    assert features.shape == (len(edges), n_features)
    assert features.dtype == np.float32


def test_horizontal_and_vertical_pairs_use_their_own_half():
    image = random_image(5, 7)
    edges = Graph.grid((5, 7), n_states=2).scopes["edge"]
    base = edge_features(image, edges, ("constant", "difference_steps", "sobel_steps"))
    copies = edge_features(image, edges, "mbl")
    horizontal = edges[:, 1] - edges[:, 0] == 1
    assert np.array_equal(copies[horizontal, :21], base[horizontal])
    assert np.array_equal(copies[~horizontal, 21:], base[~horizontal])
    assert np.all(copies[horizontal, 21:] == 0)
    assert np.all(copies[~horizontal, :21] == 0)


def test_pairs_of_a_column_are_vertical():
    edges = Graph.grid((4, 1), n_states=2).scopes["edge"]
    features = edge_features(random_image(4, 1), edges, ("constant", "directions"))
    assert np.array_equal(features, np.repeat([[0, 1]], 3, axis=0))


def test_eight_neighbours_have_four_directions():
    edges = Graph.grid((3, 3), n_states=2, neighbours=8).scopes["edge"]
    features = edge_features(random_image(3, 3), edges, ("constant", "directions"))
    assert features.sum(axis=0).tolist() == [6, 6, 4, 4]
    assert np.array_equal(features, edge_features(random_image(3, 3), edges[:, ::-1], ("constant", "directions")))


@pytest.mark.parametrize(
    ("edges", "edge", "message"),
    [
        ([[0, 9]], "ilr", r"outside 0\.\.5"),
        ([0, 1], "ilr", "whole numbers of shape"),
        ([[0, 1]], "unknown", "edge must be one of 'boundary', 'ilr', 'mbl', 'mbl-backgrounds' or a list of blocks"),
        ([[0, 1]], ("hog",), "edge may hold the blocks .* not 'hog'"),
        ([[0, 1]], (), "not an empty list"),
        ([[0, 1]], ("directions", "constant"), "it comes last"),
        ([[0, 5]], ("constant", "directions"), "pairs of pixels that touch"),
        ([[2, 3]], ("constant", "directions"), "pairs of pixels that touch"),
    ],
)
def test_bad_edges_are_refused(edges, edge, message):
    with refused(message):
        edge_features(random_image(2, 3), edges, edge)


# -- resizing --------------------------------------------------------------------------------------------------


def test_shrinking_averages_what_is_covered():
    assert np.allclose(resize(np.arange(12.0).reshape(2, 6), (1, 2)), [[4, 7]])
    # three pixels onto two: each takes one and a half
    assert np.allclose(resize([[0.0, 3.0, 6.0]], (1, 2)), [[1, 5]])


def test_growing_interpolates_between_centres():
    assert np.allclose(resize([[0.0, 1.0]], (1, 4)), [[0, 0.25, 0.75, 1]])


@settings(max_examples=40, deadline=None)
@given(st.tuples(*[st.integers(1, 12)] * 4), st.integers(0, 2**32 - 1))
def test_resizing_keeps_constants_and_range(sides, seed):
    values = np.random.default_rng(seed).random((sides[0], sides[1], 2))
    resized = resize(values, sides[2:])
    assert resized.shape == (sides[2], sides[3], 2)
    assert values.min() - 1e-12 <= resized.min()
    assert resized.max() <= values.max() + 1e-12
    assert np.allclose(resize(np.full(sides[:2], 0.7), sides[2:]), 0.7)


def test_labels_are_reduced_by_majority_of_known_pixels():
    labels = np.array([[0, 0, 1, -1], [0, 1, 2, -1], [-1, -1, 2, 2], [-1, -1, 1, 1]])
    assert reduce_labels(labels, (2, 2), 3).tolist() == [[0, 1], [-1, 1]]
    assert reduce_labels(labels, (4, 4), 3).tolist() == labels.tolist()
    with refused("holds 3, but classes are 0..2"):
        reduce_labels(np.array([[3]]), (1, 1), 3)
    with refused(r"has shape \(h, w\) and whole numbers"):
        reduce_labels(np.zeros(3), (1, 1), 3)


def test_upsampled_marginals_are_marginals():
    marginals = np.random.default_rng(0).dirichlet([1, 1, 1], size=6)
    large = upsample_marginals(marginals, (2, 3), (9, 14))
    assert large.shape == (9, 14, 3)
    assert np.allclose(large.sum(axis=2), 1)
    assert np.allclose(large[0, 0], marginals[0])
    with refused("an image of 2 x 2 needs 4 rows"):
        upsample_marginals(marginals, (2, 2), (4, 4))


# -- examples --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_an_image_becomes_an_example(size):
    image = random_image(*size)
    labels = np.random.default_rng(1).integers(-1, 3, size)
    example = image_example(image, labels, n_states=3, name="x")
    assert example.graph.n_variables == size[0] * size[1]
    assert np.array_equal(example.labels, labels.ravel())
    assert np.array_equal(example.features["node"], pixel_features(image, "filters"))
    assert np.array_equal(example.features["edge"], edge_features(image, example.graph.scopes["edge"]))
    assert example.name == "x"


def test_reducing_before_and_after_differ_only_in_the_nodes():
    image = random_image(30, 40)
    before, after = (
        image_example(image, n_states=2, node="mbl", edge="mbl", reduce=0.2, when=when, dtype=np.float64)
        for when in ("before", "after")
    )
    small = image.reshape(6, 5, 8, 5, 3).mean(axis=(1, 3)) / 255
    assert np.allclose(before.features["node"], pixel_features(small, "mbl", dtype=np.float64))
    assert np.allclose(after.features["node"], pixel_features(image, "mbl", size=(6, 8), dtype=np.float64))
    assert np.array_equal(before.features["edge"], after.features["edge"])
    assert before.labels is None


def test_sides_are_rounded_and_never_vanish():
    assert image_example(random_image(14, 3), n_states=2, reduce=0.25).graph.n_variables == 4
    assert image_example(random_image(2, 2), n_states=2, reduce=0.1).graph.n_variables == 1


def test_image_examples_share_graphs_of_one_size():
    made = [
        public_sets.LabelledImage(str(k), random_image(4 + k % 2, 6, k), np.zeros((4 + k % 2, 6), int))
        for k in range(4)
    ]
    examples = public_sets.image_examples(made, n_states=2, node=("rgb",))
    assert [e.name for e in examples] == ["0", "1", "2", "3"]
    assert examples[0].graph is examples[2].graph
    assert examples[1].graph is examples[3].graph
    assert examples[0].graph is not examples[1].graph
    assert np.array_equal(examples[3].features["node"], pixel_features(made[3].image, ("rgb",)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reduce": 0.0}, "reduce must be a finite number above 0"),
        ({"reduce": 1.5}, "not 1.5"),
        ({"when": "later"}, "when must be one of .*, not 'later'"),
        ({"node": "everything"}, "node must be one of"),
        ({"labels": np.zeros((2, 3), int)}, r"labels has shape \(2, 3\), but the image is \(4, 5\)"),
        ({"labels": np.full((4, 5), 2)}, "holds 2, but classes are 0..1"),
        ({"dtype": np.float16}, "float32 or float64"),
        ({"axes": 4}, "axes must be one of 2, 3"),
        ({"axes": 3, "node": "ilr"}, "volumes have no features 'rgb'"),
        ({"axes": 3, "reduce": 0.5}, "volumes are not reduced"),
        ({"probabilities": np.ones((4, 5, 3))}, r"shape \(4, 5, 3\), but the image needs \(4, 5, 2\)"),
        ({"probabilities": np.full((4, 5), 1.5)}, r"must lie in \[0, 1\]"),
        ({"graph": Graph.grid((5, 5), n_states=2)}, "grid of 4 x 5 pixels"),
        ({"graph": Graph.complete(20, n_states=2)}, "grid of 4 x 5 pixels"),
    ],
)
def test_bad_options_are_refused(options, message):
    with refused(message):
        image_example(random_image(4, 5), n_states=2, **options)


# -- superpixels -----------------------------------------------------------------------------------------------


def two_halves():
    """8 x 10: the left 4 columns are region 0, the others region 1."""
    return np.repeat((np.arange(10) >= 4).astype(int)[None], 8, axis=0)


def test_borders_of_two_halves():
    pairs, pixels, which = superpixel_edges(two_halves())
    assert pairs.tolist() == [[0, 1]]
    assert which.tolist() == [0] * 8
    assert pixels.tolist() == [[10 * row + 3, 10 * row + 4] for row in range(8)]


def test_features_of_two_halves():
    segments = two_halves()
    image = np.where(segments[..., None] == 1, [0.8, 0.8, 0.8], [0.2, 0.2, 0.2])
    node, edge = superpixel_features(image, segments, pixel=("rgb",))
    assert np.allclose(node[0], [1, 0.4, 0.2, 0.5, 0.2, 0.2, 0.2, 0, 0, 0])
    assert np.allclose(node[1], [1, 0.6, 0.7, 0.5, 0.8, 0.8, 0.8, 0, 0, 0])
    gap = 0.6 * np.sqrt(3)
    assert np.allclose(edge, [[1, 8 / np.sqrt(32), gap, gap, gap]])


def test_region_statistics_are_those_of_their_pixels():
    image, segments = random_image(9, 11), np.random.default_rng(0).integers(0, 4, (9, 11))
    node, edge = superpixel_features(image, segments, pixel=("rgb",))
    pairs = superpixel_edges(segments)[0]
    rgb = image / 255
    for k in range(4):
        assert np.allclose(node[k, 4:7], rgb[segments == k].mean(axis=0))
        assert np.allclose(node[k, 7:], rgb[segments == k].std(axis=0))
    touching = {
        tuple(sorted((int(a), int(b))))
        for one, other in ((segments[1:], segments[:-1]), (segments[:, 1:], segments[:, :-1]))
        for a, b in zip(one.ravel(), other.ravel(), strict=True)
        if a != b
    }
    assert pairs.tolist() == [list(pair) for pair in sorted(touching)]
    assert edge.shape == (len(pairs), 5)


def test_labels_of_regions_are_majorities():
    segments = np.array([[0, 0, 1, 1], [0, 2, 2, 3]])
    labels = np.array([[1, 1, -1, 2], [0, 1, 0, -1]])
    assert superpixel_labels(segments, labels, 3).tolist() == [1, 2, 0, -1]


def test_slic_finds_blocks_of_colour_and_labels_come_back():
    pytest.importorskip("skimage")
    truth = np.kron(np.array([[0, 1], [2, 0]]), np.ones((16, 20), dtype=int))
    image = np.array([[200, 30, 30], [30, 200, 30], [30, 30, 200]], dtype=np.uint8)[truth]
    example, segments = superpixel_example(image, truth, n_states=3, n_segments=24, pixel_weights=True)
    assert np.array_equal(example.labels[segments], truth)
    assert example.weights.sum() == truth.size
    assert example.features["node"].shape == (example.graph.n_variables, 4 + 2 * 39)
    assert np.array_equal(example.graph.scopes["edge"], superpixel_edges(segments)[0])
    again, same = superpixel_example(image, truth, n_states=3, n_segments=24)
    assert np.array_equal(same, segments)
    assert np.array_equal(again.features["edge"], example.features["edge"])
    assert again.weights is None


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (13, 21)])
def test_superpixels_of_any_size_number_their_regions(size):
    pytest.importorskip("skimage")
    for image in (random_image(*size), random_image(*size)[..., 0]):
        segments = superpixels(image, 5)
        assert segments.shape == size
        assert np.array_equal(np.unique(segments), np.arange(segments.max() + 1))
        assert superpixel_example(image, n_states=2, n_segments=5)[0].labels is None


def test_void_pixels_carry_no_weight():
    pytest.importorskip("skimage")
    labels = np.full((12, 12), -1)
    labels[:3] = 1
    example, segments = superpixel_example(random_image(12, 12), labels, n_states=2, n_segments=4, pixel_weights=True)
    assert example.weights.sum() == 36
    assert np.array_equal(example.labels == -1, example.weights == 0)
    assert segments.max() + 1 == example.graph.n_variables


def test_bad_segments_are_refused():
    with refused("must be a map"):
        superpixel_edges(np.zeros(4))
    with refused("0..n-1 without gaps"):
        superpixel_edges(np.array([[0, 2]]))
    with refused(r"segments has shape \(8, 10\), but the image is \(4, 4\)"):
        superpixel_features(random_image(4, 4), two_halves())
    with refused(r"labels has shape \(1, 1\), but segments has \(8, 10\)"):
        superpixel_labels(two_halves(), np.array([[0]]), 2)
    with refused("n_segments must be a whole number >= 1, not 0"):
        superpixels(random_image(4, 4), 0)


def test_missing_scikit_image_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage.segmentation", None)
    with refused(r"superpixels need scikit-image: pip install potentia\[images\]"):
        superpixels(random_image(4, 4))


# -- real images ---------------------------------------------------------------------------------------------


@needs("stanford_background")
def test_reduced_backgrounds_agree_with_the_packed_ones():
    small = public_sets.stanford_backgrounds(DATA, "test", size="fifth")[:6]
    full = public_sets.stanford_backgrounds(DATA, "test")[:6]
    for a, b in zip(small, full, strict=True):
        away = np.abs(resize(b.image, a.labels.shape) - a.image)
        whole = b.labels.shape == (5 * a.labels.shape[0], 5 * a.labels.shape[1])
        # packed pixels were rounded along each axis; blocks that are not whole have their borders cut otherwise
        assert away.max() < 1.01 or not whole
        assert away.mean() < 2.0
        # ties may be broken otherwise
        assert np.mean(reduce_labels(b.labels, a.labels.shape, 8) == a.labels) > 0.99


@needs("weizmann_horses")
def test_horses_are_told_apart_by_their_features():
    from sklearn.linear_model import LogisticRegression

    train, test = (
        public_sets.image_examples(public_sets.horses(DATA, part, size="quarter")[:60], n_states=2, node="mbl")
        for part in ("train", "test")
    )
    rows = [np.concatenate([e.features["node"][::20] for e in part]) for part in (train, test)]
    truth = [np.concatenate([e.labels[::20] for e in part]) for part in (train, test)]
    model = LogisticRegression(max_iter=1000, tol=1e-3).fit(rows[0], truth[0])
    # MBL-tpami table 2: .125 for independent pixels, .25 for the larger class
    assert model.score(rows[1], truth[1]) > 0.86
