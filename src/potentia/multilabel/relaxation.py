"""The labelling of least hinge loss by linear programming over local marginals [LMSBN Eq. 5, relaxed].

    min sum_i xi_i    xi_i >= 1 - E[z_i],  xi_i >= 0,    E[z_i] = s_i t_i + sum over C with i in C of v_C t_C

Marginals of a clique's signs are written by their moments t_S = E[prod_{j in S} y_j], S a subset of the clique: they
are a distribution's if and only if sum over S of prod_{j in S} a_j t_S >= 0 for every a in {-1, +1}^C, with t of the
empty set 1. Moments are shared between cliques, which makes marginals agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from .._types import Floats, PotentiaError
from ..parallel.connection import map_anywhere

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
