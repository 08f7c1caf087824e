"""Approximations of the likelihood that need no inference, or only samples near the data [MBL-tpami sec. 4.1]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..base.options import check_count
from ..base.types import Floats, Ints, PotentiaError
from ..graph.cotangents import (
    Tables,
    add_cliques,
    add_singles,
    clique_kinds,
    own_tables,
    split_flat,
    zero_tables,
)
from ..graph.scores import Scores
from ..graph.structure import Graph
from ..inference.decode import feasible_labelling
from ..inference.gibbs import Chain
from ..kernels.sampling import patch_losses
from .loss import Loss, Methods, label_difference, region_weights, seen_regions, tables_by_size

#: Most configurations of a patch that are enumerated.
_MOST = 2**16


@dataclass(frozen=True)
class Pseudolikelihood(Loss):
    """-log p(y_i | all others), summed over variables; with `patch` > 1 over connected patches of that many variables.

    Patches are cut in breadth-first order, each variable in one; as they grow this becomes the exact likelihood.
    Conditionals that involve a hidden variable are left out. A patch weighs the mean of its variables.
    """

    patch: int = 1

    name: ClassVar[str] = "pseudolikelihood"

    def __post_init__(self) -> None:
        check_count("patch", self.patch, 1)

    def evaluate(
        self, scores: Scores, labels: Ints, weights: Floats | None, methods: Methods
    ) -> tuple[float, Tables]:
        """The loss and its gradient; cost: configurations of each patch times its regions."""
        graph, size = scores.graph, self.patch
        ptr, patch, touch_ptr, touch = graph.cached(("patches", size), lambda: _patches(graph, size))
        theta, at = scores.flat()
        own = np.ones(graph.n_variables) if weights is None else weights
        weight = np.add.reduceat(own[patch], ptr[:-1]) / np.diff(ptr)
        weight[_hidden(scores, labels, touch_ptr, touch)] = 0.0
        d_theta = np.zeros_like(theta)
        value = patch_losses(
            scores.regions, theta, at, ptr, patch, touch_ptr, touch, np.maximum(labels, 0), weight, d_theta
        )
        if not np.isfinite(value):
            raise PotentiaError("the labels have a forbidden (-inf) configuration.")
        return float(value), split_flat(scores, d_theta, at)


def _patches(graph: Graph, size: int) -> tuple[Ints, Ints, Ints, Ints]:
    """CSR of variables in connected patches, and of the regions that touch each."""
    order, parent = graph.tree_order
    number, count = np.full(graph.n_variables, -1), [0] * 0
    if size == 1:
        patch_of = np.arange(graph.n_variables)
    else:
        for i in order.tolist():
            above = number[parent[i]] if parent[i] >= 0 else -1
            if above >= 0 and count[above] < size:
                number[i] = above
                count[above] += 1
            else:
                number[i] = len(count)
                count.append(1)
        patch_of = number
    variables = np.argsort(patch_of, kind="stable")
    ptr = np.concatenate([[0], np.cumsum(np.bincount(patch_of))]).astype(np.int64)
    states = np.multiply.reduceat(graph.n_states[variables].astype(float), ptr[:-1])
    if states.max(initial=1) > _MOST:
        raise PotentiaError(
            f"patches of {size} variables have up to {states.max():.0f} configurations, more than {_MOST}: "
            "use smaller patches."
        )
    regions = graph.regions
    region = np.repeat(np.arange(len(regions.size)), regions.order)
    both = np.unique(patch_of[regions.scope] * len(regions.size) + region)
    owner, touch = np.divmod(both, len(regions.size))
    touch_ptr = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(ptr) - 1))]).astype(np.int64)
    return ptr, variables, touch_ptr, touch


def _hidden(scores: Scores, labels: Ints, touch_ptr: Ints, touch: Ints) -> Ints:
    """Patches whose regions hold a variable without a label."""
    regions = scores.regions
    blind = np.add.reduceat(labels[regions.scope] < 0, regions.scope_ptr[:-1]) > 0
    return np.flatnonzero(np.add.reduceat(blind[touch], touch_ptr[:-1]) > 0)


@dataclass(frozen=True)
class Piecewise(Loss):
    """sum over regions of log sum exp theta - theta(y): every region by itself [MBL-tpami sec. 4.1.5].

    Regions with a hidden variable are left out.
    """

    name: ClassVar[str] = "piecewise"

    def evaluate(
        self, scores: Scores, labels: Ints, weights: Floats | None, methods: Methods
    ) -> tuple[float, Tables]:
        """The loss and its gradient."""
        tables = zero_tables(scores)
        seen = np.flatnonzero(labels >= 0)
        own = np.ones(len(seen)) if weights is None else weights[seen]
        value, slopes = _log_losses(scores.singles[seen], labels[seen], own)
        d_singles = np.zeros_like(scores.singles)
        d_singles[seen] = slopes
        add_singles(scores, d_singles, tables)
        for kind in clique_kinds(scores):
            value += self._of_kind(scores, kind, labels, weights, tables)
        if not np.isfinite(value):
            raise PotentiaError("the labels have a forbidden (-inf) configuration.")
        return value, tables

    def _of_kind(
        self, scores: Scores, kind: str, labels: Ints, weights: Floats | None, tables: Tables
    ) -> float:
        theta, value = own_tables(scores, kind), 0.0
        index = scores.graph.table_index(kind, np.maximum(labels, 0))
        weight, seen = region_weights(scores, kind, weights), seen_regions(scores, kind, labels)
        flat = np.zeros(len(theta))
        for rows, where in tables_by_size(scores, kind, seen):
            more, flat[where] = _log_losses(theta[where], index[rows], weight[rows])
            value += more
        add_cliques(scores, kind, flat, tables)
        return value


def _log_losses(theta: Floats, y: Ints, weight: Floats) -> tuple[float, Floats]:
    """sum_k w_k (log sum exp theta_k - theta_k(y_k)) and its gradient."""
    rows = np.arange(len(y))
    peak = theta.max(axis=1, keepdims=True, initial=-np.inf)
    p = np.exp(theta - peak)
    total = p.sum(axis=1, keepdims=True)
    value = weight @ (peak[:, 0] + np.log(total[:, 0]) - theta[rows, y])
    p /= total
    p[rows, y] -= 1.0
    return float(value), weight[:, None] * p


@dataclass(frozen=True)
class ContrastiveDivergence(Loss):
    """theta . f(sample) - theta . f(y), the sample from `sweeps` Gibbs sweeps that begin at the labels.

    The gradient f(sample) - f(y) is a noisy, biased estimate of the likelihood's, better the more sweeps; the value
    is no objective. Hidden labels are sampled given the others first. The same seed gives the same numbers.
    """

    sweeps: int = 1
    seed: int = 0

    name: ClassVar[str] = "contrastive_divergence"

    def __post_init__(self) -> None:
        check_count("sweeps", self.sweeps)
        check_count("seed", self.seed)

    def evaluate(
        self, scores: Scores, labels: Ints, weights: Floats | None, methods: Methods
    ) -> tuple[float, Tables]:
        """The difference and its gradient, weighted by region."""
        rng = np.random.default_rng(self.seed)
        data = labels
        if np.any(labels < 0):
            clamped = scores.clamp(labels)
            first = feasible_labelling(clamped, rng)
            if first is None:
                raise PotentiaError("no labelling with a finite score agrees with the labels.")
            data = _sampled(clamped, first, rng, max(self.sweeps, 1))
        return label_difference(scores, _sampled(scores, data, rng, self.sweeps), data, weights)


def _sampled(scores: Scores, labels: Ints, rng: np.random.Generator, sweeps: int) -> Ints:
    chain = Chain(scores, labels, rng)
    chain.sweep(sweeps)
    return chain.labels
