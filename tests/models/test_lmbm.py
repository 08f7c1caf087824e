"""Large-margin Boltzmann machines: the learning problem, the ways to decode, and scikit-learn's conventions."""

import itertools

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linprog, minimize
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import check_estimator

import potentia as pt
from data_sets import DATA, needs
from potentia.base.types import ConvergenceWarning, PotentiaError
from potentia.models.multilabel import machine as machines
from potentia.models.multilabel.constraints import make_rules, read_constraints
from potentia.models.multilabel.lmbm import LMBM
from potentia.models.multilabel.machine import Machine, Relaxation, as_cliques, clique_sets, find_labelling
from potentia_studies import bounds


def rows(n=30, d=3, K=3, seed=0):
    """Features and labels that depend on them and on each other."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    Y = (X @ rng.normal(size=(d, K)) + 0.7 * rng.normal(size=(n, 1)) + 0.5 * rng.normal(size=(n, K)) > 0).astype(int)
    Y[0], Y[1] = 0, 1
    return X, Y


def margins(sets, s, v, y):
    """z of one labelling, by the definition."""
    z = y * s
    for c, weight in zip(sets, v, strict=True):
        for i in c:
            z[i] += weight * np.prod(y[list(c)])
    return z


def loss(sets, s, v, y):
    return float(np.maximum(0, 1 - margins(sets, s, v, y)).sum())


def labellings(K):
    return [np.array(y, dtype=float) for y in itertools.product((-1, 1), repeat=K)]


def rules_of(limits, K):
    names = [str(k) for k in range(K)]
    return make_rules(read_constraints(limits, names), np.arange(K))


def random_machine(K, order, seed, scale=1.0, limits=()):
    rng = np.random.default_rng(seed)
    sets = clique_sets(order, K)
    weight = scale * rng.normal(size=len(sets))
    machine = Machine(np.zeros((K, 0)), np.zeros(K), weight, as_cliques(sets, K), 0.0, 0.0, rules_of(limits, K))
    return machine, sets, rng.normal(size=(20, K))


def program(X, Y, sets, alpha, eta):
    """The least objective, in units of the mean loss, by SciPy's SLSQP over weights and slacks."""
    y, (n, d), K, M = 2.0 * Y - 1, X.shape, Y.shape[1], len(sets)
    features = np.zeros((n, K, K * (d + 1) + M))
    for i in range(K):
        features[:, i, i * (d + 1) : (i + 1) * (d + 1)] = y[:, [i]] * np.hstack([X, np.ones((n, 1))])
        for m, c in enumerate(sets):
            if i in c:
                features[:, i, K * (d + 1) + m] = y[:, list(c)].prod(axis=1)
    flat = features.reshape(n * K, -1)
    size = flat.shape[1]
    scale = np.where(np.arange(size) < K * (d + 1), 1.0, eta)
    matrix = np.hstack([flat, np.eye(n * K)])
    found = minimize(
        lambda v: alpha / 2 * scale @ v[:size] ** 2 + v[size:].sum() / n,
        np.concatenate([np.zeros(size), np.ones(n * K)]),
        jac=lambda v: np.concatenate([alpha * scale * v[:size], np.full(n * K, 1 / n)]),
        method="SLSQP",
        bounds=[(None, None)] * size + [(0, None)] * (n * K),
        constraints={"type": "ineq", "fun": lambda v: matrix @ v - 1, "jac": lambda v: matrix},
        options={"ftol": 1e-11, "maxiter": 500},
    )
    assert found.success
    return found.fun


# -- learning --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "eta0"), [(1, 0.0), (2, 0.0), (2, 4.0), (3, 1.0)])
def test_the_objective_is_that_of_a_generic_solver(order, eta0):
    X, Y = rows(n=14, d=2)
    model = LMBM(alpha=0.05, cliques=order, eta0=eta0).fit(X, Y)
    assert model.gap_ <= 1e-6 * model.objective_
    expected = program(X, Y, clique_sets(order, 3), 0.05, 1 + eta0)
    assert model.objective_ == pytest.approx(expected, rel=1e-4)


def test_the_objective_is_what_it_says():
    X, Y = rows(K=4)
    model = LMBM(alpha=0.02, cliques=3, eta0=2.0).fit(X, Y)
    square = (model.coef_**2).sum() + (model.intercept_**2).sum() + 3.0 * (model.clique_weights_**2).sum()
    scores, signs = X @ model.coef_.T + model.intercept_, 2.0 * Y - 1
    losses = [loss(model.cliques_, s, model.clique_weights_, y) for s, y in zip(scores, signs, strict=True)]
    np.testing.assert_allclose(model.labelling_loss(X, Y), losses)
    assert model.objective_ == pytest.approx(0.02 / 2 * square + np.mean(losses))


@pytest.mark.parametrize("flat", [True, False])
def test_one_label_is_a_support_vector_machine(flat):
    X, Y = rows(n=60, K=1)
    y = Y[:, 0] if flat else Y
    for alpha in (1.0, 0.1, 0.01):
        model = LMBM(alpha=alpha).fit(X, y)
        plain = LinearSVC(loss="hinge", C=1 / (alpha * 60), tol=1e-8, max_iter=1_000_000).fit(X, Y[:, 0])
        np.testing.assert_allclose(model.coef_, plain.coef_, atol=1e-3)
        np.testing.assert_allclose(model.intercept_, plain.intercept_, atol=1e-3)
        np.testing.assert_allclose(model.decision_function(X).ravel(), plain.decision_function(X), atol=1e-3)


def test_a_kernel_takes_the_place_of_rows():
    X, Y = rows()
    plain, kernel = LMBM(alpha=0.05).fit(X, Y), LMBM(alpha=0.05, kernel="linear").fit(X, Y)
    assert kernel.objective_ == pytest.approx(plain.objective_, rel=1e-5)
    np.testing.assert_allclose(kernel.dual_coef_ @ X, plain.coef_, atol=1e-3)
    np.testing.assert_array_equal(plain.predict(X), kernel.predict(X))
    # the constant is regularised, which a kernel with 1 added and no free intercept also is
    one = LMBM(alpha=0.05, kernel="rbf", gamma=0.5).fit(X, Y[:, 0])
    other = SVC(C=1 / (0.05 * 30), kernel=lambda a, b: 1 + np.exp(-0.5 * ((a[:, None] - b) ** 2).sum(-1)))
    agree = one.predict(X) == other.fit(X, Y[:, 0]).predict(X)
    assert agree.mean() > 0.9


def test_sparse_rows_are_dense_ones():
    X, Y = rows()
    X[np.abs(X) < 0.5] = 0
    dense, thin = LMBM(alpha=0.02).fit(X, Y), LMBM(alpha=0.02).fit(sparse.csr_array(X), Y)
    np.testing.assert_allclose(dense.coef_, thin.coef_, atol=1e-8)
    np.testing.assert_array_equal(dense.predict(X), thin.predict(sparse.csr_array(X)))


def test_couplings_are_held_down_by_eta0():
    X, Y = rows()
    free, held = (LMBM(alpha=0.02, eta0=eta0).fit(X, Y) for eta0 in (0.0, 100.0))
    assert np.abs(held.clique_weights_).max() < 0.2 * np.abs(free.clique_weights_).max()
    given = LMBM(alpha=0.02, eta0=0.0, cliques=[(0, 1), (2, 1), (0, 2), (1, 0)]).fit(X, Y)
    assert given.cliques_ == [(0, 1), (0, 2), (1, 2)]
    np.testing.assert_allclose(given.clique_weights_, free.clique_weights_, atol=1e-3)


@pytest.mark.parametrize("K", [1, 3])
def test_rows_far_from_centred_are_no_obstacle(K):
    rng = np.random.default_rng(0)
    X, Y = rng.normal(loc=100, size=(60, 2)), rng.integers(0, 2, (60, K))
    found = [LMBM(alpha=0.01, kernel=kernel).fit(X, Y) for kernel in (None, "linear")]
    for model in found:
        assert model.gap_ <= 1e-6 * model.objective_
    assert found[0].objective_ == pytest.approx(found[1].objective_, rel=1e-5)


def test_a_limit_on_passes_warns():
    X, Y = rows(n=400, d=400)
    with pytest.warns(ConvergenceWarning, match="gap was still"):
        LMBM(alpha=1e-6, passes=1).fit(X, Y)


# -- decoding --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("K", "order"), [(1, 2), (3, 2), (4, 3), (6, 2), (5, 5)])
def test_exact_decoding_is_brute_force(K, order):
    machine, sets, scores = random_machine(K, order, seed=K)
    found = find_labelling(machine, scores, "exact")
    for s, y, value in zip(scores, found.labels, found.loss, strict=True):
        assert value == pytest.approx(min(loss(sets, s, machine.weight, other) for other in labellings(K)))
        assert loss(sets, s, machine.weight, y) == pytest.approx(value)


def test_ties_go_to_the_larger_score():
    machine, sets, _ = random_machine(2, 2, seed=0)
    machine = machine._replace(weight=np.array([3.0]))
    # both labellings of equal signs have no loss; the scores prefer the positive one
    found = find_labelling(machine, np.array([[0.1, 0.1], [-0.1, -0.1]]), "exact")
    np.testing.assert_array_equal(found.labels, [[1, 1], [-1, -1]])
    assert loss(sets, np.array([0.1, 0.1]), machine.weight, np.array([-1.0, -1.0])) == 0


@pytest.mark.parametrize(("K", "order"), [(3, 2), (5, 2), (4, 3)])
def test_the_relaxation_bounds_and_certifies(K, order):
    certified = 0
    for seed in range(4):
        machine, _, scores = random_machine(K, order, seed, scale=0.4)
        exact, relaxed = find_labelling(machine, scores, "exact"), find_labelling(machine, scores, "lp")
        assert np.all(relaxed.bound <= exact.loss + 1e-7)
        assert np.all(relaxed.loss >= exact.loss - 1e-9)
        np.testing.assert_allclose(relaxed.loss, machine.losses(scores, relaxed.labels), atol=1e-9)
        certain = relaxed.loss <= relaxed.bound + 1e-6
        certified += certain.sum()
        np.testing.assert_allclose(relaxed.loss[certain], exact.loss[certain], atol=1e-6)
    assert certified > 5


def test_the_relaxation_is_the_program_over_distributions_where_a_clique_holds_all():
    rng = np.random.default_rng(3)
    sets, K = [(0, 1), (1, 2), (0, 1, 2)], 3
    v, scores = rng.normal(size=3), rng.normal(size=(5, 3))
    _, values = Relaxation(sets, v, K, rules_of([], K)).solve(scores, np.zeros(scores.shape))
    for s, value in zip(scores, values, strict=True):
        z = np.array([margins(sets, s, v, y) for y in labellings(K)])
        # p (8) and xi (3): xi_i >= 1 - sum_y p(y) z_i(y)
        matrix = np.hstack([-z.T, -np.eye(K)])
        found = linprog(
            np.repeat([0.0, 1.0], [8, 3]), A_ub=matrix, b_ub=-np.ones(K),
            A_eq=np.repeat([[1.0, 0.0]], 1, axis=0).repeat([8, 3], axis=1), b_eq=[1.0],
        )  # fmt: skip
        assert value == pytest.approx(found.fun, abs=1e-7)


@pytest.mark.parametrize(("order", "scale"), [(2, 1.5), (2, 0.4), (3, 0.3)])
def test_branch_and_bound_proves_what_relaxation_leaves_open(order, scale):
    machine, _, scores = random_machine(7, order, 0, scale)
    exact, relaxed = (find_labelling(machine, scores, decode) for decode in ("exact", "lp"))
    assert not np.all(machines.is_optimal(relaxed.loss, relaxed.bound))
    found = find_labelling(machine, scores, "branch")
    np.testing.assert_allclose(found.loss, exact.loss, atol=1e-6)
    np.testing.assert_allclose(found.bound, exact.loss, atol=1e-5)
    np.testing.assert_allclose(machine.losses(scores, found.labels), found.loss)


def test_branch_and_bound_that_gives_up_still_has_a_bound(monkeypatch):
    monkeypatch.setattr(machines, "_PROGRAMS", 4)
    machine, _, scores = random_machine(7, 2, 0, scale=0.4)
    exact, found = (find_labelling(machine, scores, decode) for decode in ("exact", "branch"))
    assert np.all(found.bound <= exact.loss + 1e-6)
    assert np.all(found.loss >= exact.loss - 1e-6)
    assert not np.all(machines.is_optimal(found.loss, found.bound))


def test_labellings_that_are_not_predicted_lose_the_threshold():
    X, Y = rows(60, K=4, seed=3)
    model = LMBM(alpha=0.05, cliques=3, eta0=200.0).fit(X, Y)
    facts = bounds.error_bound(model, X, Y)
    assert 0 < facts.threshold < 1
    assert facts.error <= facts.bound == facts.mean_loss / facts.threshold
    best = model.search(X, "exact").labels
    for y in labellings(4):
        other = np.tile(y > 0, (len(X), 1)).astype(int)
        differs = np.any(other != best, axis=1)
        assert np.all(model.labelling_loss(X, other)[differs] >= facts.threshold - 1e-9)
    coupled = LMBM(alpha=1e-3, eta0=0.0).fit(X, Y)
    assert np.abs(coupled.clique_weights_).sum() > 1
    strong = bounds.error_bound(coupled, X, Y)
    assert strong.threshold == 0
    assert strong.bound == np.inf


@pytest.mark.parametrize("decode", ["exact", "lp", "branch"])
def test_scores_agree_with_predictions(decode):
    X, Y = rows(K=4)
    model = LMBM(alpha=0.02, decode=decode).fit(X, Y)
    np.testing.assert_array_equal(model.decision_function(X) > 0, model.predict(X) == 1)
    found = model.search(X)
    np.testing.assert_array_equal(found.labels, model.predict(X))
    np.testing.assert_allclose(found.loss, model.labelling_loss(X, found.labels), atol=1e-9)
    if decode == "exact":
        assert found.optimal.all()
    assert np.all(found.bound <= model.search(X, "exact").loss + 1e-7)


# -- the estimator -----------------------------------------------------------------------------------------------


def test_scikit_learns_checks_pass():
    for outcome in check_estimator(LMBM(), on_fail=None, on_skip=None):
        assert outcome["status"] != "failed", f"{outcome['check_name']}: {outcome['exception']}"


def test_saving_gives_identical_predictions(tmp_path):
    X, Y = rows(K=4)
    Y = np.insert(Y, 1, 0, axis=1)
    for kernel in (None, "rbf"):
        model = LMBM(alpha=0.02, cliques=3, kernel=kernel).fit(X, Y)
        model.save(tmp_path / "model")
        loaded = pt.load(tmp_path / "model")
        np.testing.assert_array_equal(model.predict(X), loaded.predict(X))
        np.testing.assert_allclose(model.decision_function(X), loaded.decision_function(X), rtol=1e-12)
        assert loaded.cliques_ == model.cliques_
        assert loaded.gap_ == model.gap_


def test_constant_labels_are_no_part_of_the_model():
    X, Y = rows(K=3)
    wide = np.insert(Y, 1, 1, axis=1)
    model, small = LMBM(alpha=0.02).fit(X, wide), LMBM(alpha=0.02).fit(X, Y)
    np.testing.assert_array_equal(model.predict(X), np.insert(small.predict(X), 1, 1, axis=1))
    assert model.cliques_ == [(0, 2), (0, 3), (2, 3)]
    none = LMBM().fit(X, np.ones_like(Y))
    np.testing.assert_array_equal(none.predict(X), np.ones_like(Y))
    assert none.cliques_ == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0}, "alpha must be a finite number above 0"),
        ({"eta0": -1}, "eta0 must be a finite number, at least 0"),
        ({"decode": "greedy"}, "decode must be one of 'auto', 'exact', 'lp', 'branch'"),
        ({"cliques": 0}, "cliques must be at least 1"),
        ({"cliques": "all"}, "cliques must be a whole number or a list"),
        ({"cliques": [(0, 0)]}, "two or more different labels"),
        ({"cliques": [(0, 7)]}, "names a label outside 0..2"),
        ({"kernel": "round"}, "kernel must be one of .* not 'round'"),
    ],
)
def test_bad_options_get_one_sentence(options, message):
    with pytest.raises(PotentiaError, match=message):
        LMBM(**options).fit(*rows())


def test_too_many_labels_for_exact_decoding_are_refused():
    X, Y = rows(n=40, K=21, seed=2)
    model = LMBM(alpha=0.1, cliques=[(0, 1)], decode="exact").fit(X, Y)
    with pytest.raises(PotentiaError, match="at most 20 labels, not 21"):
        model.predict(X)
    assert model.search(X, "lp").optimal.any()
    with pytest.raises(PotentiaError, match="decode must be one of"):
        model.search(X, "best")


@needs("multilabel")
def test_scene():
    z = np.load(DATA / "multilabel" / "scene.npz")
    model = LMBM().fit(z["X_train"], z["Y_train"])
    assert model.gap_ <= 1e-6 * model.objective_
    assert np.all(model.predict(z["X_test"]) == z["Y_test"], axis=1).mean() > 0.64


def test_a_fit_killed_after_its_last_pass_resumes_with_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr("potentia.models.multilabel.base._EVERY", -1.0)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    Y = (X @ rng.normal(size=(4, 5)) + rng.normal(size=(60, 5)) > 0).astype(int)
    model = pt.LMBM(1e-4, passes=3, tol=1e-14)
    found = []
    for _ in range(2):
        with pytest.warns(pt.ConvergenceWarning, match="passes"):
            model.fit(X, Y, checkpoint=tmp_path / "state")
        found.append(model.decision_function(X))
    np.testing.assert_array_equal(*found)


LIMITS = [
    pt.factors.ExactlyOne("0", "1", "2"),
    pt.factors.Implies("3", "4"),
    pt.factors.AtMostOne("4", "5"),
    pt.factors.Or("0", "5"),
]


def fair(y):
    return all(f.allows([int(y[int(name)] > 0) for name in f.names]) for f in LIMITS)


@pytest.mark.parametrize("clamped", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_constrained_labellings_are_those_of_enumeration(seed, clamped):
    machine, sets, scores = random_machine(6, 2, seed, 0.5, LIMITS)
    allowed = [y for y in labellings(6) if fair(y)]
    held, rng = np.zeros((20, 6)), np.random.default_rng(seed)
    if clamped:
        held = np.array(allowed)[rng.integers(len(allowed), size=20)] * (rng.random((20, 6)) < 0.3)
    exact, branch = (find_labelling(machine, scores, decode, held) for decode in ("exact", "branch"))
    relaxed = find_labelling(machine, scores, "lp", held)
    for row, s in enumerate(scores):
        agree = [y for y in allowed if np.all(y * held[row] >= 0)]
        best = min(np.maximum(0, 1 - margins(sets, s, machine.weight, y)).sum() for y in agree)
        assert exact.loss[row] == pytest.approx(best)
        assert branch.loss[row] == pytest.approx(best)
        assert branch.optimal[row]
        assert relaxed.bound[row] <= best + 1e-6
        for found in (exact, branch, relaxed):
            assert any(np.array_equal(found.labels[row], y) for y in agree)


def test_missing_labels_and_constraints_together():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    Y = (X @ rng.normal(size=(4, 4)) + 0.3 * rng.normal(size=(200, 4)) > 0).astype(float)
    Y[:, 1] = np.maximum(Y[:, 0], Y[:, 1])
    holes = np.where(rng.random(Y.shape) < 0.3, np.nan, Y)
    model = pt.LMBM(1e-2, constraints={"0": "1"}).fit(X[:150], holes[:150])
    found = model.predict(X)
    assert np.all(found[:, 0] <= found[:, 1])
    assert model.score(X[150:], Y[150:]) >= 0.8 * pt.LMBM(1e-2).fit(X[:150], Y[:150]).score(X[150:], Y[150:])


def test_rows_count_by_their_weights():
    rng = np.random.default_rng(0)
    X, w = rng.normal(size=(60, 3)), rng.integers(0, 3, size=60)
    Y = (X @ rng.normal(size=(3, 3)) + rng.normal(size=(60, 3)) > 0).astype(int)
    weighted = pt.LMBM(1e-2, tol=1e-9).fit(X, Y, sample_weight=w)
    rows = np.repeat(np.arange(60), w)
    many = pt.LMBM(1e-2, tol=1e-9).fit(X[rows], Y[rows])
    # C is 1 / (alpha n): n counts rows of weight above zero, and weights have mean 1
    np.testing.assert_allclose(weighted.decision_function(X), many.decision_function(X), atol=1e-3)
