"""Other libraries' learners as potentials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ..base.schema import TEXT, Items, Rule, Schema
from ..base.threads import thread_count
from ..base.types import Floats, PotentiaError
from .base import Potential
from .problem import Batch, Problem
from .tree_ensemble import checked_text

#: Hessian per row below which a leaf's value would be a leap.
_LEAST_CURVATURE = 0.05


def _check_texts(found: dict[str, Any]) -> bool:
    """Refuse model texts that LightGBM must not be given."""
    return all(checked_text(text, found["n_features_"], found["n_outputs_"]) for text in found["models_"])


class LightGBM(Potential):
    """Boosted trees by LightGBM, one tree per configuration and round, with the bias as initial score.

    With biases of 10 and more LightGBM's own leaf values, gradient over Hessian, are in the tens of thousands
    and learning stays at chance; at 100 the Hessian is zero in its arithmetic. So the loss is given to it with
    a Hessian of at least 0.05 per row, and `max_delta_step` bounds leaf values. The first fit grows `rounds`
    rounds, every further one adds `more_rounds`. `params` are passed on to LightGBM. A row of weight 2 is not
    quite two rows, because leaves are limited by counts. Saved as LightGBM's own text.
    """

    weights_are_copies: ClassVar[bool] = False

    saved: ClassVar[Schema] = {
        **Potential.saved,
        "models_": Items(TEXT),
        "texts": Rule(_check_texts),
    }

    models_: list[str]

    def __init__(
        self,
        rounds: int = 100,
        learning_rate: float = 0.1,
        num_leaves: int = 31,
        max_delta_step: float = 8.0,
        more_rounds: int = 20,
        params: dict[str, Any] | None = None,
        seed: int = 0,
    ):
        self.rounds = rounds
        self.learning_rate = learning_rate
        self.num_leaves = num_leaves
        self.max_delta_step = max_delta_step
        self.more_rounds = more_rounds
        self.params = params
        self.seed = seed

    def _begin(self, problem: Problem) -> None:
        if problem.n_features == 0:
            raise PotentiaError("LightGBM needs at least one feature, x has none.")
        if problem.n_outputs < 2:
            raise PotentiaError(f"LightGBM needs at least two configurations, got {problem.n_outputs}.")
        self.models_ = []

    def _fit(self, problem: Problem) -> None:
        lightgbm = _import_lightgbm()
        rows = problem.draw(slice(None))
        if not np.any(rows.x != rows.x[:1]):
            raise PotentiaError("LightGBM needs a feature that differs between rows; Constant() needs none.")
        start = self._scores(rows.x)
        if len(rows.bias):
            start += rows.bias
        # a flat initial score is read column by column; Fortran order is that order whatever the version
        data = lightgbm.Dataset(
            rows.x,
            np.zeros(problem.n_rows),
            init_score=np.asfortranarray(start),
            params={"verbosity": -1, "feature_pre_filter": False},
        )
        n_rounds = self.more_rounds if self.models_ else self.rounds
        objective = _slopes(rows, problem.n_outputs)
        try:
            booster = lightgbm.train(self._settings() | {"objective": objective}, data, n_rounds)
        except lightgbm.basic.LightGBMError as error:
            reason = str(error).splitlines()[0]
            raise PotentiaError(
                f"LightGBM refuses these features or options ({reason}): scale the features."
            ) from None
        self.models_ = [*self.models_, booster.model_to_string()]

    def _settings(self) -> dict[str, Any]:
        return {
            "num_class": self.n_outputs_,
            "learning_rate": self.learning_rate,
            "num_leaves": self.num_leaves,
            "max_delta_step": self.max_delta_step,
            "num_threads": thread_count(None),
            "seed": self.seed + self.n_fits_,
            "deterministic": True,
            "force_row_wise": True,
            "verbosity": -1,
            **(self.params or {}),
        }

    def ready(self, n_rows: int) -> None:
        """Models are text when fitted or loaded, and parsed once."""
        if getattr(self, "_parsed", None) != self.models_:
            lightgbm = _import_lightgbm()
            sizes = self.n_features_, self.n_outputs_
            self._boosters = [lightgbm.Booster(model_str=checked_text(text, *sizes)) for text in self.models_]
            self._parsed = list(self.models_)

    def _scores(self, x: Any) -> Floats:
        self.ready(len(x))
        scores = np.zeros((len(x), self.n_outputs_))
        for booster in self._boosters:
            scores += booster.predict(x, raw_score=True)
        return scores


def _import_lightgbm() -> Any:
    try:
        import lightgbm
    except ImportError:
        raise PotentiaError("LightGBM is not installed: pip install potentia[lightgbm].") from None
    return lightgbm


def _slopes(rows: Batch, n_outputs: int) -> Callable[[Floats, Any], tuple[Floats, Floats]]:
    """LightGBM's form of the loss: first and second derivatives at scores that include the bias."""
    from scipy.special import softmax

    weight = rows.weight if len(rows.weight) else np.ones(rows.n_rows)
    target = rows.soft if len(rows.soft) else np.eye(n_outputs)[rows.labels]

    def of(scores: Floats, data: Any) -> tuple[Floats, Floats]:
        beliefs = softmax(scores, axis=1)
        curvature = np.maximum(beliefs * (1.0 - beliefs), _LEAST_CURVATURE)
        return weight[:, None] * (beliefs - target), weight[:, None] * curvature

    return of
