"""Index tensors that move with a module from device to device, and what several modules do with tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Self

import numpy as np
import torch

from ...base.types import Floats, Ints, PotentiaError


class Indices(torch.nn.Module):
    """Index tensors and numbers by name, which move with the module, are not saved and keep their types."""

    def __init__(self, indices: Mapping[str, Ints], numbers: Mapping[str, Floats] | None = None) -> None:
        super().__init__()
        for name, index in indices.items():
            self.register_buffer(name, torch.from_numpy(np.array(index, dtype=np.int64)), persistent=False)
        self._exact = {name: torch.from_numpy(np.array(x, dtype=np.float64)) for name, x in (numbers or {}).items()}
        for name, exact in self._exact.items():
            self.register_buffer(name, exact.clone(), persistent=False)

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Move to a device, but leave counting numbers in float64, where the device has it."""
        # a network of half precision still has counting numbers of float64
        super()._apply(fn, recurse)
        for name, exact in self._exact.items():
            device = self._buffers[name].device
            self._buffers[name] = exact.to(device, torch.float32 if device.type == "mps" else torch.float64)
        return self


def safe_log_sum(values: torch.Tensor, dim: int) -> torch.Tensor:
    """log sum exp without NaN in the gradient where everything is -inf."""
    peak = values.detach().amax(dim, keepdim=True)
    peak = torch.where(peak == -torch.inf, 0.0, peak)
    total = torch.exp(values - peak).sum(dim)
    return torch.where(total > 0, torch.log(torch.where(total > 0, total, 1.0)) + peak.squeeze(dim), -torch.inf)


def damped(new: torch.Tensor, old: torch.Tensor, damping: float) -> torch.Tensor:
    """A step from old messages towards new ones; where either is -inf, the new one."""
    if not damping:
        return new
    both = (new > -torch.inf) & (old > -torch.inf)
    return torch.where(both, (1.0 - damping) * new + damping * torch.where(both, old, 0.0), new)


def tensors_of(theta: Any) -> list[torch.Tensor]:
    """All tensors of scores per kind, whatever else there may be."""
    values = theta.values() if isinstance(theta, Mapping) else ()
    every = [value if isinstance(value, list | tuple) else [value] for value in values]
    return [table for tables in every for table in tables if isinstance(table, torch.Tensor)]


def common_type(tensors: Sequence[torch.Tensor]) -> torch.dtype:
    """The common type of some tensors; the default type of none."""
    return reduce(torch.promote_types, [t.dtype for t in tensors]) if tensors else torch.get_default_dtype()


def working_type(tensors: Sequence[torch.Tensor]) -> torch.dtype:
    """The type that computes with these: their common one, but at least float32."""
    return torch.promote_types(torch.float32, common_type(tensors)) if tensors else torch.get_default_dtype()


def checked_tensors(kind: str, theta: Any) -> Sequence[torch.Tensor]:
    """A kind's scores as a list of tensors; refuses what is none, or holds no floating-point numbers."""
    tables = [theta] if isinstance(theta, torch.Tensor) else theta
    if not isinstance(tables, Sequence) or not all(isinstance(table, torch.Tensor) for table in tables):
        raise PotentiaError(
            f"theta[{kind!r}] must be a tensor, or a list of tensors where state counts are mixed, "
            f"not a {type(theta).__name__}."
        )
    for table in tables:
        if not table.is_floating_point():
            raise PotentiaError(f"theta[{kind!r}] must hold floating-point numbers, not {table.dtype}.")
    return tables


def shaped(flat: torch.Tensor, one: tuple[int, ...] | None, shapes: Sequence[Sequence[int]]) -> Any:
    """Flat tables of a kind, (n, *one) where all have that shape, else as a list."""
    if one is not None:
        return flat.reshape(-1, *one)
    parts = torch.split(flat, [math.prod(shape) for shape in shapes])
    return [part.reshape(tuple(shape)) for part, shape in zip(parts, shapes, strict=True)]
