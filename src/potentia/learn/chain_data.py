"""`ChainData`: sequences in parts behind a backend, whose attributes, labels and features are numbered alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ..base.backend import Backend
from ..base.saving import digest_of
from ..base.threads import thread_count
from ..base.types import Floats, Ints, PotentiaError
from ..features.attributes import AttributeIndex, Columns, check_sequences, n_columns
from ..features.example import HeldSequences, Parts, Sequences, Source
from ..features.offsets import Moments, Offsets, attribute_moments, column_moments, presence_name
from ..features.schemes import Allowed
from ..kernels import attributes as kernels
from .backends.connection import current
from .chain import ChainLikelihood, TokenBlock, in_layout
from .chain_layout import (
    AttributeLabels,
    ChainLayout,
    Label,
    check_allowed,
    check_lengths,
    encode_labels,
    label_classes,
    label_values,
    pack_names,
    sequence_weights,
    unpack_names,
)
from .data import open_backend

#: Tokens of a part of sequences in memory. Cuts never depend on the number of threads or workers.
PART_TOKENS = 1 << 18


class PartFacts(NamedTuple):
    """What a part has: sequences, whether any has a positive weight, labels, columns of dense features, other numbers
    than 1 among its attributes.
    """

    n_sequences: int
    weighted: bool
    labels: list[Label]
    columns: Columns
    numeric: bool


class ChainPart:
    """Sequences of one source: read, numbered as all parts agree on, and put into the layout of the weights.

    A part that is read has local numbers for attributes and labels. `number` replaces them by those of the data
    set, and `lay_out` makes it ready for `log_partition`.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        #: The part's state: things that stay in memory, and arrays.
        self.small: dict[str, Any] = {}
        self.arrays: dict[str, Any] = {}
        self._likelihood: ChainLikelihood | None = None

    def read(self) -> None:
        """Read the sequences, unless they were."""
        if self.small:
            return
        try:
            given = self.source.sequences()
            values = list(label_values(given.y, given.first))
            index = AttributeIndex()
            encoded = index.learn(given.X, given.first)
            check_lengths(given.y, np.diff(encoded.sequence_ptr).tolist(), given.first, given.total)
            weight = sequence_weights(given.weight, len(encoded.sequence_ptr) - 1)
        except PotentiaError as error:
            if isinstance(self.source, HeldSequences):
                raise
            raise type(error)(f"{self.source.name}: {error}") from None
        labels, names = encode_labels(given.y, values), pack_names(index.numbers, "surrogatepass")
        self.arrays = {**encoded._asdict(), "labels": labels, "weight": weight, **names}
        self.small = {"first": given.first, "labels": values, "columns": index.columns}

    def overview(self) -> PartFacts:
        """What the part has."""
        self.read()
        weight, numeric = self.arrays["weight"], bool(self.arrays["value"].size)
        return PartFacts(
            len(weight), bool(weight.any()), self.small["labels"], self.small["columns"], numeric
        )

    def names(self) -> list[str]:
        """The names of the part's attributes, in the order in which they occur."""
        return list(unpack_names(self.arrays, "surrogatepass"))

    def moments(self) -> tuple[Moments, Moments]:
        """Of the values of the part's attributes, and of its dense columns; sequences without labels do not count."""
        arrays = self.arrays
        tokens = np.diff(arrays["sequence_ptr"])
        number = np.repeat(np.arange(len(tokens)), tokens)
        labelled = np.bincount(number, arrays["labels"] >= 0, len(tokens)) > 0
        per_token = np.where(labelled, arrays["weight"], 0.0)[number]
        value = arrays["value"] if arrays["value"].size else np.ones(len(arrays["attribute"]))
        per_item = np.repeat(per_token, np.diff(arrays["item_ptr"]))
        n = len(arrays["name_ptr"]) - 1
        return attribute_moments(arrays["attribute"], value, per_item, n), column_moments(
            arrays["dense"], per_token
        )

    def digest(self) -> str:
        """Equal for equal sequences, labels and weights."""
        texts = np.array([*self.small["labels"], None], dtype=object)
        spelled = "\n".join(map(repr, texts[self.arrays["labels"]].tolist()))
        return digest_of([spelled, *(array for name, array in self.arrays.items() if name != "labels")])

    # -- numbering -------------------------------------------------------------------------------------------

    def number(
        self,
        numbers: Any,
        classes: Sequence[Label],
        columns: Columns,
        allowed: Allowed,
        scheme: str | None,
        everything: bool,
        counted: bool,
        offsets: Offsets | None,
    ) -> Floats:
        """Number attributes, labels and columns as the data set does; how often each label follows each (L, L).

        numbers: of the part's attributes. allowed: by the scheme. everything: the features need not be found.
        counted: find how often. offsets: of numbers far from zero.
        """
        arrays, n, first = self.arrays, len(classes), self.small["first"]
        known = encode_labels([[*self.small["labels"], None]], classes)
        arrays["labels"] = labels = known[arrays["labels"]]
        check_allowed(arrays["sequence_ptr"], labels, classes, allowed, scheme, first)
        arrays["dense"] = _spread(arrays["dense"], self.small["columns"], columns)
        if offsets is not None:
            offsets, numbers = offsets.local(numbers)
            items = offsets.announce(
                arrays["item_ptr"], arrays["attribute"], arrays["value"], arrays["dense"]
            )
            arrays["item_ptr"], arrays["attribute"], arrays["value"] = items
        if not everything:
            arrays |= _features(tokens_of(arrays), labels, numbers, n, counted)
        if offsets is not None:  # after the values were counted
            arrays["value"], arrays["dense"] = offsets.centre(
                arrays["attribute"], arrays["value"], arrays["dense"]
            )
        arrays["attribute"] = numbers[arrays["attribute"]]
        for name in ("names", "name_ptr"):
            del arrays[name]
        self.small = {"first": first, "allowed": allowed}
        return _observed_pairs(arrays["sequence_ptr"], labels, n)

    def features(self) -> tuple[Ints, Floats | None]:
        """Attribute * L + label of every feature, ascending, and the sum of its values, if it was counted."""
        return self.arrays["code"], self.arrays.get("count")

    def lay_out(self, layout: ChainLayout) -> tuple[Floats, Floats]:
        """Put the tokens into the layout; what is observed, and the curvature, as vectors of all weights."""
        tokens = tokens_of(self.arrays)
        value = tokens.value.copy() if tokens.value.size else tokens.value
        self.arrays |= in_layout(
            tokens._replace(attribute=tokens.attribute.copy(), value=value), layout
        )._asdict()
        for name in ("code", "count"):
            self.arrays.pop(name, None)
        self.small |= {"layout": layout}
        likelihood = self._ready()
        return likelihood.observed(), likelihood.curvature()

    # -- training --------------------------------------------------------------------------------------------

    def log_partition(self, vector: Floats, threads: int | None) -> tuple[float, Floats]:
        """The sum of log Z of the sequences, and its gradient."""
        return self._ready().log_partition(vector, thread_count(threads))

    def _ready(self) -> ChainLikelihood:
        if self._likelihood is None:
            arrays, small = self.arrays, self.small
            chains = TokenBlock(tokens_of(arrays), arrays["dense"], small["first"])
            self._likelihood = ChainLikelihood(
                chains, arrays["labels"], arrays["weight"], small["layout"], small["allowed"]
            )
        return self._likelihood

    # -- backends --------------------------------------------------------------------------------------------

    def n_bytes(self) -> int:
        """What the source takes it for."""
        return self.source.n_bytes() or 0

    def reusable(self) -> None:
        """Nothing that other parts would need."""
        return


def _call(part: ChainPart, state: Mapping[str, Any], method: str, args: Sequence[Any]) -> tuple[Any, Any]:
    """What a method of a part in some state gives, and the state after it."""
    work = ChainPart(part.source)
    work.small, work.arrays = dict(state.get("small", {})), {k: v for k, v in state.items() if k != "small"}
    work._likelihood = part._likelihood
    result = getattr(work, method)(*args)
    part._likelihood = work._likelihood  # it follows from the state that `lay_out` makes, the last one
    after = {**work.arrays, "small": work.small}
    same = _same(work.small, state.get("small", {})) and _same(work.arrays, {**state, "small": None}, 1)
    return state if same else after, result


def _same(a: Mapping[str, Any], b: Mapping[str, Any], more: int = 0) -> bool:
    """Whether two dictionaries hold the same objects, the second `more` others."""
    return len(a) + more == len(b) and all(b.get(name) is value for name, value in a.items())


def _call_own(part: ChainPart, state: Any, own: Any, method: str, args: Sequence[Any]) -> tuple[Any, Any]:
    return _call(part, state, method, (own, *args))


class ChainParts:
    """Methods of the parts of a data set, wherever they are, by name; holds the states that they are in."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.states = backend, None

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        return self.backend.n_parts

    def each(self, method: str, *args: Any, own: Sequence[Any] | None = None) -> list[Any]:
        """The method's result for every part."""
        function = _call if own is None else _call_own
        self.states, found = self.backend.map(function, self.states, method, args, own=own)
        return found

    def at(self, number: int, method: str, *args: Any) -> Any:
        """The method's result for one part."""
        return self.backend.at(number, _call, self.states, method, args)

    def total(self, method: str, *args: Any) -> Any:
        """The sum of the method's results."""
        self.states, found = self.backend.total(_call, self.states, method, args)
        return found

    def statistics(self) -> dict[str, Any]:
        """What the rounds since the last call took."""
        return self.backend.statistics()


@dataclass(frozen=True)
class ChainRecipe:
    """How to build a part, which is read when it is first asked for something."""

    source: Source

    @property
    def name(self) -> str:
        """What messages call the part."""
        return self.source.name

    def n_bytes(self) -> int | None:
        """About how large it is, where that is known without reading it."""
        return self.source.n_bytes()

    def build(self) -> ChainPart:
        """The part."""
        return ChainPart(self.source)


def _spread(dense: Any, of_part: Columns, columns: Columns) -> Any:
    """Dense rows with the columns of the data set."""
    if of_part == columns:
        return dense
    rows = np.zeros((len(dense), n_columns(columns)), dtype=dense.dtype)
    for name, (first, end) in of_part.items():
        rows[:, slice(*columns[name])] = dense[:, first:end]
    return rows


def tokens_of(arrays: Mapping[str, Any]) -> kernels.TokenAttributes:
    """The tokens among a part's arrays."""
    return kernels.TokenAttributes(*map(arrays.__getitem__, kernels.TokenAttributes._fields))


def _features(
    tokens: kernels.TokenAttributes, labels: Any, numbers: Any, n_labels: int, counted: bool
) -> dict[str, Any]:
    """The features of a part by the numbers of the data set, ascending, with the sums of their values if asked for."""
    ptr, seen, count = kernels.count_labels(tokens, labels, len(numbers), n_labels)
    label = np.empty(int(count.sum()), dtype=np.uint16)
    kernels.collect_labels(ptr, seen, count, label)
    owner = np.repeat(np.arange(len(count)), count)
    code = numbers[owner].astype(np.int64) * n_labels + label
    order = np.argsort(code, kind="stable")
    features = {"code": code[order]}
    if counted:
        features["count"] = _counts(tokens, labels, owner * n_labels + label, n_labels)[order]
    return features


def _counts(tokens: kernels.TokenAttributes, labels: Any, code: Ints, n_labels: int) -> Floats:
    """The sum of the values of each feature; `code` ascends."""
    item_label = np.repeat(labels, np.diff(tokens.item_ptr))
    seen = np.flatnonzero(item_label >= 0)
    at = np.searchsorted(code, tokens.attribute[seen].astype(np.int64) * n_labels + item_label[seen])
    value = tokens.value[seen] if tokens.value.size else None
    return np.bincount(at, value, minlength=len(code)).astype(np.float64)


def _observed_pairs(sequence_ptr: Any, labels: Any, n_labels: int) -> Floats:
    """How often each label is followed by each."""
    follows = np.ones(max(len(labels) - 1, 0), dtype=bool)
    inner = sequence_ptr[1:-1]
    follows[inner[(inner > 0) & (inner < len(labels))] - 1] = False
    before, after = labels[:-1], labels[1:]
    both = follows & (before >= 0) & (after >= 0)
    counts = np.bincount(before[both] * n_labels + after[both], minlength=n_labels**2)
    return counts.reshape(n_labels, n_labels).astype(np.float64)


class ChainData:
    """Parts of consecutive sequences, and what they have in common.

    Names are numbered in the order of their first occurrence in the data set, part by part, so that nothing depends
    on which worker has which part. They are on the cluster if there is one, else in this process, `resident` of them
    at once.

    Attributes:
        parts: the backend.
        index: numbers of all attributes and columns of dense features.
        classes: the labels, in order.
    """

    def __init__(self, sources: Sequence[Source], resident: int = 1, marked: bool = False) -> None:
        in_memory = all(source.in_memory for source in sources)
        recipes = [ChainRecipe(source) for source in sources]
        self.parts = parts = ChainParts(open_backend(recipes, in_memory, resident))
        facts: list[PartFacts] = parts.each("overview")
        if not any(part.weighted for part in facts) and any(part.n_sequences for part in facts):
            raise PotentiaError("sample_weight is zero for every sequence.")
        self.classes: list[Label] = label_classes({label for part in facts for label in part.labels})
        #: Of the data, where it was asked for.
        self.digests: list[str] = parts.each("digest") if marked else []
        #: Of the attributes and arrays with small numbers the one with the least sum of squares, and that sum.
        self.faintest: tuple[str, float] | None = None
        self._numbers: list[Any] = []
        numbers: dict[str, int] = {}
        for k in range(parts.n_parts):
            # one part's names at a time: the client holds those of the whole data set only once
            names: list[str] = parts.at(k, "names")
            of_names = (numbers.setdefault(name, len(numbers)) for name in names)
            self._numbers.append(np.fromiter(of_names, dtype=np.int32, count=len(names)))
        columns = _join_columns([part.columns for part in facts])
        self.index = AttributeIndex(numbers, columns)
        if columns or any(part.numeric for part in facts):
            self._find_offsets([part.columns for part in facts])

    def _find_offsets(self, columns: Sequence[Columns]) -> None:
        """Offsets of numbers far from zero; the attributes that say where these are get the next numbers."""
        index = self.index
        names = list(index.numbers)
        values, dense = Moments.none(len(names)), Moments.none(self.n_dense)
        for part, numbers_of_part in enumerate(self._numbers):
            of_values, of_dense = self.parts.at(part, "moments")
            values.add(of_values, numbers_of_part)
            dense.add(of_dense, _places(columns[part], index.columns))
        of_attributes, of_columns = values.offsets(), dense.offsets()
        self._find_faintest(names, values.small_squares(of_attributes), dense.small_squares(of_columns))
        offsets = {names[k]: float(of_attributes[k]) for k in np.flatnonzero(of_attributes).tolist()}
        far = [name for name, (first, end) in index.columns.items() if of_columns[first:end].any()]
        if not (offsets or far):
            return
        numbers = dict(index.numbers)
        for name in (*offsets, *far):
            numbers.setdefault(presence_name(name), len(numbers))
        self.index = AttributeIndex(numbers, index.columns, offsets, of_columns if far else ())

    def _find_faintest(self, names: Sequence[str], squares: Floats, of_columns: Floats) -> None:
        """The least sum of squares, which is infinite for numbers that are not small."""
        sums = {name: float(of_columns[a:b].sum()) for name, (a, b) in self.index.columns.items() if b > a}
        if len(squares):
            k = int(squares.argmin())
            sums[names[k]] = float(squares[k])
        if sums:
            least = min(sums, key=sums.__getitem__)
            self.faintest = (least, sums[least]) if sums[least] < np.inf else None

    @property
    def n_dense(self) -> int:
        """Number of columns of dense features."""
        return n_columns(self.index.columns)

    def number(
        self, allowed: Allowed, scheme: str | None, everything: bool, least: float
    ) -> tuple[AttributeLabels, Floats]:
        """Number all parts alike; the features, and how often each label follows each.

        allowed: by the scheme. everything: features are all attributes with all labels. least: what the values of a
        feature must sum to.
        """
        everything = everything and least <= 0
        offsets = self.index.centring() if self.index.is_centred else None
        options = self.classes, self.index.columns, allowed, scheme, everything, least > 0, offsets
        pairs: Floats = sum(self.parts.each("number", *options, own=self._numbers))
        self._numbers = []
        n_attributes, n = len(self.index.numbers), len(self.classes)
        code: Ints = np.arange(n_attributes * n)
        if not everything:
            code = _join_features(
                (self.parts.at(part, "features") for part in range(self.parts.n_parts)), least
            )
        return AttributeLabels.of_codes(code, n_attributes, n), pairs


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
            begin = n_columns(joined)
            known = joined.setdefault(name, (begin, begin + end - first))
            if known[1] - known[0] != end - first:
                raise PotentiaError(
                    f"part {part} has {end - first} numbers in {name!r}, but others have {known[1] - known[0]}."
                )
    return joined


def _places(of_part: Columns, columns: Columns) -> Ints:
    """Columns of the data set that the columns of a part are."""
    ordered = sorted(of_part.items(), key=lambda item: item[1])
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
    label_classes(label_values(y))  # before the sequences are read, which takes longer
    check_sequences(X)
    weight = None if sample_weight is None else sequence_weights(sample_weight, len(y))
    return list(_cut(X, y, weight)), 1


def _cut(X: Iterable[Any], y: Any, weight: Floats | None) -> Iterator[Source]:
    """Consecutive sequences until a part would have too many tokens; the last part takes what is left of X."""
    items = iter(X)
    cuts = cut_lengths([len(row) for row in y])
    for first, last in cuts:
        chosen = islice(items, last - first if last < len(y) else None)
        # a cluster may read it again, elsewhere
        sequences = chosen if current() is None else list(chosen)
        weights = None if weight is None else weight[first:last]
        yield HeldSequences(Sequences(sequences, y[first:last], weights, first, len(y)))


def cut_lengths(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges of sequences of these lengths with at most `PART_TOKENS` tokens each, or one sequence."""
    cuts, tokens = [0], 0
    for number, n in enumerate(lengths):
        if tokens + n > PART_TOKENS and number > cuts[-1]:
            cuts.append(number)
            tokens = 0
        tokens += n
    return [*zip(cuts, [*cuts[1:], len(lengths)], strict=True)]
