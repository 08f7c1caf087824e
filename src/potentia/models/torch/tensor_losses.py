"""The losses of `pt.gradients.losses` as PyTorch operations on scores and marginals."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...base.types import Floats, PotentiaError
from ...gradients.base import Loss
from ...gradients.likelihood import Piecewise, Pseudolikelihood, SurrogateLikelihood, TruncatedLikelihood
from ...gradients.losses import SmoothedError, UnivariateLogistic, UnivariateQuadratic
from ...graph.structure import Graph
from .indices import Indices
from .tensor_method import TensorMethod
from .tensor_regions import ProductPlan, expected_scores

_MARGINAL = (UnivariateLogistic, UnivariateQuadratic, SmoothedError)


def why_no_loss(loss: Loss) -> str | None:
    """Why the tensor backend cannot compute a loss, in one sentence; None if it can."""
    if type(loss) in _MARGINAL or (type(loss) in TensorLoss._LIKELIHOODS and getattr(loss, "patch", 1) == 1):
        return None
    return f"the tensor backend has no loss {loss!r}: use backend='kernels'."


class LossIndex(torch.nn.Module):
    """Where labels of a graph's regions lie in flat tables; `prepare` lays out what a loss needs beyond variables."""

    def __init__(self, graph: Graph, counting: Floats | None) -> None:
        super().__init__()
        regions = graph.regions
        self.graph, self.has_entropy = graph, counting is not None
        self.numbers = np.zeros(len(regions.size)) if counting is None else counting
        total = np.add.reduceat(self.numbers[regions.member], regions.member_ptr[:-1])
        self.variables = Indices({"several": (graph.n_states > 1).astype(np.int64)}, {"total": total})
        #: Tables of each size of every kind of larger regions, after `prepare`.
        self.blocks: torch.nn.ModuleList | None = None
        self.kinds: list[str] = []
        self.conditional: ProductPlan | None = None

    @property
    def tables(self) -> list[tuple[str, Any]]:
        """Kinds with their blocks of tables of one size."""
        if self.blocks is None:
            raise PotentiaError("compute this loss once before a program with it is compiled or exported.")
        return list(zip(self.kinds, self.blocks, strict=True))

    def prepare(self, loss: Loss) -> None:
        """Lay out what a loss needs."""
        device = self.variables.several.device
        if self.blocks is None and not (isinstance(loss, _MARGINAL) and not loss.cliques):
            self.kinds, blocks = _blocks(self.graph, self.numbers)
            self.blocks = torch.nn.ModuleList(blocks).to(device)
        if self.conditional is None and isinstance(loss, Pseudolikelihood):
            self.conditional = ProductPlan(self.graph, together=True).to(device)


def _blocks(graph: Graph, numbers: Floats) -> tuple[list[str], list[Indices]]:
    """Index tensors of larger regions by kind and table size: scopes, strides, entries and their labels."""
    regions, states = graph.regions, graph.n_states
    kinds, blocks = [], []
    for number, (kind, scope) in enumerate(graph.scopes.items()):
        if scope.shape[1] < 2 or not len(scope):
            continue
        size, first = graph.table_sizes(kind), int(regions.kind_ptr[number])
        start = np.cumsum(size) - size
        ptr = regions.scope_ptr[first : first + len(scope)]
        stride = regions.stride[ptr[:, None] + np.arange(scope.shape[1])]
        for entries in np.unique(size):
            rows = np.flatnonzero(size == entries)
            at, own = start[rows][:, None] + np.arange(entries), scope[rows][:, None]
            # the label of each variable of every configuration, as variable * most states + state
            label = own * int(states.max()) + np.arange(entries)[:, None] // stride[rows][:, None] % states[own]
            indices = {"scope": scope[rows], "stride": stride[rows], "at": at, "label": label}
            kinds.append(kind)
            blocks.append(Indices(indices, {"counting": numbers[first + rows]}))
    return kinds, blocks


class TensorLoss:
    """Losses of one graph's scores and labels, with inference as tensor operations."""

    def __init__(self, method: TensorMethod, index: LossIndex, flat: Tensor, labels: Tensor, weights: Tensor | None):
        self.method, self.index, self.flat, self.labels, self.weights = method, index, flat, labels, weights

    def __call__(self, loss: Loss) -> Tensor:
        """The loss, summed."""
        if isinstance(loss, _MARGINAL):
            return self._of_marginals(loss)
        return self._LIKELIHOODS[type(loss)](self)

    def _weights(self, scope: Tensor | None = None) -> Tensor:
        """Weight of all variables or of regions, the mean of their variables'."""
        if self.weights is None:
            return self.flat.new_ones(len(self.labels) if scope is None else len(scope))
        own = self.weights.to(self.flat.dtype)
        return own if scope is None else own[scope].mean(1)

    def _seen(self, scope: Tensor) -> Tensor:
        """Regions all of whose variables have labels."""
        return (self.labels[scope] >= 0).all(1)

    def _configuration(self, block: Any) -> Tensor:
        """Index of each region's true configuration in its table; hidden labels count as 0."""
        return (self.labels[block.scope].clamp_min(0) * block.stride).sum(1)

    # -- losses of marginals

    def _of_marginals(self, loss: Any) -> Tensor:
        """A `MarginalLoss` of variables or of larger regions."""
        mu = self.method(self.flat, loss.cliques)
        if not loss.cliques:
            counted = (self.labels >= 0) & (self.index.variables.several > 0)
            return self._sum(_terms(loss, mu.variables, self.labels.clamp_min(0)), counted, self._weights())
        value = self.flat[:0].sum()  # zero, with a gradient
        for kind, block in self.index.tables:
            if block.at.shape[1] == 1:
                continue
            terms = _terms(loss, mu.cliques[kind][block.at], self._configuration(block))
            value = value + self._sum(terms, self._seen(block.scope), self._weights(block.scope))
        return value

    @staticmethod
    def _sum(terms: Tensor, counted: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum of the terms that count."""
        return torch.where(counted, weights * terms, 0.0).sum()

    # -- likelihoods

    def _score(self) -> Tensor:
        """theta . f(y), weighted by region."""
        single = self.method.singles(self.flat).T
        value = (self._weights() * single.gather(1, self.labels[:, None])[:, 0]).sum()
        for kind, block in self.index.tables:
            table = self._own(kind)
            own = table[block.at].gather(1, self._configuration(block)[:, None])[:, 0]
            value = value + (self._weights(block.scope) * own).sum()
        return value

    def _own(self, kind: str) -> Tensor:
        """Flat scores of a kind."""
        where = self.method.kinds[kind]
        return self.flat[where.start : where.stop]

    def _clamped(self) -> Tensor:
        """Scores that forbid all states but the labels of observed variables."""
        index = self.method.index.single
        state = torch.arange(len(index), device=index.device)[:, None]
        gone = (self.labels >= 0) & (state != self.labels)
        ended = torch.cat([torch.zeros_like(self.flat), self.flat.new_zeros(1)])
        ended = ended.index_put((index[gone],), self.flat.new_full((), -torch.inf))
        return self.flat + ended[:-1]

    def _surrogate(self) -> Tensor:
        """The surrogate likelihood; with different weights the truncated one."""
        weights = self.weights
        if weights is not None and not bool((weights == weights[0]).all()):
            return self._truncated()
        value = self._expected(self.flat)
        if bool((self.labels >= 0).all()):
            value = value - TensorLoss(self.method, self.index, self.flat, self.labels, None)._score()
        else:
            value = value - self._expected(self._clamped())
        return value if weights is None or not len(weights) else weights[0].to(value.dtype) * value

    def _expected(self, flat: Tensor) -> Tensor:
        """A(theta), whose gradient is the marginals."""
        with torch.no_grad():
            mu = self.method(flat, value=True)
        assert mu.value is not None
        linear = _dot(self.method.singles(flat).T, mu.variables)
        for kind, where in self.method.kinds.items():
            if kind in mu.cliques:
                linear = linear + _dot(flat[where.start : where.stop], mu.cliques[kind])
        return linear + (mu.value - linear.detach())

    def _truncated(self) -> Tensor:
        """The truncated likelihood, hidden labels as in EM."""
        if not self.index.has_entropy:
            raise PotentiaError("this method has no entropy in terms of marginals here, which this loss needs.")
        value = self._reached(self.flat)
        if bool((self.labels >= 0).all()):
            return value - self._score()
        return value - self._reached(self._clamped())

    def _reached(self, flat: Tensor) -> Tensor:
        """sum over regions of w (theta . mu + entropy) at the marginals reached."""
        mu = self.method(flat)
        own = self._weights()
        total = self.index.variables.total.to(flat.dtype)
        rows = _product(self.method.singles(flat).T, mu.variables).sum(1)
        value = (own * (rows - total * (mu.variables * _safe_log(mu.variables)).sum(1))).sum()
        log_single = _safe_log(mu.variables).flatten()
        for kind, block in self.index.tables:
            where = self.method.kinds[kind]
            theta = flat[where.start : where.stop]
            p, c = mu.cliques[kind][block.at], block.counting.to(flat.dtype)
            apart = p * (_safe_log(p) - log_single[block.label].sum(2))
            information = torch.where(p > _tiny(p), apart, 0.0).sum(1)
            rows = _product(theta[block.at], p).sum(1)
            value = value + (self._weights(block.scope) * (rows - c * information)).sum()
        return value

    # -- without inference

    def _piecewise(self) -> Tensor:
        """Log-losses of all regions by themselves."""
        single, seen = self.method.singles(self.flat).T, self.labels >= 0
        value = self._sum(_log_loss(single, self.labels.clamp_min(0)), seen, self._weights())
        for kind, block in self.index.tables:
            table = self._own(kind)
            terms = _log_loss(table[block.at], self._configuration(block))
            value = value + self._sum(terms, self._seen(block.scope), self._weights(block.scope))
        return value

    def _conditionals(self) -> Tensor:
        """The pseudolikelihood: log-losses of variables given the labels of all others."""
        single = self.method.singles(self.flat).T
        labels = self.labels.clamp_min(0)
        chosen = torch.nn.functional.one_hot(labels, single.shape[1]).to(single.dtype)
        plan = self.index.conditional
        if plan is None:
            raise PotentiaError("compute this loss once before a program with it is compiled or exported.")
        scores = single + expected_scores(plan, self.flat, chosen)
        hidden = (self.labels < 0).to(torch.int64)
        for _, block in self.index.tables:
            blind = (~self._seen(block.scope)).to(torch.int64)
            hidden = hidden.index_add(0, block.scope.flatten(), blind.repeat_interleave(block.scope.shape[1]))
        return self._sum(_log_loss(scores, labels), hidden == 0, self._weights())

    _LIKELIHOODS: ClassVar[dict[type, Callable[[TensorLoss], Tensor]]] = {
        SurrogateLikelihood: _surrogate, TruncatedLikelihood: _truncated, Piecewise: _piecewise,
        Pseudolikelihood: _conditionals,
    }  # fmt: skip


def _tiny(p: Tensor) -> float:
    """The least probability whose logarithm is finite in this type."""
    return 1e-300 if p.dtype == torch.float64 else 1e-37


def _safe_log(p: Tensor) -> Tensor:
    """log p, zero where p is."""
    return torch.log(torch.where(p > _tiny(p), p, 1.0))


def _product(theta: Tensor, mu: Tensor) -> Tensor:
    """theta times marginals; forbidden scores count zero."""
    return torch.where(theta > -torch.inf, theta, 0.0) * mu


def _dot(theta: Tensor, mu: Tensor) -> Tensor:
    """theta . mu; forbidden entries have no part in it."""
    return _product(theta, mu).sum()


def _log_loss(theta: Tensor, label: Tensor) -> Tensor:
    """log sum exp theta - theta(label) of every row."""
    return torch.logsumexp(theta, 1) - theta.gather(1, label[:, None])[:, 0]


def marginal_terms(loss: Loss) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Losses of marginals (k, states) with labels (k,), as a function; None if only NumPy knows this loss."""
    return partial(_terms, loss) if type(loss) in _MARGINAL else None


def _terms(loss: Any, mu: Tensor, label: Tensor) -> Tensor:
    """Losses of marginals (k, states) with labels (k,)."""
    right = mu.gather(1, label[:, None])[:, 0]
    if isinstance(loss, UnivariateLogistic):
        return -torch.log(right.clamp_min(_tiny(mu)))
    here = torch.nn.functional.one_hot(label, mu.shape[1])
    if isinstance(loss, UnivariateQuadratic):
        return ((mu - here.to(mu.dtype)) ** 2).sum(1)
    rival = torch.where(here > 0, -1.0, mu).amax(1)
    return torch.sigmoid(loss.alpha * (rival - right))
