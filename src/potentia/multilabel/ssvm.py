"""Structural SVMs over labels: a chain of them, or every pair, as baselines of the large-margin networks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from scipy import sparse
from sklearn.utils import check_random_state

from .._options import check_choice, check_count, check_number, check_positive, check_type
from .._schema import Kind, Schema, prefixed
from .._types import Floats, Ints
from ..data.example import Example
from ..estimators import CRF
from ..graph.structure import Graph
from ..graph.union import Union
from ..inference.base import Inference
from ..learn.max_margin import MaxMargin
from ..potentials.linear import Linear
from .base import MultiLabelClassifier, check_seed
from .features import rows_by_label

Solver = Literal["frank_wolfe", "one_slack"]
#: Regions inferred together in predictions.
_CHUNK = 50_000


@dataclass(eq=False, repr=False)
class _SSVM(MultiLabelClassifier):
    r"""A CRF with one binary variable per label, trained by `MaxMargin` on the Hamming loss.

    The score of a labelling is :math:`F(y) = \sum_i w_i(y_i) \cdot [x, 1] + \sum_{ij} v_{ij}(y_i, y_j)`: every label
    has its own weights and every pair its own table, all regularised equally. Fitting minimises
    :math:`\frac{\alpha}{2} (|w|^2 + |v|^2)` plus the mean structured hinge loss of the n rows.

    Args:
        alpha: regularisation, above 0; a cost C of the summed loss is :math:`\alpha = 1 / (C n)`.
        solver: "frank_wolfe" or "one_slack"; see `MaxMargin`.
        inference: what finds best labellings; None for `Exact()`, which suits chains of any length and otherwise up to
            about 20 labels; use `LinearProgram()` beyond that.
        tol: stop when the duality gap is at most this share of the objective.
        passes: maximum number of passes over the rows; a warning says so if the gap is then still larger.
        random_state: seed of the order of rows.

    After `fit`: `crf_`, the trained model, with `crf_.history_` (objective, dual and gap of every pass).
    """

    alpha: float = 5e-3
    solver: Solver = "frank_wolfe"
    inference: Inference | None = None
    tol: float = 1e-3
    passes: int = 200
    random_state: Any = 0

    saved: ClassVar[Schema] = {**MultiLabelClassifier.saved, "crf": Kind((dict,), optional=True)}

    def _check_options(self) -> None:
        check_positive("alpha", self.alpha)
        check_choice("solver", self.solver, get_args(Solver))
        check_type("inference", self.inference, Inference, optional=True)
        check_number("tol", self.tol)
        check_count("passes", self.passes, 1)
        check_seed("random_state", self.random_state)

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        if not self._coding.varying.any():
            return {}, {}
        content, arrays = self.crf_.state()
        return {"crf": content}, {f"crf/{name}": array for name, array in arrays.items()}

    def _restore(self, found: dict[str, Any], arrays: dict[str, Any]) -> None:
        if found["V"]:
            self.crf_ = CRF.from_state(found["crf"], prefixed(arrays, "crf/"))

    @staticmethod
    @abstractmethod
    def _graph(n_labels: int) -> Graph:
        """Which pairs of labels have a table."""

    def _fit(self, X: Any, signs: Floats, weight: Floats) -> None:
        learner = MaxMargin(
            ridge=self.alpha,
            iterations=self.passes,
            tol=self.tol,
            solver=self.solver,
            inference=self.inference,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
        )
        graph = self._graph(signs.shape[1])
        kinds = [kind for kind, scope in graph.scopes.items() if len(scope)]
        potentials = {kind: Linear(ridge=0.0, intercept=False) for kind in kinds}
        labels = (signs > 0).astype(np.int64)
        examples = [Example(graph, _features(graph, X[[r]]), labels[r]) for r in range(len(signs))]
        self.crf_ = CRF(potentials, learner, decode="map").fit(examples)

    def _decide(self, X: Any) -> Floats:
        """What each label's positive value adds to the score, the other labels as predicted."""
        return np.concatenate([gains for _, gains in self._chunks(X)])

    def _predict_signs(self, X: Any) -> np.ndarray:
        return np.concatenate([2 * labels - 1 for labels, _ in self._chunks(X)])

    def _chunks(self, X: Any) -> Iterator[tuple[Ints, Floats]]:
        """Labels and gains (m, K) of m rows at a time, inferred as one graph."""
        graph = self._graph(int(self._coding.varying.sum()))
        step = max(1, _CHUNK // sum(len(scope) for scope in graph.scopes.values()))
        for start in range(0, X.shape[0], step):
            rows = X[start : start + step]
            example = Example(Union([graph] * rows.shape[0]).graph, _features(graph, rows))
            result = self.crf_.infer(example)
            labels = result.argmax().reshape(rows.shape[0], -1)
            yield labels, _gains(graph, self.crf_.theta(example), labels)


class ChainSSVM(_SSVM):
    __doc__ = (
        "Structural SVM with a table between each label and the next, in the order of columns (Viterbi).\n\n    "
        + (_SSVM.__doc__ or "")
    )

    @staticmethod
    def _graph(n_labels: int) -> Graph:
        return Graph.chain(n_labels, n_states=2)


class CompleteSSVM(_SSVM):
    __doc__ = "Structural SVM with a table for every pair of labels.\n\n    " + (_SSVM.__doc__ or "")

    @staticmethod
    def _graph(n_labels: int) -> Graph:
        return Graph.complete(n_labels, n_states=2)


def _features(graph: Graph, X: Any) -> dict[str, Any]:
    """[x, 1] in the columns of each label, and a one in the column of each pair, for the rows of X in turn."""
    n, n_pairs, nodes = X.shape[0], len(graph.scopes["edge"]), rows_by_label(X, graph.n_variables)
    if not n_pairs:
        return {"node": nodes}
    pairs = (np.ones(n * n_pairs), np.tile(np.arange(n_pairs), n), np.arange(n * n_pairs + 1))
    return {"node": nodes, "edge": sparse.csr_array(pairs, shape=(n * n_pairs, n_pairs))}


def _gains(graph: Graph, theta: dict[str, Floats], labels: Ints) -> Floats:
    """F(y with y_i = 1) - F(y with y_i = 0) for every label i of every row, (n, K)."""
    n, K = labels.shape
    gains = (theta["node"][:, 1] - theta["node"][:, 0]).reshape(n, K)
    if "edge" in theta:
        tables, (i, j) = theta["edge"].reshape(n, -1, 2, 2), graph.scopes["edge"].T
        row, pair = np.arange(n)[:, None], np.arange(len(i))
        other = labels[:, j]
        np.add.at(gains, (row, i), tables[row, pair, 1, other] - tables[row, pair, 0, other])
        other = labels[:, i]
        np.add.at(gains, (row, j), tables[row, pair, other, 1] - tables[row, pair, other, 0])
    return gains
