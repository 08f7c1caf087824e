"""`LinearProgram`: the best score over locally consistent marginals, by SciPy's HiGHS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from ..base.types import Floats, InfeasibleError, Ints, PotentiaError, check_count, check_share, shown
from ..graph.regions import RegionLinks, Regions, runs
from ..graph.scores import Scores, score_labels, score_size
from .base import Inference, Result, all_singles
from .decode import best_labelling, search
from .structured import Expansion

METHODS = ("highs", "highs-ds", "highs-ipm")


@dataclass
class LinearProgram(Inference):
    """The linear program over the local polytope: an upper bound on the best score.

    Marginals agree on every containment between regions, as in the smoothed LP. If the optimum is a
    labelling, its score is the exact maximum and `bound` is "exact". The result's `residual` is the largest
    violation of a constraint. There is no warm start.

    Attributes:
        iterations: the solver's limit, or None. HiGHS returns no point when it is stopped by its limit. The result is
            then not converged and consists of the best configuration of each region, a bound without agreement.
        tol: how far from 0 and 1 a variable's marginals may lie for the optimum to count as a labelling.
        method: SciPy's "highs" (its choice), "highs-ds" (dual simplex) or "highs-ipm" (interior point, then
            crossover to a vertex).

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> graph = pt.Graph.grid((2, 2), n_states=2)
        >>> result = pt.LinearProgram().infer(graph, {"node": [[0, 1], [0, 0], [0, 0], [0.5, 0]], "edge": np.eye(2)})
        >>> result.bound, round(float(result.value), 6), result.argmax().tolist()
        ('exact', 5.0, [1, 1, 1, 1])
    """

    smooth: ClassVar[bool] = False
    relaxed: ClassVar[bool] = True

    iterations: int | None = None
    tol: float = 1e-6
    method: Literal["highs", "highs-ds", "highs-ipm"] = "highs"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise PotentiaError(f"method must be one of {', '.join(map(repr, METHODS))}, not {shown(self.method)}.")
        check_count("iterations", self.iterations, 1, optional=True)
        check_share("tol", self.tol)

    def run(self, scores: Scores, start: Result | None) -> Result:
        """Build the constraints, solve, and read the optimum as marginals per kind."""
        if scores.graph.structures:
            tables = Expansion(scores)
            return tables.fold(self.run(tables.scores, None))
        theta = own_tables(scores)
        matrix, right = constraints(scores.regions, scores.graph.links("containment"))
        mu, least, iterations = self._solve(theta, matrix, right)
        begin = np.cumsum(scores.regions.size) - scores.regions.size
        converged = mu is not None
        if mu is None:  # the best configuration of each region by itself
            mu = np.zeros(len(theta))
            mu[first_best(theta, begin)] = 1.0
        value = max(float(theta[mu > 0] @ mu[mu > 0]), least)
        singles = all_singles(scores, mu, begin)
        value, bound = self._certify(scores, singles, value) if converged else (value, "upper")
        residual = float(np.abs(matrix @ mu - right).max())
        return Result.of_regions(
            scores, mu, value=value, bound=bound, target="max_score", iterations=iterations, residual=residual,
            converged=converged, best=best_labelling,
        )  # fmt: skip

    def _solve(self, theta: Floats, matrix: Any, right: Floats) -> tuple[Floats | None, float, int]:
        """The optimum, None at the iteration limit, its bound by the multipliers, and the iterations.

        The optimum may be below the maximum by the solver's tolerance; the bound holds for any multipliers. Refuses
        where no point exists.
        """
        from scipy.optimize import linprog

        allowed = np.isfinite(theta)
        cost = np.where(allowed, theta, 0.0)
        # the solver's tolerances are absolute: bring all scores to one scale
        scale = 1e3 / max(float(np.abs(cost).max()), 1e-300)
        cost *= -scale
        box = np.stack([np.zeros(len(theta)), allowed.astype(np.float64)], axis=1)
        options = {} if self.iterations is None else {"maxiter": self.iterations}
        solution = linprog(cost, A_eq=matrix, b_eq=right, bounds=box, method=self.method, options=options)
        # a bounded problem that is "unbounded or infeasible" (a status 4) is infeasible
        if solution.status == 2 or (solution.status == 4 and "or infeasible" in solution.message):
            raise InfeasibleError("every labelling is forbidden: no marginals avoid the -inf scores.")
        if solution.status > 1:
            raise PotentiaError(f"the LP solver failed: {solution.message}.")
        if solution.status:
            return None, -np.inf, int(solution.nit)
        multipliers = solution.eqlin.marginals
        free = np.minimum(cost - matrix.T @ multipliers, 0.0)[allowed].sum()
        mu = np.where(allowed, np.clip(solution.x, 0.0, 1.0), 0.0)
        return mu, float(-(right @ multipliers + free) / scale), int(solution.nit)

    def _certify(self, scores: Scores, singles: Floats, value: float) -> tuple[float, str]:
        """Value and bound: the exact score of the labelling where the optimum is one.

        Where scores span many orders of magnitude the small ones fall below the solver's tolerance; local search then
        finds a labelling above the "optimum", and the value is only an estimate.
        """
        # relative to the scores in play, which a large penalty beside them is not
        slack = self.tol * (score_size(scores, singles.argmax(axis=1)) + abs(value)) + scores.rounding()
        labels = singles.argmax(axis=1)
        if score_labels(scores, search(scores, [labels])) > value + slack:
            return value, "estimate"
        if singles.max(axis=1).min() > 1 - self.tol:
            score = score_labels(scores, labels)
            if score >= value - slack:
                return score, "exact"
        return value, "upper"


def first_best(values: Floats, begin: Ints) -> Ints:
    """Where the first of the largest entries of every region is, whose entries begin at `begin`."""
    region = np.repeat(np.arange(len(begin)), np.diff(np.append(begin, len(values))))
    best = np.flatnonzero(values == np.maximum.reduceat(values, begin)[region])
    return best[np.unique(region[best], return_index=True)[1]]


def own_tables(scores: Scores) -> Floats:
    """Scores of all regions written out one after another, shared tables repeated."""
    values, offset = scores.flat()
    return values[runs(offset, scores.regions.size)]


def constraints(regions: Regions, links: RegionLinks) -> tuple[Any, Floats]:
    """Equalities of the local polytope, as a sparse matrix and right-hand sides.

    For every link and child configuration y: sum of mu_parent over what extends y, minus mu_child(y), is 0.
    For every variable: sum of mu_i = 1. One batch of array operations per projection pattern.
    """
    from scipy.sparse import coo_array

    first = np.cumsum(regions.size) - regions.size
    height = regions.size[links.child]
    top = np.cumsum(height) - height
    order = np.argsort(links.pattern, kind="stable")
    cuts = np.searchsorted(links.pattern[order], np.arange(1, len(links.map_ptr) - 1))
    rows, columns = [runs(top, height)], [runs(first[links.child], height)]
    for pattern, these in enumerate(np.split(order, cuts) if len(order) else []):
        image = links.maps[links.map_ptr[pattern] : links.map_ptr[pattern + 1]]
        rows.append((top[these, None] + image).ravel())
        columns.append((first[links.parent[these], None] + np.arange(len(image))).ravel())
    n, n_agree = len(regions.n_states), int(height.sum())
    rows.append(n_agree + np.repeat(np.arange(n), regions.n_states))
    columns.append(runs(first[regions.single], regions.n_states))
    row, column = np.concatenate(rows), np.concatenate(columns)
    entries = np.where(np.arange(len(row)) < n_agree, -1.0, 1.0)
    matrix = coo_array((entries, (row, column)), shape=(n_agree + n, int(regions.size.sum())))
    return matrix.tocsc(), np.repeat([0.0, 1.0], [n_agree, n])
