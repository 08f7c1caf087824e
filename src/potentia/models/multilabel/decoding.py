"""A random forest over whole labellings: how often training rows that reach the same leaves have each labelling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import combinations, count, product
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from ...base.schema import Array, Rule, Schema
from ...base.threads import map_items, map_ranges, thread_count
from ...base.types import Bools, Floats, Ints, PotentiaError
from ...graph.scores import Scores
from ...graph.structure import Graph
from ...graph.union import Union
from ...inference.base import Inference
from ...inference.exact import Exact
from ...inference.linear_program import LinearProgram
from ...kernels.search import enumerate_rows, flip_costs, improve_rows
from ...learn.backends.connection import map_anywhere
from .joint import Machine

#: Rows whose features are spread out at once.
_CHUNK = 1000

#: What a file holds: the trees one after another, a leaf's left child being -1.
FOREST: Schema = {
    "labellings": Array("f8", ("L", "V"), low=-1),
    "left": Array("i8", ("m",), low=-1, below="m"),
    "right": Array("i8", ("m",), low=-1, below="m"),
    "feature": Array("i8", ("m",), low=0, below="d"),
    "threshold": Array("f8", ("m",)),
    "roots": Array("i8", ("T",), low=0, below="m"),
    "data": Array("f8", ("nnz",), low=0),
    "indices": Array("i8", ("nnz",), low=0, below="L"),
    "indptr": Array("i8", ("m+1",), ends="nnz"),
    "trees": Rule(
        lambda found: (
            len(found["roots"]) > 0
            and all(
                bool(np.all((side == -1) == (found["left"] == -1)))
                and bool(np.all((side == -1) | (side > np.arange(len(side)))))
                for side in (found["left"], found["right"])
            )
        ),
        "are inconsistent",
    ),
}


class LabellingForest(NamedTuple):
    """Trees as flat arrays over their nodes, and the shares (nodes, L) of the labellings (L, V) in the leaves."""

    left: Ints
    right: Ints
    feature: Ints
    threshold: Floats
    roots: Ints
    shares: Any
    labellings: Floats

    def probabilities(self, X: Any) -> Any:
        """P(labelling) of every row, sparse (n, L): the mean over trees of the shares in the leaf that is reached."""
        parts = [self._leaves(X[a : a + _CHUNK]) for a in range(0, X.shape[0], _CHUNK)]
        leaves = np.concatenate(parts) if parts else np.empty((0, len(self.roots)), dtype=np.int64)
        n, T = leaves.shape
        reached = sparse.csr_array(
            (np.full(n * T, 1.0 / T), leaves.ravel(), np.arange(0, n * T + 1, T)), shape=(n, len(self.left))
        )
        return sparse.csr_array(reached @ self.shares)

    def marginals(self, probabilities: Any) -> Floats:
        """P(label = +1) (n, V), from sparse probabilities of labellings."""
        return np.asarray(probabilities @ (self.labellings > 0).astype(float))

    def _leaves(self, X: Any) -> Ints:
        # scikit-learn compares features in single precision
        values = (X.toarray() if sparse.issparse(X) else X).astype(np.float32)
        rows = np.arange(len(values))
        found = np.empty((len(values), len(self.roots)), dtype=np.int64)
        for t, root in enumerate(self.roots):
            node = np.full(len(values), root)
            inner = rows[self.left[node] >= 0]
            while inner.size:
                at = node[inner]
                less = values[inner, self.feature[at]] <= self.threshold[at]
                node[inner] = np.where(less, self.left[at], self.right[at])
                inner = inner[self.left[node[inner]] >= 0]
            found[:, t] = node
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of a file."""
        own = {name: getattr(self, name) for name in FOREST if name in self._fields}
        parts = {name: getattr(self.shares, name) for name in ("data", "indices", "indptr")}
        return own | {name: v.astype(np.int64) if v.dtype.kind == "i" else v for name, v in parts.items()}

    @staticmethod
    def from_arrays(found: dict[str, Any]) -> LabellingForest:
        """The forest whose arrays a file had."""
        shape = (len(found["left"]), len(found["labellings"]))
        shares = sparse.csr_array((found["data"], found["indices"], found["indptr"]), shape=shape)
        parts = {name: found[name] for name in LabellingForest._fields if name != "shares"}
        return LabellingForest(shares=shares, **parts)


def learn_forest(
    X: Any, signs: Floats, weight: Floats, n_trees: int, seed: int
) -> tuple[LabellingForest, Any, Bools]:
    """A forest, the probabilities (n, L) of each training row by trees that did not see it, and rows that have them.

    Each tree splits a bootstrap sample until its leaves are pure, by square roots of all features at a time.
    """
    labellings, number = np.unique(signs, axis=0, return_inverse=True)
    number = number.ravel()
    seeds = np.random.default_rng(seed).integers(2**31 - 1, size=n_trees)
    X32 = X.astype(np.float32)
    grown = map_items(
        lambda s: _grow(X32, signs, number, len(labellings), weight, s), seeds.tolist(), thread_count(None)
    )
    sizes = np.concatenate([[0], np.cumsum([len(tree.left) for tree in grown])])
    forest = LabellingForest(
        np.concatenate([_moved(t.left, by) for t, by in zip(grown, sizes, strict=False)]),
        np.concatenate([_moved(t.right, by) for t, by in zip(grown, sizes, strict=False)]),
        np.concatenate([t.feature for t in grown]),
        np.concatenate([t.threshold for t in grown]),
        sizes[:-1],
        sparse.csr_array(sparse.vstack([t.shares for t in grown])),
        labellings,
    )
    total = sum(t.unseen for t in grown)
    count = np.sum([np.diff(t.unseen.indptr) > 0 for t in grown], axis=0)
    held_out = sparse.csr_array(sparse.diags_array(1.0 / np.maximum(count, 1)) @ total)
    return forest, held_out, count > 0


def _moved(nodes: Ints, by: int) -> Ints:
    return np.where(nodes >= 0, nodes + by, -1)


class _Tree(NamedTuple):
    """One tree, with the shares of its leaves (nodes, L), and of the rows that it did not see (n, L)."""

    left: Ints
    right: Ints
    feature: Ints
    threshold: Floats
    shares: Any
    unseen: Any


def _grow(X: Any, signs: Floats, number: Ints, n_labellings: int, weight: Floats, seed: int) -> _Tree:
    from sklearn.tree import DecisionTreeRegressor

    n = len(number)
    drawn = np.bincount(np.random.default_rng(seed).integers(n, size=n), minlength=n) * weight
    model = DecisionTreeRegressor(max_features="sqrt", random_state=seed)
    model.fit(X, signs, sample_weight=drawn, check_input=True)
    tree = model.tree_
    leaves = model.apply(X)
    counts = sparse.coo_array((drawn, (leaves, number)), shape=(tree.node_count, n_labellings)).tocsr()
    counts.eliminate_zeros()
    sums = np.asarray(counts.sum(axis=1)).ravel()
    shares = sparse.csr_array(sparse.diags_array(1.0 / np.where(sums > 0, sums, 1.0)) @ counts)
    aside = sparse.diags_array((drawn == 0).astype(float))
    unseen = sparse.csr_array(aside @ shares[leaves])
    unseen.eliminate_zeros()
    feature = np.maximum(tree.feature, 0).astype(np.int64)
    left, right = (side.astype(np.int64) for side in (tree.children_left, tree.children_right))
    return _Tree(left, right, feature, tree.threshold.copy(), shares, unseen)


#: Variables of a program that solves several rows at once.
_VARIABLES = 2_000


class Relaxation:
    """The program of a machine's cliques; rows differ only in their scores."""

    def __init__(self, sets: Sequence[tuple[int, ...]], weight: Floats, n_labels: int) -> None:
        self.n_labels = n_labels
        moments: dict[tuple[int, ...], int] = {(i,): i for i in range(n_labels)}
        for c in sets:
            for size in range(2, len(c) + 1):
                for s in combinations(c, size):
                    moments.setdefault(s, len(moments))
        self.n_moments = len(moments)
        self.local = self._local(sets, moments)
        place = [moments[c] for c in sets]
        label = np.array([i for c in sets for i in c], dtype=np.int64)
        column = np.repeat(np.array(place, dtype=np.int64), [len(c) for c in sets])
        value = np.repeat(weight, [len(c) for c in sets])
        # a program's variables are the moments, then xi: rows of - E[z_i] - xi_i <= -1, but for s_i
        self.coupling = sparse.csr_array((-value, (label, column)), shape=(n_labels, self.n_moments))

    def _local(self, sets: Sequence[tuple[int, ...]], moments: dict[tuple[int, ...], int]) -> Any:
        """Rows of - sum_S prod_{j in S} a_j t_S <= 1; cliques inside others add nothing."""
        known = [set(c) for c in sets]
        largest = [c for c in sets if not any(set(c) < other for other in known)]
        rows, columns, values, number = [], [], [], 0
        for c in largest:
            subsets = [s for size in range(1, len(c) + 1) for s in combinations(range(len(c)), size)]
            for a in product((-1.0, 1.0), repeat=len(c)):
                for s in subsets:
                    rows.append(number)
                    columns.append(moments[tuple(c[j] for j in s)])
                    values.append(-np.prod([a[j] for j in s]))
                number += 1
        return sparse.csr_array((values, (rows, columns)), shape=(number, self.n_moments))

    def solve(self, scores: Floats, fixed: Floats | None = None) -> tuple[Floats, Floats]:
        """Means t_i (n, K) of the labels at the optimum, and its value (n), a lower bound on every labelling's loss.

        fixed (n, K): labels held at +1 or -1, 0 where free; the bound is then on the labellings that agree.
        """
        step = max(1, _VARIABLES // (self.n_moments + self.n_labels))
        fixed = np.zeros(scores.shape) if fixed is None else fixed
        pieces = [(scores[a : a + step], fixed[a : a + step]) for a in range(0, len(scores), step)]
        found = map_anywhere(self._solve, pieces)
        return np.concatenate([t for t, _ in found]), np.concatenate([value for _, value in found])

    def _solve(self, piece: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        scores, fixed = piece
        m, K, T = len(scores), self.n_labels, self.n_moments
        each = sparse.eye_array(m)
        single = (np.arange(m)[:, None] * T + np.arange(K)).ravel()
        own = sparse.csr_array((-scores.ravel(), (np.arange(m * K), single)), shape=(m * K, m * T))
        margin = sparse.hstack([sparse.kron(each, self.coupling) + own, -sparse.eye_array(m * K)])
        local = sparse.hstack(
            [sparse.kron(each, self.local), sparse.csr_array((m * self.local.shape[0], m * K))]
        )
        matrix = sparse.vstack([margin, local], format="csr")
        right = np.repeat([-1.0, 1.0], [m * K, m * self.local.shape[0]])
        cost = np.repeat([0.0, 1.0], [m * T, m * K])
        box = np.repeat([[-1.0, 1.0], [0.0, np.inf]], [m * T, m * K], axis=0)
        held = fixed.ravel() != 0
        box[single[held]] = fixed.ravel()[held, None]
        answer = linprog(cost, A_ub=matrix, b_ub=right, bounds=box, method="highs")
        if answer.status != 0:
            raise PotentiaError(f"the LP solver failed: {answer.message}.")
        means = answer.x[: m * T].reshape(m, T)[:, :K]
        return np.clip(means, -1.0, 1.0), answer.x[m * T :].reshape(m, K).sum(axis=1)


Decode = Literal["auto", "exact", "lp", "branch", "map"]
DECODES = get_args(Decode)
#: "auto" enumerates all labellings up to the first number of labels, "exact" refuses beyond the second.
_EXACT, _LARGEST = 14, 20
#: Linear programs that "branch" solves per row at most.
_PROGRAMS = 1_000
#: Rows whose labellings are compared in one piece of work.
_ROWS = 4096
#: Regions inferred together by elimination, and by the linear program.
_CHUNKS = {True: 50_000, False: 2_000}


class Labelling(NamedTuple):
    """Signs (n, K), their hinge sums (n), and what no labelling's is below (n)."""

    signs: Floats
    loss: Floats
    bound: Floats


def find_labelling(machine: Machine, scores: Floats, decode: str) -> Labelling:
    """The labelling of every row of scores (n, K)."""
    n, K = scores.shape
    if decode == "auto":
        decode = "exact" if K <= _EXACT else "lp"
    if decode == "map":
        signs = _largest_score(machine, scores)
        return Labelling(signs, machine.losses(scores, signs), np.zeros(n))
    if decode == "exact":
        if K > _LARGEST:
            raise PotentiaError(
                f"decode='exact' looks at all labellings of at most {_LARGEST} labels, not {K}."
            )
        pieces = [scores[a : a + _ROWS] for a in range(0, max(n, 1), _ROWS)]
        found = map_anywhere(partial(_compare_all, machine), pieces)
        signs, loss = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        return Labelling(signs, loss, loss)
    relaxation = Relaxation(machine.sets(), machine.weight, K)
    means, bound = relaxation.solve(scores)
    rounded = _rounded(machine, scores, means, bound)
    if decode == "branch":
        for row in np.flatnonzero(~is_optimal(rounded.loss, bound)).tolist():
            _branch(machine, relaxation, scores[row], means[row], rounded, row)
    return rounded


def is_optimal(loss: Any, bound: Any) -> Any:
    """Whether losses of labellings meet their bounds, up to rounding."""
    return loss <= bound + 1e-6 * (1.0 + bound)


def _rounded(machine: Machine, scores: Floats, means: Floats, bound: Floats) -> Labelling:
    """The signs of the means, improved by flips."""
    signs, loss = np.where(means > 0, 1.0, -1.0), np.empty(len(scores))
    _over_rows(
        len(scores), lambda a, b: improve_rows(machine.cliques, machine.weight, scores, a, b, signs, loss)
    )
    return Labelling(signs, loss, bound)


def _branch(
    machine: Machine, relaxation: Relaxation, scores: Floats, means: Floats, found: Labelling, row: int
) -> None:
    """Branch and bound from a row's relaxed means: improves the row's labelling and bound in `found`.

    The subproblem of the lowest bound is split at its least certain label, until no bound is below the best loss.
    Exponential in the worst case: it gives up after `_PROGRAMS` linear programs.
    """
    pair, number = np.stack([scores, scores]), count()  # numbers break ties between equal bounds
    nodes = [(float(found.bound[row]), next(number), np.zeros(len(scores)), means)]
    for _ in range(_PROGRAMS // 2):
        _, _, fixed, means = heappop(nodes)
        label = int(np.argmin(np.where(fixed == 0, np.abs(means), np.inf)))
        children = np.stack([fixed, fixed])
        children[:, label] = -1.0, 1.0
        both, bounds = relaxation.solve(pair, children)
        halves = _rounded(machine, pair, both, bounds)
        best = int(np.argmin(halves.loss))
        if halves.loss[best] < found.loss[row]:
            found.signs[row], found.loss[row] = halves.signs[best], halves.loss[best]
        for child in range(2):
            heappush(nodes, (float(bounds[child]), next(number), children[child], both[child]))
        found.bound[row] = min(nodes[0][0], found.loss[row])
        if is_optimal(found.loss[row], found.bound[row]):
            return


def costs_of_flips(machine: Machine, scores: Floats, signs: Floats, hinge: bool) -> Floats:
    """(n, K): what turning each label alone adds to the loss (hinge), or takes from sum_i z_i / 2."""
    cost = np.empty(scores.shape)
    _over_rows(
        len(scores),
        lambda a, b: flip_costs(machine.cliques, machine.weight, scores, a, b, signs, cost, hinge),
    )
    return cost


def _largest_score(machine: Machine, scores: Floats) -> Floats:
    """argmax of sum_i z_i / 2 by the shared engine: exact for few labels, the linear program's rounding beyond."""
    n, K = scores.shape
    graph, tables = _as_graph(machine, K)
    method: Inference = Exact() if K <= _LARGEST else LinearProgram()
    step = max(1, _CHUNKS[K <= _LARGEST] // sum(len(s) for s in graph.scopes.values()))
    pieces = [scores[a : a + step] for a in range(0, n, step)]
    found = map_anywhere(partial(_best_labels, method, graph, tables), pieces)
    signs: Floats = np.concatenate(found).astype(np.float64)
    return 2.0 * signs - 1.0


def _best_labels(method: Inference, graph: Graph, tables: Mapping[str, Floats], scores: Floats) -> Ints:
    """The best labellings (n, K) of some rows by inference on a union of one graph each."""
    theta = {kind: np.tile(t, (len(scores), *[1] * (t.ndim - 1))) for kind, t in tables.items()}
    theta["node"] = scores.reshape(-1, 1) * np.array([-0.5, 0.5])
    return method.maximise(Scores(Union([graph] * len(scores)).graph, theta)).reshape(scores.shape)


def _compare_all(machine: Machine, scores: Floats) -> tuple[Floats, Floats]:
    """The best of all labellings of some rows, and their hinge sums."""
    scores = np.ascontiguousarray(scores)
    signs, loss = np.empty(scores.shape), np.empty(len(scores))
    _over_rows(
        len(scores),
        lambda a, b: enumerate_rows(machine.cliques, machine.weight, scores, a, b, signs, loss),
    )
    return signs, loss


def _as_graph(machine: Machine, n_labels: int) -> tuple[Graph, dict[str, Floats]]:
    """The cliques as regions, one kind per order, and their tables: order / 2 times weight times product of signs."""
    kinds: dict[str, list[int]] = {}
    sets = machine.sets()
    for number, c in enumerate(sets):
        kinds.setdefault(f"clique{len(c)}", []).append(number)
    regions: dict[str, Any] = {"node": np.arange(n_labels)[:, None]}
    tables: dict[str, Floats] = {}
    for kind, numbers in kinds.items():
        regions[kind] = [sets[c] for c in numbers]
        parity: Floats = np.ones(())
        for _ in regions[kind][0]:
            parity = np.multiply.outer(parity, np.array([-1.0, 1.0]))
        tables[kind] = np.multiply.outer(0.5 * parity.ndim * machine.weight[numbers], parity)
    return Graph(np.full(n_labels, 2), regions), tables


def _over_rows(n: int, work: Callable[[int, int], None]) -> None:
    map_ranges(work, 0, n, thread_count(None))
