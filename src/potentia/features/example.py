"""`Example`: one graph with what is seen and what is to be predicted; `Held`: such examples as a part of a data set."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from ..base.html import facts_table
from ..base.types import ArrayLike, Floats, Ints, PotentiaError, finite_array, plain_array
from ..graph.scores import check_labels
from ..graph.structure import Graph
from .parts import Source

# numbers looked at in one piece, so that checking a large array needs no second one of its size
_PIECE = 1 << 20


class Example:
    """A graph, features and inputs per kind, labels and weights, checked once; frozen.

    Args:
        graph: its variables and regions. Examples may share one graph.
        features: for each kind a matrix (n_regions, n_features), dense or SciPy-sparse (kept as CSR). float64 and
            float32 are kept without a copy, other numbers become float64. A kind may be left out or be None. Under any
            other name a matrix (n_variables, n_features), which a `pt.DenseGaussian` of that name reads.
        labels: (n_variables,) states, -1 where hidden; None if nothing is known, as at prediction time.
        weights: (n_variables,), finite and at least 0; None means 1 everywhere.
        name: shown in messages and reports.
        inputs: for each kind an array of any shape, such as an image (channels, height, width), for potentials that
            read whole examples (`Potential.unit`). Number types are kept, without a copy.

    Example:
        >>> import potentia as pt
        >>> graph = pt.Graph.chain(3, n_states=2)
        >>> example = pt.Example(graph, features={"node": [[0.1], [0.9], [0.8]]}, labels=[0, 1, -1])
        >>> example.labels.tolist()
        [0, 1, -1]
    """

    def __init__(
        self,
        graph: Graph,
        features: Mapping[str, ArrayLike] | None = None,
        labels: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        name: str | None = None,
        inputs: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        if not isinstance(graph, Graph):
            raise PotentiaError(f"an Example needs a Graph first, not {type(graph).__name__}.")
        self._graph = graph
        self._name = None if name is None else str(name)
        self._features = _check_features(graph, features)
        self._inputs = {
            kind: finite_array(given, f"inputs[{kind!r}]") for kind, given in _of_kinds(graph, "inputs", inputs).items()
        }
        self._labels = None if labels is None else _frozen(check_labels(graph, labels))
        self._weights = None if weights is None else _frozen(_check_weights(graph, weights))

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self._graph

    @property
    def features(self) -> Mapping[str, Any]:
        """Features (n_regions, n_features) of the kinds that have some."""
        return MappingProxyType(self._features)

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Arrays of the whole example, of the kinds that have one."""
        return MappingProxyType(self._inputs)

    @property
    def labels(self) -> Ints | None:
        """State of each variable, -1 where hidden; read-only."""
        return self._labels

    @property
    def weights(self) -> Floats | None:
        """Weight of each variable; read-only."""
        return self._weights

    @property
    def all_labels(self) -> Ints:
        """State of each variable, -1 where it is not known."""
        return np.full(self.graph.n_variables, -1) if self._labels is None else self._labels

    @property
    def all_weights(self) -> Floats:
        """Weight of each variable, also where they are all 1."""
        return np.ones(self.graph.n_variables) if self._weights is None else self._weights

    @property
    def name(self) -> str | None:
        """The example's name."""
        return self._name

    def with_labels(self, labels: ArrayLike | None) -> Example:
        """The same example with other labels; nothing else is copied or checked again."""
        other = copy.copy(self)
        other._labels = None if labels is None else _frozen(check_labels(self._graph, labels))
        return other

    def with_features(self, features: Mapping[str, ArrayLike]) -> Example:
        """The same example with other features of some kinds."""
        other = copy.copy(self)
        other._features = {**self._features, **_check_features(self._graph, features)}
        return other

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"_inputs": {}} | state)
        # pickles lose the flag
        for values in (self._labels, self._weights):
            if values is not None:
                _frozen(values)

    def __repr__(self) -> str:
        shown = [f"{kind} {m.shape[0]} x {m.shape[1]} {m.dtype}" for kind, m in self._features.items()]
        parts = [repr(self._graph), ", ".join(shown) or "no features", _known(self._labels)]
        parts += [f"{kind} input {a.shape} {a.dtype}" for kind, a in self._inputs.items()]
        if self._weights is not None:
            parts.append("weights")
        return f"Example({'' if self._name is None else repr(self._name) + ': '}{'; '.join(parts)})"

    def _repr_html_(self) -> str:
        """The example's graph, features and labels as a table, for notebooks."""
        facts: dict[str, Any] = {"graph": repr(self._graph)}
        for kind, matrix in self._features.items():
            facts[f"features {kind!r}"] = f"{matrix.shape[0]} x {matrix.shape[1]} {matrix.dtype}"
        for kind, array in self._inputs.items():
            facts[f"input {kind!r}"] = f"{array.shape} {array.dtype}"
        facts["labels"] = _known(self._labels)
        if self._labels is not None and np.any(self._labels >= 0):
            states, count = np.unique(self._labels[self._labels >= 0], return_counts=True)
            most = ", ".join(f"state {s}: {n}" for s, n in zip(states[:10], count[:10], strict=True))
            facts["labels"] += f" ({most}{', ...' if len(states) > 10 else ''})"
        if self._weights is not None:
            facts["weights"] = f"{self._weights.min():g} to {self._weights.max():g}"
        return facts_table("Example" if self._name is None else f"Example {self._name}", facts)


class Held(Source):
    """Examples in memory; `first` is the number of the first of them in the data set."""

    in_memory: ClassVar[bool] = True

    def __init__(self, examples: Sequence[Example], first: int = 0) -> None:
        self.examples, self.first = list(examples), first

    @property
    def name(self) -> str:
        """The numbers of the examples."""
        return f"examples {self.first} to {self.first + len(self.examples) - 1}"

    def load(self) -> list[Example]:
        """The examples."""
        return self.examples


def _known(labels: Ints | None) -> str:
    """How many labels are known, in words."""
    if labels is None:
        return "no labels"
    seen = int(np.count_nonzero(labels >= 0))
    return "labels" if seen == len(labels) else f"labels ({seen} of {len(labels)} known)"


def _of_kinds(graph: Graph, name: str, given: Mapping[str, ArrayLike] | None) -> dict[str, Any]:
    """What was given for kinds of the graph, without those that are None."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise PotentiaError(f'{name} must be a mapping such as {{"node": X}}, not {type(given).__name__}.')
    for kind in given:
        if kind not in graph.scopes and (name != "features" or np.shape(given[kind])[:1] != (graph.n_variables,)):
            raise PotentiaError(f"{name} has kind {kind!r}, but the graph has {', '.join(graph.kinds) or 'none'}.")
    return {kind: values for kind, values in given.items() if values is not None}


def _check_features(graph: Graph, features: Mapping[str, ArrayLike] | None) -> dict[str, Any]:
    """The feature matrices that were given."""
    return {
        kind: _check_matrix(f"features[{kind!r}]", given, len(graph.scopes.get(kind, range(graph.n_variables))))
        for kind, given in _of_kinds(graph, "features", features).items()
    }


def _check_matrix(name: str, given: ArrayLike, n_rows: int) -> Any:
    """A finite float matrix with n_rows rows: an array or CSR."""
    sparse = hasattr(given, "tocsr")
    matrix: Any = given.tocsr() if sparse else plain_array(given, name)
    if matrix.ndim != 2:
        raise PotentiaError(f"{name} must have shape (n_regions, n_features), not {matrix.shape}.")
    if matrix.shape[0] != n_rows:
        raise PotentiaError(f"{name} has {matrix.shape[0]} rows, but the graph has {n_rows} such regions.")
    if matrix.dtype.kind not in "fiub":
        raise PotentiaError(f"{name} must hold real numbers, not {matrix.dtype}.")
    if matrix.dtype not in (np.float64, np.float32):
        matrix = matrix.astype(np.float64)
    _check_finite(name, matrix.data[:, None] if sparse else matrix, rows_known=not sparse)
    return matrix


def _check_finite(name: str, values: Any, rows_known: bool) -> None:
    """Refuse values that are not finite, looked at piece by piece."""
    step = max(1, _PIECE // max(1, values.shape[1]))
    for start in range(0, len(values), step):
        finite = np.isfinite(values[start : start + step])
        if not finite.all():
            row, column = np.argwhere(~finite)[0]
            place = f" at row {start + row}, column {column}" if rows_known else ""
            raise PotentiaError(f"{name} holds a value that is not finite{place}.")


def _check_weights(graph: Graph, weights: ArrayLike) -> Floats:
    """Weights of all variables as floats, finite and at least 0."""
    given = plain_array(weights, "weights")
    if given.shape != (graph.n_variables,):
        raise PotentiaError(f"weights has shape {given.shape}; the graph needs ({graph.n_variables},).")
    if given.dtype.kind not in "fiub":
        raise PotentiaError(f"weights must hold real numbers, not {given.dtype}.")
    values = given.astype(np.float64)
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if bad.size:
        raise PotentiaError(f"weights[{bad[0]}] = {values[bad[0]]}, but a weight is finite and at least 0.")
    return values


def _frozen(values: Any) -> Any:
    """The array, read-only."""
    values.setflags(write=False)
    return values
