"""Boltzmann machines of labels: their cliques, learning by one dual, and decoding by search or relaxation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import combinations, count, pairwise, product
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from ...base.resources import map_ranges, thread_count
from ...base.types import (
    Bools,
    ConvergenceWarning,
    Floats,
    InfeasibleError,
    PotentiaError,
    shown,
    warn_caller,
    whole_numbers,
)
from ...kernels.linear_losses import Cliques, DualState, descend_joint, fields
from ...kernels.search import Rules, enumerate_rows, improve_rows
from ...learn.backends.connection import map_anywhere
from .base import Solved
from .constraints import forced_by_others
from .hinge import LARGEST_SYSTEM, feature_rows, solve_matrix, solve_rows
from .network import product_columns, project

#: Which labels have a product: all sets of 2 up to this many, or the sets themselves.
CliqueOption = int | Sequence[Sequence[int]]


class Machine(NamedTuple):
    """Weights: scores are `matrix @ coef.T + bias`; `weight` (M) of the cliques. gap: what was proved in learning.

    rules: constraints on labellings.
    """

    coef: Floats
    bias: Floats
    weight: Floats
    cliques: Cliques
    objective: float
    gap: float
    rules: Rules

    def scores(self, matrix: Any) -> Floats:
        """s (n, K): scores without other labels' part."""
        return np.ascontiguousarray(np.asarray(matrix @ self.coef.T) + self.bias)

    def margins(self, scores: Floats, signs: Floats) -> Floats:
        """z (n, K) of labellings."""
        coupled = np.empty(scores.shape)
        fields(self.cliques, self.weight, np.ascontiguousarray(signs), coupled)
        return coupled + signs * scores

    def losses(self, scores: Floats, signs: Floats) -> Floats:
        """Hinge sums (n) of labellings."""
        return np.asarray(np.maximum(0.0, 1.0 - self.margins(scores, signs)).sum(axis=1))


def clique_sets(option: CliqueOption, n_labels: int) -> list[tuple[int, ...]]:
    """The cliques of two or more labels, each once; refuses unknown and repeated labels."""
    if isinstance(option, int | np.integer) and not isinstance(option, bool):
        if option < 1:
            raise PotentiaError(f"cliques must be at least 1 (no products), not {option}.")
        sizes = range(2, min(int(option), n_labels) + 1)
        return [c for size in sizes for c in combinations(range(n_labels), size)]
    if isinstance(option, str | bool) or not isinstance(option, Sequence):
        raise PotentiaError(f"cliques must be a whole number or a list of sets of labels, not {shown(option)}.")
    sets = []
    for entry in option:
        numbers = whole_numbers(list(entry) if isinstance(entry, Iterable) else [entry], "cliques")
        members = sorted(numbers.ravel().tolist())
        if len(members) < 2 or len(set(members)) < len(members):
            raise PotentiaError(f"a clique has two or more different labels, not {members}.")
        if members[0] < 0 or members[-1] >= n_labels:
            raise PotentiaError(f"clique {members} names a label outside 0..{n_labels - 1}.")
        sets.append(tuple(members))
    return sorted(set(sets), key=lambda c: (len(c), c))


def as_cliques(sets: Sequence[tuple[int, ...]], n_labels: int) -> Cliques:
    """The kernels' form of clique sets."""
    length = np.array([len(c) for c in sets], dtype=np.int64)
    member = np.array([j for c in sets for j in c], dtype=np.int64)
    owner = np.repeat(np.arange(len(sets)), length)
    order = np.argsort(member, kind="stable")
    label_ptr = np.searchsorted(member[order], np.arange(n_labels + 1))
    clique = owner[order]
    # of a pair, the sum of both labels minus this one is the other
    total = np.bincount(owner, member, minlength=len(sets)).astype(np.int64)
    other = np.where(length[clique] == 2, total[clique] - member[order], -1)
    return Cliques(np.concatenate([[0], np.cumsum(length)]), member, label_ptr, clique, other)


def clique_members(cliques: Cliques) -> list[tuple[int, ...]]:
    """The labels of each clique."""
    members = cliques.member.tolist()
    return [tuple(members[a:b]) for a, b in pairwise(cliques.member_ptr.tolist())]


#: Passes between two checks of the gap; if the first check finds a gap, Newton steps follow.
_BLOCK = 100


class MachineProblem(NamedTuple):
    """min 1/2 (|w|^2 + |b|^2 + eta |v|^2) + sum_li cost_li [1 - z_li]_+ of rows X (n, d), or their kernel matrix gram.

    signs, cost (n, K); with a kernel the weights are those of the training rows.
    """

    X: Any
    gram: Floats | None
    signs: Floats
    cliques: Cliques
    eta: float
    cost: Floats
    rules: Rules

    def chosen(self) -> MachineProblem:
        """The problem without the losses of labels that constraints leave no choice, given all other labels."""
        return self._replace(cost=self.cost * ~forced_by_others(self.rules, self.signs))

    def start(self) -> DualState:
        """The dual zero and what follows from it."""
        n, K = self.signs.shape
        w, scores = (self.X.shape[1], 0) if self.gram is None else (0, n)
        v = np.zeros(len(self.cliques.member_ptr) - 1)
        return DualState(np.zeros((n, K)), np.zeros((K, w)), np.zeros((K, scores)), np.zeros(K), v)

    def leap(self, state: DualState) -> None:
        """Put the state where Newton steps lead, unless the linear systems are too large or the path breaks down.

        The problem is a support vector machine of n K rows Z_li = y_li [x_l, 1] in the columns of label i, beside
        prod_{j in C} y_lj / sqrt(eta) for the cliques C of i.
        """
        (n, K), signs = self.signs.shape, self.signs
        width = K * (self.X.shape[1] + 1) + len(self.cliques.member_ptr) - 1
        if min(n * K, width if self.gram is None else n * K) > LARGEST_SYSTEM:
            return
        products, cost = self._clique_rows(), self.cost.ravel()
        shared, used = products / np.sqrt(self.eta), np.flatnonzero(cost)
        if self.gram is None:
            rows = rows_by_label(self.X, K)
            rows.data *= np.repeat(signs.ravel(), np.diff(rows.indptr))
            dual = solve_rows(sparse.hstack([rows, shared], format="csr")[used], cost[used])
        else:
            matrix = (shared @ shared.T).toarray()
            for i in range(K):
                matrix[i::K, i::K] += np.outer(signs[:, i], signs[:, i]) * (self.gram + 1.0)
            dual = solve_matrix(matrix[np.ix_(used, used)], cost[used])
        if dual is None:
            return
        state.dual[...] = 0.0
        state.dual.ravel()[used] = np.clip(dual, 0.0, cost[used])
        moved = state.dual * signs
        state.b[:] = moved.sum(axis=0)
        state.v[:] = np.asarray(products.T @ state.dual.ravel()) / self.eta
        if self.gram is None:
            state.w[:] = np.asarray(self.X.T @ moved).T
        else:
            state.scores[:] = moved.T @ self.gram

    def _clique_rows(self) -> Any:
        """prod_{j in C} y_lj in column C of rows (l, i), i in C."""
        (n, K), member = self.signs.shape, self.cliques.member
        sets = clique_members(self.cliques)
        owner = np.repeat(np.arange(len(sets)), [len(c) for c in sets])
        rows = np.arange(n)[:, None] * K + member
        values = product_columns(self.signs, sets)[:, owner]
        entries = (values.ravel(), (rows.ravel(), np.broadcast_to(owner, rows.shape).ravel()))
        return sparse.csr_array(entries, shape=(n * K, len(sets)))

    def machine(self, state: DualState) -> Machine:
        """The weights with their objective and gap, in units of the mean loss."""
        gram, signs, cost = self.gram, self.signs, self.cost
        coef = state.w.copy() if gram is None else np.ascontiguousarray((state.dual * signs).T)
        machine = Machine(coef, state.b.copy(), state.v.copy(), self.cliques, 0.0, 0.0, self.rules)
        scores = machine.scores(self.X if gram is None else gram)
        if gram is None:
            square = float((coef * coef).sum())
        else:
            square = float((coef * (scores - machine.bias).T).sum())
            # what rounding has added up goes
            state.scores[:] = (scores - machine.bias).T
        square = 0.5 * (square + float(state.b @ state.b) + self.eta * float(state.v @ state.v))
        hinge = float((cost * np.maximum(0.0, 1.0 - machine.margins(scores, signs))).sum())
        unit = 1.0 / max(float(cost.sum()) / signs.shape[1], 1e-300)
        dual = float(state.dual.sum()) - square
        return machine._replace(objective=unit * (square + hinge), gap=unit * (square + hinge - dual))


def rows_by_label(X: Any, n_labels: int) -> Any:
    """[x_l, 1] in the columns of label i, for l = 0, 1, ... and all K labels i of each: CSR (n K, K (d + 1))."""
    n, d = X.shape[0], X.shape[1] + 1
    repeated = np.repeat(np.arange(n), n_labels)
    rows = sparse.hstack([sparse.csr_array(X), np.ones((n, 1))], format="csr")[repeated]
    shift = np.repeat(np.tile(np.arange(n_labels) * d, n), np.diff(rows.indptr))
    parts = (rows.data, rows.indices + shift, rows.indptr)
    return sparse.csr_array(parts, shape=(n * n_labels, n_labels * d))


def learn_machine(problem: MachineProblem, tol: float, passes: int, seed: int, solved: Solved) -> Machine:
    """The machine by dual coordinate descent [LMSBN Algorithm 1].

    tol: the gap at which to stop, as a share of the objective. passes: limits the visits of rows and labels.
    """
    X, gram, signs, cliques, eta, cost, _ = problem
    state, spread, left = problem.start(), 0.1, passes
    rows = feature_rows(X, gram)
    if gram is not None:
        squares = np.diagonal(gram)
    else:
        squares = np.asarray((X.multiply(X) if sparse.issparse(X) else X * X).sum(axis=1)).ravel()
    limits = solved.get("limits", (2,))
    if limits is not None:
        spread, left = float(limits[0]), min(max(0, int(limits[1])), passes)
        for name, array in state._asdict().items():
            stored = solved.get(name, array.shape)
            array[...] = 0.0 if stored is None else stored
    if left == 0:  # the fit had reached its limit
        machine = problem.machine(state)
    while left > 0:
        block = min(left, _BLOCK)
        visits = block * max(signs.size, 1000)
        reached = descend_joint(rows, signs, cliques, squares + 1.0, eta, cost, spread, visits, seed + left, state)
        if reached > spread and left == passes:
            problem.leap(state)
        machine = problem.machine(state)
        if machine.gap <= tol * machine.objective:
            return machine
        left -= block
        spread = 0.2 * spread if reached <= spread else spread
        solved.put(state._asdict() | {"limits": np.array([spread, left])})
    warn_caller(
        f"The gap was still {machine.gap / machine.objective:.2g} of the objective after {passes} passes; "
        "raise passes or alpha, or scale the features.",
        ConvergenceWarning,
    )
    return machine


# -- decoding ----------------------------------------------------------------------------------------------------

#: Variables of a program that solves several rows at once.
_VARIABLES = 2_000


class Relaxation:
    """The program of a machine's cliques; rows differ only in their scores."""

    def __init__(self, sets: Sequence[tuple[int, ...]], weight: Floats, n_labels: int, rules: Rules) -> None:
        self.n_labels = n_labels
        moments: dict[tuple[int, ...], int] = {(i,): i for i in range(n_labels)}
        for c in sets:
            for size in range(2, len(c) + 1):
                for s in combinations(c, size):
                    moments.setdefault(s, len(moments))
        self.n_moments = len(moments)
        self.local, self.limits = self._within(rules, self._local(sets, moments))
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

    def _within(self, rules: Rules, local: Any) -> tuple[Any, Floats]:
        """The rows and constraints' limits: low <= sum of (1 + on_i t_i) / 2 <= high over a rule's labels, halved."""
        R, label = len(rules.size), np.repeat(np.arange(self.n_labels), np.diff(rules.label_ptr))
        each = sparse.csr_array((0.5 * rules.on, (rules.rule, label)), shape=(R, self.n_moments))
        numbers = [rules.reach[a:b] for a, b in pairwise(rules.reach_ptr.tolist())]
        low = np.array([part[0] for part in numbers], dtype=float)
        high = np.array([part[part < len(part) - 1].max() for part in numbers], dtype=float)
        limits = np.concatenate([np.ones(local.shape[0]), high - 0.5 * rules.size, 0.5 * rules.size - low])
        return sparse.vstack([local, each, -each], format="csr"), limits

    def solve(self, scores: Floats, fixed: Floats) -> tuple[Floats, Floats]:
        """Means t_i (n, K) of the labels at the optimum, and its value (n), a lower bound on every labelling's loss.

        fixed (n, K): labels held at +1 or -1, 0 where free; the bound is then on the labellings that agree, infinite if
        the constraints leave none.
        """
        step = max(1, _VARIABLES // (self.n_moments + self.n_labels))
        pieces = [(scores[a : a + step], fixed[a : a + step]) for a in range(0, len(scores), step)]
        means, values = zip(*map_anywhere(self._solve, pieces), strict=True)
        return np.concatenate(means), np.concatenate(values)

    def _solve(self, piece: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        """The relaxed program of some rows, solved as one linear program: moments and hinge losses."""
        scores, fixed = piece
        m, K, T = len(scores), self.n_labels, self.n_moments
        each = sparse.eye_array(m)
        single = (np.arange(m)[:, None] * T + np.arange(K)).ravel()
        single_scores = sparse.csr_array((-scores.ravel(), (np.arange(m * K), single)), shape=(m * K, m * T))
        margin = sparse.hstack([sparse.kron(each, self.coupling) + single_scores, -sparse.eye_array(m * K)])
        local = sparse.hstack([sparse.kron(each, self.local), sparse.csr_array((m * self.local.shape[0], m * K))])
        matrix = sparse.vstack([margin, local], format="csr")
        right = np.concatenate([np.full(m * K, -1.0), np.tile(self.limits, m)])
        cost = np.repeat([0.0, 1.0], [m * T, m * K])
        box = np.repeat([[-1.0, 1.0], [0.0, np.inf]], [m * T, m * K], axis=0)
        is_fixed = fixed.ravel() != 0
        box[single[is_fixed]] = fixed.ravel()[is_fixed, None]
        answer = linprog(cost, A_ub=matrix, b_ub=right, bounds=box, method="highs")
        if answer.status == 2:  # no labelling agrees with what is fixed in one of the rows
            if m == 1:
                return np.zeros((1, K)), np.full(1, np.inf)
            parts = [self._solve((scores[[r]], fixed[[r]])) for r in range(m)]
            return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
        if answer.status != 0:
            raise PotentiaError(f"the LP solver failed: {answer.message}.")
        means = answer.x[: m * T].reshape(m, T)[:, :K]
        return np.clip(means, -1.0, 1.0), answer.x[m * T :].reshape(m, K).sum(axis=1)


Decode = Literal["auto", "exact", "lp", "branch"]
DECODES = get_args(Decode)
#: "auto" enumerates all labellings up to the first number of labels, "exact" refuses beyond the second.
_EXACT, _LARGEST = 14, 20
#: Linear programs that "branch" solves per row at most.
_PROGRAMS = 1_000
#: Rows whose labellings are compared in one piece of work.
_ROWS = 4096


class Decoded(NamedTuple):
    """Labellings of n rows.

    labels (n, K): in training's values, or as signs. loss (n): hinge sums. bound (n): no labelling has less. optimal
    (n): this one has no more, for certain.
    """

    labels: np.ndarray
    loss: Floats
    bound: Floats
    optimal: Bools


def find_labelling(machine: Machine, scores: Floats, decode: str, clamp: Floats | None = None) -> Decoded:
    """The signs of every row of scores (n, K), within constraints and with the signs of clamp (n, K) that are not 0."""
    n, K = scores.shape
    held = np.zeros((n, K)) if clamp is None else clamp
    if decode == "auto":
        decode = "exact" if K <= _EXACT else "lp"
    if decode == "exact":
        if K > _LARGEST:
            raise PotentiaError(f"decode='exact' looks at all labellings of at most {_LARGEST} labels, not {K}.")
        pieces = [(scores[a : a + _ROWS], held[a : a + _ROWS]) for a in range(0, max(n, 1), _ROWS)]
        compared = map_anywhere(partial(_compare_all, machine), pieces)
        signs, loss = (np.concatenate(arrays) for arrays in zip(*compared, strict=True))
        if np.isinf(loss).any():
            raise InfeasibleError(f"no labelling of row {int(np.isinf(loss).argmax())} satisfies all constraints.")
        bound = loss
    else:
        relaxation = Relaxation(clique_members(machine.cliques), machine.weight, K, machine.rules)
        means, bound = relaxation.solve(scores, held)
        signs, loss = _rounded(machine, scores, means, held)
    best = Decoded(signs, loss, bound, is_optimal(loss, bound))
    if decode == "branch":
        for row in np.flatnonzero(~best.optimal).tolist():
            _branch(machine, relaxation, scores[row], means[row], held[row], best, row)
    return best


def is_optimal(loss: Any, bound: Any) -> Any:
    """Whether losses of labellings meet their bounds, up to rounding."""
    return loss <= bound + 1e-6 * (1.0 + bound)


def _rounded(machine: Machine, scores: Floats, means: Floats, held: Floats) -> tuple[Floats, Floats]:
    """The signs of the means, improved by flips, and their hinge sums."""
    signs, loss = project(np.where(held != 0, held, means), machine.rules, held), np.empty(len(scores))
    over_rows(improve_rows, machine, scores, machine.rules, held, signs, loss)
    return signs, loss


def _branch(
    machine: Machine, relaxation: Relaxation, scores: Floats, means: Floats, held: Floats, best: Decoded, row: int
) -> None:
    """Branch and bound from a row's relaxed means: improves the row's labelling and bound in `best`.

    The subproblem of the lowest bound is split at its least certain label, until no bound is below the best loss.
    Exponential in the worst case: it gives up after `_PROGRAMS` linear programs.
    """
    pair, number = np.stack([scores, scores]), count()  # numbers break ties between equal bounds
    nodes = [(float(best.bound[row]), next(number), held, means)]
    for _ in range(_PROGRAMS // 2):
        bound, _, fixed, means = heappop(nodes)
        if np.isinf(bound) or fixed.all():
            break
        label = int(np.argmin(np.where(fixed == 0, np.abs(means), np.inf)))
        children = np.stack([fixed, fixed])
        children[:, label] = -1.0, 1.0
        both, bounds = relaxation.solve(pair, children)
        if np.isinf(bounds).all():
            continue
        both = np.where(np.isinf(bounds)[:, None], both[np.isfinite(bounds)][:1], both)
        signs, losses = _rounded(machine, pair, both, np.stack([held, held]))
        side = int(np.argmin(losses))
        if losses[side] < best.loss[row]:
            best.labels[row], best.loss[row] = signs[side], losses[side]
        for child in range(2):
            heappush(nodes, (float(bounds[child]), next(number), children[child], both[child]))
        best.bound[row] = min(nodes[0][0], best.loss[row])
        best.optimal[row] = is_optimal(best.loss[row], best.bound[row])
        if best.optimal[row]:
            return


def _compare_all(machine: Machine, rows: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """The best of all labellings of some rows' scores that agree with what is held, and their hinge sums."""
    scores, held = (np.ascontiguousarray(part) for part in rows)
    signs, loss = np.empty(scores.shape), np.empty(len(scores))
    over_rows(enumerate_rows, machine, scores, machine.rules, held, signs, loss)
    return signs, loss


def over_rows(function: Any, machine: Machine, scores: Floats, *args: Any) -> None:
    """function(cliques, weight, scores, [rules, held,] first row, end, *args) over ranges of rows, in parallel."""
    first = 2 if args and isinstance(args[0], Rules) else 0
    call = partial(function, machine.cliques, machine.weight, scores, *args[:first])
    map_ranges(lambda a, b: call(a, b, *args[first:]), 0, len(scores), thread_count(None))
