"""Segments of chains (semi-Markov): log-likelihoods, marginals and the best segmentation, in either backend."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...base.types import Floats
from ...kernels import segments as kernels
from . import tensor_chain
from .layer import tensor_like, to_numpy
from .tensor_chain import Chains


class TaggedSegment(NamedTuple):
    """Tokens start .. stop - 1 with one tag."""

    start: int
    stop: int
    tag: int


class _SegmentSum(torch.autograd.Function):
    """log Z over all segmentations, (B,), of whole segments' scores (B, T, D, L)."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, start: Tensor, pair: Tensor, end: Tensor, mask: Tensor) -> Tensor:
        """The kernel's sums; the marginals are kept for the reverse."""
        value, p, joint = _sums(Chains(scores, start, pair, end, mask), any(ctx.needs_input_grad))
        ctx.marginals = p, joint
        ctx.save_for_backward(scores, start, pair, end, mask)
        return torch.from_numpy(value).to(scores.dtype).to(scores.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_value: Tensor) -> tuple[Tensor | None, ...]:
        """Marginals times the weight of each sequence."""
        scores, start, pair, end, mask = ctx.saved_tensors
        p, joint = ctx.marginals
        weight = to_numpy(d_value)
        own = p * weight[:, None, None, None]
        last = mask.sum(1).cpu().numpy() - 1
        ends = np.zeros((len(own), end.shape[0]))
        for d in range(p.shape[2]):  # segments that hold the last token end with it
            rows = np.flatnonzero(last >= d)
            ends[rows] += own[rows, last[rows] - d, d]
        d_pair = np.tensordot(weight, joint.sum(axis=1), 1)
        slopes = (own, own[:, 0].sum(axis=(0, 1)), d_pair, ends.sum(axis=0))
        return (*(tensor_like(d, t) for d, t in zip(slopes, (scores, start, pair, end), strict=True)), None)


def _sums(c: Chains, marginals: bool) -> tuple[Floats, Floats, Floats]:
    """log Z, and marginals of segments and of pairs that follow each other, from the kernel."""
    scores, length = to_numpy(c.emissions), c.mask.sum(1).cpu().numpy()
    batch, steps, _, states = scores.shape
    p = np.zeros(scores.shape if marginals else (0, 0, 0, 0))
    joint = np.zeros((batch, max(steps - 1, 0), states, states) if marginals else (0, 0, 0, 0))
    value = np.empty(batch)
    tables = to_numpy(c.start), to_numpy(c.pair), to_numpy(c.end)
    kernels.sum_segments(scores, length, *tables, value, p, joint, marginals)
    return value, p, joint


def segment_log_partition(c: Chains, segments: Tensor, by_tensors: bool) -> Tensor:
    """log Z of every sequence."""
    if by_tensors:
        return tensor_chain.segment_log_partition(c, segments)
    scores = tensor_chain.segment_scores(c, segments)
    out: Tensor = _SegmentSum.apply(scores, c.start, c.pair, c.end, c.mask)
    return out


def segment_marginals(c: Chains, segments: Tensor, by_tensors: bool) -> Tensor:
    """p(a segment of d + 1 tokens begins at t with tag y), (B, T, D, L)."""
    if by_tensors:
        return tensor_chain.segment_marginals(c, segments)
    scores = tensor_chain.segment_scores(c, segments)
    return tensor_like(_sums(c._replace(emissions=scores), True)[1], scores)


def pair_marginals(c: Chains, by_tensors: bool) -> Tensor:
    """p(tags of tokens t and t + 1), (B, T - 1, L, L): segments of one token each."""
    if by_tensors:
        return tensor_chain.pair_marginals(c)
    joint = _sums(c._replace(emissions=c.emissions.unsqueeze(2)), True)[2]
    return torch.from_numpy(joint).to(c.emissions.dtype).to(c.emissions.device)


def best_segments(c: Chains, segments: Tensor, by_tensors: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Tags (B, T), -1 outside the mask, where segments begin (B, T), and the score (B,) of the best segmentation."""
    if by_tensors:
        return tensor_chain.best_segments(c, segments)
    scores = to_numpy(tensor_chain.segment_scores(c, segments))
    tags, begins = np.full(scores.shape[:2], -1), np.zeros(scores.shape[:2], dtype=np.bool_)
    value = np.empty(len(scores))
    tables = to_numpy(c.start), to_numpy(c.pair), to_numpy(c.end)
    kernels.best_segments(scores, c.mask.sum(1).cpu().numpy(), *tables, tags, begins, value)
    device = segments.device
    return (torch.from_numpy(tags).to(device), torch.from_numpy(begins).to(device), torch.from_numpy(value).to(device))
