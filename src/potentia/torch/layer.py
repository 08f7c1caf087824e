"""`CRFLayer`: marginals, losses and the best labelling of any graph, as a layer of a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from .._options import check_choice
from .._types import ArrayLike, Floats, Ints, PotentiaError, shown
from ..adjoint.gradient import Gradient, gradient_of, variable_weights
from ..graph.assign import check_labels
from ..graph.cotangents import clique_kinds
from ..graph.structure import Graph
from ..graph.union import Union
from ..inference.base import Inference
from ..inference.message_passing import TRW
from ..losses.base import Loss
from ..losses.names import loss_of
from .functions import Call, LossValue, Marginals, read_marginals

#: What `layer` takes for a graph.
Graphs = Graph | Sequence[Graph]
#: Scores or marginals per kind: a tensor, or a list of tensors where state counts are mixed.
TensorTables = Mapping[str, torch.Tensor | Sequence[torch.Tensor]]

_VARIABLES = "variables"


class CRFLayer(torch.nn.Module):
    """A conditional random field on top of a network's scores: differentiable marginals and losses, and decoding.

    The layer has no parameters: theta comes from the network, per kind a tensor (n_regions, *states), one table
    (*states) shared by all regions (its gradient is the sum over them), or a list of tensors where state counts
    are mixed. Kinds left out score zero; -inf forbids. Several graphs are treated as one (`pt.Union`): tensors hold
    the regions of all graphs one after another.

    Inference runs in float64 on the CPU; results have the type and device of theta. Gradients can be taken
    once (no second derivatives).

    Args:
        graph: the graph, or a list of graphs, where a call names none.
        inference: how marginals are computed.
        gradient: how they are differentiated: "truncated", "backpropagation", "perturbation" or "implicit", or an
            object with options; see `pt.adjoint`. What does not fit the inference is refused. All but the first require
            converged inference and emit `pt.ConvergenceWarning` otherwise.
    """

    def __init__(
        self,
        graph: Graphs | None = None,
        inference: Inference | None = None,
        gradient: str | Gradient = "truncated",
    ) -> None:
        super().__init__()
        if not isinstance(inference, Inference | None):
            raise PotentiaError(f"inference must be a method such as pt.TRW(), not {shown(inference)}.")
        self.graph = graph
        self.inference = TRW(iterations=10, tol=0) if inference is None else inference
        self.gradient = gradient_of(gradient)

    def extra_repr(self) -> str:
        """The options."""
        return f"graph={self.graph!r}, inference={self.inference!r}, gradient={self.gradient!r}"

    @torch.compiler.disable
    def forward(self, theta: TensorTables, graph: Graphs | None = None) -> dict[str, Any]:
        """Marginals: those of all variables under "variables", (n, most states), and those of each kind as theta.

        Args:
            theta: scores per kind.
            graph: a graph or a list of graphs, if not that of the layer.
        """
        call = self._call(theta, graph)
        own = call.scores.graph
        if _VARIABLES in own.kinds:
            raise PotentiaError("a kind named 'variables' collides with the marginals of the variables.")
        if call.needed:
            single, *flat = Marginals.apply(call, *call.tables)
        else:
            single, *flat = read_marginals(call, call.solve()[0])
        cliques = dict(zip(clique_kinds(call.scores), flat, strict=True))
        return {
            _VARIABLES: single,
            **{kind: _of_kind(own, kind, single, cliques.get(kind)) for kind in own.kinds},
        }

    @torch.compiler.disable
    def loss(
        self,
        theta: TensorTables,
        labels: ArrayLike,
        name: str | Loss = "univariate_logistic",
        weights: ArrayLike | None = None,
        reduction: str = "mean",
        graph: Graphs | None = None,
    ) -> torch.Tensor:
        """A loss of scores and labels, as `pt.loss_and_gradient` defines it.

        Args:
            theta: scores per kind.
            labels: (n,), -1 where hidden.
            name: of the loss, or a loss object with options.
            weights: of the variables, (n,), constants.
            reduction: "sum", "mean" (the sum over the total weight of labelled variables) or "none": one loss per
                graph, (n_graphs,), each computed on its own.
            graph: a graph or a list of graphs, if not that of the layer.
        """
        check_choice("reduction", reduction, ("none", "sum", "mean"))
        if reduction == "none":
            return self._each_loss(theta, labels, name, weights, graph)
        call = self._call(theta, graph)
        y = check_labels(call.scores.graph, _constant(labels, "labels"), "labels")
        own = variable_weights(call.scores.graph, y, _constant(weights, "weights"), None)
        if call.needed:
            value = LossValue.apply(call, loss_of(name), y, own, *call.tables)
        else:
            value = call.output(call.evaluate(loss_of(name), y, own)[0])
        return value if reduction == "sum" else value / _labelled_weight(y, own)

    @torch.compiler.disable
    def map(self, theta: TensorTables, graph: Graphs | None = None) -> torch.Tensor:
        """The best labelling found, (n,) of int64, without gradient: exact where inference is."""
        call = self._call(theta, graph)
        return torch.from_numpy(call.inference.maximise(call.scores)).to(call.device)

    def _call(self, theta: TensorTables, graph: Graphs | None) -> Call:
        own = self._graphs(graph)
        whole = own if isinstance(own, Graph) else _union(tuple(own)).graph
        return Call(whole, theta, self.inference, self.gradient)

    def _graphs(self, graph: Graphs | None) -> Graphs:
        found = self.graph if graph is None else graph
        if found is None:
            raise PotentiaError("graph is missing: pass one to the layer or to the call.")
        many = [found] if isinstance(found, Graph) else found
        if not isinstance(many, Sequence) or not all(isinstance(one, Graph) for one in many):
            raise PotentiaError(f"graph must be a Graph or a list of graphs, not {shown(found)}.")
        return found

    def _each_loss(
        self,
        theta: TensorTables,
        labels: ArrayLike,
        name: str | Loss,
        weights: ArrayLike | None,
        graph: Graphs | None,
    ) -> torch.Tensor:
        own = self._graphs(graph)
        union = _union((own,) if isinstance(own, Graph) else tuple(own))
        self._call(theta, union.parts)  # refuses what does not fit before it is cut into parts
        y = check_labels(union.graph, _constant(labels, "labels"), "labels")
        weight = variable_weights(union.graph, y, _constant(weights, "weights"), None)
        parts = zip(union.parts, _theta_of_parts(union, theta), union.split_variables(y), strict=True)
        shares = [None] * len(union.parts) if weight is None else union.split_variables(weight)
        return torch.stack(
            [
                self.loss(own_theta, own_y, name, share, "sum", part)
                for (part, own_theta, own_y), share in zip(parts, shares, strict=True)
            ]
        )


@lru_cache(maxsize=8)
def _union(graphs: tuple[Graph, ...]) -> Union:
    return Union(graphs)


def _theta_of_parts(union: Union, theta: TensorTables) -> list[dict[str, Any]]:
    """Scores of every part; a shared table is that of each."""
    found: list[dict[str, Any]] = [{} for _ in union.parts]
    for kind, given in theta.items():
        shape = getattr(given, "shape", None)
        shared = shape is not None and shape == union.graph.shared_shape(kind)
        for k, part in enumerate(union.parts):
            if kind in part.kinds:
                rows = slice(*union.region_ptr[kind][k : k + 2].tolist())
                found[k][kind] = given if shared else given[rows]
    return found


def _constant(values: ArrayLike | None, name: str) -> Any:
    """Labels or weights as an array; autograd does not see them."""
    if not isinstance(values, torch.Tensor):
        return values
    if values.requires_grad:
        raise PotentiaError(f"{name} are constants: pass {name}.detach(), they get no gradient.")
    return values.cpu().numpy()


def _labelled_weight(labels: Ints, weights: Floats | None) -> float:
    total = float((labels >= 0).sum() if weights is None else weights[labels >= 0].sum())
    if total == 0.0:
        raise PotentiaError("reduction='mean' needs a label that is not -1 and has a positive weight.")
    return total


def _of_kind(graph: Graph, kind: str, single: torch.Tensor, flat: torch.Tensor | None) -> Any:
    """Marginals of a kind as users see them: (n_regions, *states), or a list where shapes differ."""
    scope, one = graph.scopes[kind], graph.shared_shape(kind)
    if len(scope) == 0:
        return single.new_zeros(0)
    if flat is None:
        variables = torch.from_numpy(np.array(scope[:, 0])).to(single.device)
        rows = single[variables]
        states = graph.n_states[scope[:, 0]].tolist()
        return (
            rows[:, : one[0]] if one is not None else [row[:n] for row, n in zip(rows, states, strict=True)]
        )
    if one is not None:
        return flat.reshape(-1, *one)
    shapes = graph.table_shapes(kind).tolist()
    sizes = graph.table_shapes(kind).prod(axis=1).tolist()
    return [part.reshape(shape) for part, shape in zip(torch.split(flat, sizes), shapes, strict=True)]
