"""Soak: thousands of calls with good and bad arguments; results or one sentence, and memory that does not grow.

`python tests/faults/soak.py --calls 20000 --seed 1` prints a table and every failure, and exits with 1 if there is one.
"""

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

import potentia as pt

BAD = [None, -1, 0, 1.5, float("nan"), float("inf"), "", "x", [], [[1]], {}, object(), 10**30, np.zeros(3), True]
METHODS = [pt.TRW, pt.LoopyBP, pt.Smoothed, pt.MeanField, pt.Exact, pt.Kikuchi, pt.MAP]
OPTIONS = ["iterations", "tol", "schedule", "damping", "seed", "threads", "rho", "epsilon", "time_limit", "max_table"]


def memory():
    """Resident megabytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def random_model(rng):
    n, states = int(rng.integers(1, 7)), int(rng.integers(1, 4))
    graph = [
        lambda: pt.Graph.chain(n, n_states=states),
        lambda: pt.Graph.complete(n, n_states=states),
        lambda: pt.Graph.grid((2, n), n_states=states),
    ][rng.integers(3)]()
    theta = {kind: rng.normal(size=(len(scope), *[states] * scope.shape[1])) for kind, scope in graph.scopes.items()}
    return graph, theta


def spoil(rng, graph, theta):
    """One bad argument."""
    choice = rng.integers(4)
    bad = BAD[rng.integers(len(BAD))]
    if choice == 0:
        return bad, theta
    if choice == 1:
        return graph, bad
    kind = rng.choice(list(theta))
    if choice == 2 or not theta[kind].size:
        return graph, {**theta, kind: bad}
    table = theta[kind].copy()
    table.flat[rng.integers(table.size)] = rng.choice([np.nan, np.inf, -np.inf, 1e308])
    return graph, {**theta, kind: table}


def call(rng):
    """One call of a public function; what came of it."""
    graph, theta = random_model(rng)
    method = METHODS[rng.integers(len(METHODS))]
    options = {}
    if rng.random() < 0.3:
        options[str(rng.choice(OPTIONS))] = BAD[rng.integers(len(BAD))]
    if rng.random() < 0.4:
        graph, theta = spoil(rng, graph, theta)
    try:
        inference = method(**({"time_limit": 0.05, "exact_search": False} | options if method is pt.MAP else options))
    except TypeError:
        return "no such option"
    try:
        result = inference.infer(graph, theta)
        if not np.all(np.isfinite(result.variable_marginals)):
            return "FAILED: marginals that are not finite"
        labels = result.argmax()
        if result.feasible != (result.score(labels) > -np.inf):
            return "FAILED: wrong about feasibility"
    except pt.PotentiaError as error:
        return "FAILED: " + str(error) if "\n" in str(error) else "one sentence"
    return "result"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    counts, failures, before = Counter(), [], 0.0
    for number in range(arguments.calls):
        rng = np.random.default_rng([arguments.seed, number])
        try:
            found = call(rng)
        except Exception as error:
            found = f"FAILED: {type(error).__name__}: {error}"
        if found.startswith("FAILED"):
            failures.append(f"call {number}: {found}")
            found = "failed"
        counts[found] += 1
        if number == arguments.calls // 2:
            before = memory()
    grown = memory() - before
    if grown > 50:
        failures.append(f"memory grew by {grown:.0f} MB in the second half")
    for found, count in counts.most_common():
        print(f"{found:<16} {count:>7}")
    print(f"{'memory':<16} {grown:>+7.1f} MB in the second half")
    print(*failures[:50], f"{len(failures)} failures", sep="\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
