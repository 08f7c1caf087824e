"""The likelihood and its approximations, with inference and without [MBL-tpami sec. 4.1 and 7.3]."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..base.types import Floats, Ints, PotentiaError, check_count
from ..graph.cotangents import (
    MarginalCotangent,
    Tables,
    add_cliques,
    add_singles,
    flat_marginals,
    own_tables,
    split_flat,
    zero_tables,
)
from ..graph.scores import Scores, refuse_structures
from ..graph.structure import Graph, per_graph
from ..inference.base import Expectations, Result
from ..inference.decode import feasible_labelling
from ..inference.gibbs import Chain
from ..kernels.regions import information
from ..kernels.sampling import patch_losses
from .base import Loss, Methods, label_difference, region_weights, seen_regions, subtract_labels, tables_by_size

#: Most configurations of a patch that are enumerated.
_MOST = 2**16


@dataclass(frozen=True)
class SurrogateLikelihood(Loss):
    """A(theta) - theta . f(y), gradient mu - f(y) [MBL-tpami Eq. 19-20]; A - A(clamped) where labels are hidden.

    The clamped inference may be another method: mean field clamped with TRW free bounds the true loss from above
    [MBL-tpami Eq. 21]. One weight for all variables multiplies the loss. Different ones weigh the terms of A's
    variational form, sum_alpha w_alpha (theta . mu + c H(mu) - theta . f(y)), which needs the gradient through
    inference.
    """

    def evaluate(self, scores: Scores, labels: Ints, weights: Floats | None, methods: Methods) -> tuple[float, Tables]:
        """The loss and its gradient."""
        if weights is None or np.all(weights == weights[0]):
            value, tables = self._unweighted(scores, labels, methods)
            factor = 1.0 if weights is None or len(weights) == 0 else float(weights[0])
            return factor * value, {kind: factor * table for kind, table in tables.items()}
        return TruncatedLikelihood().evaluate(scores, labels, weights, methods)

    def _unweighted(self, scores: Scores, labels: Ints, methods: Methods) -> tuple[float, Tables]:
        """A - theta . f(y), or A - A(clamped) with hidden labels, and the gradient."""
        free = methods.expect(scores)
        self._check(free)
        if np.all(labels >= 0):
            return free.value - subtract_labels(scores, labels, free.tables), free.tables
        clamped = methods.expect(scores.clamp(labels), clamped=True)
        self._check(clamped)
        tables = {kind: free.tables[kind] - clamped.tables[kind] for kind in free.tables}
        return free.value - clamped.value, tables

    def _check(self, expected: Expectations) -> None:
        """Whether the value of inference may be used as A."""


@dataclass(frozen=True)
class Likelihood(SurrogateLikelihood):
    """log Z - theta . f(y), exact: for forests and graphs that can be eliminated."""

    def _check(self, expected: Expectations) -> None:
        """Refuse inference that is not exact."""
        if expected.bound != "exact" or expected.target != "log_partition":
            raise PotentiaError(
                "the likelihood needs exact inference (pt.Exact()): use 'surrogate_likelihood' with another."
            )


@dataclass(frozen=True)
class SaddlePoint(Loss):
    """theta . f(MAP) - theta . f(y); where labels are hidden, y is completed by the MAP given the others."""

    def evaluate(self, scores: Scores, labels: Ints, weights: Floats | None, methods: Methods) -> tuple[float, Tables]:
        """The loss and its gradient f(MAP) - f(y), weighted by region."""
        best = methods.inference.run(scores, None).argmax()
        if np.any(labels < 0):
            labels = methods.clamped.run(scores.clamp(labels), None).argmax()
        return label_difference(scores, best, labels, weights)


@dataclass(frozen=True)
class TruncatedLikelihood(Loss):
    """A(theta) - theta . f(y) with A := theta . mu + H(mu) at the marginals reached [MBL-tpami sec. 7.3].

    H = sum_i C_i H(mu_i) - sum_c c_c I(mu_c): node entropies minus weighted mutual informations, Eq. 16 for TRW.
    Too few iterations make it diverge: nothing then stops A from falling without end. Hidden labels as in EM.
    """

    def evaluate(self, scores: Scores, labels: Ints, weights: Floats | None, methods: Methods) -> tuple[float, Tables]:
        """The loss and its gradient through inference."""
        value, tables = _truncated(scores, weights, methods)
        if np.all(labels >= 0):
            return value - subtract_labels(scores, labels, tables, weights), tables
        clamped, d_clamped = _truncated(scores.clamp(labels), weights, methods, clamped=True)
        return value - clamped, {kind: tables[kind] - d_clamped[kind] for kind in tables}


def _truncated(scores: Scores, weights: Floats | None, methods: Methods, clamped: bool = False) -> tuple[float, Tables]:
    """sum_alpha w_alpha theta . mu + H(mu), weighted alike, and its gradient."""
    inference = methods.clamped if clamped else methods.inference
    refuse_structures(scores.graph, "a loss with entropies of marginals")
    counting = inference.counting_numbers(scores.graph)
    if counting is None:
        raise PotentiaError(
            f"{type(inference).__name__} on this graph has no entropy in terms of marginals, which this loss needs."
        )
    result, pull = methods.solve(scores, clamped=clamped)
    weight_of = np.ones(scores.graph.n_variables) if weights is None else weights
    value, d_singles = _of_variables(scores, result, weight_of, counting)
    direct, d_cliques = zero_tables(scores), {}
    add_singles(scores, weight_of[:, None] * result.variable_marginals, direct)
    for kind in scores.graph.clique_kinds:
        weight, size = region_weights(scores, kind, weights), scores.graph.table_sizes(kind)
        flat = flat_marginals(result.marginals[kind])
        more, d_cliques[kind] = _of_cliques(scores, kind, result, weight, counting, d_singles)
        value += more
        add_cliques(scores, kind, np.repeat(weight, size) * flat, direct)
    pulled = pull(MarginalCotangent(d_singles, d_cliques))
    return value, {kind: direct[kind] + pulled[kind] for kind in direct}


def _of_variables(scores: Scores, result: Result, weight_of: Floats, counting: Floats) -> tuple[float, Floats]:
    """sum_i w_i (theta_i . mu_i + C_i H(mu_i)) and its derivative; C_i sums c over all regions with i."""
    regions = scores.regions
    total = np.add.reduceat(counting[regions.member], regions.member_ptr[:-1])[:, None]
    mu = result.variable_marginals
    theta = np.where(np.isfinite(scores.singles), scores.singles, 0.0)
    log_mu = np.log(np.where(mu > 0, mu, 1.0))
    value = float(weight_of @ ((theta - total * log_mu) * mu).sum(axis=1))
    return value, weight_of[:, None] * np.where(mu > 0, theta - total * (log_mu + 1.0), 0.0)


def _of_cliques(
    scores: Scores, kind: str, result: Result, weight: Floats, counting: Floats, d_singles: Floats
) -> tuple[float, Floats]:
    """sum_c w_c (theta_c . mu_c - c_c I(mu_c)) and its derivative; adds that of variables to d_singles."""
    graph, mu = scores.graph, result.variable_marginals
    clique_counting = counting[graph.region_slices[kind]]
    flat = flat_marginals(result.marginals[kind])
    d_flat = np.zeros(len(flat))
    value = information(
        graph.scopes[kind], graph.n_states, weight, clique_counting, own_tables(scores, kind), flat, mu,
        np.log(np.where(mu > 0, mu, 1.0)), d_flat, d_singles,
    )  # fmt: skip
    return float(value), d_flat


# -- without inference, or with samples near the data


@dataclass(frozen=True)
class Pseudolikelihood(Loss):
    """-log p(y_i | all others), summed over variables; with `patch` > 1 over connected patches of that many variables.

    Patches are cut in breadth-first order, each variable in one; as they grow this becomes the exact likelihood.
    Conditionals that involve a hidden variable are left out. A patch weighs the mean of its variables.
    """

    patch: int = 1

    def __post_init__(self) -> None:
        check_count("patch", self.patch, 1)

    def evaluate(self, scores: Scores, labels: Ints, weights: Floats | None, methods: Methods) -> tuple[float, Tables]:
        """The loss and its gradient; cost: configurations of each patch times its regions."""
        graph, size = scores.graph, self.patch
        ptr, patch, touch_ptr, touch = _patches(graph, size)
        theta, at = scores.flat()
        weight_of = np.ones(graph.n_variables) if weights is None else weights
        weight = np.add.reduceat(weight_of[patch], ptr[:-1]) / np.diff(ptr)
        weight[_hidden(scores, labels, touch_ptr, touch)] = 0.0
        d_theta = np.zeros_like(theta)
        value = patch_losses(
            scores.regions, theta, at, ptr, patch, touch_ptr, touch, np.maximum(labels, 0), weight, d_theta
        )
        if not np.isfinite(value):
            raise PotentiaError("the labels have a forbidden (-inf) configuration.")
        return float(value), split_flat(scores, d_theta, at)


@per_graph
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

    def evaluate(self, scores: Scores, labels: Ints, weights: Floats | None, methods: Methods) -> tuple[float, Tables]:
        """The loss and its gradient."""
        tables = zero_tables(scores)
        seen = np.flatnonzero(labels >= 0)
        weight_of = np.ones(len(seen)) if weights is None else weights[seen]
        value, slopes = _log_losses(scores.singles[seen], labels[seen], weight_of)
        d_singles = np.zeros_like(scores.singles)
        d_singles[seen] = slopes
        add_singles(scores, d_singles, tables)
        for kind in scores.graph.clique_kinds:
            value += self._of_kind(scores, kind, labels, weights, tables)
        if not np.isfinite(value):
            raise PotentiaError("the labels have a forbidden (-inf) configuration.")
        return value, tables

    def _of_kind(self, scores: Scores, kind: str, labels: Ints, weights: Floats | None, tables: Tables) -> float:
        """The weighted log-losses of a kind's regions by themselves; adds their gradient to `tables`."""
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

    def __post_init__(self) -> None:
        check_count("sweeps", self.sweeps)
        check_count("seed", self.seed)

    def evaluate(self, scores: Scores, labels: Ints, weights: Floats | None, methods: Methods) -> tuple[float, Tables]:
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
    """Labels after some Gibbs sweeps that begin at the given ones."""
    chain = Chain(scores, labels, rng)
    chain.sweep(sweeps)
    return chain.labels
