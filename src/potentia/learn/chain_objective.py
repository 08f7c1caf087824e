"""The log-likelihood of chains over attributes, and its gradient, in shards that threads share out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..base.schema import Array, Count, Items, Named, Number, Rule, Schema
from ..base.threads import iterate_items
from ..base.types import Floats, InfeasibleError, Ints, PotentiaError
from ..features.attributes import AttributeIndex, presence_name
from ..kernels import attributes as kernels
from ..kernels.lanes import Lanes, make_lanes
from .chain_layout import MAX_LABELS, AttributeLabels, ChainLayout, Constraints, Label

#: Multiplications that a shard should have, so that handing it to a thread pays.
_SHARD_WORK = 2_000_000
#: Most shards, and most entries of their gradients together.
_MAX_SHARDS, _MAX_ENTRIES = 16, 2**24
#: Tokens whose dense scores are computed at once.
_BATCH_TOKENS = 4096
NONE = np.zeros(0)
NO_LABELS = np.zeros(0, dtype=np.int32)


class TokenBlock(NamedTuple):
    """Sequences of tokens with attributes numbered as a layout says, and dense columns (tokens, D).

    `first`: the number of the first sequence in messages.
    """

    tokens: kernels.TokenAttributes
    dense: Any
    first: int = 0

    @property
    def n_sequences(self) -> int:
        """Number of sequences."""
        return len(self.tokens.sequence_ptr) - 1

    def cut(self, n: int) -> list[tuple[int, int]]:
        """At most n ranges of sequences with about as many tokens each."""
        ends = self.tokens.sequence_ptr
        wanted = int(ends[-1]) * np.arange(1, n) // max(n, 1)
        cuts = [0, *np.searchsorted(ends, wanted).tolist(), self.n_sequences]
        return [(a, b) for a, b in pairwise(cuts) if a < b]


class ChainTables(NamedTuple):
    """Weights as the kernels want them."""

    layout: ChainLayout
    flat: Floats
    lanes: Lanes
    dense: Floats

    @classmethod
    def of(cls, layout: ChainLayout, vector: Floats, allowed: Constraints) -> ChainTables:
        """Of a vector of all weights."""
        flat, pairs, dense = layout.split(vector)
        width = layout.kernel.width
        padded = np.zeros((layout.n_dense, width))
        padded[:, : layout.n_labels] = dense
        return cls(
            layout,
            flat,
            make_lanes(np.where(allowed.transitions, pairs, -np.inf), allowed.start, allowed.end),
            padded,
        )


class _Slopes(NamedTuple):
    """Gradients of a shard: of rows and slots, of psi (L * P,), of transitions (L * P,), of dense columns (D, P)."""

    flat: Floats
    psi: Floats
    pair: Floats
    dense: Floats


class ChainLikelihood:
    """-log-likelihood of the known labels of sequences as a function of the vector of all weights.

    It is `log_partition` minus the product of the weights with `observed`. Sequences of which some labels are not known
    (-1) count with the sum over these. What is summed in which order depends on the data only, not on the number of
    threads.

    Args:
        chains: the data.
        labels: of all tokens, -1 where not known.
        weight: of each sequence.
        layout: of the vector.
        allowed: which labels may follow which.
    """

    def __init__(
        self,
        chains: TokenBlock,
        labels: Any,
        weight: Floats,
        layout: ChainLayout,
        allowed: Constraints,
    ) -> None:
        self.chains, self.labels, self.layout, self.allowed = chains, labels, layout, allowed
        known = _known(chains.tokens.sequence_ptr, labels)
        # without any label a sequence says nothing
        self.weight = np.where(known > 0, weight, 0.0)
        self.partial = np.where(known < np.diff(chains.tokens.sequence_ptr), self.weight, 0.0)
        work = int(chains.tokens.sequence_ptr[-1]) * layout.n_labels**2 + len(chains.tokens.attribute)
        most = max(2, min(_MAX_SHARDS, _MAX_ENTRIES // layout.size))
        self.shards = chains.cut(max(1, min(most, work // _SHARD_WORK)))

    def log_partition(self, vector: Floats, threads: int) -> tuple[float, Floats]:
        """The sum of log Z, given what is known of partly labelled sequences, and its gradient."""
        tables = ChainTables.of(self.layout, vector, self.allowed)
        value, gradient = 0.0, np.zeros(self.layout.size)
        state, pairs, dense = self.layout.split(gradient)
        n, width = self.layout.n_labels, self.layout.kernel.width
        psi = tables.lanes.psi.reshape(n, width)
        for own, slopes in iterate_items(lambda shard: self._of_shard(tables, *shard), self.shards, threads):
            value += own
            state += slopes.flat
            pairs += (psi * slopes.psi.reshape(n, width) + slopes.pair.reshape(n, width))[:, :n]
            dense += slopes.dense[:, :n]
        return value, gradient

    def curvature(self) -> Floats:
        """Second derivatives at zero weights, divided by p (1 - p) for p = 1 / L, without what labels share."""
        tokens, kernel, p = self.chains.tokens, self.layout.kernel, 1.0 / self.layout.n_labels
        vector = np.zeros(self.layout.size)
        state, pairs, dense = self.layout.split(vector)
        per_token = np.repeat(self.weight, np.diff(tokens.sequence_ptr))
        sums = np.zeros(len(self.layout.order))
        kernels.add_squares(tokens, per_token, sums)
        state[: kernel.n_rows * kernel.width] = np.repeat(sums[: kernel.n_rows], kernel.width)
        state[kernel.n_rows * kernel.width :] = np.repeat(sums[kernel.n_rows :], np.diff(kernel.slot_ptr))
        pairs[...] = p * per_token.sum()
        if self.layout.n_dense:
            for a, b in batches(self.chains, 0, self.chains.n_sequences):
                mine = slice(tokens.sequence_ptr[a], tokens.sequence_ptr[b])
                dense += (per_token[mine] @ self.chains.dense[mine].astype(np.float64) ** 2)[:, None]
        return vector

    def _of_shard(self, tables: ChainTables, first: int, last: int) -> tuple[float, _Slopes]:
        """Value and gradients of sequences first .. last - 1."""
        n, width = self.layout.n_labels, self.layout.kernel.width
        slopes = _Slopes(
            np.zeros(self.layout.n_states_weights),
            np.zeros(n * width),
            np.zeros(n * width),
            np.zeros((self.layout.n_dense, width)),
        )
        value = self._pass(tables, NO_LABELS, self.weight, first, last, slopes)
        if self.partial[first:last].any():
            value += self._pass(tables, self.labels, -self.partial, first, last, slopes)
        return value, slopes

    def _pass(
        self, tables: ChainTables, labels: Any, weight: Floats, first: int, last: int, slopes: _Slopes
    ) -> float:
        """sum of weight log Z, given labels or not, with gradients added to `slopes`."""
        tokens, log_z = self.chains.tokens, np.zeros(self.chains.n_sequences)
        for a, b in batches(self.chains, first, last):
            rows, scores = dense_scores(self.chains, tables, a, b)
            kernels.sum_up(
                tokens, self.layout.kernel, tables.flat, tables.lanes, labels, weight, a, b, scores, slopes.flat,
                slopes.psi, slopes.pair, log_z,
            )  # fmt: skip
            refuse_infeasible(log_z[a:b], self.chains.first + a)
            if rows.size:
                slopes.dense[...] += rows.T @ scores.reshape(len(rows), -1)
        return float(weight[first:last] @ log_z[first:last])

    def observed(self) -> Floats:
        """What the log-likelihood's numerator is linear in: counts of what labelled sequences have."""
        vector = np.zeros(self.layout.size)
        state, pairs, dense = self.layout.split(vector)
        tokens = self.chains.tokens
        whole = self.weight - self.partial
        kernels.observe(
            tokens, self.layout.kernel, self.labels, whole, 0, self.chains.n_sequences, state, pairs
        )
        if self.chains.dense.size:
            per_token = np.repeat(whole, np.diff(tokens.sequence_ptr))
            for y in range(self.layout.n_labels):
                mine = np.flatnonzero((self.labels == y) & (per_token != 0.0))
                dense[:, y] = per_token[mine] @ self.chains.dense[mine]
        return vector


def batches(chains: TokenBlock, first: int, last: int) -> list[tuple[int, int]]:
    """Ranges of sequences of bounded size where there are dense columns, else one."""
    if not chains.dense.size:
        return [(first, last)]
    ends = chains.tokens.sequence_ptr
    found, a = [], first
    for b in range(first + 1, last + 1):
        if b == last or ends[b + 1] - ends[a] > _BATCH_TOKENS:
            found.append((a, b))
            a = b
    return found


def dense_scores(chains: TokenBlock, tables: ChainTables, first: int, last: int) -> tuple[Any, Floats]:
    """Dense rows of the tokens of sequences first .. last - 1, and their scores, flat; empty without dense columns."""
    if not chains.dense.size:
        return NONE, NONE
    ends = chains.tokens.sequence_ptr
    rows = chains.dense[ends[first] : ends[last]].astype(np.float64)
    return rows, (rows @ tables.dense).ravel()


def scores_of(chains: TokenBlock, tables: ChainTables, begin: int, end: int) -> Floats:
    """Scores of tokens begin .. end - 1, (tokens, width)."""
    kernel = tables.layout.kernel
    scores = np.zeros((end - begin, kernel.width))
    if chains.dense.size:
        scores += chains.dense[begin:end].astype(np.float64) @ tables.dense
    kernels.score_tokens(chains.tokens, kernel, tables.flat, begin, end, scores.ravel())
    return scores


def refuse_infeasible(score: Floats, first: int = 0) -> None:
    """Refuse sequences of which no labelling is allowed; messages number them from `first` on."""
    if np.isnan(score).any():
        raise PotentiaError(
            f"the scores of sequence {first + int(np.argmax(np.isnan(score)))} are not finite."
        )
    if np.any(score == -np.inf):
        raise InfeasibleError(
            f"sequence {first + int(np.argmin(score))} has no labelling that the scheme allows."
        )


def _known(sequence_ptr: Ints, labels: Any) -> Ints:
    """How many labels of each sequence are known."""
    ends = np.concatenate([[0], np.cumsum(labels >= 0)])
    counted: Ints = ends[sequence_ptr[1:]] - ends[sequence_ptr[:-1]]
    return counted


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
