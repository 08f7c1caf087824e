"""Marginal-based learning: the learner, its objective, and what it recovers."""

import json
from dataclasses import replace

import numpy as np
import pytest

import potentia as pt
from potentia import Constant, Example, Linear, PotentiaError
from potentia.base import optimise
from potentia.base.optimise import Search, lbfgs
from potentia.base.resources import thread_count
from potentia.learn import risk_objective
from potentia.learn.risk import MarginalRisk
from potentia.learn.risk_objective import Risk, begin_potentials, open_parts
from reference import differences
from sample_images import noisy

pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")  # fits are cut short

QUICK = {"iterations": 15, "tol": 0.0, "inference": pt.TRW(iterations=6, tol=0)}


def crf(loss="univariate_logistic", node=None, edge=None, **options):
    return pt.CRF({"node": node or Linear(), "edge": edge or Linear()}, MarginalRisk(loss, **(QUICK | options)))


def sampled(n_examples, theta, graph, seed=0):
    """Examples whose labels come from the model itself."""
    y = pt.Exact().sample(graph, theta, n_examples, seed=seed)
    return [Example(graph, {}, labels) for labels in y]


@pytest.mark.parametrize(
    "loss", ["univariate_logistic", "clique_quadratic", "truncated_likelihood", "pseudolikelihood"]
)
@pytest.mark.parametrize("edge", [Linear(), Constant(), pt.MLP(hidden=4)], ids=lambda p: type(p).__name__)
def test_the_gradient_reaches_every_parameter(loss, edge):
    examples = noisy(3, (4, 5))
    examples[0] = Example(
        examples[0].graph,
        examples[0].features,
        np.where(np.arange(20) < 3, -1, examples[0].labels),
        np.linspace(0.5, 2, 20),
    )
    learner = MarginalRisk(loss, **QUICK)
    potentials = {"node": pt.MLP(hidden=3), "edge": edge}
    data = learner.gather(examples, potentials)
    totals, states = open_parts(data, learner, len(examples))
    begun = begin_potentials(data, None, states, potentials, False)
    rng = np.random.default_rng(0)

    def at(vector):
        return Risk(data, learner.ridge, totals, begun, states)(vector)[:2]

    point = 0.3 * rng.standard_normal(sum(f.n_parameters for f in begun.values()))
    np.testing.assert_allclose(at(point)[1], differences(lambda v: at(v)[0], point), rtol=1e-5, atol=1e-8)


def test_a_learner_s_threads_are_those_of_all_it_calls(monkeypatch):
    monkeypatch.setenv("POTENTIA_THREADS", "3")
    seen = []
    learner = MarginalRisk(inference=pt.TRW(iterations=2, tol=0), iterations=1, tol=0.0, threads=2)
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, learner)
    crf.fit(noisy(2), callback=lambda history: seen.append(thread_count(None)))
    assert seen == [2]
    assert thread_count(None) == 3
    # where shards are shared out, neither of the two inferences asks the same pool for threads of its own
    monkeypatch.setattr("potentia.learn.part.SHARD_ENTRIES", 1)
    both = MarginalRisk("truncated_em", pt.TRW(), clamped=pt.TRW())
    used = []

    class Watched(risk_objective.Methods):
        def __init__(self, inference, gradient, clamped, starts):
            used.append((inference.threads, clamped.threads))
            super().__init__(inference, gradient, clamped, starts)

    monkeypatch.setattr(risk_objective, "Methods", Watched)
    pt.CRF({"node": Linear(), "edge": Linear()}, replace(both, iterations=1)).fit(noisy(2))
    assert len(used) % 2 == 0
    assert set(used) == {(1, 1)}


def test_shards_and_threads_change_nothing(monkeypatch):
    examples = noisy(5)
    whole = crf(threads=1).fit(examples)
    monkeypatch.setattr("potentia.learn.part.SHARD_ENTRIES", 1)
    cut = crf(threads=2).fit(examples)
    monkeypatch.setattr("potentia.learn.data.PART_ENTRIES", 1)
    in_parts = crf(threads=2).fit(examples)
    for other in (cut, in_parts):
        assert other.history_[-1]["objective"] == pytest.approx(whole.history_[-1]["objective"], rel=1e-6)


def test_exact_likelihood_recovers_the_parameters_of_the_model():
    rng = np.random.default_rng(3)
    graph = pt.Graph.chain(6, n_states=3)
    theta = {"node": 0.5 * rng.standard_normal(3), "edge": 0.5 * rng.standard_normal((3, 3))}
    examples = sampled(2000, theta, graph)
    want = pt.Exact().infer(graph, theta).marginals["edge"]
    for loss, inference in (("likelihood", pt.Exact()), ("surrogate_likelihood", pt.TRW(rho=1.0, iterations=12))):
        model = pt.CRF(
            {"node": Constant(), "edge": Constant()},
            MarginalRisk(loss, inference, ridge=0.0, iterations=40, tol=0.0, track_error=False),
        ).fit(examples)
        found = pt.Exact().infer(graph, model.theta(examples[0])).marginals["edge"]
        np.testing.assert_allclose(found, want, atol=0.02)
    # the tables themselves, in the gauge where they are identified
    table = model.potentials_["edge"].table_.reshape(3, 3)

    def interaction(t):
        return t - t.mean(axis=0) - t.mean(axis=1)[:, None] + t.mean()

    np.testing.assert_allclose(interaction(table), interaction(theta["edge"]), atol=0.15)


def test_on_forests_likelihood_and_surrogate_likelihood_are_one():
    examples = noisy(4, (1, 9))
    a = crf("likelihood", inference=pt.Exact(), iterations=60, tol=1e-8).fit(examples)
    b = crf("surrogate_likelihood", inference=pt.LoopyBP(iterations=30, tol=1e-12), iterations=60, tol=1e-8).fit(
        examples
    )
    assert a.history_[-1]["objective"] == pytest.approx(b.history_[-1]["objective"], rel=1e-5)


def test_marginal_losses_beat_the_independent_model_and_are_below_their_start():
    train, test = noisy(6, (12, 12)), noisy(4, (12, 12), seed=7)
    alone = crf(iterations=0).fit(train)
    joint = crf(iterations=60).fit(train)
    assert joint.score(test) > alone.score(test) + 0.05
    values = [row["objective"] for row in joint.history_]
    assert values == sorted(values, reverse=True)


def test_without_pairs_it_is_logistic_regression():
    from sklearn.linear_model import LogisticRegression

    train = noisy(3, (8, 8))
    model = crf(edge=pt.Zero(), iterations=100, tol=1e-10, ridge=1e-3).fit(train)
    x = np.concatenate([e.features["node"] for e in train])
    y = np.concatenate([e.labels for e in train])
    plain = LogisticRegression(C=1 / (1e-3 * len(y)), tol=1e-8, max_iter=1000).fit(x, y)
    # two columns of penalised weights against one: at the optimum they are opposite, each half
    weights = model.potentials_["node"].coef_
    half = LogisticRegression(C=2 / (1e-3 * len(y)), tol=1e-8, max_iter=1000).fit(x, y)
    np.testing.assert_allclose(weights[:, 1] - weights[:, 0], half.coef_[0], rtol=1e-3, atol=1e-4)
    assert plain.coef_.shape == half.coef_.shape


def test_hidden_labels_train_on_the_rest():
    train = noisy(6, (10, 10))
    rng = np.random.default_rng(1)
    holes = [Example(e.graph, e.features, np.where(rng.random(100) < 0.5, -1, e.labels), name=e.name) for e in train]
    alone = crf(iterations=0).fit(train).score(train)
    for loss in ("univariate_logistic", "clique_logistic", "surrogate_em", "truncated_em"):
        model = crf(loss, iterations=30).fit(holes)
        assert model.score(train) > alone + 0.02


@pytest.mark.parametrize("gradient", ["truncated", "backpropagation", "perturbation", "implicit"])
def test_gradient_methods_reach_the_same_optimum(gradient):
    train = noisy(2, (6, 6))
    inference = pt.TRW(iterations=500, tol=1e-11)
    model = crf(inference=inference, gradient=gradient, iterations=25, ridge=1e-2).fit(train)
    reference = crf(inference=inference, iterations=25, ridge=1e-2).fit(train)
    assert model.history_[-1]["objective"] == pytest.approx(reference.history_[-1]["objective"], rel=1e-3)


def test_incremental_training_doubles_examples_and_halves_steps():
    model = crf(incremental=2, iterations=8).fit(noisy(8, (5, 5)))
    counts = [row["examples"] for row in model.history_]
    assert sorted(set(counts)) == [2, 4, 8]
    assert [counts.count(n) for n in (2, 4, 8)] == [8, 4, 2]


def test_mini_batches_come_near_the_optimum():
    train = noisy(8, (8, 8))
    best = crf(iterations=60).fit(train)
    model = crf(batch=2, iterations=30, rate=0.05, seed=3).fit(train)
    again = crf(batch=2, iterations=30, rate=0.05, seed=3).fit(train)
    assert model.history_[-1]["objective"] < 1.15 * best.history_[-1]["objective"]
    for a, b in zip(model.predict(train), again.predict(train), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_smoothed_error_starts_from_the_surrogate_likelihood():
    train = noisy(3, (8, 8))
    started = crf(pt.gradients.losses.SmoothedError(15), iterations=1).fit(train)
    cold = crf(pt.gradients.losses.SmoothedError(15), iterations=1, start="independent").fit(train)
    assert started.history_[0]["objective"] < cold.history_[0]["objective"]


def test_class_weights_and_weights_shift_what_is_learned():
    train = noisy(4, (10, 10))
    plain, heavy = crf(iterations=30).fit(train), crf(iterations=30, class_weight=[1.0, 8.0]).fit(train)
    share = [np.mean([y.mean() for y in m.predict(train)]) for m in (plain, heavy)]
    assert share[1] > share[0]
    doubled = [Example(e.graph, e.features, e.labels, np.full(100, 2.0)) for e in train]
    same = crf(iterations=30).fit(doubled)
    assert same.history_[-1]["objective"] == pytest.approx(plain.history_[-1]["objective"], rel=1e-6)


def test_a_checkpoint_is_taken_up(tmp_path):
    train, path = noisy(4, (6, 6)), tmp_path / "state.potentia"
    stopped = crf(iterations=20)
    stopped.fit(train, checkpoint=path, callback=lambda history: len(history) == 6)
    resumed = crf(iterations=20).fit(train, checkpoint=path)
    assert len(resumed.history_) == 20
    assert resumed.history_[5]["objective"] == stopped.history_[-1]["objective"]
    assert resumed.history_[-1]["objective"] <= stopped.history_[-1]["objective"]
    staged = crf(iterations=8, incremental=1)
    staged.fit(train, checkpoint=tmp_path / "b", callback=lambda history: len(history) == 10)
    assert [r["examples"] for r in crf(iterations=8, incremental=1).fit(train, checkpoint=tmp_path / "b").history_][
        -1
    ] == 4


def test_saved_models_predict_alike_and_keep_their_learner(tmp_path):
    train = noisy(3, (6, 6))
    learner = MarginalRisk(
        pt.gradients.losses.SmoothedError(7.0),
        pt.MeanField(iterations=5),
        pt.gradients.Perturbation(4),
        iterations=3,
        tol=0.0,
    )
    model = pt.CRF({"node": Linear(), "edge": pt.MLP(hidden=3)}, learner).fit(train)
    model.save(tmp_path / "m")
    loaded = pt.load(tmp_path / "m")
    assert loaded.learner == learner
    for a, b in zip(model.predict_marginals(train), loaded.predict_marginals(train), strict=True):
        np.testing.assert_array_equal(a, b)


def test_predicting_with_another_inference():
    train = noisy(3, (6, 6))
    model = crf().fit(train)
    other = pt.CRF(model.potentials, model.learner, inference=pt.LoopyBP(), decode="map").fit(train)
    assert isinstance(other.inference_, pt.LoopyBP)
    assert other.score(train) > 0.6


def test_a_fit_that_did_not_settle_warns_once():
    with pytest.warns(pt.ConvergenceWarning, match="still fell"):
        crf(iterations=3, tol=1e-9).fit(noisy(2))


def test_history_is_plain_json():
    history = crf(iterations=2).fit(noisy(2), validation=noisy(1, seed=5)).history_
    assert set(history[0]) == {"iteration", "objective", "examples", "seconds", "train_error", "validation_error"}
    json.dumps(history)


BAD = [
    ({"loss": "none"}, "loss must be one of .*, not 'none'"),
    ({"gradient": "none"}, "gradient must be one of"),
    ({"inference": "TRW"}, "inference must be an inference method"),
    ({"ridge": -1.0}, "ridge"),
    ({"iterations": -1}, "iterations"),
    ({"start": "warm"}, "start must be one of"),
    ({"batch": 0}, "batch"),
    ({"incremental": 0}, "incremental"),
    ({"rate": 0.0}, "rate"),
    ({"class_weight": [1.0]}, "class_weight"),
]


@pytest.mark.parametrize(("options", "sentence"), BAD)
def test_bad_options_get_a_sentence(options, sentence):
    with pytest.raises(PotentiaError, match=sentence):
        crf(**options).fit(noisy(1))


def test_potentials_without_gradients_and_examples_without_labels_are_refused():
    with pytest.raises(PotentiaError, match="Boosting"):
        crf(edge=pt.Boosting()).fit(noisy(1))
    blank = [Example(e.graph, e.features, np.full(e.graph.n_variables, -1)) for e in noisy(1)]
    with pytest.raises(PotentiaError, match="label"):
        crf().fit(blank)


def test_an_objective_without_minimum_ends_at_parameters_that_can_be_used():
    """As the truncated likelihood with too few iterations [MBL-tpami sec. 7.3]."""
    largest, search = [], Search(np.ones(2))

    def slide(x):
        largest.append(np.abs(x).max())
        return -float((x**4).sum()), -4.0 * x**3

    while not search.stopped:
        search = lbfgs(search, slide)
    assert search.diverged
    assert max(largest) <= 1e50
    assert 1e3 < np.abs(search.point).max() <= 1e50


def test_running_away_is_said_and_ends_the_fit(monkeypatch):
    monkeypatch.setattr(optimise, "DIVERGED", 1e-3)
    with pytest.warns(pt.ConvergenceWarning, match="ran away") as caught:
        model = crf(start="zero", incremental=2).fit(noisy(4))
    assert len(caught) == 1
    assert [row["iteration"] for row in model.history_] == [0]
    assert not model.converged_


def test_a_line_search_that_meets_no_number_restarts():
    """Beyond 2 the objective is nan, which L-BFGS would take for a fall; its minimum is at 1.9."""

    def hill(point):
        x = float(point[0])
        return (np.nan, np.array([np.nan])) if x > 2 else ((x - 1.9) ** 4, np.array([4 * (x - 1.9) ** 3]))

    search = Search(np.array([-3.0]))
    while not search.stopped:
        search = lbfgs(search, hill)
    assert search.point[0] == pytest.approx(1.9, abs=0.1)
    with pytest.raises(PotentiaError, match="where the fit begins"):
        lbfgs(Search(np.array([3.0])), hill)


@pytest.mark.parametrize("batch", [2, 4, 5])
def test_batches_of_unequal_size_have_the_same_ridge(batch):
    train = 9 * noisy(1, (4, 4))  # every batch has the risk of the whole
    whole = crf(ridge=1.0, iterations=200, tol=1e-8).fit(train)
    parts = crf(ridge=1.0, iterations=200, batch=batch, rate=0.02).fit(train)
    assert parts.history_[-1]["objective"] == pytest.approx(whole.history_[-1]["objective"], rel=1e-4)


def test_the_learners_ridge_leaves_the_potentials_options_alone(tmp_path):
    model = crf(node=Linear(ridge=0.5)).fit(noisy(2, (4, 4)))
    model.save(tmp_path / "model")
    assert model.potentials_["node"].ridge == 0.5
    assert pt.load(tmp_path / "model").get_params()["node__ridge"] == 0.5


@pytest.mark.parametrize("options", [{"batch": 1}, {"incremental": 1}, {"batch": 2, "incremental": 2}])
def test_parts_may_lack_labels_and_kinds(options):
    rng = np.random.default_rng(0)

    def chain(n, labels):
        features = {"node": rng.normal(size=(n, 2))} | ({"edge": np.ones((n - 1, 1))} if n > 1 else {})
        return Example(pt.Graph.chain(n, n_states=2), features, labels)

    examples = [chain(1, [0]), chain(3, [-1, -1, -1]), chain(4, [0, 1, 1, 0]), chain(1, [1]), chain(3, [1, 0, 1])]
    model = crf(iterations=8, **options).fit(examples)
    assert model.history_[-1]["examples"] == 5
    assert all(np.isfinite(row["objective"]) for row in model.history_)
    with pytest.raises(PotentiaError, match="no example has a region of kind 'edge'"):
        crf(**options).fit([examples[0], examples[3]])
    with pytest.raises(PotentiaError, match="no variable of the examples has a label"):
        crf(**options).fit([examples[1]])


def stars(n_examples, leaves=20):
    """Examples on a hub and its leaves, where undamped messages oscillate once couplings are strong."""
    regions = {"node": [[i] for i in range(leaves + 1)], "edge": [[0, i] for i in range(1, leaves + 1)]}
    graph = pt.Graph(n_states=[2] * (leaves + 1), regions=regions)
    examples = []
    for seed in range(n_examples):
        rng = np.random.default_rng(seed)
        x, edges = rng.normal(size=(leaves + 1, 3)), rng.normal(size=(leaves, 2))
        y = (x[:, 0] + 0.5 * rng.normal(size=leaves + 1) > 0).astype(int)
        examples.append(Example(graph, {"node": x, "edge": edges}, y))
    return examples


@pytest.mark.parametrize("damping", [None, 0.0])
def test_a_fit_goes_on_after_back_propagation_diverged(damping):
    inference = pt.TRW(rho=0.5, iterations=200, damping=damping)
    options = {"inference": inference, "ridge": 1e-5, "iterations": 60, "tol": 1e-5}
    model = crf(gradient="backpropagation", **options).fit(stars(12))
    reference = crf(gradient="implicit", **options | {"inference": pt.TRW(rho=0.5, iterations=200)})
    want = reference.fit(stars(12)).history_[-1]["objective"]
    assert model.converged_
    assert model.history_[-1]["objective"] == pytest.approx(want, rel=1e-3)


class Backwards(pt.gradients.losses.UnivariateLogistic):
    """A loss whose gradient has the wrong sign."""

    def terms(self, mu, y):
        losses, slopes = super().terms(mu, y)
        return losses, -slopes


def test_a_fit_that_finds_no_step_has_not_converged():
    with pytest.warns(pt.ConvergenceWarning, match="ended before its minimum") as caught:
        model = crf(Backwards(), tol=1e-5, start="zero").fit(noisy(2, (6, 6)))
    assert len(caught) == 1
    assert not model.converged_
    assert [row["iteration"] for row in model.history_] == [0]


def test_a_fit_that_begins_where_back_propagation_diverges_says_so():
    model = crf(start="zero", iterations=1).fit(stars(1))
    edge = model.potentials_["edge"]
    edge.parameters = 5.0 * np.random.default_rng(1).normal(size=edge.n_parameters)
    for options, sentence in (({}, "cannot begin here: Back-propagation"), ({"batch": 1}, "no batch")):
        model.learner = MarginalRisk(
            inference=pt.TRW(rho=0.5, iterations=100, damping=0.0), gradient="backpropagation", iterations=3, **options
        )
        with pytest.raises(PotentiaError, match=sentence):
            model.fit(stars(1), warm_start=True)


def test_the_history_has_the_start_where_nothing_can_be_gained(tmp_path):
    train = [Example(pt.Graph.grid((2, 2), n_states=2), {"node": np.zeros((4, 1)), "edge": np.zeros((4, 1))}, y)
             for y in ([0, 1, 1, 0], [1, 0, 0, 1])]  # fmt: skip
    models = [crf(tol=1e-5).fit(train, checkpoint=tmp_path / "state") for _ in range(2)]
    for model in models:
        assert [row["iteration"] for row in model.history_] == [0]
        assert model.history_[-1]["objective"] == pytest.approx(np.log(2))
        assert model.converged_
    assert models[0].history_ == models[1].history_


@pytest.mark.parametrize("gradient", ["backpropagation", "perturbation", "implicit"])
def test_a_fit_warns_once_where_inference_has_not_converged_at_its_end(gradient):
    train = noisy(2, (6, 6))
    for batch in (None, 1):
        few = crf(inference=pt.TRW(iterations=2), gradient=gradient, iterations=2, batch=batch)
        with pytest.warns(pt.ConvergenceWarning, match="Inference did not converge") as caught:
            few.fit(train)
        assert len(caught) == 1


@pytest.mark.filterwarnings("error::potentia.ConvergenceWarning")
@pytest.mark.parametrize("gradient", ["backpropagation", "perturbation", "implicit"])
def test_the_default_inference_converges_from_step_to_step(gradient):
    model = crf(inference=None, gradient=gradient, iterations=200, tol=1e-4).fit(noisy(3, (8, 8)))
    assert model.converged_
