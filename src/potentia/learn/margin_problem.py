"""The structural SVM's data as kernels want them: rows of features sorted by example, truth, Delta and metric."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..base.types import ArrayLike, Floats, Ints, PotentiaError
from ..graph.scores import Scores
from ..graph.structure import Graph
from ..graph.union import Union
from ..inference.base import Inference
from ..kernels.frank_wolfe import (
    Design,
    MarginChains,
    MarginDual,
    WorkingSet,
    chain_answers,
    chain_pass,
    entries_of,
    fill_scores,
    step_batch,
)
from ..potentials.base import Potential, as_affine
from ..potentials.problem import NO_LABELS
from .part import Part, are_own, delta_tables


def begin_margin(part: Part, state: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[Any, None]:
    """A state that has the settings, which `problem_of` reads: all else follows from them."""
    return settings, None


def problem_of(part: Part, state: Mapping[str, Any]) -> tuple[MarginProblem, Oracle]:
    """A part's flat arrays and its oracle."""

    def make() -> tuple[MarginProblem, Oracle]:
        """The problem of the part's examples, and what answers it."""
        delta = make_delta(part, state["delta"])
        problem = MarginProblem(state["potentials"], part, delta, state["ridge"], state["n_examples"])
        return problem, make_oracle(problem, state["method"], state["batch"])

    return part.cached("margin", make)


class Block(NamedTuple):
    """Where a kind lies: its parameters first : first + columns * outputs, its regions' scores at `at` (N,)."""

    first: int
    columns: int
    outputs: int
    at: Ints


class MarginProblem:
    """min over w of sum_j eta_j / 2 w_j^2 + 1/n sum_k [max_y Delta_k(y) + F_k(y) - F_k(y^k)].

    w holds the tables of all kinds; eta_j = ridge + (the potential's own ridge of row j) / n. `data` may be a part of
    the training set, which may lack a kind; n counts all examples.

    Attributes:
        data: the training set, or a part of it.
        delta: per kind (N, K), or None if zero.
        counts: per kind how many regions each example has.
        blocks: where each kind lies in the flat arrays.
        design: the flat arrays.
        true_loss: Delta of every example's own labels.
        region_ptr: example k owns regions region_ptr[k] : region_ptr[k + 1], kinds one after another.
        region_place: per kind the number of each region in that order.
    """

    def __init__(
        self,
        potentials: Mapping[str, Potential],
        data: Part,
        delta: Mapping[str, Floats | None],
        ridge: float,
        n_all: int,
    ) -> None:
        self.potentials, self.data, self.delta = potentials, data, delta
        self.counts = {kind: _counts(data, kind) for kind in potentials}
        self.n_examples = len(next(iter(self.counts.values())))
        self.n_all = n_all
        self.eta, self.blocks, self.design = self._flatten(ridge)
        self.true_loss = self._true_loss()
        self.region_ptr, self.region_place = self._number_regions()

    def _flatten(self, ridge: float) -> tuple[Floats, dict[str, Block], Design]:
        """All kinds' rows in one CSR sorted by example, kinds in order within an example."""
        rows = {kind: self._rows(kind) for kind in self.potentials}
        example = np.concatenate([owner for _, owner, _ in rows.values()])
        order = np.argsort(example, kind="stable")
        height = [x.shape[0] for x, _, _ in rows.values()]
        width = np.repeat([self.potentials[kind].n_outputs_ for kind in rows], height)[order]
        at = np.cumsum(width) - width
        where = np.empty_like(at)
        where[order] = at
        blocks, eta = self._blocks(rows, np.split(where, np.cumsum(height)[:-1]), ridge)
        features = _stack([x for x, _, _ in rows.values()], list(blocks.values()))[order]
        design = Design(
            row_ptr=np.searchsorted(example[order], np.arange(self.n_examples + 1)),
            feature_ptr=features.indptr.astype(np.int64),
            base=features.indices.astype(np.int64),
            value=np.ascontiguousarray(features.data, dtype=np.float64),
            width=width,
            at=at,
            metric=1.0 / (eta * self.n_all),
            truth=self._truth(blocks, int(width.sum())),
        )
        return eta, blocks, design

    def _blocks(
        self, rows: Mapping[str, tuple[Any, Ints, Ints]], where: Sequence[Ints], ridge: float
    ) -> tuple[dict[str, Block], Floats]:
        """Each kind's block, given where its rows' scores lie, and eta of all parameters."""
        blocks: dict[str, Block] = {}
        etas, first = [], 0
        for (kind, (x, _, row_of)), places in zip(rows.items(), where, strict=True):
            columns, k = x.shape[1], self.potentials[kind].n_outputs_
            blocks[kind] = Block(first, columns, k, places[row_of])
            eta = ridge + as_affine(kind, self.potentials[kind]).own_ridge(columns) / self.n_all
            etas.append(np.repeat(eta, k))
            first += columns * k
        return blocks, np.concatenate(etas)

    def _rows(self, kind: str) -> tuple[Any, Ints, Ints]:
        """Features of the kind's rows (CSR), the example of each row, and the row of each region.

        Without features all regions of an example share one row.
        """
        from scipy import sparse

        potential, counts = self.potentials[kind], self.counts[kind]
        design = as_affine(kind, potential).design
        present = kind in self.data.shapes
        x = self.data.features[kind] if present else np.zeros((0, potential.n_features_))
        owner = np.repeat(np.arange(self.n_examples), counts)
        if not potential.shared and x.shape[1] > 0:
            return sparse.csr_array(design(x[:])), owner, np.arange(len(owner))
        holders = np.flatnonzero(counts)
        return (
            sparse.csr_array(design(np.zeros((len(holders), x.shape[1])))),
            holders,
            np.searchsorted(holders, owner),
        )

    def _truth(self, blocks: Mapping[str, Block], size: int) -> Floats:
        """Indicators of the labels' configurations in the layout of the scores."""
        truth = np.zeros(size)
        for kind, block in blocks.items():
            np.add.at(truth, block.at + self._targets(kind), 1.0)
        return truth

    def _targets(self, kind: str) -> Ints:
        """Index of every region's true configuration; none if the part lacks the kind."""
        return self.data.targets.get(kind, NO_LABELS)

    def _true_loss(self) -> Floats:
        """Delta of every example's own labels, (n_examples,)."""
        losses = np.zeros(self.n_examples)
        for kind, delta in self.delta.items():
            if delta is not None:
                of_truth = delta[np.arange(len(delta)), self.data.targets[kind]]
                owner = np.repeat(np.arange(self.n_examples), self.counts[kind])
                losses += np.bincount(owner, of_truth, minlength=self.n_examples)
        return losses

    def _number_regions(self) -> tuple[Ints, dict[str, Ints]]:
        """Regions sorted by example: offsets of the examples, and the place of every kind's regions."""
        owner = np.concatenate([np.repeat(np.arange(self.n_examples), c) for c in self.counts.values()])
        place = np.empty(len(owner), dtype=np.int64)
        place[np.argsort(owner, kind="stable")] = np.arange(len(owner))
        cuts = np.cumsum([c.sum() for c in self.counts.values()])[:-1]
        ptr = np.concatenate([[0], np.cumsum(sum(self.counts.values()))])
        return ptr, dict(zip(self.counts, np.split(place, cuts), strict=True))

    def truth_entries(self) -> Ints:
        """The flat entry of every region's true configuration, in the order of `region_place`."""
        entries = np.empty(self.region_ptr[-1], dtype=np.int64)
        for kind, block in self.blocks.items():
            entries[self.region_place[kind]] = block.at + self._targets(kind)
        return entries

    def region_entries(self) -> tuple[Ints, Ints]:
        """The first flat entry of every region's scores and how many they are, in the order of `region_place`."""
        first, width = np.empty((2, self.region_ptr[-1]), dtype=np.int64)
        for kind, block in self.blocks.items():
            first[self.region_place[kind]], width[self.region_place[kind]] = block.at, block.outputs
        return first, width

    def chains(self) -> MarginChains | None:
        """The examples as chains of one number of states, if that is what they all are."""
        chain_kinds = _chain_kinds(self.data)
        if chain_kinds is None:
            return None
        node, pair = chain_kinds
        lengths = self.counts[node]
        last = np.cumsum(lengths) - 1
        pair_at = np.zeros(int(lengths.sum()), dtype=np.int64)
        inner = np.ones(len(pair_at), dtype=bool)
        inner[last] = False
        pair_delta = np.zeros((0, 0))
        if pair is not None:
            pair_at[inner] = self.blocks[pair].at
            if self.delta[pair] is not None:
                pair_delta = np.zeros((len(pair_at), self.blocks[pair].outputs))
                pair_delta[inner] = self.delta[pair]
        node_delta = self.delta[node]
        return MarginChains(
            variable_ptr=np.concatenate([[0], np.cumsum(lengths)]),
            node_at=self.blocks[node].at,
            pair_at=pair_at,
            node_delta=np.zeros((0, 0)) if node_delta is None else node_delta,
            pair_delta=pair_delta,
        )


def write_parameters(potentials: Mapping[str, Potential], w: Floats) -> dict[str, Potential]:
    """Copies of the potentials with their shares of the parameters, the tables of all kinds one after another."""
    written, first = {}, 0
    for kind, potential in potentials.items():
        written[kind] = copy.deepcopy(potential)
        columns = as_affine(kind, potential).design(np.zeros((1, potential.n_features_))).shape[1]
        size = columns * potential.n_outputs_
        as_affine(kind, written[kind]).set_table(w[first : first + size].reshape(columns, potential.n_outputs_))
        first += size
    return written


def _stack(features: Sequence[Any], blocks: Sequence[Block]) -> Any:
    """Rows of all kinds below each other, their columns replaced by the places of the columns' parameters."""
    from scipy import sparse

    columns = [x.indices.astype(np.int64) * b.outputs + b.first for x, b in zip(features, blocks, strict=True)]
    ptr = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(x.indptr) for x in features]))])
    width = max(1, *(b.first + b.columns * b.outputs for b in blocks))
    parts = np.concatenate([x.data for x in features]), np.concatenate(columns), ptr
    return sparse.csr_array(parts, shape=(len(ptr) - 1, width))


def _counts(data: Part, kind: str) -> Ints:
    """Regions of a kind in every example."""
    parts = [
        np.diff(shard.union.region_ptr[kind])
        if kind in shard.union.region_ptr
        else np.zeros(len(shard.union.parts), dtype=np.int64)
        for shard in data.shards
    ]
    return np.concatenate(parts)


def _chain_kinds(data: Part) -> tuple[str, str | None] | None:
    """The single-variable and the pair kind if every example is a chain 0 - 1 - 2 - ... of equal state counts."""
    singles = [kind for kind, shape in data.shapes.items() if len(shape) == 1]
    pairs = [kind for kind, shape in data.shapes.items() if len(shape) == 2]
    if len(singles) != 1 or len(pairs) > 1 or len(singles) + len(pairs) < len(data.shapes):
        return None
    node, pair = singles[0], pairs[0] if pairs else None
    if pair is not None and data.shapes[pair] != data.shapes[node] * 2:
        return None
    known: set[int] = set()
    for shard in data.shards:
        for graph in shard.union.parts:
            if id(graph) in known:
                continue
            known.add(id(graph))
            n = graph.n_variables
            if not np.array_equal(graph.scopes.get(node, np.zeros((0, 1))).ravel(), np.arange(n)):
                return None
            edges = np.zeros((0, 2)) if pair is None else graph.scopes.get(pair, np.zeros((0, 2)))
            path = np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)
            if not np.array_equal(edges.reshape(-1, 2), path):
                return None
    return node, pair


def make_delta(part: Part, delta: Any) -> dict[str, Floats | None]:
    """Tables of Delta per kind (N, K): Hamming times the variables' weights, or a user's."""
    by_kind = delta_tables(part, delta)
    if delta != "hamming":
        return by_kind
    held = sum(len(table) for table in by_kind.values() if table is not None)
    n_variables = sum(shard.graph.n_variables for shard in part.shards)
    if held < n_variables:
        raise PotentiaError(
            f"delta='hamming' needs a single-variable region for every variable; {n_variables - held} have none."
        )
    tables = {kind: None if table is None else table[:] for kind, table in by_kind.items()}
    for kind, table in tables.items():
        weights = part.weights[kind]
        if table is not None and weights is not None:
            table *= weights[:, None]
    return tables


#: Marginals of a relaxation this close to 0 or 1 are 0 or 1; its solver is no more precise.
_WHOLE = 1e-7


class ChainOracle:
    """Finds the best labellings of chains by Viterbi; a whole pass is one call of a kernel."""

    #: Passes with remembered labellings that are worth their time after each pass with new ones.
    revisits = 2

    def __init__(self, problem: MarginProblem, chains: MarginChains) -> None:
        self.problem, self.chains = problem, chains
        self.n_states = int(problem.data.shards[0].graph.n_states[0])

    def answers(self, w: Floats) -> tuple[Floats, Floats]:
        """Indicators (flat, in the layout of the scores) of all examples' answers at w, and their Delta (n,)."""
        s, losses = np.empty(len(self.problem.design.truth)), np.empty(self.problem.n_examples)
        chain_answers(self.problem.design, w, self.chains, self.n_states, s, losses)
        return s, losses

    def descend(self, dual: MarginDual, ws: WorkingSet, rng: np.random.Generator) -> None:
        """One pass over all examples in random order: each is answered and makes a step."""
        order = rng.permutation(self.problem.n_examples)
        chain_pass(self.problem.design, dual, ws, self.chains, self.n_states, order)


class AnyOracle:
    """Any graph by any method: consecutive examples are joined and inferred together, then take their steps in turn.

    Marginals of the linear program are used as they are: that trains on the relaxed problem. Other methods give
    their best labelling.
    """

    revisits = 5

    def __init__(self, problem: MarginProblem, method: Inference, batch: int) -> None:
        self.problem, self.method = problem, method
        graphs = [graph for shard in problem.data.shards for graph in shard.union.parts]
        cuts = [*range(0, len(graphs), batch), len(graphs)]
        self.batches = [(a, b, Union(graphs[a:b]).graph) for a, b in pairwise(cuts)]
        sizes = np.cumsum([0, *(len(shard.union.parts) for shard in problem.data.shards)])
        self.shards = [
            (int(a), int(b), shard.graph)
            for a, b, shard in zip(sizes[:-1], sizes[1:], problem.data.shards, strict=True)
        ]
        self.region_ptr = {k: np.concatenate([[0], np.cumsum(c)]) for k, c in problem.counts.items()}
        self.owner = {k: np.repeat(np.arange(problem.n_examples), c) for k, c in problem.counts.items()}

    def answers(self, w: Floats) -> tuple[Floats, Floats]:
        """As `ChainOracle.answers`."""
        parts = [self._answer(w, a, b, graph) for a, b, graph in self.shards]
        s = np.zeros(len(self.problem.design.truth))
        for _, entry, share, _ in parts:
            np.add.at(s, entry, share)
        return s, np.concatenate([losses for *_, losses in parts])

    def descend(self, dual: MarginDual, ws: WorkingSet, rng: np.random.Generator) -> None:
        """As `ChainOracle.descend`, a batch at a time."""
        design = self.problem.design
        for number in rng.permutation(len(self.batches)):
            a, b, graph = self.batches[number]
            step_batch(design, dual, ws, a, b, *self._answer(dual.w, a, b, graph))

    def _answer(self, w: Floats, a: int, b: int, graph: Graph) -> tuple[Ints, Ints, Floats, Floats]:
        """Answers of examples a .. b - 1, whose union is `graph`: where each begins, entries, shares; their Delta.

        Flat entries and their shares are in the order of the examples' regions.
        """
        problem = self.problem
        first, last = int(problem.design.row_ptr[a]), int(problem.design.row_ptr[b])
        scores = np.empty(entries_of(problem.design, first, last))
        fill_scores(problem.design, w, first, last, scores)
        begin = int(problem.design.at[first])
        rows = {kind: slice(*self.region_ptr[kind][[a, b]]) for kind in graph.kinds}
        theta = {kind: self._theta(kind, scores, begin, r) for kind, r in rows.items() if r.start < r.stop}
        places, entries, shares, losses, counts = [], [], [], np.zeros(b - a), np.zeros(b - a, dtype=np.int64)
        for kind, (region, entry, share) in self._solve(graph, theta).items():
            number = rows[kind].start + region
            places.append(problem.region_place[kind][number])
            entries.append(problem.blocks[kind].at[number] + entry)
            shares.append(share)
            delta, owner = problem.delta[kind], self.owner[kind][number] - a
            counts += np.bincount(owner, minlength=b - a)
            if delta is not None:
                losses += np.bincount(owner, delta[number, entry] * share, minlength=b - a)
        order = np.argsort(np.concatenate(places), kind="stable")
        ptr = np.concatenate([[0], np.cumsum(counts)])
        return ptr, np.concatenate(entries)[order], np.concatenate(shares)[order], losses

    def _theta(self, kind: str, scores: Floats, begin: int, rows: slice) -> Floats:
        """F + Delta of a kind's regions."""
        block, delta = self.problem.blocks[kind], self.problem.delta[kind]
        table = scores[block.at[rows, None] - begin + np.arange(block.outputs)]
        if delta is not None:
            table += delta[rows]
        return table.reshape(-1, *self.problem.data.shapes[kind])

    def _solve(self, graph: Graph, theta: dict[str, Floats]) -> dict[str, tuple[Ints, Ints, Floats]]:
        """Per kind (region, entry of its table, share) of the best labelling, or of the program's marginals."""
        scores = Scores(graph, theta, trusted=are_own(self.problem.potentials))
        if self.method.relaxed:
            marginals = self.method.run(scores, None).marginals
            tables = {kind: _snapped(marginals[kind]).reshape(len(t), -1) for kind, t in theta.items()}
            return {kind: (*np.nonzero(mu), mu[mu != 0]) for kind, mu in tables.items()}
        labels = self.method.maximise(scores)
        return {
            kind: (np.arange(len(table)), graph.table_index(kind, labels), np.ones(len(table)))
            for kind, table in theta.items()
        }


def _snapped(marginals: ArrayLike) -> Floats:
    """Marginals of which those near 0 and 1 are 0 and 1."""
    mu = np.asarray(marginals, dtype=np.float64)
    near = np.rint(mu)
    return np.where(np.abs(mu - near) <= _WHOLE, near, mu)


#: Finds answers: labellings, or marginals of a relaxation.
Oracle = ChainOracle | AnyOracle


def make_oracle(problem: MarginProblem, method: Inference, batch: int | None) -> Oracle:
    """The kernel for chains where it applies and gives what the method would, the method itself elsewhere."""
    chains = problem.chains() if method.exact else None
    if chains is not None and batch is None:
        return ChainOracle(problem, chains)
    return AnyOracle(problem, method, batch or max(1, problem.n_examples // 50))
