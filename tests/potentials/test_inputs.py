"""Inputs of whole examples: potentials that read them see all of an example, whatever its labels and cuts."""

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

import potentia as pt
from potentia import Constant, Example, Linear
from potentia.learn import data, part
from potentia.learn.base import fit_digest
from potentia.potentials.base import Potential
from potentia.potentials.inputs import Inputs, row_chunks
from potentia.testing import check_potential

pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")  # fits are cut short


def context(matrix):
    """Features of each region that depend on the whole example."""
    return np.hstack([matrix, np.tile(matrix.sum(axis=0) / 9, (len(matrix), 1)), matrix[::-1]])


class Context(Linear):
    """A linear function of what `context` makes of an example."""

    unit = "example"
    saved = Potential.saved

    def _expand(self, x):
        return x.map(context)


def chains(sizes=(7, 300, 2, 55, 310), seed=0, hidden=0.0, weighted=False, dtype=float):
    """Pairs of examples that say the same by inputs and by features."""
    rng = np.random.default_rng(seed)
    by_input, by_row = [], []
    for k, n in enumerate(sizes):
        x = rng.normal(size=(n, 2)).astype(dtype)
        y = (x[:, 0] + x[::-1, 1] + rng.normal(size=n) > 0).astype(int)
        y[rng.random(n) < hidden] = -1
        weights = rng.random(n) * (rng.random(n) > 0.1) if weighted else None
        edge = {"edge": rng.normal(size=(n - 1, 1))}
        graph = pt.Graph.chain(n, n_states=2)
        by_input.append(Example(graph, edge, y, weights, f"e{k}", inputs={"node": x}))
        by_row.append(Example(graph, edge | {"node": context(x).astype(float)}, y, weights, f"e{k}"))
    return by_input, by_row


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_rows_of_inputs_are_those_of_the_joined_tables(sizes, seed):
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=(n, 2)) for n in sizes]
    whole = np.concatenate([context(a) for a in arrays])
    kept = np.flatnonzero(rng.random(len(whole)) < 0.7)
    x = Inputs(arrays, sizes)
    for table, inputs in ((whole, x), (whole[kept], x[kept])):
        some = rng.integers(0, len(table), 5) if len(table) else np.zeros(0, int)
        cut = slice(*np.sort(rng.integers(0, len(table) + 1, 2)))
        for rows in (slice(None), cut, some, np.sort(some)):
            found = inputs[rows]
            assert len(found) == len(table[rows])
            if len(found):
                np.testing.assert_array_equal(found.map(context), table[rows])
        pieces = [inputs[rows] for rows in row_chunks(len(inputs), 2**16, 3, inputs.ptr)]
        assert sum(map(len, pieces)) == len(table)
        assert all(len(piece) <= 4 or len(piece.arrays) == 1 for piece in pieces)
        again = Inputs.join([inputs[cut], inputs[:0], inputs])
        if len(table):
            np.testing.assert_array_equal(again.map(context), np.concatenate([table[cut], table]))


def test_contract():
    check_potential(Context)


class Looking(Context):
    """Notes which arrays it is shown."""

    seen: ClassVar[list] = []

    def _expand(self, x):
        Looking.seen.append([len(a) for a in x.arrays])
        return super()._expand(x)


LEARNERS = {
    "direct": pt.IteratedLogistic(iterations=5, tol=0),
    "alternating": pt.IteratedLogistic(solver="alternating", iterations=2, sweeps=4, tol=0),
    "soft": pt.IteratedLogistic(hidden="soft", iterations=2, sweeps=4, tol=0),
    "risk": pt.MarginalRisk(inference=pt.TRW(iterations=5, tol=0), iterations=5, tol=0),
    "batches": pt.MarginalRisk("pseudolikelihood", batch=2, iterations=2),
}


@pytest.mark.parametrize("cut", [None, 700])
@pytest.mark.parametrize("name", LEARNERS)
def test_a_fit_by_inputs_is_the_fit_by_the_features_made_of_them(name, cut, monkeypatch, tmp_path):
    learner = LEARNERS[name]
    if cut is not None:  # several parts and shards
        monkeypatch.setattr(data, "PART_ENTRIES", cut)
        monkeypatch.setattr(part, "SHARD_ENTRIES", cut // 2)
    weighted = name != "soft" and cut is None
    by_input, by_row = chains(hidden=0.3, weighted=weighted)
    ours = pt.CRF({"node": Context(), "edge": Linear()}, learner).fit(by_input, validation=by_input[:2])
    theirs = pt.CRF({"node": Linear(), "edge": Linear()}, learner).fit(by_row, validation=by_row[:2])
    # the same up to rounding, because pieces are other rows
    for a, b in zip(ours.history_, theirs.history_, strict=True):
        assert a["objective"] == pytest.approx(b["objective"], rel=1e-6)
        assert a["validation_error"] == pytest.approx(b["validation_error"], abs=0.02)
    fresh_input, fresh_row = chains((40, 3), seed=1)
    for a, b in zip(ours.predict_marginals(fresh_input), theirs.predict_marginals(fresh_row), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)
    ours.save(tmp_path / "model")
    for a, b in zip(pt.load(tmp_path / "model").predict(fresh_input), ours.predict(fresh_input), strict=True):
        np.testing.assert_array_equal(a, b)
    assert ours.theta(fresh_input[0])["node"].shape == (40, 2)
    assert ours.infer(fresh_input[1]).marginals["node"].shape == (3, 2)


def test_the_whole_example_is_seen_where_labels_are_hidden():
    by_input, _ = chains(hidden=0.6)
    Looking.seen.clear()
    pt.CRF({"node": Looking(), "edge": Constant()}, LEARNERS["alternating"]).fit(by_input)
    sizes = {e.graph.n_variables for e in by_input if np.any(e.labels >= 0)}
    assert {n for lengths in Looking.seen for n in lengths} == sizes


def test_class_weights_and_bare_variables_keep_inputs():
    by_input, _ = chains((12, 9))
    learner = pt.IteratedLogistic(class_weight=[1.0, 3.0], iterations=2, sweeps=2)
    model = pt.CRF({"node": Context(), "edge": Constant()}, learner).fit(by_input)
    assert model.history_[-1]["objective"] > 0
    graph = pt.Graph([2, 2, 2], {"edge": [[0, 1], [1, 2]]})
    pairs = [Example(graph, labels=[0, 1, 1], inputs={"edge": np.ones((2, 2))})]
    found = pt.CRF({"edge": Context()}, pt.IteratedLogistic(iterations=1)).fit(pairs)
    assert len(found.predict(pairs)[0]) == 3


def test_resuming_is_bit_for_bit(tmp_path):
    by_input, _ = chains(hidden=0.2)
    model = pt.CRF({"node": Context(), "edge": Linear()}, LEARNERS["direct"])
    whole = clone(model).fit(by_input)
    model.fit(by_input, checkpoint=tmp_path / "c", callback=lambda history: len(history) == 2)
    model.fit(by_input, checkpoint=tmp_path / "c")
    np.testing.assert_array_equal(model.potentials_["node"].table_, whole.potentials_["node"].table_)
    other = [Example(e.graph, e.features, e.labels, inputs={"node": e.inputs["node"] + 1}) for e in by_input]
    with pytest.raises(pt.PotentiaError, match="belongs to a run with other options or data"):
        model.fit(other, checkpoint=tmp_path / "c")


def test_examples_check_their_inputs():
    graph = pt.Graph.grid((2, 3), n_states=2)
    image = np.arange(18, dtype=np.uint8).reshape(3, 2, 3)
    example = Example(graph, inputs={"node": image, "edge": None})
    assert example.inputs["node"] is image
    assert list(example.inputs) == ["node"]
    assert "node input (3, 2, 3) uint8" in repr(example)
    assert np.shares_memory(Example(graph, inputs=example.inputs).inputs["node"], image)
    spoilt = image.astype(np.float32)
    spoilt[1, 0, 2] = np.inf
    for inputs, sentence in [
        ({"node": spoilt}, r"inputs\['node'\] holds a value that is not finite at \(1, 0, 2\)."),
        ({"node": [[1], [1, 2]]}, "not an array of numbers of one shape"),
        ({"node": ["a"]}, "must hold real numbers"),
        ({"node": np.array([None])}, "must hold real numbers"),
        ({"pair": image}, "inputs has kind 'pair', but the graph has node, edge"),
        (image, "inputs must be a mapping"),
    ]:
        with pytest.raises(pt.PotentiaError, match=sentence):
            Example(graph, inputs=inputs)


def test_digests_see_inputs():
    by_input, _ = chains((4, 3))
    plain = [Example(e.graph, e.features, e.labels) for e in by_input]
    learner, potentials = pt.IteratedLogistic(), {"node": Context(), "edge": Constant()}
    assert fit_digest(learner, potentials, by_input) != fit_digest(learner, potentials, plain)


def test_what_lacks_inputs_is_named():
    by_input, by_row = chains((4, 3))
    model = pt.CRF({"node": Context(), "edge": Constant()}, pt.IteratedLogistic(iterations=1))
    with pytest.raises(pt.PotentiaError, match="e1 has no inputs for kind 'node', whose potential reads"):
        model.fit([by_input[0], by_row[1]])
    with pytest.raises(pt.PotentiaError, match="reads whole examples; this learner needs features of rows"):
        pt.CRF({"node": Context(), "edge": Constant()}, pt.MaxMargin()).fit(by_input)
    with pytest.raises(pt.PotentiaError, match="so x must be Inputs, not ndarray"):
        Context().fit(np.zeros((3, 2)), [0, 1, 0])
    with pytest.raises(pt.PotentiaError, match="not Inputs of whole examples"):
        Linear().fit(Inputs([np.zeros((3, 2))], [3]), [0, 1, 0])
