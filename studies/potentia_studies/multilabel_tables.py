"""`multilabel-tables`: what `potentia train --table` trains by default beside the usual methods, cross-validated."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.stats import betabinom, rankdata
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

import potentia as pt
from potentia.app.report.rows import Cell, Column, Row, Table, grid
from potentia.conformal import split_threshold
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
    """A copy of a classifier per label, of the rows whose label is not NaN; one that is constant stays so."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: Any, Y: np.ndarray) -> PerLabel:
        """Learn label by label."""
        self.models_ = []
        for y in Y.T:
            rows = np.flatnonzero(~np.isnan(y))
            known = y[rows].astype(int)
            alike = np.all(known == known[0])
            self.models_.append(known[0] if alike else clone(self.estimator).fit(X[rows], known))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Labels (n, K)."""
        columns = [np.full(X.shape[0], m) if isinstance(m, np.integer) else m.predict(X) for m in self.models_]
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


def _chains(C: float, n_chains: int = 10) -> Any:
    return ChainEnsemble(LinearSVC(C=C), n_chains, random_state=0)


def _rakel(C: float, alone: bool = False) -> Any:
    return PerLabel(LinearSVC(C=C)) if alone else Powerset(LinearSVC(C=C), 3, random_state=0)


def _linear(wrap: Any, C: float) -> Any:
    return wrap(LinearSVC(C=C))


def _kernel(wrap: Any, base: float, C: float, width: float) -> Any:
    return wrap(SVC(C=C, gamma=base * width))


def _boosted(**_: Any) -> Any:
    from lightgbm import LGBMClassifier

    options: dict[str, Any] = {"num_threads": 1, "verbose": -1, "deterministic": True, "force_row_wise": True}
    return PerLabel(LGBMClassifier(n_estimators=100, **options))


_WRAPS = {"independent": PerLabel, "chain": baselines.ClassifierChain, "powerset": baselines.LabelPowerset}

#: Systems whose probabilities are compared.
_PROBABLE = (OURS, "random forest", "LightGBM")
#: Systems that see training labels with a share of them removed.
MISSING, FORESTS = "label network, labels missing", "forests per label, labels missing"
_REMOVED = 0.3
#: Sets of labels and labellings: rows to learn from and to hold out, levels, random splits, labellings listed per row.
SETS = "conformal sets"
_LEARNED, _HELD, _LEVELS, _SPLITS, _LISTED = 400, 1200, (0.8, 0.9, 0.95), 50, 256
#: Made tables by name: rows, columns, labels, and the share of entries that are not zero. Rows that are tested, and
#: labels that LightGBM learns, whose CPU seconds count for all.
LARGE = {
    "100,000 rows, 100 columns, 100 labels": (100_000, 100, 100, 1.0),
    "20,000 rows, 1,000 columns, 400 labels": (20_000, 1000, 400, 0.02),
}
_TESTED, _SOME = 2000, 5
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
    if name in (OURS, MISSING):
        return System(name, pt.LabelNetwork)
    if name == FORESTS:
        return System(name, partial(PerLabel, RandomForestClassifier(n_estimators=200)))
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
        return System(name, _chains, _C, folds=FOLDS, search={"n_chains": 1})
    if name == "RAkEL":
        return System(name, _rakel, _C, folds=FOLDS, search={"alone": True})
    if name == "LightGBM":
        return System(name, _boosted)
    wrap, _, kind = name.partition(", ")
    if kind == "linear":
        return System(name, partial(_linear, _WRAPS[wrap]), _C, folds=FOLDS)
    return System(name, partial(_kernel, _WRAPS[wrap], base), _RBF, folds=FOLDS)


#: Rows X and labels Y of a set, in an order drawn.
Data = tuple[Any, np.ndarray]


def load_set(quick: bool, name: str, limit: int = ROWS) -> Data:
    """Rows of both parts of a set, drawn, with the most frequent labels; made tables are made where they are used."""
    if name in LARGE:
        return None, np.empty(0)
    data = public_sets.multilabel(name)
    stack = sparse.vstack if sparse.issparse(data.X_train) else np.vstack
    X, Y = stack([data.X_train, data.X_test]), np.vstack([data.Y_train, data.Y_test])
    if name.startswith("rcv1"):
        Y = Y[:, 1:]  # of the first label's test values nothing is known
    rows, labels = (QUICK_ROWS, QUICK_LABELS) if quick else (limit, LABELS)
    drawn = np.random.default_rng(0).permutation(len(Y))[:rows]
    X, Y = (sparse.csr_matrix(X) if sparse.issparse(X) else X)[drawn], Y[drawn]
    frequent = np.sort(np.argsort(-Y.sum(axis=0), kind="stable")[:labels])
    return X, Y[:, frequent]


def run(cell: Cell, own: Data) -> Row:
    """Choose options on the rows outside a part, train on all of them, and measure on the part."""
    if cell["system"] == SETS:
        return cover(cell)
    if cell["set"] in LARGE:
        with ProcessPoolExecutor(1, get_context("spawn")) as alone:  # whose peak of memory is not that of earlier cells
            return alone.submit(grow, *LARGE[cell["set"]], cell["system"]).result()
    X, Y = own
    test = np.arange(len(Y)) % PARTS == cell["part"]
    X_train, X_test = X[np.flatnonzero(~test)], X[np.flatnonzero(test)]
    if not sparse.issparse(X):
        scale = StandardScaler().fit(X_train)
        X_train, X_test = scale.transform(X_train), scale.transform(X_test)
    Y_train = Y[~test]
    if cell["system"] in (MISSING, FORESTS):
        removed = np.random.default_rng(cell["part"]).random(Y_train.shape) < _REMOVED
        Y_train = np.where(removed, np.nan, Y_train)
    begun = time.perf_counter()
    system = make_system(cell["system"], median_width(X_train, 0))
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # of LinearSVC with a large C
        options, _ = choose(system, X_train, Y_train, cell["seed"])
        model = fitted(system, options, cell["seed"], X_train, Y_train)
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


def grow(n: int, d: int, K: int, share: float, system: str) -> Row:
    """CPU seconds, peak memory and results of a made table, whose labels depend on ten sums of columns."""
    rng = np.random.default_rng(0)
    X: Any = rng.normal(size=(n + _TESTED, d))
    if share < 1:
        X = sparse.csr_matrix(np.where(rng.random(X.shape) < share, X, 0.0))
    Z = X @ rng.normal(size=(d, 10)) @ rng.normal(size=(10, K)) / np.sqrt(10 * d * share)
    Z += 0.5 * rng.normal(size=Z.shape)
    Y = (np.quantile(Z, 0.9, axis=0) < Z).astype(int)
    ours = system == OURS
    own, truth = (Y[:n], Y[n:]) if ours else (Y[:n, :_SOME], Y[n:, :_SOME])
    del Z
    begun = time.process_time()
    model = pt.LabelNetwork(random_state=0) if ours else _boosted()
    model.fit(X[:n], own)
    fitted_at = time.process_time()
    found = model.predict(X[n:])
    done = time.process_time()
    p = model.predict_proba(X[n:]) if ours else _positive(model, X[n:])
    status = Path("/proc/self/status").read_text()
    return {
        "fit_cpu_seconds": (fitted_at - begun) * (1 if ours else K / _SOME),
        "predict_cpu_seconds": (done - fitted_at) * (1 if ours else K / _SOME),
        "peak_mib": int(status.partition("VmHWM:")[2].split()[0]) / 1024,
        **pt.metrics.all_measures(truth, found),
        "log_loss": _log_loss(truth, p),
        "some_hamming_loss": pt.metrics.hamming_loss(truth[:, :_SOME], found[:, :_SOME]),
        "some_log_loss": _log_loss(truth[:, :_SOME], p[:, :_SOME]),
    }


def cover(cell: Cell) -> Row:
    """Coverage and sizes of the label network's sets over random splits of held-out rows into calibration and test.

    Scores of held-out rows do not depend on the split, so that they are computed once.
    """
    X, Y = load_set(cell["quick"], cell["set"], _LEARNED + _HELD)
    first = min(_LEARNED, len(Y) // 2)
    if not sparse.issparse(X):
        X = StandardScaler().fit(X[:first]).transform(X)
    model = pt.LabelNetwork(random_state=cell["seed"]).fit(X[:first], Y[:first])
    own, truth, found = X[first:], Y[first:], {}
    scores: Any = model.calibrate(own, truth)._held_out
    p, ranked = model.predict_proba(own), model._ranked(own, _LISTED)
    above = ranked.loss - ranked.loss[np.searchsorted(ranked.rows, ranked.rows)]
    rng, n, m = np.random.default_rng(cell["seed"]), len(truth), len(truth) // 2
    orders = [rng.permutation(n) for _ in range(_SPLITS)]
    for level in _LEVELS:
        covered, sizes, whole, listed, cut = [], [], [], [], []
        for held, test in ((order[:m], order[m:]) for order in orders):
            top = np.array([split_threshold(column[held], level) for column in scores.labels.T])
            covered.append(np.sum(scores.labels[test] <= top, axis=0))
            sizes.append(np.mean((p[test] <= top).astype(int) + (1.0 - p[test] <= top)))
            limit = split_threshold(scores.whole[held], level)
            whole.append(np.sum(scores.whole[test] <= limit + 1e-9))
            listed.append(np.bincount(ranked.rows[above <= limit + 1e-9], minlength=n)[test].mean())
            cut.append(np.mean(listed_less(ranked, limit)[test]))
        low, high = band(m, n - m, level)
        found[str(level)] = {
            "labels": float(np.mean(covered)) / (n - m),
            "labels_below": float(np.mean(np.array(covered) < low)),
            "labels_above": float(np.mean(np.array(covered) > high)),
            "labels_size": float(np.mean(sizes)),
            "whole": float(np.mean(whole)) / (n - m),
            "whole_below": float(np.mean(np.array(whole) < low)),
            "whole_above": float(np.mean(np.array(whole) > high)),
            "whole_size": float(np.mean(listed)),
            "whole_cut": float(np.mean(cut)),
        }
    return {"levels": found, "learned": first, "held_out": m, "tested": n - m, "labels": Y.shape[1]}


def listed_less(ranked: Any, limit: float) -> np.ndarray:
    """Which rows may have labellings in their sets that are not listed."""
    least = ranked.loss[np.searchsorted(ranked.rows, np.arange(len(ranked.rest)))]
    return np.asarray(ranked.rest <= least + limit + 1e-9)


def band(held: int, tested: int, level: float) -> tuple[float, float]:
    """The 99 % band of how many of the tested rows a split threshold of held-out rows covers, without ties."""
    rank = int(np.ceil((held + 1) * level - 1e-9))
    low, high = betabinom(tested, rank, held + 1 - rank).interval(0.99)
    return float(low), float(high)


def _log_loss(truth: np.ndarray, p: np.ndarray) -> float:
    """The mean over rows and labels; probabilities are kept 1e-3 away from 0 and 1, which helps trees most."""
    right = np.where(truth > 0, p, 1.0 - p)
    return float(-np.log(np.clip(right, 1e-3, 1.0)).mean())


def _positive(model: Any, X: Any) -> np.ndarray:
    """The probability that each label is present, by classifiers of scikit-learn's kind."""
    if isinstance(model, PerLabel):
        parts = [
            np.full(X.shape[0], m) if isinstance(m, np.integer) else m.predict_proba(X)[:, 1] for m in model.models_
        ]
        return np.column_stack(parts)
    pairs = zip(model.predict_proba(X), model.classes_, strict=True)
    parts = [p[:, 1] if p.shape[1] == 2 else np.full(len(p), c[0]) for p, c in pairs]
    return np.column_stack(parts)


def tables(rows: Rows) -> list[Table]:
    """Measures by system and set, means over parts, with mean ranks over sets; log-loss, missing labels and sets."""
    return [
        _table(rows, "exact_match", "Exact match (more is better)", -1.0),
        _table(rows, "hamming_loss", 'Hamming loss (less is better; label network with target "hamming")', 1.0),
        _table(rows, "f_macro", 'Macro F1 (more is better; label network with target "f1")', -1.0),
        *([_log_losses(rows)] if {*_PROBABLE} <= {r["cell"]["system"] for r in rows if "log_loss" in r} else []),
        *([_missing(rows)] if any(r["cell"]["system"] == MISSING for r in rows) else []),
        *(_sets([r for r in rows if r["cell"]["system"] == SETS])),
        *([_large(rows)] if any(r["cell"]["set"] in LARGE for r in rows) else []),
    ]


def _large(rows: Rows) -> Table:
    """CPU seconds, memory and results of made tables."""
    columns = [
        Column("table", "set"), Column("system", "system"), Column("fit, CPU s", "fit_cpu_seconds", "{:.0f}".format),
        Column("predict, CPU s", "predict_cpu_seconds", "{:.1f}".format),
        Column("peak, MiB", "peak_mib", "{:.0f}".format),
        Column("Hamming loss of five labels", "some_hamming_loss", "{:.4f}".format),
        Column("log-loss of five labels", "some_log_loss", "{:.4f}".format),
    ]  # fmt: skip
    return Table("Made tables", columns, [{**r["cell"], **r} for r in rows if r["cell"]["set"] in LARGE])


def _by_set(rows: Rows, title: str, lines: Mapping[str, Callable[[str], float]], summary: Any = np.mean) -> Table:
    """A table of values by line and set, with a summary of each line over the sets."""
    sets = [n for n in MULTILABEL_SETS if any(r["cell"]["set"] == n for r in rows)]
    values = {line: np.array([value(name) for name in sets]) for line, value in lines.items()}
    entries = {(line, n): f"{v:.3f}" for line, own in values.items() for n, v in zip(sets, own, strict=True)}
    known = {line: own[np.isfinite(own)] for line, own in values.items()}
    entries |= {(line, "all"): f"{summary(own):.3f}" for line, own in known.items() if len(own)}
    entries = {key: text for key, text in entries.items() if text != "nan"}
    heading = {np.mean: "mean", np.median: "median"}[summary]
    return matrix(
        title, ["system"], {line: [line] for line in lines}, {"all": heading, **{n: n for n in sets}}, entries
    )


def _log_losses(rows: Rows) -> Table:
    """Log-losses of the label network and of the others that have probabilities, and its share of the better one."""
    lines = {s: partial(_mean, rows, system=s, measure="log_loss") for s in _PROBABLE}
    ours, *others = lines.values()
    title = "Log-loss of predict_proba (less is better; probabilities kept 1e-3 away from 0 and 1)"
    share = {"label network / better of both": lambda n: ours(n) / min(other(n) for other in others)}
    return _by_set(rows, title, {**lines, **share}, np.median)


def _missing(rows: Rows) -> Table:
    """Exact match with labels of the training rows removed at random, over the parts that all systems have."""
    systems = (OURS, MISSING, FORESTS)
    places = [{(r["cell"]["set"], r["cell"]["part"]) for r in rows if r["cell"]["system"] == s} for s in systems]
    rows = [r for r in rows if (r["cell"]["set"], r["cell"]["part"]) in set.intersection(*places)]
    title = f"Exact match, {_REMOVED:.0%} of the training labels removed at random".replace("%", " %")
    return _by_set(rows, title, {s: partial(_mean, rows, system=s, measure="exact_match") for s in systems})


def _sets(rows: Rows) -> list[Table]:
    """Coverage and sizes of conformal sets by level, each over all sets of data."""
    headings = {
        "labels": "mean coverage", "least": "least of a set", "below": "splits below the band", "above": "above it",
        "size": "mean size", "cut": "cut",
    }  # fmt: skip
    tables = []
    for kind, what in {"labels": "Sets of single labels", "whole": "Sets of whole labellings"}.items():
        entries: dict[tuple[str, str], str] = {}
        for level in map(str, _LEVELS if rows else ()):
            own = [r["levels"][level] for r in rows]
            shown = {
                "labels": np.mean([v[kind] for v in own]), "least": min(v[kind] for v in own),
                **{name: np.mean([v[f"{kind}_{name}"] for v in own]) for name in ("below", "above", "size")},
                **({"cut": np.mean([v["whole_cut"] for v in own])} if kind == "whole" else {}),
            }  # fmt: skip
            entries |= {(level, name): f"{value:.3f}" for name, value in shown.items()}
        if entries:
            columns = {k: v for k, v in headings.items() if k != "cut" or kind == "whole"}
            tables.append(matrix(what, ["level"], {str(v): [str(v)] for v in _LEVELS}, columns, entries))
    return tables


def _table(rows: Rows, measure: str, title: str, sign: float) -> Table:
    systems = [s for s in SYSTEMS if any(r["cell"]["system"] == s for r in rows)]
    sets = [n for n in MULTILABEL_SETS if any(r["cell"]["set"] == n for r in rows)]
    means = np.array([[_mean(rows, name, system, measure) for system in systems] for name in sets])
    means = means.reshape(len(sets), len(systems))
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
    if system == OURS and any(f"target_{measure}" in r for r in rows):
        measure = f"target_{measure}"
    found = [r.get(measure, np.nan) for r in rows if (r["cell"]["set"], r["cell"]["system"]) == (name, system)]
    return float(np.mean(found)) if len(found) else np.nan


def _is_left_out(cell: Cell) -> bool:
    """LMSBN on cal500, where no system predicts a whole row; sets have one part."""
    return (cell["set"], cell["system"]) == ("cal500", "LMSBN, RBF") or (cell["system"] == SETS and cell["part"] > 0)


STUDY = Study(
    "multilabel-tables",
    [
        cell
        for cell in grid(set=MULTILABEL_SETS, system=(*SYSTEMS, MISSING, FORESTS, SETS), part=range(PARTS))
        if not _is_left_out(cell)
    ]
    + grid(set=list(LARGE), system=(OURS, "LightGBM"), part=[0]),
    grid(set=["emotions", "medical"], system=(OURS, "chain, linear", "powerset, RBF"), part=[0]),
    run,
    tables,
    load=load_set,
    needs=("set",),
)
