"""The Boltzmann machine's dual by Newton steps, for small problems that coordinate descent is too slow for."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from .._types import Floats
from ..kernels.coordinate_joint import Cliques
from .features import LARGEST_SYSTEM, rows_by_label
from .interior import by_matrix, by_rows, solve_dual
from .structure import product_columns


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
