"""Exact search by toulbar2 in a separate process: `python map_toulbar2_worker.py MODEL.npz`.

Improving labellings are printed as they are found, and `finished` once there is none better. It imports nothing of
this package, so that it starts at once.
"""

from __future__ import annotations

import sys

import numpy as np


def main(path: str) -> None:
    """Read the integer costs, search, and print."""
    import pytoulbar2

    model = np.load(path)
    network = pytoulbar2.CFN()
    for i, n_states in enumerate(model["n_states"].tolist()):
        network.AddVariable(f"x{i}", range(n_states))
    scope, costs = model["scope"].tolist(), model["costs"].tolist()
    scope_ptr, cost_ptr = model["scope_ptr"].tolist(), model["cost_ptr"].tolist()
    for r in range(len(scope_ptr) - 1):
        table = costs[cost_ptr[r] : cost_ptr[r + 1]]
        if any(table):
            network.AddFunction(scope[scope_ptr[r] : scope_ptr[r + 1]], table)
    for i, state in enumerate(model["labels"].tolist()):
        network.CFN.wcsp.setBestValue(i, state)
    network.UbInit = int(model["upper"])
    if model["backtracks"] > 0:
        network.Option.backtrackLimit = int(model["backtracks"])
    network.Solve(showSolutions=1)
    print("limited" if network.Option.limited else "finished", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
