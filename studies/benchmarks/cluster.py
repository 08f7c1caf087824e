"""What a fit on a local cluster costs: CPU time per variable, and what the rounds add.

    python studies/benchmarks/cluster.py [--images 60] [--steps 10] [--out studies/benchmarks/cluster.jsonl]

Fits of binary grids of 100 x 100 with 20 node and 8 edge features in float32, linear potentials and the direct solver
with 5 sweeps, on one worker and on two, each a process with one thread. The cost of a step is the difference between
two fits of different lengths; the rest of the shorter one reads and builds the parts. What a round adds is the median
time per round of a fit of one small image, where there is next to nothing to compute. Of the rounds of the longer fit,
`waiting_seconds` is the time in which no worker worked. Needs `potentia[dask]`.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

import potentia as pt

SIDE, NODE_FEATURES, EDGE_FEATURES, SWEEPS = 100, 20, 8, 5
IMAGES_PER_PART = 5


def noise(n: int, side: int) -> Iterator[pt.Example]:
    """Images of noise: what they show does not change what a step costs."""
    graph = pt.Graph.grid((side, side), n_states=2)
    draw = np.random.default_rng(0)
    sizes = {"node": (graph.n_variables, NODE_FEATURES), "edge": (len(graph.scopes["edge"]), EDGE_FEATURES)}
    for _ in range(n):
        features = {kind: draw.standard_normal(size, dtype=np.float32) for kind, size in sizes.items()}
        yield pt.Example(graph, features, draw.integers(2, size=graph.n_variables))


def fit(data: Any, steps: int, client: Client) -> tuple[float, list[float], list[dict[str, Any]]]:
    """Seconds, CPU seconds of every worker, and the history."""
    learner = pt.IteratedLogistic(iterations=steps, sweeps=SWEEPS, tol=0.0, solver="direct", track_error=False)
    before, start = client.run(time.process_time), time.perf_counter()
    with pt.cluster(client):
        crf = pt.CRF({"node": pt.Linear(), "edge": pt.Linear()}, learner).fit(data)
    seconds, after = time.perf_counter() - start, client.run(time.process_time)
    return seconds, [after[worker] - before[worker] for worker in after], crf.history_


def measured(folder: Path, small: Any, n_variables: int, steps: int, n_workers: int) -> dict[str, Any]:
    """A row: both fits of the large data set, and the fit of the small one."""
    options = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    with LocalCluster(n_workers=n_workers, processes=True, **options) as processes, Client(processes) as client:
        fit(small, 2, client)  # loads the kernels
        _, _, rounds = fit(small, 20, client)
        short, long = (fit(pt.parts(folder), n, client) for n in (1, 1 + steps))
    step = (sum(long[1]) - sum(short[1])) / steps
    return {
        "part": "cluster",
        "workers": n_workers,
        "variables": n_variables,
        "steps": 1 + steps,
        "seconds": long[0],
        "cpu_seconds": long[1],
        "step_us": 1e6 * step / n_variables,
        "build_us": 1e6 * (sum(short[1]) - step) / n_variables,
        "waiting_seconds": sum(row["round_seconds"] - row["work_seconds"] for row in long[2]),
        "rounds_per_step": statistics.median(row["rounds"] for row in long[2]),
        "round_ms": 1e3 * statistics.median(row["round_seconds"] / row["rounds"] for row in rounds[1:]),
    }


def main() -> None:
    """One worker, then two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=60)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the rows as JSON lines")
    given = parser.parse_args()
    warnings.simplefilter("ignore", pt.ConvergenceWarning)
    small = list(noise(2, 8))
    with tempfile.TemporaryDirectory() as folder:
        entries = IMAGES_PER_PART * (2 * SIDE * SIDE + 4 * 2 * SIDE * (SIDE - 1))
        pt.write_parts(noise(given.images, SIDE), folder, part_entries=entries)
        rows = []
        for n_workers in (1, 2):
            rows.append(measured(Path(folder), small, given.images * SIDE**2, given.steps, n_workers))
            print(json.dumps(rows[-1]), flush=True)
    if given.out:
        given.out.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
