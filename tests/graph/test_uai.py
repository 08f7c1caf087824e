"""UAI files: what is read, what is written, and what is refused with which sentence."""

from __future__ import annotations

import lzma
import math
import re
from pathlib import Path

import numpy as np
import pytest

import reference
from data_sets import DATA, needs
from potentia import uai
from potentia.base.types import InfeasibleError, PotentiaError
from potentia.graph.scores import Scores
from potentia.graph.structure import Graph
from potentia.inference.elimination import eliminate

GOOD = """MARKOV
3
2 3 2
4
1 0
2 2 1
3 0 1 2
2 1 2

2
 .25 .75
6
 1 2 3
 4 5 6
12
 1 2 3 4 5 6
 7 8 9 10 11 12
6
 1 1e2
 0 1
 1 1
"""


def saved(folder, text, name="model.uai"):
    path = folder / name
    path.write_text(text)
    return path


def test_reads_merges_and_sorts_scopes(tmp_path):
    graph, theta = uai.read(saved(tmp_path, GOOD))
    assert graph.kinds == ("node", "edge", "clique3")
    assert graph.n_states.tolist() == [2, 3, 2]
    assert {k: s.tolist() for k, s in graph.scopes.items()} == {"node": [[0]], "edge": [[1, 2]], "clique3": [[0, 1, 2]]}
    np.testing.assert_allclose(np.exp(theta["node"]), [[0.25, 0.75]])
    # the table over (2, 1) is turned, then multiplied with the one over (1, 2); 0 becomes -inf
    np.testing.assert_allclose(np.exp(theta["edge"]), [[[1, 400], [0, 5], [3, 6]]])
    assert theta["edge"][0, 1, 0] == -np.inf
    np.testing.assert_allclose(np.exp(theta["clique3"]).ravel(), np.arange(1, 13))


def test_mixed_state_counts_give_lists(tmp_path):
    text = "MARKOV 3 2 3 2 2 2 0 1 2 0 2 6 1 1 1 1 1 1 4 1 2 3 4"
    graph, theta = uai.read(saved(tmp_path, text))
    assert isinstance(theta["edge"], list)
    assert [t.shape for t in theta["edge"]] == [(2, 3), (2, 2)]
    Scores(graph, theta)


def test_bayes_and_any_white_space(tmp_path):
    text = "BAYES\r\n2\r\n2 2\r\n2\r\n1 0\r\n2 0 1\r\n\r\n2\r\n\t0.4 0.6\r\n4\r\n0.1 0.9 0.5 0.5"
    graph, theta = uai.read(saved(tmp_path, text))
    assert reference.log_partition(graph, theta) == pytest.approx(0.0, abs=1e-12)


def test_constant_factors_count(tmp_path):
    text = "MARKOV 2 2 2 3 0 1 1 0 1 3.0 2 1 4 1 0.5"
    graph, theta = uai.read(saved(tmp_path, text))
    # 3 * 0.5 * (1 + 4) * 2 states of the free variable
    assert reference.log_partition(graph, theta) == pytest.approx(math.log(15.0))


def test_only_constants(tmp_path):
    graph, theta = uai.read(saved(tmp_path, "MARKOV 1 3 1 0 1 7"))
    assert graph.scopes["node"].tolist() == [[0]]
    assert reference.log_partition(graph, theta) == pytest.approx(math.log(21.0))


def test_no_factors(tmp_path):
    graph, theta = uai.read(saved(tmp_path, "MARKOV 2 3 2 0"))
    assert graph.kinds == ()
    assert theta == {}


BAD_MODELS = {
    "empty": ("", "the file ends early: the preamble needs 1 entries, 0 are left"),
    "preamble": ("LIMID 1 2 0", "the preamble is 'LIMID'; only MARKOV and BAYES are known"),
    "only preamble": ("MARKOV", "the number of variables needs 1 entries"),
    "no variables": ("MARKOV 0 0", "the model has no variables"),
    "count not a number": ("MARKOV two", "the number of variables should be a whole number, not 'two'"),
    "negative count": ("MARKOV -1", "the number of variables should be a whole number, not '-1'"),
    "fraction": ("MARKOV 1.0", "should be a whole number, not '1.0'"),
    "endless digits": ("MARKOV " + "9" * 5000, "should be a whole number"),
    "more variables than file": ("MARKOV 99999999999 2", "the list of state counts needs 99999999999 entries"),
    "states cut short": ("MARKOV 3 2 2", "the list of state counts needs 3 entries, 2 are left"),
    "no states": ("MARKOV 2 2 0 0", "variable 1 has 0 states"),
    "factor count missing": ("MARKOV 1 2", "the number of factors needs 1 entries"),
    "scopes cut short": ("MARKOV 2 2 2 2 1 0", "the size of the scope of factor 1 needs 1 entries"),
    "scope cut short": ("MARKOV 2 2 2 1 2 0", "the scope of factor 0 needs 2 entries, 1 are left"),
    "variable out of range": ("MARKOV 2 2 2 1 1 2 2 1 1", "factor 0 names variable 2; the model has 0..1"),
    "variable twice": ("MARKOV 2 2 2 1 2 1 1 4 1 1 1 1", "factor 0 names a variable twice in its scope [1, 1]"),
    "table missing": ("MARKOV 1 2 1 1 0", "the size of the table of factor 0 needs 1 entries"),
    "table size": ("MARKOV 1 2 1 1 0 3 1 1 1", "the table of factor 0 has 3 entries; its variables need 2"),
    "table cut short": ("MARKOV 1 2 1 1 0 2 1", "the table of factor 0 needs 2 entries, 1 are left"),
    "not a number": ("MARKOV 1 2 1 1 0 2 1 x", "the table of factor 0 holds 'x', which is not a number"),
    "underscore": ("MARKOV 1 2 1 1 0 2 1 1_0", "the table of factor 0 holds '1_0', which is not a number"),
    "negative": ("MARKOV 1 2 1 1 0 2 1 -1", "holds -1.0; probabilities must be finite and not negative"),
    "nan": ("MARKOV 1 2 1 1 0 2 1 nan", "holds nan; probabilities must be finite and not negative"),
    "infinite": ("MARKOV 1 2 1 1 0 2 1 inf", "holds inf; probabilities must be finite and not negative"),
    "trailing": ("MARKOV 1 2 1 1 0 2 1 1 5 6", "2 entries follow the end of the data, first '5'"),
    "all zero": ("MARKOV 1 2 1 1 0 2 0 0", "the table of factor 0 is all zero, which forbids everything"),
    "zero constant": ("MARKOV 1 2 1 0 1 0", "the table of factor 0 is all zero, which forbids everything"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_malformed_models_get_one_sentence(tmp_path, case):
    text, sentence = BAD_MODELS[case]
    path = saved(tmp_path, text)
    with pytest.raises(PotentiaError, match=re.escape(sentence)) as caught:
        uai.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, InfeasibleError) == ("all zero" in sentence)


def test_every_truncation_is_noticed(tmp_path):
    words = GOOD.split()
    for n in range(len(words)):
        with pytest.raises(PotentiaError, match=r"model.uai: the file ends early"):
            uai.read(saved(tmp_path, " ".join(words[:n])))


def test_binary_and_broken_xz_files(tmp_path):
    binary = tmp_path / "binary.uai"
    binary.write_bytes(bytes(range(256)))
    with pytest.raises(PotentiaError, match=r"binary.uai: the text is not ASCII"):
        uai.read(binary)
    packed = lzma.compress(GOOD.encode())
    for name, data in (("cut.uai.xz", packed[:-20]), ("wrong.uai.xz", GOOD.encode())):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(PotentiaError, match=f"{name}: the file cannot be read: it is not a complete xz file"):
            uai.read(tmp_path / name)


# -- evidence ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", {}),
        ("0\n", {}),
        ("2 4 1 0 0", {4: 1, 0: 0}),
        ("2\n4 1\n0 0\n", {4: 1, 0: 0}),
        ("1\n2 4 1 0 0", {4: 1, 0: 0}),
        ("1\n0", {}),
        ("1 7 0", {7: 0}),
        ("2 3 1 3 1", {3: 1}),
    ],
)
def test_evidence_in_both_layouts(tmp_path, text, expected):
    assert uai.read_evidence(saved(tmp_path, text, "e.evid")) == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the number of observed variables needs 1 entries"),
        ("2 4 1", "the list of observed variables and states needs 4 entries, 2 are left"),
        ("2 4 1 0", "starts with 2, which fits neither layout"),
        ("1 4 1 0 0", "2 entries follow the end of the data"),
        ("1 4 x", "should be a whole number, not 'x'"),
        ("1 4 -1", "should be a whole number, not '-1'"),
        ("2 3 1 3 0", "variable 3 is observed in two states, 1 and 0"),
    ],
)
def test_malformed_evidence(tmp_path, text, sentence):
    path = saved(tmp_path, text, "e.evid")
    with pytest.raises(PotentiaError, match=re.escape(sentence)) as caught:
        uai.read_evidence(path)
    assert str(caught.value).startswith(f"{path}: ")


# -- writing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["out.uai", "out.uai.xz"])
def test_round_trip(tmp_path, name):
    graph, theta = uai.read(saved(tmp_path, GOOD))
    uai.write(tmp_path / name, graph, theta)
    again, scores = uai.read(tmp_path / name)
    assert again.n_states.tolist() == graph.n_states.tolist()
    assert scores.keys() == theta.keys()
    for kind in theta:
        assert again.scopes[kind].tolist() == graph.scopes[kind].tolist()
        np.testing.assert_allclose(scores[kind], theta[kind], rtol=1e-15, atol=1e-15)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["model.uai", name])


def test_writes_shared_tables_and_other_kinds(tmp_path):
    graph = Graph([2, 2, 3], {"left": [[1, 0]], "right": [[0, 1]], "tail": [[2]]})
    theta = {"left": np.array([[0.0, 1.0], [2.0, 3.0]]), "right": None, "tail": np.array([[-np.inf, 0.0, 1.0]])}
    uai.write(tmp_path / "out.uai", graph, theta)
    again, scores = uai.read(tmp_path / "out.uai")
    assert again.kinds == ("node", "edge")
    np.testing.assert_allclose(scores["edge"], [[[0.0, 2.0], [1.0, 3.0]]], atol=1e-15)
    assert reference.log_partition(again, scores) == pytest.approx(reference.log_partition(graph, theta))


@pytest.mark.parametrize("level", [5000.0, -5000.0, 699.0, -701.0])
def test_scores_beyond_the_range_of_exp_keep_log_partition(tmp_path, level):
    graph = Graph.chain(3, n_states=2)
    rng = np.random.default_rng(0)
    theta = {"node": rng.normal(size=(3, 2)), "edge": level + 100 * rng.normal(size=(2, 2, 2))}
    uai.write(tmp_path / "out.uai", graph, theta)
    again, scores = uai.read(tmp_path / "out.uai")
    for kind in ("node", "edge"):
        moved = (scores[kind] - theta[kind]).reshape(len(theta[kind]), -1)
        np.testing.assert_allclose(moved, np.broadcast_to(moved[:, :1], moved.shape), atol=1e-9)
    expected = reference.log_partition(graph, theta)
    assert reference.log_partition(again, scores) == pytest.approx(expected, rel=1e-12)


def test_refuses_a_span_no_file_can_hold(tmp_path):
    graph = Graph([2], {"node": [[0]]})
    with pytest.raises(PotentiaError, match=r"variables \[0\] span 1500; a UAI file can hold a span of 1400"):
        uai.write(tmp_path / "out.uai", graph, {"node": [[0.0, 1500.0]]})
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    graph, theta = uai.read(saved(tmp_path, GOOD))

    def broken(self, target):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(PotentiaError, match=r"model\.uai cannot be written: disk full"):
        uai.write(tmp_path / "model.uai", graph, theta)
    assert [p.name for p in tmp_path.iterdir()] == ["model.uai"]
    assert (tmp_path / "model.uai").read_text() == GOOD


# -- results -------------------------------------------------------------------------------------------------


def test_results_round_trip(tmp_path):
    graph, theta = uai.read(saved(tmp_path, GOOD))
    result = eliminate(Scores(graph, theta))
    for task in ("PR", "MAR", "MAP"):
        uai.write_result(tmp_path / task, result, task)
    partition, marginals, labels = (uai.read_result(tmp_path / task) for task in ("PR", "MAR", "MAP"))
    assert partition.log10_partition == pytest.approx(result.value / math.log(10), rel=1e-15)
    np.testing.assert_allclose(marginals.marginals, result.variable_marginals, atol=1e-12)
    np.testing.assert_array_equal(labels.labels, result.argmax())
    assert (partition.marginals, partition.labels, labels.log10_partition) == (None, None, None)


def test_result_files_look_like_the_competition(tmp_path):
    graph = Graph([2, 3], {"node": [[0]]})
    result = eliminate(Scores(graph, {"node": np.log([[0.25, 0.75]])}))
    expected = {
        "PR": r"PR\n0\.47712125\d*\n",
        "MAR": r"MAR\n2 2 0\.25 0\.75 3 0\.333333333333 0\.333333333333 0\.333333333333\n",
        "MAP": r"MAP\n2 1 [012]\n",
    }
    for task, pattern in expected.items():
        uai.write_result(tmp_path / task, result, task)
        assert re.fullmatch(pattern, (tmp_path / task).read_text())


def test_unknown_task(tmp_path):
    result = eliminate(Scores(Graph([2], {}), {}))
    with pytest.raises(PotentiaError, match="task must be one of 'PR', 'MAR', 'MAP', 'MMAP', not 'MPE'"):
        uai.write_result(tmp_path / "out", result, "MPE")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the task needs 1 entries"),
        ("MPE 1 0", "the task is 'MPE'; only PR, MAR, MAP and MMAP are known"),
        ("PR", "log10 Z needs 1 entries"),
        ("PR x", "log10 Z holds 'x', which is not a number"),
        ("PR 1 2", "1 entries follow the end of the data"),
        ("MAR 2 2 .5 .5 2 .5", "marginal 1 needs 2 entries, 1 are left"),
        ("MAP 3 0 1", "the labelling needs 3 entries, 2 are left"),
        ("MAP 1 a", "the labelling should be a whole number, not 'a'"),
    ],
)
def test_malformed_results(tmp_path, text, sentence):
    path = saved(tmp_path, text, "r")
    with pytest.raises(PotentiaError, match=re.escape(sentence)) as caught:
        uai.read_result(path)
    assert str(caught.value).startswith(f"{path}: ")


# -- the data folder -----------------------------------------------------------------------------------------


@needs("uai")
def test_reads_the_compressed_geometric_surface_model():
    graph, theta = uai.read(DATA / "uai" / "GeomSurf-7-gm256.uai.xz")
    assert graph.n_variables == 787
    assert {k: t.shape for k, t in theta.items()} == {"node": (787, 7), "edge": (2180, 7, 7), "clique3": (560, 7, 7, 7)}


@needs("uai")
def test_published_results_are_read():
    partition = uai.read_result(DATA / "uai" / "Pedigree_11.uai.PR")
    assert partition.log10_partition == -17.2155
    marginals = uai.read_result(DATA / "uai" / "Pedigree_11.uai.MAR").marginals
    np.testing.assert_allclose(marginals.sum(axis=1), 1.0, atol=2e-6)
    graph, _ = uai.read(DATA / "uai" / "Pedigree_11.uai")
    assert marginals.shape == (graph.n_variables, graph.n_states.max())
    assert len(uai.read_evidence(DATA / "uai" / "Pedigree_11.uai.evid")) == 37
    assert len(uai.read_result(DATA / "uai" / "Pedigree_11.uai.MAP").labels) == graph.n_variables
