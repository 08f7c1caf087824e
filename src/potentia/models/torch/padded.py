"""The log-likelihood of padded chains by the kernels, which autograd can differentiate once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...base.resources import map_items, thread_count
from ...base.types import Floats, InfeasibleError, Ints, PotentiaError
from ...kernels import sequences as kernels
from ...kernels.lanes import make_lanes
from .layer import tensor_like, to_numpy

#: Multiplications that a block of sequences should have, so that handing it to a thread pays.
_BLOCK_WORK = 500_000
#: Most blocks; partial sums over transitions are kept for each.
_MAX_BLOCKS = 16

#: Cotangents of emissions (flat), start (L,), transitions (L, L) and end (L,).
Gradient = tuple[Any, Floats, Floats, Floats]


class PaddedEmissions:
    """Padded emissions and transitions as the kernels want them.

    Blocks of sequences are shared out over threads; their number depends on shapes only, so that sums do not depend
    on the number of threads.

    Attributes:
        chains: arrays of the kernels.
        shape: (batch, steps).
    """

    def __init__(self, emissions: Tensor, tables: Sequence[Tensor], lengths: Ints, batch_first: bool) -> None:
        n_tags, batch = emissions.shape[2], len(lengths)
        steps = emissions.shape[1 if batch_first else 0]
        self.shape, self._threads = (batch, steps), thread_count(None)
        self._blocks = _cuts(batch, int(lengths.sum()) * n_tags**2)
        names = ("start_transitions", "transitions", "end_transitions")
        start, pair, end = (_table(table, name) for table, name in zip(tables, names, strict=True))
        self.chains = kernels.PaddedChains(
            scores=_flat(emissions),
            per_sequence=(steps if batch_first else 1) * n_tags,
            per_step=(1 if batch_first else batch) * n_tags,
            n_steps=steps,
            length=lengths,
            start=start,
            end=end,
            lanes=make_lanes(pair),
        )

    def log_partition(self) -> Floats:
        """log Z of every sequence."""
        return self._sum_up(np.ones(self.shape[0]), np.empty_like(self.chains.scores[:0]), None)[0]

    def gradient(self, weight: Floats, labels: Ints | None) -> tuple[Floats, Gradient]:
        """log Z, and d/d(emissions, start, transitions, end) of sum_k weight_k (log Z_k - score of labels_k)."""
        return self._sum_up(weight, np.empty_like(self.chains.scores), labels)

    def _sum_up(self, weight: Floats, d_scores: Any, labels: Ints | None) -> tuple[Floats, Gradient]:
        """log Z of each sequence, and the gradient of the weighted sum, less that of the labels' scores if given."""
        n_tags, n_blocks, value = self.chains.start.size, len(self._blocks), np.empty(self.shape[0])
        d_start, d_end = np.zeros((n_blocks, n_tags)), np.zeros((n_blocks, n_tags))
        d_pair = np.zeros((n_blocks, n_tags, n_tags))

        def work(number: int) -> None:
            """The part of one block of sequences."""
            outputs = (d_scores, d_start[number], d_pair[number], d_end[number], *self._blocks[number])
            kernels.sum_up(self.chains, weight, value, *outputs)
            if labels is not None:
                kernels.subtract_labels(self.chains, labels, weight, *outputs)

        map_items(work, range(n_blocks), self._threads)
        refuse_bad(value)
        d_start, d_pair, d_end = (d[0] if n_blocks == 1 else d.sum(axis=0) for d in (d_start, d_pair, d_end))
        return value, (d_scores, d_start, d_pair, d_end)


def refuse_bad(values: Floats) -> None:
    """Refuse sequences whose log Z or best score is NaN (bad emissions) or -inf (no labelling)."""
    lowest = values.min(initial=np.inf)
    if np.isnan(lowest):
        raise PotentiaError(
            f"emissions of sequence {int(np.flatnonzero(np.isnan(values))[0])} hold NaN, +inf or a score beyond "
            "1e100; only -inf may be infinite."
        )
    if lowest == -np.inf:
        raise InfeasibleError(
            f"every labelling of sequence {int(np.argmin(values))} is forbidden (-inf) by its emissions and the "
            "transitions."
        )


def refuse_bad_sums(values: Tensor, scores: Tensor | None = None) -> None:
    """`refuse_bad` of tensors, and labels whose score is -inf; nothing where PyTorch compiles or has no numbers."""
    if torch.compiler.is_compiling() or values.device.type == "meta":
        return
    numbers = to_numpy(values)
    refuse_bad(np.where(numbers > kernels.HIGHEST, np.nan, numbers))
    if scores is not None and bool((scores == -torch.inf).any()):
        bad = int(torch.nonzero(scores == -torch.inf)[0])
        raise PotentiaError(f"tags of sequence {bad} have a forbidden (-inf) emission, transition or segment.")


def _cuts(batch: int, work: int) -> list[tuple[int, int]]:
    """Ranges of sequences that threads work on, of enough work each."""
    n = max(min(batch, _MAX_BLOCKS, 1 + work // _BLOCK_WORK), 1)
    return [(batch * k // n, batch * (k + 1) // n) for k in range(n)]


def _flat(emissions: Tensor) -> Any:
    """Emissions flat, float32 or float64; a view where possible."""
    scores = emissions.detach().cpu()
    if scores.dtype not in (torch.float32, torch.float64):
        scores = scores.float()
    return scores.contiguous().numpy().reshape(-1)


def _table(scores: Tensor, name: str) -> Floats:
    """Scores as an array; refuses NaN, +inf and huge ones."""
    table = to_numpy(scores)
    if not table.max() <= kernels.HIGHEST:  # nor NaN
        raise PotentiaError(f"{name} hold NaN, +inf or a score beyond 1e100; only -inf may be infinite.")
    return table


class LogLikelihood(torch.autograd.Function):
    """Score of the labels minus log Z, (batch,)."""

    @staticmethod
    def forward(ctx: Any, sequences: PaddedEmissions, labels: Ints, eager: bool, *inputs: Tensor) -> Tensor:
        """The likelihoods and, if `eager`, at once the gradient of their sum, while a sequence is in the cache.

        inputs: emissions and tables that the sequences were made of.
        """
        ctx.sequences, ctx.labels = sequences, labels
        # the kernels' arrays may share memory with these: torch then reports changes in place
        ctx.save_for_backward(*inputs)
        ctx.gradient, (emissions, _, pair, _) = None, inputs
        if eager:
            log_z, ctx.gradient = sequences.gradient(np.ones(len(labels)), labels)
        else:
            log_z = sequences.log_partition()
        score = np.empty(len(labels))
        kernels.score_labels(sequences.chains, labels, score)
        if score.min(initial=np.inf) == -np.inf:
            raise PotentiaError(
                f"tags of sequence {int(np.argmin(score))} have a forbidden (-inf) emission or transition."
            )
        value = torch.from_numpy(score - log_z)
        return value.to(torch.promote_types(emissions.dtype, pair.dtype)).to(emissions.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_value: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient times what all sequences have in common, or computed with the weight of each."""
        inputs, weight = ctx.saved_tensors, -to_numpy(d_value)
        common = float(weight[0]) if len(weight) else 0.0
        if ctx.gradient is not None and (weight == common).all():
            gradient = tuple(d * common for d in ctx.gradient)
        else:
            gradient = ctx.sequences.gradient(weight, ctx.labels)[1]
        return (None, None, None, *(tensor_like(d, t) for d, t in zip(gradient, inputs, strict=True)))
