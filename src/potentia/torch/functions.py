"""Inference and losses as functions that autograd can differentiate once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from .._threads import thread_count
from .._types import ArrayLike, ConvergenceWarning, Floats, Ints, PotentiaError, warn_caller
from ..adjoint.gradient import Gradient, evaluate
from ..adjoint.truncated import Pull
from ..graph.cotangents import MarginalCotangent, Tables, clique_kinds, flat_marginals, zero_tables
from ..graph.scores import Scores
from ..graph.structure import Graph
from ..inference.base import Inference, Result
from ..losses.base import Loss


def to_numpy(tensor: torch.Tensor) -> Floats:
    """The numbers as a contiguous float64 array; a view where they are one."""
    array: Floats = tensor.detach().cpu().double().contiguous().numpy()
    return array


def tensor_like(array: ArrayLike, tensor: torch.Tensor) -> torch.Tensor:
    """The numbers in the shape, of the type and on the device of a tensor."""
    # the type first: some devices have no float64
    made = torch.from_numpy(array).to(tensor.dtype).to(tensor.device)
    return made if made.shape == tensor.shape else made.reshape(tensor.shape)


def needs_gradient(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether autograd will ask for the gradient by one of the tensors."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


@dataclass(frozen=True)
class ValueOnly(Gradient):
    """A gradient method that computes nothing, for evaluating losses without gradients; works with any inference."""

    at_fixed_point: ClassVar[bool] = False

    def solve(
        self, inference: Inference, scores: Scores, start: Result | None = None, cliques: bool = True
    ) -> tuple[Result, Pull]:
        """Inference, and zeros for a gradient."""
        return inference.run(scores, start), lambda cotangent: zero_tables(scores)


class Call:
    """Scores given as tensors, with the inference and gradient method to use on them.

    Attributes:
        scores: the scores, validated; they share memory with float64 tensors.
        kinds: kinds that `tables` are scores of.
        tables: the given tensors; where state counts are mixed, a kind's tables one after another.
        needed: whether a gradient is needed.
    """

    def __init__(
        self, graph: Graph, theta: Mapping[str, Any], inference: Inference, gradient: Gradient
    ) -> None:
        if not isinstance(theta, Mapping):
            raise PotentiaError(f"theta must map kinds to tensors, not be a {type(theta).__name__}.")
        self.kinds = tuple(theta)
        arrays = {kind: _arrays(kind, given) for kind, given in theta.items()}
        self.scores = Scores(graph, {**dict.fromkeys(graph.kinds), **arrays})
        self.tables = [_joined(given) for given in theta.values()]
        self.needed = needs_gradient(self.tables)
        self.gradient = gradient if self.needed else ValueOnly()
        # backward may run in a thread that knows nothing of the caller's choice
        given: Any = inference
        split = any(field.name == "threads" for field in fields(given))
        self.inference: Inference = replace(given, threads=thread_count(given.threads)) if split else given
        self._dtype = torch.get_default_dtype()
        if self.tables:
            self._dtype = self.tables[0].dtype
            for table in self.tables[1:]:
                self._dtype = torch.promote_types(self._dtype, table.dtype)
        self.device = self.tables[0].device if self.tables else torch.device("cpu")

    def solve(self) -> tuple[Result, Pull]:
        """Inference, and what pulls cotangents of its marginals back, once."""
        return self.gradient.solve(self.inference, self.scores)

    def evaluate(self, loss: Loss, labels: Ints, weights: Floats | None) -> tuple[float, Tables]:
        """A loss and its gradient; warns if that is inaccurate."""
        found = evaluate(loss, self.inference, self.gradient, self.scores, labels, weights)
        warn_of(found.doubt)
        return found.value, found.tables

    def output(self, array: ArrayLike) -> torch.Tensor:
        """Results of the type and on the device of the scores."""
        return torch.from_numpy(np.asarray(array, dtype=float)).to(self._dtype).to(self.device)

    def gradients(self, tables: Tables) -> list[torch.Tensor]:
        """d_theta in the layout of `tables`."""
        found = []
        for kind, given in zip(self.kinds, self.tables, strict=True):
            # a kind without regions ignores its table
            flat = tables[kind] if len(self.scores.graph.scopes[kind]) else np.zeros(given.numel())
            found.append(tensor_like(flat, given))
        return found


def _arrays(kind: str, given: Any) -> Floats | list[Floats]:
    tables = [given] if isinstance(given, torch.Tensor) else given
    if not isinstance(tables, Sequence) or not all(isinstance(table, torch.Tensor) for table in tables):
        raise PotentiaError(
            f"theta[{kind!r}] must be a tensor, or a list of tensors where state counts are mixed, "
            f"not a {type(given).__name__}."
        )
    for table in tables:
        if not table.is_floating_point():
            raise PotentiaError(f"theta[{kind!r}] must hold floating-point numbers, not {table.dtype}.")
    return to_numpy(given) if isinstance(given, torch.Tensor) else [to_numpy(table) for table in tables]


def _joined(given: Any) -> torch.Tensor:
    if isinstance(given, torch.Tensor):
        return given
    return torch.cat([table.reshape(-1) for table in given]) if len(given) else torch.zeros(0)


class Marginals(torch.autograd.Function):
    """Marginals of all variables, (n, states), and of each kind of larger regions, flat."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tables: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Inference; what its reverse needs is kept for one backward pass, a further one solves again."""
        ctx.solved = call.solve()
        result = ctx.solved[0]
        warn_of(call.gradient.doubt(call.inference, result))
        found = read_marginals(call, result)
        ctx.call, ctx.n_tables = call, len(tables)
        # inputs and outputs share memory with what `pull` reads: torch then reports changes in place
        ctx.save_for_backward(*tables, *found)
        ctx.set_materialize_grads(False)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_mu: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """d_mu to d_theta."""
        _ = ctx.saved_tensors
        call = ctx.call
        (result, pull), ctx.solved = ctx.solved or call.solve(), None
        arrays = [None if d is None else to_numpy(d) for d in d_mu]
        cliques = zip(clique_kinds(call.scores), arrays[1:], strict=True)
        cotangent = MarginalCotangent(arrays[0], {kind: d for kind, d in cliques if d is not None})
        tables = pull(cotangent)
        # what was known before, `forward` has said
        warn_of(result.memo.get("doubt"))
        return (None, *call.gradients(tables))


def read_marginals(call: Call, result: Result) -> tuple[torch.Tensor, ...]:
    """A result's marginals as `Marginals` returns them."""
    cliques = [flat_marginals(result.marginals[kind]) for kind in clique_kinds(call.scores)]
    return tuple(call.output(mu) for mu in (result.variable_marginals, *cliques))


def warn_of(doubt: str | None) -> None:
    """Warn the caller of what makes a gradient inaccurate, if anything does."""
    if doubt is not None:
        warn_caller(doubt, ConvergenceWarning)


class LossValue(torch.autograd.Function):
    """A loss, whose gradient is computed along with it."""

    @staticmethod
    def forward(
        ctx: Any, call: Call, loss: Loss, labels: Ints, weights: Floats | None, *tables: torch.Tensor
    ) -> torch.Tensor:
        """The loss; d_theta is kept."""
        value, d_theta = call.evaluate(loss, labels, weights)
        ctx.save_for_backward(*call.gradients(d_theta))
        return call.output(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_value: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """A product."""
        return (None, None, None, None, *(d_value * d for d in ctx.saved_tensors))
