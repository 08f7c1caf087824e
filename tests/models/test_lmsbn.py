"""Large-margin sigmoid belief networks: learning, exact search and what theory says of it."""

import warnings
from itertools import product

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import check_estimator

import potentia as pt
from potentia.kernels.search import NetworkTerms
from potentia.learn.checkpoint import Checkpoint
from potentia.models.multilabel.base import Solved, resuming
from potentia.models.multilabel.constraints import forced, make_rules, read_constraints
from potentia.models.multilabel.hinge import HingeSolver, LabelRows, RemoteRows, SignColumns, forget_rows
from potentia.models.multilabel.independent import IndependentClassifiers
from potentia.models.multilabel.inputs import far_feature
from potentia.models.multilabel.network import DirectedNetwork, LabelDependence, learn_networks, project, splits
from potentia_studies import baselines, bounds


def labelled_rows(n=80, d=6, K=4, seed=0, noise=0.5):
    """Rows with labels that depend on features and on each other."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    Y = np.zeros((n, K), dtype=np.int64)
    for k in range(K):
        others = Y[:, :k] @ rng.normal(size=k)
        Y[:, k] = X @ rng.normal(size=d) + others + noise * rng.normal(size=n) > 0.3
    return X, Y


def random_network(K, seed, whole=False, terms=True, limits=()):
    """A network of random weights in a random order; whole numbers make many ties."""
    rng = np.random.default_rng(seed)
    draw = (lambda *s: rng.integers(-1, 2, size=s).astype(float)) if whole else (lambda *s: rng.normal(size=s))
    coupling = np.tril(draw(K, K), -1)
    sets = [(i, (0, i - 1)) for i in range(2, K)] if terms else []
    counts = np.bincount(np.array([i for i, _ in sets], dtype=np.int64), minlength=K)
    links = NetworkTerms(
        coupling,
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        draw(len(sets)),
        np.arange(0, 2 * len(sets) + 1, 2),
        np.array([j for _, members in sets for j in members], dtype=np.int64),
    )
    order = rng.permutation(K)
    rules = make_rules(read_constraints(limits, [str(k) for k in range(K)]), order)
    network = DirectedNetwork(np.zeros((K, 1)), np.zeros(K), order, links, rules)
    return network, draw(5, K)


def plain_score(network, row, y, i):
    """The score of the label at place i, given the labels y by place before it."""
    links = network.links
    g = row[network.order[i]] + links.coupling[i, :i] @ y[:i]
    for t in range(links.term_ptr[i], links.term_ptr[i + 1]):
        g += links.weight[t] * np.prod(y[links.members[links.member_ptr[t] : links.member_ptr[t + 1]]])
    return g


def plain_losses(network, base, K):
    """Hinge sums of all 2^K labellings (in label order) of each row, by the definition."""
    labellings = np.array(list(product([-1.0, 1.0], repeat=K)))
    found = np.zeros((len(base), len(labellings)))
    for r, row in enumerate(base):
        for c, signs in enumerate(labellings):
            y = signs[network.order]
            found[r, c] = sum(max(0.0, 1.0 - y[i] * plain_score(network, row, y, i)) for i in range(K))
    return labellings, found


def plain_greedy(network, base):
    """Labels decided one after another by the signs of their scores, and their hinge sums."""
    labels, losses = np.ones(base.shape), np.zeros(len(base))
    for r, row in enumerate(base):
        y = np.ones(base.shape[1])
        for i in range(len(y)):
            g = plain_score(network, row, y, i)
            y[i] = 1.0 if g > 0 else -1.0
            losses[r] += max(0.0, 1.0 - y[i] * g)
        labels[r, network.order] = y
    return labels, losses


@pytest.mark.parametrize("whole", [False, True], ids=["reals", "ties"])
@pytest.mark.parametrize("K", [1, 2, 3, 5, 8])
def test_search_equals_brute_force(K, whole):
    for seed in range(6):
        network, base = random_network(K, seed, whole)
        _, losses = plain_losses(network, base, K)
        found = network.search(base, np.inf, 2**62)
        assert np.allclose(found.loss[:, 0], losses.min(axis=1), atol=1e-12)
        assert np.allclose(network.losses(base, found.labels[:, 0]), losses.min(axis=1), atol=1e-12)
        assert np.all(found.optimal)
        assert np.all((found.states >= K) & (found.states <= 2 ** (K + 1) - 2))
        best = network.search(base, np.inf, 2**62, k=min(6, 2**K))
        assert np.allclose(best.loss, np.sort(losses, axis=1)[:, : best.loss.shape[1]], atol=1e-12)
        for row in best.labels:
            assert len(np.unique(row, axis=0)) == len(row)


def test_search_equals_brute_force_with_fourteen_labels():
    network, base = random_network(14, 3, terms=False)
    labellings = np.array(list(product([-1.0, 1.0], repeat=14)))
    for row in base[:2]:
        all_losses = network.losses(np.tile(row, (len(labellings), 1)), labellings)
        found = network.search(row[None], np.inf, 2**62)
        assert found.loss[0, 0] == pytest.approx(all_losses.min(), abs=1e-12)
        assert np.array_equal(found.labels[0, 0], labellings[all_losses.argmin()])


def test_more_labellings_than_exist_are_infinite():
    network, base = random_network(2, 0)
    found = network.search(base, np.inf, 2**62, k=7)
    assert np.all(np.isfinite(found.loss[:, :4]))
    assert np.all(found.loss[:, 4:] == np.inf)


def test_bound_and_budget_say_what_is_certain():
    for seed in range(20):
        network, base = random_network(8, seed)
        _, losses = plain_losses(network, base, 8)
        greedy = plain_greedy(network, base)
        assert np.array_equal(network.search(base, 0.0, 1).labels[:, 0], greedy[0])
        for bound in (1.0, 2.0, 3.5):
            found = network.search(base, bound, 2**62)
            below = losses.min(axis=1) < bound
            assert np.array_equal(found.optimal, below)
            assert np.allclose(found.loss[below, 0], losses.min(axis=1)[below])
            assert np.array_equal(found.labels[~below, 0], greedy[0][~below])
            assert np.allclose(found.loss[~below, 0], greedy[1][~below])
            assert found.states.max() <= bounds.states_below(8, bound)
        short = network.search(base, np.inf, 10)
        assert np.all(short.states <= 10)
        assert np.all(short.loss[:, 0] <= greedy[1] + 1e-12)
        whole = network.search(base, np.inf, 2**62)
        assert np.array_equal(short.optimal, whole.states <= 10)
        nothing = network.search(base, np.inf, 3)
        assert not nothing.optimal.any()
        assert np.array_equal(nothing.labels[:, 0], greedy[0])


def test_margins_are_differences_of_least_losses():
    for whole in (False, True):
        network, base = random_network(6, 5, whole)
        labellings, losses = plain_losses(network, base, 6)
        margins = network.margins(base, 2**62)
        for k in range(6):
            up, down = (losses[:, labellings[:, k] == s].min(axis=1) for s in (1, -1))
            assert np.allclose(margins[:, k], down - up, atol=1e-12)
        assert np.array_equal(np.sign(margins), network.search(base, np.inf, 2**62).labels[:, 0])


def test_marginals_equal_brute_force_and_samples_come_near():
    network, base = random_network(6, 1)
    labellings = np.array(list(product([-1.0, 1.0], repeat=6)))
    expected = np.zeros(base.shape)
    for r, row in enumerate(base):
        for signs in labellings:
            y, probability = signs[network.order], 1.0
            for i in range(6):
                g = row[network.order[i]] + network.links.coupling[i, :i] @ y[:i]
                for t in range(network.links.term_ptr[i], network.links.term_ptr[i + 1]):
                    members = network.links.members[network.links.member_ptr[t] : network.links.member_ptr[t + 1]]
                    g += network.links.weight[t] * np.prod(y[members])
                probability /= 1.0 + np.exp(-y[i] * g)
            expected[r] += probability * (signs > 0)
    exact, none = bounds.enumerated_marginals(network, base)
    assert np.allclose(exact, expected, atol=1e-12)
    assert not none.any()
    sampled, error = bounds.sampled_marginals(network, base, 4000, 7)
    assert np.all(np.abs(sampled - expected) <= 5 * error + 1e-9)
    assert error.max() < 0.01


def objective(model, X, signs, alpha):
    """1/2 |w|^2 + mean loss / alpha of a fitted linear network, by its public attributes."""
    scores = X @ model.coef_.T + model.intercept_ + signs @ model.couplings_.T
    size = np.sum(model.coef_**2) + np.sum(model.intercept_**2) + np.sum(model.couplings_**2)
    return size / 2 + np.maximum(0, 1 - signs * scores).sum() / (alpha * len(X)), scores


@pytest.mark.parametrize("alpha", [1e-3, 1e-2, 1.0])
def test_one_label_is_a_linear_support_vector_machine(alpha):
    X, Y = labelled_rows(K=1)
    svm = LinearSVC(C=1 / (alpha * len(X)), loss="hinge", tol=1e-8, max_iter=10**6, random_state=0)
    svm.fit(X, Y[:, 0])
    for y in (Y[:, 0], Y):
        model = pt.LMSBN(alpha, tol=1e-7).fit(X, y)
        assert np.allclose(model.coef_, svm.coef_, atol=1e-3)
        assert np.allclose(model.intercept_, svm.intercept_, atol=1e-3)
        assert np.allclose(model.decision_function(X).ravel(), svm.decision_function(X), atol=1e-3)
        assert np.array_equal(model.predict(X).ravel(), svm.predict(X))


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_every_label_is_a_support_vector_machine_with_its_parents_as_features(scale):
    X, Y = labelled_rows(K=4)
    signs, alpha, order = 2.0 * Y - 1, 1e-2, [2, 0, 3, 1]
    model = pt.LMSBN(alpha, order=order, tol=1e-8, label_scale=scale).fit(X, Y)
    assert np.array_equal(model.order_, order)
    for place, k in enumerate(order):
        rows = np.hstack([X, scale * signs[:, order[:place]]])
        svm = LinearSVC(C=1 / (alpha * len(X)), loss="hinge", tol=1e-9, max_iter=10**6, random_state=0)
        svm.fit(rows, Y[:, k])
        found = np.concatenate([model.coef_[k], model.couplings_[k, order[:place]] / scale])
        assert np.allclose(found, svm.coef_[0], atol=1e-4)
        assert not model.couplings_[k, order[place:]].any()


def test_kernel_network_is_kernel_machines_with_linear_parents():
    X, Y = labelled_rows(K=3)
    signs, alpha, gamma = 2.0 * Y - 1, 1e-2, 0.3
    model = pt.LMSBN(alpha, order="index", kernel="rbf", gamma=gamma, tol=1e-8).fit(X, Y)
    from sklearn.metrics.pairwise import rbf_kernel

    gram = rbf_kernel(X, X, gamma=gamma) + 1.0  # the constant is regularised like the rest
    for k in range(3):
        full = gram + signs[:, :k] @ signs[:, :k].T
        # a machine without the constraint sum a y = 0: its dual is solved here by projected gradient
        Q, cost = full * np.outer(signs[:, k], signs[:, k]), 1 / (alpha * len(X))
        a = np.zeros(len(X))
        step = 1 / np.linalg.norm(Q, 2)
        for _ in range(20000):
            a = np.clip(a - step * (Q @ a - 1), 0, cost)
        assert np.allclose(full @ model.dual_coef_[k], full @ (a * signs[:, k]), atol=1e-4)
    linear = pt.LMSBN(alpha, order="index", tol=1e-8).fit(X, Y)
    user = pt.LMSBN(alpha, order="index", tol=1e-8, kernel=lambda A, B: A @ B.T).fit(X, Y)
    assert np.allclose(linear.couplings_, user.couplings_, atol=1e-6)
    assert np.allclose(linear.decision_function(X), user.decision_function(X), atol=1e-6)
    assert np.array_equal(linear.predict(X), user.predict(X))


def test_kernel_machine_agrees_with_libsvm_up_to_the_regularised_constant():
    X, Y = labelled_rows(K=1, noise=0.1)
    model = pt.LMSBN(1e-4, kernel="rbf").fit(X, Y[:, 0])
    svc = SVC(C=1 / (1e-4 * len(X)), gamma="scale").fit(X, Y[:, 0])
    assert np.mean(model.predict(X) == svc.predict(X)) > 0.97


def test_coordinate_descent_and_newton_steps_agree_on_rows_sparse_rows_and_kernels():
    rng = np.random.default_rng(0)
    for n, d in ((60, 5), (20, 40)):
        X, signs = rng.normal(size=(n, d)), np.sign(rng.normal(size=(n, 4)))
        y, solver, columns = signs[:, 3].copy(), HingeSolver(1e-2, 1e-9, 10000, 0), SignColumns(signs, 0.4)
        found = []
        for features in (LabelRows(X), LabelRows(sparse.csr_array(X)), LabelRows(gram=X @ X.T)):
            for solution in (
                features.solve([solver], columns, 3, y, 0)[0],
                features.newton(columns, 3, y, 1.0 / (solver.alpha * n)),
            ):
                coef, signs_and_bias, converged = np.split(solution, [features.width, features.width + 4])
                assert converged == 1.0
                coef = coef if features.gram is None else X.T @ coef
                found.append(np.concatenate([coef, signs_and_bias]))
        assert np.allclose(found, found[0], atol=1e-5)


def test_badly_scaled_features_are_still_learned():
    X, Y = labelled_rows(K=2)
    model = pt.LMSBN(1e-3).fit(100.0 + X, Y)  # no warning
    assert pt.metrics.hamming_loss(Y, model.predict(100.0 + X)) < 0.2
    X, Y = labelled_rows(n=1100, d=1100, K=2)  # too large for Newton steps
    with pytest.warns(pt.ConvergenceWarning, match="2 of 2 labels"):
        pt.LMSBN(1e-3, order="index", passes=1).fit(X, Y)


def test_products_of_parents_learn_parity():
    rng = np.random.default_rng(1)
    signs = np.sign(rng.normal(size=(200, 3)))
    signs[:, 2] = signs[:, 0] * signs[:, 1]
    X, Y = signs[:, :2] + 0.1 * rng.normal(size=(200, 2)), (signs > 0).astype(int)
    plain = pt.LMSBN(1e-3, order="index").fit(X, Y)
    pairs = pt.LMSBN(1e-3, order="index", interactions=2).fit(X, Y)
    assert pt.metrics.exact_match(Y, pairs.predict(X)) == 1.0
    assert pt.metrics.exact_match(Y, plain.predict(X)) < 0.9


def test_orders_and_parents():
    X, Y = labelled_rows(K=4)
    parents = {3: [0], 0: [1], 2: []}
    model = pt.LMSBN(parents=parents).fit(X, Y)
    assert {(i, j) for i, j in np.argwhere(model.couplings_ != 0)} == {(3, 0), (0, 1)}
    place = np.argsort(model.order_)
    assert place[1] < place[0] < place[3]
    listed = pt.LMSBN(parents=[[1], [], [], [0]]).fit(X, Y)
    assert np.array_equal(listed.couplings_, model.couplings_)
    chosen = pt.LMSBN(order=[2, 0, 3, 1]).fit(X, Y)  # with alpha by cross-validation
    assert chosen.order_.tolist() == [2, 0, 3, 1]
    assert {r["order"] for r in chosen.cv_results_} == {(2, 0, 3, 1)}
    learned = pt.LMSBN(order="learned", n_orders=4).fit(X, Y)
    assert sorted(learned.order_) == [0, 1, 2, 3]
    for bad, words in (
        ({"order": [0, 1, 2]}, "every label"),
        ({"order": "best"}, "order must be one of"),
        ({"parents": {0: [1], 1: [0]}}, "cycle"),
        ({"parents": {0: [7]}}, "labels 0..3"),
        ({"parents": [[1]]}, "1 entries for 4"),
        ({"parents": {0: [1]}, "order": [0, 1, 2, 3]}, "before its parent 1"),
        ({"alpha": -1.0}, "alpha"),
        ({"interactions": 0}, "interactions"),
        ({"label_scale": 0.0}, "label_scale"),
        ({"bound": -1.0}, "bound"),
        ({"budget": 0}, "budget"),
        ({"kernel": "cosy"}, "cosy"),
        ({"kernel": "rbf", "gamma": -1.0}, "gamma"),
    ):
        with pytest.raises(pt.PotentiaError, match=words) as error:
            pt.LMSBN(**bad).fit(X, Y)
        assert "\n" not in str(error.value)


def test_f_score_order_puts_well_known_labels_first():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    Y = np.column_stack([X @ rng.normal(size=3) + s * rng.normal(size=300) > 0 for s in (9.0, 0.1, 1.5)])
    assert np.array_equal(pt.LMSBN().fit(X, Y).order_, [1, 2, 0])


def test_labelling_loss_is_the_hinge_sum():
    X, Y = labelled_rows()
    signs = 2.0 * Y - 1
    model = pt.LMSBN(1e-2).fit(X, Y)
    scores = objective(model, X, signs, 1e-2)[1]
    losses = model.labelling_loss(X, Y)
    assert np.allclose(losses, np.maximum(0, 1 - signs * scores).sum(axis=1))
    found = model.search(X)
    assert np.all(found.loss <= losses + 1e-12)
    assert np.array_equal(found.labels, model.predict(X))
    assert np.allclose(model.labelling_loss(X, found.labels), found.loss)
    best = model.best_labellings(X, 3)
    assert np.array_equal(best.labels[:, 0], found.labels)
    assert np.all(np.diff(best.loss, axis=1) >= 0)
    assert np.allclose(model.labelling_loss(X, best.labels[:, 2]), best.loss[:, 2])
    assert np.all(model.labelling_loss(X, model.predict_greedy(X)) >= found.loss - 1e-12)


def test_probabilities_say_how_they_were_found():
    X, Y = labelled_rows()
    model = pt.LMSBN(1e-2).fit(X, Y)
    exact = bounds.label_probabilities(model, X)
    assert exact.exact
    assert exact.samples == 0
    sampled = bounds.label_probabilities(model, X, samples=2000, exact_up_to=3)
    assert not sampled.exact
    assert sampled.samples == 2000
    assert np.all(np.abs(sampled.values - exact.values) <= 5 * sampled.error + 1e-9)
    one = pt.LMSBN(1e-2).fit(X, Y[:, 0])
    assert np.allclose(bounds.label_probabilities(one, X).values[:, 0], 1 / (1 + np.exp(-one.decision_function(X))))


def test_theorems_hold_on_their_own_rows():
    X, Y = labelled_rows(n=200, K=6, noise=1.0)
    test = labelled_rows(n=200, K=6, seed=1, noise=1.0)
    model = pt.LMSBN(1e-2).fit(X, Y)
    for rows, labels in ((X, Y), test):
        facts = bounds.error_bound(model, rows, labels)
        assert facts.error <= facts.bound
        assert facts.mean_loss == pytest.approx(model.labelling_loss(rows, labels).mean())
        search = bounds.search_bound(model, rows, labels, [1, 1.5, 2, 3, 6, 20])
        assert np.all(search.certain >= search.guaranteed)
        assert np.all(np.array(search.visited) <= search.states)
        assert search.certain[-1] == 1.0
    with pytest.raises(pt.PotentiaError, match="at least 1"):
        bounds.search_bound(model, X, Y, [0.5])


def test_hinge_losses_bound_the_sigmoid_networks_log_loss():
    X, Y = labelled_rows(n=60, K=4)
    model = pt.LMSBN(1e-2, interactions=2).fit(X, Y)
    every = np.array(list(product((0, 1), repeat=4)))
    total = np.zeros(len(X))
    for labelling in every:
        found = bounds.likelihood_bound(model, X, np.tile(labelling, (len(X), 1)))
        assert np.all(found.log_loss <= found.bound)
        total += np.exp(-found.log_loss)
    np.testing.assert_allclose(total, 1.0, atol=1e-12)
    ones = every[every[:, 1] == 1]
    p = sum(np.exp(-model.log_loss(X, np.tile(y, (len(X), 1)))) for y in ones)
    np.testing.assert_allclose(p, bounds.label_probabilities(model, X).values[:, 1], atol=1e-12)


def test_bounds_of_sigmoid_networks_refuse_other_models_with_a_sentence():
    X, Y = labelled_rows(n=30, K=3)
    machine = pt.LMBM(1e-2).fit(X, Y)
    with pytest.raises(pt.PotentiaError, match=r"model must be an? LMSBN, not LMBM"):
        bounds.likelihood_bound(machine, X, Y)
    with pytest.raises(pt.PotentiaError, match=r"model must be an? LMSBN"):
        bounds.search_bound(machine, X, Y, [1.0])
    with pytest.raises(pt.PotentiaError, match=r"model must be an? LMSBN or LMBM, not"):
        bounds.error_bound("model", X, Y)


def test_states_below_a_bound_are_counted():
    assert bounds.states_below(3, 1) == 3
    assert bounds.states_below(3, 2) == 3 + (1 + 2 + 3)
    assert bounds.states_below(3, np.inf) == 2 + 4 + 8


@pytest.mark.parametrize(
    "model",
    [
        pt.LMSBN(),
        pt.LMSBN(0.1, kernel="rbf", order="learned", n_orders=2, interactions=2, budget=50),
        pt.LMSBN(order="cv", cv=2, passes=200),
    ],
    ids=["linear", "kernel", "chosen"],
)
def test_scikit_learn_accepts_it(model):
    # the check passes a list of splits as `cv`, which is a number here; a test below compares weights and rows
    kinds = ("dense", "sparse")
    known = {f"check_sample_weight_equivalence_on_{kind}_data": "cv is a number of folds" for kind in kinds}
    for outcome in check_estimator(model, on_fail=None, on_skip=None, expected_failed_checks=known):
        assert outcome["status"] in ("passed", "skipped", "xfail"), (outcome["check_name"], outcome["exception"])


def test_pipelines_grids_clones_and_sparse_rows():
    X, Y = labelled_rows()
    pipe = make_pipeline(StandardScaler(), pt.LMSBN())
    grid = GridSearchCV(pipe, {"lmsbn__alpha": [1e-1, 1e-3]}, cv=3).fit(X, Y)
    assert grid.best_score_ > 0.3
    assert clone(pt.LMSBN(0.5, order=[1, 0])).order == [1, 0]
    assert cross_val_predict(pt.LMSBN(), X, Y, cv=3, method="decision_function").shape == Y.shape
    dense, thin = pt.LMSBN(order="index").fit(X, Y), pt.LMSBN(order="index").fit(sparse.csr_array(X), Y)
    assert np.allclose(dense.decision_function(X), thin.decision_function(sparse.csr_array(X)), atol=1e-3)
    assert np.array_equal(dense.predict(X), pt.LMSBN(order="index").fit(X, sparse.csr_array(Y)).predict(X))


def test_any_two_values_and_constant_labels():
    X, Y = labelled_rows(K=3)
    plain = pt.LMSBN(1e-2).fit(X, Y)
    words = np.array([["no", "yes"], ["a", "b"], ["-", "x"]])
    named = np.column_stack([words[k][Y[:, k]] for k in range(3)])
    model = pt.LMSBN(1e-2).fit(X, named)
    assert [list(c) for c in model.classes_] == [["no", "yes"], ["a", "b"], ["-", "x"]]
    assert np.array_equal(model.predict(X), np.column_stack([words[k][plain.predict(X)[:, k]] for k in range(3)]))
    assert np.array_equal(plain.classes_, [0, 1, 2])
    constant = np.column_stack([Y[:, 0], np.ones(len(X), int), Y[:, 1], np.zeros(len(X), int)])
    model = pt.LMSBN(1e-2, order=[3, 2, 1, 0]).fit(X, constant)
    assert np.array_equal(model.order_, [2, 0])
    predicted = model.predict(X)
    assert np.all(predicted[:, 1] == 1)
    assert np.all(predicted[:, 3] == 0)
    assert np.all(model.decision_function(X)[:, [1, 3]] == [1, -1])
    assert np.all(bounds.label_probabilities(model, X).values[:, [1, 3]] == [1, 0])
    flipped = constant.copy()
    flipped[:, 3] = 1
    assert np.allclose(model.labelling_loss(X, flipped), model.labelling_loss(X, constant) + 2)
    only = pt.LMSBN().fit(X, np.ones((len(X), 2)))
    assert np.all(only.predict(X) == 1)
    assert np.all(only.search(X).optimal)
    assert np.all(only.labelling_loss(X, np.ones((len(X), 2))) == 0)


@pytest.mark.parametrize(
    ("X", "Y", "words"),
    [
        (np.ones((4, 2)), np.array([[0, 1], [1, 2], [0, 0], [0, 1]]), "label 1 of y takes 3 values"),
        (np.ones((4, 2)), np.array([0, 1, 2, 0]), "Only binary"),
        (np.ones((4, 2)), np.array([0.1, 1.5, 2.2, 0]), "continuous"),
        (np.ones((4, 0)), np.array([0, 1, 1, 0]), "0 feature"),
        (np.ones((4, 2)), np.zeros((4, 0)), "no labels"),
        (np.ones((4, 2)), np.array([[0, np.nan]] * 4), "label 1 of y is missing in all rows"),
        (np.full((4, 2), np.nan), np.array([0, 1, 1, 0]), "NaN"),
        (np.ones((4, 2)), np.zeros((3, 2)), "X has 4 rows but y has 3"),
    ],
)
def test_bad_input_is_said(X, Y, words):
    with pytest.raises(ValueError, match=words):
        pt.LMSBN().fit(X, Y)


def test_wrong_rows_or_labels_after_fitting_are_said():
    X, Y = labelled_rows()
    model = pt.LMSBN().fit(X, Y)
    with pytest.raises(ValueError, match="5 features"):
        model.predict(X[:, :5])
    with pytest.raises(pt.PotentiaError, match="3 labels"):
        model.labelling_loss(X, Y[:, :3])
    with pytest.raises(pt.PotentiaError, match="other than"):
        model.labelling_loss(X, Y + 7)
    with pytest.raises(pt.PotentiaError, match="rows"):
        model.labelling_loss(X, Y[:3])
    with pytest.raises(pt.PotentiaError, match="k must"):
        model.best_labellings(X, 0)


@pytest.mark.parametrize("rows", ["dense", "sparse"])
@pytest.mark.parametrize("kernel", [None, "rbf"])
def test_saved_networks_predict_the_same(tmp_path, kernel, rows):
    X, Y = labelled_rows()
    X = sparse.csr_array(X) if rows == "sparse" else X
    named = np.where(Y > 0, "yes", "no")
    model = pt.LMSBN(1e-2, kernel=kernel, interactions=2).fit(X, named)
    model.save(tmp_path / "net.pt")
    back = pt.load(tmp_path / "net.pt")
    assert type(back) is pt.LMSBN
    assert np.array_equal(back.predict(X), model.predict(X))
    assert np.allclose(back.decision_function(X), model.decision_function(X), atol=1e-9)
    assert back.get_params() == model.get_params()


def test_a_kernel_that_is_a_function_is_saved_by_name_and_must_be_set_again(tmp_path):
    X, Y = labelled_rows()

    def own(A, B):
        return A @ B.T

    model = pt.LMSBN(1e-2, kernel=own).fit(X, Y)
    model.save(tmp_path / "net")
    back = pt.load(tmp_path / "net")
    with pytest.raises(pt.PotentiaError, match=r"the function test_lmsbn.*own is not in the file"):
        back.predict(X)
    back.kernel = own
    assert np.array_equal(back.predict(X), model.predict(X))


def test_training_does_not_copy_sparse_rows():
    rng = np.random.default_rng(0)
    place = rng.integers(0, 2000, 40_000), rng.integers(0, 200_000, 40_000)
    rows = sparse.csr_array((rng.random(40_000), place), shape=(2000, 200_000))
    Y = (np.random.default_rng(0).random((2000, 3)) < 0.3).astype(int)
    import tracemalloc

    pt.LMSBN(1e-2, order="index").fit(rows[:50], Y[:50])
    tracemalloc.start()
    model = pt.LMSBN(1e-2, order="index").fit(rows, Y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * model.coef_.nbytes + 20 * rows.data.nbytes
    assert peak < 0.02 * 8 * rows.shape[0] * rows.shape[1]


def test_solutions_are_copied_into_a_checkpoint_and_kept_nowhere_else(tmp_path):
    values, stored = np.arange(3.0), Checkpoint(tmp_path / "c")
    with resuming(None, False) as free, stored:
        solved = Solved(None, stored)
        for either in (free, solved):
            either.put({"x": values})
        values[:] = 7.0
        assert free.get("x", (3,)) is None
        solved.write()
    with resuming(Checkpoint(tmp_path / "c"), False) as again:
        assert again.get("x", (3,)).tolist() == [0.0, 1.0, 2.0]
        with pytest.raises(pt.PotentiaError, match=r"c: .*delete it to start again\.$"):
            again.get("x", (4,))


@pytest.mark.parametrize("model", [pt.LMSBN, pt.LMBM, IndependentClassifiers])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_a_checkpoint_of_other_data_or_options_is_refused(tmp_path, monkeypatch, model, form):
    monkeypatch.setattr("potentia.models.multilabel.base._EVERY", 0.0)
    path = tmp_path / "state"
    X, Y = labelled_rows()
    whole = model(alpha=0.1).fit(form(X), Y, checkpoint=path)
    assert path.exists()
    again = model(alpha=0.1).fit(form(X), Y, checkpoint=path)
    assert np.array_equal(again.decision_function(form(X)), whole.decision_function(form(X)))
    moved, flipped = X.copy(), Y.copy()
    moved[3, 2] += 1e-9
    flipped[3, 2] ^= 1
    for options, rows, labels in (
        ({"alpha": 0.2}, X, Y),
        ({"alpha": 0.1, "random_state": 1}, X, Y),
        ({"alpha": 0.1}, moved, Y),
        ({"alpha": 0.1}, X, flipped),
    ):
        with pytest.raises(pt.PotentiaError, match=r"state belongs to a run with other options or data"):
            model(**options).fit(form(rows), labels, checkpoint=path)


@pytest.mark.parametrize("kernel", [None, "rbf"])
def test_a_path_has_the_solutions_of_its_alphas(kernel):
    X, Y = labelled_rows(n=80, K=3)
    signs = 2.0 * Y - 1
    features = LabelRows(X) if kernel is None else LabelRows(gram=np.exp(-0.2 * ((X[:, None] - X) ** 2).sum(-1)))
    solvers = [HingeSolver(alpha, 1e-8, 10_000, 0) for alpha in (0.3, 0.03, 0.003)]
    rest = np.array([2, 0, 1]), LabelDependence(), Solved()
    path = learn_networks(features, signs, solvers, *rest)
    for solver, network in zip(solvers, path, strict=True):
        (cold,) = learn_networks(features, signs, [solver], *rest)
        np.testing.assert_allclose(network.links.coupling, cold.links.coupling, atol=1e-5)
        np.testing.assert_allclose(network.bias, cold.bias, atol=1e-5)


def test_options_are_chosen_by_their_exact_match_on_held_out_rows(tmp_path):
    X, Y = labelled_rows(n=150, K=4, noise=0.5)
    model = pt.LMSBN(kernel="rbf", gamma="cv", order="cv", label_scale="cv", cv=3).fit(X, Y)
    results = model.cv_results_
    assert len(results) == 6 * 3 * 2 * 2
    best = max(results, key=lambda r: (r["exact_match"], -r["hamming_loss"]))
    assert (model.alpha_, model.gamma_, model.label_scale_) == (best["alpha"], best["gamma"], best["label_scale"])
    seed = np.random.RandomState(0).randint(2**31 - 1)
    found = np.empty(Y.shape, dtype=int)
    for train, test in splits(len(Y), 3, seed):
        given = pt.LMSBN(best["alpha"], best["order"], "rbf", gamma=best["gamma"], label_scale=best["label_scale"])
        found[test] = given.fit(X[train], Y[train]).predict(X[test])
    # looser fits, and an order ranked at another alpha
    assert best["exact_match"] == pytest.approx(pt.metrics.exact_match(Y, found), abs=0.04)
    assert best["hamming_loss"] == pytest.approx(pt.metrics.hamming_loss(Y, found), abs=0.02)
    model.save(tmp_path / "m")
    again = pt.load(tmp_path / "m")
    assert (again.alpha_, again.gamma_, again.label_scale_) == (model.alpha_, model.gamma_, model.label_scale_)
    assert np.array_equal(again.predict(X), model.predict(X))
    given = pt.LMSBN(model.alpha_, model.cv_results_ and best["order"], "rbf", gamma=model.gamma_)
    given.set_params(label_scale=model.label_scale_)
    assert np.array_equal(given.fit(X, Y).predict(X), model.predict(X))


def test_a_chosen_alpha_suits_features_of_any_size():
    X, Y = labelled_rows(n=150, K=4, noise=0.5)
    matches = [
        pt.metrics.exact_match(Y, pt.LMSBN(order="index").fit(X * size, Y).predict(X * size))
        for size in (0.1, 1.0, 30.0)
    ]
    assert max(matches) - min(matches) < 0.1


def test_too_few_rows_take_the_middle_of_the_candidates():
    X, Y = labelled_rows(n=5, K=2)
    model = pt.LMSBN(cv=3).fit(X, Y)
    assert model.cv_results_ == []
    assert model.alpha_ > 0
    with pytest.raises(pt.PotentiaError, match="gamma"):
        pt.multilabel.IndependentClassifiers(kernel="rbf", gamma="cv").fit(X, Y)
    with pytest.raises(pt.PotentiaError, match="alpha"):
        pt.LMBM(alpha="cv").fit(X, Y)


@pytest.mark.parametrize("kernel", [None, "rbf"])
@pytest.mark.parametrize("thin", [False, True])
def test_weights_are_repeated_rows(kernel, thin):
    X, Y = labelled_rows(n=60, K=3)
    counts = np.random.default_rng(0).integers(0, 4, size=60)
    repeated = np.repeat(np.arange(60), counts)
    kind = sparse.csr_array if thin else np.asarray
    options = {"order": "index", "kernel": kernel, "gamma": 0.2, "tol": 1e-9, "passes": 10_000}
    weighted = pt.LMSBN(1e-2, **options).fit(kind(X), Y, sample_weight=3.0 * counts)
    plain = pt.LMSBN(1e-2, **options).fit(kind(X[repeated]), Y[repeated])
    np.testing.assert_allclose(weighted.couplings_, plain.couplings_, atol=1e-5)
    np.testing.assert_allclose(weighted.decision_function(X), plain.decision_function(X), atol=1e-5)
    apart = [
        IndependentClassifiers(1e-2, kernel, gamma=0.2, tol=1e-9, passes=10_000).fit(*rows, sample_weight=w)
        for rows, w in (((kind(X), Y), counts), ((kind(X[repeated]), Y[repeated]), None))
    ]
    np.testing.assert_allclose(*(model.decision_function(X) for model in apart), atol=1e-5)


def test_class_weights_are_weights_of_rows_by_label():
    X, Y = labelled_rows(n=150, K=3, noise=2.0)
    Y[:, 0] &= (np.arange(150) % 3 == 0).astype(int)
    plain, balanced = (
        pt.LMSBN(1e-1, "index", class_weight=weight).fit(X, Y).predict(X)[:, 0] for weight in (None, "balanced")
    )
    assert balanced.sum() > plain.sum()
    one = pt.LMSBN(1e-2, class_weight={1: 3.0}, tol=1e-9, passes=10_000).fit(X, Y[:, 1])
    same = pt.LMSBN(1e-2, tol=1e-9, passes=10_000).fit(X, Y[:, 1])
    rows = np.where(Y[:, 1] == 1, 3.0, 1.0)
    other = pt.LMSBN(1e-2 / rows.mean(), tol=1e-9, passes=10_000).fit(X, Y[:, 1], sample_weight=rows)
    np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-5)
    assert not np.allclose(one.coef_, same.coef_, atol=1e-3)
    for words, options in (
        ("class_weight", {"class_weight": "even"}),
        ("keys 0 and 1", {"class_weight": {2: 1.0}}),
        (r"class_weight\[1\]", {"class_weight": {1: -1.0}}),
    ):
        with pytest.raises(pt.PotentiaError, match=words):
            pt.LMSBN(**options).fit(X, Y)
    for weight in (-np.ones(150), np.zeros(150), np.ones(3)):
        with pytest.raises(pt.PotentiaError, match=r"(?i)sample.weight"):
            pt.LMSBN(1e-2).fit(X, Y, sample_weight=weight)


class HeldRows:
    """A source of rows for `RemoteRows`, which without a cluster are read by this process."""

    key = "held"

    def __init__(self, X):
        self.X = X

    def rows(self):
        return self.X


@pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")  # it would take many thousand passes
@pytest.mark.parametrize("form", ["dense", "csr", "remote"])
def test_a_feature_far_from_zero_is_warned_of(form):
    X, Y = labelled_rows(n=60, d=3, K=2)

    def given(rows):
        if form == "remote":
            forget_rows()
            return RemoteRows(HeldRows(rows), rows.shape)
        return sparse.csr_array(rows) if form == "csr" else rows

    with pytest.warns(
        UserWarning, match="feature 1 of X has a mean more than 10 times its standard deviation"
    ) as caught:
        pt.LMSBN(1.0, passes=10).fit(given(X + np.array([0.0, 1e6, 0.0])), Y)
    assert {w.filename for w in caught} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pt.LMSBN(1e-2).fit(given(np.column_stack([X, np.full(60, 12.3)])), Y)
        # a zero among the numbers makes them vary
        pt.LMSBN(1e-2).fit(given((X + 1e6) * (np.arange(60) != 7)[:, None] / 1e6), Y)
    forget_rows()


def test_numbers_too_large_and_columns_in_another_order_are_refused():
    import pandas

    X, Y = labelled_rows(n=60, d=3, K=2)
    huge = X.copy()
    huge[5, 1] = -1e40
    model = pt.LMSBN(1e-1).fit(X, pandas.DataFrame(Y, columns=["a", "b"]))
    for given in (huge, sparse.csr_array(huge)):
        with pytest.raises(pt.PotentiaError, match="feature 1 of X holds numbers too large"):
            pt.LabelNetwork().fit(given, Y)
        with pytest.raises(pt.PotentiaError, match="feature 1 of X holds numbers too large"):
            model.predict(given)
    assert model.score(X, pandas.DataFrame(Y, columns=["a", "b"])) == model.score(X, Y)
    with pytest.raises(pt.PotentiaError, match="columns of y are b, a, but in training their order was a, b"):
        model.score(X, pandas.DataFrame(Y[:, ::-1], columns=["b", "a"]))
    with pytest.raises(pt.PotentiaError, match="turn lists of each row's labels into columns"):
        pt.LMSBN(1e-1).fit(X, [[k for k in range(2) if row[k]] for row in Y])


def test_far_features_are_those_of_numpy(monkeypatch):
    monkeypatch.setattr("potentia.models.multilabel.inputs._BLOCK", 50)
    rng = np.random.default_rng(4)
    for trial in range(60):
        X = rng.normal(size=(40, 4)) + 10.0 ** rng.uniform(0.0, 2.5, 4) * rng.choice([-1.0, 0.0, 1.0], 4)
        X[:, 3] *= rng.random(40) < (0.9 if trial % 2 else 1.1)
        mean, spread = np.abs(X.mean(axis=0)), X.std(axis=0)
        others = [max(1.0, 0.0, *(m for j, m in enumerate(mean) if j != k and m > 10 * spread[j])) for k in range(4)]
        far = (mean > 10 * spread) & ((mean > 10 * spread * others) | (mean > 1e3 * spread))
        wanted = int(far.argmax()) if far.any() else None
        rows = sparse.csr_array(X)
        twice = sparse.csr_array(
            (np.repeat(rows.data / 2, 2), np.repeat(rows.indices, 2), 2 * rows.indptr), shape=X.shape
        )
        assert far_feature(X) == far_feature(rows) == far_feature(twice) == wanted
    assert far_feature(np.zeros((0, 3))) is far_feature(sparse.csr_array((0, 3))) is None


LIMITS = [
    pt.factors.ExactlyOne("0", "1", "2"),
    pt.factors.Implies("3", "4"),
    pt.factors.AtMostOne("4", "5"),
    pt.factors.Parity("0", "5", "6"),
]


def fair(labellings, limits=LIMITS):
    present = (labellings > 0).astype(int)
    return np.all([f.allows(present[:, [int(name) for name in f.names]]) for f in limits], axis=0)


@pytest.mark.parametrize("seed", range(6))
def test_constrained_search_equals_brute_force(seed):
    K = 7
    network, base = random_network(K, seed, limits=LIMITS)
    labellings, losses = plain_losses(network, base, K)
    rules, place = network.rules, np.argsort(network.order)
    # labels that rules force, given those before them, have no loss
    free = plain_losses(network._replace(rules=make_rules([], np.arange(K))), base, K)[1]
    np.testing.assert_array_equal(losses, free)
    choice = ~forced(rules, labellings[:, network.order])[:, place]
    allowed = fair(labellings)
    found = network.search(base, np.inf, 10**6, k=3)
    assert found.optimal.all()
    for row in range(len(base)):
        z = np.empty((len(labellings), K))
        for i, k in enumerate(network.order):
            y = labellings[:, network.order]
            g = base[row, k] + y[:, :i] @ network.links.coupling[i, :i]
            for t in range(network.links.term_ptr[i], network.links.term_ptr[i + 1]):
                members = network.links.members[network.links.member_ptr[t] : network.links.member_ptr[t + 1]]
                g = g + network.links.weight[t] * y[:, members].prod(axis=1)
            z[:, k] = labellings[:, k] * g
        loss = (np.maximum(0.0, 1.0 - z) * choice).sum(axis=1)
        np.testing.assert_allclose(found.loss[row], np.sort(loss[allowed])[:3])
        assert fair(found.labels[row]).all()


@pytest.mark.parametrize("seed", range(3))
def test_projections_have_the_largest_sum(seed):
    K, rng = 7, np.random.default_rng(seed)
    scores = rng.normal(size=(10, K))
    rules = make_rules(read_constraints(LIMITS, [str(k) for k in range(K)]), np.arange(K))
    every = np.array(list(product([-1.0, 1.0], repeat=K)))
    best = (scores @ every[fair(every)].T).max(axis=1)
    found = project(scores, rules)
    np.testing.assert_allclose((found * scores).sum(axis=1), best)
    assert fair(found).all()


@pytest.mark.parametrize("kind", [pt.LMSBN, IndependentClassifiers, baselines.ThresholdClassifier])
def test_constraints_and_missing_labels_in_every_estimator(kind, tmp_path):
    X, Y = labelled_rows(200, K=5)
    Y[:, 1] |= Y[:, 0]
    Y[:, 3] &= 1 - Y[:, 2]
    limits = [pt.factors.Implies("0", "1"), pt.factors.AtMostOne("2", "3")]
    holes = np.where(np.random.default_rng(0).random(Y.shape) < 0.3, np.nan, Y.astype(float))
    model = kind(constraints=limits).fit(X[:150], holes[:150])
    assert fair(model.predict(X), limits).all()
    assert model.score(X[150:], Y[150:]) > 0.7 * kind().fit(X[:150], Y[:150]).score(X[150:], Y[150:])
    assert model.score(X[150:], holes[150:]) >= model.score(X[150:], Y[150:])
    np.testing.assert_array_equal(clone(model).fit(X[:150], holes[:150]).predict(X), model.predict(X))
    model.save(tmp_path / "m")
    again = pt.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(clone(again).fit(X[:150], holes[:150]).predict(X), model.predict(X))


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ([pt.factors.Implies("0", "9")], "label '9', which y does not have"),
        ([pt.factors.AtMostOne()], "needs the names"),
        ([pt.factors.Or("0", "1", weight=2.0)], "must be hard"),
        ([pt.factors.Or("0", "1", on=2)], "state 2"),
        (3, "constraints must be a list"),
        (["0"], "must be pt.factors"),
        ({"0": "0"}, "its own parent"),
        ([pt.factors.And("0", "1")], r"row 0 of y violates And\(0, 1\)"),
    ],
)
def test_bad_constraints_are_one_sentence(limits, words):
    X, Y = labelled_rows(20)
    Y[0] = 0
    with pytest.raises(pt.PotentiaError, match=words):
        pt.LMSBN(1e-2, constraints=limits).fit(X, Y)


def test_constraints_hold_with_labels_that_are_constant_in_training():
    X, Y = labelled_rows(60, K=4)
    Y[:, 0], Y[:, 3] = 1, 0
    limits = [pt.factors.Implies("0", "1", "2"), pt.factors.AtMostOne("1", "2", "3")]
    Y[:, 2] = 1 - Y[:, 1]
    found = pt.LMSBN(1e-2, constraints=limits).fit(X, Y).predict(X)
    assert np.all(found[:, 1] + found[:, 2] == 1)
    with pytest.raises(pt.PotentiaError, match="greedy"):
        pt.LMSBN(1e-2, constraints=limits).fit(X, Y).predict_greedy(X)


def test_minus_one_is_a_value_unless_there_are_zeros():
    X, Y = labelled_rows(40)
    plain = pt.LMSBN(1e-2).fit(X, np.where(Y == 0, -1, 1))
    assert set(np.unique(plain.predict(X))) == {-1, 1}
    known = np.where(np.random.default_rng(0).random(Y.shape) < 0.2, -1, Y)
    model = pt.LMSBN(1e-2).fit(X, known)
    assert set(np.unique(model.predict(X))) <= {0, 1}
    assert model.score(X, np.full(Y.shape, -1)) == 1.0
    with pytest.raises(pt.PotentiaError, match="must be complete"):
        model.labelling_loss(X, known)
