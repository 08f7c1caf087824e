"""PyTorch modules made from classes and keywords, and their state as arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ...base.types import PotentiaError, shown
from ...potentials.inputs import Inputs


def find_module(name: str) -> type[torch.nn.Module] | None:
    """The class of modules of this name, among those that the running program has defined."""
    found: type[torch.nn.Module] | None = None
    waiting: list[type[torch.nn.Module]] = [torch.nn.Module]
    while waiting:
        cls = waiting.pop(0)
        waiting += cls.__subclasses__()
        if f"{cls.__module__}.{cls.__qualname__}" == name:
            found = cls  # the last one, where a notebook has defined it again
    return found


def build_module(given: Any, options: Mapping[str, Any], device: str | None, seed: int) -> torch.nn.Module:
    """A module of the class with these keywords, its parameters drawn by the seed, on a device."""
    if not (isinstance(given, type) and issubclass(given, torch.nn.Module)):
        raise PotentiaError(f"module must be a class derived from torch.nn.Module, not {shown(given)}.")
    place = _device(device)
    try:
        with seeded(torch.device("cpu"), seed, 0), torch.device("cpu"):
            built = given(**options)
    except Exception as error:
        raise PotentiaError(
            f"the module {given.__name__} cannot be built with {dict(options)}: {first_line(error)}."
        ) from error
    kinds = {p.dtype for p in built.parameters()} - {torch.float32, torch.float64}
    if kinds:
        raise PotentiaError(f"parameters of {given.__name__} must be float32 or float64, not {kinds.pop()}.")
    return built.to(place)


def _device(name: str | None) -> torch.device:
    if name is not None and not isinstance(name, str):
        raise PotentiaError(f"device must be a text such as 'cuda' or None, not {shown(name)}.")
    try:
        place = torch.get_default_device() if name is None else torch.device(name)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise PotentiaError(f"device {name!r} cannot be used: {first_line(error)}.") from None
    return place


def module_dtype(module: torch.nn.Module) -> torch.dtype:
    """The precision of floating-point inputs: that of the module's first parameter."""
    return next((p.dtype for p in module.parameters()), torch.float32)


def first_line(error: Exception) -> str:
    """What an error says, without further lines and the full stop."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


@contextmanager
def seeded(device: torch.device, *numbers: int) -> Iterator[None]:
    """PyTorch's random numbers follow from these numbers; afterwards its global state is as before."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1)[0])
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        for own in devices:
            with torch.cuda.device(own):
                torch.cuda.manual_seed(seed)
        yield


def to_arrays(state: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors by name as copied arrays."""
    found = {}
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise PotentiaError(f"{name} of the module's state is a {type(value).__name__}, not a tensor.")
        try:
            found[name] = value.detach().cpu().numpy().copy()
        except TypeError:
            raise PotentiaError(f"{name} of the module's state has the type {value.dtype}.") from None
    return found


def check_without_memory(given: Any, options: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Refuse keywords by which a module has another state than these arrays, before its parameters take memory."""
    try:
        with torch.device("meta"):
            built = given(**options)
            state = built.state_dict()
    except (
        Exception
    ):  # the module computes with its numbers while it is built; others are checked once they are
        return
    _check_arrays(given.__name__, state, arrays)


def load_arrays(module: torch.nn.Module, arrays: Mapping[str, Any]) -> None:
    """Give a module the state that `to_arrays` made."""
    _check_arrays(type(module).__name__, module.state_dict(), arrays)
    module.load_state_dict({key: torch.from_numpy(array.copy()) for key, array in arrays.items()})


def _check_arrays(name: str, own: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    if set(own) != set(arrays):
        odd = sorted(set(own) ^ set(arrays))[0]
        raise PotentiaError(
            f"the weights belong to another module than {name}: {odd} is in one of them only."
        )
    for key, tensor in own.items():
        array = arrays[key]
        if not isinstance(array, np.ndarray) or array.shape != tuple(tensor.shape):
            shape = getattr(array, "shape", None)
            raise PotentiaError(
                f"the weights belong to another module than {name}: {key} has the shape {shape}, not "
                f"{tuple(tensor.shape)}."
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise PotentiaError(f"the weights are damaged: {key} holds numbers that are not finite.")


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
