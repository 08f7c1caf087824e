"""Structural SVMs over labels: predictions against all labellings, scikit-learn's conventions, published figures."""

import itertools

import numpy as np
import pytest
from scipy import sparse
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_estimator

import potentia as pt
from data_sets import DATA, needs
from potentia.metrics import exact_match, f_micro, hamming_loss
from potentia_studies.baselines import ChainSSVM, CompleteSSVM

BOTH = pytest.mark.parametrize("kind", [ChainSSVM, CompleteSSVM])


def rows(n=40, d=3, K=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    Y = (X @ rng.normal(size=(d, K)) + rng.normal(size=(n, 1)) > 0).astype(int)
    Y[0], Y[1] = 0, 1
    return X, Y


def pairs(kind, K):
    return [(i, i + 1) for i in range(K - 1)] if kind is ChainSSVM else list(itertools.combinations(range(K), 2))


def score(model, kind, x, y):
    """F(y) from the tables: [x, 1] in a label's own columns, one column per pair."""
    node, edge = (model.crf_.potentials_[k].table_ for k in ("node", "edge"))
    row, d = np.append(x, 1.0), len(x) + 1
    own = sum(row @ node[i * d : (i + 1) * d, y[i]] for i in range(len(y)))
    return own + sum(edge[p, 2 * y[i] + y[j]] for p, (i, j) in enumerate(pairs(kind, len(y))))


@BOTH
def test_predictions_are_the_best_of_all_labellings(kind):
    X, Y = rows()
    model = kind(alpha=0.02).fit(X, Y)
    assert model.crf_.history_[-1]["gap"] <= 1e-3 * model.crf_.history_[-1]["objective"]
    everything = [np.array(y) for y in itertools.product((0, 1), repeat=4)]
    gains = model.decision_function(X)
    for x, y, gain in zip(X, model.predict(X), gains, strict=True):
        value = score(model, kind, x, y)
        assert value == pytest.approx(max(score(model, kind, x, other) for other in everything))
        for i in range(4):
            other = y.copy()
            other[i] = 1 - y[i]
            assert abs(gain[i]) == pytest.approx(value - score(model, kind, x, other))
    np.testing.assert_array_equal(gains > 0, model.predict(X) == 1)


def test_a_chain_sees_neighbours_only_and_a_complete_graph_everything():
    X, Y = rows(K=4)
    chain, complete = ChainSSVM(alpha=0.02).fit(X, Y), CompleteSSVM(alpha=0.02).fit(X, Y)
    assert chain.crf_.potentials_["edge"].table_.shape == (3, 4)
    assert complete.crf_.potentials_["edge"].table_.shape == (6, 4)
    assert complete.crf_.history_[-1]["objective"] <= chain.crf_.history_[-1]["objective"] * 1.002


@BOTH
def test_one_label_is_a_support_vector_machine(kind):
    X, Y = rows(n=60, K=1)
    model = kind(alpha=0.04, tol=1e-7, passes=5000).fit(X, Y[:, 0])
    # two states with weights w and -w: a margin of 2 w . x, so half the weight of the penalty
    plain = LinearSVC(loss="hinge", C=1 / (0.02 * 60), tol=1e-8, max_iter=1_000_000).fit(X, Y[:, 0])
    np.testing.assert_allclose(model.decision_function(X), plain.decision_function(X), atol=5e-3)


@BOTH
def test_solvers_and_kinds_of_rows_agree(kind):
    X, Y = rows(n=30)
    X[np.abs(X) < 0.4] = 0
    a = kind(alpha=0.05, tol=1e-6, passes=2000).fit(X, Y)
    b = kind(alpha=0.05, tol=1e-6, passes=2000, solver="one_slack").fit(sparse.csr_array(X), Y)
    assert a.crf_.history_[-1]["objective"] == pytest.approx(b.crf_.history_[-1]["objective"], rel=1e-5)
    np.testing.assert_allclose(a.decision_function(X), b.decision_function(X), atol=1e-2)


def test_a_relaxed_oracle_trains_and_predicts():
    X, Y = rows(n=20)
    model = CompleteSSVM(alpha=0.05, inference=pt.LinearProgram(), solver="one_slack", tol=1e-2).fit(X, Y)
    exact = CompleteSSVM(alpha=0.05, tol=1e-2).fit(X, Y)
    assert np.mean(model.predict(X) == exact.predict(X)) > 0.9


@BOTH
def test_names_constants_and_values_are_kept(kind):
    X, Y = rows(K=3)
    words = np.where(Y == 1, "yes", "no").astype(object)
    words[:, 1] = "never"
    model = kind(alpha=0.05).fit(X, words)
    assert set(np.unique(model.predict(X)[:, 0])) <= {"yes", "no"}
    assert np.all(model.predict(X)[:, 1] == "never")


def test_bad_options_get_one_sentence():
    with pytest.raises(pt.PotentiaError, match="alpha must be a finite number above 0"):
        ChainSSVM(alpha=0.0).fit(*rows())
    with pytest.raises(pt.PotentiaError, match="solver must be one of"):
        CompleteSSVM(solver="newton").fit(*rows())


@BOTH
@pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")
def test_scikit_learns_checks_pass(kind):
    for outcome in check_estimator(kind(passes=10), on_fail=None, on_skip=None):
        assert outcome["status"] != "failed", f"{outcome['check_name']}: {outcome['exception']}"


@needs("multilabel")
def test_scene_reaches_what_another_library_does():
    z = np.load(DATA / "multilabel" / "scene.npz")
    model = CompleteSSVM(alpha=10 / len(z["X_train"])).fit(z["X_train"], z["Y_train"])
    assert model.crf_.history_[-1]["gap"] <= 1e-3 * model.crf_.history_[-1]["objective"]
    truth, found = z["Y_test"], model.predict(z["X_test"])
    assert exact_match(truth, found) >= 0.625
    assert hamming_loss(truth, found) <= 0.097
    assert f_micro(truth, found) >= 0.716
