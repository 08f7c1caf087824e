"""Trees: splits, growth, walks and leaf vectors against brute-force twins."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp

from potentia.kernels.decision_trees import add_trees, best_cut, fill_statistics, fit_leaf, fit_leaves, pack
from potentia.kernels.linear_losses import loss_rows
from potentia.potentials.boosting import Growth
from potentia.potentials.problem import make_problem
from potentia.potentials.tree_ensemble import Binned, TreeEnsemble, all_cells, bin_edges, cell_of, count_bins, encode

NONE = np.zeros((0, 0))


def squared_error(residual, weight):
    """Weighted squared distance of per-row gradients r / w to their mean."""
    rows = residual / weight[:, None]
    mean = np.average(rows, axis=0, weights=weight)
    return (weight[:, None] * (rows - mean) ** 2).sum()


def best_split_twin(codes, residual, weight, min_leaf):
    """(gain, feature, rows going left) by trying every cut."""
    best = (0.0, -1, None)
    whole = squared_error(residual, weight)
    for j in range(codes.shape[1]):
        for cut in np.unique(codes[:, j])[:-1]:
            left = codes[:, j] <= cut
            if min(weight[left].sum(), weight[~left].sum()) < min_leaf:
                continue
            gain = whole - sum(squared_error(residual[side], weight[side]) for side in (left, ~left))
            if gain > best[0] * (1 + 1e-9):
                best = (gain, j, left)
    return best


def grow_twin(codes, residual, weight, min_leaf, min_split, max_leaves):
    """The leaves' row sets, splitting the leaf that gains most."""
    leaves = [np.arange(len(codes))]
    while len(leaves) < max_leaves:
        found = [
            best_split_twin(codes[rows], residual[rows], weight[rows], min_leaf)
            if weight[rows].sum() >= min_split
            else (0.0, -1, None)
            for rows in leaves
        ]
        i = int(np.argmax([gain for gain, _, _ in found]))
        if found[i][0] <= 1e-9:
            break
        rows, left = leaves.pop(i), found[i][2]
        leaves += [rows[left], rows[~left]]
    return {frozenset(rows.tolist()) for rows in leaves}


def tree_problem(seed, n=120, d=3, k=3, bins=16):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, bins, (n, d)).astype(np.uint8)
    weight = rng.uniform(0.5, 2, n)
    scores = rng.normal(size=(n, k)) + np.outer(codes[:, 0] > 7, np.arange(k)) - np.outer(codes[:, -1] > 3, np.ones(k))
    labels = (scores + rng.gumbel(size=(n, k))).argmax(1)
    residual = np.empty((n, k))
    loss_rows(scores, NONE, labels, NONE, weight, residual)
    return codes, residual, weight, scores, labels


def statistics_of(residual, weight, width):
    statistics = np.full((len(residual), width), np.nan)
    fill_statistics(residual, weight, statistics)
    return statistics


@pytest.mark.parametrize("k", [2, 3, 4, 6])
@pytest.mark.parametrize("seed", range(4))
def test_best_cut_is_the_best_of_all_cuts(k, seed):
    codes, residual, weight, _, _ = tree_problem(seed, d=1, k=k)
    width = -(-k // 4) * 4
    sums = np.zeros((16, width))
    np.add.at(sums, codes[:, 0], statistics_of(residual, weight, width))
    gain, cut = best_cut(sums, k, np.array([5.0, 10.0, 0.0]))
    expected, _, left = best_split_twin(codes, residual, weight, 5.0)
    assert gain == pytest.approx(expected, rel=1e-9)
    assert np.array_equal(codes[:, 0] <= cut, left)
    assert best_cut(sums, k, np.array([5.0, weight.sum() * 1.01, 0.0]))[0] == 0.0


@pytest.mark.parametrize("max_leaves", [1, 4, 50])
@pytest.mark.parametrize("seed", range(5))
def test_tree_equals_its_twin(seed, max_leaves):
    codes, residual, weight, _, _ = tree_problem(seed)
    limits = np.array([0.03 * weight.sum(), 0.08 * weight.sum(), 1e-12])
    growth = Growth(np.full(3, 16), 3, max_leaves, 20)
    tree = growth.tree(codes, statistics_of(residual, weight, growth.width), limits)
    leaves = {frozenset(tree.order[start:stop].tolist()) for _, start, stop in tree.spans}
    assert leaves == grow_twin(codes, residual, weight, limits[0], limits[1], max_leaves)
    assert sorted(tree.order) == list(range(120))
    assert len(tree.nodes) == 2 * len(tree.spans) - 1


def walk_twin(code, nodes):
    node = 0
    while True:
        left, feature, cut = nodes[node] >> 24, (nodes[node] >> 8) & 0xFFFF, nodes[node] & 0xFF
        following = left + (code[feature] > cut)
        if following == node:
            return node
        node = following


def test_walk_reaches_the_leaf_the_row_was_grown_in():
    codes, residual, weight, _, _ = tree_problem(7, n=300)
    growth = Growth(np.full(3, 16), 3, 30, 32)
    limits = np.array([3.0, 6.0, 1e-12])
    tree = growth.tree(codes, statistics_of(residual, weight, growth.width), limits)
    values = np.random.default_rng(0).normal(size=(len(tree.nodes), 3))
    forest = TreeEnsemble(tree.nodes, values, np.array([0, len(tree.nodes)]), np.array([tree.depth]))
    scores = np.ones((300, 3))
    forest.add_to(scores, codes)
    for node, start, stop in tree.spans:
        np.testing.assert_array_equal(scores[tree.order[start:stop]], np.tile(1 + values[node], (stop - start, 1)))
    assert [walk_twin(code, tree.nodes) for code in codes[:50]] == [
        int(np.flatnonzero((1 + values == row).all(1))[0]) for row in scores[:50]
    ]


def test_trees_are_added_one_after_another():
    nodes = np.array([pack(1, 0, 4), pack(1, 0, 255), pack(2, 0, 255), pack(0, 0, 255)])
    values = np.array([[0.0], [1.0], [2.0], [10.0]])
    scores = np.zeros((3, 1))
    codes = np.array([[4], [5], [255]], np.uint8)
    add_trees(codes, nodes, values, np.array([0, 3, 4]), np.array([1, 0]), scores)
    np.testing.assert_array_equal(scores[:, 0], [11.0, 12.0, 12.0])


def leaf_problem(seed, k, n, height):
    """Scores (n, k) with 0 for the label and `height` for the rest, labels and weights."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, k, n)
    scores = rng.normal(size=(n, k)) + height
    scores[np.arange(n), labels] -= height
    return scores, labels, rng.uniform(0.5, 2, n)


@pytest.mark.parametrize("height", [0.0, 10.0, 30.0])
@pytest.mark.parametrize("k", [2, 4, 9])
def test_leaf_vectors_are_the_optimum_that_scipy_finds(k, height):
    scores, labels, weight = leaf_problem(k, k, 150, height)
    target = np.bincount(labels, weight, k)

    def loss(v):
        return (weight * logsumexp(scores + v, axis=1)).sum() - target @ v

    v = np.empty(k)
    value = fit_leaf(np.ascontiguousarray(scores.T), weight, target, 1e-6, v)
    starts = [v + 0.1, np.zeros(k), height * target / target.sum()]
    best = min(minimize(loss, start, method="BFGS", options={"gtol": 1e-7}).fun for start in starts)
    assert value == pytest.approx(loss(v), rel=1e-12)
    assert value <= best + 1e-7 * abs(best)


def test_a_leaf_of_one_label_stays_finite():
    for height in (0.0, 10.0, 50.0):
        scores, _, weight = leaf_problem(0, 3, 80, 0.0)
        scores[:, 1:] += height
        v = np.empty(3)
        fit_leaf(np.ascontiguousarray(scores.T), weight, np.array([weight.sum(), 0.0, 0.0]), 1e-4, v)
        p = np.exp(scores + v - logsumexp(scores + v, axis=1)[:, None])
        assert p[:, 0].min() > 0.99
        assert np.abs(v).max() < height + 30


def test_leaves_without_refit_are_the_mean_gradient():
    _, residual, weight, scores, labels = tree_problem(3)
    order = np.random.default_rng(0).permutation(120)
    spans = np.array([[1, 0, 50], [2, 50, 120]])
    values = np.full((3, 3), np.nan)
    fit_leaves(scores, labels, NONE, weight, order, spans, False, 1e-4, values)
    for node, start, stop in spans:
        rows = order[start:stop]
        np.testing.assert_allclose(values[node], -residual[rows].sum(0) / weight[rows].sum(), atol=1e-12)


def test_bins_are_of_equal_weight_and_separate_few_values():
    rng = np.random.default_rng(0)
    x = np.c_[rng.exponential(size=5000), rng.integers(0, 5, 5000), np.ones(5000)]
    edges = bin_edges(x, np.zeros(0), 64)
    codes = encode(x, edges)
    assert list(count_bins(edges)) == [64, 5, 1]
    assert np.bincount(codes[:, 0]).max() <= 2 * 5000 / 64
    np.testing.assert_array_equal(codes[:, 1], x[:, 1])
    assert not codes[:, 2].any()
    weight = np.where(x[:, 0] > np.median(x[:, 0]), 3.0, 1.0)
    heavy = encode(x, bin_edges(x, weight, 64))[:, 0]
    assert np.bincount(heavy, weight).max() <= 2 * weight.sum() / 64


def test_code_and_edge_agree_at_the_edge():
    x = np.array([[1.0], [np.nextafter(1.0, 2.0)], [2.0]])
    edges = bin_edges(x, np.zeros(0), 256)
    np.testing.assert_array_equal(encode(x, edges)[:, 0], [0, 1, 2])
    np.testing.assert_array_equal(encode(edges[:, :2].T.copy(), edges)[:, 0], [0, 1])


def test_cells_list_every_combination():
    n_bins = np.array([3, 1, 4])
    cells = all_cells(n_bins, 1000)
    assert cells is not None
    np.testing.assert_array_equal(cell_of(cells, n_bins), np.arange(12))
    assert all_cells(np.array([256, 256]), 1000) is None
    x = np.random.default_rng(0).integers(0, 3, (100, 2)).astype(float)
    edges = bin_edges(x, np.zeros(0), 8)
    binned = Binned.of(make_problem(x, np.zeros(len(x), int), None, None, 2), edges)
    assert len(binned.codes) == 9
    np.testing.assert_array_equal(
        binned.codes[binned.place(slice(10, 20), encode(x[10:20], edges))], encode(x, edges)[10:20]
    )
