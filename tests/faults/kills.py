"""Kill and resume: fits killed at random moments and resumed from their checkpoints end with the uninterrupted bits.

`python tests/faults/kills.py --kills 200 --seed 1` prints a table by learner and every failure, and exits with 1 if
there is one. Each fit is a process of its own, killed by SIGKILL or SIGTERM.
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
from collections import Counter
from pathlib import Path

import potentia as pt

LINEAR = {"node": pt.Linear, "edge": pt.Linear}
#: Per name the potentials and the learner of a fit of about a second.
FITS = {
    "alternating": (LINEAR, lambda: pt.IteratedLogistic(solver="alternating", iterations=60, tol=0)),
    "direct": (LINEAR, lambda: pt.IteratedLogistic(solver="direct", iterations=120, tol=0)),
    "mixed": (
        {"node": lambda: pt.Boosting(rounds=3), "edge": pt.Linear},
        lambda: pt.IteratedLogistic(solver="mixed", iterations=12, tol=0),
    ),
    "boosting": (
        {"node": lambda: pt.Boosting(rounds=3), "edge": lambda: pt.Boosting(rounds=3)},
        lambda: pt.IteratedLogistic(iterations=12, tol=0),
    ),
    "network": (
        {"node": lambda: pt.MLP(hidden=8), "edge": pt.Linear},
        lambda: pt.IteratedLogistic(solver="alternating", iterations=8, tol=0),
    ),
    "risk": (LINEAR, lambda: pt.MarginalRisk(inference=pt.TRW(iterations=5, tol=0), iterations=60)),
    "batches": (
        LINEAR,
        lambda: pt.MarginalRisk(inference=pt.TRW(iterations=5, tol=0), batch=1, iterations=30),
    ),
    "margin": (LINEAR, lambda: pt.MaxMargin(inference=pt.TRW(), iterations=40)),
}


def fit(name, checkpoint):
    """The digest of a fit's potentials."""
    potentials, learner = FITS[name]
    train = pt.datasets.denoising(3, (20, 20), seed=0)
    crf = pt.CRF({kind: make() for kind, make in potentials.items()}, learner())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pt.ConvergenceWarning)
        crf.fit(
            train, checkpoint=checkpoint, callback=lambda history: print(len(history), flush=True) or False
        )
    found = hashlib.sha256()
    for kind in sorted(crf.potentials_):
        for table in (
            crf.potentials_[kind].state()[1][key] for key in sorted(crf.potentials_[kind].state()[1])
        ):
            found.update(table.tobytes())
    return found.hexdigest()


def command(name, checkpoint):
    return [sys.executable, __file__, "--fit", name, str(checkpoint)]


def whole(name, folder):
    """Digest and seconds of a fit that nobody kills, with kernels that an earlier process has compiled."""
    subprocess.run(command(name, folder / "warm"), capture_output=True, check=True)
    begun = time.perf_counter()
    done = subprocess.run(command(name, folder / "whole"), capture_output=True, text=True, check=True)
    return done.stdout.split()[-1], time.perf_counter() - begun


def killed(name, folder, kills, rng, seconds):
    """Digest of a fit killed so often, at any moment, and resumed; the moments killed and what was wrong on the way."""
    path, wrong = folder / f"killed{rng.randrange(10**9)}", []
    for _ in range(kills):
        run = subprocess.Popen(command(name, path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            run.communicate(timeout=rng.uniform(0.0, seconds))
        except subprocess.TimeoutExpired:
            number = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
            run.send_signal(number)
            run.communicate(timeout=60)
    done = subprocess.run(command(name, path), capture_output=True, text=True, check=False)
    if done.returncode:
        wrong.append(f"{name}: resuming failed: {done.stderr.strip().splitlines()[-1]}")
    left = [p.name for p in folder.iterdir() if p.name.startswith(f".{path.name}")]
    wrong += [f"{name}: left {left}"] if left else []
    return done.stdout.split()[-1] if done.stdout else "", wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--each", type=int, default=3, help="kills of one fit before it may end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fit", nargs=2, metavar=("NAME", "CHECKPOINT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fit:
        print(fit(*arguments.fit))
        return 0
    rng, counts, failures = random.Random(arguments.seed), Counter(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected = {}
        fits = list(FITS)
        while sum(counts.values()) < arguments.kills:
            fit_name = fits[(sum(counts.values()) // arguments.each) % len(fits)]
            if fit_name not in expected:
                expected[fit_name] = whole(fit_name, folder)
                for path in folder.iterdir():
                    path.unlink()
            digest, seconds = expected[fit_name]
            found, wrong = killed(fit_name, folder, arguments.each, rng, seconds)
            failures += wrong + (
                [] if found == digest else [f"{fit_name}: other bits after {arguments.each} kills"]
            )
            counts[fit_name] += arguments.each
    for fit_name, count in counts.items():
        print(f"{fit_name:<12} {count:>5} kills")
    print(*failures, f"{len(failures)} failures", sep="\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
