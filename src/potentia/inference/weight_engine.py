"""Message passing where all pairs' tables are weights times a cost of the distance of labels: O(states) messages."""

from __future__ import annotations

import numpy as np

from ..graph.scores import Scores
from ..graph.tables import Cost
from ..kernels.machine.simd import CHUNK
from ..kernels.star_blocks import SAFE_RANGE, Profile, fill_fields
from .engine import Entropy
from .pair_engine import PairEngine

#: Up to this reach a window of labels is quicker than a recursion over all of them.
_WINDOW = 6


def suits_weights(scores: Scores, entropy: Entropy, order: str) -> bool:
    """Whether `WeightEngine` can take these scores: one cost for all pairs, no negative weight, a safe range."""
    graph = scores.graph
    cost = _one_cost(scores)
    if cost is None or int(graph.n_states.max()) < 3 or graph.pair_layout(order).pair.shape[1] % CHUNK:
        return False
    cap = float(cost.of(int(graph.n_states.max()))[-1])
    for kind, weighted in scores.weighted.items():
        counting = entropy.counting[graph.region_slices[kind]]
        steep = not entropy.maximum and np.any(weighted.weight * cap > SAFE_RANGE * counting)
        if steep or weighted.weight.min() < 0:
            return False
    return True


def _one_cost(scores: Scores) -> Cost | None:
    """The cost that all pairs have; None if there is none."""
    kinds = scores.graph.clique_kinds
    costs = {scores.weighted[kind].cost if kind in scores.weighted else None for kind in kinds}
    return costs.pop() if len(costs) == 1 else None


class WeightEngine(PairEngine):
    """A `PairEngine` whose blocks hold a few numbers per slot instead of a table; see `kernels.star_blocks`."""

    def __post_init__(self) -> None:
        """As `PairEngine`, with the cost that all pairs have and their weights instead of tables."""
        scopes, weighted = self.graph.scopes, self.scores.weighted
        cost = _one_cost(self.scores)
        assert cost is not None
        self.profile = _profile(cost, int(self.graph.n_states.max()))
        #: The weight of every pair, kind after kind.
        self.weight = np.concatenate(
            [weighted[kind].of_pairs(len(s)) for kind, s in scopes.items() if kind in weighted]
        )
        super().__post_init__()

    def _one_table(self) -> bool:
        """Weights are kept per slot, even where they are equal."""
        return False

    def count_work(self) -> int:
        """Multiply-adds of an iteration."""
        rows, states, width = self.blocks.lam.shape
        per_state = 16 if self.profile.linear else 4 + 2 * int(self.profile.reach)
        return rows * width * states * per_state + (rows + len(self.blocks.node)) * width * 8 * states

    def _steepness(self) -> float:
        """The range of pair scores over the counting numbers, from weights and the largest cost."""
        return float((self.weight * self.profile.cap / self.count).max())

    def _choose_modes(self) -> float:
        """A few numbers per slot from the weights, which `suits_weights` must have approved."""
        maximum, table = self.entropy.maximum, self.blocks.table
        fill_fields(self.profile, maximum, self.layout.pair, self.weight, self.count, table)
        return 0.0


def _profile(cost: Cost, n_states: int) -> Profile:
    """The cost as the kernels take it: what lies beyond the last label does not matter."""
    values = cost.of(n_states)
    cap = float(values[-1])
    reach = int((values < cap).sum()) - 1
    linear = cost.power == 1 and reach > _WINDOW
    return Profile(linear, reach, values[: reach + 1], cap, 3 if linear else reach + 1)
