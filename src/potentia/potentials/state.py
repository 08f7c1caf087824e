"""Potentials as JSON and arrays, without pickle."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from potentia._registry import build, decode, encode, find_class, saved_name
from potentia._schema import check
from potentia._types import PotentiaError
from potentia.potentials.transformers import is_transformer, pack_transformer, unpack_transformer

Arrays = dict[str, NDArray[Any]]
#: Names of what a fit learns.
_LEARNED = re.compile(r"[A-Za-z]\w*_")


class _Once(dict[str, NDArray[Any]]):
    """Arrays of a file, each of which may be taken once: a few bytes could otherwise name a large one many times."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        self._taken: set[str] = set()

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name in self._taken:
            raise PotentiaError(f"the saved potential is damaged: it names the array {name} twice.")
        self._taken.add(name)
        return super().__getitem__(name)


def pack(potential: Any, fitted: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    """(JSON-able dictionary, arrays) of the hyper-parameters and the fitted attributes."""
    arrays: Arrays = {}
    params = {
        key: _pack_value(f"params.{key}", value, arrays)
        for key, value in potential.get_params(deep=False).items()
    }
    learned = {key: _pack_value(f"fitted.{key}", value, arrays) for key, value in fitted.items()}
    return {"class": saved_name(type(potential)), "params": params, "fitted": learned}, arrays


def restore(meta: Any, arrays: Arrays, base: type) -> Any:
    """The potential of a subclass of `base` that `pack` described, checked by its declared schema."""
    potential, fitted = _unpack(meta, arrays, base)
    if fitted:
        found = check(potential.saved, potential.get_params(deep=False) | fitted, "potential")
        strange = [name for name in fitted if not _LEARNED.fullmatch(name) or hasattr(type(potential), name)]
        if strange:
            raise PotentiaError(f"the saved potential is damaged: {strange[0]!r} is not a learned attribute.")
        potential.__dict__.update(fitted | {name: found[name] for name in found.keys() & fitted.keys()})
        potential.check_options()
    return potential


def _unpack(meta: Any, arrays: Arrays, base: type) -> tuple[Any, dict[str, Any]]:
    """The unfitted potential and its fitted attributes."""
    try:
        name, params, fitted = meta["class"], dict(meta["params"]), dict(meta["fitted"])
    except (KeyError, TypeError, ValueError):
        raise PotentiaError("the saved potential is damaged: it lacks class, params or fitted.") from None
    found, arrays = find_class(name, base), _Once(arrays)
    potential = build(found, {key: _unpack_value(value, arrays) for key, value in params.items()})
    return potential, {key: _unpack_value(value, arrays) for key, value in fitted.items()}


def _pack_value(path: str, value: Any, arrays: Arrays) -> Any:
    if isinstance(value, np.ndarray):
        arrays[path] = value
        return {"array": path}
    if isinstance(value, dict) and value and all(isinstance(item, np.ndarray) for item in value.values()):
        return {"arrays": {key: _pack_value(f"{path}/{key}", item, arrays) for key, item in value.items()}}
    if is_transformer(value):
        return {"transformer": pack_transformer(path, value, arrays)}
    return {"value": encode(value, path)}


def _unpack_value(packed: Any, arrays: Arrays) -> Any:
    if isinstance(packed, dict) and "transformer" in packed:
        return unpack_transformer(packed["transformer"], arrays)
    if isinstance(packed, dict) and isinstance(packed.get("arrays"), dict):
        return {key: _unpack_value(item, arrays) for key, item in packed["arrays"].items()}
    if not isinstance(packed, dict) or len(packed) != 1 or not packed.keys() & {"array", "value"}:
        raise PotentiaError("the saved potential is damaged: it holds an object that is not a value.")
    if "value" in packed:
        return decode(packed["value"])
    if not isinstance(packed["array"], str) or packed["array"] not in arrays:
        raise PotentiaError(f"the saved potential is damaged: it lacks the array {packed['array']}.")
    return np.array(arrays[packed["array"]])
