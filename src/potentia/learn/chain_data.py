"""`ChainData`: sequences in parts behind a backend, whose attributes, labels and features are numbered alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ..base.types import Floats, Ints, PotentiaError
from ..features.attributes import AttributeIndex, Moments, check_sequences, presence_name
from ..features.parts import HeldSequences, Parts, Sequences, Source
from .backends.connection import current
from .chain_layout import (
    AttributeLabels,
    Constraints,
    Label,
    label_classes,
    label_values,
    scheme_constraints,
    sequence_weights,
)
from .chain_part import ChainParts, ChainRecipe, Columns, PartFacts, features_of
from .data import open_backend

#: Tokens of a part of sequences in memory. Cuts never depend on the number of threads or workers.
PART_TOKENS = 1 << 18


class ChainData:
    """Parts of consecutive sequences, and what they have in common.

    Names are numbered in the order of their first occurrence in the data set, part by part, so that nothing depends
    on which worker has which part.

    Attributes:
        parts: the backend.
        index: numbers of all attributes and columns of dense features.
        classes: the labels, in order.
    """

    def __init__(self, parts: ChainParts, marked: bool = False) -> None:
        self.parts = parts
        facts: list[PartFacts] = parts.each("overview")
        if not any(own.weighted for own in facts) and any(own.n_sequences for own in facts):
            raise PotentiaError("sample_weight is zero for every sequence.")
        self.classes: list[Label] = label_classes({label for own in facts for label in own.labels})
        #: Of the data, where it was asked for.
        self.digests: list[str] = parts.each("digest") if marked else []
        #: Of the attributes and arrays with small numbers the one with the least sum of squares, and that sum.
        self.faintest: tuple[str, float] | None = None
        self._numbers: list[Any] = []
        names: dict[str, int] = {}
        for part in range(parts.n_parts):
            # one part's names at a time: the client holds those of the whole data set only once
            own: list[str] = parts.at(part, "names")
            found = (names.setdefault(name, len(names)) for name in own)
            self._numbers.append(np.fromiter(found, dtype=np.int32, count=len(own)))
        columns = _join_columns([own.columns for own in facts])
        self.index = AttributeIndex(names, columns)
        if columns or any(own.numeric for own in facts):
            self._find_offsets([own.columns for own in facts])

    def _find_offsets(self, columns: Sequence[Columns]) -> None:
        """Offsets of numbers far from zero; the attributes that say where these are get the next numbers."""
        index = self.index
        names = list(index.numbers)
        values, dense = Moments.none(len(names)), Moments.none(self.n_dense)
        for part, own in enumerate(self._numbers):
            of_values, of_dense = self.parts.at(part, "moments")
            values.add(of_values, own)
            dense.add(of_dense, _places(columns[part], index.columns))
        found, of_columns = values.offsets(), dense.offsets()
        self._find_faintest(names, values.small_squares(found), dense.small_squares(of_columns))
        offsets = {names[k]: float(found[k]) for k in np.flatnonzero(found).tolist()}
        far = [name for name, (first, end) in index.columns.items() if of_columns[first:end].any()]
        if not (offsets or far):
            return
        numbers = dict(index.numbers)
        for name in (*offsets, *far):
            numbers.setdefault(presence_name(name), len(numbers))
        self.index = AttributeIndex(numbers, index.columns, offsets, of_columns if far else ())

    def _find_faintest(self, names: Sequence[str], squares: Floats, of_columns: Floats) -> None:
        """The least sum of squares, which is infinite for numbers that are not small."""
        found = {name: float(of_columns[a:b].sum()) for name, (a, b) in self.index.columns.items() if b > a}
        if len(squares):
            k = int(squares.argmin())
            found[names[k]] = float(squares[k])
        if found:
            least = min(found, key=found.__getitem__)
            self.faintest = (least, found[least]) if found[least] < np.inf else None

    @classmethod
    def of(cls, sources: Sequence[Source], resident: int = 1, marked: bool = False) -> ChainData:
        """Sequences on the cluster if there is one, else in this process; `marked`: find their digests."""
        in_memory = all(source.in_memory for source in sources)
        recipes = [ChainRecipe(source) for source in sources]
        return cls(ChainParts(open_backend(recipes, in_memory, resident)), marked)

    @property
    def n_dense(self) -> int:
        """Number of columns of dense features."""
        return max((end for _, end in self.index.columns.values()), default=0)

    def number(
        self, scheme: str | None, everything: bool, least: float
    ) -> tuple[Constraints, AttributeLabels, Floats]:
        """Number all parts alike; what the scheme allows, the features, and how often each label follows each.

        everything: features are all attributes with all labels. least: what the values of a feature must sum to.
        """
        allowed, n = scheme_constraints(self.classes, scheme), len(self.classes)
        everything = everything and least <= 0
        offsets = self.index.centring() if self.index.is_centred else None
        given = self.classes, self.index.columns, scheme, everything, least > 0, offsets
        pairs: Floats = sum(self.parts.each("number", *given, own=self._numbers))
        self._numbers = []
        n_attributes = len(self.index.numbers)
        if everything:
            return allowed, all_features(n_attributes, n), pairs
        found = (self.parts.at(part, "features") for part in range(self.parts.n_parts))
        return allowed, features_of(_join_features(found, least), n_attributes, n), pairs


def all_features(n_attributes: int, n_labels: int) -> AttributeLabels:
    """Every attribute with every label."""
    label = np.tile(np.arange(n_labels, dtype=np.uint16), n_attributes)
    return AttributeLabels(np.arange(n_attributes + 1) * n_labels, label)


def _join_features(of_parts: Iterable[tuple[Ints, Floats | None]], least: float) -> Ints:
    """The codes of all parts, ascending, without those whose values sum to less than `least`."""
    joined: Ints = np.zeros(0, dtype=np.int64)
    sums: Floats | None = None
    for code, count in of_parts:
        both, place = np.unique(np.concatenate([joined, code]), return_inverse=True)
        if count is not None:
            before = np.zeros(0) if sums is None else sums
            sums = np.bincount(place, np.concatenate([before, count]), len(both)).astype(np.float64)
        joined = both
    return joined if sums is None else joined[sums >= least]


def _join_columns(of_parts: Sequence[Columns]) -> dict[str, tuple[int, int]]:
    """Columns of the dense features of all parts, in the order of their first occurrence."""
    joined: dict[str, tuple[int, int]] = {}
    for part, columns in enumerate(of_parts):
        for name, (first, end) in columns.items():
            begin = max((other for _, other in joined.values()), default=0)
            known = joined.setdefault(name, (begin, begin + end - first))
            if known[1] - known[0] != end - first:
                raise PotentiaError(
                    f"part {part} has {end - first} numbers in {name!r}, but others have {known[1] - known[0]}."
                )
    return joined


def _places(own: Columns, columns: Columns) -> Ints:
    """Columns of the data set that the columns of a part are."""
    ordered = sorted(own.items(), key=lambda item: item[1])
    ranges = [np.arange(*columns[name]) for name, _ in ordered]
    return np.concatenate([np.zeros(0, dtype=np.int64), *ranges])


def chain_sources(X: Any, y: Any, sample_weight: Any) -> tuple[Sequence[Source], int]:
    """Where the parts of sequences come from, and how many of them are in memory at once."""
    if isinstance(X, Parts):
        if y is not None or sample_weight is not None:
            raise PotentiaError("parts bring their labels: leave y and sample_weight out.")
        return X.sources, X.resident
    if y is None:
        raise PotentiaError("y, the labels of the sequences, is needed to fit.")
    label_classes(label_values(y))
    check_sequences(X)
    weight = None if sample_weight is None else sequence_weights(sample_weight, len(y))
    return list(_cut(X, y, weight)), 1


def _cut(X: Iterable[Any], y: Any, weight: Floats | None) -> Iterator[Source]:
    """Consecutive sequences until a part would have too many tokens; the last part takes what is left of X."""
    items = iter(X)
    cuts = cut_lengths([len(row) for row in y])
    for first, last in cuts:
        own = islice(items, last - first if last < len(y) else None)
        # a cluster may read it again, elsewhere
        kept = own if current() is None else list(own)
        chosen = None if weight is None else weight[first:last]
        yield HeldSequences(Sequences(kept, y[first:last], chosen, first, len(y)))


def cut_lengths(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges of sequences of these lengths with at most `PART_TOKENS` tokens each, or one sequence."""
    cuts, tokens = [0], 0
    for number, n in enumerate(lengths):
        if tokens + n > PART_TOKENS and number > cuts[-1]:
            cuts.append(number)
            tokens = 0
        tokens += n
    return [*zip(cuts, [*cuts[1:], len(lengths)], strict=True)]
