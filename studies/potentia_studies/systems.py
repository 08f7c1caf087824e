"""Multi-label systems with their grids of options, chosen by cross-validation on training rows only."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import potentia as pt
from potentia.app.report.rows import Row, grid
from potentia.models.multilabel.base import MultiLabelClassifier
from potentia.models.multilabel.network import splits

from . import baselines, public_sets

#: Options by name, and the values that cross-validation chooses from.
Grid = dict[str, Sequence[Any]]
_Make = Callable[..., MultiLabelClassifier]

# Every system of Scene chooses among 36 candidates in five folds. The fewer options a system has, the finer is its grid
# of each: structural SVMs have alpha only and compare 36 values of it, 1.4e-3 to 4.1e-2.
_LINEAR: Grid = {
    "alpha": (1e-3, 2e-3, 3e-3, 5e-3, 8e-3, 1e-2, 1.5e-2, 2e-2, 3e-2, 5e-2, 7e-2, 0.1),
    "class_weight": (None, {1: 2.0}, "balanced"),
}
_KERNEL: Grid = {"alpha": (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2), "gamma": (0.02, 0.04, 0.06, 0.08, 0.12, 0.16)}
_SVC: Grid = {"C": (0.3, 1.0, 2.0, 3.0, 10.0, 30.0), "gamma": (0.02, 0.04, 0.06, 0.08, 0.12, 0.16)}
_POWERSET: Grid = {
    "C": (
        0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 3.0,
    ),
    "class_weight": (None, "balanced"),
}  # fmt: skip
_CHAIN: Grid = {
    "C": (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0),
    "class_weight": (None, {1: 2.0}, "balanced"),
}
_SSVM: Grid = {"alpha": tuple(float(f"{8e-3 * 10 ** (step / 24):.3g}") for step in range(-18, 18))}
_MACHINE: Grid = {"alpha": (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3), "eta0": (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)}
_KERNEL_MACHINE: Grid = {
    "alpha": (1e-4, 3e-4, 1e-3),
    "gamma": (0.02, 0.04, 0.08, 0.16),
    "eta0": (100.0, 1000.0, 10000.0),
}
_LINEAR_NETWORK: Grid = {"alpha": (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3), "label_scale": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)}
_KERNEL_NETWORK: Grid = {
    "alpha": (1e-4, 3e-4, 1e-3),
    "gamma": (0.04, 0.06, 0.08),
    "label_scale": (0.125, 0.25, 0.5, 1.0),
}
#: Of structural SVMs, candidates are compared at a gap of 1e-2, and the chosen one is fitted to one of 1e-3.
_SSVM_SEARCH = {"tol": 1e-2}


@dataclass(frozen=True)
class System:
    """A method under a name: how to make it from options, the options' grid, and whether it decodes greedily.

    `like` names a system whose choice of options it shares; `folds` are those of the choice, `search` more options of
    the fits in it, which the final fit does not have.
    """

    title: str
    make: _Make
    grid: Grid = field(default_factory=dict)
    greedy: bool = False
    like: str | None = None
    folds: int = 5
    search: dict[str, Any] = field(default_factory=dict)

    @property
    def candidates(self) -> int:
        """How many combinations of options are compared."""
        return SYSTEMS[self.like].candidates if self.like else len(grid(**self.grid))

    def predict(self, model: Any, X: Any) -> np.ndarray:
        """Labels (n, K)."""
        found: np.ndarray = model.predict_greedy(X) if self.greedy else model.predict(X)
        return found


def _tuned(inner: _Make, measure: baselines.Measure) -> _Make:
    return lambda **options: baselines.ThresholdClassifier(inner(**options), measure=measure)


def _logistic(kind: Callable[[Any], MultiLabelClassifier]) -> _Make:
    return lambda **options: kind(LogisticRegression(max_iter=1000, **options))


_INDEPENDENT = partial(pt.multilabel.IndependentClassifiers, kernel="rbf")
_NETWORK = partial(pt.LMSBN, kernel="rbf")
SYSTEMS = {
    "BCk": System("independent, RBF", _INDEPENDENT, _KERNEL),
    "powersetk": System("label powerset, RBF", lambda C, gamma: baselines.LabelPowerset(SVC(C=C, gamma=gamma)), _SVC),
    "TSBC-exact": System(
        "independent, RBF, thresholds for exact match", _tuned(_INDEPENDENT, "exact_match"), like="BCk"
    ),
    "TSBC-macro": System("independent, RBF, thresholds for macro F", _tuned(_INDEPENDENT, "f_macro"), like="BCk"),
    "BCl": System("independent, linear", pt.multilabel.IndependentClassifiers, _LINEAR),
    "powerset": System("label powerset, logistic", _logistic(baselines.LabelPowerset), _POWERSET),
    "chain": System("classifier chain, logistic", _logistic(baselines.ClassifierChain), _CHAIN),
    "SSVMhmm": System("structural SVM, chain", baselines.ChainSSVM, _SSVM, search=_SSVM_SEARCH),
    "SSVMfull": System("structural SVM, all pairs", baselines.CompleteSSVM, _SSVM, search=_SSVM_SEARCH),
    "LMBM": System("LMBM, linear", partial(pt.LMBM, tol=1e-4), _MACHINE),
    "LMBMk": System("LMBM, RBF", partial(pt.LMBM, kernel="rbf", tol=1e-4), _KERNEL_MACHINE),
    "LMSBNlo": System("LMSBN, linear, labels' own order", partial(pt.LMSBN, order="index"), _LINEAR_NETWORK),
    "LMSBNlf": System("LMSBN, linear, F-score order", pt.LMSBN, _LINEAR_NETWORK),
    "LMSBNkf": System("LMSBN, RBF, F-score order", _NETWORK, _KERNEL_NETWORK),
    "LMSBNkf-greedy": System("the same, decoded greedily", _NETWORK, greedy=True, like="LMSBNkf"),
    "LMSBNkl": System("LMSBN, RBF, learned order", partial(_NETWORK, order="learned"), like="LMSBNkf"),
    "LMSBNkf-macro": System("LMSBN, RBF, thresholds for macro F", _tuned(_NETWORK, "f_macro"), like="LMSBNkf"),
    "LMSBNkf-exact": System("LMSBN, RBF, thresholds for exact match", _tuned(_NETWORK, "exact_match"), like="LMSBNkf"),
}


def load(name: str, quick: bool) -> public_sets.MultiLabelData:
    """A set, its dense features scaled to unit variance (but for Scene's, of one kind already); quick: some rows."""
    data = public_sets.multilabel(name)
    if not hasattr(data.X_train, "indptr") and name != "scene":
        scale = StandardScaler().fit(data.X_train)
        data = data._replace(X_train=scale.transform(data.X_train), X_test=scale.transform(data.X_test))
    if quick:
        train, test = (np.arange(0, len(Y), max(1, len(Y) // 200)) for Y in (data.Y_train, data.Y_test))
        data = data._replace(X_train=data.X_train[train], Y_train=data.Y_train[train])
        data = data._replace(X_test=data.X_test[test], Y_test=data.Y_test[test])
    return data


def evaluate(
    system: System, data: public_sets.MultiLabelData, options: dict[str, Any], seed: int, skip: Sequence[int] = ()
) -> Row:
    """Train on all training rows, and measure on test rows (without the labels to skip)."""
    kept = np.setdiff1d(np.arange(data.Y_train.shape[1]), skip)
    begun = time.perf_counter()
    model = fitted(system, options, seed, data.X_train, data.Y_train)
    trained = time.perf_counter()
    predicted = system.predict(model, data.X_test)
    done = time.perf_counter()
    return {
        "options": options,
        **pt.metrics.all_measures(data.Y_test[:, kept], predicted[:, kept]),
        "fit_seconds": trained - begun,
        "predict_seconds": done - trained,
        "order": [int(k) for k in getattr(model, "order_", [])],
    }


def choose(system: System, X: Any, Y: np.ndarray, seed: int) -> tuple[dict[str, Any], float | None]:
    """The options of the largest exact match in cross-validation, and that; a single choice is not measured."""
    choices, scores = grid(**system.grid), []
    if len(choices) == 1:
        return choices[0], None
    for options in choices:
        found = []
        for train, test in splits(len(Y), system.folds, seed):
            model = fitted(system, options | system.search, seed, X[train], Y[train])
            found.append(pt.metrics.exact_match(Y[test], system.predict(model, X[test])))
        scores.append(float(np.mean(found)))
    best = int(np.argmax(scores))
    return choices[best], scores[best]


def fitted(system: System, options: dict[str, Any], seed: int, X: Any, Y: np.ndarray) -> MultiLabelClassifier:
    """The system trained, its own seeds and those of its parts set."""
    model = system.make(**options)
    names = [n for n in model.get_params() if n.rpartition("__")[2] == "random_state"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pt.ConvergenceWarning)
        return model.set_params(**dict.fromkeys(names, seed)).fit(X, Y)
