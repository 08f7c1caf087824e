"""Linear chains as PyTorch operations, for any device: sums, marginals, the best labellings and segments.

Emissions are (B, T, L) of float32 or float64 with finite numbers or -inf; masks (B, T) are on in a prefix of every
sequence. Each time step is a few operations over all sequences; sums keep logarithms, so that no label is lost.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .indices import safe_log_sum

#: Entries of pair marginals that are computed at a time.
_CHUNK = 2**22


class Chains(NamedTuple):
    """A batch of chains: emissions (B, T, L), start (L,), transitions (L, L), end (L,) and mask (B, T)."""

    emissions: Tensor
    start: Tensor
    pair: Tensor
    end: Tensor
    mask: Tensor

    @property
    def last(self) -> Tensor:
        """The last token of every sequence, (B,)."""
        return self.mask.sum(1) - 1


class _Sums(NamedTuple):
    """log-sums over all labels before a token (and its own emission not included) and after it, both (T, B, L)."""

    before: Tensor
    after: Tensor
    log_z: Tensor


def _forward_sums(c: Chains) -> tuple[Tensor, Tensor]:
    """log-sums before every token, (T, B, L), and log Z."""
    steps = c.emissions.unbind(1)
    before = [c.start.expand_as(steps[0])]
    for t in range(1, len(steps)):
        before.append(torch.logsumexp((before[-1] + steps[t - 1]).unsqueeze(2) + c.pair, 1))
    sums = torch.stack(before)
    return sums, _log_z(c, sums)


def _log_z(c: Chains, before: Tensor) -> Tensor:
    """log Z from the forward sums at each sequence's last token."""
    rows = torch.arange(c.emissions.shape[0], device=before.device)
    return torch.logsumexp(before[c.last, rows] + c.emissions[rows, c.last] + c.end, 1)


def _both_sums(c: Chains) -> _Sums:
    """Sums from both sides in one loop: step s is token s from the left and token T - 1 - s from the right."""
    batch, n_steps, _ = c.emissions.shape
    emissions = torch.stack([c.emissions, c.emissions.flip(1)]).transpose(0, 2)  # (T, B, 2, L)
    pair = torch.stack([c.pair, c.pair.T])
    ends = torch.stack([c.start, c.end])
    # to the right of the last token of a sequence there is its end
    on = torch.stack([torch.ones_like(c.mask), torch.cat([c.mask[:, :1], c.mask[:, 1:].flip(1)], 1)])
    on = on.permute(2, 1, 0).unsqueeze(3)
    sums = [ends.expand(batch, 2, -1)]
    for step in range(1, n_steps):
        x = torch.logsumexp((sums[-1] + emissions[step - 1]).unsqueeze(3) + pair, 2)
        sums.append(torch.where(on[step], x, ends))
    every = torch.stack(sums)
    before, after = every[:, :, 0], every[:, :, 1].flip(0)
    return _Sums(before, after, _log_z(c, before))


def _node_marginals(c: Chains, sums: _Sums) -> Tensor:
    """(B, T, L), zero outside the mask."""
    log_p = sums.before + sums.after - sums.log_z[:, None]
    return torch.where(c.mask.unsqueeze(2), torch.exp(log_p.transpose(0, 1) + c.emissions), 0.0)


def _pair_marginals(c: Chains, sums: _Sums, first: int, last: int) -> Tensor:
    """(B, last - first, L, L) of tokens t and t + 1 for t = first .. last - 1, zero outside the mask."""
    left = sums.before[first:last].transpose(0, 1) + c.emissions[:, first:last]
    right = sums.after[first + 1 : last + 1].transpose(0, 1) + c.emissions[:, first + 1 : last + 1]
    # where a padded token follows, nothing may overflow
    left = torch.where(c.mask[:, first + 1 : last + 1].unsqueeze(2), left - sums.log_z[:, None, None], -torch.inf)
    return torch.exp(left.unsqueeze(3) + c.pair + right.unsqueeze(2))


class _LogPartition(torch.autograd.Function):
    """log Z of every sequence, (B,), whose gradient is the marginals."""

    @staticmethod
    def forward(ctx: Any, emissions: Tensor, start: Tensor, pair: Tensor, end: Tensor, mask: Tensor) -> Tensor:
        """log Z of each sequence; forward and backward sums are kept if a gradient is needed."""
        c = Chains(emissions, start, pair, end, mask)
        if not any(ctx.needs_input_grad):
            return _forward_sums(c)[1]
        sums = _both_sums(c)
        ctx.save_for_backward(*c, *sums)
        return sums.log_z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        """Marginals times the weight of each sequence."""
        saved = ctx.saved_tensors
        c, sums = Chains(*saved[:5]), _Sums(*saved[5:])
        mu = _node_marginals(c, sums) * weight[:, None, None]
        rows = torch.arange(mu.shape[0], device=mu.device)
        d_pair, every = torch.zeros_like(c.pair), max(1, _CHUNK // max(1, mu.shape[0] * c.pair.numel()))
        n_steps = mu.shape[1]
        for first in range(0, n_steps - 1, every):
            joint = _pair_marginals(c, sums, first, min(first + every, n_steps - 1))
            d_pair = d_pair + torch.tensordot(weight, joint.sum(1), 1)
        return mu, mu[:, 0].sum(0), d_pair, mu[rows, c.last].sum(0), None


def log_partition(c: Chains) -> Tensor:
    """log Z of every sequence, (B,); can be differentiated once."""
    out: Tensor = _LogPartition.apply(*c)
    return out


def path_score(c: Chains, tags: Tensor, begins: Tensor | None = None) -> Tensor:
    """Score of the tags (B, T) of every sequence, (B,); with `begins` only transitions to those tokens count."""
    rows = torch.arange(tags.shape[0], device=tags.device)
    label = torch.where(c.mask, tags, 0)
    single = c.emissions.gather(2, label.unsqueeze(2))[:, :, 0]
    pair = c.pair[label[:, :-1], label[:, 1:]]
    score = c.start[label[:, 0]] + c.end[label[rows, c.last]]
    score = score + torch.where(c.mask, single, 0.0).sum(1)
    return score + torch.where((c.mask if begins is None else begins)[:, 1:], pair, 0.0).sum(1)


def marginals(c: Chains) -> Tensor:
    """p(tag of each token), (B, T, L), zero outside the mask."""
    return _node_marginals(c, _both_sums(c))


def pair_marginals(c: Chains) -> Tensor:
    """p(tags of tokens t and t + 1), (B, T - 1, L, L), zero outside the mask."""
    return _pair_marginals(c, _both_sums(c), 0, c.emissions.shape[1] - 1)


def k_best_paths(c: Chains, k: int) -> tuple[Tensor, Tensor]:
    """The k best tags (B, k, T), -1 outside the mask, and their scores (B, k), -inf where there are no more."""
    batch, n_steps, states = c.emissions.shape
    # every label's k best histories, (B, k, L)
    none = torch.full((batch, k - 1, states), -torch.inf, dtype=c.emissions.dtype, device=c.emissions.device)
    best = torch.cat([(c.start + c.emissions[:, 0]).unsqueeze(1), none], 1)
    back = []
    here = torch.arange(k * states, device=best.device).reshape(1, k, states).expand(batch, -1, -1)
    for t in range(1, n_steps):
        every = (best.unsqueeze(3) + c.pair).flatten(1, 2)  # histories by rank, then label
        if k == 1:
            score, at = every.max(1, keepdim=True)
        else:
            score, at = every.topk(k, 1)
        on = c.mask[:, t, None, None]
        best = torch.where(on, score + c.emissions[:, t, None], best)
        back.append(torch.where(on, at, here))
    score, at = (best + c.end).flatten(1).topk(k, 1)
    path = [at % states]
    for t in range(n_steps - 2, -1, -1):
        at = back[t].flatten(1).gather(1, at)
        path.append(at % states)
    tags = torch.stack(path[::-1], 2)
    return torch.where(c.mask.unsqueeze(1), tags, -1), score


# -- segments


def segment_scores(c: Chains, segments: Tensor) -> Tensor:
    """Scores of whole segments that begin at a token, (B, T, D, L): their own and their tokens'; -inf past the end."""
    n_steps, longest = segments.shape[1:3]
    scores, running = [], torch.zeros_like(c.emissions)
    fits = c.mask
    for length in range(longest):
        shifted = torch.zeros_like(c.emissions)
        if length < n_steps:
            shifted = torch.cat([c.emissions[:, length:], shifted[:, :length]], 1)
            ended = torch.zeros_like(c.mask[:, :length])
            fits = torch.cat([c.mask[:, length:], ended], 1)
        else:
            fits = torch.zeros_like(c.mask)
        running = running + shifted
        scores.append(torch.where(fits.unsqueeze(2), running + segments[:, :, length], -torch.inf))
    return torch.stack(scores, 2)


def _segment_begins(c: Chains, scores: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """log-sums before segments that begin at every token, and of all up to those that end there."""
    n_steps, longest = scores.shape[1:3]
    begin, ended = [c.start.expand_as(scores[:, 0, 0])], []
    for t in range(n_steps):
        parts = [begin[t - d] + scores[:, t - d, d] for d in range(min(longest, t + 1))]
        ended.append(safe_log_sum(torch.stack(parts), 0))
        if t + 1 < n_steps:
            begin.append(safe_log_sum(ended[t].unsqueeze(2) + c.pair, 1))
    return begin, ended


def _segment_log_z(c: Chains, ended: list[Tensor]) -> Tensor:
    """log Z from sums over segmentations that end at each sequence's last token."""
    rows = torch.arange(c.mask.shape[0], device=c.mask.device)
    return safe_log_sum(torch.stack(ended)[c.last, rows] + c.end, 1)


def segment_log_partition(c: Chains, segments: Tensor) -> Tensor:
    """log Z over all segmentations and tags, (B,), by autograd's own derivatives."""
    return _segment_log_z(c, _segment_begins(c, segment_scores(c, segments))[1])


def segment_marginals(c: Chains, segments: Tensor) -> Tensor:
    """p(a segment of length d + 1 begins at t with tag y), (B, T, D, L)."""
    scores = segment_scores(c, segments)
    begin, ended = _segment_begins(c, scores)
    log_z = _segment_log_z(c, ended)
    n_steps, longest = scores.shape[1:3]
    none = torch.full_like(begin[0], -torch.inf)
    end, whole = [none] * n_steps, [none] * n_steps
    for t in range(n_steps - 1, -1, -1):
        on = none if t + 1 == n_steps else safe_log_sum(whole[t + 1].unsqueeze(1) + c.pair, 2)
        end[t] = torch.where((c.last == t).unsqueeze(1), c.end, on)
        parts = [scores[:, t, d] + end[t + d] for d in range(min(longest, n_steps - t))]
        whole[t] = safe_log_sum(torch.stack(parts), 0)
    after = torch.stack(end, 1)
    pads = [torch.cat([after[:, d:], after[:, :d]], 1) if d < n_steps else after for d in range(longest)]
    log_p = torch.stack(begin, 1).unsqueeze(2) + scores + torch.stack(pads, 2) - log_z[:, None, None, None]
    return torch.where(scores > -torch.inf, torch.exp(log_p), 0.0)


def token_marginals(segments: Tensor) -> Tensor:
    """p(tag of each token) from `segment_marginals`, (B, T, L): the sum over segments that cover it."""
    n_steps, longest = segments.shape[1:3]
    out = torch.zeros_like(segments[:, :, 0])
    for length in range(min(longest, n_steps)):
        for back in range(length + 1):
            part = segments[:, : n_steps - back, length]
            out = out + torch.cat([torch.zeros_like(out[:, :back]), part], 1)
    return out


def best_segments(c: Chains, segments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tags (B, T), -1 outside the mask, where segments begin (B, T), and the score (B,) of the best segmentation."""
    scores = segment_scores(c, segments)
    batch, n_steps, longest = scores.shape[:3]
    begin, came, ended, length = [c.start.expand_as(scores[:, 0, 0])], [], [], []
    for t in range(n_steps):
        parts = torch.stack([begin[t - d] + scores[:, t - d, d] for d in range(min(longest, t + 1))])
        best, at = parts.max(0)
        ended.append(best)
        length.append(at)
        if t + 1 < n_steps:
            best, at = (best.unsqueeze(2) + c.pair).max(1)
            begin.append(best)
            came.append(at)
    rows = torch.arange(batch, device=scores.device)
    score, tag = (torch.stack(ended)[c.last, rows] + c.end).max(1)
    # walk back over tokens: `left` tokens of the current segment are to come
    tags, begins = [], []
    left = torch.zeros_like(tag)
    for t in range(n_steps - 1, -1, -1):
        enters = c.last == t
        if t + 1 < n_steps:
            changes = (left < 0) & c.mask[:, t] & ~enters
            tag = torch.where(changes, came[t].gather(1, tag[:, None])[:, 0], tag)
            enters = enters | changes
        left = torch.where(enters, length[t].gather(1, tag[:, None])[:, 0], left)
        on = c.mask[:, t]
        tags.append(torch.where(on, tag, -1))
        begins.append((left == 0) & on)
        left = torch.where(on, left - 1, left)
    return torch.stack(tags[::-1], 1), torch.stack(begins[::-1], 1), score


def segmentation_score(c: Chains, segments: Tensor, tags: Tensor, begins: Tensor) -> Tensor:
    """Score of tags (B, T) whose segments begin where `begins` is on, (B,); -inf where one is too long."""
    n_steps, longest = segments.shape[1:3]
    begins = begins & c.mask
    position = torch.arange(n_steps, device=tags.device)
    # the token before the next beginning, or the last one
    far = torch.where(begins, position, n_steps).flip(1).cummin(1).values.flip(1)
    following = torch.cat([far[:, 1:], torch.full_like(far[:, :1], n_steps)], 1)
    size = torch.minimum(following, c.last.unsqueeze(1) + 1) - position
    label = torch.where(c.mask, tags, 0)
    flat = segments.flatten(2).gather(2, ((size - 1).clamp(0, longest - 1) * segments.shape[3] + label).unsqueeze(2))
    flat = torch.where(size.unsqueeze(2) <= longest, flat, -torch.inf)[:, :, 0]
    return torch.where(begins, flat, 0.0).sum(1) + path_score(c, tags, begins)
