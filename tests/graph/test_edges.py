"""`Graph.from_edges`: undirected edges in the forms that people have them."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from scipy import sparse

import potentia as pt

PAIRS = np.array([[0, 1], [1, 2], [0, 3]])


@pytest.mark.parametrize(
    "edges",
    [
        PAIRS,
        PAIRS.T,
        PAIRS.tolist(),
        PAIRS[:, ::-1],
        np.concatenate([PAIRS, PAIRS[:, ::-1], PAIRS[:1]]),
        np.concatenate([PAIRS, [[2, 2]]]),
    ],
)
def test_each_pair_once(edges):
    graph = pt.Graph.from_edges(5, edges, n_states=3)
    assert graph.n_variables == 5
    np.testing.assert_array_equal(graph.scopes["edge"], PAIRS)


def test_sparse_and_networkx():
    network = nx.Graph([("a", "b"), ("b", "c"), ("a", "d")])
    assert pt.Graph.from_edges(None, network, n_states=2).scopes["edge"].tolist() == [[0, 1], [0, 3], [1, 2]]
    stored = sparse.csr_array((np.ones(3), (PAIRS[:, 0], PAIRS[:, 1])), shape=(6, 6))
    for form in (sparse.csr_array, sparse.coo_matrix, sparse.lil_array):
        matrix = form(stored)
        graph = pt.Graph.from_edges(None, matrix, n_states=2)
        assert graph.n_variables == 6
        assert {tuple(p) for p in graph.scopes["edge"].tolist()} == {tuple(p) for p in PAIRS.tolist()}


def test_no_edges_and_directed_networks():
    assert len(pt.Graph.from_edges(3, [], n_states=2).scopes["edge"]) == 0
    both = nx.DiGraph([(0, 1), (1, 0)])
    assert pt.Graph.from_edges(None, both, n_states=2).scopes["edge"].tolist() == [[0, 1]]


def test_bad_edges_are_one_sentence():
    for n, edges, message in (
        (2, PAIRS, "edges have node 3, but there are n = 2"),
        (4, np.zeros((3, 3), int), r"\(E, 2\) or \(2, E\)"),
        (4, [[0, -1]], "nodes count from 0"),
        (4, sparse.csr_array((3, 4)), "must be square"),
        (None, [], "at least one variable"),
    ):
        with pytest.raises(pt.PotentiaError, match=message):
            pt.Graph.from_edges(n, edges, n_states=2)
