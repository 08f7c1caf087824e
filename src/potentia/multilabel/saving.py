"""Files of multi-label estimators: JSON and arrays, checked by the schema that each class declares."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np

from .._registry import Registered, SavedFunction, build, decode, encode, saved_name
from .._schema import FLAG, TEXT, Array, Count, Items, Kind, Rule, Schema, Size, check
from .._types import PotentiaError
from ..io.files import read_file, reading, write_file
from .coding import Coding


class SavedClassifier(Registered):
    """What a classifier of K labels, V of which vary, needs to be saved and loaded.

    A subclass extends `saved`, whose names are those of JSON fields and of arrays, and defines `_state` and `_restore`.
    """

    #: What a file holds; see `potentia._schema`.
    saved: ClassVar[Schema] = {
        "params": Kind((dict,)),
        "label_names": Items(TEXT, "K"),
        "flat": FLAG,
        "feature_names": Items(TEXT),
        "n_features": Count("d", 1),
        "signs": Array("f8", ("K",)),
        "classes": Items(Array("label", ("*",)), "K"),
        "values": Rule(lambda found: _fit_each_other(found), "of the labels do not fit their signs"),
        "V": Size(lambda found: np.sum(found["signs"] == 0)),
    }

    classes_: np.ndarray | list[np.ndarray]
    label_names_: list[str]
    n_labels_: int
    n_features_in_: int
    feature_names_in_: np.ndarray
    get_params: Callable[..., dict[str, Any]]
    _coding: Coding

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file of JSON and arrays, without code."""
        write_file(path, saved_name(type(self)), *self.state())

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fitted model as JSON and arrays."""
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self)
        name, coding = type(self).__name__, self._coding
        content = {
            "params": {
                k: encode(_by_name(v), f"{k} of {name}") for k, v in self.get_params(deep=False).items()
            },
            "label_names": self.label_names_,
            "flat": coding.flat,
            "feature_names": getattr(self, "feature_names_in_", np.empty(0)).tolist(),
            "n_features": self.n_features_in_,
        }
        arrays = {f"classes/{k}": _storable(values) for k, values in enumerate(coding.classes)}
        own_content, own_arrays = self._state()
        return content | own_content, arrays | {"signs": coding.signs} | own_arrays

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """A model written by `save`; predictions are identical."""
        with reading(path):
            return cls.from_state(*read_file(path, saved_name(cls)))

    @classmethod
    def from_state(cls, content: dict[str, Any], arrays: dict[str, Any]) -> Self:
        """The model that `state` described."""
        classes = [arrays[f"classes/{k}"] for k in range(sum(name.startswith("classes/") for name in arrays))]
        found = check(cls.saved, {**content, **arrays, "classes": classes}, cls.__name__)
        model: Self = build(cls, {name: decode(value) for name, value in found["params"].items()})
        model._check_options()
        model._coding = Coding(found["classes"], found["signs"], found["flat"])
        model.label_names_, model.n_labels_ = found["label_names"], len(found["label_names"])
        model.classes_ = model._coding.public
        model.n_features_in_ = found["n_features"]
        if found["feature_names"]:
            model.feature_names_in_ = np.array(found["feature_names"], dtype=object)
        model._restore(found, arrays)
        return model

    def _check_options(self) -> None:
        """Refuse bad options before any work."""

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """JSON and arrays of what `_fit` has learned."""
        return {}, {}

    def _restore(self, found: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Take what `_state` gave from the values found by the schema, or from all arrays."""


def _fit_each_other(found: dict[str, Any]) -> bool:
    """Whether every label has two ascending values and the sign 0, or one value and the sign 1 or -1."""
    names, n_names = found["label_names"], len(found["feature_names"])
    return (
        all(
            len(values) == (2 if sign == 0 else 1)
            and (sign in (-1.0, 1.0) if len(values) == 1 else bool(values[0] < values[1]))
            for values, sign in zip(found["classes"], found["signs"], strict=True)
        )
        and len(names) >= 1
        and (not found["flat"] or len(names) == 1)
        and n_names in (0, found["n_features"])
    )


def _by_name(value: Any) -> Any:
    """An option with other libraries' estimators as their names; what they have learned is in the arrays."""
    if isinstance(value, list | tuple):
        return [_by_name(item) for item in value]
    if isinstance(value, Registered | type) or not hasattr(value, "get_params"):
        return value
    return SavedFunction(f"{type(value).__module__}.{type(value).__qualname__}")


def _storable(values: np.ndarray) -> np.ndarray:
    """Labels' values as an array that needs no pickle: objects must be text."""
    if values.dtype.kind != "O":
        return values
    if not all(isinstance(v, str) for v in values):
        raise PotentiaError("labels whose values are objects other than text cannot be saved.")
    return values.astype(str)
