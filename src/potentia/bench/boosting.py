"""How long one boosting round takes, beside LightGBM's on the same rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .._types import Floats, Ints
from ..potentials.boosting import Boosting
from ..potentials.problem import make_problem


def time_rounds(
    n_rows: int = 1_000_000,
    n_features: int = 42,
    n_outputs: int = 4,
    leaves: int = 31,
    repeats: int = 5,
    seed: int = 0,
) -> dict[str, float]:
    """Median seconds of one round, scores of all rows brought up to date; binning is outside.

    "boosting" draws 10,000 rows a round (the default), "boosting_all_rows" uses all; "lightgbm" grows
    n_outputs trees of as many leaves on all rows and "lightgbm_bagging" on as large a share as Boosting
    draws. LightGBM's numbers are absent where it is not installed.
    """
    x, y = _rows(n_rows, n_features, n_outputs, seed)
    found = {
        "boosting": _median(_our_round(Boosting(max_leaves=leaves, seed=seed), x, y), repeats),
        "boosting_all_rows": _median(
            _our_round(Boosting(max_leaves=leaves, seed=seed, subsample=None), x, y), repeats
        ),
    }
    try:
        data = _light_data(x, y)
    except ImportError:
        return found
    share = min(1.0, 10_000 / n_rows)
    found["lightgbm"] = _median(_light_round(data, n_outputs, leaves, {}), repeats)
    bagging = {"bagging_fraction": share, "bagging_freq": 1}
    found["lightgbm_bagging"] = _median(_light_round(data, n_outputs, leaves, bagging), repeats)
    return found


def _rows(n: int, n_features: int, n_outputs: int, seed: int) -> tuple[Floats, Ints]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, n_features))
    bends = np.sin(3 * x[:, np.arange(n_outputs) % n_features])
    scores = 0.3 * x @ rng.normal(size=(n_features, n_outputs)) + bends
    return x, (scores + rng.gumbel(size=scores.shape)).argmax(1)


def _our_round(boosting: Boosting, x: Floats, y: Ints) -> Callable[[], Any]:
    rng = np.random.default_rng(boosting.seed)
    problem = make_problem(x, y, None, None, None, False)
    rounds = boosting.start(x, problem.n_outputs).begin_rounds(problem, rng)
    return lambda: rounds.step(rng)


def _light_data(x: Floats, y: Ints) -> Any:
    import lightgbm

    return lightgbm.Dataset(x, y, params={"verbosity": -1, "min_data_in_leaf": len(y) // 100}).construct()


def _light_round(data: Any, n_outputs: int, leaves: int, more: dict[str, Any]) -> Callable[[], Any]:
    import lightgbm

    share = more.get("bagging_fraction", 1.0)
    settings = {"objective": "multiclass", "num_class": n_outputs, "num_leaves": leaves, "verbosity": -1}
    settings |= {"min_data_in_leaf": int(share * data.num_data() / 100), **more}
    return lightgbm.Booster(settings, data).update


def _median(action: Callable[[], Any], repeats: int) -> float:
    action()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return float(np.median(times))
