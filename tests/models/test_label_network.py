"""Networks of labels over any classifiers: search, held-out scores, the forest of labellings, and files."""

import pickle
from itertools import product

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.ensemble import ExtraTreesClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import check_estimator

import potentia as pt
from potentia.base.saving import file_kind, read_file, write_file
from potentia.models.multilabel import label_network
from potentia.models.multilabel.constraints import among_varying, make_rules, read_constraints
from potentia.models.multilabel.posterior import FLOOR, Conditionals, Member, Seen, candidates, learn_conditionals
from potentia.models.multilabel.sets import Ranked
from potentia.models.multilabel.units import learn_forest

pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")

SMALL = {"n_trees": 10, "cv": 2}


def labelled_rows(n=120, d=5, K=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    Y = np.zeros((n, K), dtype=np.int64)
    for k in range(K):
        Y[:, k] = X[:, k % d] * X[:, (k + 1) % d] + X @ rng.normal(size=d) + 1.5 * Y[:, :k].sum(1) > 1
    return X, Y


def every(V):
    return np.array(list(product([-1.0, 1.0], repeat=V)))


NAMES = [f"l{k}" for k in range(14)]
LIMITS = {
    "none": [],
    "mixed": [pt.factors.Implies("l0", "l1"), pt.factors.AtMostOne("l1", "l2", "l3")],
    "dense": [
        pt.factors.ExactlyOne("l0", "l1", "l2"),
        pt.factors.Implies("l3", "l2", "l4"),
        pt.factors.Or("l1", "l4"),
        pt.factors.Parity("l0", "l3", "l4"),
    ],
    "counts": [pt.factors.Cardinality([0, -np.inf, 0, -np.inf], *NAMES[:5]), pt.factors.And("l1", on=0)],
}


def rules_of(limits, V, order):
    return make_rules(among_varying(read_constraints(limits, NAMES[:V]), np.arange(V), np.zeros(V)), order)


def allowed(limits, signs):
    own = (signs > 0).astype(int)
    columns = [own[:, [int(name[1:]) for name in factor.names]] for factor in limits]
    return (
        np.all([f.allows(c) for f, c in zip(limits, columns, strict=True)], axis=0)
        if limits
        else np.full(len(own), True)
    )


def random_member(n, V, seed, scale=2.0, limits=()):
    rng = np.random.default_rng(seed)
    coupling = np.tril(rng.normal(size=(V, V)), -1)
    conditionals = Conditionals(rng.permutation(V), np.ones((V, 1)), np.zeros(V), coupling)
    base = scale * rng.normal(size=(n, V))
    return Member(conditionals, base, rules_of(limits, V, conditionals.order))


def random_seen(n, V, seed, count=5):
    rng = np.random.default_rng(seed)
    labellings = every(V)[rng.permutation(2**V)[:count]]
    p = rng.dirichlet(np.ones(count), size=n) * (rng.random((n, count)) < 0.6)
    return Seen(labellings, sparse.csr_array(p))


def joint(member, row, V):
    found = np.exp(member.log_probabilities(np.full(2**V, row), every(V)))
    assert found.sum() == pytest.approx(1.0)
    return found


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("seed", range(3))
def test_the_most_probable_labelling_is_that_of_enumeration(seed, limits):
    V, limits = 7, LIMITS[limits]
    member = random_member(6, V, seed, 0.5, limits)
    fair = allowed(limits, every(V))
    for width in (128, 3, 1):
        found = member.most_probable(width)
        assert np.all(found.optimal)
        for row in range(6):
            log_p = member.log_probabilities(np.full(2**V, row), every(V))
            np.testing.assert_array_equal(np.isfinite(log_p), fair)
            assert -found.loss[row] == pytest.approx(log_p.max())
            np.testing.assert_array_equal(found.labels[row], every(V)[log_p.argmax()])
    if not limits:
        assert np.exp(log_p).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("limits", LIMITS)
def test_clamped_searches_agree_with_enumeration(limits):
    V, limits = 7, LIMITS[limits]
    member = random_member(8, V, 5, 0.5, limits)
    fair, rng = every(V)[allowed(limits, every(V))], np.random.default_rng(0)
    clamp = fair[rng.integers(len(fair), size=8)] * (rng.random((8, V)) < 0.4)
    found = member.most_probable(4, clamp)
    for row in range(8):
        agree = fair[np.all(fair * clamp[row] >= 0, axis=1)]
        log_p = member.log_probabilities(np.full(len(agree), row), agree)
        np.testing.assert_array_equal(found.labels[row], agree[log_p.argmax()])


def test_fourteen_labels_are_searched_exactly():
    V, limits = 14, [pt.factors.AtMostOne(*NAMES[:4]), pt.factors.Implies("l9", "l2"), pt.factors.Or("l3", "l5", "l13")]
    member = random_member(2, V, 0, 0.3, limits)
    found = member.most_probable(8)
    for row in range(2):
        log_p = member.log_probabilities(np.full(2**V, row), every(V))
        assert found.optimal[row]
        assert -found.loss[row] == pytest.approx(log_p[allowed(limits, every(V))].max())


def test_a_beam_keeps_the_best_prefixes_in_order():
    member = random_member(4, 4, 0)
    kept = member.beam(16)
    for row in range(4):
        np.testing.assert_allclose(kept.log_p[row], np.sort(np.log(joint(member, row, 4)))[::-1])
    assert np.all(member.beam(2).bound < 0)


@pytest.mark.parametrize("power", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("seed", range(2))
def test_labellings_with_a_forest_equal_enumeration(power, seed):
    V = 4
    member, seen = random_member(5, V, seed, scale=1.0), random_seen(5, V, 7)
    found = candidates(member, seen, 2.0, 16).best(power)
    for row in range(5):
        score = np.log(joint(member, row, V))
        q = np.array([seen.probabilities.toarray()[row][np.all(seen.labellings == y, axis=1)].sum() for y in every(V)])
        score += power * np.log(q + FLOOR)
        np.testing.assert_array_equal(found.labels[row], every(V)[score.argmax()])
        assert -found.loss[row] <= score.max() + 1e-9
    assert np.all(found.optimal)


def test_conditionals_are_penalised_logistic_regressions():
    rng = np.random.default_rng(0)
    signs = np.where(rng.random((80, 3)) < 0.4, 1.0, -1.0)
    scores = signs[:, :, None] * 0.5 + rng.normal(size=(80, 3, 2))
    weight = rng.random((80, 3))
    order = np.array([2, 0, 1])
    found = learn_conditionals(scores, signs, signs, order, 1e6, weight, 20)
    # so strong a ridge leaves the regression of all labels at once
    plain = LogisticRegression(C=1e3, tol=1e-10, max_iter=1000)
    plain.fit(scores.reshape(240, 2), signs.ravel(), sample_weight=weight.ravel())
    np.testing.assert_allclose(found.weight, np.tile(plain.coef_, (3, 1)), atol=1e-2)
    assert np.abs(found.coupling).max() < 1e-3
    free = learn_conditionals(scores, signs, signs, order, 1e-6, weight, 1)
    assert np.count_nonzero(free.coupling) == 2
    used = np.flatnonzero(free.coupling[2])[0]
    A = np.column_stack([scores[:, 1], signs[:, order[used]]])
    plain = LogisticRegression(C=1e9, tol=1e-10, max_iter=1000).fit(A, signs[:, 1], sample_weight=weight[:, 1])
    np.testing.assert_allclose(np.append(free.weight[2], free.coupling[2, used]), plain.coef_[0], atol=1e-3)


def test_a_forest_has_the_shares_of_its_leaves_and_held_out_ones():
    X, Y = labelled_rows(60)
    signs = 2.0 * Y - 1
    forest, aside_of = learn_forest(X, signs[None], np.ones(60), 30, 0)
    held_out = aside_of(np.arange(60))
    p = forest.seen(X).probabilities
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    np.testing.assert_allclose(forest.seen(sparse.csr_array(X)).probabilities.toarray(), p.toarray())
    np.testing.assert_allclose(held_out.probabilities.sum(axis=1), 1.0)
    truth = np.array([np.flatnonzero(np.all(forest.labellings == y, axis=1))[0] for y in signs])
    own = np.mean(p.toarray().argmax(axis=1) == truth)
    aside = np.mean(held_out.probabilities.toarray().argmax(axis=1) == truth)
    assert own > 0.95 > aside
    plain = RandomForestRegressor(30, max_features="sqrt", random_state=0, oob_score=True).fit(X, signs)
    means = 2 * held_out.marginals() - 1
    assert abs(np.mean((means - signs) ** 2) - np.mean((plain.oob_prediction_ - signs) ** 2)) < 0.1


def test_scikit_learn_accepts_it():
    # the most probable labelling may have labels that are, each alone, less probable than not
    known = {"check_classifier_multioutput": "compares predictions with label-wise probabilities"}
    kinds = ("dense", "sparse")
    known |= {f"check_sample_weight_equivalence_on_{kind}_data": "trees draw rows" for kind in kinds}
    model = pt.LabelNetwork(["linear"], **SMALL)
    for outcome in check_estimator(model, on_fail=None, on_skip=None, expected_failed_checks=known):
        assert outcome["status"] in ("passed", "skipped", "xfail"), (outcome["check_name"], outcome["exception"])


CASES = {
    "auto": {},
    "hamming": {"units": ["linear"], "target": "hamming"},
    "no forest": {"units": ["linear"], "n_trees": 0, "order": "index"},
    "forest alone": {"units": []},
    "boosting": {"units": ["boosting"]},
    "classifiers": {"units": ["linear", LogisticRegression()], "order": [3, 1, 0, 2, 4]},
    "constraints": {"units": ["linear"], "constraints": {"3": "2"}},
}


@pytest.mark.parametrize("thin", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_saved_networks_predict_identically(case, thin, tmp_path):
    X, Y = labelled_rows()
    Y = np.column_stack([Y, np.ones(len(Y), dtype=int)])  # a label that never varies
    Y[:, 2] |= Y[:, 3]
    X = sparse.csr_array(X) if thin else X
    model = pt.LabelNetwork(**{**SMALL, **CASES[case]}).fit(X, Y)
    found, p = model.search(X), model.predict_proba(X)
    assert np.all(p[:, 4] == 1)
    assert np.all((p >= 0) & (p <= 1))
    assert found.optimal.all()
    expected = found.labels if model.whole_ and model.target == "exact" else p > 0.5
    np.testing.assert_array_equal(expected, model.predict(X))
    assert pt.metrics.exact_match(Y, model.predict(X)) > 0.5
    model.save(tmp_path / "m")
    again = pt.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.predict_proba(X), p)
    assert (again.power_, again.units_, list(again.order_)) == (model.power_, model.units_, list(model.order_))
    same = clone(model).fit(X, Y)
    np.testing.assert_array_equal(same.predict_proba(X), p)


def test_probabilities_are_each_labels_own_and_targets_read_them():
    X, Y = labelled_rows(300)
    model = pt.LabelNetwork(["linear"], **SMALL).fit(X[:200], Y[:200])
    p = model.predict_proba(X[200:])
    np.testing.assert_array_equal(model.predict(X[200:], target="hamming"), p > 0.5)
    np.testing.assert_array_equal(model.predict(X[200:], target="f1"), p > model.thresholds_)
    np.testing.assert_array_equal(model.predict(X[200:]), model.predict(X[200:], target="exact"))
    assert np.all(model.thresholds_ <= 0.5)  # half of the best F1
    with pytest.raises(pt.PotentiaError, match="target"):
        model.predict(X, target="accuracy")


def test_labels_that_depend_on_each_other_are_found_together():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    first = (X[:, 0] + 0.8 * rng.normal(size=300) > 0).astype(int)
    Y = np.column_stack([first, 1 - first, (X[:, 1] > 0).astype(int)])  # the second always differs from the first
    model = pt.LabelNetwork(["linear"], **SMALL).fit(X[:200], Y[:200])
    found = model.predict(X[200:])
    assert model.whole_
    assert np.all(found[:, 0] != found[:, 1])


def test_labels_that_cannot_be_told_are_predicted_each_for_itself():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(150, 3)), (rng.random((150, 12)) < 0.4).astype(int)
    model = pt.LabelNetwork(["linear"], **SMALL).fit(X, Y)
    power = [r for r in model.cv_results_ if r["power"] == model.power_]
    assert {r["whole"] for r in power} == {True, False}
    assert not model.whole_
    np.testing.assert_array_equal(model.predict(X), model.predict_proba(X) > 0.5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"units": ["forest"]}, "units"),
        ({"units": [3]}, "units must be names or classifiers"),
        ({"units": [], "n_trees": 0}, "nothing to learn with"),
        ({"order": "learned"}, "order"),
        ({"target": "accuracy"}, "target"),
        ({"width": 0}, "width"),
    ],
)
def test_bad_options_are_one_sentence(options, words):
    X, Y = labelled_rows(20)
    with pytest.raises(pt.PotentiaError, match=words):
        pt.LabelNetwork(**options).fit(X, Y)


def test_what_cannot_be_saved_says_so(tmp_path):
    X, Y = labelled_rows(40)
    model = pt.LabelNetwork([ExtraTreesClassifier(5)], n_trees=0, cv=2).fit(X, Y)
    with pytest.raises(pt.PotentiaError, match="ExtraTreesClassifier cannot be saved"):
        model.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_rows_of_weight_zero_are_left_out_and_balance_finds_more():
    X, Y = labelled_rows(150)
    Y[:, 0] &= (np.arange(150) % 4 == 0).astype(int)
    for options in ({"units": ["linear", LogisticRegression()]}, {"units": ["rbf"]}):
        kept = np.arange(150) % 5 != 0
        whole = pt.LabelNetwork(**{**SMALL, **options}).fit(X, Y, sample_weight=2.0 * kept)
        part = pt.LabelNetwork(**{**SMALL, **options}).fit(X[kept], Y[kept])
        np.testing.assert_array_equal(whole.predict_proba(X), part.predict_proba(X))
        plain, balanced = (
            pt.LabelNetwork(**{**SMALL, **options}, class_weight=weight).fit(X, Y).predict_proba(X)[:, 0].sum()
            for weight in (None, "balanced")
        )
        assert balanced > plain


def test_a_file_whose_forest_has_no_trees_is_refused(tmp_path):
    X, Y = labelled_rows()
    pt.LabelNetwork(["linear"], **{**SMALL, "n_trees": 3}).fit(X, Y).save(tmp_path / "m")
    kind = file_kind(tmp_path / "m")
    content, arrays = read_file(tmp_path / "m", kind)
    (roots,) = (name for name in arrays if name.endswith("roots"))
    write_file(tmp_path / "m", kind, content, {**arrays, roots: arrays[roots][:0]})
    with pytest.raises(pt.PotentiaError, match="trees are inconsistent"):
        pt.load(tmp_path / "m")


def test_options_changed_after_the_fit_leave_the_forest_as_it_is():
    X, Y = labelled_rows()
    model = pt.LabelNetwork(["linear"], **SMALL).fit(X, Y)
    before = model.predict(X)
    model.n_trees = 0
    np.testing.assert_array_equal(model.predict(X), before)


def test_a_search_without_labels_that_vary_gives_the_constants():
    X, Y = labelled_rows(n=20)
    found = pt.LabelNetwork(**SMALL).fit(X, np.ones_like(Y)).search(X[:3])
    np.testing.assert_array_equal(found.labels, np.ones((3, 4)))
    assert found.optimal.all()


def test_predictions_satisfy_constraints_in_every_target():
    X, Y = labelled_rows(240, K=6)
    Y[:, 1] |= Y[:, 0]
    Y[:, 4] &= 1 - Y[:, 3]
    limits = [pt.factors.Implies("0", "1"), pt.factors.AtMostOne("3", "4")]
    model = pt.LabelNetwork(["linear"], **SMALL, constraints=limits).fit(X[:160], Y[:160])
    for target in ("exact", "hamming", "f1"):
        found = model.predict(X[160:], target=target)
        assert np.all(found[:, 0] <= found[:, 1])
        assert np.all(found[:, 3] + found[:, 4] <= 1)
    free = pt.LabelNetwork(["linear"], **SMALL).fit(X[:160], Y[:160])
    assert model.score(X[160:], Y[160:]) >= free.score(X[160:], Y[160:]) - 0.02


def test_missing_labels_are_filled_in_and_left_out():
    X, Y = labelled_rows(400, K=5)
    rng = np.random.default_rng(1)
    holes = np.where(rng.random(Y.shape) < 0.3, np.nan, Y.astype(float))
    whole, part = (pt.LabelNetwork(["linear"], **SMALL).fit(X[:300], y[:300]) for y in (Y, holes))
    assert part.score(X[300:], Y[300:]) >= 0.85 * whole.score(X[300:], Y[300:])
    again = pt.LabelNetwork(["linear"], **SMALL).fit(X[:300], np.where(np.isnan(holes), -1, Y)[:300])
    np.testing.assert_array_equal(again.predict_proba(X), part.predict_proba(X))
    objects = np.where(np.isnan(holes), None, Y.astype(object))
    again = pt.LabelNetwork(["linear"], **SMALL).fit(X[:300], objects[:300])
    np.testing.assert_array_equal(again.predict_proba(X), part.predict_proba(X))


def test_held_out_measures_and_dependences_are_reported():
    X, Y = labelled_rows(200, K=3)
    Y[:, 2] = 1 - Y[:, 0]
    model = pt.LabelNetwork(["linear"], **SMALL).fit(X, Y)
    for who in ("joint", "alone"):
        for value, low, high in model.held_out_[who].values():
            assert low <= value <= high
    exact = [r["exact_match"] for r in model.cv_results_ if (r["power"], r["whole"]) == (model.power_, model.whole_)]
    assert model.held_out_["joint"]["exact_match"][0] == pytest.approx(exact[0])
    first, second, change = model.dependences()[0]
    assert {first, second} == {"0", "2"}
    assert change < 0


def test_exact_match_of_rows_with_missing_labels_is_right_on_average():
    rng, found = np.random.default_rng(0), []
    wrong = rng.random((400, 6)) < 0.1
    right = np.mean(~wrong.any(axis=1))
    for _ in range(300):
        known = rng.random(wrong.shape) >= np.linspace(0.1, 0.4, 6)
        found.append(label_network._all_right(wrong, known).mean())
        assert np.mean(~(wrong & known).any(axis=1)) > right
    assert np.mean(found) == pytest.approx(right, abs=3 * np.std(found) / np.sqrt(300))
    np.testing.assert_array_equal(label_network._all_right(wrong, np.ones_like(wrong)), ~wrong.any(axis=1))


def test_labellings_are_drawn_by_their_probabilities():
    loss = np.array([0.5, 0.5 + np.log(3), 2.0, 1.0, 1.0 + np.log(2), 1.0 + np.log(4)])
    listed = Ranked(np.array([0, 0, 1, 2, 2, 2]), np.zeros((6, 1)), loss, np.zeros(3))
    places = listed.drawn(20_000, np.random.default_rng(0))
    np.testing.assert_array_equal(places[:10_000], np.tile([0, 2, 3], (10_000, 1)))
    shares = np.stack([np.bincount(column, minlength=6) for column in places[10_000:].T]) / 10_000
    expected = [[3 / 4, 1 / 4, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 4 / 7, 2 / 7, 1 / 7]]
    np.testing.assert_allclose(shares, expected, atol=0.02)


@pytest.mark.parametrize("units", [["linear"], ["boosting"], [LogisticRegression(), ExtraTreesClassifier(5)]])
def test_missing_labels_weights_constraints_and_sets_go_together(units, tmp_path):
    X, Y = labelled_rows(160, K=4)
    Y[:, 1] |= Y[:, 0]
    Y[:, 3] &= 1 - Y[:, 2]
    limits = [pt.factors.Implies("0", "1"), pt.factors.AtMostOne("2", "3")]
    rng = np.random.default_rng(1)
    holes = np.where(rng.random(Y.shape) < 0.3, np.nan, Y)
    model = pt.LabelNetwork(units, **SMALL, constraints=limits, class_weight="balanced")
    rows = sparse.csr_matrix(X.astype(np.float32))
    model.fit(rows[:100], holes[:100], sample_weight=rng.random(100) + 0.1).calibrate(rows[100:], Y[100:])
    sets = model.predict_set(rows, 0.8, of="labellings").labels
    for found in (*(model.predict(rows, target) for target in ("exact", "hamming", "f1")), *sets):
        assert np.all(found[:, 0] <= found[:, 1])
        assert np.all(found[:, 2] + found[:, 3] <= 1)
    copies = [pickle.loads(pickle.dumps(model))]
    if len(units) == 1:
        model.save(tmp_path / "m")
        copies.append(pt.load(tmp_path / "m"))
    for copied in copies:
        np.testing.assert_array_equal(copied.predict_proba(rows), model.predict_proba(rows))
        np.testing.assert_array_equal(copied.predict_set(rows).high, model.predict_set(rows).high)
        for a, b in zip(copied.predict_set(rows, 0.8, of="labellings").labels, sets, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_of_many_rows_some_are_held_out_and_units_learn_from_all(share, monkeypatch, tmp_path):
    monkeypatch.setattr(label_network, "_LEARNED", 120)
    monkeypatch.setattr(label_network, "_COMPARED", 80)
    X, Y = labelled_rows(500)
    holes = np.where(np.random.default_rng(0).random(Y.shape) < share, np.nan, Y)
    model = pt.LabelNetwork(["linear"], **SMALL).fit(X[:400], holes[:400])
    assert model._forest.labellings.shape[0] <= 2**4
    few = pt.LabelNetwork(["linear"], **SMALL).fit(X[:120], holes[:120])
    assert np.abs(model._units[0]._coef - few._units[0]._coef).max() > 1e-3
    assert model.score(X[400:], Y[400:]) >= few.score(X[400:], Y[400:]) - 0.05
    mapped = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", shape=X.shape)
    mapped[:] = X
    again = pt.LabelNetwork(["linear"], **SMALL).fit(np.load(tmp_path / "x.npy", mmap_mode="r")[:400], holes[:400])
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
