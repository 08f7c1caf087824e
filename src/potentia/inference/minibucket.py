"""Weighted mini-buckets: bounds on log Z (or on mixed sums and maxima) within a given memory, and a proposal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..base.types import Bools, Floats, Ints
from ..graph.scores import Scores
from ..kernels.elimination import send_up
from ..kernels.minibucket import draw_labels, match_moments, move_weights, send_moments
from .elimination import Program, cut_factors, flat_program, products
from .order_search import cut_states

#: Entries of the table of a cost shift at most.
_SHIFT_ENTRIES = 1024
#: Table entries between two looks at the clock.
_CHUNK = 2**24
#: Weight of the positive mini-bucket of a lower bound, less one, is shared by the others.
_EXCESS = 0.5


class BucketFactors(NamedTuple):
    """Score tables of the undecided variables, named by their position in an elimination order.

    Attributes:
        order: the variables, first eliminated first. kept: allowed states of each variable of the graph first.
        card: states left, by position. scope_ptr, scope: CSR of each table's positions, ascending.
        values: the tables, C-ordered, one after another. constant: what the decided variables score.
    """

    order: Ints
    kept: Ints
    card: Ints
    scope_ptr: Ints
    scope: Ints
    values: Floats
    constant: float

    def labels(self, positions: Ints) -> Ints:
        """Labels of all variables of the graph, (m, n_variables), from states by position, (m, positions)."""
        labels = np.tile(self.kept[:, 0], (len(positions), 1))
        labels[:, self.order] = self.kept[self.order, positions]
        return labels


def factors_in_order(scores: Scores, allowed: Bools, order: Ints) -> BucketFactors:
    """The tables of `scores` over the allowed states of the variables in `order`; the others have one state each."""
    cut = cut_states(scores.regions, allowed)
    region, tables, index = cut_factors(cut, order)
    values, where = scores.flat()
    fixed = np.flatnonzero(cut.order == 0)
    constant = math.fsum(values[where[fixed] + cut.entry[fixed]])
    start = np.repeat(where[region], np.diff(tables.offset))
    return BucketFactors(order, cut.kept, tables.card, tables.scope_ptr, tables.scope, values[index + start], constant)


class Split(NamedTuple):
    """Which tables each mini-bucket adds up.

    Attributes:
        scopes: positions of each node's clique, ascending; its first is the variable it eliminates.
        sources: ids of the tables of each node: factors below `n_factors`, nodes from there on.
        shifts: scope of the cost shift of each node, empty where its variable has one node only.
        node_ptr: nodes of each variable, CSR. entries: table entries of all nodes. largest: of the largest node.
    """

    scopes: list[tuple[int, ...]]
    sources: list[list[int]]
    shifts: list[tuple[int, ...]]
    node_ptr: Ints
    entries: int
    largest: int

    @property
    def exact(self) -> bool:
        """Whether no bucket was split."""
        return len(self.scopes) == len(self.node_ptr) - 1


def split_buckets(factors: BucketFactors, limit: int) -> Split:
    """Mini-buckets of at most `limit` table entries (a larger factor is a mini-bucket by itself).

    Sources join, largest first, the mini-bucket with which they need the smallest table.
    """
    card: list[int] = factors.card.tolist()
    ptr, flat = factors.scope_ptr.tolist(), factors.scope.tolist()
    scope_of = [tuple(flat[a:b]) for a, b in pairwise(ptr)]
    n_factors = len(scope_of)
    waiting: list[list[int]] = [[] for _ in card]
    for table, scope in enumerate(scope_of):
        waiting[scope[0]].append(table)
    scopes: list[tuple[int, ...]] = []
    sources: list[list[int]] = []
    shifts: list[tuple[int, ...]] = []
    node_ptr, entries, largest = [0], 0, 1
    for variable, tables in enumerate(waiting):
        minis = _pack([(table, scope_of[table]) for table in tables], card, limit)
        common = _common(variable, [scope for scope, _ in minis], card) if len(minis) > 1 else ()
        for union, members in minis:
            scope = tuple(sorted(union))
            size = math.prod(card[v] for v in scope)
            entries, largest = entries + size, max(largest, size)
            if len(scope) > 1:
                waiting[scope[1]].append(n_factors + len(scopes))
            scope_of.append(scope[1:])
            scopes.append(scope)
            sources.append(members)
            shifts.append(common)
        node_ptr.append(len(scopes))
    return Split(scopes, sources, shifts, np.array(node_ptr), entries, largest)


def _pack(
    tables: list[tuple[int, tuple[int, ...]]], card: Sequence[int], limit: int
) -> list[tuple[set[int], list[int]]]:
    """Tables of one bucket as mini-buckets (variables, table ids)."""
    minis: list[tuple[set[int], list[int]]] = []
    for table, scope in sorted(tables, key=lambda item: (-len(item[1]), item[0])):
        best, size = -1, limit + 1
        for number, (union, _) in enumerate(minis):
            joint = math.prod(card[v] for v in union.union(scope))
            if joint < size or union.issuperset(scope):
                best, size = number, joint
            if union.issuperset(scope):
                break
        if best < 0:
            minis.append((set(scope), [table]))
        else:
            minis[best][0].update(scope)
            minis[best][1].append(table)
    return minis


def _common(variable: int, unions: list[set[int]], card: Sequence[int]) -> tuple[int, ...]:
    """The variables that all mini-buckets share, as many as a cost shift may have, `variable` first."""
    shared = sorted(set.intersection(*unions) - {variable})
    scope, size = [variable], card[variable]
    for other in shared:
        if size * card[other] <= _SHIFT_ENTRIES:
            scope.append(other)
            size *= card[other]
    return tuple(scope)


class MiniBuckets:
    """Weighted mini-buckets on some factors, with cost shifts of zero and equal weights to begin with.

    `send` computes the bound, `tighten` improves it by matching moments, `sample` draws from the proposal.

    Args:
        factors: the tables. split: from `split_buckets`.
        summed: whether each position is summed out; the others are maximised over (they must come last).
        cold: the sum of weights of a variable that is maximised over; zero for the maximum itself. Small positive
            weights bound it from above, and can be tightened; `freeze` then takes the maximum.
        lower: give one mini-bucket of each variable a weight above one and the others negative ones: `send` then is a
            lower bound on log Z, -inf at worst where scores are.
    """

    def __init__(
        self, factors: BucketFactors, split: Split, summed: Bools | None = None, cold: float = 0.0, lower: bool = False
    ) -> None:
        self.factors, self.split = factors, split
        self.program, self._shift = _program(factors, split)
        count = np.diff(split.node_ptr)
        self.weight = np.repeat(1.0 / count, count)
        if lower:
            several = np.repeat(count, count) > 1
            self.weight[several] = -_EXCESS / (np.repeat(count, count)[several] - 1)
            self.weight[split.node_ptr[:-1][count > 1]] = 1.0 + _EXCESS
        if summed is not None:
            self._maximised = np.repeat(~summed, count)
            self.weight[self._maximised] *= cold
        self._sign = -1.0 if lower else 1.0
        self.store = np.zeros(self.program.offset[-1])
        self.store[: len(factors.values)] = factors.values
        self.peaks = np.zeros(len(split.scopes))
        #: Average of the mini-buckets' marginals, by position, (n, max states); there after `tighten`.
        self.singles = np.zeros((len(factors.card), int(factors.card.max(initial=1))))
        sizes = np.array([math.prod(factors.card[list(scope)].tolist()) for scope in split.scopes])
        self._chunks = _chunks(sizes)

    @staticmethod
    def bytes_of(split: Split) -> float:
        """Memory that mini-buckets take, at most, with what `tighten` needs."""
        # a message has at most half of its node's entries
        return 8.0 * (split.entries // 2 + len(split.scopes) + 2 * split.largest) + 400.0 * len(split.scopes)

    def send(self, going: Callable[[], bool] = lambda: True) -> float | None:
        """The bound: all messages, from the first variable to the last; None if `going()` ended it."""
        self.peaks[:] = 0.0
        for first, last in self._chunks:
            if not going():
                return None
            if not send_up(self.program, self.store, self.weight, self.peaks, first, last):
                return -math.inf
        return math.fsum(self.peaks) + self.factors.constant

    def tighten(self, value: float, iterations: int, going: Callable[[], bool]) -> float:
        """The best bound of some iterations of moment matching and weight updates; `value` is the current one.

        A step that does not improve the bound is undone and halved. Afterwards messages are those of the best bound.
        """
        split = self.split
        if split.exact or not math.isfinite(value):
            return value
        # shifts follow the factors of the model, messages follow them
        step, begin, end = 1.0, len(self.factors.values), int(self.program.offset[-len(self.program.clique_ptr)])
        scratch, moments = np.empty(2 * split.largest), np.zeros(end)
        above, entropy = np.zeros(len(split.scopes)), np.zeros(len(split.scopes))
        best, shifts, weight = value, self.store[begin:end].copy(), self.weight.copy()
        arguments = (self._shift, scratch, moments, above, entropy, self.singles)
        changed = False
        for _ in range(iterations):
            if not going() or step < 1e-2:
                break
            send_moments(self.program, self.store, self.weight, self.peaks, *arguments)
            changed = True
            match_moments(self.program, self.store, self.weight, split.node_ptr, self._shift, moments, 0.5 * step)
            if self._sign > 0:
                move_weights(self.weight, split.node_ptr, entropy, 0.1 * step)
            value_now = self.send(going)
            if value_now is not None and self._sign * (value_now - best) < 0.0:
                gain = abs(value_now - best)
                best, shifts, weight, changed = (value_now, self.store[begin:end].copy(), self.weight.copy(), False)
                if gain < 1e-4 * (1.0 + 1e-3 * abs(best)):
                    break
                continue
            self.store[begin:end], self.weight[:] = shifts, weight
            step *= 0.5
            if value_now is None:
                break
            self.send()
            changed = False
        if changed:
            self.store[begin:end], self.weight[:] = shifts, weight
            self.send()
        return best

    def freeze(self) -> float | None:
        """The bound with maxima instead of sums of small weights; samples are no longer possible."""
        self.weight[self._maximised] = 0.0
        return self.send()

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
        """n samples by position, (n, positions), and log(psi / (q U)), (n,), at most zero: U is the upper bound."""
        labels = np.zeros((n, len(self.factors.card)), dtype=np.int64)
        log_weight = np.zeros(n)
        uniforms = rng.random(labels.shape)
        draw_labels(
            self.program, self.store, self.weight, self.peaks, self.split.node_ptr, uniforms, labels, log_weight
        )
        return labels, log_weight


def choose_split(factors: BucketFactors, memory: float, entries: float, going: Callable[[], bool]) -> Split:
    """The largest mini-buckets, while `going()`, that fit into `memory` bytes and have at most `entries` in all."""
    best = split_buckets(factors, 1)
    for power in range(6, 31, 2):
        if not going():
            break
        split = split_buckets(factors, 2**power)
        if MiniBuckets.bytes_of(split) > memory or split.entries > entries:
            break
        best = split
        if split.exact:
            break
    return best


def _program(factors: BucketFactors, split: Split) -> tuple[Program, Ints]:
    """The arrays of the kernels, and the factor of each node's cost shift (-1: none)."""
    card = factors.card
    n_given = len(factors.scope_ptr) - 1
    shift = np.full(len(split.scopes), -1, dtype=np.int64)
    shifted = [node for node, scope in enumerate(split.shifts) if scope]
    shift[shifted] = n_given + np.arange(len(shifted))
    tables = [split.shifts[node] for node in shifted] + [scope[1:] for scope in split.scopes]
    sources = []
    for node, members in enumerate(split.sources):
        ids = [t if t < n_given else t + len(shifted) for t in members]
        # factors before messages, as the kernels expect
        sources.append(sorted(ids + ([int(shift[node])] if shift[node] >= 0 else [])))
    clique_ptr, clique = _csr(split.scopes)
    source_ptr, source = _csr(sources)
    more_ptr, more = _csr(tables)
    scope_ptr = np.concatenate([factors.scope_ptr, factors.scope_ptr[-1] + more_ptr[1:]])
    scope = np.concatenate([factors.scope, more])
    sizes = [math.prod(card[list(rest)].tolist()) for rest in tables]
    offset = np.cumsum([0, *products(card[factors.scope], factors.scope_ptr).tolist(), *sizes])
    return flat_program(card, clique_ptr, clique, source_ptr, source, offset, scope_ptr, scope), shift


def _csr(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Rows of numbers as offsets and values."""
    ptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return ptr, np.array([value for row in rows for value in row], dtype=np.int64)


def _chunks(sizes: Ints) -> list[tuple[int, int]]:
    """Ranges of nodes of about `_CHUNK` table entries each."""
    ends = np.cumsum(sizes)
    cuts = np.flatnonzero(np.diff(ends // _CHUNK, prepend=0))
    edges = [0, *(cuts + 1).tolist(), len(sizes)]
    return [(a, b) for a, b in pairwise(edges) if a < b]
