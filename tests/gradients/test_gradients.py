"""Every loss, inference and gradient method against central differences, and against each other."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import potentia as pt
from potentia.base.types import PotentiaError
from potentia.gradients.implicit import linear_response
from potentia.gradients.losses import LOSSES, ContrastiveDivergence, Pseudolikelihood, SmoothedError, UnivariateLogistic
from potentia.gradients.perturbation import Perturbation
from potentia.gradients.truncated import BackPropagation, Truncated
from potentia.graph.cotangents import MarginalCotangent
from potentia.graph.scores import Scores
from potentia.inference.pair_engine import suits_pairs
from reference import label_scores, labellings, map_labellings
from zoo import problems

#: Small scores whose gradients differences can see.
SOFT = [p for p in problems() if p.feasible and not p.clamped and p.name not in ("huge", "huge_chain", "tiny")]
FINITE = [p for p in SOFT if not p.has_forbidden]
MARGINAL = [name for name in LOSSES if name.startswith(("univariate", "clique", "smoothed"))]
THROUGH = [*MARGINAL, "truncated_likelihood", "truncated_em"]
LOCAL = ["pseudolikelihood", "piecewise"]


def inferences(problem):
    """Methods with few iterations, so that nothing has converged."""
    yield pt.TRW(iterations=3, tol=0)
    yield pt.Smoothed(0.7, iterations=3, tol=0, schedule="sequential")
    yield pt.LoopyBP(iterations=3, tol=0, damping=0.4)
    yield pt.MeanField(iterations=3, tol=0)
    if problem.graph.max_order > 2:
        yield pt.Kikuchi(iterations=3, tol=0, damping=0.3, schedule="random")


def likely_labels(problem, rng, hidden=0.0):
    """A labelling that the scores allow, some of it hidden."""
    y = map_labellings(*problem.model)[0] if problem.has_forbidden else rng.integers(problem.graph.n_states)
    return np.where(rng.random(len(y)) < hidden, -1, y)


def shifted(theta, direction, step):
    def add(table, d):
        return (
            table + step * d if isinstance(table, np.ndarray) else [t + step * s for t, s in zip(table, d, strict=True)]
        )

    return {kind: add(table, direction[kind]) for kind, table in theta.items()}


def random_direction(theta, rng):
    def like(table):
        if isinstance(table, np.ndarray):
            return rng.standard_normal(table.shape)
        return [rng.standard_normal(np.shape(t)) for t in table]

    return {kind: like(table) for kind, table in theta.items()}


def slope(gradient, direction):
    """The directional derivative, over entries that are not forbidden."""
    total = 0.0
    for kind, table in gradient.items():
        pairs = (
            [(table, direction[kind])] if isinstance(table, np.ndarray) else zip(table, direction[kind], strict=True)
        )
        total += sum(float(np.sum(np.asarray(g) * np.asarray(d))) for g, d in pairs)
    return total


def agrees(problem, rng, loss, inference, y, gradient="truncated", rtol=1e-6, **options):
    """Whether d_theta meets central differences along random directions."""
    if not problem.theta:
        return True

    def value(step):
        theta = shifted(problem.theta, direction, step)
        return pt.loss_and_gradient(loss, inference, problem.graph, theta, y, gradient, **options)

    for _ in range(2):
        direction = random_direction(problem.theta, rng)
        here, d_theta = value(0.0)
        h = 3e-5
        # four sides: the error of two would show beyond 1e-6 where curvature is high
        want = (8 * (value(h)[0] - value(-h)[0]) - (value(2 * h)[0] - value(-2 * h)[0])) / (12 * h)
        assert np.isfinite(here)
        assert slope(d_theta, direction) == pytest.approx(want, rel=rtol, abs=rtol * max(1.0, abs(here)) * 0.1)
    return True


@pytest.mark.parametrize("problem", SOFT, ids=str)
@pytest.mark.parametrize("loss", THROUGH)
def test_truncated_gradients_are_exact(problem, loss):
    rng = np.random.default_rng(1)
    if "smoothed" in loss and problem.name.startswith("ties"):
        return  # the best wrong state is not one, and the loss has a kink there
    for number, inference in enumerate(inferences(problem)):
        if problem.has_forbidden and isinstance(inference, pt.MeanField):
            continue  # starts from a labelling, where nothing moves
        y = likely_labels(problem, rng, hidden=0.3 if number % 2 else 0.0)
        weights = rng.random(problem.graph.n_variables) if number > 1 else None
        assert agrees(problem, rng, loss, inference, y, weights=weights)


@pytest.mark.parametrize("problem", FINITE, ids=str)
@pytest.mark.parametrize("loss", LOCAL)
def test_losses_without_inference_have_exact_gradients(problem, loss):
    rng = np.random.default_rng(2)
    for hidden in (0.0, 0.3):
        y, weights = likely_labels(problem, rng, hidden), rng.random(problem.graph.n_variables)
        assert agrees(problem, rng, loss, pt.TRW(), y, weights=weights)
    assert agrees(problem, rng, Pseudolikelihood(patch=3), pt.TRW(), likely_labels(problem, rng))


@pytest.mark.parametrize("problem", FINITE, ids=str)
@pytest.mark.parametrize("loss", ["likelihood", "surrogate_likelihood", "surrogate_em"])
def test_likelihoods_have_exact_gradients(problem, loss):
    rng = np.random.default_rng(3)
    for hidden in (0.0, 0.4):
        assert agrees(problem, rng, loss, pt.Exact(), likely_labels(problem, rng, hidden), weights=None)
    if loss != "likelihood":
        for inference in (pt.TRW(iterations=3000, tol=1e-13), pt.Smoothed(0.9, iterations=3000, tol=1e-13)):
            y = likely_labels(problem, rng, 0.3)
            assert agrees(problem, rng, loss, inference, y, weights=np.full(len(y), 2.5))


@pytest.mark.parametrize("problem", FINITE, ids=str)
def test_gradient_methods_agree_at_a_fixed_point(problem):
    rng = np.random.default_rng(4)
    y = likely_labels(problem, rng, 0.2)
    methods = [Truncated(memory=0), BackPropagation(1e-12), Perturbation(), Perturbation(4), pt.gradients.Implicit()]
    # tol 0: at a tie the first messages are a fixed point, and the gradient needs more iterations than they do
    for inference in (pt.TRW(iterations=600, tol=0), pt.Smoothed(0.8, iterations=600, tol=0)):
        for loss in ("univariate_logistic", "clique_quadratic"):
            want = pt.loss_and_gradient(loss, inference, problem.graph, problem.theta, y, "truncated")
            for method in methods:
                found = pt.loss_and_gradient(loss, inference, problem.graph, problem.theta, y, method)
                assert found[0] == pytest.approx(want[0], rel=1e-9, abs=1e-12)
                for kind, tables in want[1].items():
                    for a, b in zip(tables, found[1][kind], strict=True):
                        np.testing.assert_allclose(a, b, atol=1e-5)


def test_mean_field_agrees_with_perturbation_and_refuses_implicit():
    rng = np.random.default_rng(5)
    graph = pt.Graph.grid((4, 4), n_states=3)
    theta = {"node": rng.standard_normal((16, 3)), "edge": 0.3 * rng.standard_normal((24, 3, 3))}
    y = rng.integers(3, size=16)
    inference = pt.MeanField(iterations=2000, tol=1e-14)
    want = pt.loss_and_gradient("univariate_logistic", inference, graph, theta, y)[1]
    for gradient in ("perturbation", "backpropagation"):
        found = pt.loss_and_gradient("univariate_logistic", inference, graph, theta, y, gradient)[1]
        for kind in theta:
            np.testing.assert_allclose(found[kind], want[kind], atol=1e-5)
    with pytest.raises(PotentiaError, match=r"implicit.*MeanField"):
        pt.loss_and_gradient("univariate_logistic", inference, graph, theta, y, "implicit")


def test_truncation_tends_to_the_fixed_points_gradient():
    rng = np.random.default_rng(6)
    graph = pt.Graph.grid((5, 5), n_states=2)
    theta = {"node": rng.standard_normal((25, 2)), "edge": rng.standard_normal((40, 2, 2))}
    y = rng.integers(2, size=25)
    want = pt.loss_and_gradient("univariate_logistic", pt.TRW(iterations=999, tol=1e-14), graph, theta, y, "implicit")
    gaps = []
    for n in (2, 5, 10, 20, 60):
        found = pt.loss_and_gradient("univariate_logistic", pt.TRW(iterations=n, tol=0), graph, theta, y)
        gaps.append(np.abs(found[1]["edge"] - want[1]["edge"]).max())
    assert gaps[-1] < 1e-6 < gaps[0]
    assert gaps == sorted(gaps, reverse=True)


@pytest.mark.parametrize("memory", [0, 2**28])
@pytest.mark.parametrize("n_states", [2, 3, 5])
def test_blocks_of_every_sort_have_exact_gradients(n_states, memory):
    """Wide blocks, one shared table, tables beyond the safe range, and threads."""
    rng = np.random.default_rng(7)
    graph = pt.Graph.grid((11, 9), n_states=n_states)
    m = len(graph.scopes["edge"])
    tables = {
        "own": rng.standard_normal((m, n_states, n_states)),
        "shared": rng.standard_normal((n_states, n_states)),
        "wide": 400.0 * rng.standard_normal((m, n_states, n_states)) * (rng.random((m, 1, 1)) < 0.1),
    }
    y = rng.integers(n_states, size=graph.n_variables)
    for table in tables.values():
        theta = {"node": rng.standard_normal((graph.n_variables, n_states)), "edge": table}

        class Named:
            pass

        problem = Named()
        problem.graph, problem.theta = graph, theta
        for loss in ("univariate_quadratic", "clique_quadratic"):
            assert agrees(problem, rng, loss, pt.TRW(iterations=7, tol=0), y, Truncated(memory=memory))


@pytest.mark.parametrize("problem", FINITE, ids=lambda p: p.name)
def test_marginals_of_cliques_may_be_left_out(problem):
    """Losses of variables alone ask for no more, and what they get is the same."""
    scores = Scores(problem.graph, problem.theta)
    cotangent = np.random.default_rng(0).normal(size=scores.singles.shape)
    for inference in inferences(problem):
        (whole, pull), (part, pull_part) = (
            Truncated().solve(inference, scores, cliques=cliques) for cliques in (True, False)
        )
        np.testing.assert_array_equal(part.variable_marginals, whole.variable_marginals)
        if suits_pairs(problem.graph) and not isinstance(inference, pt.MeanField):
            # values come with the marginals of variables, and marginals of pairs are made on demand
            assert part.value == whole.value
            for kind in part.marginals:
                for a, b in zip(part.marginals[kind], whole.marginals[kind], strict=True):
                    np.testing.assert_array_equal(a, b)
        one, other = pull(MarginalCotangent(cotangent, {})), pull_part(MarginalCotangent(cotangent, {}))
        for kind, table in one.items():
            np.testing.assert_array_equal(other[kind], table)
        for kind, scope in problem.graph.scopes.items():
            if scope.shape[1] == 1:
                for one_row, other_row in zip(part.marginals[kind], whole.marginals[kind], strict=True):
                    np.testing.assert_array_equal(one_row, other_row)


def test_a_loss_with_derivatives_of_another_shape_is_told_so():
    class Wrong(UnivariateLogistic):
        def terms(self, mu, y):
            losses, slopes = super().terms(mu, y)
            return losses, slopes[:, :1]

    graph = pt.Graph.grid((3, 3), n_states=2)
    with pytest.raises(PotentiaError, match=r"Wrong\.terms gave derivatives of shape"):
        pt.loss_and_gradient(Wrong(), pt.TRW(), graph, {}, np.zeros(9, dtype=int))


def test_threads_do_not_change_the_gradient(monkeypatch):
    from potentia.inference import pair_engine

    rng = np.random.default_rng(8)
    graph = pt.Graph.grid((40, 40), n_states=3)
    theta = {"node": rng.standard_normal((1600, 3)), "edge": rng.standard_normal((len(graph.scopes["edge"]), 3, 3))}
    y = rng.integers(3, size=1600)
    one = pt.loss_and_gradient("clique_logistic", pt.TRW(iterations=6, threads=1), graph, theta, y)
    monkeypatch.setattr(pair_engine, "_HAND_OVER", 1)
    monkeypatch.setattr(pair_engine, "_WAIT", 1)
    two = pt.loss_and_gradient("clique_logistic", pt.TRW(iterations=6, threads=2), graph, theta, y)
    assert one[0] == two[0]
    for kind in theta:
        np.testing.assert_array_equal(one[1][kind], two[1][kind])


def test_on_forests_truncated_likelihood_is_the_likelihood():
    rng = np.random.default_rng(9)
    graph = pt.Graph.tree([-1, 0, 0, 1, 1, 2, 5], n_states=3)
    theta = {"node": rng.standard_normal((7, 3)), "edge": rng.standard_normal((6, 3, 3))}
    for y in (rng.integers(3, size=7), np.array([0, -1, 2, -1, 1, 1, -1])):
        want = pt.loss_and_gradient("likelihood", pt.Exact(), graph, theta, y)
        for loss in ("truncated_likelihood", "truncated_em", "surrogate_likelihood", "surrogate_em"):
            found = pt.loss_and_gradient(loss, pt.Exact(), graph, theta, y)
            assert found[0] == pytest.approx(want[0], abs=1e-10)
            for kind in theta:
                np.testing.assert_allclose(found[1][kind], want[1][kind], atol=1e-9)


@pytest.mark.parametrize("problem", [p for p in FINITE if p.graph.n_variables <= 6], ids=str)
def test_a_patch_that_covers_everything_is_the_likelihood(problem):
    rng = np.random.default_rng(10)
    y = likely_labels(problem, rng)
    want = pt.loss_and_gradient("likelihood", pt.Exact(), problem.graph, problem.theta, y)
    found = pt.loss_and_gradient(Pseudolikelihood(patch=99), pt.Exact(), problem.graph, problem.theta, y)
    assert found[0] == pytest.approx(want[0], abs=1e-9)
    for kind in want[1]:
        for a, b in zip(want[1][kind], found[1][kind], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-9)


def test_em_with_mean_field_given_and_trw_free_is_above_the_likelihood():
    rng = np.random.default_rng(11)
    for _ in range(20):
        graph = pt.Graph.grid((3, 3), n_states=2)
        theta = {"node": rng.standard_normal((9, 2)), "edge": rng.standard_normal((12, 2, 2))}
        y = np.where(rng.random(9) < 0.5, -1, rng.integers(2, size=9))
        exact = pt.loss_and_gradient("likelihood", pt.Exact(), graph, theta, y)[0]
        free, given = pt.TRW(iterations=2000, tol=1e-10), pt.MeanField(iterations=2000)
        bound = pt.loss_and_gradient("surrogate_em", free, graph, theta, y, clamped=given)[0]
        assert bound >= exact - 1e-8


def test_smoothed_error_tends_to_the_error_rate():
    rng = np.random.default_rng(12)
    graph = pt.Graph.grid((6, 6), n_states=3)
    theta = {"node": rng.standard_normal((36, 3)), "edge": None}
    y = rng.integers(3, size=36)
    wrong = float((theta["node"].argmax(axis=1) != y).sum())
    values = [pt.loss_and_gradient(SmoothedError(a), pt.TRW(), graph, theta, y)[0] for a in (5, 50, 5000)]
    assert abs(values[2] - wrong) < 0.5 < abs(values[0] - wrong)


def test_contrastive_divergence_estimates_the_likelihoods_gradient():
    rng = np.random.default_rng(13)
    n = 4000
    graph = pt.extend.Union([pt.Graph.chain(3, n_states=2)] * n).graph
    node, edge = rng.standard_normal(2), rng.standard_normal((2, 2))
    theta = {"node": node, "edge": edge}
    y = rng.integers(2, size=3 * n)
    want = pt.loss_and_gradient("likelihood", pt.Exact(), graph, theta, y)[1]
    loss = ContrastiveDivergence(sweeps=50)
    found = pt.loss_and_gradient(loss, pt.Exact(), graph, theta, y)[1]
    for kind in theta:
        np.testing.assert_allclose(found[kind] / n, want[kind] / n, atol=0.06)


def test_saddle_point_is_the_difference_to_the_best_labelling():
    rng = np.random.default_rng(14)
    graph = pt.Graph.chain(5, n_states=3)
    theta = {"node": rng.standard_normal((5, 3)), "edge": rng.standard_normal((4, 3, 3))}
    y = rng.integers(3, size=5)
    result = pt.Exact().infer(graph, theta)
    value, d_theta = pt.loss_and_gradient("saddle_point", pt.Exact(), graph, theta, y)
    assert value == pytest.approx(result.score(result.argmax()) - result.score(y))
    best, own = (pt.multilabel.labels_to_indicators(graph, labels) for labels in (result.argmax(), y))
    for kind in theta:
        np.testing.assert_array_equal(d_theta[kind], best[kind] - own[kind])


def test_linear_response_gives_joint_marginals_of_distant_variables():
    rng = np.random.default_rng(15)
    graph = pt.Graph([2, 3, 2, 3], {"edge": [[0, 1], [1, 2], [2, 3]]})
    theta = {"edge": [rng.standard_normal(shape) for shape in ((2, 3), (3, 2), (2, 3))]}
    every = np.array(list(labellings(graph)))
    p = np.exp(label_scores(graph, theta))
    pairs = [(0, 3), (3, 1)]
    for (i, j), table in zip(pairs, linear_response(pt.Exact(), graph, theta, pairs), strict=True):
        want = np.zeros(table.shape)
        np.add.at(want, (every[:, i], every[:, j]), p / p.sum())
        np.testing.assert_allclose(table, want, atol=1e-9)
    with pytest.raises(PotentiaError, match="pairs"):
        linear_response(pt.Exact(), graph, theta, [[0, 9]])


BAD = [
    ({"loss": "hinge"}, "loss must be one of .*, not 'hinge'"),
    ({"gradient": "magic"}, "gradient must be one of .*, not 'magic'"),
    ({"y": [0, 1]}, "y has shape"),
    ({"weights": [-1.0] * 4}, "weights must hold 4"),
    ({"class_weight": [1.0]}, "class_weight must hold 2"),
    ({"loss": "likelihood", "inference": pt.TRW(rho=0.3)}, "needs exact inference"),
    ({"inference": pt.Smoothed(0)}, "epsilon = 0"),
    ({"inference": pt.TRW(schedule="residual")}, "residual"),
    ({"inference": pt.LinearProgram()}, "no iterations to differentiate"),
    ({"inference": pt.LinearProgram(), "gradient": "perturbation"}, "LinearProgram: its marginals are not a smooth"),
    ({"inference": pt.Gibbs(), "gradient": "perturbation"}, "Gibbs: its marginals are not a smooth"),
    ({"loss": "truncated_likelihood", "inference": pt.Gibbs()}, "no entropy"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD)
def test_bad_combinations_get_a_sentence(change, sentence):
    graph = pt.Graph.grid((2, 2), n_states=2)
    given = {"loss": "univariate_logistic", "inference": pt.TRW(), "y": [0, 1, 0, 1]} | change
    with pytest.raises(PotentiaError, match=sentence):
        pt.loss_and_gradient(graph=graph, theta={}, **given)


def test_forbidden_labels_get_a_sentence():
    graph = pt.Graph.chain(2, n_states=2)
    theta = {"node": [[0.0, -np.inf], [0.0, 0.0]], "edge": None}
    for loss in ("univariate_logistic", "surrogate_likelihood", "pseudolikelihood", "piecewise"):
        with pytest.raises(PotentiaError, match="forbid"):
            pt.loss_and_gradient(loss, pt.TRW(), graph, theta, [1, 0])


def test_marginals_next_to_zero_leave_likelihoods_finite():
    graph = pt.Graph.grid((1, 2), n_states=2)
    theta = {"node": np.array([[0.0, -355.0], [0.0, -356.0]]), "edge": np.zeros((1, 2, 2))}
    mu = pt.MeanField(iterations=2, tol=0).infer(graph, theta).marginals["edge"]
    assert 0 < mu.min() < 2.3e-308, "a marginal too small to have its logarithm taken"
    value, slopes = pt.loss_and_gradient(
        "truncated_likelihood", pt.MeanField(iterations=2, tol=0), graph, theta, [0, 0]
    )
    assert value == pytest.approx(0.0, abs=1e-12)
    assert all(np.isfinite(slope).all() for slope in slopes.values())


def star(leaves, n_states):
    """A hub and its leaves."""
    regions = {"node": [[i] for i in range(leaves + 1)], "edge": [[0, i] for i in range(1, leaves + 1)]}
    return pt.Graph(n_states=[n_states] * (leaves + 1), regions=regions)


def random_problem(graph, size, seed=0):
    """Normal scores of this standard deviation, and labels."""
    rng = np.random.default_rng(seed)
    states = int(graph.n_states[0])
    theta = {
        kind: size * rng.normal(size=(len(scope), *[states] * scope.shape[1])) for kind, scope in graph.scopes.items()
    }
    return theta, rng.integers(states, size=graph.n_variables)


def relative_error(found, want):
    """Of gradients, by their length."""
    a, b = (np.concatenate([g[kind].ravel() for kind in want]) for g in (found, want))
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@pytest.mark.parametrize("sides", [1, 2, 4])
@pytest.mark.parametrize("inference", [pt.TRW(), pt.LoopyBP(), pt.Smoothed(1.0), pt.MeanField()], ids=str)
def test_perturbation_is_accurate_at_the_default_tolerance(inference, sides):
    graph = pt.Graph.grid((5, 5), n_states=3)
    theta, y = random_problem(graph, 0.5)
    exact = replace(inference, tol=1e-14, iterations=3000)
    for weights in (None, np.full(25, 1e-4)):
        want = pt.loss_and_gradient("univariate_logistic", exact, graph, theta, y, weights=weights)[1]
        found = pt.loss_and_gradient(
            "univariate_logistic", inference, graph, theta, y, Perturbation(sides), weights=weights
        )[1]
        assert relative_error(found, want) < (1e-3 if sides == 1 else 1e-4)


def test_perturbation_warns_of_what_it_cannot_resolve():
    graph = pt.Graph.grid((4, 4), n_states=2)
    theta, y = random_problem(graph, 0.5)
    theta["node"][5] = [40.0, 0.0]
    y[5] = 1
    with pytest.warns(pt.ConvergenceWarning, match="too small for finite differences") as caught:
        pt.loss_and_gradient("univariate_logistic", pt.TRW(), graph, theta, y, "perturbation")
    assert len(caught) == 1
    theta, y = random_problem(graph, 0.5)
    loose = pt.Smoothed(0.1, iterations=2, tol=0.9)
    with pytest.warns(pt.ConvergenceWarning, match="at perturbed scores did not converge"):
        pt.loss_and_gradient("univariate_logistic", loose, graph, theta, y, "perturbation")


@pytest.mark.parametrize("gradient", ["backpropagation", "perturbation", "implicit"])
def test_gradients_at_a_fixed_point_warn_where_there_is_none(gradient):
    graph = pt.Graph.grid((4, 4), n_states=2)
    theta, y = random_problem(graph, 1.0)
    for inference in (pt.TRW(iterations=2), pt.TRW(iterations=2, tol=0)):
        with pytest.warns(pt.ConvergenceWarning, match="Inference did not converge") as caught:
            pt.loss_and_gradient("univariate_logistic", inference, graph, theta, y, gradient)
        assert [warning.filename for warning in caught] == [__file__]
    pt.loss_and_gradient("univariate_logistic", pt.TRW(iterations=200, tol=0), graph, theta, y, gradient)


def test_messages_that_oscillate_are_damped_before_back_propagation():
    graph = star(20, 2)
    theta, y = random_problem(graph, 1.0)
    inference = pt.TRW(rho=0.5, iterations=3000)
    result = inference.infer(graph, theta)
    assert result.oscillating
    assert result.converged
    back = pt.loss_and_gradient("univariate_logistic", inference, graph, theta, y, "backpropagation")
    assert back[0] == pytest.approx(-np.log(result.variable_marginals[np.arange(21), y]).sum(), rel=1e-6)
    implicit = pt.loss_and_gradient("univariate_logistic", inference, graph, theta, y, "implicit")
    assert relative_error(back[1], implicit[1]) < 1e-5


def test_back_propagation_that_diverges_is_an_error():
    graph = star(20, 2)
    theta, y = random_problem(graph, 1.0)
    undamped = pt.TRW(rho=0.5, iterations=200, damping=0.0)
    with pytest.raises(PotentiaError, match="Back-propagation diverges"):
        pt.loss_and_gradient("univariate_logistic", undamped, graph, theta, y, "backpropagation")
    few = BackPropagation(iterations=2)
    with pytest.warns(pt.ConvergenceWarning, match="did not reach its threshold in 2"):
        pt.loss_and_gradient("univariate_logistic", pt.Smoothed(1.0), graph, theta, y, few)


def test_guesses_that_are_not_finite_are_not_used():
    graph = pt.Graph.grid((4, 4), n_states=2)
    theta, _ = random_problem(graph, 0.5)
    scores, cotangent = Scores(graph, theta), MarginalCotangent(np.ones((16, 2)) * [1.0, 0.0], {})
    result, pull = BackPropagation().solve(pt.TRW(), scores)
    want = pull(cotangent)
    result.memo["cotangents"] = np.full_like(result.memo["cotangents"], np.nan)
    found = BackPropagation().solve(pt.TRW(), scores, result)[1](cotangent)
    assert relative_error(found, want) < 1e-6


@pytest.mark.parametrize(
    ("leaves", "n_states", "size", "inference"),
    [
        (100, 2, 2.0, pt.TRW()),
        (20, 3, 4.0, pt.Exact()),
        (20, 3, 4.0, pt.Smoothed(0.1, iterations=3000, tol=1e-13)),
        (100, 2, 4.0, pt.Smoothed(0.1, iterations=3000, tol=1e-13)),
    ],
    ids=str,
)
def test_implicit_gradients_are_accurate_where_labels_are_implausible(leaves, n_states, size, inference):
    graph = star(leaves, n_states)
    theta, y = random_problem(graph, size)
    theta["node"][0, -1] -= 60.0
    mu = inference.infer(graph, theta).variable_marginals
    y = mu.argmin(axis=1)
    assert mu.min() < 1e-7
    want = pt.loss_and_gradient("univariate_logistic", inference, graph, theta, y)[1]
    found = pt.loss_and_gradient("univariate_logistic", inference, graph, theta, y, "implicit")[1]
    assert relative_error(found, want) < 1e-6
    problem = SimpleNamespace(graph=graph, theta=theta)
    agrees(problem, np.random.default_rng(1), "univariate_logistic", inference, y, "implicit", rtol=1e-5)


def test_rounding_does_not_grow_where_variables_differ_in_their_states():
    rng = np.random.default_rng(0)
    states, pairs = np.array([2, 4, 1, 2]), [(i, j) for i in range(4) for j in range(i)] * 10
    graph = pt.Graph(states, {"node": np.arange(4)[:, None], "edge": pairs})
    theta = {
        "node": [rng.normal(size=n) for n in states],
        "edge": [0.05 * rng.normal(size=(states[i], states[j])) for i, j in pairs],
    }
    method = pt.LoopyBP(iterations=25, tol=0, damping=0.3)
    _, tables = pt.loss_and_gradient("univariate_logistic", method, graph, theta, [0, 1, 0, 1])
    moves = [rng.normal(size=n) for n in states]
    up, down = (
        pt.loss_and_gradient(
            "univariate_logistic",
            method,
            graph,
            {**theta, "node": [t + h * d for t, d in zip(theta["node"], moves, strict=True)]},
            [0, 1, 0, 1],
        )[0]
        for h in (1e-5, -1e-5)
    )
    found = sum(float(a @ b) for a, b in zip(tables["node"], moves, strict=True))
    assert found == pytest.approx((up - down) / 2e-5, rel=1e-6)


def test_arguments_in_another_order_are_named():
    graph = pt.Graph.chain(3, n_states=2)
    with pytest.raises(PotentiaError, match=r"inference, the second argument, must be .* not a Graph\."):
        pt.loss_and_gradient("likelihood", graph, pt.Exact(), {}, [0, 1, 0])


def test_what_has_one_configuration_costs_nothing():
    rng = np.random.default_rng(0)
    scopes = {"node": [[0], [1], [2]], "edge": [[0, 1], [1, 2]]}
    fixed = pt.Graph([1, 1, 1], scopes)
    theta = {"node": np.zeros((3, 1)), "edge": np.zeros((2, 1, 1))}
    # beside a variable of three states, one of a single state has columns of zeros
    padded = pt.Graph([1, 1, 3], scopes)
    for loss in MARGINAL:
        value, gradient = pt.loss_and_gradient(loss, pt.TRW(), fixed, theta, [0, 0, 0])
        assert value == 0.0
        assert not gradient["edge"].any()
        own = [rng.standard_normal(n) for n in (1, 1, 3)]
        pairs = [rng.standard_normal((1, 1)), rng.standard_normal((1, 3))]
        both, _ = pt.loss_and_gradient(loss, pt.TRW(), padded, {"node": own, "edge": pairs}, [0, 0, 2])
        # all that can be wrong is the last variable, of which the last pair is a copy
        alone = {"node": own[2] + pairs[1][0]}
        name = loss.replace("clique_", "univariate_").replace("univariate_smoothed", "smoothed")
        want, _ = pt.loss_and_gradient(name, pt.TRW(), pt.Graph([3], {"node": [[0]]}), alone, [2])
        assert both == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("gradient", ["truncated", "backpropagation", "perturbation", "implicit"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, list])
def test_gradients_have_the_shape_of_theta(gradient, dtype):
    """Whatever the number of regions of a kind: none, one or several."""
    rng = np.random.default_rng(1)

    def given(*shape):
        table = rng.standard_normal(shape)
        return table.tolist() if dtype is list else table.astype(dtype)

    none = np.zeros((0, 2), dtype=np.int64)
    graph = pt.Graph(
        [2, 2, 2, 2], {"node": [[0], [1], [2], [3]], "edge": [[0, 1]], "two": [[1, 2], [2, 3]], "no": none}
    )
    y = [0, 1, 1, 0]
    for edge in (given(2, 2), given(1, 2, 2), pt.Potts(0.3), pt.Potts([0.3])):
        for two in (given(2, 2), given(2, 2, 2), pt.Potts(0.3), pt.Potts([0.3, 0.1])):
            for no in (np.zeros((0, 2, 2)), given(2, 2), pt.Potts(0.3)):
                theta = {"node": given(2), "edge": edge, "two": two, "no": no}
                _, found = pt.loss_and_gradient(
                    "univariate_logistic", pt.TRW(iterations=300, tol=1e-12), graph, theta, y, gradient
                )
                for kind, table in theta.items():
                    assert found[kind].shape == np.shape(getattr(table, "weight", table)), kind
    _, found = pt.loss_and_gradient("likelihood", pt.Exact(), graph, {"edge": None, "two": given(2, 2)}, y)
    assert list(found) == ["two"]


def slow_mean_field():
    """Near the coupling at which mean field changes its phase, each iteration takes a small step only."""
    rng, graph = np.random.default_rng(1), pt.Graph.grid((6, 6), n_states=2)
    theta = {"node": 0.01 * rng.standard_normal((36, 2)), "edge": 0.28 * np.array([[1.0, -1.0], [-1.0, 1.0]])}
    return graph, theta, rng.integers(0, 2, 36)


def test_back_propagation_counts_what_slow_iterations_leave():
    graph, theta, y = slow_mean_field()
    method = pt.MeanField(iterations=10_000, tol=1e-14)
    _, found = pt.loss_and_gradient("univariate_logistic", method, graph, theta, y, "backpropagation")
    _, want = pt.loss_and_gradient("univariate_logistic", method, graph, theta, y, BackPropagation(1e-15))
    for kind in want:
        assert np.abs(found[kind] - want[kind]).max() < 1e-8 * np.abs(want[kind]).max()


@pytest.mark.parametrize("method", [pt.MeanField, pt.TRW, pt.LoopyBP])
def test_back_propagation_of_labels_that_are_all_but_excluded(method):
    """Slopes of the logistic loss are inverse marginals, here up to 1e13; those of scores are moderate."""
    rng, graph = np.random.default_rng(5), pt.Graph.grid((8, 8), n_states=3)
    theta = {"node": rng.standard_normal((64, 3)), "edge": 0.5 * rng.standard_normal((3, 3))}
    theta["node"][::9, 0] = -30.0
    y = np.where(np.arange(64) % 9 == 0, 0, rng.integers(0, 3, 64))
    inference = method(iterations=5000, tol=1e-13)
    _, found = pt.loss_and_gradient("univariate_logistic", inference, graph, theta, y, "backpropagation")
    _, want = pt.loss_and_gradient("univariate_logistic", inference, graph, theta, y, BackPropagation(1e-14))
    for kind in want:
        assert np.abs(found[kind] - want[kind]).max() < 1e-7 * np.abs(want[kind]).max()


def test_back_propagation_warns_where_inference_is_slow():
    graph, theta, y = slow_mean_field()
    with pytest.warns(pt.ConvergenceWarning, match="converges so slowly"):
        pt.loss_and_gradient("univariate_logistic", pt.MeanField(iterations=10_000), graph, theta, y, "backpropagation")
