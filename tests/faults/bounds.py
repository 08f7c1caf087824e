"""Bounds of `Anytime`, mini-buckets and marginal MAP on random small models against enumeration.

Certain bounds must hold on every model; those with a stated probability may fail at most as often as it says.
"""

from __future__ import annotations

import argparse
import math
import sys

import numpy as np
from check_models import Model, random_model

import potentia as pt
from potentia.base.types import InfeasibleError
from potentia.graph.scores import Scores
from potentia.inference.minibucket import MiniBuckets, factors_in_order, split_buckets
from potentia.inference.order_search import allowed_states, interactions

_ROUNDING = 1e-9


def mini_bucket_faults(model: Model, rng: np.random.Generator) -> list[str]:
    """Bounds above and below by mini-buckets, before and after tightening."""
    scores = Scores(model.graph, model.theta, model.observed)
    allowed = allowed_states(scores)
    joined = interactions(scores, allowed)
    if not len(joined.free):
        return []
    factors = factors_in_order(scores, allowed, joined.free[rng.permutation(len(joined.free))])
    split = split_buckets(factors, int(rng.integers(1, 30)))
    slack = _ROUNDING * (1 + abs(model.log_partition)) + scores.rounding()
    faults = []
    for lower in (False, True):
        buckets = MiniBuckets(factors, split, lower=lower)
        value = buckets.send()
        assert value is not None
        for bound in (value, buckets.tighten(value, 15, lambda: True)):
            over = (bound - model.log_partition) * (1 if lower else -1)
            if not over <= slack:
                faults.append(f"{'lower' if lower else 'upper'} bound off by {over:.3g}")
    return faults


def anytime_faults(model: Model, rng: np.random.Generator) -> tuple[list[str], bool]:
    """`Anytime` with little memory; whether a bound that is not certain was missed."""
    method = pt.Anytime(time_limit=0.03, memory=float(rng.choice([1e-7, 3e-7, 1e-3])), seed=int(rng.integers(2**31)))
    result = method.infer(model.graph, model.theta, model.observed)
    slack = _ROUNDING * (1 + abs(model.log_partition)) + result.scores.rounding()
    low, high = result.certain
    faults = []
    if not low - slack <= model.log_partition <= high + slack:
        faults.append(f"log Z = {model.log_partition!r} outside the certain {result.certain}")
    if result.bound == "exact" and not abs(result.value - model.log_partition) <= slack:
        faults.append(f"exact value off by {result.value - model.log_partition:.3g}")
    return faults, not result.lower - slack <= model.log_partition <= result.upper + slack


def query_faults(model: Model, rng: np.random.Generator) -> list[str]:
    """Marginal MAP: the score of the labelling, and the bound."""
    n = model.graph.n_variables
    query = np.sort(rng.permutation(n)[: int(rng.integers(1, n + 1))])
    summed = tuple(v for v in range(n) if v not in query)
    sums = np.logaddexp.reduce(model.scores, axis=summed) if summed else model.scores
    result = pt.MAP(query=query, time_limit=0.05, exact_search=False).infer(model.graph, model.theta, model.observed)
    labels = result.argmax()
    slack = 1e-8 * (1 + abs(float(sums.max()))) + result.scores.rounding()
    faults = []
    if not result.value >= sums.max() - slack:
        faults.append(f"marginal MAP bound {result.value!r} below {sums.max()!r}")
    value, truth = result.score(labels), float(sums[tuple(labels[query])])
    if not (value == truth == -math.inf or abs(value - truth) <= slack):
        faults.append(f"marginal MAP scores {value!r} instead of {truth!r}")
    return faults


def check(n_models: int, seed: int) -> tuple[list[str], int, int]:
    """Faults, the number of models, and how many had a bound that is not certain and failed."""
    faults: list[str] = []
    tried = missed = 0
    for number in range(n_models):
        rng = np.random.default_rng([seed, number])
        try:
            model = random_model(rng)
            if model.max_score == -np.inf:
                continue
            texts, miss = anytime_faults(model, rng)
            texts += [*mini_bucket_faults(model, rng), *query_faults(model, rng)]
        except InfeasibleError:
            continue
        tried, missed = tried + 1, missed + miss
        faults += [f"model {number}: {text}" for text in texts]
    return faults, tried, missed


def main() -> int:
    """Print the faults; 1 if there are any, or if bounds fail more often than stated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=5000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    chosen = parser.parse_args()
    faults, tried, missed = check(chosen.models, chosen.seed)
    print("\n".join(faults))
    print(f"{tried} models, seed {chosen.seed}: {len(faults)} faults, {missed} bounds of probability 0.95 missed")
    return int(bool(faults) or missed > 0.05 * tried)


if __name__ == "__main__":
    sys.exit(main())
