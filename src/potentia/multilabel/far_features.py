"""A warning of features that linear functions hardly see vary, because their mean is far from zero."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from .._types import warn_caller
from ..features.offsets import CONSTANT_SHARE, FAR, Moments, attribute_moments
from .remote_rows import RemoteRows

#: Standard deviations that a feature's mean may be away from zero if another feature can take the place of the
#: constant.
_HOPELESS = 1e3
#: Numbers that are looked at together.
_BLOCK = 1 << 20


def warn_of_far_features(X: Any) -> None:
    """Warn of a feature whose mean exceeds its spread by far: linear functions have a penalised constant, too."""
    found = X.ask(far_feature) if isinstance(X, RemoteRows) else far_feature(X)
    if found is not None:
        warn_caller(
            f"feature {found} of X has a mean more than {FAR:g} times its standard deviation, so that a linear "
            "function hardly sees it vary: standardise the features.",
            UserWarning,
        )


def far_feature(X: Any) -> int | None:
    """The first feature whose mean exceeds its spread by far, of dense or CSR rows, which are read in blocks."""
    n, d = X.shape
    if sparse.issparse(X):
        # a feature of which more entries are zero varies by more
        stored = np.bincount(X.indices, minlength=d)
        if not (stored >= n * (1 - 1 / (1 + FAR**2))).any():
            return None
        size = max(1, n * max(_BLOCK, d) // max(X.nnz, 1))
    else:
        size = max(1, _BLOCK // max(d, 1))
    moments = Moments.none(d)
    for first in range(0, n, size):
        block = X[first : first + size]
        for part in _sparse_moments(block) if sparse.issparse(X) else [_dense_moments(block)]:
            moments.add(part, slice(None))
    with np.errstate(over="ignore", invalid="ignore"):
        mean, spread = np.abs(moments.mean), np.sqrt(moments.deviation / max(n, 1))
        off = mean > FAR * spread
        # what a weight of 1 adds to the score as a constant: that of the intercept, or another feature's mean
        constants = np.concatenate([[1.0], np.where(off, mean, 0.0)])
        top = int(constants.argmax())
        best = np.full(d, constants[top])
        if top > 0:
            best[top - 1] = np.delete(constants, top).max()
        far = off & ((mean > FAR * spread * best) | (mean > _HOPELESS * spread))
        far &= spread > CONSTANT_SHARE * mean
    return int(far.argmax()) if far.any() else None


def _dense_moments(rows: Any) -> Moments:
    with np.errstate(over="ignore", invalid="ignore"):
        mean = rows.mean(axis=0)
        return Moments(np.full(len(mean), float(len(rows))), mean, ((rows - mean) ** 2).sum(axis=0))


def _sparse_moments(rows: Any) -> list[Moments]:
    """Moments of the entries that are stored, and of those that are not."""
    rows.sum_duplicates()
    n, d = rows.shape
    stored = attribute_moments(rows.indices, rows.data, np.ones(rows.nnz), d)
    return [stored, Moments(n - stored.weight, np.zeros(d), np.zeros(d))]
