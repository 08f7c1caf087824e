"""What every multi-label estimator shares with scikit-learn's tools, and search on trained models."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import make_multilabel_classification
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import potentia as pt
from potentia.models.multilabel.constraints import forced
from potentia.models.multilabel.machine import find_labelling
from potentia_studies import baselines
from test_lmbm import random_machine
from test_lmsbn import random_network

ESTIMATORS = [
    pt.LMSBN(alpha=1e-2),
    pt.LMSBN(alpha=1e-2, kernel="rbf"),
    pt.LMBM(alpha=1e-2),
    pt.LabelNetwork(["linear"], n_trees=10, cv=2),
    pt.multilabel.IndependentClassifiers(),
    baselines.ChainSSVM(alpha=0.1),
    baselines.CompleteSSVM(alpha=0.1),
]


def rows(n_labels, n=60, seed=0):
    X, Y = make_multilabel_classification(n, n_features=6, n_classes=n_labels, random_state=seed)
    return StandardScaler().fit_transform(X), Y


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: f"{type(e).__name__}-{getattr(e, 'kernel', None)}")
def test_pipelines_searches_clones_and_data_frames(estimator):
    X, Y = rows(3)
    frame, labels = pd.DataFrame(X, columns=list("abcdef")), pd.DataFrame(Y, columns=["sun", "sea", "sand"])
    model = clone(estimator).fit(frame, labels)
    assert list(model.label_names_) == ["sun", "sea", "sand"]
    np.testing.assert_array_equal(np.asarray(model.predict(frame)), clone(estimator).fit(X, Y).predict(X))
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.decision_function(frame), model.decision_function(frame))
    name = type(estimator).__name__.lower()
    grid = {f"{name}__parents": [0, 2]} if isinstance(estimator, pt.LabelNetwork) else {f"{name}__alpha": [0.1, 0.3]}
    steps = make_pipeline(StandardScaler(), clone(estimator)).set_output(transform="pandas")
    search = GridSearchCV(steps, grid, cv=2).fit(frame, labels)
    assert list(search.best_estimator_[-1].feature_names_in_) == list(frame.columns)
    assert search.predict(frame).shape == Y.shape


@pytest.mark.parametrize("estimator", ESTIMATORS[:5:2], ids=lambda e: type(e).__name__)
def test_polars_frames_keep_their_names(estimator):
    pl = pytest.importorskip("polars")
    X, Y = rows(3)
    frame, labels = pl.DataFrame(X, list("abcdef")), pl.DataFrame(Y, ["sun", "sea", "sand"])
    model = clone(estimator).fit(frame, labels)
    assert (model.label_names_, list(model.feature_names_in_)) == (["sun", "sea", "sand"], list("abcdef"))
    np.testing.assert_array_equal(model.predict(frame), clone(estimator).fit(X, Y).predict(X))
    assert model.score(frame, labels) == model.score(frame, Y)


def test_constrained_searches_of_fourteen_labels_equal_enumeration():
    K = 14
    every = 2.0 * ((np.arange(2**K)[:, None] >> np.arange(K)) & 1) - 1.0
    limits = [pt.factors.ExactlyOne("0", "7", "2"), pt.factors.Implies("13", "4"), pt.factors.AtMostOne("4", "5", "9")]
    members = [[int(name) for name in factor.names] for factor in limits]
    fair = np.all([f.allows((every > 0).astype(int)[:, own]) for f, own in zip(limits, members, strict=True)], axis=0)
    network, base = random_network(K, 0, terms=False, limits=limits)
    found, placed = network.search(base, np.inf, 10**9), every[:, network.order]
    free = ~forced(network.rules, placed)
    assert found.optimal.all()
    for row, labelling in zip(base, found.labels[:, 0], strict=True):
        margins = placed * (row[network.order] + placed @ network.links.coupling.T)
        losses = np.where(fair, (np.maximum(0.0, 1.0 - margins) * free).sum(axis=1), np.inf)
        np.testing.assert_array_equal(labelling, every[losses.argmin()])
    machine, pairs, scores = random_machine(K, 2, 0, 0.5, limits)
    weight = np.zeros((K, K))
    weight[tuple(np.transpose(pairs))] = machine.weight
    found = find_labelling(machine, scores[:3], "exact")
    for row, labelling in zip(scores, found.labels, strict=False):
        margins = every * (row + every @ (weight + weight.T))
        losses = np.where(fair, np.maximum(0.0, 1.0 - margins).sum(axis=1), np.inf)
        np.testing.assert_array_equal(labelling, every[losses.argmin()])


@pytest.mark.parametrize("n_labels", [5, 9, 14])
def test_search_on_trained_models_equals_enumeration(n_labels):
    X, Y = rows(n_labels, n=80, seed=n_labels)
    net = pt.LMSBN(alpha=1e-2).fit(X, Y)
    found = net.search(X[:8])
    every = (np.arange(2**n_labels)[:, None] >> np.arange(n_labels)) & 1
    assert found.optimal.all()
    for row in range(8):
        losses = net.labelling_loss(np.repeat(X[row : row + 1], len(every), axis=0), every)
        assert found.loss[row] == pytest.approx(losses.min(), abs=1e-9)
        assert net.labelling_loss(X[row : row + 1], found.labels[row : row + 1])[0] == pytest.approx(
            losses.min(), abs=1e-9
        )
