"""Stochastic descent over batches of examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .._types import Floats

if TYPE_CHECKING:
    from .risk import Risk

_FIRST, _SECOND, _SMALL = 0.9, 0.999, 1e-8


def adam(
    whole: Risk, parts: Sequence[Risk], passes: int, rate: float, seed: int, record: Callable[[], bool]
) -> bool:
    """Adam [Kingma and Ba 2015]: `passes` over the parts in random order, steps falling as 1 / sqrt(pass).

    The value of `whole` becomes the mean over a pass of the parts' values, each seen once at the parameters of its
    turn. `record` is called after each pass and may stop it. Returns False: nothing is said about convergence.
    """
    functions = whole.functions
    cuts = np.cumsum([f.n_parameters for f in functions])[:-1]
    point = np.concatenate([f.parameters for f in functions])
    mean, square = np.zeros_like(point), np.zeros_like(point)
    share = np.array([part.total for part in parts]) / sum(part.total for part in parts)
    step = 0
    for done in range(passes):
        values = np.zeros(len(parts))
        for number in np.random.default_rng([seed, done]).permutation(len(parts)):
            values[number], slopes = parts[number]()
            slope: Floats = np.concatenate(slopes)
            step += 1
            mean = _FIRST * mean + (1 - _FIRST) * slope
            square = _SECOND * square + (1 - _SECOND) * slope * slope
            ahead = mean / (1 - _FIRST**step) / (np.sqrt(square / (1 - _SECOND**step)) + _SMALL)
            point = point - rate / np.sqrt(done + 1) * ahead
            for function, own in zip(functions, np.split(point, cuts), strict=True):
                function.parameters = own
        whole.value = float(share @ values)
        if record():
            break
    return False
