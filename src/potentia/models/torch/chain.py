"""`LinearChain`: conditional random fields on chains, whose log-likelihood autograd can differentiate once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from ...base.resources import map_items, thread_count
from ...base.types import (
    Bools,
    Floats,
    InfeasibleError,
    Ints,
    PotentiaError,
    check_choice,
    check_count,
    check_type,
    texts_of,
)
from ...features.schemes import allowed_tags
from ...kernels import sequences as kernels
from ...kernels.lanes import make_lanes
from ..chain_crf import LabelPath
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
        self.chains = kernels.PaddedChains(
            scores=_flat(emissions),
            per_sequence=(steps if batch_first else 1) * n_tags,
            per_step=(1 if batch_first else batch) * n_tags,
            n_steps=steps,
            length=lengths,
            start=_table(start, "start_transitions"),
            end=_table(end, "end_transitions"),
            lanes=make_lanes(_table(pair, "transitions")),
        )

    def log_partition(self) -> Floats:
        """log Z of every sequence."""
        return self._sum_up(np.ones(self.shape[0]), np.empty_like(self.chains.scores[:0]), None)[0]

    def gradient(self, weight: Floats, labels: Ints | None) -> tuple[Floats, Gradient]:
        """log Z, and d/d(emissions, start, transitions, end) of sum_k weight_k (log Z_k - score of labels_k)."""
        return self._sum_up(weight, np.empty_like(self.chains.scores), labels)

    def _sum_up(self, weight: Floats, d_scores: Any, labels: Ints | None) -> tuple[Floats, Gradient]:
        n_tags, n_blocks, value = self.chains.start.size, len(self._blocks), np.empty(self.shape[0])
        d_start, d_end = np.zeros((n_blocks, n_tags)), np.zeros((n_blocks, n_tags))
        d_pair = np.zeros((n_blocks, n_tags, n_tags))

        def work(number: int) -> None:
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


def _cuts(batch: int, work: int) -> list[tuple[int, int]]:
    n = max(min(batch, _MAX_BLOCKS, 1 + work // _BLOCK_WORK), 1)
    return [(batch * k // n, batch * (k + 1) // n) for k in range(n)]


def _flat(emissions: torch.Tensor) -> Any:
    """Emissions flat, float32 or float64; a view where possible."""
    scores = emissions.detach().cpu()
    if scores.dtype not in (torch.float32, torch.float64):
        scores = scores.float()
    return scores.contiguous().numpy().reshape(-1)


def _table(scores: torch.Tensor, name: str) -> Floats:
    table = to_numpy(scores)
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
        eager: bool,
    ) -> torch.Tensor:
        """The likelihoods and, if `eager`, at once the gradient of their sum, while a sequence is in the cache."""
        ctx.sequences, ctx.labels = PaddedEmissions(emissions, start, pair, end, lengths, batch_first), labels
        # the kernels' arrays may share memory with these: torch then reports changes in place
        ctx.save_for_backward(emissions, start, pair, end)
        ctx.gradient = None
        if eager:
            log_z, ctx.gradient = ctx.sequences.gradient(np.ones(len(lengths)), labels)
        else:
            log_z = ctx.sequences.log_partition()
        score = np.empty(len(lengths))
        kernels.score_labels(ctx.sequences.chains, labels, score)
        if score.min(initial=np.inf) == -np.inf:
            raise PotentiaError(
                f"tags of sequence {int(np.argmin(score))} have a forbidden (-inf) emission or transition."
            )
        value = torch.from_numpy(score - log_z)
        return value.to(torch.promote_types(emissions.dtype, pair.dtype)).to(emissions.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_value: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradient times what all sequences have in common, or computed with the weight of each."""
        inputs, weight = ctx.saved_tensors, -to_numpy(d_value)
        common = float(weight[0]) if len(weight) else 0.0
        if ctx.gradient is not None and (weight == common).all():
            gradient = tuple(d * common for d in ctx.gradient)
        else:
            gradient = ctx.sequences.gradient(weight, ctx.labels)[1]
        return (*(tensor_like(d, t) for d, t in zip(gradient, inputs, strict=True)), None, None, None, None)


_REDUCTIONS = ("none", "sum", "mean", "token_mean")


class LinearChain(torch.nn.Module):
    """A linear-chain conditional random field: a drop-in for pytorch-crf's `CRF` whose loops over steps are compiled.

    p(y | x) is proportional to exp of start(y_1) + sum_t emission_t(y_t) + sum_t transition(y_t, y_{t+1}) + end(y_T).
    Constructor, parameters, arguments and results are those of `torchcrf.CRF` 0.7.2, and its `state_dict` can be
    loaded. Masks must be on in a prefix of each sequence (there, others give wrong likelihoods).

    Args:
        num_tags: number of tags.
        batch_first: whether emissions are (batch, steps, tags) rather than (steps, batch, tags).
        tags: names of the tags, for `scheme`.
        scheme: "BIO", "BIOES" or "IOB1": tag sequences that the scheme does not know get probability zero.
    """

    def __init__(
        self, num_tags: int, batch_first: bool = False, *, tags: Sequence[str] | None = None, scheme: str | None = None
    ) -> None:
        check_count("num_tags", num_tags, 1)
        if (tags is None) != (scheme is None):
            raise PotentiaError("tags and scheme belong together: give both or neither.")
        tags = None if tags is None else texts_of("tags", tags)
        if tags is not None and len(tags) != num_tags:
            raise PotentiaError(f"tags holds {len(tags)} names for num_tags={num_tags}.")
        super().__init__()
        self.num_tags, self.batch_first, self.scheme = num_tags, batch_first, scheme
        self.start_transitions = torch.nn.Parameter(torch.empty(num_tags))
        self.end_transitions = torch.nn.Parameter(torch.empty(num_tags))
        self.transitions = torch.nn.Parameter(torch.empty(num_tags, num_tags))
        allowed = None if tags is None or scheme is None else allowed_tags(tags, scheme)
        for name in ("start", "transitions", "end"):
            mask = None if allowed is None else torch.from_numpy(~getattr(allowed, name))
            # not saved: pytorch-crf's files have no such entry
            self.register_buffer(f"_forbidden_{name}", mask, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly from [-0.1, 0.1]."""
        for parameter in self.parameters():
            torch.nn.init.uniform_(parameter, -0.1, 0.1)

    def extra_repr(self) -> str:
        """The options."""
        return f"num_tags={self.num_tags}" + (f", scheme={self.scheme!r}" if self.scheme else "")

    @torch.compiler.disable
    def forward(
        self, emissions: torch.Tensor, tags: torch.Tensor, mask: torch.Tensor | None = None, reduction: str = "sum"
    ) -> torch.Tensor:
        """log p(tags | emissions): of each sequence ("none"), "sum", "mean" over sequences, or "token_mean".

        Args:
            emissions: scores (steps, batch, tags), or (batch, steps, tags) with `batch_first`.
            tags: (steps, batch) or (batch, steps); what they are outside the mask does not matter.
            mask: of the shape of `tags`, on at each sequence's tokens; None for all.
        """
        check_choice("reduction", reduction, _REDUCTIONS)
        on = self._mask(emissions, mask)
        labels = self._labels(emissions, tags, on)
        lengths = on.sum(axis=1)
        # sequences that are not reduced may be weighted differently
        eager = reduction != "none" and torch.is_grad_enabled()
        value: torch.Tensor = LogLikelihood.apply(
            emissions, *self._transitions(), labels, lengths, self.batch_first, eager
        )
        if reduction == "none":
            return value
        if reduction == "mean":
            return value.mean()
        return value.sum() if reduction == "sum" else value.sum() / int(lengths.sum())

    @torch.compiler.disable
    def decode(self, emissions: torch.Tensor, mask: torch.Tensor | None = None) -> list[list[int]]:
        """The most likely tags of each sequence [Viterbi], as lists of the sequences' lengths."""
        sequences = self._sequences(emissions, mask)
        labels, score = np.empty(sequences.shape, dtype=np.int64), np.empty(sequences.shape[0])
        kernels.best_labels(sequences.chains, labels, score)
        refuse_bad(score)
        return [row[:n].tolist() for row, n in zip(labels, sequences.chains.length.tolist(), strict=True)]

    @torch.compiler.disable
    def k_best(self, emissions: torch.Tensor, k: int, mask: torch.Tensor | None = None) -> list[list[LabelPath]]:
        """The k most likely labellings of each sequence, best first; fewer where a sequence has fewer."""
        check_count("k", k, 1)
        sequences = self._sequences(emissions, mask)
        log_z, (batch, steps) = sequences.log_partition(), sequences.shape
        labels, score = np.empty((batch, k, steps), dtype=np.int64), np.empty((batch, k))
        kernels.k_best_labels(sequences.chains, labels, score)
        log_p, lengths = (score - log_z[:, None]).tolist(), sequences.chains.length.tolist()
        return [
            [LabelPath(path[:n].tolist(), p) for path, p in zip(labels[i], log_p[i], strict=True) if p > -np.inf]
            for i, n in enumerate(lengths)
        ]

    @torch.compiler.disable
    def marginals(self, emissions: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """p(tag of each token | emissions) in the layout of emissions, zero outside the mask; without gradient.

        `CRFLayer` with `pt.Exact()` gives marginals of chains that can be differentiated.
        """
        sequences = self._sequences(emissions, mask)
        return tensor_like(sequences.gradient(np.ones(sequences.shape[0]), None)[1][0], emissions)

    def _sequences(self, emissions: torch.Tensor, mask: torch.Tensor | None) -> PaddedEmissions:
        lengths = self._mask(emissions, mask).sum(axis=1)
        start, pair, end = self._transitions()
        return PaddedEmissions(emissions, start, pair, end, lengths, self.batch_first)

    def _transitions(self) -> list[torch.Tensor]:
        """Scores of first tags, pairs and last tags, -inf where the scheme forbids."""
        scores = [self.start_transitions, self.transitions, self.end_transitions]
        if self.scheme is None:
            return scores
        forbidden = (self._forbidden_start, self._forbidden_transitions, self._forbidden_end)
        return [table.masked_fill(gone, -torch.inf) for table, gone in zip(scores, forbidden, strict=True)]

    def _mask(self, emissions: torch.Tensor, mask: torch.Tensor | None) -> Bools:
        """The mask as (batch, steps), checked along with the emissions."""
        check_type("emissions", emissions, torch.Tensor)
        if emissions.dim() != 3 or not emissions.is_floating_point():
            raise PotentiaError(
                f"emissions must have 3 dimensions of floating-point numbers, got shape {tuple(emissions.shape)} "
                f"of {emissions.dtype}."
            )
        if emissions.shape[2] != self.num_tags:
            raise PotentiaError(
                f"emissions has {emissions.shape[2]} scores per token; expected num_tags={self.num_tags}."
            )
        shape = tuple(emissions.shape[:2])
        if mask is None:
            on = np.ones(shape, dtype=bool)
        else:
            check_type("mask", mask, torch.Tensor)
            if mask.shape != shape:
                raise PotentiaError(f"mask has shape {tuple(mask.shape)}; expected {shape} as emissions.")
            on = mask.detach().cpu().numpy().astype(bool, copy=False)
        on = np.ascontiguousarray(on if self.batch_first else on.T)
        if on.shape[1] == 0 or not on[:, 0].all():
            raise PotentiaError("mask of the first timestep must all be on: a sequence has at least one token.")
        again = on[:, 1:] > on[:, :-1]
        if np.count_nonzero(again):
            bad = int(np.flatnonzero(again.any(axis=1))[0])
            raise PotentiaError(f"mask of sequence {bad} has a gap: tokens must come first and padding after them.")
        return on

    def _labels(self, emissions: torch.Tensor, tags: torch.Tensor, on: Bools) -> Ints:
        """Tags as (batch, steps)."""
        check_type("tags", tags, torch.Tensor)
        if tags.shape != emissions.shape[:2] or tags.is_floating_point() or tags.is_complex():
            raise PotentiaError(
                f"tags must be whole numbers of shape {tuple(emissions.shape[:2])}, got shape {tuple(tags.shape)} "
                f"of {tags.dtype}."
            )
        numbers = tags.detach().cpu().numpy()
        labels: Ints = np.ascontiguousarray(numbers if self.batch_first else numbers.T, dtype=np.int64)
        # negative numbers are large ones without a sign
        bad = on & (labels.view(np.uint64) >= self.num_tags)
        if np.count_nonzero(bad):
            k, t = np.argwhere(bad)[0].tolist()
            raise PotentiaError(
                f"tags hold {labels[k, t]} at token {t} of sequence {k}; expected 0..{self.num_tags - 1}."
            )
        return labels
