"""Exact search by toulbar2 in a separate process: `python worker.py < MODEL.npz`.

Improving labellings and bounds are printed as they are found, and `finished` once there is none better. It imports
nothing of this package, so that it starts at once.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import numpy as np

#: Linux's request for a signal when the parent ends.
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Read the integer costs, search, and print."""
    model = np.load(sys.stdin.buffer)
    _end_with(int(model["parent"]), float(model["seconds"]))
    import pytoulbar2

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
    network.Option.verbose = 0  # print bounds
    if model["backtracks"] > 0:
        network.Option.backtrackLimit = int(model["backtracks"])
    network.Solve(showSolutions=1)
    print("limited" if network.Option.limited else "finished", flush=True)


def _end_with(parent: int, seconds: float) -> None:
    """End this process when the parent ends, however it does, and after this many seconds (0: no limit).

    toulbar2 holds the interpreter's lock, so that no Python code can run beside it: the system must do it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if sys.platform != "win32":
        # what is printed after the parent's end ends this process, too
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
    if os.getppid() != parent:  # it has ended already
        sys.exit()


if __name__ == "__main__":
    main()
