"""An inference method laid out for a graph as PyTorch operations: scores in, marginals and value out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...base.types import Ints, PotentiaError
from ...graph.structure import Graph
from ...inference.base import Inference
from ...inference.engine import check_counting
from ...inference.mean_field import MeanField
from ...inference.messages import MessagePassingMethod
from ...inference.pair_engine import suits_pairs
from .indices import Indices, tensors_of, working_type
from .tensor import PairPlan, Schedule, TensorScores, mean_field, message_passing
from .tensor_regions import ProductPlan, RegionPlan, region_mean_field, region_messages, region_starts


class TensorMarginals(NamedTuple):
    """Marginals of variables (n, most states), of every kind of larger regions, flat, and the value."""

    variables: Tensor
    cliques: dict[str, Tensor]
    value: Tensor | None


class Kind(NamedTuple):
    """A kind of regions: its number of regions, the one shape of their tables, order, and place in flat scores."""

    n_regions: int
    shape: tuple[int, ...] | None
    order: int
    start: int
    stop: int


def why_not_tensor(inference: Inference) -> str | None:
    """Why the tensor backend cannot run a method, in one sentence; None if it can."""
    if not isinstance(inference, MessagePassingMethod | MeanField):
        return (
            "the tensor backend runs TRW, LoopyBP, Smoothed, Kikuchi, MessagePassing and MeanField, not "
            f"{type(inference).__name__}: use backend='kernels'."
        )
    if inference.schedule != "coloured":
        return (
            f"the tensor backend updates variables by colours, not with schedule={inference.schedule!r}: use "
            "schedule='coloured' or backend='kernels'."
        )
    return None


class TensorMethod(torch.nn.Module):
    """Index tensors of a graph for one inference method; they move with the module and are not saved.

    Args:
        graph: the graph.
        inference: TRW, LoopyBP, Smoothed, Kikuchi, MessagePassing or MeanField with the coloured schedule.
        memory: bytes that iterations may leave for their reverse before segments of them are run again.
    """

    def __init__(self, graph: Graph, inference: Inference, memory: int) -> None:
        super().__init__()
        reason = why_not_tensor(inference)
        if reason is not None:
            raise PotentiaError(reason)
        self.n_variables, self.run = graph.n_variables, Schedule.of(inference, memory)
        self.product = isinstance(inference, MeanField)
        self.plan: PairPlan | RegionPlan | ProductPlan
        if isinstance(inference, MessagePassingMethod):
            self.plan = message_plan(graph, inference)
        else:
            self.plan = PairPlan(graph) if graph.max_order <= 2 else ProductPlan(graph)
        start, ptr = region_starts(graph), graph.regions.kind_ptr
        #: Kinds by name, and the length of all tables.
        self.kinds = {
            kind: Kind(len(scope), graph.shared_shape(kind), scope.shape[1], int(start[a]), int(start[b]))
            for (kind, scope), a, b in zip(graph.scopes.items(), ptr[:-1], ptr[1:], strict=True)
        }
        self.size = int(start[-1])
        self._index_tables(graph, start)

    def _index_tables(self, graph: Graph, start: Ints) -> None:
        """Where scores of variables (L, n) and of pairs (L, L, m) lie in a flat array that ends with -inf."""
        regions, states = graph.regions, int(graph.n_states.max())
        n, label = int(start[-1]), np.arange(states)
        single = np.where(label < graph.n_states[:, None], start[regions.single][:, None] + label, n)
        index = {"single": np.ascontiguousarray(single.T)}
        pair = np.flatnonzero(regions.order == 2)
        # with one number of states, and pairs that follow each other, their tables are a view
        self.even = bool(np.all(graph.n_states == states)) and bool(np.all(np.diff(pair) == 1))
        self.first, self.n_pairs = (int(start[pair[0]]) if len(pair) else 0), len(pair)
        if not self.even and isinstance(self.plan, PairPlan):
            sizes = graph.n_states[graph.pairs]
            one, other = label[:, None, None], label[None, :, None]
            at = np.where((one < sizes[:, 0]) & (other < sizes[:, 1]), start[pair] + one * sizes[:, 1] + other, n)
            index["pair"] = at
            place = np.zeros(n + 1, dtype=np.int64)
            place[at.transpose(2, 0, 1).ravel()] = np.arange(at.size)
            index["place"] = place[:n]
        self.index = Indices(index, {})

    def flat(self, theta: Mapping[str, Any]) -> Tensor:
        """Scores per kind as one tensor of all regions' own tables, of float32 or float64; missing kinds are zero."""
        dtype, device = working_type(tensors_of(theta)), self.index.single.device
        parts = []
        for name, kind in self.kinds.items():
            value = theta.get(name)
            if value is None or not kind.n_regions:
                parts.append(torch.zeros(kind.stop - kind.start, dtype=dtype, device=device))
            elif isinstance(value, torch.Tensor):
                shared = kind.shape is not None and value.dim() == len(kind.shape)
                whole = value.expand(kind.n_regions, *value.shape) if shared else value
                parts.append(whole.reshape(-1).to(dtype))
            else:
                parts.append(torch.cat([table.reshape(-1) for table in value]).to(dtype))
        rest = self.size - sum(kind.stop - kind.start for kind in self.kinds.values())
        return torch.cat([*parts, torch.zeros(rest, dtype=dtype, device=device)])

    def singles(self, flat: Tensor) -> Tensor:
        """Scores of variables, (most states, n), -inf in padding."""
        return torch.cat([flat, flat.new_full((1,), -torch.inf)])[self.index.single]

    def _pair_scores(self, flat: Tensor) -> TensorScores:
        """Scores of all pairs in the layout of the plan."""
        variables = self.singles(flat).unsqueeze(1)
        states = len(variables)
        if self.even:
            part = flat[self.first : self.first + self.n_pairs * states * states]
            return TensorScores(variables, part.reshape(-1, states, states).permute(1, 2, 0).unsqueeze(2))
        ended = torch.cat([flat, flat.new_full((1,), -torch.inf)])
        return TensorScores(variables, ended[self.index.pair].unsqueeze(2))

    def forward(self, flat: Tensor, cliques: bool = True, value: bool = False) -> TensorMarginals:
        """Marginals of scores (N,) as `flat` gives them; those of larger regions only with `cliques`."""
        plan = self.plan
        if isinstance(plan, PairPlan):
            return self._of_pairs(plan, flat, cliques, value)
        if isinstance(plan, RegionPlan):
            mu = region_messages(plan, flat, self.run, value)
        else:
            mu = region_mean_field(plan, flat, self.run, value)
        variables = torch.cat([mu.regions, mu.regions.new_zeros(1)])[self.index.single].T
        tables = {n: mu.regions[k.start : k.stop] for n, k in self.kinds.items() if k.order > 1 and k.n_regions}
        return TensorMarginals(variables, tables if cliques else {}, mu.value)

    def _of_pairs(self, plan: PairPlan, flat: Tensor, cliques: bool, value: bool) -> TensorMarginals:
        """Marginals by message passing or mean field over pairs."""
        scores = self._pair_scores(flat)
        if self.product:
            mu = mean_field(plan, scores, self.run, None, cliques, value)
        else:
            mu = message_passing(plan, scores, self.run, cliques, value)
        tables: dict[str, Tensor] = {}
        if mu.pairs is not None:
            joint = mu.pairs[:, :, 0].permute(2, 0, 1).reshape(-1)
            for name, kind in self.kinds.items():
                if kind.order > 1 and kind.n_regions and self.even:
                    tables[name] = joint[kind.start - self.first : kind.stop - self.first]
                elif kind.order > 1 and kind.n_regions:
                    tables[name] = joint[self.index.place[kind.start : kind.stop]]
        return TensorMarginals(mu.variables[:, 0].T, tables, None if mu.value is None else mu.value[0])


def message_plan(graph: Graph, inference: MessagePassingMethod) -> PairPlan | RegionPlan:
    """The index tensors of message passing with a method's counting numbers."""
    entropy = inference.entropy(graph)
    if entropy.maximum:
        raise PotentiaError("the tensor backend needs epsilon > 0: use backend='kernels'.")
    if not suits_pairs(graph):
        return RegionPlan(graph, entropy)
    regions, counting = graph.regions, entropy.counting
    pair = np.flatnonzero(regions.order == 2)
    check_counting(graph, counting, np.repeat(pair, 2), regions.single[graph.pairs].ravel())
    return PairPlan(graph, (counting[pair], counting[regions.single]))
