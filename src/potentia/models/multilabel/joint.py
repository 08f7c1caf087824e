"""The Boltzmann machine's dual by Newton steps, for small problems that coordinate descent is too slow for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from ...base.types import ConvergenceWarning, Floats, PotentiaError, shown, warn_caller, whole_numbers
from ...kernels.coordinate import Cliques, DualState, descend_joint, fields
from .features import LARGEST_SYSTEM, HingeSolver, feature_rows, rows_by_label
from .interior import by_matrix, by_rows, solve_dual
from .network import product_columns


def interior_dual(
    X: Any, gram: Floats | None, signs: Floats, cliques: Cliques, eta: float, cost: float
) -> Floats | None:
    """The optimal dual (n, K), or None if the linear systems are too large or the path breaks down.

    The problem is a support vector machine of n K rows Z_li = y_li [x_l, 1] in the columns of label i, beside
    prod_{j in C} y_lj / sqrt(eta) for the cliques C of i.
    """
    n, K = signs.shape
    width = K * (X.shape[1] + 1) + len(cliques.member_ptr) - 1
    if min(n * K, width if gram is None else n * K) > LARGEST_SYSTEM:
        return None
    shared = _clique_rows(signs, cliques) / np.sqrt(eta)
    if gram is None:
        own = rows_by_label(X, K)
        own.data *= np.repeat(signs.ravel(), np.diff(own.indptr))
        rows = sparse.hstack([own, shared], format="csr")
        system = by_rows(rows) if width <= n * K else by_matrix((rows @ rows.T).toarray())
    else:
        matrix = (shared @ shared.T).toarray()
        for i in range(K):
            matrix[i::K, i::K] += np.outer(signs[:, i], signs[:, i]) * (gram + 1.0)
        system = by_matrix(matrix)
    found = solve_dual(*system, n * K, cost)
    return None if found is None else np.clip(found, 0.0, cost).reshape(n, K)


def _clique_rows(signs: Floats, cliques: Cliques) -> Any:
    """prod_{j in C} y_lj in column C of rows (l, i), i in C."""
    (n, K), length = signs.shape, np.diff(cliques.member_ptr)
    sets = np.split(cliques.member, cliques.member_ptr[1:-1])[: len(length)]
    products = product_columns(signs, [tuple(c) for c in sets])
    owner = np.repeat(np.arange(len(length)), length)
    rows = np.arange(n)[:, None] * K + cliques.member
    columns = np.broadcast_to(owner, rows.shape)
    values = products[:, owner]
    return sparse.csr_array((values.ravel(), (rows.ravel(), columns.ravel())), shape=(n * K, len(length)))


def follow(X: Any, gram: Floats | None, signs: Floats, cliques: Cliques, eta: float, dual: Floats) -> Any:
    """What the dual implies: w (K, d) or with a kernel scores (K, n), b (K) and v (M)."""
    moved = dual * signs
    v = np.asarray(_clique_rows(signs, cliques).T @ dual.ravel()) / eta
    product = np.asarray(X.T @ moved).T if gram is None else moved.T @ gram
    return product, moved.sum(axis=0), v


#: Passes between two checks of the gap; if the first check finds a gap, Newton steps follow.
_BLOCK = 100
#: Which labels have a product: all sets of 2 up to this many, or the sets themselves.
CliqueOption = int | Sequence[Sequence[int]]


class Machine(NamedTuple):
    """Weights: scores are `matrix @ own.T + bias`; `weight` (M) of the cliques. gap: what was proved in learning."""

    own: Floats
    bias: Floats
    weight: Floats
    cliques: Cliques
    objective: float
    gap: float

    def scores(self, matrix: Any) -> Floats:
        """s (n, K): scores without other labels' part."""
        return np.ascontiguousarray(np.asarray(matrix @ self.own.T) + self.bias)

    def margins(self, scores: Floats, signs: Floats) -> Floats:
        """z (n, K) of labellings."""
        found = np.empty(scores.shape)
        fields(self.cliques, self.weight, np.ascontiguousarray(signs), found)
        return found + signs * scores

    def losses(self, scores: Floats, signs: Floats) -> Floats:
        """Hinge sums (n) of labellings."""
        return np.asarray(np.maximum(0.0, 1.0 - self.margins(scores, signs)).sum(axis=1))

    def sets(self) -> list[tuple[int, ...]]:
        """The labels of each clique."""
        ptr, member = self.cliques.member_ptr, self.cliques.member.tolist()
        return [tuple(member[a:b]) for a, b in pairwise(ptr.tolist())]


def clique_sets(option: CliqueOption, n_labels: int) -> list[tuple[int, ...]]:
    """The cliques of two or more labels, each once; refuses unknown and repeated labels."""
    if isinstance(option, int | np.integer) and not isinstance(option, bool):
        if option < 1:
            raise PotentiaError(f"cliques must be at least 1 (no products), not {option}.")
        sizes = range(2, min(int(option), n_labels) + 1)
        return [c for size in sizes for c in combinations(range(n_labels), size)]
    if isinstance(option, str | bool) or not isinstance(option, Sequence):
        raise PotentiaError(
            f"cliques must be a whole number or a list of sets of labels, not {shown(option)}."
        )
    found = []
    for entry in option:
        given = whole_numbers(list(entry) if isinstance(entry, Iterable) else [entry], "cliques")
        members = sorted(given.ravel().tolist())
        if len(members) < 2 or len(set(members)) < len(members):
            raise PotentiaError(f"a clique has two or more different labels, not {members}.")
        if members[0] < 0 or members[-1] >= n_labels:
            raise PotentiaError(f"clique {members} names a label outside 0..{n_labels - 1}.")
        found.append(tuple(members))
    return sorted(set(found), key=lambda c: (len(c), c))


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


def learn_machine(
    X: Any, gram: Floats | None, signs: Floats, cliques: Cliques, solver: HingeSolver, eta: float
) -> Machine:
    """min 1/2 (|w|^2 + |b|^2 + eta |v|^2) + 1 / (alpha n) sum_li [1 - z_li]_+ by dual coordinate descent.

    `solver.tol` is the gap at which to stop, as a share of the objective; `solver.passes` limits the visits. With a
    kernel matrix `gram` (n, n) the weights `own` are those of the training rows.
    """
    n, K = signs.shape
    rows, squares = feature_rows(X, gram), np.diagonal(gram) if gram is not None else _squares(X)
    state = DualState(
        dual=np.zeros((n, K)),
        w=np.zeros((K, X.shape[1] if gram is None else 0)),
        scores=np.zeros((K, 0 if gram is None else n)),
        b=np.zeros(K),
        v=np.zeros(len(cliques.member_ptr) - 1),
    )
    cost, spread, left = solver.cost(n), 0.1, solver.passes
    kept = None if solver.solved is None else solver.solved.get("limits", (2,))
    if solver.solved is not None and kept is not None:
        spread, left = float(kept[0]), min(max(0, int(kept[1])), solver.passes)
        for name, array in state._asdict().items():
            found = solver.solved.get(name, array.shape)
            array[...] = 0.0 if found is None else found
    if left == 0:  # the fit had reached its limit
        machine = _machine(X, gram, signs, cliques, state, eta, cost)
    while left > 0:
        block = min(left, _BLOCK)
        visits = block * max(n * K, 1000)
        limits = (cost, spread, visits, solver.seed + left)
        reached = descend_joint(rows, signs, cliques, squares + 1.0, eta, *limits, state)
        if reached > spread and left == solver.passes:
            _leap(X, gram, signs, cliques, eta, cost, state)
        machine = _machine(X, gram, signs, cliques, state, eta, cost)
        if machine.gap <= solver.tol * machine.objective:
            return machine
        left -= block
        spread = 0.2 * spread if reached <= spread else spread
        if solver.solved is not None:
            solver.solved.put(state._asdict() | {"limits": np.array([spread, left])})
    warn_caller(
        f"The gap was still {machine.gap / machine.objective:.2g} of the objective after {solver.passes} passes; "
        "raise passes or alpha, or scale the features.",
        ConvergenceWarning,
    )
    return machine


def _leap(
    X: Any, gram: Floats | None, signs: Floats, cliques: Cliques, eta: float, cost: float, state: DualState
) -> None:
    """Put the state where Newton steps lead, if the problem is small enough for them."""
    dual = interior_dual(X, gram, signs, cliques, eta, cost)
    if dual is None:
        return
    state.dual[:] = dual
    product, state.b[:], state.v[:] = follow(X, gram, signs, cliques, eta, dual)
    (state.w if gram is None else state.scores)[:] = product


def _machine(
    X: Any, gram: Floats | None, signs: Floats, cliques: Cliques, state: DualState, eta: float, cost: float
) -> Machine:
    """The weights with their objective and gap, in units of the mean loss."""
    own = state.w.copy() if gram is None else np.ascontiguousarray((state.dual * signs).T)
    machine = Machine(own, state.b.copy(), state.v.copy(), cliques, 0.0, 0.0)
    scores = machine.scores(X if gram is None else gram)
    if gram is None:
        square = float((own * own).sum())
    else:
        square = float((own * (scores - machine.bias).T).sum())
        # what rounding has added up goes
        state.scores[:] = (scores - machine.bias).T
    square = 0.5 * (square + float(state.b @ state.b) + eta * float(state.v @ state.v))
    hinge = cost * float(machine.losses(scores, signs).sum())
    unit = 1.0 / (cost * len(signs))
    dual = float(state.dual.sum()) - square
    return machine._replace(objective=unit * (square + hinge), gap=unit * (square + hinge - dual))


def _squares(X: Any) -> Floats:
    squares = X.multiply(X) if sparse.issparse(X) else X * X
    return np.asarray(squares.sum(axis=1)).ravel()
