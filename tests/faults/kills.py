"""Kill and resume: fits killed at random moments and resumed from their checkpoints end with the uninterrupted bits.

`python tests/faults/kills.py --kills 8 --pairs 20 --seed 1` kills fits of every learner so often, starts so many pairs
of fits on one checkpoint, prints a table and every failure, and exits with 1 if there is one. Each fit is a process of
its own, killed by SIGKILL or SIGTERM.
"""

import argparse
import copy
import hashlib
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import potentia as pt
from learners import LEARNERS, LINEAR, Case, ilr
from potentia.base.saving import file_kind, read_file
from potentia.learn import checkpoint
from potentia.models.multilabel import base
from potentia.potentials.base import Differentiable

#: Children find the library imported.
FORK = multiprocessing.get_context("fork")


class Mine(Differentiable):
    """A potential of a user: linear in the features and in a constant."""

    def _begin(self, problem):
        self.table_ = np.zeros((problem.n_features + 1, problem.n_outputs))

    def _columns(self, x):
        return np.column_stack([x, np.ones(len(x))])

    def _fit(self, problem):
        self.minimise(problem, 50, 1e-6)

    def _scores(self, x):
        return self._columns(x) @ self.table_

    def _vjp(self, x, d_scores):
        return (self._columns(x).T @ d_scores).ravel()

    @property
    def parameters(self):
        return self.table_.ravel().copy()

    @parameters.setter
    def parameters(self, vector):
        self.table_ = np.reshape(vector, self.table_.shape).copy()

    def penalty_and_gradient(self, ridge=None):
        return 0.0, np.zeros(self.table_.size)


#: Iterations that make fits of the shared table take some tenths of a second.
ITERATIONS = {
    "alternating": 60, "direct": 60, "mixed": 12, "drawn": 12, "mlp": 8, "soft": 30, "risk": 60, "em": 40, "warm": 20,
    "batches": 30, "stages": 40, "margin": 40, "planes": 40,
}  # fmt: skip


def some(inference, loss, iterations):
    return Case(LINEAR, pt.MarginalRisk(loss, inference=inference, iterations=iterations))


#: The learners that are killed: those of the shared table, and some more.
CRFS = {
    **{
        name: case._replace(learner=replace(case.learner, iterations=ITERATIONS[name]))
        for name, case in LEARNERS.items()
    },
    "fixed": Case(LINEAR, ilr(solver="univariate_fixed", iterations=30)),
    "gibbs": some(pt.Gibbs(samples=20, burn_in=5, seed=0), "surrogate_likelihood", 15),
    "mean_field": some(pt.MeanField(iterations=5), "univariate_logistic", 30),
}


def examples(order, hidden, weighted):
    """Two noisy binary images, in which the last pixel of a run of `order` is 1 if the others are equal."""
    rng = np.random.default_rng(1)
    found = []
    for e in pt.datasets.denoising(2, (14, 14) if order == 2 else (5, 5), seed=0):
        graph, features, n = e.graph, dict(e.features), e.graph.n_variables
        if order > 2:
            runs = np.arange(n - order + 1)[:, None] + np.arange(order)
            graph = pt.Graph(graph.n_states, {**graph.scopes, "run": runs})
            features["run"] = np.ones((len(runs), 1)) + 0.1 * rng.normal(size=(len(runs), 1))
        labels = np.where(rng.random(n) < 0.2, -1, e.labels) if hidden else e.labels
        found.append(pt.Example(graph, features, labels, rng.uniform(0.5, 2.0, n) if weighted else None))
    return found


def fit_crf(name, path, callback):
    """A fit of `learner`, or of `learner-ORDER` with weights and, where the learner takes them, hidden labels.

    After a further "-custom" every potential is a user's.
    """
    learner_name, order, custom = [*name.split("-"), "", ""][:3]
    potentials, learner, _ = CRFS[learner_name]
    train = examples(int(order or 2), learner_name in ("soft", "em"), bool(order))
    kinds = train[0].graph.kinds
    made = {kind: Mine() if custom else copy.deepcopy(potentials.get(kind, pt.Linear())) for kind in kinds}
    return pt.CRF(made, learner).fit(train, checkpoint=path, callback=callback)


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


#: Learners of regions of every order, and those among them that take a user's potentials.
ORDERS = ("alternating", "direct", "soft", "risk", "em", "margin", "planes")
MATRIX = [f"{name}-{order}" for name in ORDERS for order in (2, 3, 4)]
MATRIX += [f"{name}-3-custom" for name in ORDERS[:5]]
FITS = {
    **{name: (lambda path, callback, name=name: fit_crf(name, path, callback)) for name in [*CRFS, *MATRIX]},
    "chain": fit_chain,
    "lmsbn": lambda path, _: fit_labels(pt.LMSBN(1e-4), path),
    "lmbm": lambda path, _: fit_labels(pt.LMBM(1e-4, passes=20, tol=1e-12), path),
}


def fit(name, path):
    """The digest of a fit's parameters; the state is written after every iteration."""
    checkpoint._INTERVAL = checkpoint._SHARE = 0.0
    base._EVERY = 0.0
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
    """A process that fits, and where its digest, or the sentence that it was refused with, comes from."""
    ours, theirs = FORK.Pipe(duplex=False)

    def send():
        try:
            theirs.send(fit(name, path))
        except pt.PotentiaError as error:
            theirs.send(str(error))

    process = FORK.Process(target=send)
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


def is_digest(text):
    return text is not None and len(text) == 64 and " " not in text


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
        if not is_digest(digest):
            return 0, [f"{name}: {digest or 'no result'} without a kill"]
        seconds = time.perf_counter() - begun
        while count < kills:
            path = folder / f"killed{count}"
            for _ in range(min(each, kills - count)):
                running = kill(name, path, rng, seconds)
                count += running
                seconds *= 1.0 if running else 0.7  # the machine is faster than it was
            found = end(*start(name, path))
            if found != digest:
                wrong.append(f"{name}: {found or 'no result'}, not {digest}, after {count} kills")
            wrong += left_beside(name, path)
    return count, wrong


def left_beside(name, path):
    """What is wrong with the folder of a fit that has ended."""
    left = [p.name for p in path.parent.iterdir() if p.name.startswith(f".{path.name}")]
    return [f"{name}: left {left}"] if left else []


def pair(name, rng):
    """How many of two fits on one checkpoint were refused, and what was wrong: one must end with the usual bits."""
    wrong = []
    with tempfile.TemporaryDirectory() as made:
        begun = time.perf_counter()
        digest = end(*start(name, Path(made) / "whole"))
        if not is_digest(digest):
            return 0, [f"{name}: {digest or 'no result'} without another fit"]
        seconds = time.perf_counter() - begun
        path = Path(made) / "shared"
        first = start(name, path)
        time.sleep(rng.choice([0.0, rng.uniform(0.0, seconds)]))
        found = [end(*fitted) for fitted in (start(name, path), first)]
        others = [text for text in found if text != digest]
        if len(others) > 1 or any("is in use by another fit" not in str(text) for text in others):
            wrong.append(f"{name}: a pair gave {found}, not {digest}")
        if end(*start(name, path)) != digest:
            wrong.append(f"{name}: the checkpoint of a pair was destroyed")
        wrong += left_beside(name, path)
    return len(others), wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=25, help="of every learner")
    parser.add_argument("--each", type=int, default=3, help="kills of one fit before it may end")
    parser.add_argument("--pairs", type=int, default=0, help="of processes on one checkpoint, over the learners")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learners", nargs="*", choices=FITS, default=list(FITS))
    arguments = parser.parse_args()
    failures = []
    for name in arguments.learners:
        count, wrong = campaign(name, arguments.kills, arguments.each, random.Random(f"{arguments.seed} {name}"))
        print(f"{name:<22} {count:>5} kills {len(wrong):>5} failures", flush=True)
        failures += wrong
    for number in range(arguments.pairs):
        name = arguments.learners[number % len(arguments.learners)]
        refused, wrong = pair(name, random.Random(f"{arguments.seed} {number}"))
        print(f"{name:<22} {refused:>5} of a pair refused {len(wrong):>5} failures", flush=True)
        failures += wrong
    print(*failures, f"{len(failures)} failures", sep="\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
