"""Where the weights of a chain's attributes, transitions and dense columns lie in one vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..base.types import Bools, Floats, Ints, PotentiaError, real_numbers, shown
from ..features.schemes import allowed_tags
from ..kernels import attributes as kernels
from ..kernels.machine.simd import CHUNK

#: An attribute with at least this share of all labels has a row for all of them.
_ROW_SHARE = 0.25


class AttributeLabels(NamedTuple):
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
        place: where in the vector each feature is, in the order of `AttributeLabels`.
    """

    order: Ints
    kernel: kernels.WeightLayout
    n_labels: int
    n_dense: int
    place: Ints

    @classmethod
    def of(cls, features: AttributeLabels, n_labels: int, n_dense: int) -> ChainLayout:
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
        return cls(order, kernels.WeightLayout(n_rows, width, slot_ptr, slot_label), n_labels, n_dense, place)

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
        """The vector of these weights, `state` in the order of `AttributeLabels`."""
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


def observed_features(
    tokens: kernels.TokenAttributes, labels: Any, n_attributes: int, n_labels: int
) -> AttributeLabels:
    """Every attribute with the labels that it was seen with."""
    ptr, seen, count = kernels.count_labels(tokens, labels, n_attributes, n_labels)
    ends = np.concatenate([[0], np.cumsum(count)])
    label = np.empty(int(ends[-1]), dtype=np.uint16)
    kernels.collect_labels(ptr, seen, count, label)
    return AttributeLabels(ends, label)


Label = str | int
#: Labels are numbered by 16 bits.
MAX_LABELS = 2**16 - 1


def label_values(y: Any, first: int = 0) -> set[Any]:
    """The different labels of sequences, of which the first has this number in messages."""
    if isinstance(y, str) or not isinstance(y, Sequence | np.ndarray):
        raise PotentiaError(f"y must be a list of lists of labels, not a {type(y).__name__}.")
    found: set[Any] = set()
    for number, row in enumerate(y, first):
        if isinstance(row, str) or not isinstance(row, Sequence | np.ndarray):
            raise PotentiaError(f"y[{number}] must be a list of labels, not {row!r:.40}.")
        try:
            found.update(row.tolist() if isinstance(row, np.ndarray) else row)
        except TypeError:
            raise PotentiaError(f"y[{number}] must hold texts or whole numbers, not {shown(row)}.") from None
    found.discard(None)
    # NumPy's texts and numbers as Python's, so that digests and files do not depend on which were given
    found = {label.item() if isinstance(label, np.integer | np.str_) else label for label in found}
    strange = next(
        (label for label in found if isinstance(label, bool) or not isinstance(label, str | int)), None
    )
    if strange is not None:
        raise PotentiaError(
            f"y: labels must be texts or whole numbers, or None if not known, not {strange!r:.40}."
        )
    return found


def label_classes(found: set[Any]) -> list[Label]:
    """The different labels of a data set, in order."""
    if len({isinstance(label, str) for label in found}) > 1:
        raise PotentiaError("y mixes texts and whole numbers; labels must be of one type.")
    if not found:
        raise PotentiaError("y has no labels to learn from.")
    if len(found) > MAX_LABELS:
        raise PotentiaError(f"y has {len(found)} different labels; at most {MAX_LABELS} are possible.")
    return [str(label) if isinstance(label, str) else int(label) for label in sorted(found)]


def check_label_type(y: Any, classes: Sequence[Label]) -> None:
    """Refuse texts where the classes are whole numbers, and the other way round: no label would be right."""
    texts, found = isinstance(classes[0], str), label_values(y)
    if found and not any(isinstance(label, str) == texts for label in found):
        expected, given = ("texts", "whole numbers") if texts else ("whole numbers", "texts")
        raise PotentiaError(f"y holds {given}, but the labels that the model was trained on are {expected}.")


def check_lengths(y: Any, lengths: Sequence[int], first: int = 0, total: int | None = None) -> None:
    """Refuse labels that do not belong to sequences of these lengths.

    The sequences may be some of a data set of `total` sequences, where the first of them is number `first`.
    """
    if len(y) != len(lengths):
        n_labelled = len(y) if total is None else total
        raise PotentiaError(f"X has {first + len(lengths)} sequences, but y has {n_labelled}.")
    for number, (row, n) in enumerate(zip(y, lengths, strict=True), first):
        if len(row) != n:
            raise PotentiaError(f"X[{number}] has {n} tokens, but y[{number}] has {len(row)} labels.")


def encode_labels(y: Any, classes: Sequence[Label]) -> Any:
    """Numbers of all labels, -1 where not known."""
    place: dict[Any, int] = {label: k for k, label in enumerate(classes)} | {None: -1}
    return np.fromiter((place[label] for row in y for label in row), dtype=np.int32)


def sequence_weights(given: Any, n: int) -> Floats:
    """One weight per sequence, ones if not given."""
    if given is None:
        return np.ones(n)
    weight = real_numbers(given, "sample_weight")
    if weight.shape != (n,) or not np.isfinite(weight).all() or weight.min(initial=0.0) < 0:
        raise PotentiaError(f"sample_weight must be {n} finite numbers >= 0, one per sequence.")
    return weight


def scheme_constraints(classes: Sequence[Label], scheme: str | None) -> Constraints:
    """What a scheme allows, or everything."""
    n = len(classes)
    if scheme is None:
        return Constraints(np.ones(n, dtype=bool), np.ones((n, n), dtype=bool), np.ones(n, dtype=bool))
    allowed = Constraints(*allowed_tags([str(label) for label in classes], scheme))
    if not (allowed.start.any() and allowed.end.any()):
        raise PotentiaError(f"no label may begin or end a sequence in the scheme {scheme}.")
    return allowed


def _forbidden(sequence_ptr: Ints, labels: Any, allowed: Constraints) -> Bools:
    """Tokens whose label is not allowed after the one before, or at the beginning or end of its sequence."""
    filled = np.flatnonzero(np.diff(sequence_ptr))
    starts, ends = sequence_ptr[filled], sequence_ptr[filled + 1] - 1
    bad = np.zeros(len(labels), dtype=bool)
    both = (labels[:-1] >= 0) & (labels[1:] >= 0)
    bad[1:] = both & ~allowed.transitions[labels[:-1], labels[1:]]
    bad[starts] = (labels[starts] >= 0) & ~allowed.start[labels[starts]]
    bad[ends] |= (labels[ends] >= 0) & ~allowed.end[labels[ends]]
    return bad


def likeliest_labels(sequence_ptr: Ints, marginals: Floats, allowed: Constraints) -> Ints:
    """The likeliest label of each token or, where those are not allowed together, the allowed labels of a sequence
    whose probabilities have the largest sum, which is the expected number of right ones."""
    labels = marginals.argmax(axis=1) if len(marginals) else np.zeros(0, dtype=np.int64)
    bad = np.flatnonzero(_forbidden(sequence_ptr, labels, allowed))
    for number in np.unique(np.searchsorted(sequence_ptr, bad, side="right") - 1).tolist():
        own = slice(*sequence_ptr[number : number + 2].tolist())
        labels[own] = _best_sum(marginals[own], allowed)
    return labels


def _best_sum(gains: Floats, allowed: Constraints) -> list[int]:
    """The allowed labels of one sequence with the largest sum of gains [Viterbi]."""
    barred = np.where(allowed.transitions, 0.0, -np.inf)
    best, back = np.where(allowed.start, gains[0], -np.inf), []
    for gain in gains[1:]:
        every = best[:, None] + barred
        back.append(every.argmax(axis=0))
        best = every.max(axis=0) + gain
    path = [int(np.where(allowed.end, best, -np.inf).argmax())]
    for before in reversed(back):
        path.append(int(before[path[-1]]))
    return path[::-1]


def check_allowed(
    sequence_ptr: Ints,
    labels: Any,
    classes: Sequence[Label],
    allowed: Constraints,
    scheme: str | None,
    first: int = 0,
) -> None:
    """Refuse labels that the scheme does not allow; messages number the sequences from `first` on."""
    if scheme is None or not len(labels):
        return
    bad = _forbidden(sequence_ptr, labels, allowed)
    if bad.any():
        token = int(np.argmax(bad))
        number = int(np.searchsorted(sequence_ptr, token, side="right")) - 1
        raise PotentiaError(
            f"the label {classes[labels[token]]!r} of token {token - int(sequence_ptr[number])} in y[{first + number}] "
            f"is not allowed there in the scheme {scheme}; correct it, or leave the scheme out."
        )
