"""Every method on random small models against enumeration: what `make check` runs, in small form."""

from dataclasses import replace

import check_models as check
import numpy as np
import pytest
from check_models import main

import potentia as pt
import reference


def test_no_method_is_wrong_on_random_models():
    assert check.check(60, 7) == []


def test_large_messages_that_move_are_not_called_converged():
    """Loopy BP on scores of 1e3, sequential: marginals and value stand still for three iterations, messages do not."""
    edges = [[5, 3], [0, 4], [0, 3], [1, 3], [5, 4], [5, 0]]
    graph = pt.Graph([4] * 6, {"node": [[5]], "edge": edges})
    table = np.array(
        [
            [483.31700523, 1137.52142536, 1034.157241, 187.18826978],
            [535.97056512, -1301.62439049, 295.01780906, 1137.39831525],
            [-232.52954149, -304.84254767, 580.87043812, 880.17186804],
            [-414.23308244, -555.47462838, -531.44443288, -801.21902611],
        ]
    )
    theta = {"node": np.array([-1.2605847, -0.474398, 0.96912179, -0.27529336]), "edge": table}
    model = check.Model(graph, theta, {}, reference.label_scores(graph, theta).reshape((4,) * 6))
    method = pt.LoopyBP(iterations=300, tol=1e-9, schedule="sequential", damping=0.0, threads=1)
    assert list(check.faults(model, method)) == []


def test_an_optimum_within_the_solvers_tolerance_is_no_bound():
    """A linear program whose optimum lies 8e-11 below the maximum: its value must be the bound of the multipliers."""
    model = check.random_model(np.random.default_rng([5, 3514]))
    assert list(check.faults(model, pt.LinearProgram())) == []


def test_models_have_every_form_of_tables():
    drawn = []
    for number in range(200):
        try:
            drawn.append(check.random_model(np.random.default_rng([2, number])).theta)
        except pt.InfeasibleError:
            continue
    forms = {type(given) for theta in drawn for given in theta.values()}
    assert forms >= {pt.Potts, pt.TruncatedLinear, pt.TruncatedQuadratic, pt.Scaled, np.ndarray, list}
    single = [theta and all(getattr(given, "dtype", None) == np.float32 for given in theta.values()) for theta in drawn]
    assert 0 < sum(map(bool, single)) < len(drawn)


def test_enumeration_agrees_with_the_reference():
    for number in range(40):
        try:
            model = check.random_model(np.random.default_rng([3, number]))
        except pt.InfeasibleError:
            continue
        truth = reference.label_scores(model.graph, model.theta, model.observed)
        np.testing.assert_allclose(model.scores.ravel(), truth)
        if truth.max() > -np.inf:
            right = reference.variable_marginals(model.graph, model.theta, model.observed)
            np.testing.assert_allclose(model.marginals(), right, atol=1e-12)


class Liar(pt.Exact):
    """Claims too much."""

    excess = 0.5

    def run(self, scores, start):
        result = super().run(scores, start)
        return replace(result, value=result.value + self.excess, variable_marginals=1.1 * result.variable_marginals)


@pytest.mark.parametrize("excess", [0.5, -1e-7])
def test_a_wrong_method_is_found(excess, monkeypatch):
    monkeypatch.setattr(Liar, "excess", excess)
    model = check.random_model(np.random.default_rng([0, 1]))
    assert model.max_score > -np.inf
    assert len(list(check.faults(model, Liar()))) == 2


def test_the_program_prints_what_it_checked(capsys):
    assert main(["--models", "3", "--seed", "5"]) == 0
    assert capsys.readouterr().out == "3 models, seed 5: 0 faults\n"


def test_the_program_fails_where_a_method_is_wrong(capsys, monkeypatch):
    monkeypatch.setattr(check, "methods", lambda rng: [Liar()])
    assert main(["--models", "3"]) == 1
    assert "called exact, but the truth is" in capsys.readouterr().out
