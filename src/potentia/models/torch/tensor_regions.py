"""Message passing and mean field on regions of any order as PyTorch operations, for any device.

Scores, messages and marginals are flat. What an update sums over is a rectangle of positions, padded with the position
of a constant at the end, so that sums do not depend on the order in which a device adds.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...base.types import Ints
from ...graph.regions import runs
from ...graph.structure import Graph
from ...inference.engine import Entropy, check_counting
from ...inference.region_engine import region_order
from .indices import Indices, damped, safe_log_sum
from .tensor import Schedule, settled

_FORBIDDEN = -1e30


class RegionMarginals(NamedTuple):
    """Marginals of all regions, flat in the order of `Graph.regions`, and the value, if asked for."""

    regions: Tensor
    value: Tensor | None


def rectangle(key: Ints, value: Ints, n: int, empty: int) -> Ints:
    """Values of every key 0..n - 1, (n, most), in their order; `empty` in padding."""
    count = np.bincount(key, minlength=n)
    order = np.argsort(key, kind="stable")
    column = np.arange(len(key)) - np.repeat(np.cumsum(count) - count, count)
    out = np.full((n, int(count.max(initial=0))), empty, dtype=np.int64)
    out[key[order], column] = value[order]
    return out


def region_starts(graph: Graph) -> Ints:
    """Where the table of every region begins in a flat array of all own tables, and its length."""
    return np.concatenate([[0], np.cumsum(graph.regions.size)])


class RegionPlan(torch.nn.Module):
    """Where scores and messages of regions lie, for one graph and entropy."""

    def __init__(self, graph: Graph, entropy: Entropy) -> None:
        super().__init__()
        regions, links = graph.regions, graph.links(entropy.links)
        start, total = (region_starts(graph), check_counting(graph, entropy.counting, links.parent, links.child))
        lam_at = np.concatenate([[0], np.cumsum(regions.size[links.child])])
        n, m = int(start[-1]), int(lam_at[-1])
        self.n_messages = m
        region = np.repeat(np.arange(len(regions.size)), regions.size)
        # messages that every configuration of a parent reads, and those that every configuration of a child sends up
        parent_size = regions.size[links.parent]
        link = np.repeat(np.arange(len(links.parent)), parent_size)
        state = runs(np.zeros(len(links.parent), dtype=np.int64), parent_size)
        map_at = links.map_ptr[links.pattern] if len(links.pattern) else links.pattern
        lower = lam_at[link] + links.maps[map_at[link] + state] if len(link) else link
        upper = start[links.parent[link]] + state if len(link) else link
        child = runs(start[links.child], regions.size[links.child])
        down, up = rectangle(upper, lower, n, m), rectangle(child, np.arange(m), n, m)
        sender = np.repeat(np.arange(len(links.parent)), regions.size[links.child])
        order, group_ptr = region_order(graph, entropy.links, "colours")[:2]
        groups = []
        for a, b in pairwise(group_ptr.tolist()):
            units = np.zeros(len(regions.size), dtype=bool)
            units[order[a:b]] = True
            groups.append(_group(units, links, region, down, up, lower, upper, child, sender, n, m))
        self.groups = torch.nn.ModuleList(groups)
        linked = np.bincount(links.child, minlength=len(regions.size)) > 0
        sizes = np.unique(regions.size)
        by_size = [start[:-1][regions.size == s][:, None] + np.arange(s) for s in sizes]
        self.tables = torch.nn.ModuleList(
            Indices({"at": at}, {"counting": entropy.counting[regions.size == s]})
            for at, s in zip(by_size, sizes, strict=True)
        )
        joined = np.concatenate([at.ravel() for at in by_size])
        scale = np.where(linked, total, np.where(entropy.counting == 0, 1.0, entropy.counting))
        self.every = Indices(
            {"down": down, "up": up, "back": np.argsort(joined), "child": child,
             "linked": linked[region].astype(np.int64)},
            {"scale": scale[region], "first": (entropy.counting[links.parent] / total[links.child])[sender],
             "counting": entropy.counting[links.parent][sender]},
        )  # fmt: skip


def _group(
    units: Any, links: Any, region: Ints, down: Ints, up: Ints, lower: Ints, upper: Ints, child: Ints, sender: Ints,
    n: int, m: int,
) -> Indices:  # fmt: skip
    """What the update of some regions reads and writes."""
    sent = np.flatnonzero(units[region[child]])  # messages to the group
    local = np.full(m + 1, len(sent), dtype=np.int64)
    local[sent] = np.arange(len(sent))
    heard = np.flatnonzero(local[lower] < len(sent)) if len(lower) else np.zeros(0, dtype=np.int64)
    above = np.unique(upper[heard])  # configurations of parents
    place = np.searchsorted(above, upper[heard])
    entries = np.flatnonzero(units[region])
    entry_of = np.zeros(n, dtype=np.int64)
    entry_of[entries] = np.arange(len(entries))
    names, link = np.unique(sender[sent], return_inverse=True)
    return Indices(
        {
            "above": above, "above_down": down[above], "above_up": up[above],
            "sum": rectangle(local[lower[heard]], place, len(sent), len(above)),
            "entries": entries, "entries_down": down[entries],
            "entries_up": local[np.minimum(up[entries], m)], "entry": entry_of[child[sent]], "sent": sent,
            "peak": rectangle(link, np.arange(len(sent)), len(names), len(sent)), "link": link,
        },
        {},
    )  # fmt: skip


def _ended(values: Tensor, last: float) -> Tensor:
    """The values with one more at the end, which padded places of index tensors read."""
    return torch.cat([values, values.new_full((1,), last)])


def _belief(theta: Tensor, lam: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """theta + messages of children - messages to parents; a dead configuration stays at -inf."""
    ended = _ended(lam, 0.0)
    sent = ended[up]
    return theta + ended[down].sum(-1) + torch.where(sent == -torch.inf, -torch.inf, -sent).sum(-1)


def region_messages(plan: RegionPlan, theta: Tensor, run: Schedule, value: bool = False) -> RegionMarginals:
    """Coloured message passing of scores (N,) in the order of `Graph.regions`; arguments as `message_passing`."""
    dtype, every = theta.dtype, plan.every
    own = theta[every.child]
    lam = (
        own * every.first.to(dtype)
        if run.uniform
        else torch.where(own == -torch.inf, -torch.inf, torch.zeros_like(own))
    )
    counting, weight = every.counting.to(dtype), every.first.to(dtype)

    def some(count: int, lam: Tensor) -> tuple[Tensor]:
        """`count` iterations, colour by colour."""
        for _ in range(count):
            for group in plan.groups:
                lam = _update(group, theta, lam, counting, weight, run.damping)
        return (lam,)

    (lam,) = settled(some, [lam], run, lambda lam: [_read(plan, theta.detach(), lam.detach(), counting)])
    return RegionMarginals(_read(plan, theta, lam, counting), _value(plan, theta, lam) if value else None)


def _heard(group: Any, theta: Tensor, lam: Tensor, counting: Tensor) -> tuple[Tensor, Tensor]:
    """Messages to a group, and Q of its regions."""
    b = _ended(_belief(theta[group.above], lam, group.above_down, group.above_up), -torch.inf)
    own, c = lam[group.sent], counting[group.sent]
    dead = own == -torch.inf
    m = c * safe_log_sum(b[group.sum] / c.unsqueeze(-1), -1) - torch.where(dead, 0.0, own)
    m = torch.where(dead, -torch.inf, m)
    q = theta[group.entries] + _ended(lam, 0.0)[group.entries_down].sum(-1)
    return m, q + _ended(m, 0.0)[group.entries_up].sum(-1)


def _update(group: Any, theta: Tensor, lam: Tensor, counting: Tensor, weight: Tensor, damping: float) -> Tensor:
    """The messages with those of one colour's variables computed again."""
    m, q = _heard(group, theta, lam, counting)
    q = q[group.entry]
    new = torch.where(q == -torch.inf, -torch.inf, weight[group.sent] * q - m)
    new = new - _ended(new, -torch.inf)[group.peak].amax(-1)[group.link]
    return lam.index_copy(0, group.sent, damped(new, lam[group.sent], damping))


def _read(plan: RegionPlan, theta: Tensor, lam: Tensor, counting: Tensor) -> Tensor:
    """Marginals of all regions: softmax(Q / C) of those with parents, softmax(b / c) of others."""
    every = plan.every
    b = _belief(theta, lam, every.down, every.up)
    for group in plan.groups:
        b = b.index_copy(0, group.entries, _heard(group, theta, lam, counting)[1])
    scaled = b / every.scale.to(b.dtype)
    return torch.cat([torch.softmax(scaled[table.at], 1).flatten() for table in plan.tables])[every.back]


def _value(plan: RegionPlan, theta: Tensor, lam: Tensor) -> Tensor:
    """sum of c log sum exp(b / c); where c is zero the maximum of b."""
    b = _belief(theta, lam, plan.every.down, plan.every.up)
    value = b.new_zeros(())
    for table in plan.tables:
        c, own = table.counting.to(b.dtype), b[table.at]
        dead = own == -torch.inf
        scaled = torch.where(dead, 0.0, own) / torch.where(c == 0, 1.0, c).unsqueeze(1)
        smooth = c * safe_log_sum(torch.where(dead, -torch.inf, scaled), -1)
        value = value + torch.where(c == 0, own.amax(1), smooth).sum()
    return value


class ProductPlan(torch.nn.Module):
    """Where expected scores of labels lie, for mean field on regions of any order; `together`: one group of all."""

    def __init__(self, graph: Graph, together: bool = False) -> None:
        super().__init__()
        regions, states = graph.regions, int(graph.n_states.max())
        self.shape, start = (graph.n_variables, states), region_starts(graph)
        n, none = int(start[-1]), graph.n_variables * states
        order = np.repeat(regions.order, regions.size)
        region = np.repeat(np.arange(len(regions.size)), regions.size)
        label = np.full((n, max(int(regions.order.max()), 1)), none, dtype=np.int64)  # of every configuration
        entry = np.arange(n) - start[region]
        for axis in range(label.shape[1]):
            has = order > axis
            at = regions.scope_ptr[region[has]] + axis
            variable = regions.scope[at].astype(np.int64)
            label[has, axis] = variable * states + entry[has] // regions.stride[at] % graph.n_states[variable]
        variables, ptr = graph.variable_groups("colours")
        if together:
            ptr = np.array([0, graph.n_variables])
        self.groups = torch.nn.ModuleList(
            _product_group(np.sort(variables[a:b]), label, order, states, n, none) for a, b in pairwise(ptr.tolist())
        )
        single = start[:-1][regions.single][:, None] + np.arange(states)
        single = np.where(np.arange(states) < graph.n_states[:, None], single, n)
        self.every = Indices({"label": label, "single": single, "wide": (order > 1).astype(np.int64)}, {})


def _product_group(variables: Ints, label: Ints, order: Ints, states: int, n: int, none: int) -> Indices:
    """Index tensors of mean field of one colour: the entries around each variable, and other variables' labels."""
    first = np.full(none // states + 1, -1, dtype=np.int64)
    first[variables] = np.arange(len(variables))
    keys, entries, others = [], [], []
    for axis in range(label.shape[1]):
        at = np.flatnonzero((order > max(axis, 1)) & (first[label[:, axis] // states] >= 0))
        keys.append(first[label[at, axis] // states] * states + label[at, axis] % states)
        entries.append(at)
        others.append(np.delete(label[at], axis, axis=1))
    key, entry, other = np.concatenate(keys), np.concatenate(entries), np.concatenate(others)
    place = rectangle(key, np.arange(len(key)), len(variables) * states, len(key))
    index: dict[str, Any] = {"variables": variables, "entry": np.append(entry, n)[place]}
    for axis in range(other.shape[1]):
        index[f"other{axis}"] = np.append(other[:, axis], none)[place]
    return Indices(index, {})


def _field(group: Any, table: Tensor, q: Tensor, others: int) -> Tensor:
    """Expected scores of a group's labels under the marginals of the others, (V, states)."""
    flat, terms = _ended(q.flatten(), 1.0), table[group.entry]
    for axis in range(others):
        terms = terms * flat[getattr(group, f"other{axis}")]
    return terms.sum(1).reshape(-1, q.shape[1])


def expected_scores(plan: ProductPlan, theta: Tensor, q: Tensor) -> Tensor:
    """Scores of all labels from larger regions, expected under the marginals (n, states) of the other variables."""
    table = _ended(theta.clamp_min(_FORBIDDEN), 0.0)
    return _field(plan.groups[0], table, q, plan.every.label.shape[1] - 1)


def region_mean_field(plan: ProductPlan, theta: Tensor, run: Schedule, value: bool = False) -> RegionMarginals:
    """Coloured coordinate ascent from uniform marginals; scores and marginals as in `region_messages`."""
    every = plan.every
    ended = _ended(theta, -torch.inf)
    node = ended[every.single]
    table = _ended(theta.clamp_min(_FORBIDDEN), 0.0)
    allowed = (node > -torch.inf).to(theta.dtype)
    q = allowed / allowed.sum(1, keepdim=True)

    def some(count: int, q: Tensor) -> tuple[Tensor]:
        """`count` iterations, colour by colour."""
        for _ in range(count):
            for group in plan.groups:
                field = _field(group, table, q, every.label.shape[1] - 1)
                q = q.index_copy(0, group.variables, torch.softmax(node[group.variables] + field, 1))
        return (q,)

    (q,) = settled(some, [q], run)
    product, flat = torch.ones_like(theta), _ended(q.flatten(), 1.0)
    for axis in range(every.label.shape[1]):
        product = product * flat[every.label[:, axis]]
    if not value:
        return RegionMarginals(product, None)
    score = (product * torch.where(product > 0, theta, 0.0)).sum()
    return RegionMarginals(product, score - torch.special.xlogy(q, q).sum())
