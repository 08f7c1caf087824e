"""`ChainData`: sequences in parts behind a backend, whose attributes, labels and features are numbered alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress, islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from ..base.backend import open_backend
from ..base.saving import digest_of
from ..base.types import Floats, Ints, PotentiaError
from ..features.attributes import (
    AttributeIndex,
    Choices,
    Columns,
    Label,
    PackedNames,
    check_lengths,
    check_sequences,
    encode_choices,
    encode_labels,
    label_classes,
    label_values,
    n_columns,
    pack_names,
    sequence_weights,
)
from ..features.offsets import Moments, Offsets, attribute_moments, column_moments, presence_name
from ..features.parts import Parts, Sequences, Source
from ..features.schemes import Allowed, check_allowed
from ..features.template import Template
from ..kernels import attributes as kernels
from ..kernels.attributes import TokenAttributes
from .backends.connection import current
from .chain import AttributeLabels, ChainWeights

if TYPE_CHECKING:
    from ..features.example import Example

#: Tokens of a part of sequences in memory. Cuts never depend on the number of threads or workers.
PART_TOKENS = 1 << 18

#: What features an attribute has: with a label, with a pair of neighbouring labels.
OF_LABELS, OF_PAIRS = 1, 2

#: What is known of a part: arrays of its tokens, labels and weights, and small values beside them.
PartState = Mapping[str, Any]


class HeldSequences(Source):
    """Sequences in memory, or an iterator over them, which is read once."""

    in_memory: ClassVar[bool] = True

    def __init__(self, held: Sequences) -> None:
        self.held = held

    @property
    def name(self) -> str:
        """The numbers of the sequences."""
        return f"sequences from {self.held.first} on"

    def load(self) -> list[Example]:
        """Refused: these are no examples."""
        raise PotentiaError(f"{self.name} are no examples.")

    def sequences(self) -> Sequences:
        """The sequences."""
        return self.held


class ChainPart:
    """Sequences of one source, which the functions below read and number; it is how to build itself elsewhere."""

    def __init__(self, source: Source) -> None:
        self.source = source

    @property
    def name(self) -> str:
        """What messages call the part."""
        return self.source.name

    def n_bytes(self) -> int:
        """About how large it is, 0 where that is not known without reading it."""
        return self.source.n_bytes() or 0

    def build(self) -> ChainPart:
        """The part."""
        return ChainPart(self.source)

    def reusable(self) -> None:
        """Nothing that other parts would need."""
        return


# -- what is done to a part: functions of the part and its state, which return the next state and a result ----------


def read_part(
    part: ChainPart, _: PartState, template: Template | None
) -> tuple[PartState, tuple[list[Label], Columns, bool, bool | None]]:
    """Read the sequences; attributes and labels have the part's numbers.

    Results: labels, columns of dense features, whether attributes have other values than 1, and whether any sequence
    has a positive weight, None without sequences.
    """
    try:
        given = part.source.sequences()
        values = list(label_values(given.y, given.first))
        index = AttributeIndex(template=template)
        tokens, dense = index.learn(given.X, given.first)
        check_lengths(given.y, np.diff(tokens.sequence_ptr).tolist(), given.first, given.total)
        weight = sequence_weights(given.weight, len(tokens.sequence_ptr) - 1)
    except PotentiaError as error:
        if isinstance(part.source, HeldSequences):
            raise
        raise type(error)(f"{part.name}: {error}") from None
    tokens, silent = _without_zeros(tokens)
    labels, choices = encode_choices(given.y, values, given.first)
    state = {
        **({} if choices is None else choices._asdict()),
        **tokens._asdict(),
        "silent": silent,
        "dense": dense,
        "labels": labels,
        "weight": weight,
        **pack_names(index.numbers),
        "first": given.first,
        "values": values,
        "columns": index.columns,
    }
    weighted = bool(weight.any()) if len(weight) else None
    return state, (values, index.columns, bool(tokens.value.size), weighted)


def _without_zeros(tokens: TokenAttributes) -> tuple[TokenAttributes, Ints]:
    """Tokens without items of value 0, and the attributes and tokens of those items (2, items).

    They score nothing, but a label that occurs beside one gets a weight for its attribute, as in CRFsuite.
    """
    zero = np.flatnonzero(tokens.value == 0.0)
    if not zero.size:
        return tokens, np.zeros((2, 0), dtype=np.int64)
    silent = np.stack([tokens.attribute[zero], np.searchsorted(tokens.item_ptr, zero, side="right") - 1])
    tokens = _only(tokens, tokens.value != 0.0)
    return tokens if np.any(tokens.value != 1.0) else tokens._replace(value=tokens.value[:0]), silent


def _only(tokens: TokenAttributes, left: Any) -> TokenAttributes:
    """Tokens with some of their items."""
    item_ptr = np.concatenate([[0], np.cumsum(left)])[tokens.item_ptr]
    value = tokens.value[left] if tokens.value.size else tokens.value
    return TokenAttributes(tokens.sequence_ptr, item_ptr, tokens.attribute[left], value)


def part_names(_: ChainPart, state: PartState) -> tuple[PartState, PackedNames]:
    """The names of the part's attributes, in the order in which they occur."""
    return state, PackedNames(state)


def part_moments(_: ChainPart, state: PartState) -> tuple[PartState, tuple[Moments, Moments]]:
    """Of the values of the part's attributes, and of its dense columns; sequences without labels do not count."""
    tokens = np.diff(state["sequence_ptr"])
    number = np.repeat(np.arange(len(tokens)), tokens)
    labelled = np.bincount(number, state["labels"] >= 0, len(tokens)) > 0
    per_token = np.where(labelled, state["weight"], 0.0)[number]
    value = state["value"] if state["value"].size else np.ones(len(state["attribute"]))
    per_item = np.repeat(per_token, np.diff(state["item_ptr"]))
    of_values = attribute_moments(state["attribute"], value, per_item, len(state["name_ptr"]) - 1)
    return state, (of_values, column_moments(state["dense"], per_token))


def part_digest(_: ChainPart, state: PartState) -> tuple[PartState, str]:
    """Equal for equal sequences, labels and weights."""
    texts = np.array([*state["values"], None], dtype=object)
    spelled = "\n".join(map(repr, texts[state["labels"]].tolist()))
    arrays = [v for name, v in state.items() if isinstance(v, np.ndarray) and name != "labels"]
    return state, digest_of([spelled, *arrays])


def part_counts(_: ChainPart, state: PartState) -> tuple[PartState, dict[Label, int]]:
    """How often each label occurs."""
    counts = np.bincount(state["labels"][state["labels"] >= 0], minlength=len(state["values"]))
    return state, dict(zip(state["values"], counts.tolist(), strict=True))


class Numbering(NamedTuple):
    """How all parts of a data set are numbered.

    Attributes:
        classes, columns: its labels, and columns of dense features.
        allowed, scheme: what may follow what, for the messages by this scheme.
        scope: of its attributes, `OF_LABELS`, `OF_PAIRS`, both or neither: which features are to be found.
        counted: whether the values of features are summed up.
        offsets: of numbers far from zero. costs: see `ChainData.number`.
    """

    classes: Sequence[Label]
    columns: Columns
    allowed: Allowed
    scheme: str | None
    scope: Any
    counted: bool
    offsets: Offsets | None
    costs: Floats | None


def number_part(_: ChainPart, state: PartState, numbers: Any, given: Numbering) -> tuple[PartState, Floats]:
    """Number attributes, labels and columns as the data set does; how often each label follows each (L, L).

    numbers: of the part's attributes.
    """
    classes, columns, allowed, scheme, scope, counted, offsets, costs = given
    labels = encode_labels([[*state["values"], None]], classes)[state["labels"]]
    choices = None
    if "token" in state:
        of_classes = np.zeros((len(state["token"]), len(classes)), dtype=bool)
        of_classes[:, encode_labels([state["values"]], classes)] = state["allowed"]
        choices = Choices(state["token"], of_classes)
    if not allowed.transitions.all() or not (allowed.start.all() and allowed.end.all()):
        check_allowed(state["sequence_ptr"], labels, classes, allowed, scheme, state["first"])
    tokens, dense = TokenAttributes.of(state), _spread(state["dense"], state["columns"], columns)
    if offsets is not None:
        offsets, numbers = offsets.local(numbers)
        tokens = TokenAttributes(tokens.sequence_ptr, *offsets.announce(*tokens[1:], dense))
    n, silent = len(classes), state["silent"]
    features = {"codes": _features(tokens, silent, labels, numbers, n, scope & OF_LABELS, counted, choices)}
    if np.any(scope & OF_PAIRS):
        codes = _pair_labels(tokens.sequence_ptr, labels, n)
        features["pair_codes"] = _features(tokens, silent, codes, numbers, n * n, scope & OF_PAIRS, counted)
    if offsets is not None:  # after the values were counted
        value, dense = offsets.centre(tokens.attribute, tokens.value, dense)
        tokens = tokens._replace(value=value)
    new = {
        **tokens._replace(attribute=numbers[tokens.attribute])._asdict(),
        **features,
        "dense": dense,
        "labels": labels,
        "weight": state["weight"],
        "first": state["first"],
        "allowed": allowed,
        "choices": choices,
        "costs": costs,
    }
    codes = _pair_labels(tokens.sequence_ptr, labels, n)
    pairs = np.bincount(codes[codes >= 0], minlength=n * n).reshape(n, n).astype(np.float64)
    return new, pairs if choices is None else pairs + _possible_pairs(tokens.sequence_ptr, labels, choices)


def _possible_pairs(sequence_ptr: Ints, labels: Any, choices: Choices) -> Floats:
    """How often each label may follow each where one of the two tokens, or both, may have several."""
    token, allowed = choices
    after = np.union1d(token, token + 1)
    after = np.setdiff1d(after[after < len(labels)], sequence_ptr)  # a sequence's first token follows none
    involved = np.union1d(after - 1, after)
    rows = (labels[involved][:, None] == np.arange(allowed.shape[1])).astype(np.float64)
    chosen = np.isin(token, involved)
    rows[np.searchsorted(involved, token[chosen])] = allowed[chosen]
    at = np.searchsorted(involved, after)
    pairs: Floats = rows[at - 1].T @ rows[at]
    return pairs


def part_features(_: ChainPart, state: PartState, which: str) -> tuple[PartState, tuple[Ints, Floats]]:
    """attribute * n_labels + label of every feature, ascending, and the sum of its values."""
    return state, state[which]


def _spread(dense: Any, of_part: Columns, columns: Columns) -> Any:
    """Dense rows with the columns of the data set."""
    if of_part == columns:
        return dense
    rows = np.zeros((len(dense), n_columns(columns)), dtype=dense.dtype)
    for name, (first, end) in of_part.items():
        rows[:, slice(*columns[name])] = dense[:, first:end]
    return rows


def _features(
    tokens: TokenAttributes,
    silent: Ints,
    labels: Any,
    numbers: Any,
    n_labels: int,
    scope: Any,
    counted: bool,
    choices: Choices | None = None,
) -> tuple[Ints, Floats]:
    """Codes of a part's features by the numbers of the data set, ascending, and the sums of their values if counted.

    A feature is an attribute in `scope` with a label of one of its tokens. silent: attributes of value 0, and tokens.
    """
    wanted = scope[numbers] != 0
    if not wanted.all():
        tokens = _only(tokens, wanted[tokens.attribute])
        silent = silent[:, wanted[silent[0]]]
    ptr, seen, count = kernels.count_labels(tokens, labels, len(numbers), n_labels)
    label = np.empty(int(count.sum()), dtype=np.uint16)
    kernels.collect_labels(ptr, seen, count, label)
    code = np.repeat(np.arange(len(count)), count) * n_labels + label
    if silent.size:
        beside = labels[silent[1]]
        code = np.union1d(code, (silent[0] * n_labels + beside)[beside >= 0])
    if choices is not None:
        row, label_of = np.nonzero(choices.allowed)
        token = choices.token[row]
        count_of = np.diff(tokens.item_ptr)[token]
        items = np.arange(count_of.sum()) + np.repeat(tokens.item_ptr[token] - np.cumsum(count_of) + count_of, count_of)
        code = np.union1d(code, tokens.attribute[items].astype(np.int64) * n_labels + np.repeat(label_of, count_of))
    sums = _sums(tokens, labels, code, n_labels) if counted else np.zeros(len(code))
    code = numbers[code // n_labels].astype(np.int64) * n_labels + code % n_labels
    order = np.argsort(code, kind="stable")
    return code[order], sums[order]


def _sums(tokens: TokenAttributes, labels: Any, code: Ints, n_labels: int) -> Floats:
    """The sum of the values of each feature; `code` ascends."""
    item_label = np.repeat(labels, np.diff(tokens.item_ptr))
    seen = np.flatnonzero(item_label >= 0)
    at = np.searchsorted(code, tokens.attribute[seen].astype(np.int64) * n_labels + item_label[seen])
    value = tokens.value[seen] if tokens.value.size else None
    return np.bincount(at, value, minlength=len(code)).astype(np.float64)


def _pair_labels(sequence_ptr: Any, labels: Any, n_labels: int) -> Any:
    """before * L + after of each token's label and the one before; -1 where one is not known or there is none."""
    codes = np.full(len(labels), -1, dtype=np.int32)
    codes[1:] = np.where((labels[:-1] >= 0) & (labels[1:] >= 0), labels[:-1] * n_labels + labels[1:], -1)
    codes[sequence_ptr[:-1][sequence_ptr[:-1] < len(labels)]] = -1
    return codes


class ChainData:
    """Parts of consecutive sequences, and what they have in common.

    Names are numbered in the order of their first occurrence in the data set, part by part, so that nothing depends
    on which worker has which part. They are on the cluster if there is one, else in this process, `resident` of them
    at once.

    Attributes:
        parts, states: the backend, and what is known of its parts before they are numbered.
        index: numbers of all attributes and columns of dense features.
        classes: the labels, in order.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        resident: int = 1,
        marked: bool = False,
        template: Template | None = None,
        centred: bool = True,
    ) -> None:
        in_memory = all(source.in_memory for source in sources)
        self.parts = open_backend([ChainPart(source) for source in sources], in_memory, resident)
        self.states: Any
        self.states, facts = self.parts.map(read_part, None, template)
        labels, columns, numeric, weighted = zip(*facts, strict=True)
        if True not in weighted and False in weighted:
            raise PotentiaError("sample_weight is zero for every sequence.")
        self.classes: list[Label] = label_classes(set().union(*labels))
        #: Of the data, where it was asked for.
        self.digests: list[str] = self.parts.map(part_digest, self.states)[1] if marked else []
        #: Of the attributes and arrays with small numbers the one with the least sum of squares, and that sum.
        self.faintest: tuple[str, float] | None = None
        self._numbers: list[Any] = []
        numbers: dict[str, int] = {}
        packed: PackedNames | None = None
        for k in range(self.parts.n_parts):
            # one part's names at a time: the client holds those of the whole data set only once
            packed = self.parts.at(k, part_names, self.states)
            if self.parts.n_parts == 1:  # they are in order already, and take less memory packed
                self._numbers.append(np.arange(len(packed), dtype=np.int32))
                break
            of_names = (numbers.setdefault(name, len(numbers)) for name in packed.names())
            self._numbers.append(np.fromiter(of_names, dtype=np.int32, count=len(packed)))
            packed = None
        self.index = AttributeIndex(packed or numbers, _join_columns(columns), template=template)
        if centred and (self.index.columns or any(numeric)):
            self._find_offsets(columns)

    def _find_offsets(self, columns: Sequence[Columns]) -> None:
        """Offsets of numbers far from zero; the attributes that say where these are get the next numbers."""
        index = self.index
        names = list(index.numbers)
        values, dense = Moments.none(len(names)), Moments.none(self.n_dense)
        for part, numbers_of_part in enumerate(self._numbers):
            of_values, of_dense = self.parts.at(part, part_moments, self.states)
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

    def remember(self, before: AttributeIndex, classes: Sequence[Label]) -> None:
        """Number the attributes and labels of an earlier fit, too, after those of the data."""
        self.classes = label_classes({*self.classes, *classes})
        numbers, columns = dict(self.index.numbers), dict(self.index.columns)
        for name in before.numbers:
            numbers.setdefault(name, len(numbers))
        for name, (first, end) in before.columns.items():
            begin = n_columns(columns)
            columns.setdefault(name, (begin, begin + end - first))
        offsets, of_columns = before.offsets | self.index.offsets, np.zeros(n_columns(columns))
        for index in (before, self.index):
            for name, (first, end) in index.columns.items() if index.column_offsets.size else ():
                if columns[name][1] - columns[name][0] == end - first:
                    of_columns[slice(*columns[name])] = index.column_offsets[first:end]
        for name in (*offsets, *(name for name, ends in columns.items() if of_columns[slice(*ends)].any())):
            numbers.setdefault(presence_name(name), len(numbers))
        self.index = AttributeIndex(
            numbers, columns, offsets, of_columns if of_columns.any() else (), self.index.template
        )

    def label_counts(self) -> Floats:
        """How often each of the classes occurs, before the parts are numbered."""
        counts = dict.fromkeys(self.classes, 0)
        for k in range(self.parts.n_parts):
            for label, count in self.parts.at(k, part_counts, self.states).items():
                counts[label] += count
        return np.array([*counts.values()], dtype=np.float64)

    @property
    def n_dense(self) -> int:
        """Number of columns of dense features."""
        return n_columns(self.index.columns)

    def number(
        self, allowed: Allowed, scheme: str | None, scope: Any, least: float, costs: Floats | None = None
    ) -> tuple[Any, AttributeLabels, AttributeLabels, Floats]:
        """Number all parts alike; the parts' states, the features of labels and of pairs of labels, and how often each
        label follows each.

        allowed: by the scheme. scope: of each attribute, see `number_part`. least: what the values of a feature must
        sum to. costs: of each label, what other labels score more in training where it is right.
        """
        offsets = self.index.centring() if self.index.is_centred else None
        given = Numbering(self.classes, self.index.columns, allowed, scheme, scope, least > 0, offsets, costs)
        states, pairs = self.parts.map(number_part, self.states, given, own=self._numbers)
        self.states, self._numbers = None, []
        n_attributes, n = len(self.index), len(self.classes)

        def features(which: str, n_labels: int) -> AttributeLabels:
            """The labels, or pairs of labels, that each attribute was seen with in all parts."""
            of_parts = (self.parts.at(k, part_features, states, which) for k in range(self.parts.n_parts))
            return AttributeLabels.of_codes(_join_features(of_parts, least), n_attributes, n_labels)

        with_pairs = bool(np.any(scope & OF_PAIRS))
        of_pairs = features("pair_codes", n * n) if with_pairs else AttributeLabels.none(n_attributes)
        return states, features("codes", n), of_pairs, sum(pairs)


def _join_features(of_parts: Iterable[tuple[Ints, Floats]], least: float) -> Ints:
    """The codes of all parts, ascending, without those whose values sum to less than `least`."""
    joined: Ints = np.zeros(0, dtype=np.int64)
    sums: Floats = np.zeros(0)
    for code, of_part in of_parts:
        both, place = np.unique(np.concatenate([joined, code]), return_inverse=True)
        sums = np.bincount(place, np.concatenate([sums, of_part]), len(both)).astype(np.float64)
        joined = both
    return joined if least <= 0 else joined[sums >= least]


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


# -- weights by name -----------------------------------------------------------------------------------------


def pruned(weights: ChainWeights, index: AttributeIndex) -> tuple[ChainWeights, AttributeIndex]:
    """Weights without features of weight zero, and attributes without any."""
    live = weights.state != 0.0
    both = list(zip(weights[:2], np.split(live, [len(weights.features.label)]), strict=True))
    owners = [features.owner[chosen] for features, chosen in both]
    left = np.bincount(np.concatenate(owners), minlength=len(index)) > 0
    for name in index.offsets:  # of which one attribute says that the other is there
        left[index.numbers[name]] |= left[index.numbers[presence_name(name)]]
    place, n = np.cumsum(left) - 1, int(left.sum())
    features, pair_features = (
        AttributeLabels.of_rows(place[owner], features.label[chosen], n)
        for owner, (features, chosen) in zip(owners, both, strict=True)
    )
    if not left.all():
        numbers = {name: k for k, name in enumerate(compress(index.numbers, left.tolist()))}
        offsets = {name: offset for name, offset in index.offsets.items() if name in numbers}
        index = AttributeIndex(numbers, index.columns, offsets, index.column_offsets, index.template)
    return ChainWeights(features, pair_features, weights.state[live], weights.pairs, weights.dense), index


class Renumbering(NamedTuple):
    """What the attributes and labels of an earlier fit, and its pairs of labels, are among those of the data."""

    attribute: Ints
    label: Ints
    pair: Ints

    @classmethod
    def of(cls, before: AttributeIndex, old: Sequence[Label], index: AttributeIndex, classes: Sequence[Label]) -> Self:
        """By name; the data must have all of them."""
        attribute = np.fromiter(map(index.numbers.__getitem__, before.numbers), np.int64, len(before.numbers))
        label = np.array([classes.index(name) for name in old])
        return cls(attribute, label, (label[:, None] * len(classes) + label).ravel())

    def joined(self, features: AttributeLabels, old: AttributeLabels, labels: Ints, n: int) -> AttributeLabels:
        """Features, and those of the earlier fit; `labels` are its labels or pairs of labels, of which there are n."""
        code = np.union1d(features.owner * n + features.label, self.attribute[old.owner] * n + labels[old.label])
        return AttributeLabels.of_codes(code, len(features.ptr) - 1, n)

    def transferred(
        self, old: ChainWeights, before: AttributeIndex, fresh: ChainWeights, index: AttributeIndex
    ) -> ChainWeights:
        """Old weights for the features of `fresh`, which has all of theirs; zero for others."""
        n, pairs, dense = len(fresh.pairs), np.zeros_like(fresh.pairs), np.zeros_like(fresh.dense)

        def moved(features: AttributeLabels, weight: Floats, own: AttributeLabels, labels: Ints, n: int) -> Floats:
            weights = np.zeros(len(own.label))
            code = self.attribute[features.owner] * n + labels[features.label]
            weights[np.searchsorted(own.owner * n + own.label, code)] = weight
            return weights

        first = len(old.features.label)
        state = np.concatenate([
            moved(old.features, old.state[:first], fresh.features, self.label, n),
            moved(old.pair_features, old.state[first:], fresh.pair_features, self.pair, n * n),
        ])  # fmt: skip
        pairs[np.ix_(self.label, self.label)] = old.pairs
        for name, columns in before.columns.items():
            if (own := slice(*index.columns[name])).stop - own.start == columns[1] - columns[0]:
                dense[own, self.label] = old.dense[slice(*columns)]
        weights = ChainWeights(*fresh[:2], state, pairs, dense)
        _move(weights, before, index)
        return weights


def _move(weights: ChainWeights, before: AttributeIndex, index: AttributeIndex) -> None:
    """Adapt what numbers add by being there to offsets other than before."""
    (ptr, label), state = weights.features, weights.state

    def add(name: str, score: Floats) -> None:
        """Add scores of labels to the weights of an attribute's presence."""
        entries = slice(*ptr[(k := index.numbers[presence_name(name)]) : k + 2])
        state[entries] += score[label[entries]]

    for name, offset in index.offsets.items():
        entries = slice(*ptr[(k := index.numbers[name]) : k + 2])
        of_number = np.zeros(len(weights.pairs))
        of_number[label[entries]] = state[entries]
        add(name, of_number * (offset - before.offsets.get(name, 0.0)))
    for name, (first, end) in index.columns.items() if index.column_offsets.size else ():
        gap = index.column_offsets[first:end].copy()
        if name in before.columns and before.column_offsets.size:
            gap -= before.column_offsets[slice(*before.columns[name])]
        if presence_name(name) in index.numbers:
            add(name, gap @ weights.dense[first:end])
