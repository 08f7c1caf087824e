"""Iterated logistic regression: its theorems, modes and options."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import logsumexp

import potentia as pt
import reference
import zoo
from potentia.features.example import Example
from potentia.graph.scores import Scores
from potentia.learn import joint as joint_module
from potentia.learn.checkpoint import Checkpoint
from potentia.learn.joint import Joint, free_value
from potentia.potentials import MLP, Boosting, Constant, LightGBM, Linear, Zero
from sample_images import noisy
from sweep_counter import counted_updates

pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")  # fits are cut short

SMALL = {"solver": "alternating", "iterations": 4, "sweeps": 4, "tol": 0.0, "track_error": False}


def triples(n_examples=6, seed=0):
    """Chains of ten with tied regions of one, two and three variables; labels depend on the features."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n_examples):
        n = int(rng.integers(6, 12))
        first = np.arange(n)
        scopes = {
            "node": first[:, None],
            "edge": np.stack([first[:-1], first[1:]], axis=1),
            "triple": np.stack([first[:-2], first[1:-1], first[2:]], axis=1),
        }
        graph = pt.Graph([2] * n, scopes)
        labels = np.repeat(rng.integers(0, 2, size=n), 2)[:n]
        features = {"node": np.column_stack([labels + rng.normal(size=n), np.ones(n)]), "triple": np.ones((n - 2, 1))}
        found.append(Example(graph, features, labels))
    return found


POTENTIALS = {
    "constant": lambda: Constant(),
    "linear": lambda: Linear(),
    "boosting": lambda: Boosting(rounds=8, subsample=500),
    "mlp": lambda: MLP(hidden=8, epochs=2),
    "lightgbm": lambda: LightGBM(rounds=5),
}


@pytest.mark.parametrize("name", POTENTIALS)
def test_the_objective_never_rises(name):
    crf = pt.CRF({"node": POTENTIALS[name](), "edge": POTENTIALS[name]()}, pt.IteratedLogistic(**SMALL))
    objectives = [row["objective"] for row in crf.fit(noisy()).history_]
    assert len(objectives) == 4
    slack = 1e-9 if name in ("constant", "linear") else 1e-7
    assert np.all(np.diff(objectives) <= slack * np.abs(objectives[:-1]))
    assert objectives[-1] < objectives[0]


@pytest.mark.parametrize(("node", "edge"), [("linear", "boosting"), ("mlp", "constant")])
def test_mixed_steps_go_further_than_alternating_ones(node, edge):
    potentials = {"node": POTENTIALS[node](), "edge": POTENTIALS[edge]()}
    mixed, plain = (
        [r["objective"] for r in pt.CRF(potentials, learner).fit(noisy()).history_]
        for learner in (pt.IteratedLogistic(**{**SMALL, "solver": "mixed"}), pt.IteratedLogistic(**SMALL))
    )
    slack = 1e-9 if (node, edge) == ("linear", "boosting") else 1e-7
    assert np.all(np.diff(mixed) <= slack * np.abs(mixed[:-1]))
    assert mixed[-1] < plain[-1]


def test_every_solver_of_convex_functions_reaches_the_minimum_without_rising():
    examples, found = noisy(2, (4, 5)), {}
    for solver in ("direct", "mixed"):
        learner = pt.IteratedLogistic(1.0, 150, sweeps=20, tol=0, solver=solver, track_error=False)
        crf = pt.CRF({"node": Linear(0.1), "edge": Linear(0.1)}, learner).fit(examples)
        found[solver] = np.array([row["objective"] for row in crf.history_])
        assert np.all(np.diff(found[solver]) <= 1e-9 * found[solver][:-1])
    assert found["mixed"][-1] == pytest.approx(found["direct"][-1], rel=1e-3)


@pytest.mark.parametrize("solver", ["alternating", "mixed", "direct"])
def test_scores_too_many_to_keep_change_nothing(solver, monkeypatch):
    weights = np.random.default_rng(0).uniform(0.5, 2.0, 90)
    examples = [Example(e.graph, e.features, e.labels, weights) for e in noisy()]

    def edge_delta(example):
        return {
            "node": 1.0 - np.eye(2)[example.labels],
            "edge": np.full((len(example.graph.scopes["edge"]), 2, 2), 0.1),
        }

    edge = Linear() if solver == "direct" else MLP(hidden=8, epochs=1)
    learner = pt.IteratedLogistic(**{**SMALL, "solver": solver}, delta=edge_delta)
    found = []
    for most in (1 << 25, 0):
        monkeypatch.setattr(joint_module, "MAX_KEPT_SCORES", most)
        crf = pt.CRF({"node": Linear(), "edge": edge}, learner).fit(examples)
        found.append([row["objective"] for row in crf.history_])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9)


BARE = {
    "pairs only": {"edge": [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]},
    "some variables": {"node": [[0], [3]], "edge": [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]},
    "triples only": {"edge": [[0, 1, 2], [2, 3, 4], [3, 4, 5]]},
}


@pytest.mark.parametrize("name", BARE)
@pytest.mark.parametrize("solver", ["alternating", "direct"])
def test_variables_without_a_region_of_their_own_count(name, solver):
    rng = np.random.default_rng(27)
    graph, kinds, examples = pt.Graph([2] * 6, BARE[name]), list(BARE[name]), []
    for _ in range(3):
        y = rng.integers(0, 2, 6)
        features = {k: y[s].sum(1, keepdims=True) + rng.normal(size=(len(s), 1)) for k, s in graph.scopes.items()}
        examples.append(Example(graph, features, y))
    learner = pt.IteratedLogistic(
        0.3, 12, sweeps=60, message_tol=0, tol=0, solver=solver, delta=None, track_error=False
    )
    crf = pt.CRF({kind: Linear(1.0) for kind in kinds}, learner).fit(examples)
    objectives = np.array([row["objective"] for row in crf.history_])
    assert np.all(np.diff(objectives) <= 1e-9 * objectives[:-1])
    assert set(crf.potentials_) == set(kinds)
    exact = sum(0.3 * crf.potentials_[kind].penalty() for kind in kinds)
    for example in examples:
        theta = {kind: 0.3 * t for kind, t in crf.theta(example).items()}
        exact += pt.Smoothed(0.3, iterations=5000, tol=1e-12).infer(graph, theta).value
        exact -= sum(t[(np.arange(len(t)), *example.labels[graph.scopes[k]].T)].sum() for k, t in theta.items())
    assert objectives[-1] == pytest.approx(exact, rel=1e-6)
    learner.delta = "hamming"
    assert crf.fit(examples).history_[-1]["objective"] > objectives[-1] + 1.0


def stepped(examples, steps, epsilon=0.3):
    """A learner, its data, and the state after some steps of alternation."""
    learner = pt.IteratedLogistic(epsilon, **{**SMALL, "solver": "alternating", "sweeps": 3})
    potentials = {"node": Linear(), "edge": Linear()}
    data = learner.gather(examples, potentials)
    state = learner.init(data, potentials)
    for _ in range(steps):
        state = learner.step(data, state)
    return learner, data, state


def test_the_objective_is_the_smoothed_loss_at_the_messages():
    """sum of epsilon times biased losses = A(lam, theta) - theta . [y], by Theorem 1.4."""
    _, data, state = stepped(noisy(), 2)
    (part,), (known,) = data.parts.parts, state.parts
    _, value = free_value(part, {**known, "clamped_value": np.zeros(1)}, {})
    truth = 0.0
    for kind, potential in state.potentials.items():
        index = part.targets[kind]
        truth += 0.3 * potential.scores(part.features[kind][:])[np.arange(len(index)), index].sum()
    penalties = sum(0.3 * p.penalty() for p in state.potentials.values())
    assert state.history[-1]["objective"] == pytest.approx(value - truth + penalties, rel=1e-10)


def test_theorem_1_1_bounds_the_smoothing():
    """l1 <= l <= l1 + epsilon sum log |Y| for given scores."""
    for problem in (zoo.zoo()["grid"], zoo.zoo()["nested"]):
        labels = np.zeros(problem.graph.n_variables, dtype=int)
        delta = {"node": [np.ones(s) - (np.arange(s) == 0) for s in problem.graph.n_states]}
        theta = {k: [np.asarray(t) for t in v] for k, v in problem.theta.items()}
        theta["node"] = [t + d for t, d in zip(theta["node"], delta["node"], strict=True)]
        truth = pt.Exact().infer(problem.graph, problem.theta).score(labels)
        lp = reference.local_polytope_value(problem.graph, theta) - truth
        sizes = [t.size for tables in theta.values() for t in tables]
        for epsilon in (0.05, 0.5):
            smooth = pt.Smoothed(epsilon, iterations=20_000, tol=1e-12).infer(problem.graph, theta).value - truth
            assert lp - 1e-7 <= smooth <= lp + epsilon * np.log(sizes).sum() + 1e-7


@pytest.mark.parametrize("epsilon", [0.05, 0.5])
def test_theorem_1_1_holds_for_a_trained_model(epsilon):
    """The loss that training lowered lies between the linear program's and that plus epsilon sum log |Y|."""
    examples = noisy(2, (3, 4))
    learner = pt.IteratedLogistic(epsilon, 30, sweeps=200, solver="direct", track_error=False)
    crf = pt.CRF({"node": Linear(0.1), "edge": Linear(0.1)}, learner).fit(examples)
    penalty = sum(epsilon * p.penalty() for p in crf.potentials_.values())
    smooth, lp, room = crf.history_[-1]["objective"] - penalty, 0.0, 0.0
    for example in examples:
        theta = {kind: epsilon * t for kind, t in crf.theta(example).items()}
        lp -= pt.Exact().infer(example.graph, theta).score(example.labels)
        theta["node"] = theta["node"] + 1.0 - np.eye(2)[example.labels]
        lp += reference.local_polytope_value(example.graph, {k: list(t) for k, t in theta.items()})
        room += epsilon * sum(np.log(t[0].size) * len(t) for t in theta.values())
    assert lp - 1e-7 <= smooth <= lp + room + 1e-7
    assert smooth > lp + 1e-3


def test_class_and_sample_weights_are_in_the_loss_and_in_delta():
    rng, epsilon, classes = np.random.default_rng(0), 0.4, np.array([1.0, 3.0, 0.5])
    x, y, own = rng.normal(size=(60, 2)), rng.integers(0, 3, 60), rng.uniform(0.5, 2.0, 60)
    graph = pt.Graph(np.full(60, 3), {"node": np.arange(60)[:, None]})
    learner = pt.IteratedLogistic(epsilon, class_weight=classes.tolist(), **SMALL)
    crf = pt.CRF({"node": Linear(0.2, tol=1e-12, max_iter=1000)}, learner)
    found = crf.fit([Example(graph, {"node": x}, y, own)]).history_[-1]["objective"]

    def objective(vector):
        coef, intercept = vector[:6].reshape(2, 3), vector[6:]
        f = x @ coef + intercept
        loss = logsumexp(f + (1 - np.eye(3)[y]) / epsilon, axis=1) - f[np.arange(60), y]
        return epsilon * (own * classes[y] @ loss + 0.1 * (coef**2).sum())

    assert found == pytest.approx(minimize(objective, np.zeros(9), tol=1e-10).fun, rel=1e-6)


def test_without_pairs_and_delta_it_is_logistic_regression():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    y = (x @ [1.0, -2.0, 0.5] + rng.normal(size=400) > 0).astype(int)
    graph = pt.Graph(np.full(400, 2), {"node": np.arange(400)[:, None]})
    crf = pt.CRF({"node": Linear(ridge=0.7, tol=1e-12, max_iter=1000)}, pt.IteratedLogistic(0.4, delta=None, **SMALL))
    crf.fit([Example(graph, {"node": x}, y)])
    coef = crf.potentials_["node"].coef_
    # a two-column softmax with ridge r on both columns is a binary regression with ridge r / 2 on their difference
    right = LogisticRegression(C=2 / 0.7, tol=1e-10, max_iter=2000).fit(x, y)
    np.testing.assert_allclose(coef[:, 1] - coef[:, 0], right.coef_[0], atol=1e-4)


def test_direct_and_alternating_agree_for_linear_potentials():
    examples = noisy(2, (5, 6))
    common = {"epsilon": 1.0, "sweeps": 10, "track_error": False, "threads": 1}
    potentials = {"node": Linear(ridge=3.0), "edge": Linear(ridge=3.0)}
    direct = pt.CRF(potentials, pt.IteratedLogistic(iterations=500, tol=1e-10, solver="direct", **common)).fit(examples)
    slow = pt.CRF(potentials, pt.IteratedLogistic(iterations=800, tol=1e-7, solver="alternating", **common)).fit(
        examples
    )
    a, b = (crf.history_[-1]["objective"] for crf in (direct, slow))
    assert a == pytest.approx(b, rel=1e-4)
    assert len(direct.history_) < len(slow.history_) / 10


def test_the_direct_gradient_is_the_gradient_of_the_objective():
    learner, data, state = stepped(noisy(1, (4, 5)), 1)
    joint = Joint(data, state.potentials, learner)
    for kind in ("node", "edge"):
        potential = state.potentials[kind]
        start = potential.parameters
        loss, slope = potential.loss_and_gradient(joint.problem(state.parts, kind))
        assert loss == pytest.approx(joint.loss(state.parts, potential, kind))

        def at(vector, kind=kind, potential=potential):
            potential.parameters = vector
            return joint.loss(joint.moved(state.parts, state.potentials, [kind]), potential, kind)

        np.testing.assert_allclose(slope, reference.differences(at, start, 1e-5), rtol=1e-6, atol=1e-6)
        potential.parameters = start


def test_tied_regions_of_three_variables():
    examples = triples()
    potentials = {"node": Linear(), "edge": Constant(), "triple": Linear()}
    crf = pt.CRF(potentials, pt.IteratedLogistic(0.5, iterations=8, sweeps=10)).fit(examples)
    objectives = [row["objective"] for row in crf.history_]
    assert np.all(np.diff(objectives) <= 1e-9 * np.abs(objectives[:-1]))
    alone = pt.CRF({k: Zero() for k in potentials} | {"node": Linear()}, pt.IteratedLogistic(0.5)).fit(examples)
    test = triples(20, seed=1)
    assert crf.score(test) >= alone.score(test)
    assert crf.potentials_["triple"].n_outputs_ == 8


def test_joint_training_beats_the_comparisons():
    train, test = noisy(4, (40, 40)), noisy(4, (40, 40), seed=9)
    errors = {}
    for solver in ("auto", "univariate_fixed", "piecewise"):
        potentials = {"node": Boosting(rounds=40), "edge": Linear()}
        learner = pt.IteratedLogistic(iterations=6, sweeps=10, solver=solver, track_error=False)
        crf = pt.CRF(potentials, learner).fit(train)
        errors[solver] = 1 - crf.score(test)
        assert len(crf.history_) == (1 if solver == "piecewise" else 6)
    assert errors["auto"] < errors["univariate_fixed"]
    assert errors["auto"] < errors["piecewise"]


def test_hidden_labels_are_dropped_with_their_regions_by_default():
    examples = noisy(2)
    hidden = []
    for k, e in enumerate(examples):
        y = e.labels.copy()
        y[k::4] = -1
        hidden.append(Example(e.graph, e.features, y))
    data = pt.IteratedLogistic().gather(hidden, {"node": Linear(), "edge": Linear()})
    assert data.n_rows["node"] == sum((e.labels >= 0).sum() for e in hidden)
    for e in hidden:
        both = (e.labels[e.graph.scopes["edge"]] >= 0).all(axis=1)
        assert both.sum() > 0
    assert data.n_rows["edge"] == sum((e.labels[e.graph.scopes["edge"]] >= 0).all(axis=1).sum() for e in hidden)
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, pt.IteratedLogistic(**SMALL)).fit(hidden)
    objectives = [row["objective"] for row in crf.history_]
    assert np.all(np.diff(objectives) <= 1e-9 * np.abs(objectives[:-1]))
    assert all((p >= 0).all() for p in crf.predict(hidden))


def test_soft_targets_for_hidden_labels_lower_the_marginal_objective():
    hidden = []
    for e in noisy(2):
        y = e.labels.copy()
        y[::3] = -1
        hidden.append(Example(e.graph, e.features, y))
    learner = pt.IteratedLogistic(0.5, hidden="soft", iterations=6, sweeps=30, track_error=False)
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, learner).fit(hidden)
    objectives = [row["objective"] for row in crf.history_]
    assert np.all(np.diff(objectives) <= 1e-6 * np.abs(objectives[:-1]))
    assert objectives[-1] < objectives[0]
    # with nothing hidden, soft targets are the labels
    plain = []
    for treatment in ("drop", "soft"):
        learner = pt.IteratedLogistic(0.5, hidden=treatment, **SMALL)
        plain.append(pt.CRF({"node": Linear(), "edge": Linear()}, learner).fit(noisy(1)))
    assert plain[0].history_[-1]["objective"] == pytest.approx(plain[1].history_[-1]["objective"], rel=1e-8)


def test_weight_two_is_an_example_twice_and_weight_zero_is_hidden():
    a, b = noisy(2)
    learner = pt.IteratedLogistic(**SMALL)
    potentials = {"node": Linear(tol=1e-10), "edge": Linear(tol=1e-10)}
    twice = pt.CRF(potentials, learner).fit([a, b, b])
    heavy = Example(b.graph, b.features, b.labels, weights=np.full(b.graph.n_variables, 2.0))
    weighted = pt.CRF(potentials, learner).fit([a, heavy])
    assert weighted.history_[-1]["objective"] == pytest.approx(twice.history_[-1]["objective"], rel=1e-6)
    weights = np.ones(b.graph.n_variables)
    weights[:10] = 0
    gone = b.labels.copy()
    gone[:10] = -1
    zero = pt.CRF(potentials, learner).fit([a, Example(b.graph, b.features, b.labels, weights)])
    hidden = pt.CRF(potentials, learner).fit([a, Example(b.graph, b.features, gone)])
    assert zero.history_[-1]["objective"] == pytest.approx(hidden.history_[-1]["objective"], rel=1e-9)


def test_class_weights_move_predictions_towards_the_heavy_class():
    examples = noisy(3, (20, 20))
    share = []
    for weight in ([1.0, 1.0], [1.0, 20.0]):
        learner = pt.IteratedLogistic(class_weight=weight, **SMALL)
        crf = pt.CRF({"node": Linear(), "edge": Zero()}, learner).fit(examples)
        objectives = [row["objective"] for row in crf.history_]
        assert np.all(np.diff(objectives) <= 1e-9 * np.abs(objectives[:-1]))
        share.append(np.mean(np.concatenate(crf.predict(examples))))
    assert share[1] > share[0] + 0.1


def test_a_delta_of_ones_own():
    examples = noisy(2)

    def hamming(example):
        return {"node": 1.0 - np.eye(2)[example.labels]}

    runs = []
    for delta in ("hamming", hamming):
        learner = pt.IteratedLogistic(delta=delta, **SMALL)
        runs.append(pt.CRF({"node": Linear(), "edge": Linear()}, learner).fit(examples))
    assert runs[0].history_[-1]["objective"] == runs[1].history_[-1]["objective"]


def test_epsilon_per_kind():
    learner = pt.IteratedLogistic({"node": 0.1, "edge": 0.4}, **SMALL)
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, learner).fit(noisy())
    assert crf.scales_ == {"node": 0.25, "edge": 1.0}
    assert crf.inference_.epsilon == {"node": 0.25, "edge": 1.0}


@pytest.mark.parametrize("epsilon", [0.1, 1.0, {"node": 0.1, "edge": 0.4}])
def test_theta_is_on_the_scale_of_its_inference(epsilon):
    examples = noisy(2, (3, 4))
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, pt.IteratedLogistic(epsilon, **SMALL)).fit(examples)
    for example, marginals in zip(examples, crf.predict_marginals(examples), strict=True):
        found = crf.inference_.infer(example.graph, crf.theta(example)).variable_marginals
        np.testing.assert_allclose(found, marginals, atol=1e-12)


def test_theta_holds_log_scores_that_any_method_can_read():
    """Without pairs the model is a logistic regression, whose probabilities every method must give."""
    rng = np.random.default_rng(0)
    graph = pt.Graph(np.full(40, 3), {"node": np.arange(40)[:, None]})
    y = rng.integers(0, 3, 40)
    example = Example(graph, {"node": np.eye(3)[y] + rng.normal(size=(40, 3))}, y)
    crf = pt.CRF({"node": Linear()}, pt.IteratedLogistic(0.1, delta=None)).fit([example])
    (marginals,) = crf.predict_marginals([example])
    assert marginals.max() < 0.9999
    for method in (pt.Exact(), pt.TRW(), pt.MeanField(), pt.LoopyBP()):
        found = method.infer(graph, crf.theta(example)).variable_marginals
        np.testing.assert_allclose(found, marginals, atol=1e-3)
        crf.inference = method
        np.testing.assert_allclose(crf.predict_marginals([example])[0], marginals, atol=1e-3)


def test_sparse_features_and_graphs_of_different_sizes():
    dense = [*noisy(1, (5, 6)), *noisy(1, (8, 3), seed=4)]
    thin = [Example(e.graph, {k: sparse.csr_array(v) for k, v in e.features.items()}, e.labels) for e in dense]
    a, b = (pt.CRF({"node": Linear(), "edge": Linear()}, pt.IteratedLogistic(**SMALL)).fit(d) for d in (dense, thin))
    assert a.history_[-1]["objective"] == pytest.approx(b.history_[-1]["objective"], rel=1e-6)


def test_shards_change_nothing(monkeypatch):
    examples = noisy(5)
    # a shard's messages rest together, so where they rest depends on the cut
    learner = pt.IteratedLogistic(**SMALL, message_tol=0.0)
    whole = pt.CRF({"node": Linear(), "edge": Linear()}, learner).fit(examples)
    monkeypatch.setattr("potentia.learn.part.SHARD_ENTRIES", 1)
    cut = pt.CRF({"node": Linear(), "edge": Linear()}, learner).fit(examples)
    assert cut.history_[-1]["objective"] == pytest.approx(whole.history_[-1]["objective"], rel=1e-9)
    for a, b in zip(whole.predict(examples), cut.predict(examples), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("solver", ["alternating", "direct", "mixed"])
def test_messages_that_rest_early_save_sweeps_and_lead_to_the_same_objective(solver, monkeypatch):
    updated = counted_updates(monkeypatch)
    found, counts = [], []
    for rest in (0.0, 1e-2):
        updated.clear()
        learner = pt.IteratedLogistic(iterations=40, sweeps=25, solver=solver, message_tol=rest, track_error=False)
        found.append(pt.CRF({"node": Linear(ridge=1.0), "edge": Linear(ridge=1.0)}, learner).fit(noisy(3)))
        counts.append(sum(updated))
    assert counts[1] < counts[0] / 2
    settled, early = (crf.history_[-1]["objective"] for crf in found)
    assert early == pytest.approx(settled, rel=2e-3)
    with pytest.raises(pt.PotentiaError, match="message_tol must be a finite number, at least 0"):
        pt.CRF({"node": Linear()}, pt.IteratedLogistic(message_tol=-1.0)).fit(noisy(1))


def test_history_callback_and_stopping_rule():
    seen = []
    learner = pt.IteratedLogistic(iterations=9, sweeps=3)
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, learner)
    crf.fit(noisy(), validation=noisy(seed=5), callback=lambda history: seen.append(len(history)) or len(history) == 3)
    assert seen == [1, 2, 3]
    assert [row["iteration"] for row in crf.history_] == [1, 2, 3]
    last = crf.history_[-1]
    assert last.keys() >= {"objective", "loss_node", "loss_edge", "train_error", "validation_error", "seconds"}
    assert last["train_error"] == pytest.approx(1 - crf.score(noisy()))
    stopped = pt.CRF({"node": Constant(), "edge": Constant()}, pt.IteratedLogistic(iterations=50, sweeps=20, tol=1e-2))
    assert len(stopped.fit(noisy()).history_) < 50


def test_not_converged_warns_once():
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, pt.IteratedLogistic(iterations=2, sweeps=2, tol=1e-12))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        crf.fit(noisy())
    assert [w.category for w in caught] == [pt.ConvergenceWarning]


@pytest.mark.parametrize("name", ["linear", "boosting", "mlp"])
def test_a_resumed_fit_is_the_same_fit(name, tmp_path):
    examples = noisy()
    make = POTENTIALS[name]
    straight = pt.CRF({"node": make(), "edge": make()}, pt.IteratedLogistic(**SMALL)).fit(examples)
    path = tmp_path / "state"
    half = pt.IteratedLogistic(**{**SMALL, "iterations": 2})
    pt.CRF({"node": make(), "edge": make()}, half).fit(examples, checkpoint=path)
    rest = pt.CRF({"node": make(), "edge": make()}, pt.IteratedLogistic(**SMALL)).fit(examples, checkpoint=path)
    assert [r["objective"] for r in rest.history_] == [r["objective"] for r in straight.history_]
    with pytest.raises(pt.PotentiaError, match="other options or data"):
        pt.CRF({"node": make(), "edge": make()}, half).fit(noisy(2), checkpoint=path)


def test_a_direct_fit_can_be_resumed_and_knows_that_it_has_settled(tmp_path):
    potentials, path = {"node": Linear(0.1), "edge": Linear(0.1)}, tmp_path / "state"

    def fit(iterations):
        learner = pt.IteratedLogistic(0.5, iterations, sweeps=20, tol=1e-4, solver="direct", track_error=False)
        return pt.CRF(potentials, learner).fit(noisy(), checkpoint=path).history_

    with pytest.warns(pt.ConvergenceWarning):
        short = fit(5)
    whole = fit(200)
    assert [row["objective"] for row in whole[:5]] == [row["objective"] for row in short]
    assert 5 < len(whole) < 200
    assert whole[-1]["objective"] < short[-1]["objective"]
    assert fit(200) == whole


def test_a_settled_fit_is_not_continued(tmp_path):
    learner = pt.IteratedLogistic(iterations=50, sweeps=20, tol=1e-2, track_error=False)
    crf = pt.CRF({"node": Constant(), "edge": Constant()}, learner)
    lengths = {len(crf.fit(noisy(), checkpoint=tmp_path / "state").history_) for _ in range(3)}
    assert len(lengths) == 1


@pytest.mark.filterwarnings("ignore:no example has features")
@pytest.mark.parametrize("name", ["soft", "triples", "mixed", "lightgbm"])
def test_resuming_changes_nothing_whatever_the_fit(name, tmp_path):
    options = {"soft": {"hidden": "soft"}, "mixed": {"solver": "mixed"}}.get(name, {})
    examples = triples() if name == "triples" else noisy()
    make = LightGBM if name == "lightgbm" else Linear
    potentials = {kind: make() if kind == "node" else Linear() for kind in examples[0].graph.kinds}
    if name == "soft":
        hidden = np.random.default_rng(0).random(90) < 0.3
        examples = [Example(e.graph, e.features, np.where(hidden, -1, e.labels)) for e in examples]
    straight = pt.CRF(potentials, pt.IteratedLogistic(**{**SMALL, **options})).fit(examples)
    for iterations in (2, 4):
        learner = pt.IteratedLogistic(**{**SMALL, "iterations": iterations, **options})
        resumed = pt.CRF(potentials, learner).fit(examples, checkpoint=tmp_path / "state")
    assert [r["objective"] for r in resumed.history_] == [r["objective"] for r in straight.history_]


@pytest.mark.parametrize("change", ["class", "ridge", "epsilon", "features", "labels"])
def test_a_checkpoint_of_another_fit_is_refused(change, tmp_path):
    def fit(potential, epsilon, examples):
        learner = pt.IteratedLogistic(epsilon, **{**SMALL, "iterations": 1})
        return pt.CRF({"node": potential, "edge": Linear()}, learner).fit(examples, checkpoint=tmp_path / "state")

    fit(Linear(), 0.1, noisy())
    examples = noisy(seed=1 if change == "features" else 0)
    if change == "labels":
        first = examples[0]
        examples[0] = Example(first.graph, first.features, 1 - first.labels)
    potential = {"class": MLP(), "ridge": Linear(100.0)}.get(change, Linear())
    with pytest.raises(pt.PotentiaError, match="other options or data"):
        fit(potential, 5.0 if change == "epsilon" else 0.1, examples)


def test_a_callback_that_stops_is_no_failure_to_converge():
    learner = pt.IteratedLogistic(iterations=9, sweeps=2, tol=1e-12, track_error=False)
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, learner)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(crf.fit(noisy(), callback=lambda history: len(history) == 2).history_) == 2


def test_kinds_without_regions_and_examples_without_labels_do_no_harm():
    single = Example(pt.Graph.chain(1, n_states=2), {"node": [[1.0]]}, [1])
    alone = pt.CRF({"node": Linear()}, pt.IteratedLogistic(**SMALL)).fit([single])
    assert alone.predict([single])[0].tolist() == [1]
    nodes = pt.Graph([2], {"node": [[0]]})
    potentials = {"node": Linear(), "edge": Linear()}
    crf = pt.CRF(potentials, pt.IteratedLogistic(**SMALL)).fit(noisy())
    unknown = [Example(e.graph, e.features, np.full(90, -1)) for e in noisy(1, seed=5)]
    with_unknown = pt.CRF(potentials, pt.IteratedLogistic(**SMALL)).fit([*unknown, *noisy()])
    assert with_unknown.history_[-1]["objective"] == crf.history_[-1]["objective"]
    for graph in (nodes, pt.Graph.chain(1, n_states=2)):
        assert crf.predict([Example(graph, {"node": [[1.0, 1.0]]})])[0].shape == (1,)
    with pytest.raises(pt.PotentiaError, match="no variable of these examples"):
        crf.fit(unknown)
    with pytest.raises(pt.PotentiaError, match="no example has a region of kind 'edge' to train"):
        crf.fit([single])


def test_a_delta_of_ones_own_is_checked_and_follows_what_is_kept():
    def hamming(example):
        return {"node": 1.0 - np.eye(2)[example.labels]}

    weights = np.ones(90)
    weights[:5] = 0.0
    examples = [Example(e.graph, e.features, e.labels, weights) for e in noisy()]
    own, named = (
        pt.CRF({"node": Linear(), "edge": Linear()}, pt.IteratedLogistic(**SMALL, delta=delta)).fit(examples)
        for delta in (hamming, "hamming")
    )
    assert own.history_[-1]["objective"] == pytest.approx(named.history_[-1]["objective"], rel=1e-12)
    wrong = {
        "shape": lambda e: {"node": hamming(e)["node"].T},
        "names kind 'nodes'": lambda e: {"nodes": hamming(e)["node"]},
        "not a NoneType": lambda e: None,
        "not finite": lambda e: {"node": np.full((90, 2), np.nan)},
    }
    for words, delta in wrong.items():
        with pytest.raises(pt.PotentiaError, match=words):
            pt.CRF({"node": Linear(), "edge": Linear()}, pt.IteratedLogistic(**SMALL, delta=delta)).fit(noisy(1))


def test_warm_start_continues_from_the_fitted_potentials():
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, pt.IteratedLogistic(**SMALL)).fit(noisy())
    first = crf.history_[-1]["objective"]
    again = crf.fit(noisy(), warm_start=True).history_
    assert again[-1]["objective"] < first


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": {"node": 0.1}}, "epsilon must name"),
        ({"solver": "newton"}, "solver"),
        ({"hidden": "maybe"}, "hidden"),
        ({"delta": 3}, "delta"),
        ({"sweeps": -1}, "sweeps"),
        ({"class_weight": [1.0]}, "class_weight"),
        ({"class_weight": "balanced"}, "class_weight"),
        ({"class_weight": {0: 1.0, 1: 2.0}}, "class_weight"),
        ({"track_error": 3}, "track_error"),
        ({"hidden": "soft", "class_weight": [0.0, 1.0]}, "weights must be positive"),
        ({"schedule": "spiral"}, "schedule"),
    ],
)
def test_bad_options_get_one_sentence(options, words):
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, pt.IteratedLogistic(**{**SMALL, **options}))
    with pytest.raises(pt.PotentiaError, match=words) as caught:
        crf.fit(noisy(1))
    assert "\n" not in str(caught.value)


def test_direct_refuses_trees():
    crf = pt.CRF({"node": Boosting(), "edge": Linear()}, pt.IteratedLogistic(solver="direct"))
    with pytest.raises(pt.PotentiaError, match="'node'"):
        crf.fit(noisy(1))


@pytest.mark.parametrize("kinds", [("a", "b"), ("b", "a")])
def test_all_single_variable_kinds_are_fixed_at_zero_messages(kinds):
    graph = pt.Graph([2, 3], {"a": [[0]], "b": [[1]], "e": [[0, 1]]})
    rng = np.random.default_rng(0)
    examples = [
        Example(graph, {k: rng.normal(size=(1, 2)) for k in "abe"}, [rng.integers(2), rng.integers(3)])
        for _ in range(30)
    ]

    def tables(solver):
        learner = pt.IteratedLogistic(iterations=3, solver=solver, track_error=False)
        crf = pt.CRF({k: Linear() for k in (*kinds, "e")}, learner).fit(examples)
        return {k: crf.potentials_[k].table_ for k in "abe"}

    fixed, piecewise = tables("univariate_fixed"), tables("piecewise")
    for kind in "ab":
        np.testing.assert_array_equal(fixed[kind], piecewise[kind])
    assert np.abs(fixed["e"] - piecewise["e"]).max() > 1e-3


def test_soft_targets_need_messages_and_other_options_must_make_sense():
    def refused(words, **options):
        with pytest.raises(pt.PotentiaError, match=words):
            pt.CRF({"node": Linear(), "edge": Linear()}, pt.IteratedLogistic(**options)).fit(noisy(1))

    refused("hidden='soft' needs solver='alternating'", hidden="soft", solver="piecewise")
    refused("hidden='soft' needs solver='alternating'", hidden="soft", solver="direct")
    refused("epsilon must be a number", epsilon="a")
    refused("epsilon must be a number", epsilon=None)
    refused("tol must be a number", tol="x")
    refused("tol must be a number", tol=None)
    refused("message_tol must be a number", message_tol="")
    refused("iterations must be a whole number", iterations=2.5)


def test_a_convex_oracle_without_parameters_is_fitted_by_mixed(monkeypatch):
    class Table(pt.extend.Potential):
        """Scores that do not look at x, found by counting: an oracle, and no more than that."""

        convex = True

        def _begin(self, problem):
            self.table_ = np.zeros(problem.n_outputs)

        def _fit(self, problem):
            batch = problem.draw(slice(None))
            inner = Constant().fit(None, batch.labels, batch.bias, n_outputs=len(self.table_))
            self.table_ = inner.scores(np.zeros((1, 0)))[0]

        def _scores(self, x):
            return np.tile(self.table_, (len(x), 1))

    learner = pt.IteratedLogistic(**{**SMALL, "solver": "mixed"})
    crf = pt.CRF({"node": Linear(), "edge": Table()}, learner).fit(noisy())
    assert crf.potentials_["edge"].n_fits_ == SMALL["iterations"]
    assert np.ptp(crf.potentials_["edge"].table_) > 0.1


class Drifting(Linear):
    """A function that leaves the numbers after its first fit."""

    def _scores(self, x):
        return super()._scores(x) + (np.nan if self.n_fits_ else 0.0)


@pytest.mark.parametrize(
    "learner", [pt.IteratedLogistic(**SMALL), pt.MarginalRisk(iterations=3), pt.MaxMargin(iterations=2)]
)
def test_scores_are_checked_where_others_make_them_only(learner, monkeypatch):
    looked = []
    check = Scores._refuse_bad
    monkeypatch.setattr(Scores, "_refuse_bad", lambda self, kind: looked.append(kind) or check(self, kind))
    pt.CRF({"node": Linear(), "edge": Linear()}, learner).fit(noisy(1, (6, 6)))
    assert not looked or learner.track_error is None  # predictions look at scores
    if not isinstance(learner, pt.MaxMargin):
        with pytest.raises(pt.PotentiaError, match="holds NaN"):
            pt.CRF({"node": Drifting(), "edge": Linear()}, learner).fit(noisy(1, (6, 6)))


def test_a_delta_where_an_example_lacks_a_kind_and_a_variable_counts_nothing():
    whole = pt.Graph([2, 2], {"node": [[0], [1]], "edge": [[0, 1]]})
    bare = pt.Graph([2, 2], {"node": [[0], [1]]})
    features = {"node": np.eye(2)}
    examples = [Example(whole, features, [0, 1]), Example(bare, features, [0, 1], weights=[1.0, 0.0])]

    def delta(example):
        return {"edge": np.ones((1, 2, 2))} if "edge" in example.graph.scopes else {}

    learner = pt.IteratedLogistic(delta=delta, **SMALL)
    assert len(pt.CRF({"node": Linear(), "edge": Constant()}, learner).fit(examples).history_) == 4


def test_single_trees_on_the_gradient_lower_the_dual_bound():
    """Gradient tree boosting of a CRF with inexact inference, which ILR-nips leaves to future work.

    At fixed messages the biased logistic loss has the gradient of the dual bound; one tree per iteration, its leaves
    the mean gradients, is a step of functional gradient descent on the bound.
    """
    train = noisy(4)
    boosting = {"rounds": 1, "more_rounds": 1, "refit": False}
    learner = pt.IteratedLogistic(0.5, 30, solver="alternating", sweeps=5, tol=0.0, track_error=False)
    crf = pt.CRF({"node": Boosting(**boosting), "edge": Boosting(**boosting)}, learner).fit(train)
    objective = [h["objective"] for h in crf.history_]
    assert len(objective) == 30
    assert np.all(np.diff(objective) <= 1e-9 * objective[0])
    assert objective[-1] < 0.8 * objective[0]
    assert crf.potentials_["node"].n_trees > 20


def test_a_checkpoint_with_a_damaged_function_gets_one_sentence(tmp_path, monkeypatch):
    from sklearn.preprocessing import PolynomialFeatures

    make = lambda: {"node": pt.Linear(transformer=PolynomialFeatures(2)), "edge": pt.Constant()}  # noqa: E731
    pt.CRF(make(), pt.IteratedLogistic(iterations=2)).fit(noisy(), checkpoint=tmp_path / "state")
    load = Checkpoint.load

    def damaged(self):
        saved = load(self)
        del saved["potentials"]["node"][0]["fitted"]["transformer_"]["transformer"]["class"]
        return saved

    monkeypatch.setattr(Checkpoint, "load", damaged)
    with pytest.raises(pt.PotentiaError, match="state: the checkpoint is damaged"):
        pt.CRF(make(), pt.IteratedLogistic(iterations=3)).fit(noisy(), checkpoint=tmp_path / "state")
