"""`CRFLayer` of one graph as PyTorch operations: scores per kind in, marginals per kind and losses out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...base.types import InfeasibleError, PotentiaError
from ...gradients.base import Gradient, Loss
from ...gradients.truncated import Truncated
from ...graph.structure import Graph
from ...inference.base import Inference
from ...inference.mean_field import MeanField
from .indices import Indices, checked_tensors, common_type, shaped, tensors_of
from .tensor_losses import LossIndex, TensorLoss, why_no_loss
from .tensor_method import TensorMethod, why_not_tensor


def why_not(inference: Inference, gradient: Gradient, loss: Loss | None = None) -> str | None:
    """Why the tensor backend cannot do what is asked for, in one sentence; None if it can."""
    if not isinstance(gradient, Truncated):
        return (
            "the tensor backend differentiates the iterations that were run: use gradient='truncated' or "
            "backend='kernels'."
        )
    return why_not_tensor(inference) or (None if loss is None else why_no_loss(loss))


def in_program() -> bool:
    """Whether PyTorch is compiling or exporting, where nothing may look at numbers."""
    return torch.compiler.is_compiling()


class TensorLayer(torch.nn.Module):
    """Layout of one graph and method; `Indices` move with the module."""

    def __init__(self, graph: Graph, inference: Inference, gradient: Gradient) -> None:
        super().__init__()
        reason = why_not(inference, gradient)
        if reason is not None:
            raise PotentiaError(reason)
        self.graph, self.product = graph, isinstance(inference, MeanField)
        self.method = TensorMethod(graph, inference, getattr(gradient, "memory", 2**29))
        self.losses = LossIndex(graph, inference.counting_numbers(graph))
        singles = {k: np.array(s[:, 0]) for k, s in graph.scopes.items() if s.shape[1] == 1 and len(s)}
        self.singles = list(singles)
        self.of_single = Indices({f"kind{number}": at for number, at in enumerate(singles.values())})
        #: States of the variables of single-variable kinds, and shapes of tables, where a kind's differ.
        self.mixed = {
            kind: [tuple(shape) for shape in graph.table_shapes(kind).tolist()]
            for kind, scope in graph.scopes.items()
            if len(scope) and graph.shared_shape(kind) is None
        }

    @property
    def device(self) -> torch.device:
        """Where the index tensors are."""
        device: torch.device = self.method.index.single.device
        return device

    def flat(self, theta: Mapping[str, Any]) -> Tensor:
        """Scores of all regions, checked."""
        self._check_theta(theta)
        flat = self.method.flat(theta)
        if in_program() or flat.device.type == "meta":
            return flat
        if bool((torch.isnan(flat) | (flat == torch.inf)).any()):
            raise PotentiaError("theta holds NaN or +inf; only -inf may be infinite.")
        if self.product and bool((flat == -torch.inf).any()):
            wide = [flat[k.start : k.stop] for k in self.method.kinds.values() if k.order > 1]
            if any(bool((table == -torch.inf).any()) for table in wide):
                raise PotentiaError(
                    "mean field as tensor operations takes no forbidden (-inf) pairs: use backend='kernels'."
                )
        return flat

    def _check_theta(self, theta: Any) -> None:
        """Refuse scores of unknown kinds or of another type."""
        if not isinstance(theta, Mapping):
            raise PotentiaError(f"theta must map kinds to tensors, not be a {type(theta).__name__}.")
        for name, tables in theta.items():
            if name not in self.method.kinds:
                raise PotentiaError(f"theta names kind {name!r}, but the graph's kinds are {list(self.method.kinds)}.")
            every = checked_tensors(name, tables)
            self._check_shape(name, tables, every)

    def _check_shape(self, name: str, tables: Any, every: Sequence[Tensor]) -> None:
        """Refuse tables of a kind in another shape than its regions have."""
        kind = self.method.kinds[name]
        if not kind.n_regions:
            return
        if kind.shape is None:
            if isinstance(tables, torch.Tensor) or [tuple(t.shape) for t in every] != self.mixed[name]:
                raise PotentiaError(
                    f"theta[{name!r}] must be a list of {kind.n_regions} tables of the shapes that the graph's "
                    "variables have."
                )
            return
        shapes = (kind.shape, (kind.n_regions, *kind.shape))
        if isinstance(tables, torch.Tensor) and tuple(tables.shape) not in shapes:
            raise PotentiaError(
                f"theta[{name!r}] has shape {tuple(tables.shape)}; expected {shapes[1]}, or {shapes[0]} for a shared "
                "table."
            )
        if not isinstance(tables, torch.Tensor) and [tuple(t.shape) for t in every] != [kind.shape] * kind.n_regions:
            raise PotentiaError(f"theta[{name!r}] must hold {kind.n_regions} tables of shape {kind.shape}.")

    def forward(self, theta: Mapping[str, Any]) -> dict[str, Any]:
        """Marginals of all variables under "variables", and of each kind as theta."""
        if "variables" in self.method.kinds:
            raise PotentiaError("a kind named 'variables' collides with the marginals of the variables.")
        mu = self.method(self.flat(theta))
        dtype = common_type(tensors_of(theta))
        if not in_program() and mu.variables.device.type != "meta" and bool(torch.isnan(mu.variables).any()):
            raise InfeasibleError("no labelling has a finite score: some variable is left without a state.")
        out: dict[str, Any] = {"variables": mu.variables.to(dtype)}
        for name, kind in self.method.kinds.items():
            if not kind.n_regions:
                out[name] = mu.variables.new_zeros(0)
            elif name in self.singles:
                rows = out["variables"][getattr(self.of_single, f"kind{self.singles.index(name)}")]
                if kind.shape is not None:
                    out[name] = rows[:, : kind.shape[0]]
                else:
                    out[name] = [row[:n] for row, (n,) in zip(rows, self.mixed[name], strict=True)]
            else:
                out[name] = shaped(mu.cliques[name].to(dtype), kind.shape, self.mixed.get(name, ()))
        return out

    def loss(self, theta: Mapping[str, Any], labels: Tensor, loss: Loss, weights: Tensor | None) -> Tensor:
        """The loss, summed; labels (n,) and weights (n,) have been checked."""
        reason = why_no_loss(loss)
        if reason is not None:
            raise PotentiaError(reason)
        flat = self.flat(theta)
        if not in_program():
            self.losses.prepare(loss)
        if not in_program() and flat.device.type != "meta":
            self._refuse_forbidden(flat, labels)
        value = TensorLoss(self.method, self.losses, flat, labels, weights)(loss)
        if not in_program() and value.device.type != "meta" and bool(torch.isnan(value)):
            raise InfeasibleError("no labelling has a finite score, or the labels have a forbidden (-inf) one.")
        return value.to(common_type(tensors_of(theta)))

    def _refuse_forbidden(self, flat: Tensor, labels: Tensor) -> None:
        """Refuse labels that their variables' scores forbid."""
        own = self.method.singles(flat).gather(0, labels.clamp_min(0).unsqueeze(0))[0]
        bad = torch.nonzero((own == -torch.inf) & (labels >= 0)).flatten().tolist()
        if bad:
            raise PotentiaError(f"variable {bad[0]} has the label {int(labels[bad[0]])}, which its scores forbid.")
