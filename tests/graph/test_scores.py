"""Labels, clamps and scores: what is accepted, what it becomes, and one clear sentence for the rest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import potentia as pt
import reference as ref
from potentia import Potts
from potentia.base.types import InfeasibleError, PotentiaError
from potentia.graph.scores import Scores, indicators_to_labels, labels_to_indicators, observed_states, score_labels
from potentia.graph.structure import Graph
from zoo import Problem, problems


@given(data=st.data(), problem=st.sampled_from(problems(None)))
@settings(max_examples=60, deadline=None)
def test_labels_survive_the_way_to_indicators_and_back(data, problem: Problem) -> None:
    graph = problem.graph
    labels = np.array([data.draw(st.integers(-1, int(n) - 1)) for n in graph.n_states])
    indicators = labels_to_indicators(graph, labels)
    back = indicators_to_labels(graph, indicators)
    for kind, scopes in graph.scopes.items():
        for scope, table in zip(scopes, indicators[kind], strict=True):
            seen = np.all(labels[scope] >= 0)
            assert table.sum() == seen
            assert not seen or table[tuple(labels[scope])] == 1
    covered = {i for s in graph.scopes.values() for row in s if np.all(labels[row] >= 0) for i in row.tolist()}
    np.testing.assert_array_equal(back, [y if i in covered else -1 for i, y in enumerate(labels)])


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ([0, 1], "shape"),
        ([0, 1, 2], r"labels\[2\] = 2"),
        ([0, -2, 0], "-2"),
        ([0.5, 0, 0], "whole"),
        (["a"] * 3, "whole"),
    ],
)
def test_bad_labels_are_refused(labels, sentence: str) -> None:
    with pytest.raises(PotentiaError, match=sentence):
        labels_to_indicators(Graph.chain(3, n_states=2), labels)


def test_observed_as_mapping_or_array() -> None:
    graph = Graph.chain(3, n_states=[2, 3, 2])
    assert observed_states(graph, None).tolist() == [-1, -1, -1]
    assert observed_states(graph, {1: 2}).tolist() == [-1, 2, -1]
    assert observed_states(graph, [0, -1, 1]).tolist() == [0, -1, 1]
    for bad, sentence in (({3: 0}, "variable 3"), ({0: 2}, "state 2"), ({0: -2}, "state -2"), ([0], "shape")):
        with pytest.raises(PotentiaError, match=sentence):
            observed_states(graph, bad)


@pytest.mark.parametrize("problem", problems(None), ids=str)
def test_scores_hold_the_reference_tables(problem: Problem) -> None:
    scores = Scores(*problem.model)
    values, where = scores.flat()
    for r, table in enumerate(ref.region_tables(*problem.model)[1]):
        np.testing.assert_array_equal(scores.table(r), table)
        np.testing.assert_array_equal(values[where[r] : where[r] + table.size], table.ravel())
    every, expected = ref.labellings(problem.graph), ref.label_scores(*problem.model)
    for k in range(0, len(every), max(1, len(every) // 20)):
        assert score_labels(scores, every[k]) == pytest.approx(expected[k], rel=1e-12, abs=1e-12)


def test_shared_tables_are_not_copied() -> None:
    graph = Graph.grid((3, 3), n_states=2)
    scores = Scores(graph, {"edge": np.eye(2)})
    values, offset = scores.kind("edge")
    assert len(values) == 4
    assert not offset.any()


def test_tables_by_weights_are_whole_as_soon_as_other_threads_see_them() -> None:
    class Seen(dict):
        def __setitem__(self, kind, values) -> None:
            super().__setitem__(kind, values)
            assert scores.kind(kind)[0] is values

    graph = Graph.chain(3, n_states=2)
    scores = Scores(graph, {"edge": Potts([1.0, 2.0])})
    scores._values = Seen(scores._values)
    assert scores.kind("edge")[1].tolist() == [0, 4]


@pytest.mark.parametrize(
    ("theta", "sentence"),
    [
        ([1, 2], "must map kinds"),
        ({"pair": np.zeros((2, 2))}, "'pair'"),
        ({"node": np.zeros((2, 2))}, r"theta\['node'\] has shape \(2, 2\); expected \(3, 2\)"),
        ({"edge": np.zeros((2, 2, 3))}, "expected"),
        ({"edge": np.zeros(4)}, "expected"),
        ({"node": [[0, 0], [0, np.nan], [0, 0]]}, r"theta\['node'\]\[1\] \(variables \[1\]\) holds NaN"),
        ({"node": [[0, 0], [0, np.inf], [0, 0]]}, "only -inf"),
        ({"node": "abc"}, "not an array of numbers"),
        ({"node": [[0, 0], [0], [0, 0]]}, "not an array of numbers"),
        ({"node": np.zeros((3, 2), dtype=complex)}, "numbers"),
    ],
)
def test_bad_scores_are_refused_in_one_sentence(theta, sentence: str) -> None:
    with pytest.raises(PotentiaError, match=sentence) as raised:
        Scores(Graph.chain(3, n_states=2), theta)
    assert "\n" not in str(raised.value)


def test_bad_scores_of_mixed_tables() -> None:
    graph = Graph.chain(2, n_states=[2, 3])
    for node, sentence in (
        ([np.zeros(2)], "1 tables for 2 regions"),
        ([np.zeros(2), np.zeros(2)], r"theta\['node'\]\[1\] has shape \(2,\)"),
        (5, "node"),
    ):
        with pytest.raises(PotentiaError, match=sentence):
            Scores(graph, {"node": node})


def test_regions_and_clamps_that_forbid_everything() -> None:
    graph = Graph.chain(3, n_states=2)
    with pytest.raises(InfeasibleError, match=r"theta\['edge'\]\[1\] \(variables \[1, 2\]\) forbids every"):
        Scores(graph, {"edge": [np.zeros((2, 2)), np.full((2, 2), -np.inf)]})
    with pytest.raises(InfeasibleError, match="variable 0 is observed in state 1"):
        Scores(graph, {"node": [[0, -np.inf], [0, 0], [0, 0]]}, {0: 1})


def test_pairs_that_theta_does_not_name_give_a_warning():
    graph = Graph.chain(3, n_states=2)
    node = np.zeros((3, 2))
    with pytest.warns(UserWarning, match=r"no scores for the 2 pairs of kind 'edge'") as caught:
        pt.Exact().infer(graph, {"node": node})
    assert [w.filename for w in caught] == [__file__]
    for theta in ({"node": node, "edge": None}, {"edge": np.zeros((2, 2))}, {}):
        assert pt.Exact().infer(graph, theta).value == pytest.approx(3 * np.log(2))


def test_masked_arrays_are_refused_instead_of_unmasked():
    graph = Graph.chain(3, n_states=2)
    masked = np.ma.array(np.zeros((3, 2)), mask=np.eye(3, 2))
    labels = np.ma.array([0, 1, 1], mask=[0, 1, 0])
    for name, call in {
        "theta": lambda: pt.Exact().infer(graph, {"node": masked, "edge": None}),
        "observed": lambda: pt.Exact().infer(graph, {}, labels),
        "labels": lambda: pt.Example(graph, None, labels),
        "features": lambda: pt.Example(graph, {"node": masked}),
        "weights": lambda: pt.Example(graph, None, [0, 1, 1], labels),
        "n_states": lambda: Graph(labels + 1, {}),
    }.items():
        with pytest.raises(PotentiaError, match=rf"{name}.* masked array"):
            call()
    assert pt.Example(graph, None, labels.filled(-1)).labels.tolist() == [0, -1, 1]
    assert pt.Example(graph, None, np.ma.array([0, 1, 1])).labels.tolist() == [0, 1, 1]
