"""`CRFLayer`: inference and losses as functions that autograd can differentiate once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...base.resources import thread_count
from ...base.types import (
    ArrayLike,
    ConvergenceWarning,
    Floats,
    Ints,
    PotentiaError,
    by_name,
    check_choice,
    shown,
    warn_caller,
)
from ...gradients.base import Gradient, Loss, Methods, Pull
from ...gradients.entry import GRADIENTS, variable_weights
from ...gradients.losses import loss_of
from ...graph.cotangents import MarginalCotangent, Tables, flat_marginals, zero_tables
from ...graph.scores import Scores, check_labels
from ...graph.structure import Graph
from ...graph.union import Union
from ...inference.base import Inference, Result
from ...inference.messages import TRW
from .grid import GridCRF
from .indices import checked_tensors, common_type, shaped, tensors_of
from .tensor_layer import TensorLayer, in_program, why_not


def to_numpy(tensor: Tensor) -> Floats:
    """The numbers as a contiguous float64 array; a view where they are one."""
    array: Floats = tensor.detach().cpu().double().contiguous().numpy()
    return array


def tensor_like(array: ArrayLike, tensor: Tensor) -> Tensor:
    """The numbers in the shape, of the type and on the device of a tensor."""
    # the type first: some devices have no float64
    made = torch.from_numpy(array).to(tensor.dtype).to(tensor.device)
    return made if made.shape == tensor.shape else made.reshape(tensor.shape)


@dataclass(frozen=True)
class ValueOnly(Gradient):
    """A gradient method that computes nothing, for evaluating losses without gradients; works with any inference."""

    at_fixed_point: ClassVar[bool] = False

    def solve(
        self, inference: Inference, scores: Scores, start: Result | None = None, cliques: bool = True
    ) -> tuple[Result, Pull]:
        """Inference, and zeros for a gradient."""
        return inference.run(scores, start), lambda cotangent: zero_tables(scores)


class TensorCall:
    """Scores given as tensors, with the inference and gradient method to use on them.

    Attributes:
        scores: the scores, validated; they share memory with float64 tensors.
        kinds: kinds that `tables` are scores of.
        tables: the given tensors; where state counts are mixed, a kind's tables one after another.
        needed: whether a gradient is needed.
    """

    def __init__(self, graph: Graph, theta: Mapping[str, Any], inference: Inference, gradient: Gradient) -> None:
        if not isinstance(theta, Mapping):
            raise PotentiaError(f"theta must map kinds to tensors, not be a {type(theta).__name__}.")
        self.kinds = tuple(theta)
        arrays = {kind: _arrays(kind, tables) for kind, tables in theta.items()}
        self.scores = Scores(graph, {**dict.fromkeys(graph.kinds), **arrays})
        self.tables = [_joined(tables) for tables in theta.values()]
        self.needed = torch.is_grad_enabled() and any(table.requires_grad for table in self.tables)
        self.gradient = gradient if self.needed else ValueOnly()
        # backward may run in a thread that knows nothing of the caller's choice
        method: Any = inference
        split = any(field.name == "threads" for field in fields(method))
        self.inference: Inference = replace(method, threads=thread_count(method.threads)) if split else method
        self._dtype = common_type(self.tables)
        self.device = self.tables[0].device if self.tables else torch.device("cpu")

    def solve(self) -> tuple[Result, Pull]:
        """Inference, and what pulls cotangents of its marginals back, once."""
        return self.gradient.solve(self.inference, self.scores)

    def evaluate(self, loss: Loss, labels: Ints, weights: Floats | None) -> tuple[float, Tables]:
        """A loss and its gradient; warns if that is inaccurate."""
        methods = Methods(self.inference, self.gradient)
        value, tables = loss.evaluate(self.scores, labels, weights, methods)
        warn_of(methods.doubt())
        return value, tables

    def output(self, array: ArrayLike) -> Tensor:
        """Results of the type and on the device of the scores."""
        return torch.from_numpy(np.asarray(array, dtype=float)).to(self._dtype).to(self.device)

    def gradients(self, tables: Tables) -> list[Tensor]:
        """d_theta in the layout of `tables`."""
        scopes = self.scores.graph.scopes
        return [  # a kind without regions ignores its table
            tensor_like(tables[kind] if len(scopes[kind]) else np.zeros(table.numel()), table)
            for kind, table in zip(self.kinds, self.tables, strict=True)
        ]


def _arrays(kind: str, theta: Any) -> Floats | list[Floats]:
    """A kind's tensors as arrays of float64, checked to be floats."""
    arrays = [to_numpy(table) for table in checked_tensors(kind, theta)]
    return arrays[0] if isinstance(theta, Tensor) else arrays


def _joined(tables: Any) -> Tensor:
    """Tables one after another as one tensor."""
    if isinstance(tables, Tensor):
        return tables
    return torch.cat([table.reshape(-1) for table in tables]) if len(tables) else torch.zeros(0)


class Marginals(torch.autograd.Function):
    """Marginals of all variables, (n, states), and of each kind of larger regions, flat."""

    @staticmethod
    def forward(ctx: Any, call: TensorCall, *tables: Tensor) -> tuple[Tensor, ...]:
        """Inference; what its reverse needs is kept for one backward pass, a further one solves again."""
        ctx.solved = call.solve()
        result = ctx.solved[0]
        warn_of(call.gradient.doubt(call.inference, result))
        marginals, ctx.call = read_marginals(call, result), call
        # inputs and outputs share memory with what `pull` reads: torch then reports changes in place
        ctx.save_for_backward(*tables, *marginals)
        ctx.set_materialize_grads(False)
        return marginals

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_mu: Tensor | None) -> tuple[Tensor | None, ...]:
        """d_mu to d_theta."""
        _ = ctx.saved_tensors
        call = ctx.call
        (result, pull), ctx.solved = ctx.solved or call.solve(), None
        arrays = [None if d is None else to_numpy(d) for d in d_mu]
        cliques = zip(call.scores.graph.clique_kinds, arrays[1:], strict=True)
        cotangent = MarginalCotangent(arrays[0], {kind: d for kind, d in cliques if d is not None})
        tables = pull(cotangent)
        # what was known before, `forward` has said
        warn_of(result.memo.get("doubt"))
        return (None, *call.gradients(tables))


def read_marginals(call: TensorCall, result: Result) -> tuple[Tensor, ...]:
    """A result's marginals as `Marginals` returns them."""
    cliques = [flat_marginals(result.marginals[kind]) for kind in call.scores.graph.clique_kinds]
    return tuple(call.output(mu) for mu in (result.variable_marginals, *cliques))


def warn_of(doubt: str | None) -> None:
    """Warn the caller of what makes a gradient inaccurate, if anything does."""
    if doubt is not None:
        warn_caller(doubt, ConvergenceWarning)


class LossValue(torch.autograd.Function):
    """A loss, whose gradient was computed along with it."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, slopes: Sequence[Tensor], *tables: Tensor) -> Tensor:
        """The loss; d_theta is kept."""
        ctx.save_for_backward(*slopes)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_value: Tensor) -> tuple[Tensor | None, ...]:
        """d_theta times the derivative of the value."""
        return (None, None, *(d_value * d for d in ctx.saved_tensors))


#: A graph, or graphs that are treated as one.
Graphs = Graph | Sequence[Graph]
#: Scores or marginals per kind: a tensor, or a list of tensors where state counts are mixed.
TensorTables = Mapping[str, Tensor | Sequence[Tensor]]

_VARIABLES = "variables"


class CRFLayer(torch.nn.Module):
    """A conditional random field on top of a network's scores: differentiable marginals and losses, and decoding.

    The layer has no parameters: theta comes from the network, per kind a tensor (n_regions, *states), one table
    (*states) shared by all regions (its gradient is the sum over them), or a list of tensors where state counts
    are mixed. Kinds left out score zero; -inf forbids. Several graphs are treated as one
    (`pt.extend.Union`): tensors hold the regions of all graphs one after another.

    Kernels run in float64 on the CPU and can be differentiated once; tensor operations run where theta is, in its type
    (at least float32), and autograd differentiates them. Results have the type and device of theta.

    Args:
        graph: the graph, or a list of graphs, where a call names none.
        inference: how marginals are computed.
        gradient: how they are differentiated: "truncated", "backpropagation", "perturbation" or "implicit", or an
            object with options; see `pt.gradients`. What does not fit the inference is refused. All but the first
            require converged inference and emit `pt.ConvergenceWarning` otherwise.
        backend: "kernels"; "tensor": PyTorch operations, for message passing and mean field by colours with truncated
            gradients; or "auto": kernels for tensors on the CPU, and elsewhere tensor operations where they can.
    """

    #: Conditional random fields on pixels with learned scores of pairs.
    grid = GridCRF

    def __init__(
        self,
        graph: Graphs | None = None,
        inference: Inference | None = None,
        gradient: str | Gradient = "truncated",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if not isinstance(inference, Inference | None):
            raise PotentiaError(f"inference must be a method such as pt.TRW(), not {shown(inference)}.")
        self.graph = graph
        self.inference = TRW(iterations=10, tol=0) if inference is None else inference
        self.gradient = by_name("gradient", gradient, GRADIENTS, Gradient)
        check_choice("backend", backend, ("auto", "kernels", "tensor"))
        reason = why_not(self.inference, self.gradient)
        if backend == "tensor" and reason is not None:
            raise PotentiaError(reason)
        self.backend = backend
        self._layouts: dict[tuple[Any, ...], TensorLayer] = {}
        #: Of the layer's graph, so that it moves with the module and is part of exported programs.
        self.tensors = self._layout(None) if backend == "tensor" and graph is not None else None

    def extra_repr(self) -> str:
        """The options."""
        options = f"gradient={self.gradient!r}, backend={self.backend!r}"
        return f"graph={self.graph!r}, inference={self.inference!r}, {options}"

    def _uses_tensors(self, theta: Any, loss: Loss | None = None) -> bool:
        """Whether tensor operations are to be used: as `backend` says, or off the CPU where they can."""
        if self.backend != "auto" or not isinstance(theta, Mapping):
            return self.backend == "tensor"
        away = any(tensor.device.type != "cpu" for tensor in tensors_of(theta))
        return away and why_not(self.inference, self.gradient, loss) is None

    def _layout(self, graph: Graphs | None, device: torch.device | None = None) -> TensorLayer:
        """Index tensors of a call's graphs on a device; those of the last eight are kept."""
        if graph is None and getattr(self, "tensors", None) is not None:
            tensors: TensorLayer = self.tensors  # type: ignore[assignment]
            if in_program() or device is None or tensors.device == device:
                return tensors
        graphs = self._graphs(graph)
        key = (graphs, str(device))
        if key not in self._layouts:
            while len(self._layouts) >= 8:
                del self._layouts[next(iter(self._layouts))]
            whole = graphs[0] if len(graphs) == 1 else _union(graphs).graph
            self._layouts[key] = TensorLayer(whole, self.inference, self.gradient).to(device or "cpu")
        return self._layouts[key]

    def forward(self, theta: TensorTables, graph: Graphs | None = None) -> dict[str, Any]:
        """Marginals: those of all variables under "variables", (n, most states), and those of each kind as theta.

        Args:
            theta: scores per kind.
            graph: a graph or a list of graphs, if not that of the layer.
        """
        if self._uses_tensors(theta):
            marginals: dict[str, Any] = self._layout(graph, _device_of(theta))(theta)
            return marginals
        return self._kernel_marginals(theta, graph)

    @torch.compiler.disable
    def _kernel_marginals(self, theta: TensorTables, graph: Graphs | None) -> dict[str, Any]:
        """Marginals by the kernels, as `forward` returns them."""
        call = self._call(theta, graph)
        whole = call.scores.graph
        if _VARIABLES in whole.kinds:
            raise PotentiaError("a kind named 'variables' collides with the marginals of the variables.")
        if call.needed:
            single, *flat = Marginals.apply(call, *call.tables)
        else:
            single, *flat = read_marginals(call, call.solve()[0])
        cliques = dict(zip(call.scores.graph.clique_kinds, flat, strict=True))
        return {_VARIABLES: single, **{kind: _of_kind(whole, kind, single, cliques.get(kind)) for kind in whole.kinds}}

    def loss(
        self,
        theta: TensorTables,
        labels: ArrayLike,
        name: str | Loss = "univariate_logistic",
        weights: ArrayLike | None = None,
        reduction: str = "mean",
        graph: Graphs | None = None,
    ) -> Tensor:
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
        if not self._uses_tensors(theta, loss_of(name)):
            return self._kernel_loss(theta, graph, labels, loss_of(name), weights, reduction)
        device = _device_of(theta)
        layout = self._layout(graph, device)
        if not in_program() and (device is None or device.type != "meta"):
            y, weight = _checked(layout.graph, labels, weights)
            if reduction == "mean":
                _refuse_no_weight(y, weight)
            labels = torch.from_numpy(y).to(device)
            weights = None if weight is None else torch.from_numpy(weight).to(device)
        value = layout.loss(theta, labels, loss_of(name), weights)
        if reduction == "sum":
            return value
        seen = labels >= 0
        total = seen.sum() if weights is None else torch.where(seen, weights, 0.0).sum()
        return (value / total).to(value.dtype)

    @torch.compiler.disable
    def _kernel_loss(
        self, theta: TensorTables, graph: Graphs | None, labels: Any, loss: Loss, weights: Any, reduction: str
    ) -> Tensor:
        """A loss by the kernels."""
        call = self._call(theta, graph)
        y, weight = _checked(call.scores.graph, labels, weights)
        number, d_theta = call.evaluate(loss, y, weight)
        value = call.output(number)
        if call.needed:
            value = LossValue.apply(value, call.gradients(d_theta), *call.tables)
        return value if reduction == "sum" else value / _refuse_no_weight(y, weight)

    @torch.compiler.disable
    def map(self, theta: TensorTables, graph: Graphs | None = None) -> Tensor:
        """The best labelling found, (n,) of int64, without gradient: exact where inference is."""
        call = self._call(theta, graph)
        return torch.from_numpy(call.inference.maximise(call.scores)).to(call.device)

    def _call(self, theta: TensorTables, graph: Graphs | None) -> TensorCall:
        """The call's scores on the union of its graphs."""
        graphs = self._graphs(graph)
        whole = graphs[0] if len(graphs) == 1 else _union(graphs).graph
        return TensorCall(whole, theta, self.inference, self.gradient)

    def _graphs(self, graph: Graphs | None) -> tuple[Graph, ...]:
        """The graphs of a call, by default those of the layer."""
        graph = self.graph if graph is None else graph
        if graph is None:
            raise PotentiaError("graph is missing: pass one to the layer or to the call.")
        graphs = [graph] if isinstance(graph, Graph) else graph
        if not isinstance(graphs, Sequence) or not all(isinstance(one, Graph) for one in graphs):
            raise PotentiaError(f"graph must be a Graph or a list of graphs, not {shown(graph)}.")
        return tuple(graphs)

    def _each_loss(
        self, theta: TensorTables, labels: ArrayLike, name: str | Loss, weights: ArrayLike | None, graph: Graphs | None
    ) -> Tensor:
        """One loss per graph, (n_graphs,), each computed on its own."""
        union = _union(self._graphs(graph))
        # refuse what does not fit before it is cut into parts
        if self._uses_tensors(theta, loss_of(name)):
            self._layout(union.parts, _device_of(theta)).flat(theta)
        else:
            self._call(theta, union.parts)
        y, weight = _checked(union.graph, labels, weights)
        parts = zip(union.parts, _theta_of_parts(union, theta), union.split_variables(y), strict=True)
        shares = [None] * len(union.parts) if weight is None else union.split_variables(weight)
        return torch.stack(
            [
                self.loss(part_theta, part_y, name, share, "sum", part)
                for (part, part_theta, part_y), share in zip(parts, shares, strict=True)
            ]
        )


def _device_of(theta: Any) -> torch.device | None:
    """The device of the first tensor."""
    tensors = tensors_of(theta)
    return tensors[0].device if tensors else None


def _checked(graph: Graph, labels: Any, weights: Any) -> tuple[Ints, Floats | None]:
    """Labels and weights of variables as arrays."""
    y = check_labels(graph, _constant(labels, "labels"), "labels")
    return y, variable_weights(graph, y, _constant(weights, "weights"), None)


def _refuse_no_weight(labels: Ints, weights: Floats | None) -> float:
    """The total weight of labelled variables, which must not be zero."""
    total = float((labels >= 0).sum() if weights is None else weights[labels >= 0].sum())
    if total == 0.0:
        raise PotentiaError("reduction='mean' needs a label that is not -1 and has a positive weight.")
    return total


@lru_cache(maxsize=8)
def _union(graphs: tuple[Graph, ...]) -> Union:
    """The union of graphs; the last eight are kept."""
    return Union(graphs)


def _theta_of_parts(union: Union, theta: TensorTables) -> list[dict[str, Any]]:
    """Scores of every part; a shared table is that of each."""
    by_part: list[dict[str, Any]] = [{} for _ in union.parts]
    for kind, tables in theta.items():
        shape = getattr(tables, "shape", None)
        shared = shape is not None and shape == union.graph.shared_shape(kind)
        for k, part in enumerate(union.parts):
            if kind in part.kinds:
                rows = slice(*union.region_ptr[kind][k : k + 2].tolist())
                by_part[k][kind] = tables if shared else tables[rows]
    return by_part


def _constant(values: ArrayLike | None, name: str) -> Any:
    """Labels or weights as an array; autograd does not see them."""
    if not isinstance(values, Tensor):
        return values
    if values.requires_grad:
        raise PotentiaError(f"{name} are constants: pass {name}.detach(), they get no gradient.")
    return values.cpu().numpy()


def _of_kind(graph: Graph, kind: str, single: Tensor, flat: Tensor | None) -> Any:
    """Marginals of a kind as users see them: (n_regions, *states), or a list where shapes differ."""
    scope, one = graph.scopes[kind], graph.shared_shape(kind)
    if len(scope) == 0:
        return single.new_zeros(0)
    if flat is None:
        variables = torch.from_numpy(np.array(scope[:, 0])).to(single.device)
        rows = single[variables]
        states = graph.n_states[scope[:, 0]].tolist()
        return rows[:, : one[0]] if one is not None else [row[:n] for row, n in zip(rows, states, strict=True)]
    return shaped(flat, one, graph.table_shapes(kind).tolist())
