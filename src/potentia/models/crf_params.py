"""`CRFParams`: the constructor's arguments of `CRF`, and what scikit-learn does with them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ..base.options import check_choice
from ..base.saving import Registered
from ..base.types import PotentiaError, shown
from ..inference.base import Inference
from ..learn.base import Learner
from ..learn.iterated import IteratedLogistic
from ..potentials.base import Potential

DECODES = ("mpm", "map")
#: What a CRF is made of.
_NAMES = ("potentials", "learner", "inference", "decode")
_SUCH = {
    "learner": "a Learner, such as pt.IteratedLogistic()",
    "inference": "an Inference, such as pt.TRW()",
}


@dataclass(eq=False, repr=False)
class CRFParams(Registered):
    """The constructor's arguments of `CRF` and what scikit-learn does with them."""

    potentials: Mapping[str, Potential]
    learner: Learner | None = None
    inference: Inference | None = None
    decode: str | None = None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Constructor arguments; with `deep` also those of potentials (node__ridge) and learner (learner__epsilon)."""
        found: dict[str, Any] = {name: getattr(self, name) for name in _NAMES}
        if deep:
            for kind, potential in self.potentials.items():
                found[kind] = potential
                found |= {f"{kind}__{name}": value for name, value in potential.get_params().items()}
            if self.learner is not None:
                found |= {f"learner__{name}": value for name, value in vars(self.learner).items()}
        return found

    def set_params(self, **params: Any) -> Self:
        """Set constructor arguments, potentials by kind, or their options: node__ridge, learner__epsilon."""
        for key, value in params.items():
            outer, _, inner = key.partition("__")
            if outer in self.potentials:
                if inner:
                    self.potentials[outer].set_params(**{inner: value})
                else:
                    self.potentials = {**self.potentials, outer: value}
            elif outer == "learner" and inner:
                self.learner = self.learner or IteratedLogistic()
                if not hasattr(self.learner, inner):
                    raise PotentiaError(f"the learner has no option {inner!r}.")
                setattr(self.learner, inner, value)
            elif outer in _NAMES and not inner:
                setattr(self, outer, value)
            else:
                raise PotentiaError(f"CRF has no parameter {key!r}.")
        return self

    def __sklearn_tags__(self) -> Any:
        """scikit-learn's estimator tags; only scikit-learn calls this, so it is imported here."""
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    def __sklearn_clone__(self) -> Self:
        """An unfitted copy."""
        copied = copy.copy(self)
        forget(copied)
        copied.potentials = {kind: unfitted(p) for kind, p in self.potentials.items()}
        copied.learner, copied.inference = copy.deepcopy(self.learner), copy.deepcopy(self.inference)
        return copied

    def __repr__(self) -> str:
        inside = ", ".join(f"{kind!r}: {potential!r}" for kind, potential in self.potentials.items())
        given = {name: getattr(self, name) for name in _NAMES[1:]}
        shown = [
            f"{{{inside}}}",
            *(f"{name}={value!r}" for name, value in given.items() if value is not None),
        ]
        return f"CRF({', '.join(shown)})"

    def _check(self) -> None:
        if not isinstance(self.potentials, Mapping) or not self.potentials:
            raise PotentiaError("potentials must map each kind to a potential.")
        for kind, potential in self.potentials.items():
            if not isinstance(potential, Potential):
                raise PotentiaError(
                    f"the potential of kind {kind!r} is {_described(potential)}, not a Potential."
                )
            if not isinstance(kind, str):
                raise PotentiaError(f"a kind of potentials is named by a text, not {shown(kind)}.")
            if kind in _NAMES or "__" in kind:
                raise PotentiaError(
                    f"a kind cannot be called {kind!r}: parameters of the CRF have such names."
                )
        for name, given, wanted in (
            ("learner", self.learner, Learner),
            ("inference", self.inference, Inference),
        ):
            if given is not None and not isinstance(given, wanted):
                raise PotentiaError(f"{name} must be {_SUCH[name]}, not {_described(given)}.")
        if self.decode is not None:
            check_choice("decode", self.decode, DECODES)


def _described(given: object) -> str:
    """A wrong argument, for a message."""
    if isinstance(given, type):
        return f"the class {given.__name__} (write {given.__name__}())"
    return repr(given) if isinstance(given, str) else f"a {type(given).__name__}"


def unfitted(potential: Potential) -> Potential:
    """An unfitted copy."""
    return type(potential)(**copy.deepcopy(potential.get_params(deep=False)))


def forget(model: CRFParams) -> None:
    """Make a model one that was never fitted."""
    for name in fitted_state(model):
        delattr(model, name)


def fitted_state(model: CRFParams) -> dict[str, Any]:
    """What a fit has set."""
    return {name: value for name, value in vars(model).items() if name.endswith("_")}
