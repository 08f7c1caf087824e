"""Message passing between regions of any order: the flat arrays of `kernels.regions` and the way in and out."""

from __future__ import annotations

import numpy as np

from ..base.resources import map_ranges
from ..base.types import Floats, InfeasibleError, Ints, PotentiaError
from ..graph.layout import colours, levels
from ..graph.structure import Graph, per_graph
from ..kernels import regions as region_kernels
from ..kernels.factors import VALUE_AT, FactorTrees
from ..kernels.machine.team import SOLO, Team
from .base import all_singles, marginals_by_kind
from .engine import Engine, Readout, check_counting, layout_order
from .factor_trees import arrange, factor_trees

#: Table entries a group of regions must hold before a second thread pays.
_PARALLEL_WORK = 100_000


@per_graph
def region_order(graph: Graph, rule: str, order: str) -> tuple[Ints, Ints, Ints, Ints]:
    """Regions that receive messages, in groups of independent ones: by colour, or by level of 0, 1, 2, ...

    The regions, the groups' bounds, and a CSR (reach_ptr, reach) of those that may not be updated together with each.
    """
    from scipy.sparse import csr_array

    links, regions = graph.links(rule), graph.regions
    n = len(regions.size)
    units = np.unique(links.child)
    # small regions first, and single variables by their number whatever the order of their kind
    units = units[np.lexsort((regions.scope[regions.scope_ptr[units]], regions.order[units]))]
    if graph.structures:  # regions may be large: neighbours are not listed, and no two units updated together
        none = np.zeros(0, dtype=np.int64)
        return units, np.arange(len(units) + 1), none, none
    unit_of = np.full(n, -1, dtype=np.int64)
    unit_of[units] = np.arange(len(units))
    # units that have a common parent, or one of which is linked to the other, may not be updated together
    hubs, members = np.concatenate([links.parent, units]), np.concatenate([unit_of[links.child], np.arange(len(units))])
    joined = csr_array((np.ones(len(hubs), dtype=np.int32), (members, hubs)), shape=(len(units), n))
    conflicts = csr_array(joined @ joined.T)
    conflicts.setdiag(0)
    conflicts.eliminate_zeros()
    ptr, adjacent = conflicts.indptr.astype(np.int64), conflicts.indices.astype(np.int64)
    group = colours(ptr, adjacent) if order == "colours" else levels(ptr, adjacent, np.arange(len(units)))
    by_group = np.argsort(group, kind="stable")
    position = np.empty(len(units), dtype=np.int64)
    position[by_group] = np.arange(len(units))
    source = np.repeat(np.arange(len(units)), np.diff(ptr))
    edges = np.unique(position[source] * max(len(units), 1) + position[adjacent])
    start, reach = np.divmod(edges, max(len(units), 1))
    reach_ptr = np.concatenate([[0], np.cumsum(np.bincount(start, minlength=len(units)))]).astype(np.int64)
    group_ptr = np.concatenate([[0], np.cumsum(np.bincount(group))]).astype(np.int64)
    return units[by_group], group_ptr, reach_ptr, reach


def _csr(keys: Ints, n: int) -> tuple[Ints, Ints]:
    """Positions of every key value: (ptr, positions)."""
    return (
        np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=n))]).astype(np.int64),
        np.argsort(keys, kind="stable"),
    )


class RegionEngine(Engine):
    """Scores, messages and beliefs of all regions, for one graph, entropy and order of update."""

    def __post_init__(self) -> None:
        """Scores and links as flat arrays, with messages at zero."""
        scores, entropy = self.scores, self.entropy
        regions, links = scores.regions, self.graph.links(entropy.links)
        n = len(regions.size)
        order = region_order(self.graph, entropy.links, layout_order(self.schedule))
        self.units, self.group_ptr, self._reach_ptr, self._reach = order
        total = check_counting(self.graph, entropy.counting, links.parent, links.child)
        up_ptr, up = _csr(links.child, n)
        down_ptr, down = _csr(links.parent, n)
        sizes = regions.size[links.child]
        theta, at = scores.flat(structured=True)
        if self.graph.structures and self.schedule == "residual":
            raise PotentiaError("values of pt.factors have no residual schedule; use coloured, sequential or random.")
        lam_at = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64) if len(sizes) else sizes
        trees = self._grow_trees(at, lam_at)
        self.regions = region_kernels.RegionGraph(
            theta=theta, at=at, size=regions.size, counting=entropy.counting, total=total, maximum=entropy.maximum,
            parent=links.parent, child=links.child,
            lam_at=lam_at, trees=trees,
            map_at=links.map_ptr[links.pattern] if len(links.pattern) else links.pattern,
            maps=links.maps, down_ptr=down_ptr, down=down, up_ptr=up_ptr, up=up,
            lam=np.zeros(int(sizes.sum())), belief=np.zeros(int(regions.size.sum())),
            belief_at=np.concatenate([[0], np.cumsum(regions.size)[:-1]]).astype(np.int64),
        )  # fmt: skip
        work = regions.size[links.parent].sum() / max(len(self.group_ptr) - 1, 1)
        if self.graph.structures:  # updates share the walks through trees
            self.threads = 1
        self.group_threads = self.threads if work >= _PARALLEL_WORK else 1
        self.reset()

    def _grow_trees(self, at: Ints, lam_at: Ints) -> FactorTrees:
        """The trees of structured regions, with links as items."""
        links, regions = self.graph.links(self.entropy.links), self.scores.regions
        trees, region, variable = factor_trees(self.scores, at)
        own = np.flatnonzero(trees.of[links.parent] >= 0)
        # of each item its link: both sorted by region, then by the variable
        child = regions.scope[regions.scope_ptr[links.child[own]]]
        link = np.empty(len(region), dtype=np.int64)
        link[np.lexsort((variable, region))] = own[np.lexsort((child, links.parent[own]))]
        entry = np.full(len(links.parent), -1, dtype=np.int64)
        entry[link] = np.arange(len(link))
        #: Position among the units of the variable of each item.
        self.item_unit = np.argsort(self.units)[np.searchsorted(np.sort(self.units), links.child[link])]
        trees.items[:, VALUE_AT] = lam_at[link]
        return trees._replace(entry=entry)

    def arrange(self, units: Ints) -> None:
        """Order the leaves of trees as the units at these positions are visited."""
        if len(self.item_unit):
            rank = np.empty(len(self.units), dtype=np.int64)
            rank[units] = np.arange(len(units))
            arrange(self.regions.trees, rank[self.item_unit])

    def reset(self) -> None:
        """Zero messages, -inf at configurations that the child's own score forbids."""
        self.regions.lam[:] = np.where(np.isneginf(self.own_scores()), -np.inf, 0.0)

    def start_uniform(self) -> None:
        """Messages before any region has been heard, lam = (c / C) theta [MBL-tpami Algorithm 3, uniform messages]."""
        self.regions.lam[:] = self.own_scores() * self.start_weights()
        self.from_scores = True

    def own_scores(self) -> Floats:
        """The scores of every message's child, in the layout of the messages."""
        return self.regions.theta[self.own_positions()]

    def own_positions(self) -> Ints:
        """Positions in `theta` of the scores of every message's child, in the layout of the messages."""
        g = self.regions
        size = g.size[g.child]
        return np.repeat(g.at[g.child] - g.lam_at, size) + np.arange(len(g.lam))

    def start_weights(self) -> Floats:
        """c / C of every message: the share of its child's scores that a uniform start puts into it."""
        g = self.regions
        return np.repeat(g.counting[g.parent] / g.total[g.child], g.size[g.child])

    @property
    def state(self) -> Floats:
        """All messages, flat."""
        lam: Floats = self.regions.lam
        return lam

    def messages(self) -> Floats:
        """All messages, flat."""
        return self.regions.lam.copy()

    def set_messages(self, messages: Floats) -> None:
        """Start from messages of an earlier run; what the child's own score forbids stays so."""
        self.regions.lam[:] = np.where(np.isneginf(self.regions.lam), -np.inf, messages)

    def sweep(
        self, units: Ints, iterations: int = 1, write: bool = True, watch: bool = True, team: Team = SOLO
    ) -> Floats:
        """Update the units at these positions once in this order; the largest change of a belief."""
        self.arrange(units)
        change, empty = region_kernels.sweep_regions(self.regions, self.units[units], self.damping, write)
        self._refuse_empty(empty)
        return np.array([change])

    def residual_sweep(self, priority: Floats) -> float:
        """As many updates as there are units, each of the one with the highest pending change."""
        arguments = self.regions, self.units, priority, self._reach_ptr, self._reach, self.damping
        self._refuse_empty(region_kernels.residual_regions(*arguments))
        return float(priority.max())

    def _refuse_empty(self, region: int) -> None:
        """Refuse a region in which no configuration is left; a number below 0 says that there is none."""
        if region >= 0:
            r = self.scores.regions
            scope = r.scope[r.scope_ptr[region] : r.scope_ptr[region + 1]].tolist()
            raise InfeasibleError(f"no labelling has a finite score: variables {scope} are left without a state.")

    def read(self, cliques: bool = True) -> Readout:
        """Marginals and value from the current messages."""
        g, r = self.regions, self.scores.regions
        map_ranges(lambda a, b: self.sweep(np.arange(a, b), write=False), 0, len(self.units), self.group_threads)
        # summed here, so that the order does not depend on threads
        values = np.empty(len(r.size))
        map_ranges(lambda a, b: region_kernels.read_regions(g, a, b, values), 0, len(values), self.group_threads)
        singles = all_singles(self.scores, g.belief, g.belief_at)
        marginals = marginals_by_kind(self.scores, g.belief)
        return Readout(marginals, singles, float(values.sum()), self.messages())
