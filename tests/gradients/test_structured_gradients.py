"""Gradients through structured factors against central differences."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.factors import BINARY, FACTORS, problem, with_parameter

import potentia as pt

METHODS = {
    "trw": pt.TRW(iterations=4, tol=0, rho=0.3),
    "bp": pt.LoopyBP(iterations=3, tol=0, damping=0.2, schedule="random"),
    "smoothed": pt.Smoothed(epsilon=0.5, iterations=3, tol=0, schedule="sequential"),
    "mean field": pt.MeanField(iterations=3, tol=0),
}
SOFT = [name for name, value in FACTORS.items() if not np.isinf(value.table(4, 2)).any()]


def check(name, method, loss, gradient="truncated", n_states=2, tol=2e-7):
    graph, theta = problem(n_states)
    factor, y = FACTORS[name], np.array([1, 0, 0, 0, 0, 0])
    theta = {**theta, "group": factor}

    def value(theta):
        return pt.loss_and_gradient(loss, method, graph, theta, y, gradient)[0]

    slopes = pt.loss_and_gradient(loss, method, graph, theta, y, gradient)[1]
    rng = np.random.default_rng(1)
    for kind, slope in slopes.items():
        own = factor.counts if isinstance(factor, pt.factors.Cardinality) else factor.weight
        base = np.asarray(own if kind == "group" else theta[kind], dtype=float)
        for index in rng.permutation(list(np.ndindex(base.shape)))[:4] if base.ndim else [()]:
            at, change = tuple(index), []
            if not np.isfinite(base[at]):
                assert slope[at] == 0.0
                continue
            for sign in (1, -1):
                moved = base.copy()
                moved[at] += sign * 1e-5
                moved = with_parameter(factor, moved) if kind == "group" else moved
                change.append(value({**theta, kind: moved}))
            assert slope[at] == pytest.approx((change[0] - change[1]) / 2e-5, abs=tol)
    return slopes


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", FACTORS)
def test_gradients_equal_central_differences(name, method):
    if method == "mean field" and name not in SOFT:
        pytest.skip("mean field starts at a labelling where regions forbid")
    check(name, METHODS[method], "univariate_logistic")
    if name not in BINARY:
        check(name, METHODS[method], "univariate_logistic", n_states=3)


@pytest.mark.parametrize("method", METHODS)
def test_losses_of_outcomes(method):
    for name in ("counts of each", "same"):
        check(name, METHODS[method], "clique_logistic")


def test_gradients_at_fixed_points():
    slopes = [
        check("counts", pt.TRW(iterations=500, tol=1e-13), "univariate_logistic", gradient, tol=1e-6)
        for gradient in ("truncated", "backpropagation", "perturbation")
    ]
    for other in slopes[1:]:
        for kind, slope in slopes[0].items():
            np.testing.assert_allclose(other[kind], slope, atol=1e-5)


def test_the_likelihood_and_surrogates():
    check("counts", pt.Exact(), "likelihood")
    check("soft at most one", pt.TRW(iterations=300, tol=1e-12), "surrogate_likelihood", tol=1e-5)


def test_hard_factors_have_no_parameter_and_implicit_gradients_are_refused():
    slopes = check("at most one", METHODS["trw"], "univariate_logistic")
    assert "group" not in slopes
    graph, theta = problem()
    with pytest.raises(pt.PotentiaError, match="implicit"):
        pt.loss_and_gradient(
            "univariate_logistic", pt.TRW(), graph, {**theta, "group": FACTORS["counts"]}, [0] * 6, "implicit"
        )
