"""Gradients from the optimality conditions of the variational problem: one sparse linear system [MBL-tpami sec. 5].

At mu = argmax theta . mu + sum c H(mu) under B mu = d, dL/dtheta is x in

    [ D  B' ] [ x  ]   [ dQ/dmu ]
    [ B  0  ] [ nu ] = [   0    ] ,    D = diag(c / mu)

which unlike the theorem's formula does not need D to be invertible: c = 0 on the corners of a grid under TRW. Unknowns
are x / sqrt(mu) and rows of B are scaled to length 1, so that marginals near 0 are as accurate as others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.types import ArrayLike, Floats, Ints, PotentiaError, check_type, whole_numbers
from ..graph.cotangents import MarginalCotangent, Tables, flat_cotangent, flat_marginals, own_split
from ..graph.scores import Scores, refuse_structures
from ..graph.structure import Graph
from ..inference.base import Inference, Result
from ..inference.engine import Entropy
from ..inference.linear_program import constraints, first_best
from .base import Gradient, Pull
from .reverse import refuse_maximum

#: Redundant constraints make the system singular; this much of the identity against them, relative to 1.
_SLACK = 1e-11


@dataclass(frozen=True)
class Implicit(Gradient):
    """dL/dtheta by one factorisation of the optimality conditions, as good as inference has converged.

    For message passing, and exact inference on forests. Mean field optimises over no linear set.
    """

    def solve(
        self, inference: Inference, scores: Scores, start: Result | None = None, cliques: bool = True
    ) -> tuple[Result, Pull]:
        """Inference and the function that pulls cotangents of its marginals back."""
        entropy = _entropy_of(inference, scores)
        result = inference.run(scores, start)

        def pull(cotangent: MarginalCotangent) -> Tables:
            """d_mu to d_theta by solving the optimality conditions."""
            ptr, solve = _factorise(scores, result, entropy)
            d_mu = flat_cotangent(scores, cotangent, ptr[:-1], int(ptr[-1]))
            return own_split(scores, solve(d_mu), ptr)

        return result, pull


def _entropy_of(inference: Inference, scores: Scores) -> Entropy:
    """The entropy whose maximum the marginals are; refuses methods that have none."""
    refuse_structures(scores.graph, "gradient='implicit'")
    entropy = inference.entropy_on(scores.graph)
    if entropy is None:
        raise PotentiaError(
            f"gradient='implicit' does not apply to {type(inference).__name__} on this graph: its marginals do "
            "not solve a problem over local marginals."
        )
    refuse_maximum(entropy.maximum)
    return entropy


def _factorise(scores: Scores, result: Result, entropy: Entropy) -> tuple[Ints, Callable[[Floats], Floats]]:
    """The start of each region's unknowns, (n_regions + 1,), and what solves the system for x, d_mu over all of them.

    Unknowns are the configurations with positive marginal; x is zero at others.
    """
    from scipy import sparse
    from scipy.sparse.linalg import splu

    start = np.concatenate([[0], np.cumsum(scores.regions.size)]).astype(np.int64)
    mu = _all_marginals(scores, result, start)
    alive = mu > 0
    counting = np.repeat(entropy.counting, scores.regions.size)[alive]
    root = np.sqrt(mu[alive])
    b = _constraints(scores.graph, entropy, start, mu)[:, alive]
    b = b[np.diff(b.indptr) > 0] @ sparse.diags(root)
    b = sparse.diags(1.0 / np.sqrt(np.asarray(b.multiply(b).sum(axis=1)).ravel())) @ b
    slack = -_SLACK * sparse.identity(b.shape[0])
    factor = splu(sparse.bmat([[sparse.diags(counting), b.T], [b, slack]], format="csc"))

    def solve(d_mu: Floats) -> Floats:
        """The derivative of d_mu . mu by scores; zero at entries that have no probability."""
        x = np.zeros(len(d_mu))
        right = np.concatenate([root * d_mu[alive], np.zeros(b.shape[0])])
        x[alive] = root * factor.solve(right)[: len(root)]
        return x

    return start, solve


def _all_marginals(scores: Scores, result: Result, start: Ints) -> Floats:
    """Marginals of all regions, implicit singles included, in the `Regions` numbering."""
    cliques = {kind: flat_marginals(result.marginals[kind]) for kind in scores.graph.clique_kinds}
    return flat_cotangent(scores, MarginalCotangent(result.variable_marginals, cliques), start, int(start[-1]))


def _constraints(graph: Graph, entropy: Entropy, start: Ints, mu: Floats) -> Any:
    """B: every region sums to a constant, and every parent agrees with its child, whose likeliest state is left out.

    With another state left out, what it says would be a small difference of large rows.
    """
    from scipy import sparse

    regions, links = graph.regions, graph.links(entropy.links)
    n, height = int(start[-1]), regions.size[links.child]
    normal = sparse.csr_matrix((np.ones(n), (np.repeat(np.arange(len(regions.size)), regions.size), np.arange(n))))
    used = np.ones(int(height.sum()), dtype=bool)
    likeliest = first_best(mu, start[:-1]) - start[:-1]
    used[np.cumsum(height) - height + likeliest[links.child]] = False
    agree = sparse.csr_matrix(constraints(regions, links)[0])[np.flatnonzero(used)]
    return sparse.vstack([normal, agree], format="csr")


def linear_response(
    inference: Inference, graph: Graph, theta: Any, pairs: ArrayLike, observed: ArrayLike | None = None
) -> list[Floats]:
    r"""Joint marginals of any two variables from sensitivities of their marginals [MBL-tpami sec. 6; Welling and Teh].

    .. math:: p(y_i, y_j) \approx \mu_i(y_i) \mu_j(y_j) + \mathrm{d} \mu_j(y_j) / \mathrm{d} \theta_i(y_i),

    which is exact if inference is.

    Args:
        pairs: (n, 2) variables, adjacent or not.

    Returns:
        a table (states of i, states of j) per pair. Cost: one sparse factorisation and a solve per state of each
        distinct i. Entries may be slightly negative where inference is approximate.
    """
    check_type("inference", inference, Inference)
    scores = Scores(graph, theta, observed)
    entropy = _entropy_of(inference, scores)
    asked = whole_numbers(pairs, "pairs")
    if asked.ndim != 2 or asked.shape[1] != 2 or np.any((asked < 0) | (asked >= graph.n_variables)):
        raise PotentiaError(
            f"pairs must hold two variables of 0..{graph.n_variables - 1} per row, not shape {asked.shape}."
        )
    result = inference.run(scores, None)
    start, solve = _factorise(scores, result, entropy)
    n_states, single, mu = graph.n_states, scores.regions.single, result.variable_marginals
    columns: dict[int, list[Floats]] = {}
    joint = []
    for i, j in asked.tolist():
        if i not in columns:
            columns[i] = []
            for state in range(n_states[i]):
                right = np.zeros(int(start[-1]))
                right[start[single[i]] + state] = 1.0
                columns[i].append(solve(right))
        at = start[single[j]]
        response = np.array([x[at : at + n_states[j]] for x in columns[i]])
        joint.append(np.outer(mu[i, : n_states[i]], mu[j, : n_states[j]]) + response)
    return joint
