"""All benchmarks: speed of message passing, gradients, sequences, boosting and starting up."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from potentia.app.report.rows import Column, Table

from . import boosting, calls, gradients, sequences, sweeps
from .timing import Rows, Suite


def _machine(quick: bool) -> Rows:
    exp, threads = sweeps.numpy_exp(), sweeps.two_threads()
    return [{"numpy_exp_ns": exp, "two_threads": threads, "numpy": np.__version__}]


def _starts(quick: bool) -> Rows:
    """Import and first-call times in fresh processes."""
    call = (
        "import numpy as np, potentia as pt; g = pt.Graph.grid((20, 20), n_states=2); "
        "t = {'node': np.zeros((400, 2)), 'edge': np.eye(2)}; "
    )
    timed = "import time; b = time.perf_counter(); {}; print(time.perf_counter() - b)"
    scripts = {
        "import potentia": timed.format("import potentia"),
        "first TRW call": call + timed.format("pt.TRW().infer(g, t)"),
        "first mean-field call": call + timed.format("pt.MeanField().infer(g, t)"),
    }
    return [
        {
            "what": name,
            "seconds": min(
                float(subprocess.check_output([sys.executable, "-c", script])) for _ in range(1 if quick else 2)
            ),
        }
        for name, script in scripts.items()
    ]


PARTS = (
    Suite(
        "machine",
        "This machine",
        [
            Column("NumPy", "numpy"),
            Column("ns of its exp", "numpy_exp_ns", "{:.2f}".format),
            Column("arithmetic alone on two threads: speed-up", "two_threads", "{:.2f}".format),
        ],
        _machine,
    ),
    sweeps.PART,
    calls.PART,
    gradients.PART,
    sequences.PART,
    boosting.PART,
    Suite("start", "Starting up", [Column("what", "what"), Column("seconds", "seconds", "{:.2f}".format)], _starts),
)


def run(quick: bool = False) -> Rows:
    """All measurements as rows."""
    return [row for part in PARTS for row in part.rows(quick)]


def tables(rows: Rows) -> list[Table]:
    """A table per part."""
    return [part.table(rows) for part in PARTS]
