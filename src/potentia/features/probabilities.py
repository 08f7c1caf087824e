"""Probabilities that any other model gives pixels, as features of pixels and of pairs."""

from __future__ import annotations

import numpy as np

from .._types import ArrayLike, Ints, PotentiaError, real_numbers
from .resize import Stack

#: Probabilities below this count as this much: a model's certainty stays finite.
_LEAST = 1e-4
# how far sums of probabilities may be from one
_ROUNDING = 1e-3


def log_probabilities(given: ArrayLike, n_states: int, size: tuple[int, ...]) -> Stack:
    """Log-probabilities (*size, n_states) in float32, at least log 1e-4, of probabilities or logits.

    Args:
        given: (*size, n_states) probabilities, which are at least 0 and sum to one, or else logits; of two states also
            (*size) probabilities of the second.
        n_states: number of classes.
        size: of the image.
    """
    values = real_numbers(given, "probabilities")
    if n_states == 2 and values.shape == size:
        if values.min() < 0.0 or values.max() > 1.0:
            raise PotentiaError(f"probabilities of shape {size} must lie in [0, 1].")
        values = np.stack([1.0 - values, values], axis=-1)
    if values.shape != (*size, n_states):
        raise PotentiaError(
            f"probabilities has shape {values.shape}, but the image needs {(*size, n_states)}."
        )
    if not np.isfinite(values).all():
        raise PotentiaError("probabilities holds a value that is not finite.")
    total = values.sum(axis=-1)
    if values.min() < 0.0 or np.abs(total - 1.0).max() > _ROUNDING:
        values = np.exp(values - values.max(axis=-1, keepdims=True))
        total = values.sum(axis=-1)
    return np.log(np.maximum(values / total[..., None], _LEAST)).astype(np.float32)


def probability_pairs(logarithms: Stack, pairs: Ints) -> Stack:
    """Features (m, 2) of pairs: how much the probabilities of both sides agree, and how certain both are.

    The first is sum_k sqrt(p_k q_k), the second the product of the largest ones.
    """
    flat = logarithms.reshape(-1, logarithms.shape[-1])
    agreement = np.zeros(len(pairs), dtype=np.float32)
    for column in flat.T:
        agreement += np.exp(0.5 * (column[pairs[:, 0]] + column[pairs[:, 1]]))
    certain = np.exp(flat.max(axis=1))
    return np.stack([agreement, certain[pairs[:, 0]] * certain[pairs[:, 1]]], axis=1)
