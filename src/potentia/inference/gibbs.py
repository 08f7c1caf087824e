"""`Gibbs`: marginals by sampling, asymptotically exact, an independent check of the other methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..base.types import ArrayLike, Floats, InfeasibleError, Ints, PotentiaError, check_count, check_share
from ..graph.scores import Scores, score_labels
from ..graph.structure import Graph
from ..kernels import outcome_search
from ..kernels import sampling as kernels
from .base import Inference, Result, all_singles
from .decode import best_labelling, feasible_labelling
from .engine import kikuchi
from .linear_program import own_tables
from .structured import outcome_model

#: Uniform numbers drawn at a time.
_BLOCK = 1 << 20


@dataclass
class Gibbs(Inference):
    """Single-site Gibbs sampling [Geman and Geman 1984] with several chains.

    Marginals are frequencies over all chains' samples; `residual` is the largest standard error of a
    variable's marginal, estimated from the spread between chains. Samples do not give log Z: `value` is
    Kikuchi's estimate at the sampled marginals, which tends to log Z on forests and junction trees only. Hard
    constraints (-inf) may cut the labellings into parts that single changes cannot leave; a chain then stays
    in its part. With values of `pt.factors` pairs of their variables are redrawn together, too, and `value` is NaN:
    frequencies of outcomes say nothing of the entropy.

    Attributes:
        samples: samples kept per chain.
        burn_in: sweeps before the first sample.
        thin: sweeps per sample.
        chains: independent chains, at least two.
        tol: largest standard error that counts as converged.
        seed: same seed, same samples.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> graph = pt.Graph.chain(3, n_states=2)
        >>> theta = {"node": [[0, 1]] * 3, "edge": np.eye(2)}
        >>> result = pt.Gibbs(samples=500, seed=0).infer(graph, theta)
        >>> bool(abs(result.marginals["node"] - pt.Exact().infer(graph, theta).marginals["node"]).max() < 0.1)
        True
    """

    smooth: ClassVar[bool] = False
    threaded: ClassVar[bool] = True

    samples: int = 2000
    burn_in: int = 200
    thin: int = 1
    chains: int = 4
    tol: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("samples", 1), ("burn_in", 0), ("thin", 1), ("chains", 2), ("seed", 0)):
            check_count(name, getattr(self, name), least)
        check_share("tol", self.tol)

    def run(self, scores: Scores, start: Result | None) -> Result:
        """Sample every chain; `start` (an earlier Gibbs result) continues its chains."""
        begin = np.concatenate([[0], np.cumsum(scores.regions.size)])
        total = np.zeros(begin[-1])
        parts, ends = [], []
        for chain in self._chains(scores, start):
            counts = np.zeros(begin[-1])
            chain.collect(self.samples, self.thin, begin, counts)
            parts.append(all_singles(scores, counts / self.samples, begin))
            ends.append(chain.labels)
            total += counts
        mu = total / (self.samples * self.chains)
        error = float((np.std(parts, axis=0, ddof=1) / np.sqrt(self.chains)).max())
        sweeps = self.samples * self.thin
        done = self.burn_in if start is None else start.iterations
        return Result.of_regions(
            scores, mu, value=_entropy_value(scores, mu), bound="estimate", target="log_partition",
            iterations=done + sweeps, residual=error, converged=error <= self.tol, best=best_labelling,
            messages=np.array(ends),
        )  # fmt: skip

    def sample(self, graph: Graph, theta: Mapping[str, ArrayLike], n: int, observed: ArrayLike | None = None) -> Ints:
        """n labellings, (n, n_variables): in turn from each chain, `thin` sweeps apart after `burn_in`."""
        scores = Scores(graph, theta, observed)
        draws = np.empty((n, graph.n_variables), dtype=np.int64)
        for k, chain in enumerate(self._chains(scores, None)):
            for row in range(k, n, self.chains):
                chain.sweep(self.thin)
                draws[row] = chain.labels
        return draws

    def _chains(self, scores: Scores, start: Result | None) -> Iterator[Chain]:
        """Chains after burn-in, or where the chains of `start` ended."""
        ends = None if start is None else start.messages
        if start is not None and not (isinstance(ends, np.ndarray) and ends.dtype == np.int64 and len(ends)):
            raise PotentiaError("start holds no chains; it must come from Gibbs.")
        done = 0 if start is None else start.iterations
        make = StructuredChain if scores.graph.structures else Chain
        for k in range(self.chains):
            rng = np.random.default_rng([self.seed, done, k])
            if ends is not None and score_labels(scores, ends[k % len(ends)]) > -np.inf:
                yield make(scores, ends[k % len(ends)], rng)
            else:
                labels = feasible_labelling(scores, rng)
                if labels is None:
                    raise InfeasibleError("Gibbs needs a labelling with a finite score to start, found none.")
                chain = make(scores, labels, rng)
                chain.sweep(self.burn_in)
                yield chain


class Chain:
    """One chain: a labelling and its source of random numbers."""

    def __init__(self, scores: Scores, labels: Ints, rng: np.random.Generator) -> None:
        self.flat = (scores.regions, *scores.flat())
        self.labels, self.rng, self.numbers = labels.copy(), rng, len(labels)

    def sweep(self, n: int) -> None:
        """Redraw every variable n times."""
        for uniforms in self._uniforms(n, 1):
            self._redraw(uniforms)

    def _redraw(self, uniforms: Floats) -> None:
        """A sweep per row of uniforms."""
        kernels.sweep(*self.flat, self.labels, uniforms)

    def collect(self, samples: int, thin: int, begin: Ints, counts: Floats) -> None:
        """Add the configurations of the given number of samples to `counts`, `thin` sweeps each."""
        for uniforms in self._uniforms(samples, thin):
            kernels.collect(*self.flat, self.labels, uniforms, thin, begin, counts)

    def _uniforms(self, samples: int, thin: int) -> Iterator[Floats]:
        """Blocks of uniform numbers, a row per sweep, whole samples each."""
        size = max(1, _BLOCK // (thin * self.numbers))
        for first in range(0, samples, size):
            yield self.rng.random((min(size, samples - first) * thin, self.numbers))


class StructuredChain(Chain):
    """A chain on structured factors, of which it also redraws pairs of variables together."""

    def __init__(self, scores: Scores, labels: Ints, rng: np.random.Generator) -> None:
        self.graph, (self.model, self.least) = scores.graph, outcome_model(scores)
        self.labels, self.rng, self.numbers = labels.copy(), rng, len(labels) + 2 * len(self.model.variable)

    def _redraw(self, uniforms: Floats) -> None:
        """A sweep per row of uniforms."""
        outcome_search.redraw(self.model, self.least, self.labels, uniforms)

    def collect(self, samples: int, thin: int, begin: Ints, counts: Floats) -> None:
        """Add the configurations, of structured factors the outcomes, of the samples to `counts`."""
        single = self.graph.regions.single
        for _ in range(samples):
            self.sweep(thin)
            counts[begin[single] + self.labels] += 1.0
            for kind in self.graph.clique_kinds:
                counts[begin[self.graph.region_slices[kind]] + self.graph.table_index(kind, self.labels)] += 1.0


def _entropy_value(scores: Scores, mu: Floats) -> float:
    """theta . mu + sum_alpha c_alpha H(mu_alpha) with Kikuchi's counting numbers (docs/concepts.md).

    mu: marginals of all regions one after another in the `Regions` numbering. NaN with structured factors.
    """
    if scores.graph.structures:
        return np.nan
    seen = mu > 0
    weight = np.repeat(kikuchi(scores.graph).counting, scores.regions.size)[seen]
    return float(own_tables(scores)[seen] @ mu[seen] - weight @ (mu[seen] * np.log(mu[seen])))
