"""Potentials as JSON and arrays, without pickle."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from potentia._types import PotentiaError
from potentia.potentials.transformers import is_json, is_transformer, pack_transformer, unpack_transformer

Arrays = dict[str, NDArray[Any]]
_classes: dict[str, type] = {}


def _name(cls: type) -> str:
    """The library's own classes by name, so that files survive a move; others with their module."""
    own = cls.__module__.startswith("potentia.")
    return cls.__name__ if own else f"{cls.__module__}.{cls.__qualname__}"


def register(cls: type) -> None:
    """Make a class known to `unpack`."""
    _classes[_name(cls)] = cls


def pack(potential: Any, fitted: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    """(JSON-able dictionary, arrays) of the hyper-parameters and the fitted attributes."""
    arrays: Arrays = {}
    params = {
        key: _pack_value(f"params.{key}", value, arrays)
        for key, value in potential.get_params(deep=False).items()
    }
    learned = {key: _pack_value(f"fitted.{key}", value, arrays) for key, value in fitted.items()}
    return {"class": _name(type(potential)), "params": params, "fitted": learned}, arrays


def unpack(meta: dict[str, Any], arrays: Arrays) -> tuple[Any, dict[str, Any]]:
    """The unfitted potential and its fitted attributes."""
    try:
        name, params, fitted = meta["class"], meta["params"], meta["fitted"]
    except (KeyError, TypeError):
        raise PotentiaError("The saved potential is damaged: it lacks class, params or fitted.") from None
    if name not in _classes:
        raise PotentiaError(f"The saved potential is of class {name}, which is unknown: import it first.")
    potential = _classes[name](**{key: _unpack_value(value, arrays) for key, value in params.items()})
    return potential, {key: _unpack_value(value, arrays) for key, value in fitted.items()}


def _pack_value(path: str, value: Any, arrays: Arrays) -> Any:
    if isinstance(value, np.ndarray):
        arrays[path] = value
        return {"array": path}
    if isinstance(value, np.generic):
        return {"value": value.item()}
    if is_transformer(value):
        return {"transformer": pack_transformer(path, value, arrays)}
    if not is_json(value):
        kind = type(value).__name__
        raise PotentiaError(f"{path} of type {kind} cannot be saved: use numbers, strings or arrays.")
    return {"value": value}


def _unpack_value(packed: dict[str, Any], arrays: Arrays) -> Any:
    if "transformer" in packed:
        return unpack_transformer(packed["transformer"], arrays)
    if "array" not in packed:
        return packed["value"]
    if packed["array"] not in arrays:
        raise PotentiaError(f"The saved potential is damaged: it lacks the array {packed['array']}.")
    return np.array(arrays[packed["array"]])
