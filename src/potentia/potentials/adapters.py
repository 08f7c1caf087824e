"""Other libraries' learners as potentials."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from potentia._types import Floats, PotentiaError
from potentia.potentials.base import Potential
from potentia.potentials.problem import Problem


class LightGBM(Potential):
    """Boosted trees by LightGBM, one tree per configuration and round, with the bias as initial score.

    With biases of 10 and more LightGBM's own leaf values, gradient over Hessian, are in the tens of thousands
    and learning stays at chance; `max_delta_step` bounds them. The first fit grows `rounds` rounds, every
    further one adds `more_rounds`. Soft targets become one weighted row per configuration of positive target.
    `params` are passed on to LightGBM. A row of weight 2 is not quite two rows, because leaves are limited by
    counts. Saved as LightGBM's own text.
    """

    weights_are_copies: ClassVar[bool] = False

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

    def _start(self, x: Any, n_outputs: int) -> None:
        if x.shape[1] == 0:
            raise PotentiaError(f"LightGBM needs at least one feature, x has shape {x.shape}.")
        if n_outputs < 2:
            raise PotentiaError(f"LightGBM needs at least two configurations, got {n_outputs}.")
        self.models_ = []

    def _fit(self, problem: Problem) -> None:
        lightgbm = _import_lightgbm()
        rows, labels, weight = _hard_rows(problem)
        x = problem.x[rows]
        start = self._scores(x)
        if problem.bias is not None:
            start += problem.bias[rows]
        # a flat initial score is read column by column; Fortran order is that order whatever the version
        data = lightgbm.Dataset(
            x, labels, weight=weight, init_score=np.asfortranarray(start), params={"verbosity": -1}
        )
        n_rounds = self.more_rounds if self.models_ else self.rounds
        booster = lightgbm.train(self._settings(), data, n_rounds)
        self.models_ = [*self.models_, booster.model_to_string()]

    def _settings(self) -> dict[str, Any]:
        return {
            "objective": "multiclass",
            "num_class": self.n_outputs_,
            "learning_rate": self.learning_rate,
            "num_leaves": self.num_leaves,
            "max_delta_step": self.max_delta_step,
            "boost_from_average": False,
            # its default of 1e-3 forbids every split once biases reach 30
            "min_sum_hessian_in_leaf": 0.0,
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
            self._boosters = [lightgbm.Booster(model_str=text) for text in self.models_]
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


def _hard_rows(problem: Problem) -> tuple[Any, Any, Floats]:
    """(row numbers, labels, weights): soft targets as several rows each."""
    weight = problem.weight if len(problem.weight) else np.ones(problem.n_rows)
    if len(problem.labels):
        return np.arange(problem.n_rows), problem.labels, weight
    rows, labels = np.nonzero(problem.soft)
    return rows, labels, weight[rows] * problem.soft[rows, labels]
