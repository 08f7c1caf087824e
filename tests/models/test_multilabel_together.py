"""What every multi-label estimator shares with scikit-learn's tools, and search on trained models."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import make_multilabel_classification
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import potentia as pt
from potentia_studies import baselines

ESTIMATORS = [
    pt.LMSBN(alpha=1e-2),
    pt.LMSBN(alpha=1e-2, kernel="rbf"),
    pt.LMBM(alpha=1e-2),
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
    name = type(estimator).__name__.lower()
    grid = {f"{name}__alpha": [0.1, 0.3]}
    search = GridSearchCV(make_pipeline(StandardScaler(), clone(estimator)), grid, cv=2).fit(X, Y)
    assert search.predict(X).shape == Y.shape


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
