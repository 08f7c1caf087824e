"""Kill and resume: fits killed at random moments and resumed from their checkpoints end with the uninterrupted bits.

`python tests/faults/kills.py --kills 25 --seed 1` kills fits of every learner so often, prints a table and every
failure, and exits with 1 if there is one. Each fit is a process of its own, killed by SIGKILL or SIGTERM.
"""

import argparse
import hashlib
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

import potentia as pt
from potentia.io import checkpoint
from potentia.io.files import file_kind, read_file
from potentia.multilabel import fit_progress

#: Children find the library imported.
FORK = multiprocessing.get_context("fork")
LINEAR = {"node": pt.Linear, "edge": pt.Linear}


def ilr(**options):
    return pt.IteratedLogistic(**{"iterations": 12, "tol": 0, **options})


def risk(*args, **options):
    return pt.MarginalRisk(*args, inference=pt.TRW(iterations=5, tol=0), **options)


def boosting():
    return pt.Boosting(rounds=3)


#: Per name the potentials and the learner of a fit of some tenths of a second.
CRFS = {
    "alternating": (LINEAR, lambda: ilr(solver="alternating", iterations=60)),
    "direct": (LINEAR, lambda: ilr(solver="direct", iterations=120)),
    "mixed": ({"node": boosting, "edge": pt.Linear}, lambda: ilr(solver="mixed")),
    "boosting": ({"node": boosting, "edge": boosting}, ilr),
    "network": (
        {"node": lambda: pt.MLP(hidden=8), "edge": pt.Linear},
        lambda: ilr(solver="alternating", iterations=8),
    ),
    "fixed": (LINEAR, lambda: ilr(mode="univariate_fixed", iterations=30)),
    "soft": (LINEAR, lambda: ilr(hidden="soft", iterations=60)),
    "risk": (LINEAR, lambda: risk(iterations=60)),
    "em": (LINEAR, lambda: risk("surrogate_em", iterations=40)),
    "batches": (LINEAR, lambda: risk(batch=1, iterations=30)),
    "frank_wolfe": (LINEAR, lambda: pt.MaxMargin(inference=pt.TRW(), iterations=40)),
    "one_slack": (LINEAR, lambda: pt.MaxMargin(inference=pt.TRW(), solver="one_slack", iterations=40)),
}


def fit_crf(name, path, callback):
    potentials, learner = CRFS[name]
    train = pt.datasets.denoising(2, (14, 14), seed=0)
    if name in ("soft", "em"):
        rng = np.random.default_rng(1)
        train = [
            pt.Example(e.graph, e.features, np.where(rng.random(196) < 0.2, -1, e.labels)) for e in train
        ]
    crf = pt.CRF({kind: make() for kind, make in potentials.items()}, learner())
    return crf.fit(train, checkpoint=path, callback=callback)


def fit_chain(path, callback):
    rng = np.random.default_rng(0)
    words = [[f"w{k}" for k in rng.integers(200, size=12)] for _ in range(100)]
    x = [[{"word": word, "last": word[-1]} for word in sentence] for sentence in words]
    y = [[f"{int(word[1:]) % 7}" for word in sentence] for sentence in words]
    return pt.ChainCRF(c2=0.01, max_iterations=60, delta=0.0).fit(x, y, checkpoint=path, callback=callback)


def fit_labels(model, path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 20))
    y = (x @ rng.normal(size=(20, 12)) + rng.normal(size=(200, 12)) > 0).astype(int)
    return model.fit(x, y, checkpoint=path)


FITS = {
    **{name: (lambda path, callback, name=name: fit_crf(name, path, callback)) for name in CRFS},
    "chain": fit_chain,
    "lmsbn": lambda path, _: fit_labels(pt.LMSBN(1e-4), path),
    "lmbm": lambda path, _: fit_labels(pt.LMBM(1e-4, passes=20, tol=1e-12), path),
}


def fit(name, path):
    """The digest of a fit's parameters; the state is written after every iteration."""
    checkpoint._INTERVAL = checkpoint._SHARE = 0.0
    fit_progress._EVERY = 0.0
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore", pt.ConvergenceWarning)
        saved = Path(folder) / "model"
        FITS[name](path, lambda history: False).save(saved)
        arrays = read_file(saved, file_kind(saved))[1]
    found = hashlib.sha256()
    for key in sorted(arrays):
        found.update(key.encode() + np.asarray(arrays[key]).tobytes())
    return found.hexdigest()


def start(name, path):
    """A process that fits, and where its digest comes from."""
    ours, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=lambda: theirs.send(fit(name, path)))
    process.start()
    theirs.close()
    return process, ours


def end(process, result):
    """The digest of a fit that nobody kills; None if it failed."""
    try:
        return result.recv()
    except EOFError:
        return None
    finally:
        process.join()


def kill(name, path, rng, seconds):
    """Kill a fit at a random moment; whether it was still running."""
    process, _ = start(name, path)
    time.sleep(rng.uniform(0.0, seconds))
    running = process.is_alive()
    if running:
        os.kill(process.pid, rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
    process.join()
    return running


def campaign(name, kills, each, rng):
    """How often fits of a learner were killed, and what was wrong."""
    count, wrong = 0, []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        end(*start(name, folder / "first"))  # compiles what is not in the cache
        begun = time.perf_counter()
        digest = end(*start(name, folder / "whole"))
        seconds = time.perf_counter() - begun
        while count < kills:
            path = folder / f"killed{count}"
            for _ in range(min(each, kills - count)):
                running = kill(name, path, rng, seconds)
                count += running
                seconds *= 1.0 if running else 0.7  # the machine is faster than it was
            found = end(*start(name, path))
            if found is None or found != digest:
                wrong.append(f"{name}: {'no result' if found is None else 'other bits'} after {count} kills")
            left = [p.name for p in folder.iterdir() if p.name.startswith(f".{path.name}")]
            wrong += [f"{name}: left {left}"] if left else []
    return count, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=25, help="of every learner")
    parser.add_argument("--each", type=int, default=3, help="kills of one fit before it may end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learners", nargs="*", choices=FITS, default=list(FITS))
    arguments = parser.parse_args()
    failures = []
    for name in arguments.learners:
        count, wrong = campaign(
            name, arguments.kills, arguments.each, random.Random(f"{arguments.seed} {name}")
        )
        print(f"{name:<12} {count:>5} kills {len(wrong):>5} failures", flush=True)
        failures += wrong
    print(*failures, f"{len(failures)} failures", sep="\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
