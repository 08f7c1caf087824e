"""`multilabel-tables`: what `potentia train --table` trains by default beside the usual methods, cross-validated."""

from __future__ import annotations

import time
import warnings
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse
from scipy.stats import rankdata
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

import potentia as pt
from potentia.app.report.rows import Cell, Row, Table, grid
from potentia.features.datasets import MULTILABEL_SETS
from potentia.models.multilabel.hinge import median_width

from . import baselines
from .study import Rows, Study, matrix
from .systems import Grid, System, choose, fitted

#: Rows drawn from a set, labels kept (the most frequent ones), and parts of cross-validation.
ROWS, LABELS, PARTS = 600, 25, 3
#: Rows and labels of a quick run.
QUICK_ROWS, QUICK_LABELS = 150, 4
#: Folds that options are chosen in, on training rows only.
FOLDS = 3
OURS = "label network"
#: The library's other networks; they are shown but not ranked.
VARIANTS = ("LMSBN, RBF", "boosted network")

_C: Grid = {"C": (0.01, 0.1, 1.0)}
#: Gamma in units of the median rule's.
_RBF: Grid = {"C": (1.0, 10.0), "width": (1.0, 3.0)}


class PerLabel(ClassifierMixin, BaseEstimator):
    """A copy of a classifier per label; a label that is constant in training stays so."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: Any, Y: np.ndarray) -> PerLabel:
        """Learn label by label."""
        self.models_ = [int(y[0]) if np.all(y == y[0]) else clone(self.estimator).fit(X, y) for y in Y.T]
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Labels (n, K)."""
        columns = [np.full(X.shape[0], m) if isinstance(m, int) else m.predict(X) for m in self.models_]
        return np.column_stack(columns)


def _linear(wrap: Any, C: float) -> Any:
    return wrap(LinearSVC(C=C))


def _kernel(wrap: Any, base: float, C: float, width: float) -> Any:
    return wrap(SVC(C=C, gamma=base * width))


def _boosted(**_: Any) -> Any:
    from lightgbm import LGBMClassifier

    options: dict[str, Any] = {"num_threads": 1, "verbose": -1, "deterministic": True, "force_row_wise": True}
    return PerLabel(LGBMClassifier(n_estimators=100, **options))


_WRAPS = {"independent": PerLabel, "chain": baselines.ClassifierChain, "powerset": baselines.LabelPowerset}

SYSTEMS = (
    OURS,
    *(f"{name}, {kind}" for kind in ("linear", "RBF") for name in _WRAPS),
    "random forest",
    "LightGBM",
    *VARIANTS,
)


def make_system(name: str, base: float) -> System:
    """A system by name; `base`: gamma by the median rule."""
    if name == OURS:
        return System(name, pt.LabelNetwork)
    if name == "boosted network":
        return System(name, partial(pt.LabelNetwork, ["boosting"]))
    if name == "LMSBN, RBF":
        return System(name, partial(pt.LMSBN, kernel="rbf", gamma="cv"))
    if name == "random forest":
        return System(name, partial(RandomForestClassifier, n_estimators=200))
    if name == "LightGBM":
        return System(name, _boosted)
    wrap, _, kind = name.partition(", ")
    if kind == "linear":
        return System(name, partial(_linear, _WRAPS[wrap]), _C, folds=FOLDS)
    return System(name, partial(_kernel, _WRAPS[wrap], base), _RBF, folds=FOLDS)


#: Rows X and labels Y of a set, in an order drawn.
Data = tuple[Any, np.ndarray]


def load_set(quick: bool, name: str) -> Data:
    """Rows of both parts of a set, drawn, with the most frequent labels."""
    data = pt.datasets.multilabel(name)
    stack = sparse.vstack if sparse.issparse(data.X_train) else np.vstack
    X, Y = stack([data.X_train, data.X_test]), np.vstack([data.Y_train, data.Y_test])
    if name.startswith("rcv1"):
        Y = Y[:, 1:]  # of the first label's test values nothing is known
    rows, labels = (QUICK_ROWS, QUICK_LABELS) if quick else (ROWS, LABELS)
    drawn = np.random.default_rng(0).permutation(len(Y))[:rows]
    X, Y = (sparse.csr_matrix(X) if sparse.issparse(X) else X)[drawn], Y[drawn]
    frequent = np.sort(np.argsort(-Y.sum(axis=0), kind="stable")[:labels])
    return X, Y[:, frequent]


def run(cell: Cell, own: Data) -> Row:
    """Choose options on the rows outside a part, train on all of them, and measure on the part."""
    X, Y = own
    test = np.arange(len(Y)) % PARTS == cell["part"]
    X_train, X_test = X[np.flatnonzero(~test)], X[np.flatnonzero(test)]
    if not sparse.issparse(X):
        scale = StandardScaler().fit(X_train)
        X_train, X_test = scale.transform(X_train), scale.transform(X_test)
    begun = time.perf_counter()
    system = make_system(cell["system"], median_width(X_train, 0))
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # of LinearSVC with a large C
        options, _ = choose(system, X_train, Y[~test], cell["seed"])
        model = fitted(system, options, cell["seed"], X_train, Y[~test])
    trained = time.perf_counter()
    found = model.predict(X_test)
    return {
        "options": options,
        **pt.metrics.all_measures(Y[test], found),
        "fit_seconds": trained - begun,
        "predict_seconds": time.perf_counter() - trained,
        "rows": len(Y),
        "labels": Y.shape[1],
    }


def tables(rows: Rows) -> list[Table]:
    """Exact match and Hamming loss by system and set, means over parts, with mean ranks over sets."""
    return [
        _table(rows, "exact_match", "Exact match (more is better)", -1.0),
        _table(rows, "hamming_loss", "Hamming loss (less is better)", 1.0),
    ]


def _table(rows: Rows, measure: str, title: str, sign: float) -> Table:
    systems = [s for s in SYSTEMS if any(r["cell"]["system"] == s for r in rows)]
    sets = [n for n in MULTILABEL_SETS if any(r["cell"]["set"] == n for r in rows)]
    means = np.array([[_mean(rows, name, system, measure) for system in systems] for name in sets])
    entries = {(s, n): f"{means[b, a]:.4f}" for a, s in enumerate(systems) for b, n in enumerate(sets)}
    entries = {key: text for key, text in entries.items() if text != "nan"}
    ranked = [a for a, s in enumerate(systems) if s not in VARIANTS]
    compared = means[:, ranked][np.all(np.isfinite(means[:, ranked]), axis=1)]
    if len(compared):
        ranks = rankdata(sign * compared.round(6), axis=1).mean(axis=0)
        entries |= {(systems[a], "rank"): f"{rank:.2f}" for a, rank in zip(ranked, ranks, strict=True)}
    columns = {"rank": "mean rank"} | {name: name for name in sets}
    return matrix(title, ["system"], {s: [s] for s in systems}, columns, entries)


def _mean(rows: Rows, name: str, system: str, measure: str) -> float:
    found = [r[measure] for r in rows if (r["cell"]["set"], r["cell"]["system"]) == (name, system)]
    return float(np.mean(found)) if len(found) else np.nan


def _is_left_out(cell: Cell) -> bool:
    """LMSBN on cal500, where no system predicts a whole row."""
    return bool(cell["set"] == "cal500" and cell["system"] == "LMSBN, RBF")


STUDY = Study(
    "multilabel-tables",
    [cell for cell in grid(set=MULTILABEL_SETS, system=SYSTEMS, part=range(PARTS)) if not _is_left_out(cell)],
    grid(set=["emotions", "medical"], system=(OURS, "chain, linear", "powerset, RBF"), part=[0]),
    run,
    tables,
    load=load_set,
    needs=("set",),
)
