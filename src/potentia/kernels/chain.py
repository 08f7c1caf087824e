"""Dynamic programming along chains whose variables have one number of states.

`node` is flat, the scores of variable i at node_at[i]; `pair` is flat too, the L x L table between variables i and
i + 1 at pair_at[i], so that pairs may share one table; the entry of a chain's last variable is not read. -inf forbids.
"""

from __future__ import annotations

from .machine.jit import njit
from .vecmath import KERNEL


@njit(**KERNEL)
def best_path(node, node_at, pair, pair_at, first, last, value, back, labels):
    """The best labelling of variables first .. last - 1 [Viterbi]: fills labels[: last - first], returns its score.

    value (2, L) and back (at least last - first, L) are work space. The smallest state wins ties; a score of -inf
    means that everything is forbidden.
    """
    L = value.shape[1]
    for a in range(L):
        value[0, a] = node[node_at[first] + a]
    for i in range(first + 1, last):
        _extend(pair, pair_at[i - 1], value[(i - first - 1) % 2], value[(i - first) % 2], back[i - first])
        for b in range(L):
            value[(i - first) % 2, b] += node[node_at[i] + b]
    ends = value[(last - first - 1) % 2]
    state = 0
    for a in range(1, L):
        state = a if ends[a] > ends[state] else state
    score = ends[state]
    for i in range(last - 1, first, -1):
        labels[i - first] = state
        state = back[i - first, state]
    labels[0] = state
    return score


@njit(**KERNEL)
def _extend(pair, at, old, new, back):
    """new(b) = max over a of old(a) + pair(a, b), and the smallest a that reaches it."""
    L = old.size
    for b in range(L):
        new[b] = old[0] + pair[at + b]
        back[b] = 0
    for a in range(1, L):
        for b in range(L):
            v = old[a] + pair[at + a * L + b]
            back[b] = a if v > new[b] else back[b]
            new[b] = v if v > new[b] else new[b]
