"""Images as they come: conditional random fields on pixels, (B, K, H, W) in and out, and a refinement head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...base.types import PotentiaError, check_choice, check_count, check_positive, shown
from ...gradients.base import Loss
from ...gradients.losses import MarginalLoss, loss_of
from ...graph.structure import Graph
from ...inference.base import Inference
from ...inference.mean_field import MeanField
from ...inference.messages import TRW, MessagePassingMethod
from .indices import Indices, working_type
from .tensor import Field, PairPlan, Schedule, TensorScores, mean_field, message_passing, pair_tables
from .tensor_dense import ExactKernel, GridKernel
from .tensor_losses import marginal_terms
from .tensor_method import message_plan, why_not_tensor

#: Bytes that iterations may leave for their reverse before segments of them are run again.
_MEMORY = 2**29
#: Image sizes whose layouts are kept besides that of the constructor.
_SIZES = 8

PAIRS = ("potts", "table", "features")


class _Layout(Indices):
    """A grid of one size: its graph, where messages lie, and of every pair both pixels and its direction."""

    def __init__(self, size: tuple[int, int], n_classes: int, inference: Inference) -> None:
        graph = Graph.grid(size, n_states=n_classes)
        first, second = np.array(graph.scopes["edge"]).reshape(-1, 2).T
        down = np.array(second - first != 1, dtype=np.int64) if size[1] > 1 else np.ones_like(first)
        super().__init__({"first": first, "second": second, "direction": down})
        self.graph = graph
        plan = message_plan(graph, inference) if isinstance(inference, MessagePassingMethod) else None
        self.plan = plan if isinstance(plan, PairPlan) else PairPlan(graph)


class _Grid(torch.nn.Module):
    """Layouts by size, and inference on images in either backend."""

    def __init__(self, n_classes: int, inference: Inference, backend: str, size: tuple[int, int] | None) -> None:
        super().__init__()
        check_count("n_classes", n_classes, 2)
        check_choice("backend", backend, ("auto", "kernels", "tensor"))
        if not isinstance(inference, MessagePassingMethod | MeanField):
            raise PotentiaError(
                f"inference must be a method such as pt.TRW() or pt.MeanField(), not {shown(inference)}."
            )
        self.n_classes, self.inference, self.backend, self.size = n_classes, inference, backend, size
        self.layout = None if size is None else _Layout(size, n_classes, inference)
        self._others: dict[tuple[int, int, str], _Layout] = {}

    def layout_of(self, logits: Tensor) -> _Layout:
        """The layout of images of this size on their device."""
        size = (int(logits.shape[2]), int(logits.shape[3]))
        if self.layout is not None and size == self.size:
            return self.layout
        key = (*size, str(logits.device))
        if key not in self._others:
            while len(self._others) >= _SIZES:
                del self._others[next(iter(self._others))]
            self._others[key] = _Layout(size, self.n_classes, self.inference).to(logits.device)
        return self._others[key]

    def uses_tensor(self, logits: Tensor) -> bool:
        """Whether images are handled by tensor operations."""
        if self.backend == "auto":
            return logits.device.type != "cpu" and why_not_tensor(self.inference) is None
        return self.backend == "tensor"

    def solve(self, logits: Tensor, pairs: Tensor, fields: Field | None = None) -> Tensor:
        """Marginals (B, K, H, W) of logits, and of pairs by weights (B or 1, m) or tables (K, K, B or 1, m)."""
        layout = self.layout_of(logits)
        node = logits.flatten(2).transpose(0, 1)
        if fields is None and not self.uses_tensor(logits):
            layer, theta = self.as_layer(layout, node, pairs, "kernels")
            mu = layer(theta)["variables"].reshape(node.shape[1], -1, self.n_classes).permute(2, 0, 1)
        else:
            reason = why_not_tensor(self.inference)
            if reason is not None:
                raise PotentiaError(reason)
            scores, run = TensorScores(node, pairs), Schedule.of(self.inference, _MEMORY)
            if isinstance(self.inference, MeanField):
                mu = mean_field(layout.plan, scores, run, fields, pairs=False).variables
            else:
                mu = message_passing(layout.plan, scores, run, pairs=False).variables
        return mu.transpose(0, 1).reshape(logits.shape)

    def as_layer(self, layout: _Layout, node: Tensor, pairs: Tensor, backend: str) -> tuple[Any, dict[str, Tensor]]:
        """A `CRFLayer` of the union of a batch's grids, and its scores."""
        from .layer import CRFLayer

        states, batch = node.shape[:2]
        table = pair_tables(TensorScores(node, pairs)).expand(-1, -1, batch, -1)
        theta = {
            "node": node.permute(1, 2, 0).reshape(-1, states),
            "edge": table.permute(2, 3, 0, 1).reshape(-1, states, states),
        }
        return CRFLayer([layout.graph] * batch, self.inference, backend=backend), theta

    def checked(self, logits: Any, features: Any = None, channels: int = 0) -> tuple[Tensor, Tensor | None]:
        """Logits and features of at least float32; refuses shapes that do not fit."""
        if not isinstance(logits, torch.Tensor) or logits.dim() != 4 or logits.shape[1] != self.n_classes:
            shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else shown(logits)
            raise PotentiaError(f"logits must be a tensor (B, {self.n_classes}, H, W), not {shape}.")
        if not logits.is_floating_point():
            raise PotentiaError(f"logits must hold floating-point numbers, not {logits.dtype}.")
        wanted = (logits.shape[0], channels, *logits.shape[2:])
        if channels and (not isinstance(features, torch.Tensor) or tuple(features.shape) != wanted):
            shape = tuple(features.shape) if isinstance(features, torch.Tensor) else shown(features)
            raise PotentiaError(f"features must be a tensor {wanted}, one per pixel and channel, not {shape}.")
        dtype = working_type([logits, *self.parameters()])
        return logits.to(dtype), features.to(dtype) if channels else None


class GridCRF(_Grid):
    """A conditional random field on the pixels of images with learned scores of neighbouring pixels.

    Made by `CRFLayer.grid`. Logits are (B, K, H, W), features of pixels (B, C, H, W), marginals (B, K, H, W). Images of
    other sizes than `size` get a layout at their first use; batches of one size go through together, and a list of
    (K, H, W) logits may mix sizes.

    Args:
        size: (height, width) of most images.
        n_classes: K.
        pairs: "potts": a learned weight per direction, score -weight [a != b]; "table": a learned (K, K) table per
            direction; "features": tables that are linear functions of 1 and of the absolute differences of the pixels'
            features.
        channels: C of the features, with pairs="features".
        inference: TRW and others with messages, or mean field; None for ten iterations of TRW.
        backend: "kernels", "tensor", or "auto": kernels for tensors on the CPU, tensor operations elsewhere.
    """

    def __init__(
        self,
        size: tuple[int, int],
        n_classes: int,
        pairs: str = "potts",
        channels: int = 0,
        inference: Inference | None = None,
        backend: str = "auto",
    ) -> None:
        check_choice("pairs", pairs, PAIRS)
        if not isinstance(size, Sequence) or len(size) != 2:
            raise PotentiaError(f"size must be (height, width), not {shown(size)}.")
        for name, side in zip(("height", "width"), size, strict=True):
            check_count(name, side, 1)
        check_count("channels", channels)
        if (pairs == "features") != (channels > 0):
            raise PotentiaError("channels, the number of features per pixel, go with pairs='features' only.")
        method = TRW(iterations=10, tol=0) if inference is None else inference
        super().__init__(n_classes, method, backend, (int(size[0]), int(size[1])))
        self.pairs, self.channels = pairs, channels
        table = (n_classes, n_classes)
        shapes = {"potts": (2,), "table": (2, *table), "features": (2, channels + 1, *table)}
        #: Scores of pairs to the right and downwards.
        self.weight = torch.nn.Parameter(torch.zeros(shapes[pairs]))

    def extra_repr(self) -> str:
        """The options."""
        return f"{self.size}, n_classes={self.n_classes}, pairs={self.pairs!r}, inference={self.inference!r}"

    def pair_scores(self, layout: _Layout, features: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Weights (1, m) or tables (K, K, B or 1, m) of all pairs of an image."""
        weight = self.weight.to(dtype)
        if self.pairs == "potts":
            return weight[layout.direction].unsqueeze(0)
        if features is None:
            return weight[layout.direction].permute(1, 2, 0).unsqueeze(2)
        flat = features.flatten(2)
        apart = (flat.index_select(2, layout.first) - flat.index_select(2, layout.second)).abs()
        apart = torch.cat([torch.ones_like(apart[:, :1]), apart], 1)
        down = layout.direction.to(dtype)
        both = torch.stack([apart * (1.0 - down), apart * down])  # of each direction's pairs
        return torch.einsum("dbcm,dcxy->xybm", both, weight)

    def forward(self, logits: Any, features: Any = None) -> Any:
        """Marginals of the pixels, in the shape of the logits."""
        if isinstance(logits, Sequence):
            return self._each(self.forward, logits, features)
        node, extra = self.checked(logits, features, self.channels)
        layout = self.layout_of(node)
        return self.solve(node, self.pair_scores(layout, extra, node.dtype)).to(logits.dtype)

    def map(self, logits: Any, features: Any = None) -> Any:
        """The most likely label of every pixel, (B, H, W)."""
        if isinstance(logits, Sequence):
            return self._each(self.map, logits, features)
        with torch.no_grad():
            labels: Tensor = self.forward(logits, features).argmax(1)
        return labels

    def _each(self, function: Callable[..., Tensor], logits: Sequence[Tensor], features: Any) -> list[Tensor]:
        """The function applied to each of several images of different sizes."""
        others = [None] * len(logits) if features is None else [one.unsqueeze(0) for one in features]
        return [function(one.unsqueeze(0), extra)[0] for one, extra in zip(logits, others, strict=True)]

    def loss(
        self,
        logits: Tensor,
        labels: Tensor,
        features: Tensor | None = None,
        name: str | Loss = "univariate_logistic",
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> Tensor:
        """A loss of `pt.gradients.losses` by labels (B, H, W).

        Args:
            logits: (B, K, H, W).
            labels: whole numbers; those equal to `ignore_index` are hidden.
            features: (B, C, H, W), with pairs="features".
            name: of the loss, or a loss object with options.
            ignore_index: the label of pixels without one, such as 255.
            reduction: "sum", or "mean" over labelled pixels.
        """
        check_choice("reduction", reduction, ("sum", "mean"))
        node, extra = self.checked(logits, features, self.channels)
        y = _hidden_labels(labels, logits, self.n_classes, ignore_index)
        loss = loss_of(name)
        if isinstance(loss, MarginalLoss) and not loss.cliques and (terms := marginal_terms(loss)) is not None:
            mu = self.solve(node, self.pair_scores(self.layout_of(node), extra, node.dtype))
            flat = terms(mu.permute(0, 2, 3, 1).flatten(0, 2), y.clamp_min(0))
            value = torch.where(y >= 0, flat, 0.0).sum()
        else:
            layout, backend = self.layout_of(node), "tensor" if self.uses_tensor(node) else "kernels"
            pairs = self.pair_scores(layout, extra, node.dtype)
            layer, theta = self.as_layer(layout, node.flatten(2).transpose(0, 1), pairs, backend)
            value = layer.loss(theta, y, loss, reduction="sum")
        seen = (y >= 0).sum()
        return (value if reduction == "sum" else value / seen).to(logits.dtype)


def _hidden_labels(labels: Any, logits: Tensor, n_classes: int, ignore_index: int) -> Tensor:
    """Labels (B, H, W) flat, -1 where hidden."""
    wanted = (logits.shape[0], *logits.shape[2:])
    if not isinstance(labels, torch.Tensor) or tuple(labels.shape) != tuple(wanted) or labels.is_floating_point():
        shape = f"{tuple(labels.shape)} of {labels.dtype}" if isinstance(labels, torch.Tensor) else shown(labels)
        raise PotentiaError(f"labels must be whole numbers of shape {tuple(wanted)}, not {shape}.")
    y = torch.where(labels == ignore_index, -1, labels.long()).flatten()
    if not torch.compiler.is_compiling() and y.device.type != "meta":
        bad = ((y < 0) & (labels.flatten() != ignore_index)) | (y >= n_classes)
        if bool(bad.any()):
            wrong = int(labels.flatten()[bad][0])
            raise PotentiaError(
                f"labels hold {wrong}; expected 0..{n_classes - 1}, or ignore_index={ignore_index} where hidden."
            )
        if not bool((y >= 0).any()):
            raise PotentiaError("every label is hidden: a loss needs a labelled pixel.")
    return y


class RefineHead(_Grid):
    """A refinement of logits by a conditional random field whose weights are learned; the last layer of a network.

    Takes logits (B, K, H, W) and, with `channels`, an image or other features (B, C, H, W) in [0, 1]; returns
    logarithms of refined marginals (B, K, H, W), to be used as logits: `cross_entropy(head(logits, image), labels)`
    trains network and head together. Neighbouring pixels attract each other by the learned weight
    :math:`a_d + b_d \\exp(-\\sum_c s_c (f_{ic} - f_{jc})^2)` of their direction d. With `dense`, all pixels do by
    their distance, and by their distance and colour, as in dense CRFs [Kraehenbuehl and Koltun 2011], and inference is
    mean field; otherwise it is TRW.

    Args:
        n_classes: K.
        channels: C; 0 for none.
        dense: None, "exact" (all pairs, for small images) or "grid" (a bilateral grid, in linear time).
        iterations: of inference.
        size: (height, width) of most images, whose layout then moves with the module (export needs it); others get a
            layout at their first use.
        spatial, colour: standard deviations of dense kernels, in pixels and in units of the features.
        backend: as in `GridCRF`; dense terms need tensor operations, on any device.
    """

    def __init__(
        self,
        n_classes: int,
        channels: int = 3,
        dense: str | None = None,
        iterations: int = 5,
        size: tuple[int, int] | None = None,
        spatial: float = 8.0,
        colour: float = 0.15,
        backend: str = "auto",
    ) -> None:
        check_count("iterations", iterations, 1)
        check_count("channels", channels)
        check_positive("spatial", spatial)
        check_positive("colour", colour)
        if dense is not None:
            check_choice("dense", dense, ("exact", "grid"), "None")
            if backend == "kernels":
                raise PotentiaError("dense terms need backend='tensor' or 'auto'.")
        method: Inference = MeanField(iterations=iterations, tol=0) if dense else TRW(iterations=iterations, tol=0)
        super().__init__(n_classes, method, backend, None if size is None else (int(size[0]), int(size[1])))
        self.channels, self.dense, self.spatial, self.colour = channels, dense, spatial, colour
        #: log of: a and b of each direction, s of each channel, and weights of the dense kernels.
        self.log_smooth = torch.nn.Parameter(torch.full((2,), -2.0))
        if channels:
            self.log_contrast = torch.nn.Parameter(torch.full((2,), -1.0))
            self.log_scale = torch.nn.Parameter(torch.full((channels,), 3.0))
        if dense:
            self.log_dense = torch.nn.Parameter(torch.full((2 if channels else 1,), -1.0))
            self.compatibility = torch.nn.Parameter(1.0 - torch.eye(n_classes))

    def extra_repr(self) -> str:
        """The options."""
        dense = f"dense={self.dense!r}, inference={self.inference!r}"
        return f"n_classes={self.n_classes}, channels={self.channels}, {dense}"

    def forward(self, logits: Tensor, image: Tensor | None = None) -> Tensor:
        """Logarithms of the refined marginals."""
        node, features = self.checked(logits, image, self.channels)
        layout, dtype = self.layout_of(node), node.dtype
        weight = self.log_smooth.to(dtype).exp()[layout.direction].unsqueeze(0)
        if features is not None:
            flat = features.flatten(2)
            apart = flat.index_select(2, layout.first) - flat.index_select(2, layout.second)
            near = torch.exp(-(self.log_scale.to(dtype).exp()[:, None] * apart**2).sum(1))
            weight = weight + self.log_contrast.to(dtype).exp()[layout.direction] * near
        mu = self.solve(node, weight, self._fields(node, features) if self.dense else None)
        return torch.log(mu.clamp_min(torch.finfo(dtype).tiny)).to(logits.dtype)

    def _fields(self, node: Tensor, features: Tensor | None) -> Field:
        """Scores of labels from the dense kernels, as a function of marginals (K, B, n)."""
        height, width = node.shape[2:]
        y = torch.arange(height, dtype=node.dtype, device=node.device) / self.spatial
        x = torch.arange(width, dtype=node.dtype, device=node.device) / self.spatial
        place = torch.stack(torch.meshgrid(y, x, indexing="ij"), -1).reshape(1, -1, 2)
        ends = [(height - 1) / self.spatial, (width - 1) / self.spatial]
        points = [(place, ends)]
        if features is not None:
            colour = features.flatten(2).transpose(1, 2) / self.colour
            wide = torch.cat([place.expand(colour.shape[0], -1, -1), colour], 2)
            points.append((wide, ends + [1.0 / self.colour] * self.channels))
        kernels = [
            ExactKernel(f) if self.dense == "exact" else GridKernel(f, [0.0] * f.shape[2], high) for f, high in points
        ]
        weights = self.log_dense.to(node.dtype).exp()
        cost = self.compatibility.to(node.dtype)
        cost = 0.5 * (cost + cost.T)

        def field(q: Tensor) -> Tensor:
            """Minus the expected cost of each class given all other pixels, filtered by the kernels."""
            mixed = sum(w * kernel.multiply(q) for w, kernel in zip(weights, kernels, strict=True))
            return -torch.tensordot(cost, mixed, 1)

        return field
