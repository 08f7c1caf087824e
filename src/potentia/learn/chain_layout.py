"""Where the weights of a chain's attributes, transitions and dense columns lie in one vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .._types import Bools, Floats, Ints
from ..kernels import attributes as kernels
from ..kernels.chain_batch import LOG_LOWEST
from ..kernels.lanes import Lanes
from ..kernels.machine.simd import CHUNK

#: An attribute with at least this share of all labels has a row for all of them.
_ROW_SHARE = 0.25


class Features(NamedTuple):
    """Which labels each attribute was seen with, as rows of a sparse matrix.

    Attributes:
        ptr: first feature of each attribute, and the number of features.
        label: of each feature, ascending within an attribute.
    """

    ptr: Ints
    label: Any


class Constraints(NamedTuple):
    """What labels may begin a chain (L,), follow each other (L, L), and end it (L,)."""

    start: Bools
    transitions: Bools
    end: Bools


@dataclass
class ChainLayout:
    """A vector of all weights: rows and slots of attributes, then transitions (L, L), then dense columns (D, L).

    Attributes:
        order: the attributes by their new numbers; those with rows come first.
        kernel: rows and slots as the kernels want them.
        n_labels, n_dense: L and D.
        place: where in the vector each feature is, in the order of `Features`.
    """

    order: Ints
    kernel: kernels.Layout
    n_labels: int
    n_dense: int
    place: Ints

    @classmethod
    def of(cls, features: Features, n_labels: int, n_dense: int) -> ChainLayout:
        """Rows for attributes with many labels, slots for the others."""
        width = -(-n_labels // CHUNK) * CHUNK
        count = np.diff(features.ptr)
        order = np.argsort(count < _ROW_SHARE * width, kind="stable")
        n_rows = int(np.count_nonzero(count >= _ROW_SHARE * width))
        ordered = count[order]
        slot_ptr = n_rows * width + np.concatenate([[0], np.cumsum(ordered[n_rows:])])
        begin = np.empty(len(count), dtype=np.int64)
        begin[order] = np.concatenate([np.arange(n_rows) * width, slot_ptr[:-1]])
        in_row = np.repeat(count >= _ROW_SHARE * width, count)
        rank = np.arange(len(features.label)) - np.repeat(features.ptr[:-1], count)
        place = np.repeat(begin, count) + np.where(in_row, features.label, rank)
        slot_label = np.empty(int(slot_ptr[-1]) - n_rows * width, dtype=np.uint16)
        slot_label[place[~in_row] - n_rows * width] = features.label[~in_row]
        return cls(order, kernels.Layout(n_rows, width, slot_ptr, slot_label), n_labels, n_dense, place)

    @property
    def number(self) -> Ints:
        """The new number of each attribute."""
        found = np.empty(len(self.order), dtype=np.int64)
        found[self.order] = np.arange(len(self.order))
        return found

    @property
    def n_states_weights(self) -> int:
        """Rows and slots."""
        return int(self.kernel.slot_ptr[-1])

    @property
    def size(self) -> int:
        """Entries of the vector."""
        return self.n_states_weights + self.n_labels * (self.n_labels + self.n_dense)

    def split(self, vector: Any) -> tuple[Any, Any, Any]:
        """Weights of attributes, of transitions (L, L) and of dense columns (D, L), as views."""
        first = self.n_states_weights
        second = first + self.n_labels**2
        pairs = vector[first:second].reshape(self.n_labels, self.n_labels)
        return vector[:first], pairs, vector[second:].reshape(self.n_dense, self.n_labels)

    def join(self, state: Floats, pairs: Floats, dense: Floats) -> Floats:
        """The vector of these weights, `state` in the order of `Features`."""
        vector = np.zeros(self.size)
        own, own_pairs, own_dense = self.split(vector)
        own[self.place] = state
        own_pairs[...], own_dense[...] = pairs, dense
        return vector

    def free(self, pairs: Bools) -> Bools:
        """Which entries are weights, given the transitions that have one; the others are padding."""
        vector = np.zeros(self.size, dtype=bool)
        own, own_pairs, own_dense = self.split(vector)
        own[self.place] = True
        own_pairs[...], own_dense[...] = pairs, True
        return vector


def make_lanes(pairs: Floats, allowed: Constraints) -> Lanes:
    """Tables for the kernels; transitions that are not allowed are -inf."""
    n, width = len(pairs), -(-len(pairs) // CHUNK) * CHUNK
    table = np.where(allowed.transitions, pairs, -np.inf)
    finite = table[allowed.transitions]
    top = float(finite.max(initial=-np.inf)) if finite.size else 0.0
    safe = bool(finite.size == 0 or finite.min() - top >= LOG_LOWEST)

    def padded(values: Any) -> Floats:
        rows = np.zeros((n, width))
        rows[:, :n] = values
        return rows.ravel()

    def ends(given: Bools) -> Floats:
        row = np.zeros(width)
        row[:n] = given
        return row

    psi = np.exp(table - top)
    return Lanes(
        n, padded(table), padded(psi), padded(psi.T), top, ends(allowed.start), ends(allowed.end), safe
    )


def observed_features(tokens: kernels.Tokens, labels: Any, n_attributes: int, n_labels: int) -> Features:
    """Every attribute with the labels that it was seen with."""
    ptr, seen, count = kernels.count_labels(tokens, labels, n_attributes, n_labels)
    ends = np.concatenate([[0], np.cumsum(count)])
    label = np.empty(int(ends[-1]), dtype=np.uint16)
    kernels.collect_labels(ptr, seen, count, label)
    return Features(ends, label)
