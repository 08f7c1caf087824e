"""`ChainPart`: consecutive sequences of a data set, wherever they are, numbered as the whole data set says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..base.backend import Backend
from ..base.saving import digest_of
from ..base.threads import thread_count
from ..base.types import Floats, Ints, PotentiaError
from ..features.attributes import AttributeIndex, Moments, Offsets, attribute_moments, column_moments
from ..features.parts import HeldSequences, Source
from ..kernels import attributes as kernels
from .chain_layout import (
    AttributeLabels,
    ChainLayout,
    Constraints,
    Label,
    check_allowed,
    check_lengths,
    encode_labels,
    label_values,
    observed_features,
    scheme_constraints,
    sequence_weights,
)
from .chain_objective import ChainLikelihood, TokenBlock, pack_names, unpack_names

#: Columns of dense features by name, (first, end).
Columns = Mapping[str, tuple[int, int]]


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
        self.held: dict[str, Any] = {}
        self._likelihood: ChainLikelihood | None = None

    def read(self) -> None:
        """Read the sequences, unless they were."""
        if self.small:
            return
        try:
            self._read()
        except PotentiaError as error:
            if isinstance(self.source, HeldSequences):
                raise
            raise type(error)(f"{self.source.name}: {error}") from None

    def _read(self) -> None:
        given = self.source.sequences()
        values = list(label_values(given.y, given.first))
        index = AttributeIndex()
        encoded = index.learn(given.X, given.first)
        check_lengths(given.y, np.diff(encoded.sequence_ptr).tolist(), given.first, given.total)
        weight = sequence_weights(given.weight, len(encoded.sequence_ptr) - 1)
        self.held = {
            **encoded._asdict(),
            "labels": encode_labels(given.y, values),
            "weight": weight,
            **pack_names(index.numbers, "surrogatepass"),
        }
        self.small = {"first": given.first, "labels": values, "columns": index.columns}

    def overview(self) -> PartFacts:
        """What the part has."""
        self.read()
        weight, numeric = self.held["weight"], bool(self.held["value"].size)
        return PartFacts(
            len(weight), bool(weight.any()), self.small["labels"], self.small["columns"], numeric
        )

    def names(self) -> list[str]:
        """The names of the part's attributes, in the order in which they occur."""
        return list(unpack_names(self.held, "surrogatepass"))

    def moments(self) -> tuple[Moments, Moments]:
        """Of the values of the part's attributes, and of its dense columns; sequences without labels do not count."""
        held = self.held
        tokens = np.diff(held["sequence_ptr"])
        number = np.repeat(np.arange(len(tokens)), tokens)
        labelled = np.bincount(number, held["labels"] >= 0, len(tokens)) > 0
        per_token = np.where(labelled, held["weight"], 0.0)[number]
        value = held["value"] if held["value"].size else np.ones(len(held["attribute"]))
        per_item = np.repeat(per_token, np.diff(held["item_ptr"]))
        n = len(held["name_ptr"]) - 1
        return attribute_moments(held["attribute"], value, per_item, n), column_moments(
            held["dense"], per_token
        )

    def digest(self) -> str:
        """Equal for equal sequences, labels and weights."""
        texts = np.array([*self.small["labels"], None], dtype=object)
        spelled = "\n".join(map(repr, texts[self.held["labels"]].tolist()))
        return digest_of([spelled, *(array for name, array in self.held.items() if name != "labels")])

    # -- numbering -------------------------------------------------------------------------------------------

    def number(
        self,
        numbers: Any,
        classes: Sequence[Label],
        columns: Columns,
        scheme: str | None,
        everything: bool,
        counted: bool,
        offsets: Offsets | None,
    ) -> Floats:
        """Number attributes, labels and columns as the data set does; how often each label follows each (L, L).

        numbers: of the part's attributes. everything: the features need not be found. counted: find how often.
        offsets: of numbers far from zero.
        """
        held, n = self.held, len(classes)
        place = {label: k for k, label in enumerate(classes)}
        known = np.array([*(place[label] for label in self.small["labels"]), -1], dtype=np.int32)
        held["labels"] = labels = known[held["labels"]]
        first = self.small["first"]
        allowed = scheme_constraints(classes, scheme)
        check_allowed(held["sequence_ptr"], labels, classes, allowed, scheme, first)
        held["dense"] = _spread(held["dense"], self.small["columns"], columns)
        if offsets is not None:
            offsets, numbers = offsets.local(numbers)
            items = offsets.announce(held["item_ptr"], held["attribute"], held["value"], held["dense"])
            held["item_ptr"], held["attribute"], held["value"] = items
        if not everything:
            held |= _features(self._tokens(), labels, numbers, n, counted)
        if offsets is not None:  # after the values were counted
            held["value"], held["dense"] = offsets.centre(held["attribute"], held["value"], held["dense"])
        held["attribute"] = numbers[held["attribute"]]
        for name in ("names", "name_ptr"):
            del held[name]
        self.small = {"first": first}
        return _observed_pairs(held["sequence_ptr"], labels, n)

    def features(self) -> tuple[Ints, Floats | None]:
        """Attribute * L + label of every feature, ascending, and the sum of its values, if it was counted."""
        return self.held["code"], self.held.get("count")

    def lay_out(self, layout: ChainLayout, allowed: Constraints) -> tuple[Floats, Floats]:
        """Put the tokens into the layout; what is observed, and the curvature, as vectors of all weights."""
        held, tokens = self.held, self._tokens()
        value = held["value"].copy() if held["value"].size else held["value"]
        tokens = in_layout(tokens._replace(attribute=held["attribute"].copy(), value=value), layout)
        self.held |= {"item_ptr": tokens.item_ptr, "attribute": tokens.attribute, "value": tokens.value}
        for name in ("code", "count"):
            self.held.pop(name, None)
        self.small |= {"layout": layout, "allowed": allowed}
        likelihood = self._ready()
        return likelihood.observed(), likelihood.curvature()

    # -- training --------------------------------------------------------------------------------------------

    def log_partition(self, vector: Floats, threads: int | None) -> tuple[float, Floats]:
        """The sum of log Z of the sequences, and its gradient."""
        return self._ready().log_partition(vector, thread_count(threads))

    def _ready(self) -> ChainLikelihood:
        if self._likelihood is None:
            held, small = self.held, self.small
            chains = TokenBlock(self._tokens(), held["dense"], small["first"])
            self._likelihood = ChainLikelihood(
                chains, held["labels"], held["weight"], small["layout"], small["allowed"]
            )
        return self._likelihood

    def _tokens(self) -> kernels.TokenAttributes:
        return kernels.TokenAttributes(*(self.held[name] for name in kernels.TokenAttributes._fields))

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
    work.small, work.held = dict(state.get("small", {})), {k: v for k, v in state.items() if k != "small"}
    work._likelihood = part._likelihood
    result = getattr(work, method)(*args)
    part._likelihood = work._likelihood  # it follows from the state that `lay_out` makes, the last one
    after = {**work.held, "small": work.small}
    same = _same(work.small, state.get("small", {})) and _same(work.held, {**state, "small": None}, 1)
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


def in_layout(tokens: kernels.TokenAttributes, layout: ChainLayout) -> kernels.TokenAttributes:
    """Tokens with attributes numbered as the layout says; the one after its last goes. Spends the tokens given."""
    item_ptr = np.zeros_like(tokens.item_ptr)
    left = kernels.renumber(tokens, np.append(layout.number, -1), item_ptr)
    value = tokens.value[:left] if tokens.value.size else tokens.value
    return kernels.TokenAttributes(tokens.sequence_ptr, item_ptr, tokens.attribute[:left], value)


def _spread(dense: Any, own: Columns, columns: Columns) -> Any:
    """Dense rows with the columns of the data set."""
    if own == columns:
        return dense
    rows = np.zeros((len(dense), max((end for _, end in columns.values()), default=0)), dtype=dense.dtype)
    for name, (first, end) in own.items():
        rows[:, slice(*columns[name])] = dense[:, first:end]
    return rows


def _features(
    tokens: kernels.TokenAttributes, labels: Any, numbers: Any, n_labels: int, counted: bool
) -> dict[str, Any]:
    """The features of a part by the numbers of the data set, ascending, with the sums of their values if asked for."""
    features = observed_features(tokens, labels, len(numbers), n_labels)
    owner = np.repeat(np.arange(len(features.ptr) - 1), np.diff(features.ptr))
    code = numbers[owner].astype(np.int64) * n_labels + features.label
    order = np.argsort(code, kind="stable")
    found = {"code": code[order]}
    if counted:
        found["count"] = _counts(tokens, labels, owner * n_labels + features.label, n_labels)[order]
    return found


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


def features_of(code: Ints, n_attributes: int, n_labels: int) -> AttributeLabels:
    """Features from their codes, attribute * L + label, ascending."""
    owner, label = np.divmod(code, n_labels)
    count = np.bincount(owner, minlength=n_attributes)
    return AttributeLabels(np.concatenate([[0], np.cumsum(count)]), label.astype(np.uint16))
