"""The usual multi-label methods in the library's style, thresholds, and the sets they are tried on."""

from typing import get_args

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import ClassifierChain as SklearnChain
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_estimator

import potentia as pt
from potentia_studies import baselines
from potentia_studies.baselines import tune
from potentia_studies.public_sets import multilabel
from test_lmsbn import labelled_rows


@pytest.mark.parametrize(
    "model",
    [
        pt.multilabel.IndependentClassifiers(),
        pt.multilabel.IndependentClassifiers(kernel="rbf"),
        baselines.ClassifierChain(),
        baselines.LabelPowerset(),
        baselines.ThresholdClassifier(cv=2),
        baselines.ThresholdClassifier(pt.LMSBN(order="index"), measure="exact_match", cv=2),
    ],
    ids=lambda m: str(m).split("(")[0],
)
def test_scikit_learn_accepts_every_baseline(model):
    # two rows and one of weight 2 have the same solution up to the tolerance only
    kinds = ("dense", "sparse")
    known = {f"check_sample_weight_equivalence_on_{kind}_data": "up to the tolerance" for kind in kinds}
    for outcome in check_estimator(model, on_fail=None, on_skip=None, expected_failed_checks=known):
        assert outcome["status"] in ("passed", "skipped", "xfail"), (outcome["check_name"], outcome["exception"])


@pytest.mark.parametrize("kernel", [None, "rbf"])
def test_a_row_of_weight_two_is_two_rows(kernel):
    X, Y = labelled_rows()
    weight = np.random.default_rng(0).integers(0, 3, len(X))
    repeated = np.repeat(np.arange(len(X)), weight)
    for given in (X, sparse.csr_array(X)):
        model = pt.multilabel.IndependentClassifiers(1e-2, kernel=kernel, gamma=0.5, tol=1e-10, passes=100_000)
        weighted = model.fit(given, Y, sample_weight=weight).predict_proba(given)
        again = model.fit(given[repeated], Y[repeated]).predict_proba(given)
        np.testing.assert_allclose(weighted, again, atol=1e-6)


def test_independent_classifiers_are_support_vector_machines(tmp_path):
    X, Y = labelled_rows()
    model = pt.multilabel.IndependentClassifiers(1e-2, tol=1e-8).fit(X, Y)
    for k in range(Y.shape[1]):
        svm = LinearSVC(C=100 / len(X), loss="hinge", tol=1e-9, max_iter=10**6, random_state=0).fit(X, Y[:, k])
        assert np.allclose(model.decision_function(X)[:, k], svm.decision_function(X), atol=1e-4)
    model.save(tmp_path / "model.pt")
    back = pt.load(tmp_path / "model.pt")
    assert type(back) is pt.multilabel.IndependentClassifiers
    assert np.array_equal(back.predict(X), model.predict(X))
    constant = pt.multilabel.IndependentClassifiers().fit(X, np.zeros(len(X)))
    constant.save(tmp_path / "constant.pt")
    assert np.array_equal(pt.load(tmp_path / "constant.pt").predict(X), np.zeros(len(X)))


def test_chain_is_scikit_learns_chain():
    X, Y = labelled_rows()
    ours = baselines.ClassifierChain(order=[3, 1, 0, 2]).fit(X, Y)
    theirs = SklearnChain(LogisticRegression(max_iter=1000), order=[3, 1, 0, 2]).fit(X, Y)
    assert np.array_equal(ours.predict(X), theirs.predict(X))
    assert np.allclose(ours.decision_function(X), theirs.decision_function(X))


def test_powerset_predicts_whole_labellings():
    X, Y = labelled_rows()
    model = baselines.LabelPowerset().fit(X, Y)
    seen = {tuple(row) for row in Y}
    predicted = model.predict(X)
    assert {tuple(row) for row in predicted} <= seen
    assert np.array_equal(model.decision_function(X) > 0, predicted > 0)
    number = np.unique(Y, axis=0, return_inverse=True)[1].ravel()
    plain = LogisticRegression(max_iter=1000).fit(X, number)
    assert np.array_equal(predicted, np.unique(Y, axis=0)[plain.predict(X)])


@pytest.mark.parametrize("measure", list(pt.metrics.MEASURES))
def test_no_single_threshold_improves_a_tuned_measure(measure):
    rng = np.random.default_rng(0)
    truth = rng.random((60, 3)) < [0.1, 0.3, 0.6]
    scores = np.round(truth + rng.normal(size=truth.shape) - 1.0, 1)  # rounded: ties
    thresholds = tune(scores, truth, measure)
    sign = -1 if measure == "hamming_loss" else 1
    value = sign * pt.metrics.MEASURES[measure](truth, scores > thresholds)
    assert value >= sign * pt.metrics.MEASURES[measure](truth, scores > 0)
    for k in range(3):
        for other in np.concatenate([np.unique(scores[:, k]), [-9.0]]):
            changed = thresholds.copy()
            changed[k] = other
            assert sign * pt.metrics.MEASURES[measure](truth, scores > changed) <= value + 1e-12


def test_measures_in_types_are_the_measures():
    assert set(get_args(baselines.Measure)) == set(pt.metrics.MEASURES)


def test_thresholds_help_rare_labels_also_around_a_network():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5))
    Y = (X @ rng.normal(size=(5, 4)) + 2.0 * rng.normal(size=(400, 4)) > 3.2).astype(int)
    for inner in (pt.multilabel.IndependentClassifiers(1e-2), pt.LMSBN(1e-2)):
        plain = inner.fit(X[:200], Y[:200])
        tuned = baselines.ThresholdClassifier(inner).fit(X[:200], Y[:200])
        f = [pt.metrics.f_macro(Y[200:], m.predict(X[200:])) for m in (plain, tuned)]
        assert f[1] > f[0] + 0.05
        assert tuned.held_out_[1] > tuned.held_out_[0]
        assert np.array_equal(tuned.decision_function(X) > 0, tuned.predict(X) > 0)
    for bad, words in (({"measure": "luck"}, "measure must be"), ({"cv": 1}, "cv must be")):
        with pytest.raises(pt.PotentiaError, match=words):
            baselines.ThresholdClassifier(**bad).fit(X, Y)


def test_data_frames_keep_their_names():
    pandas = pytest.importorskip("pandas")
    X, Y = labelled_rows()
    rows = pandas.DataFrame(X, columns=[f"x{k}" for k in range(X.shape[1])])
    labels = pandas.DataFrame(Y, columns=["sky", "sea", "sun", "sand"])
    model = pt.LMSBN().fit(rows, labels)
    assert model.label_names_ == ["sky", "sea", "sun", "sand"]
    assert list(model.feature_names_in_) == list(rows.columns)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(rows.rename(columns={"x0": "other"}))
    assert pt.LMSBN().fit(rows, labels["sea"]).label_names_ == ["sea"]


class Frame:
    """What is used of a data frame's labels, where there is no pandas."""

    def __init__(self, values, columns):
        self.values, self.columns = values, columns

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype=dtype)

    def __len__(self):
        return len(self.values)


def test_label_names_come_from_columns():
    X, Y = labelled_rows(K=2)
    assert pt.multilabel.IndependentClassifiers().fit(X, Frame(Y, ["sky", "sea"])).label_names_ == ["sky", "sea"]
    assert pt.multilabel.IndependentClassifiers().fit(X, Y).label_names_ == ["0", "1"]


def test_sets_are_read(tmp_path):
    try:
        scene = multilabel("scene")
    except pt.PotentiaError as error:
        pytest.skip(str(error))
    assert scene.X_train.shape == (1211, 294)
    assert scene.Y_test.shape == (1196, 6)
    assert scene.label_names[0] == "Beach"
    songs = multilabel("cal500")
    assert (len(songs.X_train), len(songs.X_test), songs.Y_test.shape[1]) == (334, 168, 174)
    np.testing.assert_array_equal(songs.X_train, multilabel("cal500").X_train)
    topics = multilabel("rcv1_subset1_top944")
    assert sparse.issparse(topics.X_train)
    assert topics.Y_train.shape == (3000, 101)
    with pytest.raises(pt.PotentiaError, match="name must be one of"):
        multilabel("nothing")
    with pytest.raises(pt.PotentiaError, match="no such file"):
        multilabel("scene", tmp_path)
