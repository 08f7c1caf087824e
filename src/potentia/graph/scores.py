"""Score tables: from what users pass (a dict per kind) to validated flat arrays, and marginals back."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..base.memory import borrow_like, check_memory
from ..base.types import ArrayLike, Floats, InfeasibleError, Ints, PotentiaError, plain_array, warn_caller
from ..kernels.machine.simd import CHUNK
from ..kernels.tables import add_singles, first_bad_table, score_range
from .dense import DenseGaussian, check_dense
from .labels import observed_states
from .regions import Regions
from .structure import Graph
from .tables import Weighted, WeightedTable, check_weighted

#: Rounding error of a sum per term, as a share of the largest term.
_ROUNDING = 1e-15
#: Bytes that a state of a variable takes in scores and marginals; measured.
_PADDED_BYTES = 24


class Scores:
    """Validated scores theta of a graph's regions, without copying what is already flat.

    Args:
        graph: the graph.
        theta: per kind an array (n_regions, *states), one table shared by all regions (*states), or a list of
            tables where state counts are mixed; of pairs also a `WeightedTable` such as `pt.Potts(weight)`, which is
            written out only where that is needed. Kinds that are None or left out score zero, with a warning if
            pairs are left out. -inf forbids a configuration. Tables of dtype float32 halve the memory that message
            passing reads; messages stay float64.
        observed: variables to clamp: {variable: state}, or an array of states with -1 where free. Their other
            states get -inf.
        own: keep a copy of scores that share memory with `theta`, so that later changes to it do no harm.
        dense: whether `theta` may hold `DenseGaussian` terms, by names that are no kinds of the graph.
    """

    def __init__(
        self,
        graph: Graph,
        theta: Mapping[str, ArrayLike],
        observed: ArrayLike | None = None,
        own: bool = False,
        dense: bool = False,
    ) -> None:
        if not isinstance(graph, Graph):
            raise PotentiaError(f"inference needs a Graph first, not {type(graph).__name__}.")
        if not isinstance(theta, Mapping):
            raise PotentiaError(f"theta must map kinds to score tables, not be a {type(theta).__name__}.")
        #: Fully connected terms by name.
        self.dense: dict[str, DenseGaussian] = {}
        for name, term in theta.items():
            if isinstance(term, DenseGaussian):
                if not dense:
                    raise PotentiaError(
                        f"theta[{name!r}] is a DenseGaussian, which pt.MeanField takes and nothing else does."
                    )
                check_dense(graph, name, term)
                self.dense[name] = term
            elif name not in graph.scopes:
                raise PotentiaError(
                    f"theta names kind {name!r}, but the graph's kinds are {list(graph.kinds)}."
                )
        self.graph = graph
        self.regions: Regions = graph.regions
        #: Whether all regions of two and more variables were given in single precision, which is then enough for
        #: what inference derives from them.
        self.single = False
        for kind, scope in graph.scopes.items():
            if scope.shape[1] > 1 and len(scope):
                self.single = getattr(theta.get(kind), "dtype", None) == np.float32
                if not self.single:
                    break
        _check_size(graph, theta)
        self._values: dict[str, Floats] = {}
        self._offset: dict[str, Ints] = {}
        self._bounds: dict[str, tuple[float, float] | None] = {}
        #: Kinds of pairs given by weights.
        self.weighted: dict[str, Weighted] = {}
        for kind in graph.kinds:
            given = theta.get(kind)
            if isinstance(given, WeightedTable) and len(graph.scopes[kind]):
                self.weighted[kind] = check_weighted(graph, kind, given)
                self._bounds[kind] = self.weighted[kind].bounds
                continue
            values, self._offset[kind] = _flatten(graph, kind, given)
            self._values[kind] = values
            self._refuse_bad(kind)
            if own and isinstance(given, np.ndarray) and np.may_share_memory(values, given):
                # only scores of bounded range are of use in single precision
                self._values[kind] = _copy(values, values.dtype if self.bounds(kind) else np.float64)
        self.singles = self._pad_singles()
        if observed is not None:
            self.singles = self._held(self.singles, observed_states(graph, observed))
        _warn_of_missing(graph, theta)

    def kind(self, kind: str) -> tuple[Floats, Ints]:
        """Flat scores of a kind and the offset of each region's table in them (equal offsets: shared).

        Tables given by weights are written out, one per weight, and those of float32 are widened.
        """
        values, offset = self.as_given(kind)
        if values.dtype != np.float64:
            values = self._values[kind] = _copy(values, np.float64)
        return values, offset

    def as_given(self, kind: str) -> tuple[Floats, Ints]:
        """The same, but of float32 if they were given so and nothing has asked for more."""
        if kind not in self._values:
            own, n = self.weighted[kind], len(self.graph.scopes[kind])
            # values last: to other threads they say that the offsets are there
            self._offset[kind] = np.arange(n) * own.unit.size * int(len(own.weight) > 1)
            self._values[kind] = own.written()
        return self._values[kind], self._offset[kind]

    def clamp(self, labels: Ints) -> Scores:
        """The same scores with every variable whose label is not -1 held in it."""
        clamped = copy.copy(self)
        clamped.singles = self._held(self.singles.copy(), labels)
        return clamped

    def n_entries(self, kind: str) -> int:
        """Numbers by which a kind's scores are given, and that their cotangents have: table entries, or weights."""
        return len(self.weighted[kind].weight if kind in self.weighted else self._values[kind])

    def replace(self, values: dict[str, Floats], offsets: dict[str, Ints]) -> None:
        """Take other scores of some kinds, flat, and the offsets of their tables; `singles` stay as they are."""
        self._values, self._offset = {**self._values, **values}, {**self._offset, **offsets}
        self._bounds = {kind: bounds for kind, bounds in self._bounds.items() if kind not in values}
        self.weighted = {kind: own for kind, own in self.weighted.items() if kind not in values}

    def bounds(self, kind: str) -> tuple[float, float] | None:
        """The smallest and the largest score of a kind; None if it has none or some are -inf."""
        if kind not in self._bounds:
            ends = np.empty((2, CHUNK))
            good = score_range(self._values[kind], ends)
            low, high = ends[:, 0].tolist()
            self._bounds[kind] = (low, high) if good and low <= high else None
        return self._bounds[kind]

    def flat(self, leave: Collection[str] = ()) -> tuple[Floats, Ints]:
        """One flat array over all regions in the `Regions` numbering and each table's offset in it.

        Clamped variables appear through their single-variable regions, which are always written out. Kinds to
        `leave` out have no tables there, and meaningless offsets.
        """
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
            own = self.weighted[kind]
            return own.of_pairs(len(self.graph.scopes[kind]))[region - r.kind_ptr[number]] * own.unit
        values, offset = self.as_given(kind)
        start = offset[region - r.kind_ptr[number]]
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
        """What rounding may change in a labelling's score, where large scores of either sign add up to a small one."""
        return _ROUNDING * len(self.regions.size) * self.largest()

    def forbids_all_of(self, other: Scores) -> bool:
        """Whether every configuration that `other` (scores of the same graph) forbids is forbidden here too."""
        if np.any(np.isneginf(other.singles) & ~np.isneginf(self.singles)):
            return False
        for kind, scope in self.graph.scopes.items():
            if scope.shape[1] < 2 or kind in other.weighted:
                continue
            old, old_at = other.as_given(kind)
            gone = np.isneginf(old)
            if not gone.any():
                continue
            if kind in self.weighted:
                return False
            new, new_at = self.as_given(kind)
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

    def _held(self, padded: Floats, observed: Ints) -> Floats:
        """-inf at every state but the observed one, of variables that have one."""
        clamped = np.flatnonzero(observed >= 0)
        kept = padded[clamped, observed[clamped]]
        if np.any(kept == -np.inf):
            bad = int(clamped[np.flatnonzero(kept == -np.inf)[0]])
            raise InfeasibleError(
                f"variable {bad} is observed in state {observed[bad]}, which its scores forbid."
            )
        padded[clamped] = -np.inf
        padded[clamped, observed[clamped]] = kept
        return padded

    def _refuse_bad(self, kind: str) -> None:
        if self.bounds(kind) is not None:
            return
        values, offset = self.as_given(kind)
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


def _flatten(graph: Graph, kind: str, given: Any) -> tuple[Floats, Ints]:
    """Flat values and table offsets of one kind; no copy for a contiguous array of floats."""
    size = graph.table_sizes(kind)
    n = len(size)
    if n == 0:
        return np.zeros(0), np.zeros(0, dtype=np.int64)
    if given is None:
        return np.zeros(int(size.max())), np.zeros(n, dtype=np.int64)
    one = graph.shared_shape(kind)
    if one is not None:
        table = _as_floats(given, f"theta[{kind!r}]")
        if table.shape == one:
            return table.ravel(), np.zeros(n, dtype=np.int64)
        if table.shape == (n, *one):
            return table.ravel(), np.arange(n, dtype=np.int64) * int(size[0])
        raise PotentiaError(
            f"theta[{kind!r}] has shape {table.shape}; expected {(n, *one)}, or {one} for a shared table."
        )
    if not hasattr(given, "__len__"):
        raise PotentiaError(f"theta[{kind!r}] must be a list of {n} tables, not {given!r}.")
    tables = list(given)
    if len(tables) != n:
        raise PotentiaError(f"theta[{kind!r}] has {len(tables)} tables for {n} regions.")
    arrays = [_as_floats(t, f"theta[{kind!r}][{i}]") for i, t in enumerate(tables)]
    for i, (array, shape) in enumerate(zip(arrays, graph.table_shapes(kind), strict=True)):
        if array.shape != tuple(shape):
            raise PotentiaError(
                f"theta[{kind!r}][{i}] has shape {array.shape}; its variables need {tuple(shape.tolist())}."
            )
    return np.concatenate([a.ravel() for a in arrays]), np.concatenate([[0], np.cumsum(size)[:-1]]).astype(
        np.int64
    )


def _copy(values: Floats | NDArray[np.float32], dtype: DTypeLike) -> Floats:
    copied = borrow_like(values.shape, dtype)
    copied[...] = values
    return copied


def _as_floats(given: Any, name: str) -> Floats:
    # tables of float32 stay as they are; NumPy counts both byte orders as equal, kernels do not
    single = isinstance(given, np.ndarray) and given.dtype == np.dtype("f4")
    found = plain_array(given, name, None if single else np.float64)
    return np.ascontiguousarray(found, dtype=found.dtype.newbyteorder("="))


def pair_tables(scores: Scores, single: bool = False) -> tuple[Floats, Ints]:
    """Scores of all pairs, kind after kind, flat, and the offset of each pair's table.

    single: of float32 if there is one kind that was given so.
    """
    read = scores.as_given if single else scores.kind
    kinds = [kind for kind, scope in scores.graph.scopes.items() if scope.shape[1] == 2]
    parts = list(map(read, kinds))
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
    found = [scores.singles[np.arange(scores.graph.n_variables), labels]]
    sizes = np.abs(np.concatenate([*found, *(region_scores(scores, kind, labels) for kind in kinds)]))
    return float(sizes[np.isfinite(sizes)].max(initial=0.0))


def region_scores(scores: Scores, kind: str, labels: Ints) -> Floats:
    """The score of every region of a kind at a complete labelling."""
    index = scores.graph.table_index(kind, labels)
    if kind in scores.weighted:
        own = scores.weighted[kind]
        return own.weight * own.unit.ravel()[index]
    values, offset = scores.as_given(kind)
    return values[offset + index].astype(np.float64)
