"""Saving scikit-learn's feature expansions by their parameters and arrays, without pickle."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.schema import Array, Count, Either, Field, Items, check
from ..base.types import PotentiaError

#: What a fitted transformer of each class consists of, beyond its parameters and splines.
_FITTED = {
    "PolynomialFeatures": (),
    "SplineTransformer": ("n_features_out_",),
    "StandardScaler": ("mean_", "var_", "scale_", "n_samples_seen_"),
}


_PER_FEATURE = Array("f8", ("d",), optional=True)
_ARRAYS = {
    "n_features_out_": Array("f8", ()),
    "n_samples_seen_": Either(Array("f8", ()), Array("f8", ("d",))),
}

#: What parameters may be besides plain values.
_LISTS = tuple | list | np.ndarray | np.generic


def is_transformer(value: Any) -> bool:
    """Whether this is an object that turns features into features."""
    return hasattr(value, "transform") and hasattr(value, "get_params")


def pack_transformer(path: str, transformer: Any, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
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


def unpack_transformer(packed: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Any:
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


def _check_fitted(packed: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The fitted arrays of a transformer by attribute; refuses sizes that the potential's other arrays do not need.

    An expansion has no fewer columns than features, knots or its degree, and weights of every column are saved, too.
    """
    name, spline = packed["class"], packed["class"] == "SplineTransformer"
    most = 32 + max(array.size for array in arrays.values())
    sizes = [value for value in packed["params"].values() if isinstance(value, int)]
    columns = Count("d", 1, most)
    found = check(
        {"n_features_in": columns, "splines": Items(Field(), "d" if spline else None)}, packed, name
    )
    if any(size > most for size in sizes) or len(packed["splines"]) != (
        found["n_features_in"] if spline else 0
    ):
        raise PotentiaError(f"the saved {name} is damaged: its sizes do not agree.")
    schema = {key: _ARRAYS.get(key, _PER_FEATURE) for key in _FITTED[name]}
    values = {key: arrays[array] for key, array in packed["fitted"].items()}
    checked = check(schema, values, name, {"d": found["n_features_in"]})
    return {key: value for key, value in checked.items() if value is not None}


def _plain_params(transformer: Any) -> dict[str, Any]:
    params = {}
    for key, value in transformer.get_params(deep=False).items():
        params[key] = np.asarray(value).tolist() if isinstance(value, _LISTS) else value
        if not is_json(params[key]):
            name = type(transformer).__name__
            raise PotentiaError(f"{name} with {key} = {value!r} cannot be saved: use plain values.")
    return params


def _pack_spline(path: str, spline: Any, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    arrays[f"{path}.knots"], arrays[f"{path}.coef"] = np.asarray(spline.t), np.asarray(spline.c)
    return {"path": path, "degree": int(spline.k), "extrapolate": spline.extrapolate}


def _unpack_spline(packed: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Any:
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
