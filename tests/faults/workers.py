"""Clusters: fits of every learner have the bits of one process on 1, 2 and 3 workers, and with a worker killed.

`python tests/faults/workers.py` prints a table by learner and every failure, and exits with 1 if there is one. A worker
is killed by SIGKILL near the beginning, in the middle and near the end of a fit, each in a fit of its own. With
`--minutes` all of it is repeated, on new workers, until the time is over.
"""

import argparse
import logging
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

from distributed import Client, LocalCluster

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "learn"))

import potentia as pt
from learners import digest
from test_cluster import CHAINS, NAMES, chain_digest, chains, fitted, grow, killing

SEQUENCES = {"chain": CHAINS[0], "chain, l1": CHAINS[1]}
EVERYTHING = [*NAMES, *SEQUENCES]


def fit(name):
    """A fitted model and its digest."""
    model = SEQUENCES[name].fit(chains()) if name in SEQUENCES else fitted(name)
    return model, chain_digest(model) if name in SEQUENCES else digest(model)


def campaign(names, processes, client):
    """How many fits of each learner were compared, how often workers were killed, and what was wrong."""
    straight = {name: fit(name)[1] for name in names}
    fits, kills, rounds, wrong = Counter(), Counter(), {}, []
    for n in (1, 2, 3):
        grow(processes, client, n)
        for name in names:
            with pt.cluster(client):
                model, found = fit(name)
            fits[name] += 1
            rounds[name] = sum(row["rounds"] for row in model.history_)
            wrong += [] if found == straight[name] else [f"{name}: other bits on {n} workers"]
    for name in names:
        for at in (2, rounds[name] // 2, rounds[name] - 1):
            grow(processes, client, 2)
            with pt.cluster(client), killing(client, at) as killed:
                _, found = fit(name)
            fits[name] += 1
            kills[name] += len(killed)
            if found != straight[name]:
                wrong.append(f"{name}: other bits after a kill at round {at} of {rounds[name]}")
    return fits, kills, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learners", nargs="*", choices=EVERYTHING, default=EVERYTHING)
    parser.add_argument("--minutes", type=float, default=0.0)
    given = parser.parse_args()
    names, last = given.learners, time.monotonic() + 60 * given.minutes
    warnings.simplefilter("ignore")
    options = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    fits, kills, wrong = Counter(), Counter(), []
    while not fits or time.monotonic() < last:
        with LocalCluster(n_workers=1, processes=True, **options) as processes, Client(processes) as client:
            found = campaign(names, processes, client)
        fits, kills, wrong = fits + found[0], kills + found[1], wrong + found[2]
    for name in names:
        print(f"{name:<12} {fits[name]:>5} fits {kills[name]:>5} kills")
    print(*wrong, f"{len(wrong)} failures", sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
