"""What a chain's model numbers: its labels, its features (an attribute with a label), and their weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from ..base.schema import Array, Count, Items, Named, Number, Rule, Schema
from ..base.types import Bools, Floats, Ints, PotentiaError, real_numbers, shown
from ..features.attributes import AttributeIndex
from ..features.offsets import presence_name
from ..features.schemes import Allowed, allowed_tags
from ..kernels import attributes as kernels
from ..kernels.machine.simd import CHUNK

#: An attribute with at least this share of all labels has a row for all of them.
_ROW_SHARE = 0.25


Label = str | int
#: Labels are numbered by 16 bits.
MAX_LABELS = 2**16 - 1


def label_values(y: Any, first: int = 0) -> set[Any]:
    """The different labels of sequences, of which the first has this number in messages."""
    if isinstance(y, str) or not isinstance(y, Sequence | np.ndarray) or getattr(y, "ndim", 1) == 0:
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
    place: dict[Any, int] = dict(zip(classes, range(len(classes)), strict=True)) | {None: -1}
    return np.fromiter(map(place.__getitem__, chain.from_iterable(y)), dtype=np.int32)


def sequence_weights(given: Any, n: int) -> Floats:
    """One weight per sequence, ones if not given."""
    if given is None:
        return np.ones(n)
    weight = real_numbers(given, "sample_weight")
    if weight.shape != (n,) or not np.isfinite(weight).all() or weight.min(initial=0.0) < 0:
        raise PotentiaError(f"sample_weight must be {n} finite numbers >= 0, one per sequence.")
    return weight


def scheme_constraints(classes: Sequence[Label], scheme: str | None) -> Allowed:
    """What a scheme allows, or everything."""
    n = len(classes)
    if scheme is None:
        return Allowed(np.ones(n, dtype=bool), np.ones((n, n), dtype=bool), np.ones(n, dtype=bool))
    allowed = allowed_tags([str(label) for label in classes], scheme)
    if not (allowed.start.any() and allowed.end.any()):
        raise PotentiaError(f"no label may begin or end a sequence in the scheme {scheme}.")
    return allowed


def forbidden_labels(sequence_ptr: Ints, labels: Any, allowed: Allowed) -> Bools:
    """Tokens whose label is not allowed after the one before, or at the beginning or end of its sequence."""
    filled = np.flatnonzero(np.diff(sequence_ptr))
    starts, ends = sequence_ptr[filled], sequence_ptr[filled + 1] - 1
    bad = np.zeros(len(labels), dtype=bool)
    both = (labels[:-1] >= 0) & (labels[1:] >= 0)
    bad[1:] = both & ~allowed.transitions[labels[:-1], labels[1:]]
    bad[starts] = (labels[starts] >= 0) & ~allowed.start[labels[starts]]
    bad[ends] |= (labels[ends] >= 0) & ~allowed.end[labels[ends]]
    return bad


def check_allowed(
    sequence_ptr: Ints,
    labels: Any,
    classes: Sequence[Label],
    allowed: Allowed,
    scheme: str | None,
    first: int = 0,
) -> None:
    """Refuse labels that the scheme does not allow; messages number the sequences from `first` on."""
    if scheme is None:
        return
    bad = forbidden_labels(sequence_ptr, labels, allowed)
    if bad.any():
        token = int(np.argmax(bad))
        number = int(np.searchsorted(sequence_ptr, token, side="right")) - 1
        raise PotentiaError(
            f"the label {classes[labels[token]]!r} of token {token - int(sequence_ptr[number])} in y[{first + number}] "
            f"is not allowed there in the scheme {scheme}; correct it, or leave the scheme out."
        )


class AttributeLabels(NamedTuple):
    """Which labels each attribute was seen with, as rows of a sparse matrix.

    Attributes:
        ptr: first feature of each attribute, and the number of features.
        label: of each feature, ascending within an attribute.
    """

    ptr: Ints
    label: Any

    @classmethod
    def of_codes(cls, code: Ints, n_attributes: int, n_labels: int) -> AttributeLabels:
        """Features from their codes, attribute * L + label, ascending."""
        owner, label = np.divmod(code, n_labels)
        count = np.bincount(owner, minlength=n_attributes)
        return cls(np.concatenate([[0], np.cumsum(count)]), label.astype(np.uint16))


@dataclass
class ChainLayout:
    """A vector of all weights: rows and slots of attributes, then transitions (L, L), then dense columns (D, L).

    Attributes:
        number: the new number of each attribute; those with rows come first.
        kernel: rows and slots as the kernels want them.
        n_labels, n_dense: L and D.
        place: where in the vector each feature is, in the order of `AttributeLabels`.
        n_attribute_weights: entries of rows and slots. size: entries of the vector.
    """

    number: Ints
    kernel: kernels.WeightLayout
    n_labels: int
    n_dense: int
    place: Ints
    n_attribute_weights: int
    size: int

    @classmethod
    def of(cls, features: AttributeLabels, n_labels: int, n_dense: int) -> ChainLayout:
        """Rows for attributes with many labels, slots for the others."""
        width = -(-n_labels // CHUNK) * CHUNK
        count = np.diff(features.ptr)
        with_row = count >= _ROW_SHARE * width
        order, n_rows = np.argsort(~with_row, kind="stable"), int(np.count_nonzero(with_row))
        slot_ptr = n_rows * width + np.concatenate([[0], np.cumsum(count[order][n_rows:])])
        begin, number = np.empty(len(count), dtype=np.int64), np.empty(len(count), dtype=np.int64)
        begin[order] = np.concatenate([np.arange(n_rows) * width, slot_ptr[:-1]])
        number[order] = np.arange(len(order))
        in_row = np.repeat(with_row, count)
        rank = np.arange(len(features.label)) - np.repeat(features.ptr[:-1], count)
        place = np.repeat(begin, count) + np.where(in_row, features.label, rank)
        end = int(slot_ptr[-1])
        slot_label = np.empty(end - n_rows * width, dtype=np.uint16)
        slot_label[place[~in_row] - n_rows * width] = features.label[~in_row]
        kernel = kernels.WeightLayout(n_rows, width, slot_ptr, slot_label)
        return cls(number, kernel, n_labels, n_dense, place, end, end + n_labels * (n_labels + n_dense))

    def split(self, vector: Any) -> tuple[Any, Any, Any]:
        """Weights of attributes, of transitions (L, L) and of dense columns (D, L), as views."""
        first = self.n_attribute_weights
        second = first + self.n_labels**2
        pairs = vector[first:second].reshape(self.n_labels, self.n_labels)
        return vector[:first], pairs, vector[second:].reshape(self.n_dense, self.n_labels)

    def join(self, state: Any, pairs: Any, dense: Any, dtype: Any = np.float64) -> Any:
        """The vector of these weights, `state` in the order of `AttributeLabels`; zero in the padding of rows."""
        vector = np.zeros(self.size, dtype=dtype)
        of_attributes, of_pairs, of_dense = self.split(vector)
        of_attributes[self.place] = state
        of_pairs[...], of_dense[...] = pairs, dense
        return vector


#: What a file of a `ChainCRF` holds of its weights, after its labels.
SAVED_WEIGHTS: Schema = {
    "columns": Named(Items(Count(), "two")),
    "names": Array("u1", ("B",), low=0, below=256),
    "name_ptr": Array("i8", ("A+1",), ends="B"),
    "feature_ptr": Array("i8", ("A+1",), ends="K"),
    "feature_label": Array("u2", ("K",), low=0, below="L"),
    "state": Array("f8", ("K",)),
    "pairs": Array("f8", ("L", "L")),
    "dense": Array("f8", ("D", "L")),
    "offsets": Named(Number(), optional=True),
    "column_offsets": Array("f8", ("D",), optional=True),
    "layout": Rule(lambda found: _is_consistent(found), "of features and columns is inconsistent"),
}


class ChainWeights(NamedTuple):
    """Learned weights: `state` of each feature of `features`, `pairs` (L, L), `dense` (D, L)."""

    features: AttributeLabels
    state: Floats
    pairs: Floats
    dense: Floats

    def pruned(self, index: AttributeIndex) -> tuple[ChainWeights, AttributeIndex]:
        """Without features of weight zero, and attributes without any."""
        kept = self.state != 0.0
        owner = np.repeat(np.arange(len(self.features.ptr) - 1), np.diff(self.features.ptr))
        count = np.bincount(owner[kept], minlength=len(self.features.ptr) - 1)
        left = count > 0
        for name in index.offsets:  # of which one attribute says that the other is there
            left[index.numbers[name]] |= left[index.numbers[presence_name(name)]]
        ptr = np.concatenate([[0], np.cumsum(count[left])])
        features = AttributeLabels(ptr, self.features.label[kept])
        if not left.all():
            names = [name for name, there in zip(index.numbers, left.tolist(), strict=True) if there]
            numbers = {name: k for k, name in enumerate(names)}
            offsets = {name: offset for name, offset in index.offsets.items() if name in numbers}
            index = AttributeIndex(numbers, index.columns, offsets, index.column_offsets)
        return ChainWeights(features, self.state[kept], self.pairs, self.dense), index

    def transferred(
        self,
        index: AttributeIndex,
        labels: Sequence[Label],
        fresh: ChainWeights,
        fresh_index: AttributeIndex,
        fresh_labels: Sequence[Label],
    ) -> ChainWeights:
        """These weights for the features of `fresh`, by names of attributes and labels; zero where there are none."""
        known = {label: k for k, label in enumerate(labels)}
        place = np.array([known.get(label, -1) for label in fresh_labels])
        state = fresh.state.copy()
        for name, number in fresh_index.numbers.items():
            before = index.numbers.get(name)
            if before is None:
                continue
            begin, end = self.features.ptr[before : before + 2]
            found = dict(
                zip(self.features.label[begin:end].tolist(), self.state[begin:end].tolist(), strict=True)
            )
            for k in range(*fresh.features.ptr[number : number + 2]):
                state[k] = found.get(int(place[fresh.features.label[k]]), 0.0)
        pairs, dense = fresh.pairs.copy(), fresh.dense.copy()
        both = np.flatnonzero(place >= 0)
        pairs[np.ix_(both, both)] = self.pairs[np.ix_(place[both], place[both])]
        for name, (first, end) in fresh_index.columns.items():
            if (columns := index.columns.get(name)) and columns[1] - columns[0] == end - first:
                dense[first:end, both] = self.dense[columns[0] : columns[1], place[both]]
        weights = ChainWeights(fresh.features, state, pairs, dense)
        weights._move(index, fresh_index)
        return weights

    def _move(self, before: AttributeIndex, index: AttributeIndex) -> None:
        """Adapt what numbers add by being there to offsets other than before."""
        n = self.pairs.shape[0]
        for name, offset in index.offsets.items():
            own = np.zeros(n)
            own[self._labels(index.numbers[name])] = self.state[self._range(index.numbers[name])]
            self._add(index.numbers[presence_name(name)], own * (offset - before.offsets.get(name, 0.0)))
        for name, (first, end) in index.columns.items() if index.column_offsets.size else ():
            gap = index.column_offsets[first:end].copy()
            if name in before.columns and before.column_offsets.size:
                gap -= before.column_offsets[slice(*before.columns[name])]
            if presence_name(name) in index.numbers:
                self._add(index.numbers[presence_name(name)], gap @ self.dense[first:end])

    def _range(self, number: int) -> slice:
        return slice(*self.features.ptr[number : number + 2])

    def _labels(self, number: int) -> Any:
        return self.features.label[self._range(number)]

    def _add(self, number: int, score: Floats) -> None:
        """Add to the weights of an attribute what (L,) says."""
        self.state[self._range(number)] += score[self._labels(number)]

    def arrays(self, attributes: Iterable[str]) -> dict[str, Any]:
        """The arrays of a file."""
        return pack_names(attributes, "surrogatepass") | {
            "feature_ptr": self.features.ptr,
            "feature_label": self.features.label,
            "state": self.state,
            "pairs": self.pairs,
            "dense": self.dense,
        }

    @classmethod
    def from_arrays(cls, found: Mapping[str, Any]) -> tuple[ChainWeights, AttributeIndex]:
        """The weights of a file, checked by `SAVED_WEIGHTS`, and the numbers of their attributes."""
        names = list(unpack_names(found, "surrogatepass"))
        if len(set(names)) != len(names):
            raise PotentiaError("the saved ChainCRF is damaged: two attributes have the same name.")
        columns = {name: tuple(ends) for name, ends in found["columns"].items()}
        column_offsets = found["column_offsets"]
        index = AttributeIndex(
            {name: k for k, name in enumerate(names)},
            columns,
            found["offsets"],
            () if column_offsets is None else column_offsets,
        )
        features = AttributeLabels(found["feature_ptr"], found["feature_label"])
        return cls(features, found["state"], found["pairs"], found["dense"]), index


def pack_names(names: Iterable[str], errors: str = "strict") -> dict[str, Any]:
    """Texts as two arrays: their bytes one after another, and where each begins."""
    encoded = [name.encode("utf-8", errors) for name in names]
    return {
        "names": np.frombuffer(b"".join(encoded), dtype=np.uint8),
        "name_ptr": np.cumsum([0, *map(len, encoded)]),
    }


def unpack_names(arrays: Mapping[str, Any], errors: str = "strict") -> Iterator[str]:
    """The texts that `pack_names` packed."""
    blob, ptr = arrays["names"].tobytes(), arrays["name_ptr"].tolist()
    return (blob[a:b].decode("utf-8", errors) for a, b in pairwise(ptr))


def _is_consistent(found: Mapping[str, Any]) -> bool:
    """Whether labels ascend within each attribute, and columns are those of the dense weights, each once."""
    ptr, label = found["feature_ptr"], found["feature_label"].astype(np.int64)
    inner = np.ones(len(label), dtype=bool)
    inner[ptr[:-1][ptr[:-1] < len(label)]] = False
    ascending = bool(np.all(np.diff(label)[inner[1:]] > 0)) if len(label) else True
    ends = sorted(map(tuple, found["columns"].values()))
    edges = [0, *(end for _, end in ends)]
    joined = all(first == before and end > first for (first, end), before in zip(ends, edges, strict=False))
    labels = found["labels"]
    distinct = len(set(labels)) == len(labels) and 0 < len(labels) <= MAX_LABELS
    return ascending and joined and edges[-1] == len(found["dense"]) and distinct
