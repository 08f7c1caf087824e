"""Model files of other tools: what they mean, round trips, and one sentence for damage."""

from __future__ import annotations

import numpy as np
import pytest

import potentia as pt
from potentia.base.types import PotentiaError
from potentia.graph.scores import Scores, score_labels

WCSP = "example 3 3 3 10\n2 3 2\n2 0 1 0 2\n0 0 5\n1 2 10\n1 2 1 1\n0 0\n0 7 0\n"
CFN = """{problem: {name: "p", mustbe: "<10.5"}  # a comment
 variables: {"a": ["x", "y"], b: 3},
 functions: {f: {scope: [a b], costs: [0, 1.5, 2 3 4 11]}, g: {scope: ["a"], defaultcost: 1.0, costs: [y, 0.25]},
             h: {scope: [], costs: [2.0]}, k: {scope: ["a"], costs: "g"}}}"""
BIF = """network unknown { property x = 1; }
variable rain { type discrete [ 2 ] { yes, no }; }
variable grass { type discrete [ 3 ] { wet, damp, dry }; property note = "a { b"; }
probability ( rain ) { table 0.2, 0.8; }
probability ( grass | rain ) { (yes) 0.7, 0.3, 0.0; default 0.1, 0.2, 0.7; } // end
"""
FG = "# comment\n2\n\n2\n1 0\n3 2\n3\n0 0.5\n1 2\n5 4\n\n1\n0\n2\n2\n0 1\n1 3\n"


def write_text(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return path


def score(model, labels):
    return score_labels(Scores(model.graph, model.theta), np.array(labels))


def test_wcsp_costs(tmp_path):
    model = pt.formats.wcsp.read(write_text(tmp_path, "a.wcsp", WCSP))
    assert model.graph.n_states.tolist() == [2, 3, 2]
    assert score(model, [0, 0, 0]) == -12
    assert score(model, [0, 1, 1]) == -8
    assert score(model, [1, 2, 0]) == -np.inf


def test_wcsp_shared_functions(tmp_path):
    text = "p 3 2 2 100\n2 2 2\n-2 0 1 3 1\n0 0 1\n2 1 2 0 -1\n"
    model = pt.formats.wcsp.read(write_text(tmp_path, "a.wcsp", text))
    assert score(model, [0, 0, 0]) == -2
    assert score(model, [1, 1, 1]) == -6


def test_cfn_names_defaults_and_references(tmp_path):
    model = pt.formats.cfn.read(write_text(tmp_path, "a.cfn", CFN))
    assert model.variables == ["a", "b"]
    assert model.states[0] == ["x", "y"]
    assert score(model, [0, 1]) == pytest.approx(-(1.5 + 1 + 1 + 2))
    assert score(model, [1, 0]) == pytest.approx(-(3 + 0.25 + 0.25 + 2))
    assert score(model, [1, 2]) == -np.inf


def test_bif_is_a_normalised_network(tmp_path):
    model = pt.formats.bif.read(write_text(tmp_path, "a.bif", BIF))
    assert model.variables == ["rain", "grass"]
    assert model.states[1] == ["wet", "damp", "dry"]
    assert pt.Exact().infer(model.graph, model.theta).value == pytest.approx(0.0, abs=1e-12)
    assert np.exp(score(model, [0, 1])) == pytest.approx(0.06)
    assert score(model, [0, 2]) == -np.inf
    path = tmp_path / "b.bif"
    pt.formats.bif.write(path, model.graph, model.theta, model.variables, model.states)
    again = pt.formats.bif.read(path)
    assert again.states == model.states
    for labels in np.ndindex(2, 3):
        assert score(again, labels) == pytest.approx(score(model, labels))


def test_fg_first_variable_changes_fastest(tmp_path):
    model = pt.formats.fg.read(write_text(tmp_path, "a.fg", FG))
    assert model.graph.n_states.tolist() == [2, 3]
    assert np.exp(score(model, [0, 0])) == pytest.approx(0.5)
    assert np.exp(score(model, [0, 1])) == pytest.approx(2.0)
    assert np.exp(score(model, [1, 2])) == pytest.approx(12.0)
    assert score(model, [0, 2]) == -np.inf


@pytest.mark.parametrize("name", ["cfn", "fg", "wcsp"])
def test_round_trips(name, tmp_path):
    rng = np.random.default_rng(0)
    triple = rng.normal(size=(2, 3, 2))
    triple[0, 1, 0] = -np.inf
    graph, theta = pt.Graph.from_factors(
        [([2, 0, 1], triple), ([1], rng.normal(size=2)), ([0, 2], rng.normal(size=(3, 2)))]
    )
    module, path = getattr(pt.formats, name), tmp_path / f"model.{name}"
    module.write(path, graph, theta)
    model = module.read(path)
    scores = Scores(graph, theta)
    labels = list(np.ndindex(*graph.n_states))
    before = np.array([score_labels(scores, np.array(y)) for y in labels])
    after = np.array([score(model, y) for y in labels])
    assert np.array_equal(np.isinf(before), np.isinf(after))
    finite = np.isfinite(before)
    if name == "wcsp":  # whole costs of thousandths, without the tables' largest scores
        after, before, atol = after - after[finite][0], 1000.0 * (before - before[finite][0]), 3.1
    else:
        atol = 1e-9
    np.testing.assert_allclose(after[finite], before[finite], atol=atol)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("wcsp", "p 2 2 1 10\n2 2\n2 0 5 0 0\n", "names variable 5; the model has 0..1"),
        ("wcsp", "p 2 2 1 10\n2 2\n2 0 1 0 1\n0 3 1\n", "value 3"),
        ("wcsp", "p 2 2 1 10\n2 2\n2 0 1 -1 salldiff\n", "global"),
        ("wcsp", "p 2 2 1 10\n2 2\n2 0 1 0 9999999\n", "ends early"),
        ("wcsp", "p 40 2 1 10\n" + "2 " * 40 + "\n40 " + " ".join(map(str, range(40))) + " 0 0\n", r"2\^28"),
        ("cfn", "{problem: {}", "not in the CFN format"),
        ("cfn", '{"variables": {"a": 2}, "functions": {"f": {"scope": ["b"], "costs": [1, 2]}}}', "'b'"),
        ("cfn", '{"variables": {"a": 2}, "functions": {"f": {"scope": ["a"], "costs": [1]}}}', "need 2"),
        ("cfn", "[" * 100_000, "not in the CFN format"),
        ("bif", "variable a { type discrete [ 2 ] { x, y }; } probability ( a ) { table 0.5; }", "needs 2"),
        ("bif", "variable a { type discrete [ 2 ] { x, y }; } probability ( a | b ) { }", "no variable"),
        ("bif", "something else", "'something'"),
        ("fg", "1\n\n1\n0\n2\n1\n7 0.5\n", "0..1"),
        ("fg", "1\n\n1\n0\n2\n1\n0 -0.5\n", "negative"),
        ("fg", "1\n\n1\n99999999\n2\n1\n0 1\n", "numbered up to"),
    ],
)
def test_damage_is_one_sentence(name, text, words, tmp_path):
    path = write_text(tmp_path, f"bad.{name}", text)
    with pytest.raises(PotentiaError, match=words) as error:
        getattr(pt.formats, name).read(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_factors_are_merged_and_checked():
    table = np.arange(6.0).reshape(2, 3)
    graph, theta = pt.Graph.from_factors([([0, 1], table), ([1, 0], table.T), ([], 1.0)])
    assert graph.kinds == ("edge",)
    assert np.array_equal(theta["edge"][0], 2 * table + 1.0)
    for factors, words in (
        ([([0, 0], np.zeros((2, 2)))], "twice"),
        ([([0], np.zeros((2, 2)))], "axis per variable"),
        ([([0], np.zeros(2)), ([0], np.zeros(3))], "shape"),
        ([([-1], np.zeros(2))], "count from 0"),
        ([([1], np.zeros(2))], "give n_states"),
        ([3], "pair"),
        (7, "list"),
    ):
        with pytest.raises(PotentiaError, match=words):
            pt.Graph.from_factors(factors)
