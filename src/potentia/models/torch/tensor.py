"""Message passing and mean field on variables and pairs as PyTorch operations, for any device.

Tensors have states first: scores and marginals of variables are (L, B, n), messages (L, B, slots) and tables of pairs
(L, L, B or 1, m), so that every operation runs over long contiguous rows. B graphs of one structure are one batch.
Variables of a colour are updated together. A slot is one end of a pair; the slots of a group are (degree, variables),
padded with slots of weight zero. An iteration is a handful of operations per colour, with no loop over pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...base.types import Floats, Ints
from ...graph.structure import Graph
from ...inference.messages import MessagePassingMethod
from .indices import Indices, damped

#: Groups are divided by degree where padding makes more than this many times the slots.
_PADDING = 1.5
#: Scores of pairs below this count as forbidden in mean field, where zero times -inf must be zero.
_FORBIDDEN = -1e30

#: Scores of labels from fully connected terms, of marginals (L, B, n).
Field = Callable[[Tensor], Tensor]


class PairMarginals(NamedTuple):
    """Marginals of variables (L, B, n) and of pairs (L, L, B, m), and the value of every graph (B,), if asked for."""

    variables: Tensor
    pairs: Tensor | None
    value: Tensor | None


class Group(Indices):
    """Variables (V,) that are updated together.

    Buffers: `variables`; `table`, of every slot its table in [tables, transposed tables, one of zeros]; `opposite`,
    where the message of the pair's other end lies in all groups; `other`, likewise the variable of the other end;
    `pair` (degree, V), the counting number of every slot over C of its variable, zero in padding; `scale`, the counting
    number of every slot; `total` and `single`, C and c of every variable.
    """

    def __init__(self, shape: tuple[int, int], indices: dict[str, Ints], numbers: dict[str, Floats]) -> None:
        super().__init__(indices, numbers)
        self.shape = shape


class PairPlan(Indices):
    """Where messages of a graph of variables and pairs lie: groups by colour, and both `ends` of every pair.

    Args:
        graph: a graph without larger regions.
        counting: numbers of pairs (m,) and of variables (n,); None for mean field, which has none.
    """

    groups: Any

    def __init__(self, graph: Graph, counting: tuple[Floats, Floats] | None = None) -> None:
        pairs, n = np.asarray(graph.pairs), graph.n_variables
        pair, single = counting or (np.ones(len(pairs)), np.ones(n))
        groups = _groups(graph, pairs)
        order = np.argsort(np.concatenate(groups))
        super().__init__({"order": order, "ends": _ends(groups, pairs, n)}, {"counting": pair})
        self.groups = torch.nn.ModuleList(_build_groups(groups, pairs, n, pair, single))


def _groups(graph: Graph, pairs: Ints) -> list[Ints]:
    """Variables by colour; a colour with very unequal degrees is divided, which changes no result."""
    variables, ptr = graph.variable_groups("colours")
    colours = [variables[a:b] for a, b in pairwise(ptr.tolist())]
    degree = np.bincount(pairs.ravel(), minlength=graph.n_variables)
    if sum(len(c) * degree[c].max(initial=0) for c in colours) <= _PADDING * 2 * len(pairs):
        return colours
    size = np.ceil(np.log2(np.maximum(degree, 1))).astype(np.int64)
    return [c[size[c] == k] for c in colours for k in np.unique(size[c])]


def _ends(groups: list[Ints], pairs: Ints, n: int) -> Ints:
    """Where the messages of both ends of every pair lie among those of all groups, (2, m)."""
    place = np.zeros(2 * len(pairs), dtype=np.int64)
    first = 0
    for slots in _slots(groups, pairs, n):
        real = slots.ravel() >= 0
        place[slots.ravel()[real]] = first + np.flatnonzero(real)
        first += slots.size
    return place.reshape(-1, 2).T.copy()


def _slots(groups: list[Ints], pairs: Ints, n: int) -> list[Ints]:
    """Ends 2 e + side around the variables of every group, (degree, V), -1 in padding."""
    ends = pairs.ravel()
    order = np.argsort(ends, kind="stable")
    degree = np.bincount(ends, minlength=n)
    first = np.cumsum(degree) - degree
    every = []
    for group in groups:
        row = np.arange(int(degree[group].max(initial=0)))[:, None]
        at = np.where(row < degree[group], first[group] + row, -1)
        every.append(np.where(at >= 0, np.append(order, -1)[at], -1))
    return every


def _build_groups(groups: list[Ints], pairs: Ints, n: int, pair: Floats, single: Floats) -> list[Group]:
    """Index tensors of each colour: its variables, the pairs around them, and where messages are."""
    m, total = len(pairs), single + np.bincount(pairs.ravel(), np.repeat(pair, 2), minlength=n)
    group_of, within = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    for number, group in enumerate(groups):
        group_of[group], within[group] = number, np.arange(len(group))
    slots = _slots(groups, pairs, n)
    variable_ptr = np.cumsum([0, *map(len, groups)])
    place = _ends(groups, pairs, n).T.ravel()
    made = []
    for group, ends in zip(groups, slots, strict=True):
        flat = ends.ravel()
        real, pair_of, side = flat >= 0, flat // 2, flat % 2
        other = pairs.ravel()[flat[real] ^ 1]
        table, opposite, neighbour = (np.zeros(len(flat), dtype=np.int64) for _ in range(3))
        table[:] = 2 * m
        table[real] = pair_of[real] + m * side[real]
        opposite[real], neighbour[real] = place[flat[real] ^ 1], variable_ptr[group_of[other]] + within[other]
        count = np.where(real, pair[pair_of], 0.0).reshape(ends.shape)
        indices = {"variables": group, "table": table, "opposite": opposite, "other": neighbour}
        numbers = {"pair": count / total[group], "scale": np.where(real, pair[pair_of], 1.0), "total": total[group]}
        made.append(Group(ends.shape, indices, {**numbers, "single": single[group]}))
    return made


class _Message(torch.autograd.Function):
    """log sum over b of exp(table(a, b) + lam(b)); keeps neither the sum nor its exponentials for the reverse."""

    @staticmethod
    def forward(table: Tensor, lam: Tensor) -> Tensor:
        """log of the sum over the sender's states of exp(table + lam)."""
        return _log_sum(table, lam)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keep what the derivative needs."""
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor]:
        """d table(a, b) = d m(a) p(b | a), and its sum over a for lam."""
        table, lam, out = ctx.saved_tensors
        # where nothing is allowed p is zero
        p = torch.exp(table + lam - torch.where(out == -torch.inf, torch.inf, out).unsqueeze(1))
        d_table = p * d_out.unsqueeze(1)
        d_lam = d_table.sum(0)
        return d_table.sum(2, keepdim=True) if table.shape[2] < d_table.shape[2] else d_table, d_lam


def _log_sum(table: Tensor, lam: Tensor) -> Tensor:
    """log of the sum over the sender's states of exp(table + lam); two states take a cheaper operation."""
    if table.shape[1] == 2:
        return torch.logaddexp(table[:, 0] + lam[0], table[:, 1] + lam[1])
    return torch.logsumexp(table + lam, 1)


def pair_messages(table: Tensor, lam: Tensor) -> Tensor:
    """Messages (L, B, S) from tables (L, L, B or 1, S) and the other ends' (L, B, S), in units of counting numbers."""
    out: Tensor = _Message.apply(table, lam)
    return out


def potts_messages(weight: Tensor, lam: Tensor) -> Tensor:
    """Messages of scores -weight [a != b], (B or 1, S), in O(L): exp(lam(a)) plus the others times exp(-weight)."""
    peak = lam.detach().amax(0, keepdim=True)
    v = torch.exp(lam - peak)
    apart = 1.0 - torch.eye(len(v), dtype=v.dtype, device=v.device)
    others = torch.tensordot(apart, v, 1)  # sums without a difference, which would cancel
    tiny = torch.finfo(v.dtype).tiny
    return torch.logaddexp(lam, torch.log(others.clamp_min(tiny)) + peak - weight)


class TensorScores(NamedTuple):
    """Scores of variables (L, B, n), -inf where a variable has fewer states, and of pairs.

    pairs: tables (L, L, B or 1, m), or of weights alone (B or 1, m) for Potts scores.
    """

    variables: Tensor
    pairs: Tensor

    @property
    def potts(self) -> bool:
        """Whether pairs are given by weights."""
        return self.pairs.dim() == 2


class _Ready(NamedTuple):
    """What the updates of a group read: scores of variables over C, tables of slots over their counting numbers."""

    node: Tensor
    table: Tensor
    weight: Tensor


class Schedule(NamedTuple):
    """How iterations run.

    iterations: every message once each. tol: stop when no marginal of a variable changed by more; 0 runs all
    iterations, as compiled programs do. memory: bytes that iterations may leave for their reverse; beyond them,
    segments are run again. uniform: whether messages start uniform rather than at zero. damping: weight of old
    messages.
    """

    iterations: int
    tol: float
    memory: int
    uniform: bool = False
    damping: float = 0.0

    @classmethod
    def of(cls, inference: Any, memory: int) -> Schedule:
        """Schedule as a method's options ask for them."""
        options = int(inference.iterations), float(inference.tol), memory
        if isinstance(inference, MessagePassingMethod):
            return cls(*options, inference.uniform_start, float(inference.damping or 0.0))
        return cls(*options)


def message_passing(
    plan: PairPlan, scores: TensorScores, run: Schedule, pairs: bool = True, value: bool = False
) -> PairMarginals:
    """Coloured message passing with the counting numbers of the plan; with marginals of pairs and the value, if asked
    for.
    """
    ready = _prepare(plan, scores)
    n = len(ready)
    lam = [_first_messages(group, part, run.uniform) for group, part in zip(plan.groups, ready, strict=True)]

    def some(count: int, *state: Tensor) -> tuple[Tensor, ...]:
        """Messages, then the log-beliefs that they were made from, after `count` iterations, colour by colour."""
        lam, beliefs = list(state[:n]), list(state[n:])
        for _ in range(count):
            for k, group in enumerate(plan.groups):
                lam[k], beliefs[k] = _update(group, ready[k], lam, k, run.damping)
        return *lam, *beliefs

    def marginals(*state: Tensor) -> list[Tensor]:
        """What is compared between iterations."""
        return [torch.softmax(belief.detach(), 0) for belief in state[n:]]

    lam = list(settled(some, [*lam, *(part.node for part in ready)], run, marginals))[:n]
    source = torch.cat(lam, -1)
    beliefs = [_heard(group, part, source)[1] for group, part in zip(plan.groups, ready, strict=True)]
    variables = torch.cat([torch.softmax(b, 0) for b in beliefs], -1).index_select(-1, plan.order)
    joint = _joint(plan, scores, lam) if pairs or value else None
    total = None if not value or joint is None else _value(plan, scores, lam, joint)
    if not pairs or joint is None:
        return PairMarginals(variables, None, total)
    return PairMarginals(variables, torch.softmax(joint.flatten(0, 1), 0).reshape(joint.shape), total)


def _prepare(plan: PairPlan, scores: TensorScores) -> list[_Ready]:
    """Scores of each colour's variables and pairs, divided by counting numbers."""
    dtype, node = scores.variables.dtype, scores.variables
    if scores.potts:
        every = torch.cat([scores.pairs, scores.pairs, scores.pairs.new_zeros(scores.pairs.shape[0], 1)], -1)
    else:
        empty = scores.pairs.new_zeros(*scores.pairs.shape[:3], 1)
        every = torch.cat([scores.pairs, scores.pairs.transpose(0, 1), empty], -1)
    return [
        _Ready(
            node.index_select(-1, group.variables) / group.total.to(dtype),
            every.index_select(-1, group.table) / group.scale.to(dtype),
            group.pair.to(dtype),
        )
        for group in plan.groups
    ]


def _first_messages(group: Group, ready: _Ready, uniform: bool) -> Tensor:
    """The messages that iterations begin with: zero, or the senders' scores."""
    node = ready.node if uniform else torch.where(ready.node == -torch.inf, -torch.inf, 0.0).to(ready.node.dtype)
    shape = (*node.shape[:2], group.shape[0] * group.shape[1])
    return node.unsqueeze(2).expand(-1, -1, *group.shape).reshape(shape)


def _heard(group: Group, ready: _Ready, source: Tensor) -> tuple[Tensor, Tensor]:
    """Messages to the variables of a group, (L, B, degree, V), and their log-beliefs, (L, B, V)."""
    table, lam = ready.table, source.index_select(-1, group.opposite)
    log_m = potts_messages(table, lam) if table.dim() == 2 else pair_messages(table, lam)
    log_m = log_m.reshape(*log_m.shape[:2], *group.shape)
    return log_m, ready.node + (ready.weight * log_m).sum(2)


def _update(group: Group, ready: _Ready, lam: list[Tensor], number: int, damping: float) -> tuple[Tensor, Tensor]:
    """New messages of a group, and its log-beliefs."""
    log_m, belief = _heard(group, ready, torch.cat(lam, -1))
    if group.shape[0] == 0:
        return lam[number], belief
    wide = belief.unsqueeze(2)
    # a state that one pair forbids is dead for all others
    new = torch.where(wide == -torch.inf, -torch.inf, wide - log_m)
    # shifts change nothing, but the rounding of their cotangents would grow
    new = (new - new.amax(0, keepdim=True)).flatten(2)
    return damped(new, lam[number], damping), belief


def in_segments(some: Callable[..., tuple[Tensor, ...]], state: list[Tensor], run: Schedule) -> tuple[Tensor, ...]:
    """All iterations; if their reverse needs more than `memory`, in segments that are run again backwards."""
    iterations = run.iterations
    # an iteration leaves about six tensors of the size of its messages
    size = 6 * sum(t.numel() * t.element_size() for t in state)
    if torch.compiler.is_compiling() or iterations * size <= run.memory or not torch.is_grad_enabled():
        return some(iterations, *state)
    every, done, now = int(np.ceil(np.sqrt(iterations))), 0, tuple(state)
    while done < iterations:
        now = checkpoint(some, min(every, iterations - done), *now, use_reentrant=False)
        done += every
    return now


def settled(
    some: Callable[..., tuple[Tensor, ...]],
    first: list[Tensor],
    run: Schedule,
    read: Callable[..., Sequence[Tensor]] = lambda *state: state,
) -> tuple[Tensor, ...]:
    """All iterations, or with a tolerance one by one until nothing of what `read` gives changes by as much."""
    if run.tol <= 0.0 or torch.compiler.is_compiling():
        return in_segments(some, first, run)
    state: tuple[Tensor, ...] = tuple(first)
    before: Sequence[Tensor] = ()
    for _ in range(run.iterations):
        state = some(1, *state)
        now = read(*state)
        pairs = zip(now, before, strict=bool(before))
        if before and all(float((a - b).detach().abs().max()) < run.tol for a, b in pairs if a.numel()):
            break
        before = now
    return state


def pair_tables(scores: TensorScores) -> Tensor:
    """Tables of pairs, written out from weights."""
    if not scores.potts:
        return scores.pairs
    states = len(scores.variables)
    apart = 1.0 - torch.eye(states, dtype=scores.pairs.dtype, device=scores.pairs.device)
    return -apart[:, :, None, None] * scores.pairs


def _joint(plan: PairPlan, scores: TensorScores, lam: list[Tensor]) -> Tensor:
    """Log-beliefs of pairs, (L, L, B, m), in units of counting numbers."""
    every = torch.cat(lam, -1)
    first, second = (every.index_select(-1, plan.ends[side]) for side in range(2))
    scaled = pair_tables(scores) / plan.counting.to(every.dtype)
    return scaled + first.unsqueeze(1) + second.unsqueeze(0)


def _masked(belief: Tensor, dead: Tensor) -> Tensor:
    """-inf where a state is ruled out."""
    return torch.where(dead, -torch.inf, belief)


def _value(plan: PairPlan, scores: TensorScores, lam: list[Tensor], joint: Tensor) -> Tensor:
    """sum of c log sum exp(b / c) over pairs and variables; where c is zero the maximum of b."""
    dtype = joint.dtype
    value = (plan.counting.to(dtype) * torch.logsumexp(joint.flatten(0, 1), 0)).sum(-1)
    for group, messages in zip(plan.groups, lam, strict=True):
        node = scores.variables.index_select(-1, group.variables)
        total, single = group.total.to(dtype), group.single.to(dtype)
        wide = messages.reshape(*node.shape[:2], *group.shape)
        silent = group.pair.to(dtype) == 0  # padding
        dead = (node == -torch.inf) | ((wide == -torch.inf) & ~silent).any(2)
        sent = torch.where((wide == -torch.inf) | silent, 0.0, group.pair.to(dtype) * total * wide).sum(2)
        belief = torch.where(dead, 0.0, node) - sent
        smooth = single * torch.logsumexp(_masked(belief / torch.where(single == 0, 1.0, single), dead), 0)
        value = value + torch.where(single == 0, _masked(belief, dead).amax(0), smooth).sum(-1)
    return value


def mean_field(
    plan: PairPlan,
    scores: TensorScores,
    run: Schedule,
    fields: Field | None = None,
    pairs: bool = True,
    value: bool = False,
) -> PairMarginals:
    """Coloured coordinate ascent from uniform marginals; arguments as those of `message_passing`.

    With `fields` every iteration begins with the fully connected terms' scores at the current marginals, and the first
    marginals are the softmax of single scores.
    """
    node = scores.variables
    ready = [
        _Ready(part.node * group.total.to(node.dtype), part.table * group.scale.to(node.dtype), part.weight)
        for group, part in zip(plan.groups, _prepare(plan, scores), strict=True)
    ]
    ready = [part._replace(table=part.table.clamp_min(_FORBIDDEN)) for part in ready]
    allowed = (node > -torch.inf).to(node.dtype)
    start = allowed / allowed.sum(0, keepdim=True) if fields is None else torch.softmax(node, 0)
    q = [start.index_select(-1, group.variables) for group in plan.groups]

    def some(count: int, *q: Tensor) -> tuple[Tensor, ...]:
        """`count` iterations, colour by colour."""
        state = list(q)
        for _ in range(count):
            extra = None if fields is None else fields(torch.cat(state, -1).index_select(-1, plan.order))
            for number, group in enumerate(plan.groups):
                own = 0.0 if extra is None else extra.index_select(-1, group.variables)
                state[number] = torch.softmax(ready[number].node + own + _expected(group, ready[number], state), 0)
        return tuple(state)

    q = list(settled(some, q, run))
    variables = torch.cat(q, -1).index_select(-1, plan.order)
    product = _products(plan, variables) if pairs or value else None
    total = _free_energy(scores, variables, product, fields) if value and product is not None else None
    return PairMarginals(variables, product if pairs else None, total)


def _expected(group: Group, ready: _Ready, q: list[Tensor]) -> Tensor | float:
    """Expected scores of a group's labels under the marginals of their neighbours, (L, B, V)."""
    if group.shape[0] == 0:
        return 0.0
    near, table = torch.cat(q, -1).index_select(-1, group.other), ready.table
    sums = table * (near - near.sum(0, keepdim=True)) if table.dim() == 2 else (table * near).sum(1)
    real = (ready.weight != 0).to(near.dtype)
    return (sums.reshape(*sums.shape[:2], *group.shape) * real).sum(2)


def _products(plan: PairPlan, variables: Tensor) -> Tensor:
    """Products of the marginals of both ends of every pair, (L, L, B, m)."""
    # a slot's variable is its column
    variable = torch.cat([group.variables.repeat(group.shape[0]) for group in plan.groups])
    one, other = (variables.index_select(-1, variable.index_select(0, plan.ends[side])) for side in range(2))
    return one.unsqueeze(1) * other.unsqueeze(0)


def _free_energy(scores: TensorScores, q: Tensor, product: Tensor, fields: Field | None) -> Tensor:
    """E[theta] + H(q) of every graph, (B,)."""
    node = torch.where(q > 0, scores.variables, 0.0)
    value = (q * node - torch.special.xlogy(q, q)).sum((0, 2))
    table = torch.where(product > 0, pair_tables(scores), 0.0)
    value = value + (product * table).sum((0, 1, 3))
    return value if fields is None else value + 0.5 * (q * fields(q)).sum((0, 2))
