"""Message passing, mean field and enumeration in plain PyTorch, differentiated by autograd: twins of `pt.torch`.

They share no arithmetic with the kernels. Orders of update are part of what a truncated gradient differentiates, so the
groups of variables that are updated together are taken from the graph's layout.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch


class MessagePassingTwin:
    """Coloured message passing on variables and pairs with one number of states; counting numbers per region."""

    def __init__(self, graph, single, pair):
        layout = graph.pair_layout("colours", oriented=False)
        edges = torch.as_tensor(np.array(graph.scopes["edge"]))
        self.var_of = edges.reshape(-1)  # directed slot 2 e + s belongs to variable edges[e, s]
        self.pair = torch.as_tensor(np.repeat(pair, 2))[:, None]
        self.total = torch.as_tensor(single)[:, None].index_add(0, self.var_of, self.pair)
        self.groups = []
        for a, b in pairwise(layout.group_ptr):
            variables = layout.variable[a:b].ravel()
            variables = torch.as_tensor(variables[variables >= 0].copy())
            place = torch.full((graph.n_variables,), -1)
            place[variables] = torch.arange(len(variables))
            slots = torch.nonzero(place[self.var_of] >= 0).ravel()
            self.groups.append((variables, slots, place[self.var_of[slots]]))

    def __call__(self, node, edge, iterations, uniform=True):
        """Marginals of variables and pairs after so many iterations from uniform messages, or from zero ones."""
        m, n_states = len(self.var_of) // 2, node.shape[1]
        pair, total = self.pair.to(node.dtype), self.total.to(node.dtype)
        both = torch.stack([edge.expand(m, n_states, n_states), edge.expand(m, n_states, n_states).mT], 1)
        both = both.reshape(2 * m, n_states, n_states) / pair[:, :, None]
        other = torch.arange(2 * m) ^ 1
        lam = (node / total)[self.var_of] if uniform else node.new_zeros(2 * m, n_states)
        for _ in range(iterations):
            for variables, slots, place in self.groups:
                log_m = torch.logsumexp(both[slots] + lam[other[slots]][:, None, :], -1)
                belief = node[variables].index_add(0, place, pair[slots] * log_m) / total[variables]
                new = belief[place] - log_m
                # shifts change nothing, but the rounding of their cotangents grows unless they are removed here
                lam = lam.index_copy(0, slots, new - torch.logsumexp(new, 1, keepdim=True))
        log_m = torch.logsumexp(both + lam[other][:, None, :], -1)
        belief = node.index_add(0, self.var_of, pair * log_m) / total
        joint = both[::2] + lam[::2][:, :, None] + lam[1::2][:, None, :]
        return torch.softmax(belief, 1), torch.softmax(joint.reshape(m, -1), 1).reshape(m, n_states, n_states)


def mean_field(graph, node, edge, iterations):
    """Coloured coordinate ascent from uniform marginals; marginals of variables and (product) pairs."""
    edges = torch.as_tensor(np.array(graph.scopes["edge"]))
    edge = edge.expand(len(edges), *edge.shape[-2:])
    variables, ptr = graph.variable_groups("colours")
    q = torch.full_like(node, 1.0 / node.shape[1])
    for _ in range(iterations):
        for a, b in pairwise(ptr):
            expected = torch.zeros_like(node)
            expected = expected.index_add(0, edges[:, 0], torch.einsum("eab,eb->ea", edge, q[edges[:, 1]]))
            expected = expected.index_add(0, edges[:, 1], torch.einsum("eab,ea->eb", edge, q[edges[:, 0]]))
            group = torch.as_tensor(variables[a:b].copy())
            q = q.index_copy(0, group, torch.softmax(node + expected, 1)[group])
    return q, torch.einsum("ea,eb->eab", q[edges[:, 0]], q[edges[:, 1]])


def enumerated(graph, theta, labellings):
    """log Z, and marginals per kind as lists of tables, over all labellings (k, n); theta holds lists of tables."""
    every = torch.as_tensor(labellings)
    total = torch.zeros(len(every), dtype=torch.float64)
    index = {}
    for kind, scope in graph.scopes.items():
        index[kind] = [tuple(every[:, variables].T) for variables in scope.tolist()]
        for table, where in zip(theta.get(kind, []), index[kind], strict=False):
            total = total + table[where]
    p = torch.softmax(total, 0)
    marginals = {
        kind: [
            torch.zeros(tuple(graph.n_states[variables]), dtype=p.dtype).index_put(where, p, accumulate=True)
            for variables, where in zip(scope, index[kind], strict=True)
        ]
        for kind, scope in graph.scopes.items()
    }
    return torch.logsumexp(total, 0), marginals
