"""`ChainCRF` beside CRFsuite: the same features and objective on one thread, each in a fresh process.

CRFsuite (`pip install python-crfsuite`) and the data folder are optional; what is missing is left out. Seconds are of
processor time, which other work on the machine disturbs least.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import potentia as pt
from potentia.app.report.rows import Column
from potentia.base.types import PotentiaError
from potentia.features.schemes import span_scores
from potentia.features.tokens import TokenFeatures

from .. import public_sets
from .timing import Rows, Suite, in_fresh_process, peak_memory

#: Folds to train on and to test on.
_LETTERS: dict[str, tuple[Sequence[int], Sequence[int]]] = {
    "letters, fold 0": ([0], range(1, 10)),
    "letters, folds 1-9": (range(1, 10), [0]),
}
#: Token files with features of words, tags and spelling.
TOKENS = {"CoNLL-2000": "conll2000", "WNUT-17": "wnut17"}
#: Words drawn given labels.
GENERATED = "131 labels"
#: Steps of both; the time is that until the objective is as low as CRFsuite's after these steps.
_STEPS = {GENERATED: 10}
_DEFAULT_STEPS = 100


class TaggingProblem(NamedTuple):
    """Names of features per token and labels, to train on and to test on, and the measure of predictions."""

    X: list[Any]
    y: list[list[str]]
    X_test: list[Any]
    y_test: list[list[str]]
    quality: Callable[[list[list[str]], list[list[str]]], float]


def _measure(quick: bool) -> Rows:
    """Training and prediction of both; none without the data."""
    try:
        pt.datasets.data_folder(None)
    except PotentiaError:
        return []
    names = ["letters, fold 0"] if quick else [*_LETTERS, *TOKENS, GENERATED]
    return [row for name in names for row in compare(name)]


def compare(name: str) -> Rows:
    """Training and prediction of potentia, with ratios, and of CRFsuite if it is installed."""
    module = "potentia_studies.bench.sequences"
    if not find_spec("pycrfsuite"):
        return [in_fresh_process(module, name, "potentia")]
    theirs = in_fresh_process(module, name, "CRFsuite")
    ours = in_fresh_process(module, name, "potentia", str(theirs["objective"]))
    for key in ("seconds", "predict_seconds"):
        ours[f"{key}_ratio"] = theirs[key] / ours[key]
    ours["memory_ratio"] = ours["memory_mib"] / theirs["memory_mib"]
    return [ours, theirs]


def _accuracy(truth: list[list[str]], found: list[list[str]]) -> float:
    pairs = [(a, b) for p, q in zip(truth, found, strict=True) for a, b in zip(p, q, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


def _f1(truth: list[list[str]], found: list[list[str]]) -> float:
    return span_scores(truth, found)["f1"]


def _letters(name: str) -> TaggingProblem:
    def part(folds: Sequence[int]) -> tuple[list[Any], list[list[str]]]:
        words = public_sets.letters(folds=folds)
        pixels = [str(k) for k in range(128)]
        X = [[[*(pixels[k] for k in np.flatnonzero(row)), "bias"] for row in e.features["node"]] for e in words]
        return X, [[chr(97 + k) for k in e.labels] for e in words if e.labels is not None]

    train, test = map(part, _LETTERS[name])
    return TaggingProblem(*train, *test, _accuracy)


def _tokens(name: str) -> TaggingProblem:
    folder = pt.datasets.data_folder(None) / "sequences"
    features = TokenFeatures(spelling=True)

    def part(which: str) -> tuple[list[Any], list[list[str]]]:
        sentences = pt.datasets.conll(folder / f"{TOKENS[name]}_{which}.tsv.gz")
        # CRFsuite ends names at a zero
        X = [[[name.replace("\0", "<edge>") for name in names] for names in features.names(s[:-1])] for s in sentences]
        return X, [s[-1] for s in sentences]

    return TaggingProblem(*part("train"), *part("test"), _f1)


def _generated(name: str) -> TaggingProblem:
    """Words drawn given labels of a Markov chain."""
    rng = np.random.default_rng(0)
    n = 131
    follow = rng.dirichlet(np.full(n, 0.05), size=n)
    words = rng.dirichlet(np.full(2000, 0.02), size=n)

    def part(size: int) -> tuple[list[Any], list[list[str]]]:
        X, y = [], []
        for _ in range(size):
            states = [int(rng.integers(n))]
            for _ in range(11):
                states.append(int(rng.choice(n, p=follow[states[-1]])))
            drawn = [f"w{rng.choice(2000, p=words[k])}" for k in states]
            around = zip(drawn, ["", *drawn[:-1]], [*drawn[1:], ""], strict=True)
            X.append([[w, f"-1:{a}", f"+1:{b}", "bias"] for w, a, b in around])
            y.append([str(k) for k in states])
        return X, y

    return TaggingProblem(*part(2000), *part(2000), _accuracy)


def _potentia(problem: TaggingProblem, steps: int, target: float) -> dict[str, Any]:
    model = pt.ChainCRF(c2=1.0, max_iterations=steps, delta=0.0, all_possible_transitions=True, threads=1)
    begun = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pt.ConvergenceWarning)
        model.fit(problem.X, problem.y, callback=lambda history: history[-1]["objective"] <= target)
    seconds = time.process_time() - begun
    memory = peak_memory()
    model.predict(problem.X_test[:1])
    begun = time.process_time()
    found = model.predict(problem.X_test)
    predicting = time.process_time() - begun
    objective, n = model.history_[-1]["objective"], model.n_iter_
    return {"seconds": seconds, "iterations": n, "objective": objective, "predict_seconds": predicting,
            "quality": problem.quality(problem.y_test, found), "memory_mib": memory}  # fmt: skip


def _crfsuite(problem: TaggingProblem, steps: int, target: float) -> dict[str, Any]:
    import pycrfsuite

    begun = time.process_time()
    trainer = pycrfsuite.Trainer(verbose=False)
    for tokens, labels in zip(problem.X, problem.y, strict=True):
        trainer.append(tokens, labels)
    options = {"c2": 1.0, "max_iterations": steps, "feature.possible_transitions": True}
    trainer.set_params(options)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model")
        trainer.train(path)
        seconds = time.process_time() - begun
        memory = peak_memory()
        tagger = pycrfsuite.Tagger()
        tagger.open(path)
        begun = time.process_time()
        found = [tagger.tag(tokens) for tokens in problem.X_test]
        predicting = time.process_time() - begun
    last = trainer.logparser.last_iteration
    return {"seconds": seconds, "iterations": last["num"], "objective": last["loss"], "predict_seconds": predicting,
            "quality": problem.quality(problem.y_test, found), "memory_mib": memory}  # fmt: skip


def _train(name: str, system: str, target: float) -> dict[str, Any]:
    make = _letters if name in _LETTERS else _tokens if name in TOKENS else _generated
    problem, before = make(name), peak_memory()
    run = {"potentia": _potentia, "CRFsuite": _crfsuite}[system]
    return {
        "data": name,
        "system": system,
        **run(problem, _STEPS.get(name, _DEFAULT_STEPS), target),
        "before_mib": before,
    }


def _ratio(value: Any) -> str:
    return "" if value is None else f"{value:.2f}"


PART = Suite(
    "sequence",
    "Sequences",
    [
        Column("exact likelihood", "data"),
        Column("system", "system"),
        Column("steps", "iterations"),
        Column("objective", "objective", "{:.1f}".format),
        Column("seconds", "seconds", "{:.1f}".format),
        Column("times as fast", "seconds_ratio", _ratio),
        Column("predicting", "predict_seconds", "{:.2f}".format),
        Column("times as fast", "predict_seconds_ratio", _ratio),
        Column("accuracy / F1", "quality", "{:.4f}".format),
        Column("peak MiB", "memory_mib", "{:.0f}".format),
        Column("of it data", "before_mib", "{:.0f}".format),
        Column("memory ratio", "memory_ratio", _ratio),
    ],
    _measure,
)

if __name__ == "__main__":
    print(json.dumps(_train(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else -np.inf)))
