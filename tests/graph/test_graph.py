"""Graphs and builders: what is accepted, what it becomes, and one clear sentence for the rest."""

from __future__ import annotations

import pickle

import networkx as nx
import numpy as np
import pytest

import potentia as pt
import reference as ref
from potentia.base.types import PotentiaError
from potentia.graph.structure import Graph
from zoo import Problem, problems, zoo


def edge_set(graph: Graph) -> set[tuple[int, ...]]:
    return {tuple(sorted(e)) for e in graph.scopes["edge"].tolist()}


# -- structure ----------------------------------------------------------------------------------------------


def test_facts_of_a_graph() -> None:
    graph = Graph([2, 3, 2], {"node": [[0], [1]], "triple": [[2, 0, 1]], "none": np.zeros((0, 2))})
    assert graph.n_variables == 3
    assert graph.kinds == ("node", "triple", "none")
    assert graph.max_order == 3
    assert graph.table_shapes("triple").tolist() == [[2, 2, 3]]
    assert graph.shared_shape("triple") == (2, 2, 3)
    assert graph.shared_shape("node") is None
    assert graph.shared_shape("none") is None
    assert "3 variables of 2..3 states" in repr(graph)


def test_graphs_are_frozen() -> None:
    edges = np.array([[0, 1]])
    graph = Graph([2, 2], {"edge": edges})
    edges[:] = 5
    assert graph.scopes["edge"].tolist() == [[0, 1]]
    with pytest.raises(ValueError, match="read-only"):
        graph.scopes["edge"][0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        graph.n_states[0] = 3
    with pytest.raises(TypeError):
        graph.scopes["edge"] = edges


def test_pickled_graph_is_the_same_and_leaves_its_cache_behind() -> None:
    graph = zoo()["junction"].graph
    assert graph.regions is graph.regions
    copy = pickle.loads(pickle.dumps(graph))
    assert copy.kinds == graph.kinds
    for kind in graph.kinds:
        np.testing.assert_array_equal(copy.scopes[kind], graph.scopes[kind])
    assert copy.regions is not graph.regions
    assert not copy.n_states.flags.writeable
    assert not copy.scopes["edge"].flags.writeable
    assert len(pickle.dumps(graph)) == len(pickle.dumps(copy))


@pytest.mark.parametrize(
    ("n_states", "regions", "sentence"),
    [
        ([], {}, "at least one variable"),
        ([2, 0], {}, r"n_states\[1\] = 0"),
        ([[2, 2]], {}, "one-dimensional"),
        ([2.5, 2], {}, "whole numbers"),
        (["a"], {}, "whole numbers"),
        ([2, 2], {"edge": [[0, 2]]}, r"\[0, 2\] names a variable outside 0..1"),
        ([2, 2], {"edge": [[-1, 0]]}, "outside"),
        ([2, 2], {"edge": [[0, 1], [1, 1]]}, r"regions\['edge'\]\[1\] = \[1, 1\] names a variable twice"),
        ([2, 2], {"edge": [0, 1]}, "shape"),
        ([2, 2], {"edge": [[0, 1], [1]]}, "different orders"),
        ([2, 2], {"edge": [[0.5, 1]]}, "whole numbers"),
        ([2, 2], {"": [[0, 1]]}, "non-empty string"),
        ([2, 2], {7: [[0, 1]]}, "non-empty string"),
        ([2, 2], {"node": [[0], [0]]}, "variable 0 has 2 single-variable regions"),
        ([2, 2], {"a": [[1]], "b": [[1]]}, "'a', 'b'"),
    ],
)
def test_bad_graphs_are_refused_in_one_sentence(n_states, regions, sentence: str) -> None:
    with pytest.raises(PotentiaError, match=sentence) as raised:
        Graph(n_states, regions)
    assert "\n" not in str(raised.value)


# -- builders -----------------------------------------------------------------------------------------------


def test_chain_and_tree() -> None:
    assert Graph.chain(4, n_states=2).scopes["edge"].tolist() == [[0, 1], [1, 2], [2, 3]]
    assert Graph.chain(1, n_states=2).scopes["edge"].shape == (0, 2)
    tree = Graph.tree([-1, 0, 0, -1, 3], n_states=[2, 3, 2, 2, 4])
    assert edge_set(tree) == {(0, 1), (0, 2), (3, 4)}
    assert tree.n_states.tolist() == [2, 3, 2, 2, 4]


def test_a_pair_per_column_is_refused():
    pairs = np.stack([np.arange(4), np.arange(1, 5)])
    with pytest.raises(PotentiaError, match=r"regions\['edge'\] has shape \(2, 4\).*transpose"):
        Graph([2] * 5, {"edge": pairs})
    with pytest.raises(PotentiaError, match=r"names a variable twice; transpose"):
        Graph([2] * 5, {"link": [[0, 1, 1], [1, 2, 3]]})
    with pytest.raises(PotentiaError, match=r"at most 64 variables.*transpose"):
        _ = Graph([2] * 200, {"link": np.stack([np.arange(190), np.arange(1, 191)])}).regions
    assert Graph([2] * 5, {"edge": pairs.T}).scopes["edge"].shape == (4, 2)
    assert Graph([2] * 5, {"square": [[0, 1, 2, 3], [1, 2, 3, 4]]}).max_order == 4


def test_a_kind_with_all_pairs_in_both_directions_warns_once_where_it_is_given():
    edges = [[0, 1], [1, 2], [2, 1], [1, 0]]
    with pytest.warns(UserWarning, match=r"both directions, such as \(1, 2\) and \(2, 1\)") as caught:
        graph = Graph([2] * 3, {"edge": edges})
    assert [w.filename for w in caught] == [__file__]
    pt.extend.Union([graph, graph])  # without a second warning
    Graph([2] * 3, {"edge": [*edges, [0, 2]], "forward": edges[:2], "back": edges[2:]})
    with pytest.warns(UserWarning, match="both directions"):
        Graph.from_pystruct((np.ones((3, 1)), np.array(edges)), n_states=2)


def test_the_shape_of_a_colour_image_warns():
    with pytest.warns(UserWarning, match=r"image.shape\[:2\]") as caught:
        Graph.grid((6, 7, 3), n_states=2)
    assert [w.filename for w in caught] == [__file__]
    assert Graph.grid((6, 7, 3), n_states=2, neighbours=6).n_variables == 126
    for image in (np.zeros((6, 7, 3)), np.zeros((6, 7), dtype=np.uint8), np.zeros(5000)):
        with pytest.raises(PotentiaError, match=r"shape must be the sides.*image.shape\[:2\]") as error:
            Graph.grid(image, n_states=2)
        assert len(str(error.value)) < 150


@pytest.mark.parametrize("parents", [[1, 0], [0], [2, 0, 1, -1]])
def test_tree_with_a_cycle_is_refused(parents: list[int]) -> None:
    with pytest.raises(PotentiaError, match="cycle"):
        Graph.tree(parents, n_states=2)


@pytest.mark.parametrize(
    ("shape", "neighbours", "reach"),
    [((5,), 2, 1), ((4, 3), 4, 1), ((4, 3), 8, 2), ((2, 3, 4), 6, 1), ((3, 3, 2), 26, 3), ((1, 4), 4, 1)],
)
def test_grids_join_exactly_the_neighbours(shape, neighbours: int, reach: int) -> None:
    graph = Graph.grid(shape, n_states=2, neighbours=neighbours)
    places = np.array(list(np.ndindex(*shape)))
    steps = np.abs(places[:, None] - places[None])
    near = (steps.max(axis=2) == 1) & (steps.sum(axis=2) <= reach)
    assert edge_set(graph) == {(i, j) for i, j in np.argwhere(near).tolist() if i < j}
    assert len(graph.scopes["edge"]) == near.sum() // 2


def test_complete_and_networkx() -> None:
    assert len(Graph.complete(6, n_states=2).scopes["edge"]) == 15
    network = nx.Graph([("a", "b"), ("b", "c")])
    graph = Graph.from_networkx(network, n_states={"a": 2, "b": 3, "c": 4})
    assert graph.n_states.tolist() == [2, 3, 4]
    assert edge_set(graph) == {(0, 1), (1, 2)}


def test_pystruct_tuple() -> None:
    x = (np.ones((3, 4)), np.array([[0, 1], [1, 2]]), np.ones((2, 5)))
    graph, features = Graph.from_pystruct(x, n_states=2)
    assert edge_set(graph) == {(0, 1), (1, 2)}
    assert features["node"].shape == (3, 4)
    assert features["edge"].shape == (2, 5)
    assert set(Graph.from_pystruct(x[:2], n_states=2)[1]) == {"node"}


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: Graph.chain(0, n_states=2), "at least one variable"),
        (lambda: Graph.chain(3, n_states=[2, 2]), "for 3 variables"),
        (lambda: Graph.chain(3, n_states=0), "at least one state"),
        (lambda: Graph.tree([[0]], n_states=2), "one-dimensional"),
        (lambda: Graph.tree([-1, 5], n_states=2), r"parents\[1\] = 5"),
        (lambda: Graph.grid((), n_states=2), "at least one axis"),
        (lambda: Graph.grid((3, 0), n_states=2), "positive sides"),
        (lambda: Graph.grid((3, 3), n_states=2, neighbours=6), "4 or 8 neighbours"),
        (lambda: Graph.from_networkx(nx.DiGraph([(0, 1)]), n_states=2), "directed"),
        (lambda: Graph.from_networkx(nx.Graph([(0, 1)]), n_states={0: 2}), "no entry for networkx node 1"),
        (lambda: Graph.from_networkx(nx.Graph([(0, 0)]), n_states=2), "names a variable twice"),
        (lambda: Graph.from_pystruct([1, 2], n_states=2), "tuple"),
        (lambda: Graph.from_pystruct((np.ones(3), [[0, 1]]), n_states=2), "n_nodes, n_features"),
        (
            lambda: Graph.from_pystruct((np.ones((2, 1)), [[0, 1]], np.ones((3, 1))), n_states=2),
            r"edge_features has shape \(3, 1\)",
        ),
    ],
)
def test_bad_builders_are_refused_in_one_sentence(build, sentence: str) -> None:
    with pytest.raises(PotentiaError, match=sentence) as raised:
        build()
    assert "\n" not in str(raised.value)


# -- flat regions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", problems(None), ids=str)
def test_flat_regions_follow_the_reference(problem: Problem) -> None:
    regions = problem.graph.regions
    scopes, tables = ref.region_tables(*problem.model)
    assert [tuple(s) for s in np.split(regions.scope, regions.scope_ptr[1:-1])] == scopes
    assert regions.size.tolist() == [t.size for t in tables]
    assert [scopes[r] for r in regions.single] == [(i,) for i in range(problem.graph.n_variables)]
    for r, table in enumerate(tables):
        stride = regions.stride[regions.scope_ptr[r] : regions.scope_ptr[r + 1]]
        assert stride.tolist() == [s // table.itemsize for s in table.strides]
    for i in range(problem.graph.n_variables):
        mine = slice(regions.member_ptr[i], regions.member_ptr[i + 1])
        assert regions.member[mine].tolist() == [r for r, s in enumerate(scopes) if i in s]
        assert np.all(regions.scope[regions.member_at[mine]] == i)


def test_a_union_refuses_what_its_parts_would():
    a, b = Graph.grid((2, 2), n_states=2), Graph.chain(3, n_states=2)
    union = pt.extend.Union([a, b])
    for tables in (
        {"node": [5.0]},
        {"edge": np.ones((1, 2))},
        {"nodez": 1},
        {"node": np.ones((4, 3))},
        {"node": "x"},
        None,
    ):
        with pytest.raises(PotentiaError):
            union.join([tables, {}])
    with pytest.raises(PotentiaError, match="do not fit"):
        union.split({"node": np.zeros((2, 2))})
    with pytest.raises(PotentiaError, match="7 variables"):
        union.split_variables([0, 1])
    for parts in (None, a, []):
        with pytest.raises(PotentiaError, match="union"):
            pt.extend.Union(parts)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Graph.chain(2.5, n_states=2),
        lambda: Graph.complete("3", n_states=2),
        lambda: Graph.grid((2.5, 3), n_states=2),
        lambda: Graph.tree(3, n_states=2),
        lambda: Graph.chain(3, n_states=[[2], [2], [2]]),
        lambda: Graph([2], None),
        lambda: pt.TRW().infer(Graph([2] * 70, {"c": [list(range(70))]}), {"c": np.zeros((1, 2))}),
        lambda: Graph([2**63, 2], {"e": [[0, 1]]}),
        lambda: Graph.from_networkx(None, n_states=2),
        lambda: Graph.from_pystruct((np.zeros((6, 2)), np.array([[0, 1, 2, 3], [1, 2, 3, 4]])), n_states=2),
        lambda: pt.multilabel.indicators_to_labels(Graph.chain(3, n_states=2), {"nodes": np.eye(2)}),
    ],
)
def test_wrong_types_get_one_sentence(make):
    with pytest.raises(PotentiaError) as caught:
        make()
    assert "\n" not in str(caught.value)


# -- size ----------------------------------------------------------------------------------------------------


def test_a_grid_of_many_axes_of_one_variable_is_built_at_once():
    one = pt.Graph.grid((1,) * 40, n_states=2)
    assert (one.n_variables, len(one.scopes["edge"])) == (1, 0)
    wide = pt.Graph.grid((3, *(1,) * 20, 4), n_states=2)
    assert np.array_equal(wide.scopes["edge"], pt.Graph.grid((3, 4), n_states=2).scopes["edge"])
    every = pt.Graph.grid((3, 1, 4), n_states=2, neighbours=26)
    assert np.array_equal(every.scopes["edge"], pt.Graph.grid((3, 4), n_states=2, neighbours=8).scopes["edge"])


@pytest.mark.parametrize(
    "build",
    [
        lambda: pt.Graph.chain(50_000_000, n_states=2),
        lambda: pt.Graph.grid((10_000, 5_000), n_states=2),
        lambda: pt.Graph.grid((2,) * 60, n_states=2),
        lambda: pt.Graph.grid((2,) * 20, n_states=2, neighbours=3**20 - 1),
        lambda: pt.Graph.complete(100_000, n_states=2),
    ],
)
def test_a_graph_that_does_not_fit_is_refused_before_it_is_built(build, monkeypatch):
    monkeypatch.setenv("POTENTIA_MEMORY", "1")
    with pytest.raises(pt.PotentiaError, match=r"needs about .* GB of memory, but 1\.0 GB are available"):
        build()
