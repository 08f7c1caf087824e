"""Scores and labels of a graph: from what users pass to validated flat arrays."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..base.resources import borrow_like, check_memory
from ..base.types import (
    ArrayLike,
    Floats,
    InfeasibleError,
    Ints,
    PotentiaError,
    check_type,
    length,
    plain_array,
    real_numbers,
    warn_caller,
    whole_numbers,
)
from ..kernels.tables import LARGEST, add_singles, first_bad_table
from .regions import Regions, distinct
from .structure import Graph
from .structured import StructuredValue
from .tables import DenseTerm, Weighted, WeightedTable, check_dense, check_weighted

#: Rounding error of a sum per term, as a share of the largest term.
_ROUNDING = 1e-15
#: Entries of a table that is written out of a structured factor, at most.
_WRITTEN = 2**22
#: Bytes that a state of a variable takes in scores and marginals; measured.
_PADDED_BYTES = 24


class Scores:
    """Validated scores theta of a graph's regions, without copying what is already flat.

    Args:
        graph: the graph.
        theta: per kind an array (n_regions, *states), one table shared by all regions (*states), or a list of
            tables where state counts are mixed; of pairs also a `WeightedTable` such as `pt.Potts(weight)`, which is
            written out only where that is needed, and of regions of any size a value of `pt.factors`. Kinds that are
            None or left out score zero, with a warning if pairs are left out. -inf forbids a configuration. Tables of
            dtype float32 halve the memory that message passing reads; messages stay float64.
        observed: variables to clamp: {variable: state}, or an array of states with -1 where free. Their other
            states get -inf.
        own: keep a copy of scores that share memory with `theta`, so that later changes to it do no harm.
        dense: whether `theta` may hold `DenseGaussian` terms, by names that are no kinds of the graph.
        trusted: a learner made all scores, from features and options that were checked: values are not looked at.
    """

    def __init__(
        self,
        graph: Graph,
        theta: Mapping[str, ArrayLike],
        observed: ArrayLike | None = None,
        own: bool = False,
        dense: bool = False,
        trusted: bool = False,
    ) -> None:
        if not isinstance(graph, Graph):
            raise PotentiaError(f"inference needs a Graph first, not {type(graph).__name__}.")
        if not isinstance(theta, Mapping):
            raise PotentiaError(f"theta must map kinds to score tables, not be a {type(theta).__name__}.")
        #: Fully connected terms by name.
        self.dense: dict[str, DenseTerm] = {}
        for name, term in theta.items():
            if isinstance(term, DenseTerm):
                if not dense:
                    raise PotentiaError(
                        f"theta[{name!r}] is a DenseGaussian, which pt.MeanField takes and nothing else does."
                    )
                check_dense(graph, name, term)
                self.dense[name] = term
            elif name not in graph.scopes:
                raise PotentiaError(f"theta names kind {name!r}, but the graph's kinds are {list(graph.kinds)}.")
        #: Kinds given by values of `pt.factors`.
        self.structured = {
            kind: value
            for kind, value in theta.items()
            if isinstance(value, StructuredValue) and kind in graph.scopes and len(graph.scopes[kind])
        }
        if self.structured:
            own_structures = {k: v.structure(graph.scopes[k].shape[1]) for k, v in self.structured.items()}
            graph = graph.with_structures({**graph.structures, **own_structures})
            theta = {**theta, **{kind: _outcome_tables(graph, kind, value) for kind, value in self.structured.items()}}
        self.graph = graph
        self.regions: Regions = graph.regions
        #: Whether all regions of two and more variables were given in single precision, which is then enough for
        #: what inference derives from them.
        dtypes = [getattr(theta.get(kind), "dtype", None) for kind in graph.clique_kinds]
        self.single = bool(dtypes) and all(dtype == np.float32 for dtype in dtypes)
        _check_size(graph, theta)
        self._values: dict[str, Floats] = {}
        self._offset: dict[str, Ints] = {}
        self._bounds: dict[str, tuple[float, float] | None] = {}
        #: Kinds of pairs given by weights.
        self.weighted: dict[str, Weighted] = {}
        for kind in graph.kinds:
            value = theta.get(kind)
            if isinstance(value, WeightedTable) and len(graph.scopes[kind]):
                self.weighted[kind] = check_weighted(graph, kind, value)
                self._bounds[kind] = self.weighted[kind].bounds
                continue
            values, self._offset[kind] = _flatten(graph, kind, value)
            self._values[kind] = values
            if not trusted:
                self._refuse_bad(kind)
            if own and isinstance(value, np.ndarray) and np.may_share_memory(values, value):
                # only scores of bounded range are of use in single precision
                self._values[kind] = _copy(values, values.dtype if self.bounds(kind) else np.float64)
        self.singles = self._pad_singles()
        if observed is not None:
            self.singles = self._clamped(self.singles, observed_states(graph, observed))
        if not trusted:
            _warn_of_missing(graph, theta)

    def kind(self, kind: str, widen: bool = True) -> tuple[Floats, Ints]:
        """Flat scores of a kind and the offset of each region's table in them (equal offsets: shared).

        Tables given by weights are written out, one per weight. widen: those of float32 become float64.
        """
        if kind not in self._values:
            weighted, n = self.weighted[kind], len(self.graph.scopes[kind])
            # values last: to other threads they say that the offsets are there
            self._offset[kind] = np.arange(n) * weighted.unit.size * int(len(weighted.weight) > 1)
            self._values[kind] = weighted.written()
        if widen and self._values[kind].dtype != np.float64:
            self._values[kind] = _copy(self._values[kind], np.float64)
        return self._values[kind], self._offset[kind]

    def clamp(self, labels: Ints) -> Scores:
        """These scores with every variable clamped to its label, where that is not -1."""
        clamped = copy.copy(self)
        clamped.singles = self._clamped(self.singles.copy(), labels)
        return clamped

    def n_entries(self, kind: str) -> int:
        """Numbers by which a kind's scores are given, and that their cotangents have: table entries, or weights."""
        return len(self.weighted[kind].weight if kind in self.weighted else self._values[kind])

    def replace(self, values: dict[str, Floats], offsets: dict[str, Ints]) -> None:
        """Take other scores of some kinds, flat, and the offsets of their tables; `singles` stay as they are."""
        self._values, self._offset = {**self._values, **values}, {**self._offset, **offsets}
        self._bounds = {kind: bounds for kind, bounds in self._bounds.items() if kind not in values}
        self.weighted = {kind: table for kind, table in self.weighted.items() if kind not in values}

    def bounds(self, kind: str) -> tuple[float, float] | None:
        """The smallest and the largest score of a kind; None if it has none or some are -inf."""
        if kind not in self._bounds:
            values = self._values[kind]
            low, high = (float(values.min()), float(values.max())) if values.size else (np.inf, -np.inf)
            self._bounds[kind] = (low, high) if -LARGEST <= low <= high <= LARGEST else None  # NaN is in no order
        return self._bounds[kind]

    def flat(self, leave: Collection[str] = (), structured: bool = False) -> tuple[Floats, Ints]:
        """One flat array over all regions in the `Regions` numbering and each table's offset in it.

        Clamped variables appear through their single-variable regions, which are always written out. Kinds to
        `leave` out have no tables there, and meaningless offsets. structured: whether the caller takes outcomes for
        tables where the graph has `structures`; they are refused otherwise.
        """
        if not structured:
            refuse_structures(self.graph, "this method")
        regions, graph = self.regions, self.graph
        parts, offsets, start = [], [], 0
        for kind in graph.kinds:
            if kind in leave:
                offsets.append(np.zeros(len(graph.scopes[kind]), dtype=np.int64))
                continue
            values, offset = self.kind(kind)
            if graph.scopes[kind].shape[1] != 1:
                parts.append(values)
                offsets.append(offset + start)
                start += len(values)
            else:
                offsets.append(np.zeros(len(offset), dtype=np.int64))
        offsets.append(np.zeros(len(regions.size) - regions.kind_ptr[-1], dtype=np.int64))
        where = np.concatenate(offsets)
        mask = np.arange(self.singles.shape[1]) < graph.n_states[:, None]
        where[regions.single] = start + np.concatenate([[0], np.cumsum(graph.n_states)[:-1]])
        return np.concatenate([*parts, self.singles[mask]]), where

    def table(self, region: int) -> Floats:
        """The score table of one region (in the `Regions` numbering) with its own axes."""
        r = self.regions
        scope = r.scope[r.scope_ptr[region] : r.scope_ptr[region + 1]]
        shape = tuple(self.graph.n_states[scope])
        if len(scope) == 1:
            return self.singles[scope[0], : shape[0]].copy()
        number = int(np.searchsorted(r.kind_ptr, region, side="right")) - 1
        kind = self.graph.kinds[number]
        if kind in self.weighted:
            weighted = self.weighted[kind]
            return weighted.of_pairs(len(self.graph.scopes[kind]))[region - r.kind_ptr[number]] * weighted.unit
        values, offset = self.kind(kind, widen=False)
        start = offset[region - r.kind_ptr[number]]
        if kind in self.graph.structures:
            if np.prod(np.array(shape, dtype=float)) > _WRITTEN:
                raise PotentiaError(
                    f"theta[{kind!r}] has a structured factor of {len(shape)} variables, whose table is too large "
                    "to be written out."
                )
            outcome = self.graph.structures[kind].configurations(shape, self.graph.most_states(kind))
            return values[start + outcome].astype(np.float64)
        return values[start : start + r.size[region]].reshape(shape).astype(np.float64)

    def largest(self) -> float:
        """The largest finite score by size."""
        tables, largest = [self.singles], 0.0
        for kind in self.graph.kinds:
            bounds = self.bounds(kind)
            tables.append(self._values[kind] if bounds is None else np.array(bounds))
        for table in tables:
            lowest = float(np.min(table, where=table > -np.inf, initial=0.0))
            largest = max(largest, float(table.max(initial=0.0)), -lowest)
        return largest

    def rounding(self) -> float:
        """A bound on the rounding error of a labelling's score, which large scores of either sign may add up to."""
        return _ROUNDING * len(self.regions.size) * self.largest()

    def forbids_all_of(self, other: Scores) -> bool:
        """Whether every configuration that `other` (scores of the same graph) forbids is forbidden here too."""
        if np.any(np.isneginf(other.singles) & ~np.isneginf(self.singles)):
            return False
        for kind, scope in self.graph.scopes.items():
            if scope.shape[1] < 2 or kind in other.weighted:
                continue
            old, old_at = other.kind(kind, widen=False)
            gone = np.isneginf(old)
            if not gone.any():
                continue
            if kind in self.weighted:
                return False
            new, new_at = self.kind(kind, widen=False)
            if len(new) != len(old) or np.any(new_at != old_at) or np.any(gone & ~np.isneginf(new)):
                return False
        return True

    def _pad_singles(self) -> Floats:
        """Single-variable scores as (n_variables, max states); -inf beyond a variable's states."""
        graph = self.graph
        width = int(graph.n_states.max())
        padded = np.zeros((graph.n_variables, width))
        if graph.n_states.min() < width:
            padded[np.arange(width) >= graph.n_states[:, None]] = -np.inf
        for kind, scope in graph.scopes.items():
            if scope.shape[1] == 1 and len(scope):
                values, offset = self.kind(kind)
                add_singles(values, offset, scope.reshape(-1), graph.n_states, padded)
        return padded

    def _clamped(self, padded: Floats, observed: Ints) -> Floats:
        """-inf at every state but the observed one, of variables that have one."""
        clamped = np.flatnonzero(observed >= 0)
        at_observed = padded[clamped, observed[clamped]]
        if np.any(at_observed == -np.inf):
            bad = int(clamped[np.flatnonzero(at_observed == -np.inf)[0]])
            raise InfeasibleError(f"variable {bad} is observed in state {observed[bad]}, which its scores forbid.")
        padded[clamped] = -np.inf
        padded[clamped, observed[clamped]] = at_observed
        return padded

    def _refuse_bad(self, kind: str) -> None:
        """Refuse scores of a kind that are NaN, +inf or huge, and tables that forbid everything."""
        if self.bounds(kind) is not None:
            return
        values, offset = self.kind(kind, widen=False)
        size = self.graph.table_sizes(kind)
        row, code = first_bad_table(values, offset, size)
        scope = self.graph.scopes[kind][row].tolist() if row >= 0 else []
        if code == 1:
            raise PotentiaError(
                f"theta[{kind!r}][{row}] (variables {scope}) holds NaN, +inf or a score beyond 1e100; "
                "only -inf may be infinite."
            )
        if code == 2:
            raise InfeasibleError(f"theta[{kind!r}][{row}] (variables {scope}) forbids every configuration.")


def refuse_structures(graph: Graph, what: str) -> None:
    """Refuse structured factors, whose scores are not tables."""
    if graph.structures:
        raise PotentiaError(
            f"{what} takes no values of pt.factors on regions of three and more variables, as in kind "
            f"{next(iter(graph.structures))!r}."
        )


def _outcome_tables(graph: Graph, kind: str, value: StructuredValue) -> Any:
    """Scores of outcomes of a kind's regions, or of configurations where they have one or two variables."""
    scope, states = graph.scopes[kind], graph.most_states(kind)
    table = value.table(scope.shape[1], states)
    if table.ndim == 2 and len(table) not in (1, len(scope)):
        raise PotentiaError(f"theta[{kind!r}] has scores for {len(table)} regions, but the kind has {len(scope)}.")
    table = table[0] if table.ndim == 2 and len(table) == 1 else table
    own = value.structure(scope.shape[1])
    wanted = own.n_outcomes(scope.shape[1], states)
    if table.shape[-1] != wanted:
        raise PotentiaError(
            f"theta[{kind!r}] has {table.shape[-1]} scores; regions of {scope.shape[1]} variables need {wanted}."
        )
    if kind in graph.structures:
        return table
    shape = graph.shared_shape(kind)
    if shape is not None:
        return table[..., own.configurations(shape, states)]
    each = np.broadcast_to(table, (len(scope), wanted))
    shapes = graph.table_shapes(kind).tolist()
    return [row[own.configurations(shape, states)] for row, shape in zip(each, shapes, strict=True)]


def outcome_cotangents(scores: Scores, kind: str, d_tables: Floats) -> Floats:
    """Cotangents of a structured value's outcomes, as it gave their scores, from those of its flat tables."""
    graph, value = scores.graph, scores.structured[kind]
    scope, states = graph.scopes[kind], graph.most_states(kind)
    given = value.table(scope.shape[1], states)
    if kind in graph.structures:
        return d_tables.reshape(given.shape)
    own, shape = value.structure(scope.shape[1]), graph.shared_shape(kind)
    shapes = graph.table_shapes(kind).tolist() if shape is None else [shape] * (len(d_tables) // int(np.prod(shape)))
    index = np.concatenate([own.configurations(tuple(shape), states).ravel() for shape in shapes])
    row = np.repeat(np.arange(len(shapes)), [int(np.prod(shape)) for shape in shapes])
    d_given = np.zeros((len(shapes), given.shape[-1]))
    np.add.at(d_given, (row, index), d_tables)
    return d_given.reshape(given.shape) if d_given.size == given.size else d_given.sum(axis=0).reshape(given.shape)


def _warn_of_missing(graph: Graph, theta: Mapping[str, ArrayLike]) -> None:
    """Warn of pairs that theta does not name; None, or no theta at all, says that zero scores are meant.

    Larger regions without scores are how `Kikuchi` is given its clusters.
    """
    for kind, scope in graph.scopes.items():
        if theta and scope.shape[1] == 2 and len(scope) and kind not in theta:
            warn_caller(
                f"theta has no scores for the {len(scope)} pairs of kind {kind!r}, so they have no effect; "
                f"give theta[{kind!r}] = None if that is intended.",
                UserWarning,
            )
            return


def _check_size(graph: Graph, theta: Mapping[str, ArrayLike]) -> None:
    """Refuse scores that do not fit: a row as long as the most states for every variable, and tables not given."""
    width = int(graph.n_states.max())
    made = 0
    for kind in graph.kinds:
        if theta.get(kind) is None or isinstance(theta[kind], WeightedTable):
            made += int(graph.table_sizes(kind).max(initial=0))
    check_memory(
        _PADDED_BYTES * graph.n_variables * width + 8 * made,
        f"inference on {graph.n_variables} variables of up to {width} states",
        "use fewer states, or build several smaller graphs",
    )


def _flatten(graph: Graph, kind: str, value: Any) -> tuple[Floats, Ints]:
    """Flat values and table offsets of one kind; no copy for a contiguous array of floats."""
    size = graph.table_sizes(kind)
    n = len(size)
    if n == 0:
        return np.zeros(0), np.zeros(0, dtype=np.int64)
    if value is None:
        return np.zeros(int(size.max())), np.zeros(n, dtype=np.int64)
    one = graph.shared_shape(kind)
    if one is not None:
        table = _as_floats(value, f"theta[{kind!r}]")
        if table.shape == one:
            return table.ravel(), np.zeros(n, dtype=np.int64)
        if table.shape == (n, *one):
            return table.ravel(), np.arange(n, dtype=np.int64) * int(size[0])
        raise PotentiaError(
            f"theta[{kind!r}] has shape {table.shape}; expected {(n, *one)}, or {one} for a shared table."
        )
    if length(value) is None:
        raise PotentiaError(f"theta[{kind!r}] must be a list of {n} tables, not {value!r}.")
    tables = list(value)
    if len(tables) != n:
        raise PotentiaError(f"theta[{kind!r}] has {len(tables)} tables for {n} regions.")
    arrays = [_as_floats(t, f"theta[{kind!r}][{i}]") for i, t in enumerate(tables)]
    for i, (array, shape) in enumerate(zip(arrays, graph.table_shapes(kind), strict=True)):
        if array.shape != tuple(shape):
            raise PotentiaError(
                f"theta[{kind!r}][{i}] has shape {array.shape}; its variables need {tuple(shape.tolist())}."
            )
    return np.concatenate([a.ravel() for a in arrays]), np.cumsum(size) - size


def _copy(values: Floats | NDArray[np.float32], dtype: DTypeLike) -> Floats:
    """A copy of another type, in borrowed memory."""
    copied = borrow_like(values.shape, dtype)
    copied[...] = values
    return copied


def _as_floats(value: Any, name: str) -> Floats:
    """The values as a contiguous array of floats; tables of float32 keep their precision."""
    # tables of float32 stay as they are; NumPy counts both byte orders as equal, kernels do not
    single = isinstance(value, np.ndarray) and value.dtype == np.dtype("f4")
    array = plain_array(value, name, None if single else np.float64)
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))


def pair_tables(scores: Scores, single: bool = False) -> tuple[Floats, Ints]:
    """Scores of all pairs, kind after kind, flat, and the offset of each pair's table.

    single: of float32 if there is one kind that was given so.
    """
    kinds = [kind for kind, scope in scores.graph.scopes.items() if scope.shape[1] == 2]
    parts = [scores.kind(kind, widen=not single) for kind in kinds]
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(len(values) for values, _ in parts)])
    offsets = [offset + start for (_, offset), start in zip(parts, starts, strict=False)]
    return (
        np.concatenate([np.zeros(0), *(values for values, _ in parts)]),
        np.concatenate([np.zeros(0, np.int64), *offsets]),
    )


def score_labels(scores: Scores, labels: ArrayLike) -> float:
    """F(y): the sum of the scores of every region at a complete labelling."""
    y = plain_array(labels, "labels")
    graph = scores.graph
    total = float(scores.singles[np.arange(graph.n_variables), y].sum())
    for kind, scope in graph.scopes.items():
        if scope.shape[1] != 1 and len(scope):
            total += float(region_scores(scores, kind, y).sum())
    return total + sum(term.score(y, scores.singles.shape[1]) for term in scores.dense.values())


def score_size(scores: Scores, labels: Ints) -> float:
    """The largest score of a region at a complete labelling, by absolute value, of those that are not forbidden."""
    kinds = [kind for kind, scope in scores.graph.scopes.items() if scope.shape[1] != 1 and len(scope)]
    singles = scores.singles[np.arange(scores.graph.n_variables), labels]
    sizes = np.abs(np.concatenate([singles, *(region_scores(scores, kind, labels) for kind in kinds)]))
    return float(sizes[np.isfinite(sizes)].max(initial=0.0))


def region_scores(scores: Scores, kind: str, labels: Ints) -> Floats:
    """The score of every region of a kind at a complete labelling."""
    index = scores.graph.table_index(kind, labels)
    if kind in scores.weighted:
        weighted = scores.weighted[kind]
        return weighted.weight * weighted.unit.ravel()[index]
    values, offset = scores.kind(kind, widen=False)
    return values[offset + index].astype(np.float64)


def trivial_bound(scores: Scores) -> float:
    """The sum of all tables' maxima, an upper bound on every score."""
    total = float(scores.singles.max(axis=1).sum())
    for kind in scores.graph.clique_kinds:
        values, offset = scores.kind(kind)
        starts = distinct(offset)
        # tables without regions lie between these at most, which can only raise the bound
        total += float(np.maximum.reduceat(values, starts)[np.searchsorted(starts, offset)].sum())
    return total


# -- labels


def check_labels(graph: Graph, labels: ArrayLike, name: str = "labels") -> Ints:
    """Labels as integers, one per variable, each a state of its variable or -1 (hidden)."""
    check_type("graph", graph, Graph)
    y = whole_numbers(labels, name)
    if y.shape != (graph.n_variables,):
        raise PotentiaError(f"{name} has shape {y.shape}; the graph needs ({graph.n_variables},).")
    bad = np.flatnonzero((y < -1) | (y >= graph.n_states))
    if bad.size:
        i = int(bad[0])
        raise PotentiaError(f"{name}[{i}] = {y[i]} is not a state of variable {i}, which has {graph.n_states[i]}.")
    return y


def observed_states(graph: Graph, observed: ArrayLike | None) -> Ints:
    """Clamped state of each variable, -1 where free, from None, {variable: state} or an array with -1."""
    if observed is None:
        return np.full(graph.n_variables, -1, dtype=np.int64)
    if not isinstance(observed, Mapping):
        return check_labels(graph, observed, "observed")
    states = np.full(graph.n_variables, -1, dtype=np.int64)
    variables = whole_numbers(list(observed), "observed variables")
    values = whole_numbers(list(observed.values()), "observed states")
    if not variables.shape == values.shape == (len(observed),):
        raise PotentiaError("observed must map each variable's number to the number of its state.")
    for variable, state in zip(variables, values, strict=True):
        if not 0 <= variable < graph.n_variables:
            raise PotentiaError(f"observed names variable {variable}; the graph has 0..{graph.n_variables - 1}.")
        if not 0 <= state < graph.n_states[variable]:
            raise PotentiaError(
                f"observed state {state} of variable {variable} is outside 0..{graph.n_states[variable] - 1}."
            )
        states[variable] = state
    return states


def labels_to_indicators(graph: Graph, labels: ArrayLike) -> dict[str, Floats | list[Floats]]:
    """f(y): a table per region with 1 at its configuration; all zero for a region that touches a hidden variable.

    Example:
        >>> import potentia as pt
        >>> graph = pt.Graph.chain(2, n_states=3)
        >>> {kind: table.tolist() for kind, table in pt.multilabel.labels_to_indicators(graph, [0, 2]).items()}
        {'node': [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], 'edge': [[[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]]}
    """
    y = check_labels(graph, labels)
    return {kind: region_indicators(graph, y, kind) for kind in graph.kinds}


def region_indicators(graph: Graph, labels: Ints, kind: str) -> Floats | list[Floats]:
    """Indicators of the configurations of a kind's regions, one table per region."""
    start = np.concatenate([[0], np.cumsum(graph.table_sizes(kind))])
    flat = np.zeros(start[-1])
    seen = (labels[graph.scopes[kind]] >= 0).all(axis=1)
    flat[(start[:-1] + graph.table_index(kind, np.maximum(labels, 0)))[seen]] = 1.0
    return graph.shape_tables(kind, flat)


def indicators_to_labels(graph: Graph, indicators: Mapping[str, ArrayLike]) -> Ints:
    """Labels from tables of indicators (or marginals): each variable's best state over its tables, -1 if all zero.

    Example:
        >>> import potentia as pt
        >>> graph = pt.Graph.chain(2, n_states=3)
        >>> pt.multilabel.indicators_to_labels(graph, pt.multilabel.labels_to_indicators(graph, [0, 2])).tolist()
        [0, 2]
    """
    check_type("graph", graph, Graph)
    check_type("indicators", indicators, Mapping)
    votes = np.zeros((graph.n_variables, int(graph.n_states.max())))
    for kind, tables in indicators.items():
        scope = graph.scopes.get(kind)
        if scope is None or length(tables) != len(scope):
            raise PotentiaError(f"indicators of kind {kind!r} do not fit the graph's regions.")
        shapes = graph.table_shapes(kind)
        name = f"indicators[{kind!r}]"
        if graph.shared_shape(kind) is None:
            stacks = [(s[None], real_numbers(t, name)[None]) for s, t in zip(scope, tables, strict=True)]
        else:
            stacks = [(scope, real_numbers(tables, name))]
        present = [shape for _, stack in stacks for shape in [stack.shape[1:]] * len(stack)]
        if present != [tuple(shape) for shape in shapes]:
            raise PotentiaError(f"indicators of kind {kind!r} have tables of the wrong shape.")
        for scopes, stack in stacks:
            for axis in range(scopes.shape[1]):
                vote = stack.sum(axis=tuple(k + 1 for k in range(scopes.shape[1]) if k != axis))
                np.add.at(votes, (scopes[:, axis, None], np.arange(vote.shape[1])), vote)
    return np.where(votes.max(axis=1) > 0, votes.argmax(axis=1), -1)
