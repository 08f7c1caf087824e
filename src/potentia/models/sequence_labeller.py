"""`SequenceLabeller`: labels of the items of sequences, whatever describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Self

import numpy as np

from ..base.resources import check_memory
from ..base.types import Floats, PotentiaError, check_count, check_flag
from ..features.example import Example
from ..features.tokens import TokenFeatures
from ..graph.structure import Graph
from ..potentials import Constant
from .chain_crf import ChainCRF
from .labelled import LabelEstimator, finite_matrix

#: Words on each side of a word that its features name.
_WORDS = 2


class SequenceLabeller(LabelEstimator):
    """Labels every item of a sequence jointly: readings of a sensor, words of a sentence.

    X is a list of sequences. Each is an array (T, n_features), or a list of T dictionaries of features as `ChainCRF`
    takes them, or a list of T words. y is a list of sequences of labels, texts or numbers, of which None, NaN and -1
    are unknown. Arrays are labelled by a `CRF` on chains, dictionaries and words by a `ChainCRF`.

    Args:
        node: function of the features of arrays: "linear", "boosting", "mlp", or "auto" for whichever of the first two
            predicts held-out items better.
        window: how many items before and after an item its features include, of arrays.
        class_weight: "balanced", so that each class weighs the same, or {label: weight}.
        seed: of what is random.

    After `fit`: `classes_`, in the order of the columns of `predict_proba`, and `model_`, the CRF.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> modes = [np.repeat(rng.integers(0, 2, 4), 10) for _ in range(4)]
        >>> readings = [mode[:, None] + rng.normal(size=(40, 2)) for mode in modes]
        >>> labels = [np.array(["idle", "busy"])[mode].tolist() for mode in modes]
        >>> model = pt.SequenceLabeller("linear").fit(readings, labels)
        >>> model.score(readings, labels) > 0.8
        True
    """

    def __init__(self, node: str = "auto", window: int = 1, class_weight: Any = None, seed: int = 0) -> None:
        self.node = node
        self.window = window
        self.class_weight = class_weight
        self.seed = seed

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, progress: bool = False) -> Self:
        """Train on sequences.

        Args:
            X: sequences. y: a label for each item.
            sample_weight: weight of each sequence, or a list of the weights of its items.
            progress: show a progress bar.
        """
        check_flag("progress", progress)
        X, y = _sequences(X), [list(own) for own in y]
        if len(X) != len(y):
            raise PotentiaError(f"X has {len(X)} sequences, but y has {len(y)}.")
        self._learn_classes(chain.from_iterable(y))
        given: list[Any] = [None] * len(X) if sample_weight is None else list(sample_weight)
        if len(given) != len(X):
            raise PotentiaError(f"sample_weight has {len(given)} entries for {len(X)} sequences.")
        if not _is_array(X[0]) and self.class_weight is None and not any(np.ndim(own) for own in given):
            labels = [self._encoded(own, len(x), f"y[{k}]") for k, (own, x) in enumerate(zip(y, X, strict=True))]
            named = [[None if k < 0 else int(k) for k in own] for own in labels]
            self.model_ = ChainCRF().fit(_tokens(X), named, sample_weight=sample_weight, progress=progress)
            self.form_, self.n_features_in_ = "chain", 0
            return self
        if not _is_array(X[0]):
            raise PotentiaError(
                "class_weight and weights of single items need sequences that are arrays; turn the dictionaries into "
                "arrays with scikit-learn's DictVectorizer(sparse=False)."
            )
        self.n_features_in_ = finite_matrix(X[0], "X[0]", vector=True).shape[1]
        labels = [self._encoded(own, len(x), f"y[{k}]") for k, (own, x) in enumerate(zip(y, X, strict=True))]
        full = [
            np.full(len(x), float(own)) if own is not None and not np.ndim(own) else own
            for x, own in zip(X, given, strict=True)
        ]
        weights = self._weights(labels, full)
        self._fit_crf(self._examples(X, labels, weights), Constant(), progress)
        return self

    def _check_options(self) -> None:
        super()._check_options()
        check_count("window", self.window)

    def predict(self, X: Any) -> list[list[Any]]:
        """A list of labels for each sequence: each item's most likely one, or with words the best whole sequence."""
        self._check_fitted()
        X = _sequences(X)
        if self.form_ == "chain":
            names = self.classes_.tolist()
            return [[names[k] for k in own] for own in self.model_.predict(_tokens(X))]
        return [self.classes_[p.argmax(axis=1)].tolist() for p in self.predict_proba(X)]

    def predict_proba(self, X: Any) -> list[Floats]:
        """Probabilities (T, n_classes) of each sequence."""
        self._check_fitted()
        X = _sequences(X)
        if self.form_ == "crf":
            return self._infer(self._examples(X), observed=False)
        found = []
        for own in self.model_.predict_marginals(_tokens(X)):
            table = np.zeros((len(own), len(self.classes_)))
            for row, by_label in enumerate(own):
                table[row, list(by_label)] = list(by_label.values())
            found.append(table)
        return found

    def score(self, X: Any, y: Any, *, sample_weight: Any = None) -> float:
        """Share of known labels that are predicted correctly."""
        found = self.predict(X)
        if len(found) != len(y):
            raise PotentiaError(f"X has {len(found)} sequences, but y has {len(y)}.")
        truth = [self._encoded(own, len(p), f"y[{k}]") for k, (own, p) in enumerate(zip(y, found, strict=True))]
        weights = [1.0] * len(found) if sample_weight is None else list(sample_weight)
        return self._accuracy(truth, found, [np.broadcast_to(w, len(p)) for w, p in zip(weights, found, strict=True)])

    def _examples(self, X: Sequence[Any], labels: Any = None, weights: Any = None) -> list[Example]:
        """Chains of rows with the rows around them."""
        examples = []
        for number, own in enumerate(X):
            x = finite_matrix(own, f"X[{number}]", vector=True)
            if x.shape[1] != self.n_features_in_:
                raise PotentiaError(
                    f"X[{number}] has {x.shape[1]} features, but the model needs {self.n_features_in_}."
                )
            width = 2.0 * self.window + 1.0
            check_memory(8.0 * len(x) * width * (1 + x.shape[1]), f"the window of X[{number}]", "use a smaller window")
            place = np.arange(len(x))[:, None] + np.arange(-self.window, self.window + 1)
            around = x[np.clip(place, 0, len(x) - 1)].reshape(len(x), -1)
            n, rows = len(x), np.arange(len(x))
            scopes = {"node": rows[:, None], "edge": np.stack([rows[:-1], rows[1:]], axis=1)}
            examples.append(
                Example(
                    Graph(np.full(n, len(self.classes_)), scopes),
                    {"node": around},
                    None if labels is None else labels[number],
                    None if weights is None else weights[number],
                    name=f"sequence {number}",
                )
            )
        return examples


def _sequences(X: Any) -> list[Any]:
    """The sequences, or a sentence about what was given."""
    if isinstance(X, str) or not np.iterable(X):
        raise PotentiaError(f"X must be a list of sequences, not a {type(X).__name__}.")
    found: list[Any] = list(X)
    if not found:
        raise PotentiaError("X has no sequence.")
    for number, own in enumerate(found):
        if isinstance(own, str | Mapping) or not np.iterable(own):
            raise PotentiaError(f"X[{number}] must be a sequence of items, not a {type(own).__name__}.")
        if len(list(own)) == 0:
            raise PotentiaError(f"X[{number}] is empty.")
    return found


def _is_array(sequence: Any) -> bool:
    return hasattr(sequence, "shape") or not isinstance(sequence[0], str | Mapping)


def _tokens(X: Sequence[Any]) -> list[Any]:
    """Dictionaries as they are, and words as the names of their features."""
    words = TokenFeatures(_WORDS, 1, True)
    return [list(words.names([list(own)])) if isinstance(own[0], str) else list(own) for own in X]
