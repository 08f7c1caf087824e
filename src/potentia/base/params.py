"""`Params`: hyper-parameters as constructor keywords, with scikit-learn's `get_params` and `set_params`."""

from __future__ import annotations

import inspect
from typing import Any, Self

from .types import PotentiaError


class Params:
    """Hyper-parameters are the constructor's keywords, stored unchanged; works with `sklearn.base.clone`."""

    @classmethod
    def _names(cls) -> list[str]:
        """Names of the constructor's keywords."""
        named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        return [parameter.name for parameter in parameters if parameter.kind in named]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All hyper-parameters by name; with `deep` also those of nested objects as outer__inner."""
        values: dict[str, Any] = {}
        for name in self._names():
            value = values[name] = getattr(self, name)
            if deep and hasattr(value, "get_params") and not isinstance(value, type):
                values.update({f"{name}__{key}": inner for key, inner in value.get_params().items()})
        return values

    def set_params(self, **params: Any) -> Self:
        """Set hyper-parameters by name (outer__inner for nested objects) and return self."""
        names = self._names()
        for key, value in params.items():
            outer, _, inner = key.partition("__")
            if outer not in names:
                has = ", ".join(names) or "none"
                raise PotentiaError(f"{type(self).__name__} has no parameter {outer!r}; it has: {has}.")
            if inner:
                getattr(self, outer).set_params(**{inner: value})
            else:
                setattr(self, outer, value)
        return self

    def __repr__(self) -> str:
        """The constructor call, with the arguments that differ from their defaults."""
        defaults = inspect.signature(type(self).__init__).parameters
        values = {name: repr(getattr(self, name)) for name in self._names()}
        shown = [f"{name}={text}" for name, text in values.items() if text != repr(defaults[name].default)]
        return f"{type(self).__name__}({', '.join(shown)})"
