"""Chains over attributes: where their weights are, the likelihood of sequences, and what they predict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np

from ..base.resources import iterate_items, map_items, thread_count
from ..base.types import Bools, Floats, InfeasibleError, Ints, PotentiaError
from ..features.attributes import Choices
from ..features.schemes import Allowed, allowed_tags, forbidden_labels
from ..kernels import attributes as kernels
from ..kernels import sequences
from ..kernels.attributes import TokenAttributes
from ..kernels.lanes import Lanes, make_lanes
from ..kernels.machine.simd import CHUNK

#: An attribute with at least this share of all labels has a row for all of them.
_ROW_SHARE = 0.25
#: Multiplications that a shard should have, so that handing it to a thread pays.
_SHARD_WORK = 2_000_000
#: Most shards, and most entries of their gradients together.
_MAX_SHARDS, _MAX_ENTRIES = 16, 2**24
#: Fewest and most batches of a part, where it has as many sequences.
_MIN_BATCHES, _MAX_BATCHES = 10, 100
#: Tokens whose dense scores are computed at once.
_BATCH_TOKENS = 4096
#: Tokens that a thread labels at a time.
_PIECE_TOKENS = 20_000
#: Most labels with features of pairs, whose numbers have 16 bits.
MAX_PAIR_LABELS = 255
_NONE = np.zeros(0)
_NO_LABELS = np.zeros(0, dtype=np.int32)


def scheme_constraints(classes: Sequence[Any], scheme: str | None, forbidden: Iterable[Any] = ()) -> Allowed:
    """What a scheme and pairs of forbidden neighbours allow, where None stands for the begin or end of a sequence.

    Some label must be able to begin a sequence and some to end it.
    """
    n, place = len(classes), {label: k for k, label in enumerate(classes)}
    if scheme is None:
        allowed = Allowed(np.ones(n, dtype=bool), np.ones((n, n), dtype=bool), np.ones(n, dtype=bool))
    else:
        allowed = allowed_tags(classes, scheme)
    for before, after in forbidden:
        strange = next((label for label in (before, after) if label is not None and label not in place), None)
        if strange is not None:
            raise PotentiaError(f"constraints names {strange!r:.40}, which is not a label.")
        if before is None:
            allowed.start[place[after]] = False
        elif after is None:
            allowed.end[place[before]] = False
        else:
            allowed.transitions[place[before], place[after]] = False
    if not (allowed.start.any() and allowed.end.any()):
        given = f"the scheme {scheme}" if scheme is not None else "constraints"
        raise PotentiaError(f"no label may begin or end a sequence in {given}.")
    return allowed


class AttributeLabels(NamedTuple):
    """Which labels, or pairs of labels, each attribute was seen with, as rows of a sparse matrix.

    Attributes:
        ptr: first feature of each attribute, and the number of features.
        label: of each feature, ascending within an attribute; before * L + after for pairs.
    """

    ptr: Ints
    label: Any

    @classmethod
    def of_codes(cls, code: Ints, n_attributes: int, n_labels: int) -> AttributeLabels:
        """Features from their codes, attribute * n_labels + label, ascending."""
        return cls.of_rows(*np.divmod(code, n_labels), n_attributes)

    @classmethod
    def of_rows(cls, owner: Ints, label: Any, n_attributes: int) -> AttributeLabels:
        """Features from the attribute and the label of each, ascending."""
        count = np.bincount(owner, minlength=n_attributes)
        return cls(np.concatenate([[0], np.cumsum(count)]), label.astype(np.uint16))

    @classmethod
    def full(cls, chosen: Bools, n_labels: int) -> AttributeLabels:
        """All labels of the chosen attributes, none of the others."""
        ptr = np.concatenate([[0], np.cumsum(np.where(chosen, n_labels, 0))])
        return cls(ptr, np.tile(np.arange(n_labels, dtype=np.uint16), np.count_nonzero(chosen)))

    @classmethod
    def none(cls, n_attributes: int) -> AttributeLabels:
        """No feature of any attribute."""
        return cls(np.zeros(n_attributes + 1, dtype=np.int64), np.zeros(0, dtype=np.uint16))

    @property
    def owner(self) -> Ints:
        """The attribute of each feature."""
        return np.repeat(np.arange(len(self.ptr) - 1), np.diff(self.ptr))


def _places(features: AttributeLabels, begin: Ints) -> Ints:
    """Where features are if those of each attribute begin there."""
    return np.arange(len(features.label)) + np.repeat(begin - features.ptr[:-1], np.diff(features.ptr))


@dataclass
class ChainLayout:
    """A vector of all weights: of attributes (rows, slots, then pairs), of transitions (L, L), of dense columns (D, L).

    Other models have another table in the place of transitions.

    Attributes:
        features, pair_features: of labels, and of pairs of labels.
        number: the new number of each attribute; those with rows come first.
        kernel: rows and slots as the kernels want them.
        n_labels, n_dense: L and D.
        table: shape of the transitions.
        n_attribute_weights: entries of rows, slots and pairs. size: entries of the vector.
    """

    features: AttributeLabels
    pair_features: AttributeLabels
    number: Any
    kernel: kernels.WeightLayout
    n_labels: int
    n_dense: int
    table: tuple[int, int]
    n_attribute_weights: int
    size: int

    @classmethod
    def of(
        cls,
        features: AttributeLabels,
        pair_features: AttributeLabels,
        n_labels: int,
        n_dense: int,
        table: tuple[int, int] | None = None,
    ) -> Self:
        """Rows for attributes with many labels, slots for the others."""
        table = (n_labels, n_labels) if table is None else table
        width = -(-n_labels // CHUNK) * CHUNK
        count = np.diff(features.ptr)
        with_row = count >= _ROW_SHARE * width
        order, n_rows = np.argsort(~with_row, kind="stable"), int(np.count_nonzero(with_row))
        number = np.empty(len(count), dtype=np.int32)
        number[order] = np.arange(len(order))
        slot_ptr = n_rows * n_labels + np.concatenate([[0], np.cumsum(count[order][n_rows:])])
        slot_label = features.label[~np.repeat(with_row, count)]
        pair_ptr = slot_ptr[-1] + np.concatenate([[0], np.cumsum(np.diff(pair_features.ptr)[order])])
        before, after = np.divmod(pair_features.label.astype(np.int32), n_labels)
        pair_code = np.empty(len(before), dtype=np.int32)
        pair_code[_places(pair_features, pair_ptr[number]) - pair_ptr[0]] = before * width + after
        kernel = kernels.WeightLayout(
            n_rows, n_labels, width, slot_ptr, slot_label, pair_ptr if len(pair_code) else pair_ptr[:0], pair_code
        )
        # what the last row is read with
        end = int(pair_ptr[-1]) + (width - n_labels if n_rows else 0)
        size = end + table[0] * table[1] + n_labels * n_dense
        return cls(features, pair_features, number, kernel, n_labels, n_dense, table, end, size)

    @property
    def place(self) -> Ints:
        """Where in the vector each feature is, those of labels, then those of pairs of labels."""
        kernel = self.kernel
        begin = np.concatenate([np.arange(kernel.n_rows) * self.n_labels, kernel.slot_ptr[:-1]])[self.number]
        places = _places(self.features, begin)
        in_row = np.repeat(self.number < kernel.n_rows, np.diff(self.features.ptr))
        places[in_row] = np.repeat(begin, np.diff(self.features.ptr))[in_row] + self.features.label[in_row]
        if not kernel.pair_ptr.size:
            return places
        return np.concatenate([places, _places(self.pair_features, kernel.pair_ptr[self.number])])

    def split(self, vector: Any) -> tuple[Any, Any, Any]:
        """Weights of attributes, of transitions (L, L) and of dense columns (D, L), as views."""
        first = self.n_attribute_weights
        second = first + self.table[0] * self.table[1]
        pairs = vector[first:second].reshape(self.table)
        return vector[:first], pairs, vector[second:].reshape(self.n_dense, self.n_labels)

    def join(self, state: Any, pairs: Any, dense: Any, dtype: Any = np.float64) -> Any:
        """The vector of these weights, `state` in the order of `place`; zero where no weight is."""
        vector = np.zeros(self.size, dtype=dtype)
        of_attributes, of_pairs, of_dense = self.split(vector)
        of_attributes[self.place] = state
        of_pairs[...], of_dense[...] = pairs, dense
        return vector

    def renumbered(self, tokens: TokenAttributes) -> TokenAttributes:
        """Tokens with attributes numbered as the layout says; the one after its last goes. Spends the tokens given."""
        item_ptr = np.zeros(len(tokens.item_ptr), dtype=np.int64)
        left = kernels.renumber(tokens, self.number, item_ptr)
        value = tokens.value[:left] if tokens.value.size else tokens.value
        return TokenAttributes(tokens.sequence_ptr, item_ptr, tokens.attribute[:left], value)

    def prepared(self, state: Mapping[str, Any], tokens: TokenAttributes) -> tuple[dict[str, Any], Floats]:
        """What the likelihood of a part needs besides its tokens, and what is observed."""
        ptr, labels = tokens.sequence_ptr, state["labels"]
        known = per_sequence(labels >= 0, ptr)
        told = known.copy()
        if state["choices"] is not None:
            np.add.at(told, np.searchsorted(ptr, state["choices"].token, side="right") - 1, 1)
        # without any label a sequence says nothing
        weight = np.where(told > 0, state["weight"], 0.0)
        partly = np.where(known < np.diff(ptr), weight, 0.0)
        work = int(ptr[-1]) * self.n_labels**2 + len(tokens.attribute)
        most = max(2, min(_MAX_SHARDS, _MAX_ENTRIES // self.size))
        own = {
            **{name: state[name] for name in ("labels", "allowed", "choices", "costs")},
            "weight": weight,
            "partial": partly,
            "shards": cut_shards(ptr, max(1, min(most, work // _SHARD_WORK))),
        }
        return own, _observed(tokens, state["dense"], labels, weight - partly, self)

    def tables(self, state: Mapping[str, Any], vector: Floats) -> Any:
        """The scores that a vector of all weights makes."""
        return ChainTables.of(self, vector, state["allowed"])


class ChainWeights(NamedTuple):
    """Learned weights: `state` of each of `features` and then `pair_features`, `pairs` (L, L), `dense` (D, L)."""

    features: AttributeLabels
    pair_features: AttributeLabels
    state: Floats
    pairs: Floats
    dense: Floats


class ChainTables(NamedTuple):
    """Weights as the kernels want them, `dense` (D, P), and which labels may follow which."""

    layout: ChainLayout
    flat: Floats
    lanes: Lanes
    dense: Floats
    allowed: Allowed

    @classmethod
    def of(cls, layout: ChainLayout, vector: Floats, allowed: Allowed) -> ChainTables:
        """The tables that a vector of all weights makes."""
        flat, pairs, dense = layout.split(vector)
        padded = np.zeros((layout.n_dense, layout.kernel.width))
        padded[:, : layout.n_labels] = dense
        pairs = np.where(allowed.transitions, pairs, -np.inf)
        return cls(layout, flat, make_lanes(pairs, allowed.start, allowed.end), padded, allowed)

    def starting_scores(
        self, rows: Any, n: int, choices: Choices | None = None, first: int = 0, full: bool = False
    ) -> Floats:
        """Scores of dense rows of n tokens from `first` on, flat rows of P, -inf for labels that are not allowed.

        Empty where all of them are zero, unless `full`.
        """
        width = self.layout.kernel.width
        if not (rows.size or full or choices is not None):
            return _NONE
        scores = (rows.astype(np.float64, copy=False) @ self.dense).ravel() if rows.size else np.zeros(n * width)
        if choices is not None:
            chosen = slice(*np.searchsorted(choices.token, [first, first + n]))
            allowed = choices.allowed[chosen]
            own = scores.reshape(-1, width)
            own[choices.token[chosen] - first, : allowed.shape[1]] += np.where(allowed, 0.0, -np.inf)
        return scores

    def partition(self, state: Mapping[str, Any], shard: tuple[int, int]) -> tuple[float, Floats]:
        """Value and gradient of sequences first .. last - 1: log Z, less that given the known labels."""
        (first, last), layout, tokens = shard, self.layout, TokenAttributes.of(state)
        n, width, gradient = layout.n_labels, layout.kernel.width, np.zeros(layout.size)
        d_flat, d_transitions, d_dense = layout.split(gradient)
        d_psi, d_pair, d_padded = np.zeros(n * width), np.zeros(n * width), np.zeros((layout.n_dense, width))
        ptr, value, passes = tokens.sequence_ptr, 0.0, [(_NO_LABELS, state["weight"], None, state["costs"])]
        if state["partial"][first:last].any():
            passes.append((state["labels"], -state["partial"], state["choices"], None))
        for labels, weight, choices, costs in passes:
            log_z = np.zeros(len(weight))
            for a, b, rows in batches(ptr, state["dense"], first, last, choices is not None or costs is not None):
                rows = rows.astype(np.float64)
                scores = self.starting_scores(rows, int(ptr[b] - ptr[a]), choices, int(ptr[a]), costs is not None)
                if costs is not None:  # of wrong labels, so that they must score less by as much
                    right = state["labels"][ptr[a] : ptr[b]]
                    wrong = (right[:, None] != np.arange(n)) & (right >= 0)[:, None]
                    scores.reshape(-1, width)[:, :n] += np.where(wrong, costs[right][:, None], 0.0)
                kernels.sum_up(
                    tokens, layout.kernel, self.flat, self.lanes, labels, weight, a, b, scores, d_flat, d_psi, d_pair,
                    log_z,
                )  # fmt: skip
                refuse_infeasible(log_z[a:b], state["first"] + a)
                if rows.size:
                    d_padded += rows.T @ scores.reshape(len(rows), -1)
            value += float(weight[first:last] @ log_z[first:last])
        d_transitions[...] = (self.lanes.psi * d_psi + d_pair).reshape(n, width)[:, :n]
        d_dense[...] = d_padded[:, :n]
        return value, gradient


def per_sequence(chosen: Any, ptr: Ints) -> Ints:
    """How many tokens of each sequence are chosen."""
    counts: Ints = np.diff(np.concatenate([[0], np.cumsum(chosen)])[ptr])
    return counts


def cut_shards(sequence_ptr: Ints, n: int) -> list[tuple[int, int]]:
    """At most n ranges of sequences with about as many tokens each."""
    if n == 1 and len(sequence_ptr) > 1:
        return [(0, len(sequence_ptr) - 1)]
    wanted = int(sequence_ptr[-1]) * np.arange(1, n) // max(n, 1)
    cuts = [0, *np.searchsorted(sequence_ptr, wanted).tolist(), len(sequence_ptr) - 1]
    return [(a, b) for a, b in pairwise(cuts) if a < b]


def batches(sequence_ptr: Ints, dense: Any, first: int, last: int, bounded: bool = False) -> list[tuple[int, int, Any]]:
    """Ranges of sequences and their dense rows, of bounded size; one range without rows if there are no columns,
    unless `bounded`."""
    if not (dense.size or bounded):
        return [(first, last, _NONE)]
    ranges = []
    for b in range(first + 1, last + 1):
        if b == last or sequence_ptr[b + 1] - sequence_ptr[first] > _BATCH_TOKENS:
            ranges.append((first, b, dense[sequence_ptr[first] : sequence_ptr[b]]))
            first = b
    return ranges


# -- the likelihood of a part's sequences --------------------------------------------------------------------

# A part is laid out once; then its -log-likelihood is `log_partition` minus the product of the weights with what is
# observed. Sequences of which some labels are not known (-1) count with the sum over these. What is summed in which
# order depends on the data only, not on the number of threads.


def lay_out(_: Any, state: Mapping[str, Any], layout: ChainLayout) -> tuple[Any, tuple[Floats, Floats]]:
    """Put a part's tokens into the layout; what is observed, and the curvature, as vectors of all weights."""
    tokens = TokenAttributes.of(state)
    value = tokens.value.copy() if tokens.value.size else tokens.value
    tokens = layout.renumbered(tokens._replace(attribute=tokens.attribute.copy(), value=value))
    own, observed = layout.prepared(state, tokens)
    new = {"dense": state["dense"], "first": state["first"], "layout": layout, **tokens._asdict(), **own}
    return new, (observed, curvature_of(tokens, state["dense"], new["weight"], layout))


def log_partition(
    _: Any, state: Mapping[str, Any], vector: Floats, threads: int | None
) -> tuple[Any, tuple[float, Floats]]:
    """The sum of log Z of a part's sequences, given what is known of partly labelled ones, and its gradient."""
    value, gradient, partition = 0.0, None, partial(state["layout"].tables(state, vector).partition, state)
    for of_shard, slope in iterate_items(partition, state["shards"], thread_count(threads)):
        value += of_shard
        gradient = slope if gradient is None else np.add(gradient, slope, out=gradient)
        del slope  # before the next one is made
    return state, (value, np.zeros(len(vector)) if gradient is None else gradient)


def batches_of(_: Any, state: Mapping[str, Any]) -> tuple[Any, list[tuple[int, int, int]]]:
    """Ranges of a part's sequences for stochastic steps, of which there are few if a step costs much; and sizes."""
    ptr, layout = state["sequence_ptr"], state["layout"]
    affordable = len(state["attribute"]) * layout.n_labels // (4 * layout.size)
    ends = cut_shards(ptr, max(1, min(len(ptr) - 1, _MAX_BATCHES, max(_MIN_BATCHES, affordable))))
    return state, [(a, b, b - a) for a, b in ends]


def batch_gradient(_: Any, state: Mapping[str, Any], vector: Floats, first: int, last: int) -> tuple[Any, Floats]:
    """The gradient of -log p of sequences first .. last - 1, by all weights."""
    layout, tokens = state["layout"], TokenAttributes.of(state)
    gradient = layout.tables(state, vector).partition(state, (first, last))[1]
    weight = np.zeros(len(state["weight"]))
    weight[first:last] = (state["weight"] - state["partial"])[first:last]
    gradient -= _observed(tokens, state["dense"], state["labels"], weight, layout)
    return state, gradient


def _observed(tokens: TokenAttributes, dense: Any, labels: Any, weight: Floats, layout: ChainLayout) -> Floats:
    """What the log-likelihood's numerator is linear in: counts of what labelled sequences have."""
    vector = np.zeros(layout.size)
    state, pairs, of_columns = layout.split(vector)
    kernels.observe(tokens, layout.kernel, labels, weight, 0, len(weight), state, pairs)
    if dense.size:
        per_token = np.repeat(weight, np.diff(tokens.sequence_ptr))
        for y in range(layout.n_labels):
            chosen = np.flatnonzero((labels == y) & (per_token != 0.0))
            of_columns[:, y] = per_token[chosen] @ dense[chosen]
    return vector


def curvature_of(tokens: TokenAttributes, dense: Any, weight: Floats, layout: ChainLayout) -> Floats:
    """Second derivatives at zero weights, divided by p (1 - p) for p = 1 / L, without what labels share."""
    kernel, ptr, vector = layout.kernel, tokens.sequence_ptr, np.zeros(layout.size)
    state, pairs, of_columns = layout.split(vector)
    per_token = np.repeat(weight, np.diff(ptr))
    sums = np.zeros(len(layout.number))
    kernels.add_squares(tokens, per_token, sums)
    in_rows, in_slots = int(kernel.slot_ptr[0]), int(kernel.slot_ptr[-1])
    state[:in_rows] = np.repeat(sums[: kernel.n_rows], kernel.stride)
    state[in_rows:in_slots] = np.repeat(sums[kernel.n_rows :], np.diff(kernel.slot_ptr))
    if kernel.pair_ptr.size:
        state[in_slots : kernel.pair_ptr[-1]] = (1.0 / layout.n_labels) * np.repeat(sums, np.diff(kernel.pair_ptr))
    pairs[...] = (1.0 / layout.n_labels) * per_token.sum()
    for a, b, rows in batches(ptr, dense, 0, len(weight)) if dense.size else ():
        of_columns += (per_token[ptr[a] : ptr[b]] @ rows.astype(np.float64) ** 2)[:, None]
    return vector


def refuse_infeasible(score: Floats, first: int = 0) -> None:
    """Refuse sequences of which no labelling is allowed; messages number them from `first` on."""
    if not len(score) or score.min() > -np.inf:
        return
    if np.isnan(score).any():
        raise PotentiaError(f"the scores of sequence {first + int(np.argmax(np.isnan(score)))} are not finite.")
    raise InfeasibleError(f"sequence {first + int(np.argmin(score))} has no labelling that is allowed.")


# -- predicting ----------------------------------------------------------------------------------------------


class EncodedSequences(NamedTuple):
    """Sequences as the tables number them, and labels that are possible; messages number them from `first` on."""

    tables: ChainTables
    tokens: TokenAttributes
    dense: Any
    first: int = 0
    choices: Choices | None = None

    def in_pieces(self, function: Callable[[int, int, Floats], None], threads: int, full: bool = False) -> None:
        """Call function(first, last, scores to start from) for ranges of sequences, on some threads."""
        ptr, choices = self.tokens.sequence_ptr, self.choices

        def piece(ends: tuple[int, int]) -> None:
            for a, b, rows in batches(ptr, self.dense, *ends, choices is not None):
                n, begin = int(ptr[b] - ptr[a]), int(ptr[a])
                function(a, b, self.tables.starting_scores(rows, n, choices, begin, full))

        map_items(piece, cut_shards(ptr, 1 + int(ptr[-1]) // _PIECE_TOKENS), threads)


def best_labels(given: EncodedSequences, threads: int) -> Any:
    """The most likely labels of all tokens [Viterbi]."""
    tables, tokens, ptr = given.tables, given.tokens, given.tokens.sequence_ptr
    labels, score = np.zeros(int(ptr[-1]), dtype=np.int32), np.zeros(len(ptr) - 1)

    def piece(a: int, b: int, scores: Floats) -> None:
        kernels.best_labels(tokens, tables.layout.kernel, tables.flat, tables.lanes, a, b, scores, labels, score)

    given.in_pieces(piece, threads)
    refuse_infeasible(score, given.first)
    return labels


def marginals(given: EncodedSequences, threads: int, feasible: bool = True) -> tuple[Floats, Floats]:
    """Probabilities of all labels (tokens, L) and log Z of each sequence.

    Sequences without a labelling are refused, or log Z is -inf if they need not be `feasible`.
    """
    tables, tokens, ptr = given.tables, given.tokens, given.tokens.sequence_ptr
    n_labels, log_z, weight = tables.layout.n_labels, np.zeros(len(ptr) - 1), np.ones(len(ptr) - 1)
    mu = np.zeros((int(ptr[-1]), n_labels))

    def piece(a: int, b: int, scores: Floats) -> None:
        kernels.sum_up(
            tokens, tables.layout.kernel, tables.flat, tables.lanes, _NO_LABELS, weight, a, b, scores, _NONE, _NONE,
            _NONE, log_z,
        )  # fmt: skip
        if feasible:
            refuse_infeasible(log_z[a:b], given.first + a)
        mu[ptr[a] : ptr[b]] = scores.reshape(-1, tables.layout.kernel.width)[:, :n_labels]

    given.in_pieces(piece, threads, full=True)
    return mu, log_z


def k_best_labels(given: EncodedSequences, k: int, threads: int) -> list[list[tuple[list[int], float]]]:
    """The k most likely labellings of each sequence with their log-probabilities, best first."""
    tables, tokens, log_z = given.tables, given.tokens, marginals(given, threads)[1]
    answers: list[list[tuple[list[int], float]]] = []
    for number, (begin, end) in enumerate(pairwise(tokens.sequence_ptr.tolist())):
        if begin == end:
            answers.append([([], 0.0)])
            continue
        labels, score = np.empty((k, end - begin), dtype=np.int64), np.empty(k)
        pair, stride = pair_scores(tables, tokens, begin, end)
        sequences.k_best_states(tables.lanes, pair, stride, token_scores(given, begin, end), labels, score)
        log_p = (score - log_z[number]).tolist()
        answers.append([(y.tolist(), p) for y, p in zip(labels, log_p, strict=True) if p > -np.inf])
    return answers


def token_scores(given: EncodedSequences, begin: int, end: int) -> Floats:
    """Scores of all labels of some tokens, (tokens, L)."""
    tables, n = given.tables, end - begin
    scores = tables.starting_scores(given.dense[begin:end], n, full=True)
    kernels.score_tokens(given.tokens, tables.layout.kernel, tables.flat, begin, end, scores)
    return scores.reshape(n, -1)[:, : tables.layout.n_labels]


def pair_scores(tables: ChainTables, tokens: TokenAttributes, begin: int, end: int) -> tuple[Floats, int]:
    """Scores of neighbouring labels, flat, and how far those of one step are from the next: 0 where they are shared."""
    n, width, lanes = tables.layout.n_labels, tables.layout.kernel.width, tables.lanes
    if not tables.layout.kernel.pair_ptr.size:
        return lanes.pair.reshape(n, width)[:, :n].ravel(), 0
    padded = np.zeros((end - begin) * n * width)
    kernels.score_pairs(tokens, tables.layout.kernel, tables.flat, lanes, begin, end - begin, padded)
    return padded.reshape(-1, n, width)[:, :, :n].ravel(), n * n


def likeliest_labels(sequence_ptr: Ints, marginals: Floats, allowed: Allowed) -> Ints:
    """The likeliest label of each token or, where those are not allowed together, the allowed labels of a sequence
    whose probabilities have the largest sum, which is the expected number of right ones."""
    labels = marginals.argmax(axis=1) if len(marginals) else np.zeros(0, dtype=np.int64)
    bad = np.flatnonzero(forbidden_labels(sequence_ptr, labels, allowed))
    lanes = make_lanes(np.where(allowed.transitions, 0.0, -np.inf), allowed.start, allowed.end)
    for number in np.unique(np.searchsorted(sequence_ptr, bad, side="right") - 1).tolist():
        begin, end = sequence_ptr[number : number + 2].tolist()
        n, zeros = end - begin, np.zeros(marginals.shape[1])
        chain = sequences.PaddedChains(
            marginals[begin:end].ravel(), 0, len(zeros), n, np.array([n]), zeros, zeros, lanes
        )
        sequences.best_labels(chain, labels[None, begin:end], np.empty(1))
    return labels
