"""Fully connected Gaussian terms (dense CRF) as PyTorch operations: exact, or filtered on a bilateral grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from ...base.types import PotentiaError

#: Most pixels whose pairs are all written out, and most cells of a grid.
MAX_EXACT, MAX_CELLS = 16_384, 2**24
#: Cells per standard deviation along every axis of a grid, and standard deviations after which its kernel ends.
_FINE, _REACH = 1.5, 3.5


class ExactKernel:
    """exp(-|f_i - f_j|^2 / 2) between different pixels of features (B, n, d), divided by sqrt(D_i D_j)."""

    def __init__(self, features: Tensor) -> None:
        n = features.shape[1]
        if n > MAX_EXACT:
            raise PotentiaError(f"exact sums over pairs take at most {MAX_EXACT} pixels, not {n}: use dense='grid'.")
        centred = features - features.mean(1, keepdim=True)
        square = (centred**2).sum(2)
        apart = square.unsqueeze(2) + square.unsqueeze(1) - 2.0 * centred @ centred.transpose(1, 2)
        off = 1.0 - torch.eye(n, dtype=features.dtype, device=features.device)
        self.matrix = torch.exp(-0.5 * apart.clamp_min(0.0)) * off
        self.scale = torch.rsqrt(self.matrix.sum(2) + 1.0)

    def multiply(self, values: Tensor) -> Tensor:
        """sum_j k(i, j) values(j) of values (L, B, n)."""
        return self.scale * torch.einsum("bij,lbj->lbi", self.matrix, self.scale * values)


class GridKernel:
    """A Gaussian kernel on a grid of cells over feature space: splat, blur along every axis, slice [Chen et al. 2007].

    Linear interpolation into the cells and out of them adds variance, which the blur leaves out; sums over dense pixels
    are then those of a Gaussian, while values at distance zero are a little smaller. Every pixel's own share is taken
    out exactly. The grid covers `low` to `high` along each axis, to which features are clamped: its size does not
    depend on values, only on these.
    """

    def __init__(self, features: Tensor, low: Sequence[float], high: Sequence[float]) -> None:
        self.sides = [math.ceil(_FINE * (b - a)) + 2 for a, b in zip(low, high, strict=True)]
        cells = math.prod(self.sides)
        if features.shape[0] * cells > MAX_CELLS:
            raise PotentiaError(
                f"the bilateral grid has {' x '.join(map(str, self.sides))} cells per image, more than {MAX_CELLS} "
                "in all: use larger widths or fewer channels."
            )
        self.cells = cells
        first = features.new_tensor(list(low))
        at = _FINE * (torch.minimum(features, features.new_tensor(list(high))) - first).clamp_min(0.0)
        cell = at.detach().floor()
        share = at - cell
        cell = cell.long()
        steps = [math.prod(self.sides[k + 1 :]) for k in range(len(self.sides))]
        start = torch.arange(features.shape[0], device=features.device).unsqueeze(1) * cells
        #: Corners around every pixel: number of the cell and interpolation weight, (B, n) each.
        self.corners: list[tuple[Tensor, Tensor]] = []
        for corner in product((0, 1), repeat=len(self.sides)):
            index, weight = start, torch.ones_like(at[..., 0])
            for axis, (step, bit) in enumerate(zip(steps, corner, strict=True)):
                index = index + (cell[..., axis] + bit) * step
                weight = weight * (share[..., axis] if bit else 1.0 - share[..., axis])
            self.corners.append((index, weight))
        self.taps = _taps()
        self.own = torch.ones_like(at[..., 0])
        for axis in range(len(self.sides)):
            far, near = share[..., axis], 1.0 - share[..., axis]
            self.own = self.own * (self.taps[0] * (far**2 + near**2) + 2.0 * self.taps[1] * far * near)
        ones = torch.ones_like(self.own).unsqueeze(0)
        self.scale = torch.rsqrt(self._filter(ones)[0].clamp_min(0.0) + 1.0)

    def multiply(self, values: Tensor) -> Tensor:
        """sum_j k(i, j) values(j) of values (L, B, n)."""
        # features that all images share see them as further labels
        shared = values.flatten(0, 1).unsqueeze(1) if self.scale.shape[0] == 1 else values
        return (self.scale * self._filter(self.scale * shared)).reshape(values.shape)

    def _filter(self, values: Tensor) -> Tensor:
        """Values (L, B, n) filtered on a coarse grid: splat, blur and slice, less each pixel's response to itself."""
        batch = values.shape[1]
        rows = values.permute(1, 2, 0)  # (B, n, L)
        grid = rows.new_zeros(batch * self.cells, rows.shape[2])
        for index, weight in self.corners:
            grid = grid.index_add(0, index.flatten(), (weight.unsqueeze(2) * rows).flatten(0, 1))
        grid = grid.reshape(batch, *self.sides, -1)
        for axis in range(len(self.sides)):
            grid = self._blur(grid, 1 + axis)
        flat = grid.reshape(batch * self.cells, -1)
        out = -self.own.unsqueeze(2) * rows
        for index, weight in self.corners:
            out = out + weight.unsqueeze(2) * flat[index]
        return out.permute(2, 0, 1)

    def _blur(self, grid: Tensor, axis: int) -> Tensor:
        """Blur the grid along one axis."""
        out, side = self.taps[0] * grid, grid.shape[axis]
        for step, tap in enumerate(self.taps[1:], start=1):
            if step < side:
                none = torch.zeros_like(grid.narrow(axis, 0, step))
                ahead = torch.cat([grid.narrow(axis, step, side - step), none], axis)
                behind = torch.cat([none, grid.narrow(axis, 0, side - step)], axis)
                out = out + tap * (ahead + behind)
        return out


def _taps() -> list[float]:
    """Weights of a cell itself, the next, ...: with two linear interpolations of variance 1 and integral sqrt(2 pi)."""
    variance = _FINE**2 - 1.0 / 3.0
    raw = [math.exp(-0.5 * k * k / variance) for k in range(math.ceil(_REACH * math.sqrt(variance)) + 1)]
    factor = math.sqrt(2.0 * math.pi) * _FINE / (raw[0] + 2.0 * sum(raw[1:]))
    return [factor * value for value in raw]
