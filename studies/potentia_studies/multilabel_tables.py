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
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

import potentia as pt
from potentia.app.report.rows import Cell, Row, Table, grid
from potentia.models.multilabel.hinge import median_width

from . import baselines, public_sets
from .public_sets import MULTILABEL_SETS
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


class MLkNN(ClassifierMixin, BaseEstimator):
    """Each label by Bayes' rule from how many of a row's neighbours have it [Zhang and Zhou 2007]."""

    def __init__(self, k: int = 10, smooth: float = 1.0) -> None:
        self.k, self.smooth = k, smooth

    def fit(self, X: Any, Y: np.ndarray) -> MLkNN:
        """Count neighbours with each label, of training rows with and without it."""
        n, s = len(Y), self.smooth
        self.rows_, self.labels_ = NearestNeighbors(n_neighbors=self.k).fit(X), Y
        near = Y[self.rows_.kneighbors(return_distance=False)].sum(axis=1)
        self.prior_ = (s + Y.sum(axis=0)) / (2 * s + n)
        bins = np.arange(self.k + 1)[:, None, None]
        has = np.stack([((near == bins) & (v == Y)).sum(axis=1) for v in (0, 1)])
        self.chance_ = (s + has) / (s * (self.k + 1) + has.sum(axis=1, keepdims=True))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Labels (n, K)."""
        near = self.labels_[self.rows_.kneighbors(X, return_distance=False)].sum(axis=1)
        absent, present = (np.take_along_axis(chance, near, axis=0) for chance in self.chance_)
        return (self.prior_ * present > (1 - self.prior_) * absent).astype(int)


class Powerset(ClassifierMixin, BaseEstimator):
    """A classifier whose classes are the labellings of training rows, or of subsets of labels that vote (RAkEL).

    size: labels of each of 2 K random subsets [Tsoumakas and Vlahavas 2007]; None for all labels at once.
    """

    def __init__(self, estimator: Any, size: int | None = None, random_state: int | None = None) -> None:
        self.estimator, self.size, self.random_state = estimator, size, random_state

    def fit(self, X: Any, Y: np.ndarray) -> Powerset:
        """Learn each subset's labellings as classes."""
        rng, K = np.random.default_rng(self.random_state), Y.shape[1]
        self.n_labels_, self.parts_ = K, []
        for _ in range(1 if self.size is None else 2 * K):
            labels = np.arange(K) if self.size is None else np.sort(rng.permutation(K)[: self.size])
            classes, number = np.unique(Y[:, labels], axis=0, return_inverse=True)
            model = clone(self.estimator).fit(X, number.ravel()) if len(classes) > 1 else None
            self.parts_.append((labels, classes, model))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Labels (n, K): of more than half of the subsets that have them."""
        votes, count = np.zeros((X.shape[0], self.n_labels_)), np.zeros(self.n_labels_)
        for labels, classes, model in self.parts_:
            number = np.zeros(X.shape[0], dtype=int) if model is None else model.predict(X)
            votes[:, labels] += classes[number]
            count[labels] += 1
        return (votes > count / 2).astype(int)


class ChainEnsemble(ClassifierMixin, BaseEstimator):
    """Chains in random orders on bootstrap samples, whose votes are averaged [Read et al. 2011]."""

    def __init__(self, estimator: Any, n_chains: int = 10, random_state: int | None = None) -> None:
        self.estimator, self.n_chains, self.random_state = estimator, n_chains, random_state

    def fit(self, X: Any, Y: np.ndarray) -> ChainEnsemble:
        """Learn every chain on rows drawn with replacement."""
        rng, self.chains_ = np.random.default_rng(self.random_state), []
        for _ in range(self.n_chains):
            rows = rng.integers(len(Y), size=len(Y))
            chain = baselines.ClassifierChain(self.estimator, order="random", random_state=int(rng.integers(2**31)))
            self.chains_.append(chain.fit(X[rows], Y[rows]))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Labels (n, K): of more than half of the chains."""
        return (np.mean([chain.predict(X) for chain in self.chains_], axis=0) > 0.5).astype(int)


def _chains(C: float) -> Any:
    return ChainEnsemble(LinearSVC(C=C), random_state=0)


def _rakel(C: float) -> Any:
    return Powerset(LinearSVC(C=C), 3, random_state=0)


def _linear(wrap: Any, C: float) -> Any:
    return wrap(LinearSVC(C=C))


def _kernel(wrap: Any, base: float, C: float, width: float) -> Any:
    return wrap(SVC(C=C, gamma=base * width))


def _boosted(**_: Any) -> Any:
    from lightgbm import LGBMClassifier

    options: dict[str, Any] = {"num_threads": 1, "verbose": -1, "deterministic": True, "force_row_wise": True}
    return PerLabel(LGBMClassifier(n_estimators=100, **options))


_WRAPS = {"independent": PerLabel, "chain": baselines.ClassifierChain, "powerset": baselines.LabelPowerset}

#: Systems that are not run with the others, because they take many hours.
HOURS = ("chains, ensemble", "RAkEL")
SYSTEMS = (
    OURS,
    *(f"{name}, {kind}" for kind in ("linear", "RBF") for name in _WRAPS),
    "random forest",
    "powerset, forest",
    "ML-kNN",
    "chains, ensemble",
    "RAkEL",
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
    if name == "powerset, forest":
        return System(name, partial(Powerset, RandomForestClassifier(n_estimators=200, random_state=0)))
    if name == "ML-kNN":
        return System(name, MLkNN, {"k": (5, 10, 20)}, folds=FOLDS)
    if name == "chains, ensemble":
        return System(name, _chains, _C, folds=FOLDS)
    if name == "RAkEL":
        return System(name, _rakel, _C, folds=FOLDS)
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
    data = public_sets.multilabel(name)
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
    targets: Row = {}
    if isinstance(model, pt.LabelNetwork) and cell["system"] == OURS:
        targets["target_hamming_loss"] = pt.metrics.hamming_loss(Y[test], model.predict(X_test, target="hamming"))
        targets["target_f_macro"] = pt.metrics.f_macro(Y[test], model.predict(X_test, target="f1"))
        targets["log_loss"] = _log_loss(Y[test], model.predict_proba(X_test))
    elif cell["system"] in ("random forest", "LightGBM"):
        targets["log_loss"] = _log_loss(Y[test], _positive(model, X_test))
    return {
        "options": options,
        **pt.metrics.all_measures(Y[test], found),
        "fit_seconds": trained - begun,
        "predict_seconds": time.perf_counter() - trained,
        **targets,
        "rows": len(Y),
        "labels": Y.shape[1],
    }


def _log_loss(truth: np.ndarray, p: np.ndarray) -> float:
    """The mean over rows and labels; probabilities are kept 1e-3 away from 0 and 1, which helps trees most."""
    right = np.where(truth > 0, p, 1.0 - p)
    return float(-np.log(np.clip(right, 1e-3, 1.0)).mean())


def _positive(model: Any, X: Any) -> np.ndarray:
    """The probability that each label is present, by classifiers of scikit-learn's kind."""
    if isinstance(model, PerLabel):
        parts = [np.full(X.shape[0], m) if isinstance(m, int) else m.predict_proba(X)[:, 1] for m in model.models_]
        return np.column_stack(parts)
    pairs = zip(model.predict_proba(X), model.classes_, strict=True)
    parts = [p[:, 1] if p.shape[1] == 2 else np.full(len(p), c[0]) for p, c in pairs]
    return np.column_stack(parts)


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
    """LMSBN on cal500, where no system predicts a whole row, and what takes many hours."""
    return bool(cell["set"] == "cal500" and cell["system"] == "LMSBN, RBF") or cell["system"] in HOURS


STUDY = Study(
    "multilabel-tables",
    [cell for cell in grid(set=MULTILABEL_SETS, system=SYSTEMS, part=range(PARTS)) if not _is_left_out(cell)],
    grid(set=["emotions", "medical"], system=(OURS, "chain, linear", "powerset, RBF"), part=[0]),
    run,
    tables,
    load=load_set,
    needs=("set",),
)
