"""Exact likelihood of linear chains beside CRFsuite: the same features, penalty and steps, each in a fresh process.

CRFsuite (`pip install python-crfsuite`) and the data folder are optional; what is missing is left out.
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
from typing import Any

import numpy as np

import potentia as pt

from ..._types import PotentiaError
from ...features.spans import span_scores
from ...features.tokens import TokenFeatures
from ...report.tables import Column
from .timing import Part, Rows, in_fresh_process, peak_memory

#: Folds to train on and to test on.
_LETTERS: dict[str, tuple[Sequence[int], Sequence[int]]] = {
    "letters, fold 0": ([0], range(1, 10)),
    "letters, fold 1": ([1], [0, *range(2, 10)]),
    "letters, folds 1-9": (range(1, 10), [0]),
}
_STEPS = 100

Problem = tuple[list[pt.Example], list[pt.Example], Callable[[list[Any]], float]]


def _measure(quick: bool) -> Rows:
    """Training time, peak memory and accuracy (chunks: F1) of both; none without the data."""
    try:
        pt.datasets.data_folder(None)
    except PotentiaError:
        return []
    systems = ["potentia", *(["CRFsuite"] if find_spec("pycrfsuite") else [])]
    problems = ["letters, fold 0"] if quick else [*_LETTERS, "CoNLL-2000 chunks"]
    return [in_fresh_process("potentia.lab.bench.sequences", p, s) for p in problems for s in systems]


def _letters(name: str) -> Problem:
    train, test = (pt.datasets.letters(folds=folds) for folds in _LETTERS[name])

    def accuracy(found: list[Any]) -> float:
        right = sum(float(np.sum(a == e.labels)) for a, e in zip(found, test, strict=True))
        return right / sum(len(e.labels) for e in test if e.labels is not None)

    return train, test, accuracy


def _chunks() -> Problem:
    folder = pt.datasets.data_folder(None) / "sequences"
    sentences = {part: pt.datasets.conll(folder / f"conll2000_{part}.tsv.gz") for part in ("train", "test")}
    features = TokenFeatures(min_count=2).fit(sentences["train"])

    def f1(found: list[Any]) -> float:
        named = [[features.classes_[k] for k in row] for row in found]
        return span_scores([s[-1] for s in sentences["test"]], named)["f1"]

    return features.transform(sentences["train"]), features.transform(sentences["test"]), f1


def _potentia(train: list[pt.Example], test: list[pt.Example]) -> tuple[float, list[Any]]:
    n = sum(e.graph.n_variables for e in train)
    # CRFsuite's c2 = 1 is |w|^2 on the summed loss
    learner = pt.MarginalRisk(
        "likelihood", pt.Exact(), ridge=2 / n, iterations=_STEPS, tol=0.0, start="zero", track_error=False
    )
    model = pt.CRF({"node": pt.Linear(), "edge": pt.Constant()}, learner)
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pt.ConvergenceWarning)
        model.fit(train)
    return time.perf_counter() - begun, model.predict(test)


def _crfsuite(train: list[pt.Example], test: list[pt.Example]) -> tuple[float, list[Any]]:
    import pycrfsuite

    def items(example: pt.Example) -> Any:
        x = example.features["node"]
        rows = (
            [np.flatnonzero(row) for row in x]
            if isinstance(x, np.ndarray)
            else np.split(x.indices, x.indptr[1:-1])
        )
        return pycrfsuite.ItemSequence([[*map(str, row.tolist()), "bias"] for row in rows])

    trainer = pycrfsuite.Trainer(verbose=False)
    for example in train:
        assert example.labels is not None
        trainer.append(items(example), [str(y) for y in example.labels])
    trainer.set_params({"c2": 1.0, "max_iterations": _STEPS, "feature.possible_transitions": True})
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model")
        begun = time.perf_counter()
        trainer.train(path)
        seconds = time.perf_counter() - begun
        tagger = pycrfsuite.Tagger()
        tagger.open(path)
        found = [np.array(tagger.tag(items(example)), dtype=int) for example in test]
    return seconds, found


def _train(problem: str, system: str) -> dict[str, Any]:
    train, test, quality = _chunks() if problem.startswith("CoNLL") else _letters(problem)
    before = peak_memory()
    seconds, found = {"potentia": _potentia, "CRFsuite": _crfsuite}[system](train, test)
    row = {"data": problem, "system": system, "seconds": seconds, "quality": quality(found)}
    return row | {"memory_mib": peak_memory(), "before_mib": before}


PART = Part(
    "sequence",
    "Sequences",
    [
        Column("exact likelihood", "data"),
        Column("system", "system"),
        Column("seconds", "seconds", "{:.1f}".format),
        Column("accuracy / F1", "quality", "{:.4f}".format),
        Column("peak MiB", "memory_mib", "{:.0f}".format),
        Column("of it data", "before_mib", "{:.0f}".format),
    ],
    _measure,
)

if __name__ == "__main__":
    print(json.dumps(_train(sys.argv[1], sys.argv[2])))
