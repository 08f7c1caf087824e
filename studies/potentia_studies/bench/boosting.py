"""How long one boosting round takes, beside LightGBM's on the same rows."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

import potentia as pt
from potentia.app.report.rows import Column
from potentia.base.types import Floats, Ints
from potentia.potentials.problem import make_problem

from .timing import Rows, Suite, median_time

_FEATURES, _OUTPUTS, _LEAVES, _SEED = 42, 4, 31, 0


def _measure(quick: bool) -> Rows:
    """Median seconds of one round, scores of all rows brought up to date; binning is outside.

    "boosting" draws 10,000 rows a round (the default), "boosting_all_rows" uses all; "lightgbm" grows as many trees
    of as many leaves on all rows and "lightgbm_bagging" on as large a share as Boosting draws. LightGBM's numbers are
    absent where it is not installed.
    """
    n = 20_000 if quick else 1_000_000
    x, y = _rows(n)
    rounds = {
        "boosting": _our_round(pt.Boosting(max_leaves=_LEAVES, seed=_SEED), x, y),
        "boosting_all_rows": _our_round(pt.Boosting(max_leaves=_LEAVES, seed=_SEED, subsample=None), x, y),
    }
    if find_spec("lightgbm"):
        bagging = {"bagging_fraction": min(1.0, 10_000 / n), "bagging_freq": 1}
        light = _light_data(x, y)
        rounds |= {"lightgbm": _light_round(light, {}), "lightgbm_bagging": _light_round(light, bagging)}
    data = f"{n:,} rows x {_FEATURES} features x {_OUTPUTS} outputs"
    return [{"what": name, "data": data, "seconds": median_time(work)} for name, work in rounds.items()]


def _rows(n: int) -> tuple[Floats, Ints]:
    rng = np.random.default_rng(_SEED)
    x = rng.normal(size=(n, _FEATURES))
    bends = np.sin(3 * x[:, np.arange(_OUTPUTS) % _FEATURES])
    scores = 0.3 * x @ rng.normal(size=(_FEATURES, _OUTPUTS)) + bends
    return x, (scores + rng.gumbel(size=scores.shape)).argmax(1)


def _our_round(boosting: pt.Boosting, x: Floats, y: Ints) -> Callable[[], Any]:
    rng = np.random.default_rng(boosting.seed)
    problem = make_problem(x, y, None, None, None)
    rounds = boosting.start(x, problem.n_outputs).begin_rounds(problem, rng)
    return rounds.step


def _light_data(x: Floats, y: Ints) -> Any:
    import lightgbm

    return lightgbm.Dataset(x, y, params={"verbosity": -1, "min_data_in_leaf": len(y) // 100}).construct()


def _light_round(data: Any, more: dict[str, Any]) -> Callable[[], Any]:
    import lightgbm

    share = more.get("bagging_fraction", 1.0)
    settings = {"objective": "multiclass", "num_class": _OUTPUTS, "num_leaves": _LEAVES, "verbosity": -1}
    settings |= {"min_data_in_leaf": int(share * data.num_data() / 100), **more}
    return lightgbm.Booster(settings, data).update


PART = Suite(
    "boosting",
    "One boosting round",
    [Column("what", "what"), Column("data", "data"), Column("seconds", "seconds", "{:.3f}".format)],
    _measure,
)
