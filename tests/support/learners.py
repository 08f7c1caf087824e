"""Every learner in a small fit: the table that tests of fits, resuming, kills, parts and clusters share."""

import json
from dataclasses import replace
from typing import NamedTuple

import numpy as np

import potentia as pt
from potentia import MLP, Boosting, Constant, Example, Linear
from sample_images import noisy


def weighted(examples):
    rng = np.random.default_rng(5)
    return [
        Example(e.graph, e.features, e.labels, None if k % 2 else rng.uniform(0.5, 2.0, len(e.labels)))
        for k, e in enumerate(examples)
    ]


def hidden(examples):
    rng = np.random.default_rng(6)
    return [
        Example(e.graph, e.features, np.where(rng.random(len(e.labels)) < 0.2, -1, e.labels), e.weights)
        for e in examples
    ]


def lacking(examples):
    """Every other example has no pairs."""
    return [_bare(e) if k % 2 else e for k, e in enumerate(examples)]


def _bare(e):
    n = len(e.labels)
    graph = pt.Graph(np.full(n, 2), {"node": np.arange(n)[:, None]})
    return Example(graph, {"node": e.features["node"]}, e.labels)


def single(examples):
    """Features in float32."""
    return [Example(e.graph, {k: v.astype(np.float32) for k, v in e.features.items()}, e.labels) for e in examples]


DATA = {"plain": list, "weighted": weighted, "hidden": hidden, "lacking": lacking, "single": single}


class Case(NamedTuple):
    """Potentials, a learner, and the data that bring out what is special about it."""

    potentials: dict
    learner: pt.extend.Learner
    data: str = "plain"

    def crf(self, **options):
        return pt.CRF(self.potentials, replace(self.learner, **options))

    def examples(self, n=5, size=(6, 8)):
        return DATA[self.data](noisy(n, size))


def ilr(**options):
    return pt.IteratedLogistic(**{"iterations": 3, "sweeps": 4, "tol": 0.0, "message_tol": 0.0, **options})


LINEAR = {"node": Linear(), "edge": Linear()}
PLANES = {"iterations": 4, "inference": pt.Smoothed(0.0, iterations=20)}
LEARNERS = {
    "alternating": Case(LINEAR, ilr(solver="alternating"), "hidden"),
    "direct": Case({"node": Linear(), "edge": Constant()}, ilr(solver="direct"), "lacking"),
    "mixed": Case({"node": Boosting(rounds=4, more_rounds=2), "edge": Linear()}, ilr(solver="mixed"), "weighted"),
    "drawn": Case({"node": Boosting(rounds=4, subsample=40), "edge": Boosting(rounds=2)}, ilr()),
    "mlp": Case({"node": MLP(hidden=5, epochs=1), "edge": MLP(hidden=4, epochs=1)}, ilr(solver="alternating")),
    "soft": Case(LINEAR, ilr(hidden="soft"), "hidden"),
    "risk": Case(LINEAR, pt.MarginalRisk(iterations=4, tol=0.0, track_error=True)),
    "em": Case(LINEAR, pt.MarginalRisk("surrogate_em", iterations=4, tol=0.0, track_error=True), "hidden"),
    "warm": Case(
        LINEAR, pt.MarginalRisk(gradient="backpropagation", inference=pt.TRW(tol=1e-6), iterations=4, tol=0.0), "hidden"
    ),
    "batches": Case(LINEAR, pt.MarginalRisk(batch=2, iterations=3)),
    "stages": Case(LINEAR, pt.MarginalRisk(incremental=2, iterations=4, tol=0.0)),
    "margin": Case(LINEAR, pt.MaxMargin(**PLANES)),
    "planes": Case(LINEAR, pt.MaxMargin(solver="one_slack", **PLANES), "lacking"),
}


def digest(crf):
    """All that potentials have learned, to the last bit."""
    states = [potential.state() for potential in crf.potentials_.values()]
    metas = [json.dumps(meta, default=str) for meta, _ in states]
    return metas, [{k: v.tobytes() for k, v in arrays.items()} for _, arrays in states]
