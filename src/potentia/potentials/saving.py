"""Potentials, and scikit-learn's feature expansions inside them, as JSON and arrays, without pickle."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.saving import build, decode, encode, find_class, saved_name
from ..base.schema import Array, Count, Either, Field, Items, Schema, check
from ..base.types import PotentiaError

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
        key: _pack_value(f"params.{key}", value, arrays) for key, value in potential.get_params(deep=False).items()
    }
    learned = {key: _pack_value(f"fitted.{key}", value, arrays) for key, value in fitted.items()}
    return {"class": saved_name(type(potential)), "params": params, "fitted": learned}, arrays


def restore(meta: Any, arrays: Arrays, base: type) -> Any:
    """The potential of a subclass of `base` that `pack` described, checked by its declared schema."""
    potential, fitted = _unpack(meta, arrays, base)
    if fitted:
        values = check(potential.saved, potential.get_params(deep=False) | fitted, "potential")
        strange = [name for name in fitted if not _LEARNED.fullmatch(name) or hasattr(type(potential), name)]
        if strange:
            raise PotentiaError(f"the saved potential is damaged: {strange[0]!r} is not a learned attribute.")
        potential.__dict__.update(fitted | {name: values[name] for name in values.keys() & fitted.keys()})
        potential.check_options()
    return potential


def _unpack(meta: Any, arrays: Arrays, base: type) -> tuple[Any, dict[str, Any]]:
    """The unfitted potential and its fitted attributes."""
    try:
        name, params, fitted = meta["class"], dict(meta["params"]), dict(meta["fitted"])
    except (KeyError, TypeError, ValueError):
        raise PotentiaError("the saved potential is damaged: it lacks class, params or fitted.") from None
    cls, arrays = find_class(name, base), _Once(arrays)
    potential = build(cls, {key: _unpack_value(value, arrays) for key, value in params.items()})
    return potential, {key: _unpack_value(value, arrays) for key, value in fitted.items()}


def _pack_value(path: str, value: Any, arrays: Arrays) -> Any:
    """A parameter or attribute as JSON; its arrays are added to `arrays` under `path`."""
    if isinstance(value, np.ndarray):
        arrays[path] = value
        return {"array": path}
    if isinstance(value, dict) and value and all(isinstance(item, np.ndarray) for item in value.values()):
        return {"arrays": {key: _pack_value(f"{path}/{key}", item, arrays) for key, item in value.items()}}
    if is_transformer(value):
        return {"transformer": pack_transformer(path, value, arrays)}
    return {"value": encode(value, path)}


def _unpack_value(packed: Any, arrays: Arrays) -> Any:
    """The value that `_pack_value` packed."""
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


#: Attributes of a fitted transformer of each class, beyond its parameters and splines.
_FITTED = {
    "PolynomialFeatures": (),
    "SplineTransformer": ("n_features_out_",),
    "StandardScaler": ("mean_", "var_", "scale_", "n_samples_seen_"),
}


_PER_FEATURE = Array("f8", ("d",), optional=True)
_ARRAYS = {"n_features_out_": Array("f8", ()), "n_samples_seen_": Either(Array("f8", ()), Array("f8", ("d",)))}

#: Types of parameters besides plain values.
_LISTS = tuple | list | np.ndarray | np.generic


def is_transformer(value: Any) -> bool:
    """Whether this is an object that turns features into features."""
    return hasattr(value, "transform") and hasattr(value, "get_params")


def pack_transformer(path: str, transformer: Any, arrays: Arrays) -> dict[str, Any]:
    """A JSON-able description; arrays are added to `arrays` under names that begin with `path`."""
    name = type(transformer).__name__
    if transformer is None or isinstance(transformer, str):  # a step of a pipeline that does nothing
        return {"class": "passthrough"}
    if name == "Pipeline":
        steps = [[key, pack_transformer(f"{path}.{key}", step, arrays)] for key, step in transformer.steps]
        return {"class": name, "steps": steps}
    if name not in _FITTED:
        known = ", ".join([*_FITTED, "Pipeline"])
        raise PotentiaError(f"A transformer of class {name} cannot be saved; these can: {known}.")
    packed: dict[str, Any] = {"class": name, "params": _plain_params(transformer), "fitted": {}}
    if hasattr(transformer, "n_features_in_"):
        packed["n_features_in"] = int(transformer.n_features_in_)
        for key in _FITTED[name]:
            if getattr(transformer, key) is not None:  # a scaler that does not scale
                arrays[f"{path}.{key}"] = np.asarray(getattr(transformer, key), dtype=np.float64)
                packed["fitted"][key] = f"{path}.{key}"
        splines = getattr(transformer, "bsplines_", [])
        packed["splines"] = [_pack_spline(f"{path}.{i}", spline, arrays) for i, spline in enumerate(splines)]
    return packed


def unpack_transformer(packed: dict[str, Any], arrays: Arrays) -> Any:
    """The transformer that was packed, fitted if it was."""
    from sklearn import pipeline, preprocessing

    name = packed["class"]
    if name == "Pipeline":
        return pipeline.Pipeline([(key, unpack_transformer(step, arrays)) for key, step in packed["steps"]])
    if name == "passthrough":
        return "passthrough"
    if name not in _FITTED:
        raise PotentiaError(f"the saved transformer is of class {name}, which is unknown.")
    transformer = getattr(preprocessing, name)(**packed["params"])
    if "n_features_in" not in packed:
        return transformer
    fitted = _check_fitted(packed, arrays)
    # fitting on anything sets the bookkeeping; what depends on the data is then put back
    transformer.fit(np.arange(32.0 * packed["n_features_in"]).reshape(32, -1))
    for key, value in fitted.items():
        setattr(transformer, key, value if value.ndim else type(getattr(transformer, key))(value))
    if packed["splines"]:
        transformer.bsplines_ = [_unpack_spline(spline, arrays) for spline in packed["splines"]]
    return transformer


def _check_fitted(packed: dict[str, Any], arrays: Arrays) -> Arrays:
    """The fitted arrays of a transformer by attribute; refuses sizes that the potential's other arrays do not need.

    An expansion has no fewer columns than features, knots or its degree, and weights of every column are saved, too.
    """
    name, spline = packed["class"], packed["class"] == "SplineTransformer"
    most = 32 + max(array.size for array in arrays.values())
    sizes = [value for value in packed["params"].values() if isinstance(value, int)]
    columns = Count("d", 1, most)
    schema: Schema = {"n_features_in": columns, "splines": Items(Field(), "d" if spline else None)}
    n_features = check(schema, packed, name)["n_features_in"]
    if any(size > most for size in sizes) or len(packed["splines"]) != (n_features if spline else 0):
        raise PotentiaError(f"the saved {name} is damaged: its sizes do not agree.")
    schema = {key: _ARRAYS.get(key, _PER_FEATURE) for key in _FITTED[name]}
    values = {key: arrays[array] for key, array in packed["fitted"].items()}
    checked = check(schema, values, name, {"d": n_features})
    return {key: value for key, value in checked.items() if value is not None}


def _plain_params(transformer: Any) -> dict[str, Any]:
    """A transformer's parameters as plain values; refuses others."""
    params = {}
    for key, value in transformer.get_params(deep=False).items():
        params[key] = np.asarray(value).tolist() if isinstance(value, _LISTS) else value
        if not is_json(params[key]):
            name = type(transformer).__name__
            raise PotentiaError(f"{name} with {key} = {value!r} cannot be saved: use plain values.")
    return params


def _pack_spline(path: str, spline: Any, arrays: Arrays) -> dict[str, Any]:
    """A spline's degree, and its knots and coefficients among the arrays."""
    arrays[f"{path}.knots"], arrays[f"{path}.coef"] = np.asarray(spline.t), np.asarray(spline.c)
    return {"path": path, "degree": int(spline.k), "extrapolate": spline.extrapolate}


def _unpack_spline(packed: dict[str, Any], arrays: Arrays) -> Any:
    """The spline that was packed."""
    from scipy.interpolate import BSpline

    knots, coef = arrays[f"{packed['path']}.knots"], arrays[f"{packed['path']}.coef"]
    return BSpline(np.array(knots), np.array(coef), packed["degree"], packed["extrapolate"])


def is_json(value: Any) -> bool:
    """Whether JSON can hold this."""
    if isinstance(value, list):
        return all(is_json(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_json(item) for key, item in value.items())
    return value is None or isinstance(value, bool | int | float | str)
