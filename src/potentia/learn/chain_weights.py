"""Weights of chains over attributes and what they are called: pruned, transferred, and as arrays of a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from .._schema import Array, Count, Items, Named, Number, Rule, Schema
from .._types import Floats, PotentiaError
from ..features.attributes import AttributeIndex
from ..features.offsets import presence_name
from .chain_labels import MAX_LABELS, Label
from .chain_layout import Features

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


class Names(NamedTuple):
    """What weights are called: attributes and dense columns, and labels."""

    attributes: AttributeIndex
    labels: Sequence[Label]


class ChainWeights(NamedTuple):
    """Learned weights: `state` of each feature of `features`, `pairs` (L, L), `dense` (D, L)."""

    features: Features
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
        features = Features(ptr, self.features.label[kept])
        if not left.all():
            names = [name for name, there in zip(index.numbers, left.tolist(), strict=True) if there]
            numbers = {name: k for k, name in enumerate(names)}
            offsets = {name: offset for name, offset in index.offsets.items() if name in numbers}
            index = AttributeIndex(numbers, index.columns, offsets, index.column_offsets)
        return ChainWeights(features, self.state[kept], self.pairs, self.dense), index

    def transferred(self, own: Names, fresh: ChainWeights, names: Names) -> ChainWeights:
        """These weights for the features of others, zero where there are none; both have names."""
        known = {label: k for k, label in enumerate(own.labels)}
        place = np.array([known.get(label, -1) for label in names.labels])
        state = fresh.state.copy()
        for name, number in names.attributes.numbers.items():
            before = own.attributes.numbers.get(name)
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
        for name, (first, end) in names.attributes.columns.items():
            if (columns := own.attributes.columns.get(name)) and columns[1] - columns[0] == end - first:
                dense[first:end, both] = self.dense[columns[0] : columns[1], place[both]]
        weights = ChainWeights(fresh.features, state, pairs, dense)
        weights._move(own.attributes, names.attributes)
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
        features = Features(found["feature_ptr"], found["feature_label"])
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
