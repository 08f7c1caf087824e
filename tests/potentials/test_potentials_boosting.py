"""Boosting: what a run learns, keeps and repeats."""

import numpy as np
import pytest

from potentia.base.types import PotentiaError
from potentia.potentials import Boosting, Constant
from potentia.potentials import boosting as rounds_module
from potentia.potentials.problem import make_problem


def ring(n=3000, seed=0, d=2):
    """Class 1 in a ring, class 2 in a corner; not linear in x."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, d))
    radius = np.hypot(x[:, 0], x[:, 1])
    y = np.where(x.min(1) > 0.5, 2, ((radius > 0.4) & (radius < 0.8)).astype(int))
    return x, y


def saturated(y, k, height, seed=0):
    bias = height + np.random.default_rng(seed).normal(size=(len(y), k))
    bias[np.arange(len(y)), y] -= height
    return bias


def test_learns_what_no_linear_function_can():
    x, y = ring()
    test_x, test_y = ring(2000, 1)
    boosting = Boosting(rounds=60, subsample=1000).fit(x, y)
    assert (boosting.scores(test_x).argmax(1) == test_y).mean() > 0.95


@pytest.mark.parametrize("height", [10.0, 30.0, 50.0])
def test_learns_in_the_saturated_regime(height):
    x, y = ring()
    bias = saturated(y, 3, height)
    boosting = Boosting(rounds=60, subsample=1000).fit(x, y, bias)
    assert boosting.objective_ < 0.2 * Constant().fit(None, y, bias).objective_
    assert np.abs(boosting.scores(x)).max() < 10 * height


def test_refitted_leaves_learn_faster_than_gradient_leaves():
    x, y = ring()
    bias = saturated(y, 3, 10.0)
    refitted, plain = (Boosting(rounds=20, refit=refit).fit(x, y, bias).objective_ for refit in (True, False))
    assert refitted < 0.7 * plain


def test_every_round_on_all_rows_lowers_the_loss():
    x, y = ring(800)
    problem = make_problem(x, y, saturated(y, 3, 10.0), None, None)
    boosting = Boosting(rounds=15, subsample=None)
    rng = np.random.default_rng(0)
    run = boosting.start(x, 3).begin_rounds(problem, rng)
    (last,) = run.losses([1.0])
    for _ in range(15):
        run.step()
        (loss,) = run.losses([1.0])
        assert loss < last
        last = loss


@pytest.mark.parametrize("restart", [False, True])
def test_never_raises_the_loss_however_few_rows_it_sees(restart):
    """Rounds on 50 of 2000 rows overfit; the fit as a whole must not end above where it began."""
    x, y = ring(2000)
    boosting = Boosting(rounds=4, more_rounds=4, subsample=50, restart=restart, shrinkage=1.0).start(x, 3)
    kept = 0
    for i in range(12):
        bias = saturated(y, 3, 10.0 + 40 * (i % 2), seed=i)
        before, trees = boosting.loss(x, y, bias), boosting.n_trees
        after = boosting.fit(x, y, bias).loss(x, y, bias)
        assert after <= before
        assert boosting.objective_ == pytest.approx(after, rel=1e-12)
        kept += after == before and boosting.n_trees == trees
    assert kept > 0, "the test should meet rounds that make things worse"


def test_further_fits_add_trees_or_start_over():
    x, y = ring(500)
    adding = Boosting(rounds=5, more_rounds=2)
    assert [adding.fit(x, y).n_trees for _ in range(3)] == [5, 7, 9]
    anew = Boosting(rounds=5, restart=True)
    assert [anew.fit(x, y).n_trees for _ in range(2)] == [5, 5]


def test_leaves_keep_the_shares_of_the_chapter():
    x, y = ring(1000)
    problem = make_problem(x, y, None, None, None)
    run = Boosting(subsample=None).start(x, 3).begin_rounds(problem, np.random.default_rng(0))
    tree = run._growth.tree(
        run.binned.codes, np.random.default_rng(0).normal(size=(1000, 4)) ** 2, np.array([10, 25, 0.0])
    )
    run.step()
    grown = run.added()
    assert len(grown.nodes) > 20
    reached = np.zeros((1000, 3))
    grown.add_to(reached, run.binned.codes)
    _, sizes = np.unique(reached, axis=0, return_counts=True)
    assert sizes.min() >= 10
    assert tree.spans[:, 2].max() == 1000


def test_scores_kept_and_scores_computed_anew_give_the_same_trees(monkeypatch):
    x, y = ring(2000)
    kept = Boosting(rounds=10, subsample=300, bins=128).fit(x, y).fit(x, y)
    monkeypatch.setattr(rounds_module, "_MAX_KEPT_SCORES", 0)
    anew = Boosting(rounds=10, subsample=300, bins=128).fit(x, y).fit(x, y)
    np.testing.assert_array_equal(kept.values_, anew.values_)
    assert kept.objective_ == pytest.approx(anew.objective_, rel=1e-12)


def test_tabulated_scores_are_the_walked_ones():
    """With one feature a function of 256 values is tabulated for many rows and walked for few."""
    x, y = ring(6000)
    boosting, other = (Boosting(rounds=10, subsample=1000).fit(x[:, :1], y) for _ in range(2))
    many = boosting.scores(x[:, :1])
    assert boosting._tabulated() is not None
    few = Boosting.from_state(*other.state()).scores(x[:100, :1])
    np.testing.assert_array_equal(many[:100], few)
    boosting.fit(x[:, :1], (y + 1) % 3)
    assert np.abs(boosting.scores(x[:100, :1]) - few).max() > 0.1, "a fit must make the table anew"


@pytest.mark.parametrize("threads", ["1", "3"])
def test_the_number_of_threads_changes_nothing(monkeypatch, threads):
    x, y = ring(60_000, d=12)
    expected = Boosting(rounds=2, subsample=None, max_leaves=8).fit(x, y)
    monkeypatch.setenv("POTENTIA_THREADS", threads)
    found = Boosting(rounds=2, subsample=None, max_leaves=8).fit(x, y)
    np.testing.assert_array_equal(found.values_, expected.values_)
    np.testing.assert_array_equal(found.scores(x), expected.scores(x))


def test_one_configuration_and_one_row():
    x, _ = ring(40)
    assert not Boosting(rounds=3).fit(x, np.zeros(40, int)).scores(x).any()
    alone = Boosting(rounds=3).fit(x[:1], [1], n_outputs=3)
    assert alone.scores(x[:1]).argmax() == 1


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"min_leaf": 0.0}, "min_leaf"),
        ({"bins": 1000}, "bins"),
        ({"subsample": 0}, "subsample"),
        ({"max_leaves": 0}, "max_leaves"),
    ],
)
def test_impossible_settings_are_refused(setting, message):
    with pytest.raises(PotentiaError, match=message):
        Boosting(**setting).fit(*ring(50))


def test_rows_without_features_are_refused():
    with pytest.raises(PotentiaError, match="features"):
        Boosting().fit(None, [0, 1])


def test_many_features_that_do_not_vary():
    rng = np.random.default_rng(0)
    x = np.zeros((400, 90))
    fresh = Boosting(rounds=3)
    fresh.start(x, 2)
    np.testing.assert_array_equal(fresh.scores(x), 0.0)
    x[:, 70] = rng.integers(0, 2, 400)
    fitted = Boosting(rounds=3).fit(x, x[:, 70].astype(int))
    np.testing.assert_array_equal(fitted.scores(x).argmax(axis=1), x[:, 70])


def test_trees_that_see_a_share_of_the_features_learn_and_repeat():
    x, y = ring(d=6)
    test_x, test_y = ring(2000, 1, d=6)
    small, again = (Boosting(rounds=60, subsample=1000, features=0.4).fit(x, y) for _ in range(2))
    assert np.array_equal(small.scores(test_x), again.scores(test_x))
    assert not np.array_equal(small.scores(test_x), Boosting(rounds=60, subsample=1000).fit(x, y).scores(test_x))
    assert small.loss(test_x, test_y) < 0.7 * Constant().fit(None, y).loss(None, test_y)
    with pytest.raises(PotentiaError, match="features must be"):
        Boosting(features=0.0).fit(x, y)
