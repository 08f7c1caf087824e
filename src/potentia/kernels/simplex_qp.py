"""A small concave quadratic program on the simplex."""

from __future__ import annotations

from .machine.jit import njit
from .vecmath import KERNEL


@njit(allocates=True, **KERNEL)
def maximise_on_simplex(linear, quadratic, x, tol, limit):
    """Raise linear . x - x' quadratic x / 2 over x >= 0, sum x = 1, from the feasible x given.

    Each step moves weight between the two entries that violate optimality most, exactly. Stops when the largest
    slope exceeds the smallest slope of a positive entry by at most tol, so that x is within tol of the maximum.
    """
    n = x.size
    slope = linear.copy()
    for i in range(n):
        if x[i] != 0.0:
            for j in range(n):
                slope[j] -= quadratic[i, j] * x[i]
    for _ in range(limit):
        up, down = 0, -1
        for i in range(n):
            if slope[i] > slope[up]:
                up = i
            if x[i] > 0.0 and (down < 0 or slope[i] < slope[down]):
                down = i
        rise = slope[up] - slope[down]
        if rise <= tol:
            break
        curvature = quadratic[up, up] + quadratic[down, down] - 2.0 * quadratic[up, down]
        move = x[down] if rise >= curvature * x[down] else rise / curvature
        x[up] += move
        x[down] = 0.0 if move == x[down] else x[down] - move
        for i in range(n):
            slope[i] -= move * (quadratic[up, i] - quadratic[down, i])
