"""Parts, backends and the training loop: cuts change nothing that matters, features are not copied, fits resume."""

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone

import potentia as pt
from learners import DATA, LEARNERS, digest, ilr
from potentia import MLP, Boosting, Example, Linear
from potentia.base.backend import Local, add, tree_total
from potentia.base.saving import read_file, write_file
from potentia.learn import data as dataset
from potentia.learn import part as shards
from potentia.learn.checkpoint import Checkpoint
from potentia.learn.data import Dataset
from potentia.learn.part import Part
from potentia.potentials.inputs import Stack
from sample_images import noisy

pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")  # fits are cut short


def give(value, state, factor):
    return {"seen": factor}, {"sum": factor * value, "rows": (value.copy(), 1)}


@given(st.integers(1, 40), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_a_total_is_the_tree_s_whoever_computes_it(n, seed):
    values = np.random.default_rng(seed).normal(size=(n, 3)) * 10.0 ** np.arange(-3, 6, 3)
    states, total = Local(values).total(give, None, 2.0)
    assert states == ({"seen": 2.0},) * n
    np.testing.assert_allclose(total["sum"], 2 * values.sum(axis=0), rtol=1e-12, atol=1e-12)
    assert total["rows"][1] == n
    # any aligned range may be summed elsewhere first, to the last bit
    half = 1 << (n - 1).bit_length() - 1 if n > 1 else 1
    left, right = tree_total(values[:half].copy()), tree_total(values[half:].copy())
    np.testing.assert_array_equal(add(left, right), tree_total(values.copy()))


@given(st.lists(st.integers(0, 700), min_size=1, max_size=6), st.integers(0, 2**31), st.booleans(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_stack_is_the_joined_matrix(sizes, seed, thin, selected):
    rng = np.random.default_rng(seed)
    blocks = [rng.normal(size=(n, 3)).astype(rng.choice([np.float32, np.float64])) for n in sizes]
    kept = [np.flatnonzero(rng.random(n) < 0.6) if selected else None for n in sizes]
    whole = np.concatenate([b if k is None else b[k] for b, k in zip(blocks, kept, strict=True)]).astype(float)
    stack = Stack([sparse.csr_array(b) for b in blocks] if thin else blocks, kept)
    assert stack.shape == whole.shape

    def dense(x):
        return x.toarray() if thin else x

    start = int(rng.integers(0, len(whole) + 1))
    stop = int(rng.integers(start, len(whole) + 1))
    np.testing.assert_array_equal(dense(stack[start:stop]), whole[start:stop])
    rows = rng.integers(0, len(whole), 50) if len(whole) else np.zeros(0, int)
    np.testing.assert_array_equal(dense(stack[rows]), whole[rows])
    assert stack[:].dtype == np.float64


def test_features_of_large_examples_are_referred_to_and_keep_their_precision():
    examples = [
        Example(e.graph, {k: v.astype(np.float32) for k, v in e.features.items()}, e.labels) for e in noisy(3, (20, 20))
    ]
    built = Part(examples, ["node", "edge"])
    for kind in ("node", "edge"):
        for example, block in zip(examples, built.features[kind]._blocks, strict=True):
            assert block is example.features[kind]
            assert block.dtype == np.float32


def test_equal_graphs_share_one_union_and_its_layout(monkeypatch):
    monkeypatch.setattr(shards, "SHARD_ENTRIES", 1)
    examples = noisy(4, (6, 7))
    apart = [Example(pt.Graph.grid((6, 7), n_states=2), e.features, e.labels) for e in examples]
    built = Part(apart, ["node", "edge"])
    assert len(built.shards) == 4
    assert len({id(shard.union) for shard in built.shards}) == 1
    # equal regions built in another way have other TRW weights, so they are other graphs
    plain = pt.Graph(np.full(42, 2), dict(examples[0].graph.scopes))
    assert plain.digest != examples[0].graph.digest
    assert pt.Graph.grid((6, 7), n_states=2).digest == examples[0].graph.digest


@pytest.mark.parametrize("data", ["plain", "weighted", "hidden", "lacking"])
@pytest.mark.parametrize("name", ["alternating", "direct", "mixed", "drawn", "mlp", "soft", "risk", "em"])
def test_cutting_into_parts_changes_rounding_only(name, data, monkeypatch):
    if name == "soft" and data == "plain":
        data = "hidden"
    if name == "em" and data == "weighted":
        data = "hidden"  # different weights in one union weigh the terms of the entropy, equal ones the loss
    case, examples = LEARNERS[name], DATA[data](noisy(5, (6, 8)))
    whole = case.crf().fit(examples)
    monkeypatch.setattr(dataset, "PART_ENTRIES", 1)
    assert Dataset.of(examples, case.potentials).parts.n_parts == 5
    cut = case.crf().fit(examples)
    for a, b in zip(whole.history_, cut.history_, strict=True):
        assert b["objective"] == pytest.approx(a["objective"], rel=1e-6)
        if "train_error" in a:
            assert b["train_error"] == pytest.approx(a["train_error"], abs=0.02)
    for a, b in zip(whole.predict_marginals(examples), cut.predict_marginals(examples), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_fit_that_was_interrupted_anywhere_is_the_uninterrupted_one(name, tmp_path):
    crf, examples = LEARNERS[name].crf(track_error=False), LEARNERS[name].examples(4)
    straight = clone(crf).fit(examples)
    limit = len(straight.history_)

    class StopError(Exception):
        pass

    def stop_at(iteration):
        def stop(history):
            if len(history) == iteration:
                raise StopError

        return stop

    # interrupted between iterations, and in the middle of one: by an error inside the callback
    for first in range(1, limit):
        path = tmp_path / f"{first}"
        with pytest.raises(StopError):
            clone(crf).fit(examples, checkpoint=path, callback=stop_at(first + 1))
        resumed = clone(crf).fit(examples, checkpoint=path)
        assert digest(resumed) == digest(straight)
        assert [r["objective"] for r in resumed.history_] == [r["objective"] for r in straight.history_]
    Checkpoint(path).remove()
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(f"{limit - 1}.")]


def test_tracking_errors_builds_every_part_once(monkeypatch):
    built = []
    original = Part.__init__

    def counted(self, *args):
        built.append(type(self).__name__)
        original(self, *args)

    monkeypatch.setattr(Part, "__init__", counted)
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, ilr(track_error=True))
    crf.fit(noisy(3), validation=noisy(2, seed=1))
    assert built == ["Part", "Part"]
    assert all({"train_error", "validation_error"} <= set(row) for row in crf.history_)


@dataclass
class Still(pt.extend.Learner):
    """Counts iterations and learns nothing."""

    iterations: int = 4
    inner: pt.extend.Inference | None = None

    def init(self, data, potentials):
        return pt.extend.State(data.begin(potentials), self.iterations, {"count": np.zeros(1)})

    def step(self, data, state):
        count = state.arrays["count"] + 1
        return state.after({"objective": 1.0 / count[0]}, arrays={"count": count})


def test_a_custom_learner_trains_resumes_tracks_warns_and_saves(tmp_path):
    examples = noisy(2)
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, Still(inner=pt.TRW(iterations=3)))
    path, seen = tmp_path / "state", []
    crf.fit(examples, checkpoint=path, callback=lambda history: seen.append(len(history)) or len(history) == 2)
    with pytest.warns(pt.ConvergenceWarning, match="raise `iterations`"):
        crf.fit(examples, checkpoint=path, callback=lambda history: seen.append(len(history)))
    assert seen == [1, 2, 3, 4]
    assert [row["objective"] for row in crf.history_] == [1.0, 1 / 2, 1 / 3, 1 / 4]
    crf.save(tmp_path / "model")
    loaded = pt.load(tmp_path / "model")
    assert loaded.learner == Still(inner=pt.TRW(iterations=3))
    assert repr(loaded.potentials_) == repr(crf.potentials_)


@pytest.mark.parametrize("given", ["ilr", pt.TRW(), Linear(), 3], ids=repr)
def test_a_wrong_learner_gets_one_sentence(given):
    with pytest.raises(pt.PotentiaError, match=r"learner must be a Learner, such as pt\.IteratedLogistic\(\)"):
        pt.CRF({"node": Linear(), "edge": Linear()}, given).fit(noisy(1))


def test_the_default_learns_the_denoising_task_and_says_when_it_is_cut_off():
    train, test = (pt.datasets.denoising(n_images=4, size=(64, 64), seed=seed) for seed in (0, 1))
    crf = pt.CRF({"node": Linear(), "edge": Linear()})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        crf.fit(train)
    assert crf.score(test) >= 0.93
    cut = pt.CRF({"node": Linear(), "edge": Linear()}, pt.IteratedLogistic(iterations=3))
    with pytest.warns(pt.ConvergenceWarning, match="still fell") as caught:
        cut.fit(train)
    assert [w.filename for w in caught] == [__file__]


def test_auto_chooses_the_solver_by_the_potentials():
    solver = pt.IteratedLogistic().solver_for
    assert solver({"node": Linear(), "edge": MLP()}) == "direct"
    assert solver({"node": Linear(), "edge": pt.Zero()}) == "direct"
    assert solver({"node": Boosting(), "edge": Linear()}) == "mixed"
    assert solver({"node": Boosting(), "edge": MLP()}) == "alternating"
    assert pt.IteratedLogistic(hidden="soft").solver_for({"node": Linear()}) == "alternating"


def test_a_checkpoint_without_parameters_is_refused(tmp_path):
    path = tmp_path / "state"
    crf = pt.CRF({"node": pt.Linear(), "edge": pt.Linear()}, pt.IteratedLogistic(iterations=2, sweeps=2))
    crf.fit(noisy(2), checkpoint=path)
    content, arrays = read_file(path, "checkpoint")
    content["potentials"]["node"]["fitted"] = {}
    write_file(path, "checkpoint", content, arrays)
    with pytest.raises(pt.PotentiaError, match="kind 'node' has no parameters; delete it"):
        crf.fit(noisy(2), checkpoint=path)


@pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")
@pytest.mark.parametrize(
    ("learner", "size"),
    [
        (pt.IteratedLogistic(solver="direct", iterations=500, tol=1e-9), 16),
        (pt.IteratedLogistic(solver="mixed", iterations=80, tol=1e-9), 8),
        (pt.IteratedLogistic(solver="alternating", iterations=25), 16),
        (pt.MarginalRisk(iterations=500, tol=1e-10), 16),
        (pt.MaxMargin(inference=pt.LinearProgram(), solver="one_slack", iterations=300, tol=1e-6), 6),
    ],
    ids=["direct", "mixed", "alternating", "risk", "margin"],
)
def test_fits_in_single_precision_end_at_the_same_objective(learner, size):
    data = pt.datasets.denoising(2, (size, size))
    single = [Example(e.graph, {k: v.astype(np.float32) for k, v in e.features.items()}, e.labels) for e in data]
    ends = []
    for examples in (data, single):
        potentials = {"node": pt.Linear(ridge=1.0), "edge": pt.Linear(ridge=1.0)}
        ends.append(pt.CRF(potentials, learner).fit(examples).history_[-1]["objective"])
    assert ends[0] == pytest.approx(ends[1], rel=1e-5)
