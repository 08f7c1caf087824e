"""`Temperature`: the scores of another model times one weight."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

import potentia as pt
from potentia.testing import check_potential


def test_contract():
    check_potential(pt.Temperature, n_outputs=2)


def overconfident(n=400, seed=0):
    """Logits three times as large as those that labels were drawn from."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, 4))
    return 3 * logits, (logits + rng.gumbel(size=logits.shape)).argmax(1)


def test_the_weight_is_that_of_temperature_scaling():
    x, y = overconfident()
    best = minimize_scalar(lambda w: -log_softmax(w * x, axis=1)[np.arange(len(y)), y].sum())
    fitted = pt.Temperature(tol=1e-10).fit(x, y)
    assert fitted.weight_[0] == pytest.approx(best.x, rel=1e-5)
    assert fitted.weight_[0] == pytest.approx(1 / 3, rel=0.2)
    np.testing.assert_allclose(fitted.scores(x.astype(np.float32)), fitted.weight_[0] * x, rtol=1e-6)


def test_features_must_be_one_per_state():
    x, y = overconfident()
    with pytest.raises(pt.PotentiaError, match="one feature per state: 4 columns, not 3"):
        pt.Temperature().fit(x[:, :3], y, n_outputs=4)


@pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")
@pytest.mark.parametrize("learner", [pt.IteratedLogistic(iterations=3), pt.MarginalRisk(iterations=3)])
def test_it_is_trained_beside_pairs_and_saved(learner, tmp_path):
    x, y = overconfident(36)
    graph = pt.Graph.grid((6, 6), n_states=4)
    contrast = np.random.default_rng(1).uniform(size=(len(graph.scopes["edge"]), 1))
    example = pt.Example(graph, {"node": x, "edge": contrast}, y)
    crf = pt.CRF({"node": pt.Temperature(), "edge": pt.Potts()}, learner).fit([example])
    assert crf.potentials_["node"].weight_[0] > 0
    crf.save(tmp_path / "model")
    again = pt.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_marginals([example])[0], crf.predict_marginals([example])[0])


def test_a_learner_that_cannot_train_it_says_so():
    x, y = overconfident(3)
    example = pt.Example(pt.Graph.chain(3, n_states=4), {"node": x}, y)
    with pytest.raises(pt.PotentiaError, match="Temperature"):
        pt.CRF({"node": pt.Temperature(), "edge": pt.Constant()}, pt.MaxMargin()).fit([example])


def photos(dtype):
    """Scores in two images, some labels hidden, and weights of variables."""
    made = []
    for seed in range(2):
        x, y = overconfident(20, seed)
        y[::3] = -1
        graph = pt.Graph.grid((4, 5), n_states=4)
        edge = np.random.default_rng(seed).uniform(size=(len(graph.scopes["edge"]), 1))
        weight = 1.0 + np.arange(20) % 2
        made.append(pt.Example(graph, {"node": x.astype(dtype), "edge": edge.astype(dtype)}, y, weights=weight))
    return made


@pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")
@pytest.mark.parametrize("hidden", ["drop", "soft"])
def test_hidden_labels_weights_float32_and_checkpoints_meet(hidden, tmp_path):
    def fitted(examples, iterations=6, **options):
        learner = pt.IteratedLogistic(epsilon=1.0, iterations=iterations, tol=0, hidden=hidden)
        crf = pt.CRF({"node": pt.Temperature(), "edge": pt.Potts()}, learner).fit(examples, **options)
        return np.concatenate([crf.potentials_[kind].parameters for kind in ("node", "edge")])

    straight = fitted(photos(np.float32))
    np.testing.assert_allclose(straight, fitted(photos(np.float64)), rtol=1e-3, atol=1e-4)
    fitted(photos(np.float32), 2, checkpoint=tmp_path / "fit")
    np.testing.assert_array_equal(fitted(photos(np.float32), checkpoint=tmp_path / "fit"), straight)
