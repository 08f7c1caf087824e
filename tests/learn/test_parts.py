"""Parts, backends and the training loop: cuts change nothing that matters, features are not copied, fits resume."""

import json
import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import potentia as pt
from potentia import MLP, Boosting, Constant, Example, Linear
from potentia.base.backend import Local, add, tree_total
from potentia.base.saving import read_file, write_file
from potentia.learn import data as dataset
from potentia.learn import examples as shards
from potentia.learn.checkpoint import Checkpoint
from potentia.learn.data import Dataset
from potentia.learn.part import Part
from potentia.potentials.inputs import Stack
from sample_images import noisy

pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")  # fits are cut short


class Numbers:
    def __init__(self, value):
        self.value = value

    def give(self, factor):
        return {"sum": factor * self.value, "rows": (self.value.copy(), 1)}


@given(st.integers(1, 40), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_a_total_is_the_tree_s_whoever_computes_it(n, seed):
    values = np.random.default_rng(seed).normal(size=(n, 3)) * 10.0 ** np.arange(-3, 6, 3)
    total = Local([Numbers(v) for v in values]).total("give", 2.0)
    np.testing.assert_allclose(total["sum"], 2 * values.sum(axis=0), rtol=1e-12, atol=1e-12)
    assert total["rows"][1] == n
    # any aligned range may be summed elsewhere first, to the last bit
    half = 1 << (n - 1).bit_length() - 1 if n > 1 else 1
    left = tree_total(lambda k: values[k].copy(), 0, half)
    right = tree_total(lambda k: values[k].copy(), half, n)
    np.testing.assert_array_equal(add(left, right), tree_total(lambda k: values[k].copy(), 0, n))


@given(
    st.lists(st.integers(0, 700), min_size=1, max_size=6), st.integers(0, 2**31), st.booleans(), st.booleans()
)
@settings(max_examples=40, deadline=None)
def test_a_stack_is_the_joined_matrix(sizes, seed, thin, selected):
    rng = np.random.default_rng(seed)
    blocks = [rng.normal(size=(n, 3)).astype(rng.choice([np.float32, np.float64])) for n in sizes]
    kept = [np.flatnonzero(rng.random(n) < 0.6) if selected else None for n in sizes]
    whole = np.concatenate([b if k is None else b[k] for b, k in zip(blocks, kept, strict=True)]).astype(
        float
    )
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
        Example(e.graph, {k: v.astype(np.float32) for k, v in e.features.items()}, e.labels)
        for e in noisy(3, (20, 20))
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


def weighted(examples):
    rng = np.random.default_rng(5)
    return [
        Example(e.graph, e.features, e.labels, None if k % 2 else rng.uniform(0.5, 2.0, len(e.labels)))
        for k, e in enumerate(examples)
    ]


def hidden(examples):
    rng = np.random.default_rng(6)
    return [
        Example(e.graph, e.features, np.where(rng.random(len(e.labels)) < 0.2, -1, e.labels))
        for e in examples
    ]


def lacking(examples):
    """Every other example has no pairs."""
    bare = pt.Graph(np.full(48, 2), {"node": np.arange(48)[:, None]})
    return [
        Example(bare, {"node": e.features["node"]}, e.labels) if k % 2 else e for k, e in enumerate(examples)
    ]


def ilr(**options):
    return pt.IteratedLogistic(**{"iterations": 3, "sweeps": 4, "tol": 0.0, "message_tol": 0.0, **options})


FITS = {
    "alternating": ({"node": Linear(), "edge": Linear()}, ilr(solver="alternating")),
    "direct": ({"node": Linear(), "edge": Constant()}, ilr(solver="direct")),
    "mixed": ({"node": Boosting(rounds=4, more_rounds=2), "edge": Linear()}, ilr(solver="mixed")),
    "drawn": ({"node": Boosting(rounds=4, subsample=40), "edge": Boosting(rounds=2)}, ilr()),
    "mlp": ({"node": MLP(hidden=5, epochs=1), "edge": MLP(hidden=4, epochs=1)}, ilr(solver="alternating")),
    "soft": ({"node": Linear(), "edge": Linear()}, ilr(hidden="soft")),
    "risk": ({"node": Linear(), "edge": Linear()}, pt.MarginalRisk(iterations=4, tol=0.0, track_error=True)),
    "em": (
        {"node": Linear(), "edge": Linear()},
        pt.MarginalRisk("surrogate_em", iterations=4, tol=0.0, track_error=True),
    ),
    "warm": (
        {"node": Linear(), "edge": Linear()},
        pt.MarginalRisk(gradient="backpropagation", inference=pt.TRW(tol=1e-6), iterations=4, tol=0.0),
    ),
    "batches": ({"node": Linear(), "edge": Linear()}, pt.MarginalRisk(batch=2, iterations=3)),
    "stages": ({"node": Linear(), "edge": Linear()}, pt.MarginalRisk(incremental=2, iterations=4, tol=0.0)),
    "margin": (
        {"node": Linear(), "edge": Linear()},
        pt.MaxMargin(iterations=4, inference=pt.Smoothed(0.0, iterations=20)),
    ),
    "planes": (
        {"node": Linear(), "edge": Linear()},
        pt.MaxMargin(iterations=4, solver="one_slack", inference=pt.Smoothed(0.0, iterations=20)),
    ),
}
DATA = {"plain": lambda e: e, "weighted": weighted, "hidden": hidden, "lacking": lacking}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", ["alternating", "direct", "mixed", "drawn", "mlp", "soft", "risk", "em"])
def test_cutting_into_parts_changes_rounding_only(name, data, monkeypatch):
    if name == "soft" and data == "plain":
        data = "hidden"
    if name == "em" and data == "weighted":
        data = "hidden"  # different weights in one union weigh the terms of the entropy, equal ones the loss
    potentials, learner = FITS[name]
    examples = DATA[data](noisy(5, (6, 8)))
    whole = pt.CRF(potentials, learner).fit(examples)
    monkeypatch.setattr(dataset, "PART_ENTRIES", 1)
    assert Dataset.of(examples, ["node", "edge"]).parts.n_parts == 5
    cut = pt.CRF(potentials, learner).fit(examples)
    for a, b in zip(whole.history_, cut.history_, strict=True):
        assert b["objective"] == pytest.approx(a["objective"], rel=1e-6)
        if "train_error" in a:
            assert b["train_error"] == pytest.approx(a["train_error"], abs=0.02)
    for a, b in zip(whole.predict_marginals(examples), cut.predict_marginals(examples), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def digest(crf):
    states = [potential.state() for potential in crf.potentials_.values()]
    metas = [json.dumps(meta, default=str) for meta, _ in states]
    return metas, [{k: v.tobytes() for k, v in arrays.items()} for _, arrays in states]


@pytest.mark.parametrize("name", FITS)
def test_a_fit_that_was_interrupted_anywhere_is_the_uninterrupted_one(name, tmp_path):
    potentials, learner = FITS[name]
    learner = replace(learner, track_error=False)
    examples = hidden(noisy(4, (6, 8))) if name in ("soft", "em") else noisy(4, (6, 8))
    straight = pt.CRF(potentials, learner).fit(examples)
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
            pt.CRF(potentials, learner).fit(examples, checkpoint=path, callback=stop_at(first + 1))
        resumed = pt.CRF(potentials, learner).fit(examples, checkpoint=path)
        assert digest(resumed) == digest(straight)
        assert [r["objective"] for r in resumed.history_] == [r["objective"] for r in straight.history_]
    Checkpoint(path).remove()
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(f"{limit - 1}.")]


def test_tracking_errors_builds_every_part_once(monkeypatch):
    built = []
    original = Part.__post_init__

    def counted(self):
        built.append(type(self).__name__)
        original(self)

    monkeypatch.setattr(Part, "__post_init__", counted)
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, ilr(track_error=True))
    crf.fit(noisy(3), validation=noisy(2, seed=1))
    assert built == ["JointPart", "Part"]
    assert all({"train_error", "validation_error"} <= set(row) for row in crf.history_)


@dataclass
class Still(pt.Learner):
    """Counts iterations and learns nothing."""

    iterations: int = 4
    inner: pt.Inference | None = None

    def begin(self, potentials, examples):
        return StillFit(self, potentials, examples)


class StillFit(pt.Fit):
    def __init__(self, learner, potentials, examples):
        self.limit, self.count = learner.iterations, 0
        for kind, potential in potentials.items():
            if not potential.is_fitted:
                potential.start(examples[0].features[kind], 2 if kind == "node" else 4)

    def step(self, history):
        self.count += 1
        return {"objective": 1.0 / self.count}

    def arrays(self):
        return {"count": np.array([float(self.count)])}

    def restore(self, saved):
        self.count = int(saved.arrays["count"][0])


def test_a_custom_learner_trains_resumes_tracks_warns_and_saves(tmp_path):
    examples = noisy(2)
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, Still(inner=pt.TRW(iterations=3)))
    path, seen = tmp_path / "state", []
    crf.fit(
        examples, checkpoint=path, callback=lambda history: seen.append(len(history)) or len(history) == 2
    )
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
    with pytest.raises(
        pt.PotentiaError, match=r"learner must be a Learner, such as pt\.IteratedLogistic\(\)"
    ):
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
    assert pt.IteratedLogistic(mode="piecewise").solver_for({"node": Linear()}) == "alternating"


def test_the_old_name_of_an_option_still_works():
    with pytest.warns(DeprecationWarning, match="message_tol"):
        learner = pt.IteratedLogistic(rest=1e-2)
    assert learner.message_tol == 1e-2


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
        (pt.IteratedLogistic(solver="mixed", iterations=200, tol=1e-9), 8),
        (pt.IteratedLogistic(solver="alternating", iterations=25), 16),
        (pt.MarginalRisk(iterations=500, tol=1e-10), 16),
        (pt.MaxMargin(inference=pt.LinearProgram(), solver="one_slack", iterations=300, tol=1e-6), 6),
    ],
    ids=["direct", "mixed", "alternating", "risk", "margin"],
)
def test_fits_in_single_precision_end_at_the_same_objective(learner, size):
    data = pt.datasets.denoising(4, (size, size))
    single = [
        Example(e.graph, {k: v.astype(np.float32) for k, v in e.features.items()}, e.labels) for e in data
    ]
    ends = []
    for examples in (data, single):
        potentials = {"node": pt.Linear(ridge=1.0), "edge": pt.Linear(ridge=1.0)}
        ends.append(pt.CRF(potentials, learner).fit(examples).history_[-1]["objective"])
    assert ends[0] == pytest.approx(ends[1], rel=1e-5)
