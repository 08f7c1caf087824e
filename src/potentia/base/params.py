"""`Params`: hyper-parameters as constructor keywords, with scikit-learn's `get_params` and `set_params`."""

from __future__ import annotations

from inspect import Parameter, signature
from typing import Any, Self

from .types import PotentiaError


class Params:
    """Hyper-parameters are the constructor's keywords, stored unchanged; works with `sklearn.base.clone`."""

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        """The constructor's keywords and their defaults; those of the base class, too, where it passes others on."""
        defaults: dict[str, Any] = {}
        for base in (base for base in cls.__mro__ if "__init__" in vars(base)):
            _, *parameters = signature(base.__init__).parameters.values()  # type: ignore[misc]
            named = (p for p in parameters if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY))
            defaults |= {p.name: p.default for p in named if p.name not in defaults}
            if all(p.kind is not Parameter.VAR_KEYWORD for p in parameters):
                break
        return defaults

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All hyper-parameters by name; with `deep` also those of nested objects as outer__inner."""
        values: dict[str, Any] = {}
        for name in self._defaults():
            value = values[name] = getattr(self, name)
            if deep and hasattr(value, "get_params") and not isinstance(value, type):
                values.update({f"{name}__{key}": inner for key, inner in value.get_params().items()})
        return values

    def set_params(self, **params: Any) -> Self:
        """Set hyper-parameters by name (outer__inner for nested objects) and return self."""
        names = self._defaults()
        for key, value in params.items():
            outer, _, inner = key.partition("__")
            if outer not in names or (inner and not hasattr(getattr(self, outer), "set_params")):
                has = ", ".join(names) or "none"
                raise PotentiaError(f"{type(self).__name__} has no parameter {key!r}; it has: {has}.")
            if inner:
                getattr(self, outer).set_params(**{inner: value})
            else:
                setattr(self, outer, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """scikit-learn's estimator tags; only scikit-learn calls this, so it is imported here."""
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    def __repr__(self) -> str:
        """The constructor call, with the arguments that differ from their defaults."""
        values = {name: (repr(getattr(self, name)), repr(default)) for name, default in self._defaults().items()}
        shown = [f"{name}={text}" for name, (text, default) in values.items() if text != default]
        return f"{type(self).__name__}({', '.join(shown)})"
