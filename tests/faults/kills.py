"""Kill and resume: fits killed at random moments and resumed from their checkpoints end with the uninterrupted bits.

`python tests/faults/kills.py --kills 25 --seed 1` kills fits of every learner so often, prints a table and every
failure, and exits with 1 if there is one. Each fit is a process of its own, killed by SIGKILL or SIGTERM.
"""

import argparse
import hashlib
import random
import signal
import subprocess
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

LINEAR = {"node": pt.Linear, "edge": pt.Linear}


def ilr(**options):
    return pt.IteratedLogistic(**{"iterations": 12, "tol": 0, **options})


def risk(*args, **options):
    return pt.MarginalRisk(*args, inference=pt.TRW(iterations=5, tol=0), **options)


def boosting():
    return pt.Boosting(rounds=3)


#: Per name the potentials and the learner of a fit of about a second.
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
    train = pt.datasets.denoising(3, (20, 20), seed=0)
    if name in ("soft", "em"):
        rng = np.random.default_rng(1)
        train = [
            pt.Example(e.graph, e.features, np.where(rng.random(400) < 0.2, -1, e.labels)) for e in train
        ]
    crf = pt.CRF({kind: make() for kind, make in potentials.items()}, learner())
    return crf.fit(train, checkpoint=path, callback=callback)


def fit_chain(path, callback):
    rng = np.random.default_rng(0)
    words = [[f"w{k}" for k in rng.integers(200, size=12)] for _ in range(300)]
    x = [[{"word": word, "last": word[-1]} for word in sentence] for sentence in words]
    y = [[f"{int(word[1:]) % 7}" for word in sentence] for sentence in words]
    return pt.ChainCRF(c2=0.01, max_iterations=60, delta=0.0).fit(x, y, checkpoint=path, callback=callback)


def fit_labels(model, path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 20))
    y = (x @ rng.normal(size=(20, 12)) + rng.normal(size=(400, 12)) > 0).astype(int)
    return model.fit(x, y, checkpoint=path)


FITS = {
    **{name: (lambda path, callback, name=name: fit_crf(name, path, callback)) for name in CRFS},
    "chain": fit_chain,
    "lmsbn": lambda path, _: fit_labels(pt.LMSBN(1e-4), path),
    "lmbm": lambda path, _: fit_labels(pt.LMBM(1e-4, passes=60, tol=1e-12), path),
}


def fit(name, path):
    """The digest of a fit's parameters; the state is written after every iteration."""
    checkpoint._INTERVAL = checkpoint._SHARE = 0.0
    fit_progress._EVERY = 0.0
    print("begun", flush=True)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore", pt.ConvergenceWarning)
        saved = Path(folder) / "model"
        FITS[name](path, lambda history: False).save(saved)
        arrays = read_file(saved, file_kind(saved))[1]
    found = hashlib.sha256()
    for key in sorted(arrays):
        found.update(key.encode() + np.asarray(arrays[key]).tobytes())
    return found.hexdigest()


def command(name, path):
    return [sys.executable, __file__, "--fit", name, str(path)]


def start(name, path):
    return subprocess.Popen(command(name, path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def whole(name, folder):
    """Digest of a fit that nobody kills, and seconds before and in it."""
    begun = time.perf_counter()
    run = start(name, folder / "whole")
    run.stdout.readline()
    ready = time.perf_counter()
    out, errors = run.communicate()
    if run.returncode:
        raise RuntimeError(errors)
    return out.split()[-1], ready - begun, time.perf_counter() - ready


def kill(name, path, rng, starting, fitting):
    """Run a fit and kill it, most often while it fits; whether it was still running."""
    run = start(name, path)
    if rng.random() < 0.1:
        time.sleep(rng.uniform(0.0, starting))
    else:
        run.stdout.readline()
        time.sleep(rng.uniform(0.0, fitting))
    running = run.poll() is None
    run.send_signal(rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
    run.communicate(timeout=60)
    return running


def campaign(name, kills, each, rng):
    """How often fits of a learner were killed, and what was wrong."""
    count, wrong = 0, []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        digest, *seconds = whole(name, folder)
        while count < kills:
            path = folder / f"killed{count}"
            count += sum(kill(name, path, rng, *seconds) for _ in range(min(each, kills - count)))
            done = subprocess.run(command(name, path), capture_output=True, text=True, check=False)
            if done.returncode:
                wrong.append(f"{name}: resuming failed: {done.stderr.strip().splitlines()[-1]}")
            elif done.stdout.split()[-1] != digest:
                wrong.append(f"{name}: other bits after {count} kills")
            left = [p.name for p in folder.iterdir() if p.name.startswith(f".{path.name}")]
            wrong += [f"{name}: left {left}"] if left else []
    return count, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=25, help="of every learner")
    parser.add_argument("--each", type=int, default=3, help="kills of one fit before it may end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learners", nargs="*", choices=FITS, default=list(FITS))
    parser.add_argument("--fit", nargs=2, metavar=("NAME", "CHECKPOINT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fit:
        print(fit(*arguments.fit))
        return 0
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
