"""Links between regions: every rule against plain set containment, and every projection against indexing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference as ref
from potentia.graph.structure import Graph, PotentiaError
from zoo import Problem, problems

RULES = ["containment", "star", "maximal"]


def scopes_of(graph: Graph) -> list[tuple[int, ...]]:
    regions = graph.regions
    return [tuple(s.tolist()) for s in np.split(regions.scope, regions.scope_ptr[1:-1])]


def check_links(graph: Graph, rule: str) -> None:
    """Pairs as the reference has them, in order, and maps that project every parent configuration."""
    found, scopes = graph.links(rule), scopes_of(graph)
    pairs = list(zip(found.parent.tolist(), found.child.tolist(), strict=True))
    assert pairs == sorted(ref.links(scopes, rule))
    for (parent, child), pattern in zip(pairs, found.pattern, strict=True):
        outer_shape, inner_shape = (graph.n_states[list(scopes[r])] for r in (parent, child))
        inner = np.arange(inner_shape.prod()).reshape(inner_shape)
        expected = np.broadcast_to(ref.expand(inner, scopes[parent], scopes[child]), outer_shape)
        image = found.maps[found.map_ptr[pattern] : found.map_ptr[pattern + 1]]
        np.testing.assert_array_equal(image, expected.ravel())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("problem", problems(None), ids=str)
def test_links_on_the_zoo(problem: Problem, rule: str) -> None:
    check_links(problem.graph, rule)


@st.composite
def graphs(draw):
    """Up to six variables and any scopes up to order four, duplicates and any axis order included."""
    n = draw(st.integers(1, 6))
    n_states = draw(st.lists(st.integers(1, 3), min_size=n, max_size=n))
    kinds = {}
    for order in range(2, min(n, 4) + 1):
        scope = st.permutations(range(n)).map(lambda p, order=order: p[:order])
        kinds[f"order{order}"] = draw(st.lists(scope, max_size=5))
    kinds["node"] = [[i] for i in draw(st.permutations(range(n)))[: draw(st.integers(0, n))]]
    return Graph(n_states, kinds)


@given(graph=graphs(), rule=st.sampled_from(RULES))
@settings(max_examples=60, deadline=None)
def test_links_on_any_graph(graph: Graph, rule: str) -> None:
    check_links(graph, rule)


def test_links_of_one_pattern_share_their_map() -> None:
    links = Graph.grid((4, 5), n_states=3).links("star")
    assert len(links.parent) == 2 * 31
    assert len(links.map_ptr) == 3  # first end and second end
    assert len(links.maps) == 18


def test_sub_scopes_are_found_among_many_variables() -> None:
    # 5 positions of 100,000 variables: no plain number of a row fits 64 bits
    top = np.array([[99_999, 3, 50_000, 77_777, 12], [1, 2, 3, 4, 5]])
    quads = np.array([[12, 50_000, 3, 77_777], [12, 50_000, 3, 77_778], [5, 4, 3, 2]])
    graph = Graph(np.full(100_000, 1), {"top": top, "quad": quads})
    links = graph.links("containment")
    pairs = set(zip(links.parent.tolist(), links.child.tolist(), strict=True))
    assert {(p, c) for p, c in pairs if p < 2 and c < 5} == {(0, 2), (1, 4)}


def test_links_are_kept_on_the_graph_and_rules_are_checked() -> None:
    graph = Graph.chain(3, n_states=2)
    assert graph.links("star") is graph.links("star")
    with pytest.raises(PotentiaError, match="not 'tree'"):
        graph.links("tree")
