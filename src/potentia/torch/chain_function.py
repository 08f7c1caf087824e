"""The log-likelihood of many chains as a function that autograd can differentiate once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from .._memory import borrow
from .._threads import map_items, thread_count
from .._types import Floats, InfeasibleError, Ints, PotentiaError
from ..kernels import chain_batch as kernels
from ..kernels.chain_labels import score_labels, subtract_labels
from .functions import tensor_like, to_numpy

#: Multiplications that a block of sequences should have, so that handing it to a thread pays.
_BLOCK_WORK = 500_000
#: Most blocks; partial sums over transitions are kept for each.
_MAX_BLOCKS = 16


class Sequences:
    """Padded emissions and transitions as the kernels want them.

    Blocks of sequences are shared out over threads; their number depends on shapes only, so that sums do not depend
    on the number of threads.

    Attributes:
        chains: arrays of the kernels; log Z of each sequence is `chains.value` after `sum_up`.
        shape: (batch, steps).
    """

    def __init__(
        self,
        emissions: torch.Tensor,
        start: torch.Tensor,
        pair: torch.Tensor,
        end: torch.Tensor,
        lengths: Ints,
        batch_first: bool,
    ) -> None:
        n_tags, batch = emissions.shape[2], len(lengths)
        steps = emissions.shape[1 if batch_first else 0]
        self.shape, self._threads = (batch, steps), thread_count(None)
        self._blocks = _cuts(batch, int(lengths.sum()) * n_tags**2)
        table = _table(pair, "transitions")
        top = float(table.max())
        top = top if top > -np.inf else 0.0
        low = float(np.min(table, where=table > -np.inf, initial=np.inf))
        self.chains = kernels.Chains(
            scores=_flat(emissions),
            per_sequence=(steps if batch_first else 1) * n_tags,
            per_step=(1 if batch_first else batch) * n_tags,
            length=lengths,
            start=_table(start, "start_transitions"),
            pair=table,
            end=_table(end, "end_transitions"),
            psi=np.exp(table - top),
            top=top,
            safe=low - top >= kernels.LOG_LOWEST,
            alpha=borrow((batch, steps, n_tags)),
            message=borrow((batch, steps, n_tags)),
            value=np.empty(batch),
            logs=np.empty(batch, dtype=np.bool_),
        )

    def sum_up(self) -> None:
        """log Z of every sequence."""
        map_items(lambda block: kernels.upward(self.chains, *block), self._blocks, self._threads)
        refuse_bad(self.chains.value)

    def gradient(self, weight: Floats, labels: Ints | None) -> tuple[Any, Floats, Floats, Floats]:
        """d/d(emissions, start, transitions, end) of sum_k weight_k (log Z_k - score of labels_k); after `sum_up`."""
        n_tags, n_blocks = self.chains.start.size, len(self._blocks)
        d_scores = np.empty_like(self.chains.scores)
        d_start, d_end = np.zeros((n_blocks, n_tags)), np.zeros((n_blocks, n_tags))
        d_pair = np.zeros((n_blocks, n_tags, n_tags))

        def work(number: int) -> None:
            outputs = (d_scores, d_start[number], d_pair[number], d_end[number], *self._blocks[number])
            kernels.downward(self.chains, weight, *outputs)
            if labels is not None:
                subtract_labels(self.chains, labels, weight, *outputs)

        map_items(work, range(n_blocks), self._threads)
        return d_scores, d_start.sum(axis=0), d_pair.sum(axis=0), d_end.sum(axis=0)


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


def _cuts(batch: int, work: int) -> list[tuple[int, int]]:
    n = max(min(batch, _MAX_BLOCKS, 1 + work // _BLOCK_WORK), 1)
    return [(batch * k // n, batch * (k + 1) // n) for k in range(n)]


def _flat(emissions: torch.Tensor) -> Any:
    """Emissions flat, float32 or float64; a view where possible."""
    given = emissions.detach().cpu()
    wide = given if given.dtype in (torch.float32, torch.float64) else given.float()
    return wide.contiguous().numpy().reshape(-1)


def _table(given: torch.Tensor, name: str) -> Floats:
    table = to_numpy(given)
    if not table.max() <= kernels.HIGHEST:  # nor NaN
        raise PotentiaError(f"{name} hold NaN, +inf or a score beyond 1e100; only -inf may be infinite.")
    return table


class LogLikelihood(torch.autograd.Function):
    """Score of the labels minus log Z, (batch,)."""

    @staticmethod
    def forward(
        ctx: Any,
        emissions: torch.Tensor,
        start: torch.Tensor,
        pair: torch.Tensor,
        end: torch.Tensor,
        labels: Ints,
        lengths: Ints,
        batch_first: bool,
    ) -> torch.Tensor:
        """The upward pass; what the downward pass reads is kept."""
        ctx.sequences, ctx.labels = Sequences(emissions, start, pair, end, lengths, batch_first), labels
        # the kernels' arrays may share memory with these: torch then reports changes in place
        ctx.save_for_backward(emissions, start, pair, end)
        ctx.sequences.sum_up()
        score = np.empty(len(lengths))
        score_labels(ctx.sequences.chains, labels, score)
        if score.min(initial=np.inf) == -np.inf:
            raise PotentiaError(
                f"tags of sequence {int(np.argmin(score))} have a forbidden (-inf) emission or transition."
            )
        value = torch.from_numpy(score - ctx.sequences.chains.value)
        return value.to(torch.promote_types(emissions.dtype, pair.dtype)).to(emissions.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_value: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The downward pass, which may be repeated."""
        given = ctx.saved_tensors
        found = ctx.sequences.gradient(-to_numpy(d_value), ctx.labels)
        return (*(tensor_like(d, t) for d, t in zip(found, given, strict=True)), None, None, None)
