"""Peak memory of training chains with many labels and sparse features, as in spoken-language understanding.

`python -m potentia_studies.bench.chain_memory ChainCRF` (or MarginalRisk) trains on 20,000 generated sentences of
10 tokens with 150 labels and 50,000 sparse features, and prints seconds and memory as JSON.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import potentia as pt
from potentia.base.types import Ints

from .timing import peak_memory

_TOKENS, _ITEMS = 10, 6


class Corpus(NamedTuple):
    """Numbers of the features of every token (tokens, 6), and labels."""

    columns: Ints
    labels: Ints
    n_labels: int
    n_features: int

    @property
    def n_sentences(self) -> int:
        """Sentences of ten tokens."""
        return len(self.labels) // _TOKENS


def make_corpus(n_sentences: int = 20_000, n_labels: int = 150, n_features: int = 50_000) -> Corpus:
    """Few features are frequent, most are rare; the first of a token decides its label."""
    rng = np.random.default_rng(0)
    drawn = rng.zipf(1.3, size=(n_sentences * _TOKENS, _ITEMS)) * 7919 + np.arange(_ITEMS) * (n_features // _ITEMS)
    columns = drawn % n_features
    return Corpus(columns, columns[:, 0] % n_labels, n_labels, n_features)


def fit_chain(corpus: Corpus, steps: int) -> pt.ChainCRF:
    """By `ChainCRF`, whose features are made as they are read."""
    X: Iterator[Any] = (
        [[f"f{k}" for k in row] for row in corpus.columns[t : t + _TOKENS].tolist()]
        for t in range(0, len(corpus.labels), _TOKENS)
    )
    return pt.ChainCRF(max_iterations=steps, delta=0.0).fit(X, corpus.labels.reshape(-1, _TOKENS).tolist())


def fit_risk(corpus: Corpus, steps: int) -> pt.CRF:
    """By `MarginalRisk`, with a weight for every feature and label."""
    from scipy import sparse

    graph, n = pt.Graph.chain(_TOKENS, n_states=corpus.n_labels), len(corpus.labels)
    ones, ptr = np.ones(corpus.columns.size, dtype=np.float32), np.arange(n + 1) * _ITEMS
    x = sparse.csr_array((ones, corpus.columns.ravel().astype(np.int32), ptr), shape=(n, corpus.n_features))
    x.sum_duplicates()
    cuts = [slice(t, t + _TOKENS) for t in range(0, n, _TOKENS)]
    examples = [pt.Example(graph, {"node": x[cut]}, corpus.labels[cut]) for cut in cuts]
    learner = pt.MarginalRisk(
        "likelihood", pt.Exact(), ridge=1e-5, iterations=steps, tol=0.0, start="zero", track_error=False
    )
    return pt.CRF({"node": pt.Linear(), "edge": pt.Constant()}, learner).fit(examples)


#: What can be measured, by name.
SYSTEMS = {"ChainCRF": fit_chain, "MarginalRisk": fit_risk}

if __name__ == "__main__":
    made, begun = make_corpus(), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pt.ConvergenceWarning)
        SYSTEMS[sys.argv[1]](made, 10)
    taken = time.perf_counter() - begun
    print(json.dumps({"system": sys.argv[1], "seconds": taken, "peak_mib": peak_memory()}))
