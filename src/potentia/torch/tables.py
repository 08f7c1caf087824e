"""Scores of rows that a module makes of features, or of the inputs of whole examples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from .._types import PotentiaError
from ..potentials.inputs import Inputs
from .modules import first_line, module_dtype


def scores_of(module: torch.nn.Module, x: Any, n_outputs: int, most: int) -> torch.Tensor:
    """Scores (n, K) of rows of features, or of the rows of `Inputs`, of which at most `most` are stacked."""
    if not isinstance(x, Inputs):
        out = _call(module, np.asarray(x))
        if out.shape != (len(x), n_outputs):
            raise PotentiaError(
                f"the module {type(module).__name__} returned the shape {tuple(out.shape)} for {len(x)} rows; "
                f"expected {(len(x), n_outputs)}."
            )
        return out
    tables: list[torch.Tensor] = [torch.empty(0)] * len(x.arrays)
    for group in _equal_shapes(x, most):
        found = _tables(module, np.stack([x.arrays[k] for k in group]), x.sizes[group[0]], n_outputs)
        for k, table in zip(group, found, strict=True):
            tables[k] = table
    joined = torch.cat(tables)
    return joined if x.rows is None else joined[torch.from_numpy(x.rows).to(joined.device)]


def _equal_shapes(x: Inputs, most: int) -> list[list[int]]:
    """Examples whose inputs can be stacked, at most `most` at a time."""
    groups: dict[Any, list[int]] = {}
    for k, array in enumerate(x.arrays):
        groups.setdefault((array.shape, array.dtype, x.sizes[k]), []).append(k)
    return [own[a : a + most] for own in groups.values() for a in range(0, len(own), most)]


def _tables(module: torch.nn.Module, stack: Any, n_regions: int, n_outputs: int) -> torch.Tensor:
    """Scores (B, n_regions, K) of a stack of inputs."""
    out = _call(module, stack)
    shape = tuple(out.shape)
    if shape == (len(stack), n_regions, n_outputs):
        return out
    if len(shape) > 3 and shape[:2] == (len(stack), n_outputs) and math.prod(shape[2:]) == n_regions:
        return out.flatten(2).transpose(1, 2)
    raise PotentiaError(
        f"the module {type(module).__name__} returned the shape {shape} for inputs of shape {stack.shape}; expected "
        f"{(len(stack), n_regions, n_outputs)}, or ({len(stack)}, {n_outputs}, height, width) with {n_regions} pixels."
    )


def _call(module: torch.nn.Module, values: Any) -> torch.Tensor:
    """What the module makes of an array."""
    device = next((p.device for p in module.parameters()), None)
    # PyTorch warns of arrays that it must not write to
    given = torch.from_numpy(np.require(values, requirements=["C", "W"]))
    given = given.to(device, module_dtype(module) if given.is_floating_point() else given.dtype)
    name = type(module).__name__
    try:
        out = module(given)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise PotentiaError(
            f"the module {name} fails on inputs of shape {tuple(given.shape)} and {given.dtype}: {first_line(error)}."
        ) from error
    if not isinstance(out, torch.Tensor):
        raise PotentiaError(f"the module {name} returned a {type(out).__name__}, not a tensor of scores.")
    return out
