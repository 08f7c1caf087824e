"""What estimators of labels share: classes by name, unknown labels, weights, the model behind them, and files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np

from ..base.params import Params
from ..base.saving import Registered, build, write_file
from ..base.schema import TEXT, Choice, Count, Either, Items, Kind, Number, Schema, check
from ..base.types import Floats, Ints, PotentiaError, check_choice, check_count, plain_array, shown
from ..features.example import Example
from ..graph.structure import Graph
from ..potentials import MLP, Boosting, Linear, Potential
from .crf import CRF
from .cross_fit import CrossFitted

NODES = ("auto", "linear", "boosting", "mlp")
#: Labelled variables from which on trees are tried.
_LEAST_FOR_TREES = 200


class LabelEstimator(Registered, Params):
    """An estimator of labels in scikit-learn's manner around a CRF; `node` chooses the function of features."""

    saved: ClassVar[Schema] = {
        "params": Kind((dict,)),
        "classes": Items(Either(TEXT, Number())),
        "width": Count(),
        "form": Choice(("crf", "chain")),
        "model": Kind((dict,)),
    }

    node: str
    class_weight: Any
    seed: int
    classes_: Any
    n_features_in_: int
    model_: Any
    form_ = "crf"

    # -- labels --------------------------------------------------------------------------------------------------

    def _learn_classes(self, y: Iterable[Any]) -> None:
        """Set `classes_` to the labels that occur, ascending; None, NaN and -1 are unknown."""
        self._check_options()
        seen = {label for label in y if not is_unknown(label)}
        if len(seen) < 2:
            only = f"the class {shown(next(iter(seen)))} only" if seen else "no known label"
            raise PotentiaError(f"y has {only}; two classes are needed, and None, NaN and -1 mean unknown.")
        ordered = sorted(seen, key=lambda label: (isinstance(label, str), label))
        self.classes_ = _as_classes(ordered)

    def _check_options(self) -> None:
        check_choice("node", self.node, NODES)
        check_count("seed", self.seed)
        if self.class_weight not in (None, "balanced") and not isinstance(self.class_weight, dict):
            raise PotentiaError(
                f"class_weight must be 'balanced' or {{label: weight}}, not {shown(self.class_weight)}."
            )

    def _encoded(self, y: Iterable[Any], n: int, name: str = "y") -> Ints:
        """Numbers of labels, -1 where unknown; of n variables."""
        labels = list(y)
        if len(labels) != n:
            raise PotentiaError(f"{name} has {len(labels)} labels for {n} rows of X.")
        number = {label: k for k, label in enumerate(self.classes_.tolist())}
        found = np.full(n, -1)
        for row, label in enumerate(labels):
            if not is_unknown(label):
                plain = label.item() if isinstance(label, np.generic) else label
                if plain not in number:
                    raise PotentiaError(f"{name} has the label {shown(plain)}, which the training labels do not have.")
                found[row] = number[plain]
        return found

    def _weights(self, labels: Sequence[Ints], given: Sequence[Any]) -> list[Floats | None]:
        """Weights of all variables by their classes, times those given; None for ones."""
        if self.class_weight is None:
            return [None if own is None else np.asarray(own, dtype=float) for own in given]
        counts = sum(np.bincount(own[own >= 0], minlength=len(self.classes_)) for own in labels)
        if self.class_weight == "balanced":
            factors = np.sum(counts) / (len(self.classes_) * np.maximum(counts, 1))
        else:
            factors = np.array([float(self.class_weight.get(label, 1.0)) for label in self.classes_.tolist()])
        return [
            np.where(own >= 0, factors[own], 1.0) * (1.0 if w is None else np.asarray(w, dtype=float))
            for own, w in zip(labels, given, strict=True)
        ]

    def _accuracy(self, truth: Sequence[Ints], found: Sequence[Any], weights: Sequence[Any]) -> float:
        """Share of known labels that were found, by weight."""
        right = total = 0.0
        for own, labels, weight in zip(truth, found, weights, strict=True):
            known = (own >= 0) * (1.0 if weight is None else np.asarray(weight, dtype=float))
            right += float(known @ (self.classes_[np.maximum(own, 0)] == np.asarray(labels, dtype=self.classes_.dtype)))
            total += float(known.sum())
        if total == 0:
            raise PotentiaError("y has no known label to compare with.")
        return right / total

    # -- the model -----------------------------------------------------------------------------------------------

    def _fit_crf(self, examples: list[Example], edge: Potential, progress: bool) -> None:
        """Fit a CRF of the chosen function of features; "auto" takes what predicts unseen labels best without pairs."""
        name = self._best_node(examples) if self.node == "auto" else self.node
        potentials: dict[str, Potential] = {"node": make_node(name, self.seed)}
        if any(len(example.graph.scopes["edge"]) for example in examples):
            potentials["edge"] = edge
        else:
            examples = [_without_pairs(example) for example in examples]
        # labelled pairs: the margin keeps dense networks from overfitting; else what is hidden counts
        joint = name == "linear" and "edge" in potentials and _labelled_pairs(examples) >= 0.5
        self.model_ = CRF(potentials, "joint" if joint else "accuracy").fit(examples, progress=progress)
        self.form_ = "crf"

    def _best_node(self, examples: list[Example]) -> str:
        known = sum(int((example.all_labels >= 0).sum()) for example in examples)
        dense = not any(hasattr(example.features["node"], "tocsr") for example in examples)
        if known < _LEAST_FOR_TREES or not dense:
            return "linear"
        losses = {}
        for name in ("linear", "boosting"):
            unseen = CrossFitted(partial(make_node, name, self.seed), examples, "node").unseen
            losses[name] = sum(_log_loss(own, example) for own, example in zip(unseen, examples, strict=True))
        return min(losses, key=lambda name: losses[name])

    def _infer(self, examples: list[Example], observed: bool) -> list[Floats]:
        """Marginals (n_variables, n_classes) of each example."""
        if "edge" not in self.model_.potentials_:
            examples = [_without_pairs(example) for example in examples]
        found: list[Floats] = self.model_.predict_marginals(examples, observed=observed)
        return found

    # -- files and scikit-learn ----------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file for `pt.load`."""
        self._check_fitted()
        content, arrays = self.model_.state()
        whole = {"params": self.get_params(deep=False), "classes": self.classes_.tolist(), "width": self.n_features_in_}
        write_file(path, type(self).__name__, whole | {"form": self.form_, "model": content}, arrays)

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Mapping[str, Any]) -> Self:
        """The model that a file of `save` describes."""
        from .chain_crf import ChainCRF

        found = check(cls.saved, content, cls.__name__)
        model: Self = build(cls, found["params"])
        model._check_options()
        model.classes_ = _as_classes(found["classes"])
        model.n_features_in_, model.form_ = found["width"], found["form"]
        inner: Any = CRF if model.form_ == "crf" else ChainCRF
        model.model_ = inner.from_state(content["model"], arrays)
        numbers = range(len(found["classes"]))
        if model.form_ == "chain" and not all(type(k) is int and k in numbers for k in model.model_.classes_):
            raise PotentiaError(f"the saved {cls.__name__} is damaged: its chain has other labels.")
        return model

    def _check_fitted(self) -> None:
        if not hasattr(self, "model_"):
            raise PotentiaError(f"this {type(self).__name__} is not fitted: call fit first.")

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")


def _as_classes(labels: list[Any]) -> Any:
    """An array of labels; texts and numbers together stay as they are."""
    mixed = len({isinstance(label, str) for label in labels}) > 1
    return np.array(labels, dtype=object) if mixed else np.array(labels)


def is_unknown(label: Any) -> bool:
    """Whether a label says that nothing is known: None, NaN or -1."""
    if label is None or isinstance(label, str):
        return label is None
    return bool(label != label) or (not isinstance(label, bool | np.bool_) and bool(label == -1))


def finite_matrix(given: Any, name: str, vector: bool = False) -> Floats:
    """Finite numbers (n, d) of an array, a list or a data frame; a `vector` is one column."""
    x = plain_array(given.to_numpy() if hasattr(given, "to_numpy") else given, name)
    x = x[:, None] if vector and x.ndim == 1 else x
    if x.ndim != 2 or x.dtype.kind not in "fiub":
        raise PotentiaError(f"{name} must hold numbers of shape (n, n_features), not {x.dtype} of shape {x.shape}.")
    bad = np.argwhere(~np.isfinite(x))
    if len(bad):
        raise PotentiaError(f"{name} holds a value that is not finite at row {bad[0, 0]}, column {bad[0, 1]}.")
    return x.astype(np.float64)


def make_node(name: str, seed: int) -> Potential:
    """A function of the features of a variable."""
    if name == "linear":
        from sklearn.preprocessing import StandardScaler

        return Linear(ridge=1.0, transformer=StandardScaler(with_mean=False))
    return Boosting(max_leaves=8, seed=seed) if name == "boosting" else MLP(seed=seed)


def _without_pairs(example: Example) -> Example:
    graph = Graph(example.graph.n_states, {"node": example.graph.scopes["node"]})
    return Example(graph, {"node": example.features["node"]}, example.labels, example.weights, example.name)


def _labelled_pairs(examples: Sequence[Example]) -> float:
    """The share of pairs that have two known labels."""
    known = [(example.all_labels[example.graph.scopes["edge"]] >= 0).all(axis=1) for example in examples]
    return float(np.concatenate(known).mean())


def _log_loss(log_p: Floats, example: Example) -> float:
    rows = np.flatnonzero(example.all_labels >= 0)
    return -float(example.all_weights[rows] @ log_p[rows, example.all_labels[rows]])
