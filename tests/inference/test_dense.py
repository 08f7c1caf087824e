"""Fully connected Gaussian terms: filtered mean field against sums over all pairs, and its gradient."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp, softmax

import potentia as pt

SIZE, LABELS = (12, 10), 3


def random_image(size: tuple[int, int] = SIZE, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A colour image of three areas in 0..255, and noisy scores of their labels."""
    rng = np.random.default_rng(seed)
    rows, columns = np.indices(size)
    label = np.where(columns < size[1] // 2, 0, np.where(rows < size[0] // 2, 1, 2))
    colours = np.array([[200.0, 60.0, 50.0], [60.0, 180.0, 70.0], [40.0, 60.0, 190.0]])
    image = np.clip(colours[label] + rng.normal(0, 12, (*size, 3)), 0, 255)
    node = 1.2 * np.eye(3)[label.ravel()] + rng.standard_normal((label.size, 3))
    return image, node


def kernels(image: np.ndarray, exact: bool | None, **options: object) -> dict[str, pt.DenseGaussian]:
    return {
        "near": pt.DenseGaussian(pt.features.bilateral(image, 3), 3.0, exact=exact, **options),
        "alike": pt.DenseGaussian(pt.features.bilateral(image, 30, 13), 5.0, exact=exact, **options),
    }


def matrix(term: pt.DenseGaussian) -> np.ndarray:
    """weight k(i, j), zero on the diagonal, by its definition."""
    f = term.features
    k = np.exp(-0.5 * ((f[:, None] - f) ** 2).sum(axis=2))
    root = np.sqrt(k.sum(axis=1)) if term.normalisation else np.ones(len(k))
    np.fill_diagonal(k, 0.0)
    return term.weight * k / np.outer(root, root)


def by_pairs(node: np.ndarray, terms: dict[str, pt.DenseGaussian], iterations: int) -> np.ndarray:
    """Mean field with all pairs written out, all variables at once."""
    q = softmax(node, axis=1)
    for _ in range(iterations):
        field = node.copy()
        for term in terms.values():
            cost = 1.0 - np.eye(node.shape[1]) if term.compatibility is None else term.compatibility
            field -= matrix(term) @ q @ cost
        q = softmax(field, axis=1)
    return q


def graph(size: tuple[int, int] = SIZE) -> pt.Graph:
    return pt.Graph([LABELS] * (size[0] * size[1]), {"node": np.arange(size[0] * size[1])[:, None]})


COST = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 0.5], [2.0, 0.5, 0.0]])


@pytest.mark.parametrize("options", [{}, {"normalisation": None}, {"compatibility": COST}])
def test_exact_sums_are_those_over_all_pairs(options: dict) -> None:
    image, node = random_image()
    terms = kernels(image, True, **options)
    found = pt.MeanField(iterations=5, tol=0).infer(graph(), {"node": node, **terms})
    assert np.abs(found.variable_marginals - by_pairs(node, terms, 5)).max() < 1e-10
    assert found.bound == "lower"


def test_the_value_is_a_lower_bound_and_scores_count_all_pairs() -> None:
    rng = np.random.default_rng(0)
    node = rng.standard_normal((6, 2))
    g = pt.Graph([2] * 6, {"node": np.arange(6)[:, None]})
    term = pt.DenseGaussian(rng.standard_normal((6, 3)), 0.7)
    found = pt.MeanField().infer(g, {"node": node, "all": term})
    pairs = matrix(term)
    labellings = np.array(np.unravel_index(np.arange(64), [2] * 6)).T
    scores = [node[np.arange(6), y].sum() - 0.5 * (pairs * (y[:, None] != y)).sum() for y in labellings]
    assert found.value <= logsumexp(scores)
    assert found.value == pytest.approx(logsumexp(scores), abs=0.5)
    assert found.score(labellings[5]) == pytest.approx(scores[5], rel=1e-12)
    assert np.array_equal(found.argmax(), found.mpm())


def test_the_lattice_comes_close_to_all_pairs() -> None:
    image, node = random_image((30, 30))
    g, method = graph((30, 30)), pt.MeanField(iterations=5, tol=0)
    found = method.infer(g, {"node": node, **kernels(image, False)})
    exact = by_pairs(node, kernels(image, True), 5)
    assert np.abs(found.variable_marginals - exact).mean() <= 1e-2
    assert (found.mpm() == exact.argmax(axis=1)).mean() > 0.98
    assert found.bound == "estimate"


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_the_lattice_filters_like_a_gaussian(d: int) -> None:
    rng = np.random.default_rng(d)
    points = rng.uniform(0, 3, (400, d))
    values = rng.uniform(0, 1, (400, 2))
    close = pt.DenseGaussian(points, 1.0, normalisation=None, exact=False)
    exact = pt.DenseGaussian(points, 1.0, normalisation=None, exact=True)
    ratio = close.multiply(values) / exact.multiply(values)
    assert np.abs(ratio - 1).mean() < 0.15
    other = rng.standard_normal((400, 2))
    left = (other * close.multiply(values)).sum()
    assert left == pytest.approx((close.multiply(other, transposed=True) * values).sum(), rel=1e-10)
    # vertices that are not there make the order of the blurs matter a little
    apart = np.abs(close.multiply(values, transposed=True) - close.multiply(values))
    assert apart.mean() < 0.05 * close.multiply(values).mean()


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("options", [{}, {"compatibility": COST}])
def test_gradients_through_the_iterations(exact: bool, options: dict) -> None:
    image, node = random_image()
    g, y = graph(), np.random.default_rng(3).integers(-1, LABELS, SIZE[0] * SIZE[1])
    terms = kernels(image, exact, **options)
    theta = {"node": node, **terms}
    method = pt.MeanField(iterations=4, tol=0)

    def loss(node: np.ndarray, weights: dict[str, float]) -> float:
        moved = {name: term.with_weight(weights[name]) for name, term in terms.items()}
        return pt.loss_and_gradient("univariate_logistic", method, g, {"node": node, **moved}, y)[0]

    _, slope = pt.loss_and_gradient("univariate_logistic", method, g, theta, y)
    weights = {name: term.weight for name, term in terms.items()}
    for name in terms:
        ends = [loss(node, {**weights, name: weights[name] + step}) for step in (1e-5, -1e-5)]
        assert np.shape(slope[name]) == ()
        assert float(slope[name]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-7)
    way = np.random.default_rng(4).standard_normal(node.shape)
    ends = [loss(node + step * way, weights) for step in (1e-5, -1e-5)]
    assert float((slope["node"] * way).sum()) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5)


def test_beside_pairs_of_a_grid_and_observed_variables() -> None:
    image, node = random_image()
    grid = pt.Graph.grid(SIZE, n_states=LABELS)
    node[5, 1] = -np.inf
    theta = {"node": node, "edge": pt.Potts(0.3), **kernels(image, True)}
    found = pt.MeanField(iterations=3, tol=0).infer(grid, theta, {7: 2})
    m = len(grid.scopes["edge"])
    tables = {**theta, "edge": np.broadcast_to(-0.3 * (1 - np.eye(LABELS)), (m, LABELS, LABELS))}
    again = pt.MeanField(iterations=3, tol=0).infer(grid, tables, {7: 2})
    assert np.abs(found.variable_marginals - again.variable_marginals).max() < 1e-12
    assert found.variable_marginals[7, 2] == 1.0
    assert found.variable_marginals[5, 1] == 0.0
    y = np.random.default_rng(0).integers(0, LABELS, grid.n_variables)
    y[5] = 0
    method = pt.MeanField(iterations=3, tol=0)
    _, got = pt.loss_and_gradient("univariate_logistic", method, grid, theta, y)
    _, want = pt.loss_and_gradient("univariate_logistic", method, grid, tables, y)
    assert np.abs(got["node"] - want["node"]).max() < 1e-12
    for name in ("near", "alike"):
        assert float(got[name]) == pytest.approx(float(want[name]))


def test_refusals() -> None:
    image, node = random_image()
    g, term = graph(), pt.DenseGaussian(pt.features.bilateral(image, 3), 1.0)
    y = np.zeros(g.n_variables, dtype=int)
    for method in (pt.TRW(), pt.Exact(), pt.MAP(), pt.Gibbs()):
        with pytest.raises(pt.PotentiaError, match=r"pt\.MeanField"):
            method.infer(g, {"node": node, "all": term})
    with pytest.raises(pt.PotentiaError, match="another name"):
        pt.MeanField().infer(g, {"node": term})
    with pytest.raises(pt.PotentiaError, match="variables"):
        pt.MeanField().infer(graph((3, 3)), {"all": term})
    with pytest.raises(pt.PotentiaError, match="compatibility"):
        pt.MeanField().infer(g, {"all": pt.DenseGaussian(term.features, 1.0, compatibility=np.eye(2))})
    for loss, gradient in (("pseudolikelihood", "truncated"), ("univariate_logistic", "implicit")):
        with pytest.raises(pt.PotentiaError, match="DenseGaussian"):
            pt.loss_and_gradient(loss, pt.MeanField(), g, {"node": node, "all": term}, y, gradient=gradient)
    for features, weight in ((np.zeros(3), 1.0), (np.full((3, 1), np.nan), 1.0), (np.zeros((3, 1)), "x")):
        with pytest.raises(pt.PotentiaError):
            pt.DenseGaussian(features, weight)
    with pytest.raises(pt.PotentiaError, match="normalisation"):
        pt.DenseGaussian(np.zeros((3, 1)), 1.0, normalisation="both")
    with pytest.raises(pt.PotentiaError, match="sd_position"):
        pt.features.bilateral(image, 0)
