"""`NodeClassifier`: labels of the nodes of one network or of many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from scipy import sparse

from ..base.schema import Choice, Schema
from ..base.types import Floats, Ints, PotentiaError, check_flag
from ..features.example import Example
from ..graph.builders import edge_list, unique_pairs
from ..graph.structure import Graph
from ..potentials import Potts
from .labelled import LabelEstimator, finite_matrix


class NodeClassifier(LabelEstimator):
    """Classifies nodes by their features and their neighbours' labels: a CRF on a network.

    `fit(X, edges, y)` takes one network, or lists of X, edges and y. Labels may be texts or numbers; None, NaN and -1
    are unknown. After fitting to one network in which some labels are known, `predict()` gives the labels of all its
    nodes. edges: pairs of nodes (E, 2) or (2, E), in one or both directions, a SciPy sparse matrix, whose values
    become a feature if they differ, or a networkx graph.

    Args:
        node: function of a node's features: "linear", "boosting", "mlp", or "auto" for whichever of the first two
            predicts held-out nodes better.
        neighbours: add the mean of the neighbours' features to a node's.
        class_weight: "balanced", so that each class weighs the same, or {label: weight}.
        seed: of what is random.

    After `fit`: `classes_`, in the order of the columns of `predict_proba`, and `model_`, the `CRF`. For
    `cross_val_score`, X may be a list of pairs (features, edges): `fit(X, y)`.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> groups = np.arange(40) % 2
        >>> edges = [(i, j) for i in range(40) for j in range(i) if groups[i] == groups[j] and rng.random() < 0.3]
        >>> known = [("cat", "dog")[k] if i < 20 else None for i, k in enumerate(groups)]
        >>> model = pt.NodeClassifier("linear").fit(groups[:, None] + rng.normal(size=(40, 1)), edges, known)
        >>> model.predict()[-4:]
        array(['cat', 'dog', 'cat', 'dog'], dtype='<U3')
    """

    saved: ClassVar[Schema] = {**LabelEstimator.saved, "form": Choice(("crf",))}

    def __init__(self, node: str = "auto", neighbours: bool = True, class_weight: Any = None, seed: int = 0) -> None:
        self.node = node
        self.neighbours = neighbours
        self.class_weight = class_weight
        self.seed = seed

    def fit(
        self,
        X: Any,
        edges: Any,
        y: Any = None,
        *,
        edge_features: Any = None,
        sample_weight: Any = None,
        progress: bool = False,
    ) -> Self:
        """Train on networks with some known labels.

        Args:
            X: features (n_nodes, n_features), dense or sparse, or None for none; or a list of such.
            edges: see the class. y: labels (n_nodes,).
            edge_features: (E, d) in the order of `edges`: pairs are the stronger coupled the more these say so.
            sample_weight: (n_nodes,).
            progress: show a progress bar.
        """
        check_flag("progress", progress)
        X, edges, y = _split(X, edges, y)
        many = _is_list(X, edges)
        xs, links, ys, features, weights = (
            list(part) if many and part is not None else [part] * (len(X) if many else 1)
            for part in (X, edges, y, edge_features, sample_weight)
        )
        if not len(xs) == len(links) == len(ys):
            raise PotentiaError(f"there are {len(xs)} networks in X, {len(links)} in edges and {len(ys)} in y.")
        self._learn_classes(label for own in ys for label in _labels(own))
        bare = [self._example(*each) for each in zip(xs, links, features, strict=True)]
        self.n_features_in_ = bare[0].features["node"].shape[1]
        labels = [self._encoded(_labels(own), e.graph.n_variables) for own, e in zip(ys, bare, strict=True)]
        examples = [
            Example(e.graph, e.features, own, weight, e.name)
            for e, own, weight in zip(bare, labels, self._weights(labels, weights), strict=True)
        ]
        self._fit_crf(examples, Potts(), progress)
        self._fitted_examples, self._many = examples, many
        return self

    def _check_options(self) -> None:
        super()._check_options()
        check_flag("neighbours", self.neighbours)

    def predict(self, X: Any = None, edges: Any = None, *, edge_features: Any = None) -> Any:
        """The most likely label of each node; without arguments of the fitted network, whose known labels stay."""
        found = self.predict_proba(X, edges, edge_features=edge_features)
        return [self.classes_[p.argmax(axis=1)] for p in found] if isinstance(found, list) else self.classes_[
            found.argmax(axis=1)
        ]  # fmt: skip

    def predict_proba(self, X: Any = None, edges: Any = None, *, edge_features: Any = None) -> Any:
        """Probabilities (n_nodes, n_classes); without arguments of the fitted network, given its known labels."""
        self._check_fitted()
        if X is None and edges is None:
            if not hasattr(self, "_fitted_examples"):
                raise PotentiaError("a loaded model has no fitted network: give X and edges.")
            found = self._infer(self._fitted_examples, observed=True)
            return found if self._many else found[0]
        X, edges, _ = _split(X, edges, None)
        many = _is_list(X, edges)
        parts = zip(X, edges, edge_features or [None] * len(X), strict=True) if many else [(X, edges, edge_features)]
        examples = [self._example(*part) for part in parts]
        for example in examples:
            width = example.features["node"].shape[1]
            if width != self.n_features_in_:
                raise PotentiaError(f"X makes {width} features, but the model was trained on {self.n_features_in_}.")
        found = self._infer(examples, observed=False)
        return found if many else found[0]

    def score(self, X: Any, edges: Any, y: Any = None, *, sample_weight: Any = None) -> float:
        """Share of known labels that `predict(X, edges)` finds."""
        X, edges, y = _split(X, edges, y)
        many = _is_list(X, edges)
        found = self.predict(X, edges)
        ys, labels = (y, found) if many else ([y], [found])
        weights = [None] * len(ys) if sample_weight is None else sample_weight if many else [sample_weight]
        truth = [self._encoded(_labels(own), len(p)) for own, p in zip(ys, labels, strict=True)]
        return self._accuracy(truth, labels, weights)

    def _example(self, X: Any, edges: Any, edge_features: Any) -> Example:
        """A network without labels."""
        listed, least = edge_list(edges)
        x = None if X is None else _matrix(X)
        n = least if x is None else x.shape[0]
        if least > n:
            raise PotentiaError(f"edges have node {least - 1}, but X has {n} rows.")
        pairs, pair = unique_pairs(listed)
        # in one order, so that the form of the edges does not matter
        order = np.lexsort(pairs.T[::-1])
        pairs, pair = pairs[order], np.where(pair >= 0, np.argsort(order)[pair] if len(order) else -1, -1)
        graph = Graph(np.full(n, len(self.classes_)), {"node": np.arange(n)[:, None], "edge": pairs})
        if edge_features is None and hasattr(edges, "tocoo"):
            values = edges.tocoo().data
            edge_features = values[values != 0][:, None] if len(np.unique(values[values != 0])) > 1 else None
        features = {"node": self._seen(x, pairs, n)}
        if edge_features is not None:
            features["edge"] = _merged(_matrix(edge_features, "edge_features"), pair, len(pairs))
        return Example(graph, features)

    def _seen(self, x: Any, pairs: Ints, n: int) -> Any:
        """Features of the nodes, and the mean over their neighbours; degrees where there are no features."""
        ones = np.ones(2 * len(pairs))
        ends = np.concatenate([pairs, pairs[:, ::-1]])
        joined = sparse.csr_array((ones, (ends[:, 0], ends[:, 1])), shape=(n, n))
        degree = joined.sum(axis=1)
        if x is None:
            return np.log1p(degree)[:, None]
        if not self.neighbours:
            return x
        mean = sparse.diags_array(1.0 / np.maximum(degree, 1)) @ joined @ x
        return sparse.csr_array(sparse.hstack([x, mean])) if sparse.issparse(x) else np.concatenate([x, mean], axis=1)


def _split(X: Any, edges: Any, y: Any) -> tuple[Any, Any, Any]:
    """X, edges and y, of which X may be a list of pairs (features, edges) and edges the labels."""
    pairs = isinstance(X, list) and len(X) > 0 and all(isinstance(own, tuple) and len(own) == 2 for own in X)
    if pairs and y is None:
        return [own[0] for own in X], [own[1] for own in X], edges
    return X, edges, y


def _is_list(X: Any, edges: Any) -> bool:
    """Whether there are several networks."""
    given = edges if X is None else X
    if not isinstance(given, list | tuple) or not given or not isinstance(edges, list | tuple):
        return False
    return X is None or hasattr(X[0], "tocsr") or np.ndim(X[0]) == 2


def _labels(y: Any) -> Sequence[Any]:
    labels: Sequence[Any] = y.tolist() if hasattr(y, "tolist") else list(y)
    return labels


def _matrix(X: Any, name: str = "X") -> Any:
    """Finite numbers (n, d), dense or CSR."""
    return sparse.csr_array(X) if hasattr(X, "tocsr") else finite_matrix(X, name)


def _merged(features: Floats, pair: Ints, n_pairs: int) -> Floats:
    """The mean over the edges that became one pair."""
    if len(features) != len(pair):
        raise PotentiaError(f"edge_features has {len(features)} rows for {len(pair)} edges.")
    kept = np.flatnonzero(pair >= 0)
    total, count = np.zeros((n_pairs, features.shape[1])), np.bincount(pair[kept], minlength=n_pairs)
    np.add.at(total, pair[kept], features[kept])
    return total / np.maximum(count, 1)[:, None]
