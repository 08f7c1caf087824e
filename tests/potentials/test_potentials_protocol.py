"""What every potential promises, and that the contract notices those who break it."""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Lock

import numpy as np
import pytest
import scipy.sparse
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import Binarizer, PolynomialFeatures, SplineTransformer

from potentia.base.types import PotentiaError
from potentia.potentials import MLP, Boosting, Constant, LightGBM, Linear, Potential, Zero
from potentia.potentials import boosting as rounds_module
from potentia.potentials.problem import NO_ROWS, NO_WEIGHT, Problem, Rows
from potentia.potentials.tree_ensemble import TreeEnsemble
from potentia.testing import check_potential

FACTORIES = {
    "zero": Zero,
    "constant": lambda: Constant(ridge=0.1),
    "linear": Linear,
    "boosting": lambda: Boosting(rounds=6, more_rounds=2),
    "boosting on few bins": lambda: Boosting(rounds=4, more_rounds=2, bins=3),
    "boosting anew": lambda: Boosting(rounds=4, restart=True),
    "boosting without refit": lambda: Boosting(rounds=4, refit=False),
    "mlp": lambda: MLP(hidden=8, batch=20, epochs=2, ridge=0.01),
    "lightgbm": lambda: LightGBM(rounds=4, more_rounds=2),
}


#: They draw rows, or limit leaves by counts.
DRAWING = (MLP, Boosting, LightGBM)


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
def test_contract(factory):
    check_potential(factory, weights_are_copies=not isinstance(factory(), DRAWING))


class Mean(Potential):
    """The log of smoothed label frequencies: the smallest custom class."""

    def __init__(self, prior=1.0):
        self.prior = prior

    def _begin(self, problem):
        self.table_ = np.zeros(problem.n_outputs)

    def _fit(self, problem):
        for _ in range(20):
            self.table_ = self.table_ - problem.sum(self._slope) / problem.total_weight

    def _slope(self, batch):
        return batch.loss_and_slope(self._scores(batch.x))[1].sum(0)

    def _scores(self, x):
        return np.tile(self.table_, (x.shape[0], 1))


class Ignorant(Mean):
    """Fits as if there were no bias."""

    def _fit(self, problem):
        super()._fit(Problem.of(replace(problem.draw(slice(None)).table(), bias=None), problem.n_outputs))

    def _improve(self, problem):
        self._fit(problem)
        return np.inf, self._objective(problem)


class Unseeded(Mean):
    """Different every time."""

    def _fit(self, problem):
        super()._fit(problem)
        self.table_ = self.table_ + 1e-6 * np.random.default_rng().normal(size=3)


class Reckless(Mean):
    """Believes it always improves."""

    def _improve(self, problem):
        self.table_ = self.table_ + np.array([3.0, -3.0, 0.0])
        return np.inf, self._objective(problem)


class Lossy(Mean):
    """Keeps what it learned where nothing saves it."""

    def _begin(self, problem):
        super()._begin(problem)
        self._more = np.zeros(problem.n_outputs)

    def _fit(self, problem):
        self._more = self._more * 0
        super()._fit(problem)
        self._more, self.table_ = self.table_ / 2, self.table_ / 2

    def _scores(self, x):
        return np.tile(self.table_ + getattr(self, "_more", 0.0), (x.shape[0], 1))


class Weightless(Mean):
    """Fits as if all weights were equal."""

    def _fit(self, problem):
        super()._fit(Problem.of(replace(problem.draw(slice(None)).table(), weight=NO_WEIGHT), problem.n_outputs))


def test_a_class_of_ones_own_passes():
    check_potential(Mean)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (Ignorant, "raised the penalised loss"),
        (Unseeded, "fit alike"),
        (Reckless, "raised the penalised loss"),
        (Lossy, "identical scores"),
        (Weightless, "row of weight 2"),
    ],
)
def test_the_contract_notices(factory, message):
    with pytest.raises(AssertionError, match=message):
        check_potential(factory)


def test_loading_needs_a_known_class_and_whole_data():
    meta, arrays = Mean().fit(np.zeros((4, 1)), [0, 1, 1, 2]).state()
    assert meta["class"].endswith(".Mean")
    assert isinstance(Potential.from_state(meta, arrays), Mean)
    with pytest.raises(PotentiaError, match="unknown: import its module first"):
        Potential.from_state({**meta, "class": "elsewhere.Mean"}, arrays)
    with pytest.raises(PotentiaError, match="lacks the array"):
        Potential.from_state(meta, {})
    with pytest.raises(PotentiaError, match="damaged"):
        Potential.from_state({"class": "Linear"}, {})


def test_what_cannot_be_saved_says_so():
    x, y = np.arange(20.0).reshape(10, 2), np.arange(10) % 2
    with pytest.raises(PotentiaError, match="class Binarizer cannot be saved"):
        Linear(transformer=Binarizer()).fit(x, y).state()
    with pytest.raises(PotentiaError, match="degree"):
        Linear(transformer=PolynomialFeatures(degree=object())).state()
    odd = Mean(prior=object()).fit(x, y)
    with pytest.raises(PotentiaError, match="prior of type object"):
        odd.state()


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
def test_unfitted_potentials_save_too(factory):
    meta, arrays = factory().state()
    assert repr(Potential.from_state(json.loads(json.dumps(meta)), arrays)) == repr(factory())


class Shards:
    """A bias made row by row when asked for."""

    def __init__(self, table):
        self.shape, self._table, self.largest = table.shape, table, 0

    def __getitem__(self, rows):
        found = self._table[rows].astype(np.float32)
        self.largest = max(self.largest, len(found))
        return found


@pytest.mark.parametrize("factory", [Linear, lambda: Boosting(rounds=3, subsample=500), lambda: MLP(epochs=1)])
def test_bias_may_be_made_on_demand(factory):
    rng = np.random.default_rng(0)
    n = 60_000
    x, y = rng.normal(size=(n, 2)), rng.integers(0, 8, n)
    table = np.round(rng.normal(size=(n, 8)), 2).astype(np.float32)
    shards = Shards(table)
    lazy = factory().fit(x, y, shards)
    np.testing.assert_array_equal(lazy.scores(x), factory().fit(x, y, table.astype(float)).scores(x))
    assert shards.largest < n / 2


def kept_problem(x, y, bias, weight, scores):
    return Problem.of(Rows(x, y, NO_ROWS, bias, weight, scores), 3)


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
def test_scores_at_hand_are_used_and_brought_up_to_date(factory):
    rng = np.random.default_rng(0)
    x, y, bias = rng.normal(size=(300, 3)), rng.integers(0, 3, 300), rng.normal(size=(300, 3))
    weight = rng.uniform(0.5, 2.0, 300)
    plain, given = factory(), factory().start(x, 3)
    scores, mark = np.zeros((300, 3)), given.scores_mark()
    for y_now in (y, (y + 1) % 3, y):
        plain.fit(x, y_now, bias, weight)
        given.fit_problem(kept_problem(x, y_now, bias, weight, scores))
        given.ready(len(x))
        given.update_scores(x, scores, mark)
        mark = given.scores_mark()
        np.testing.assert_allclose(scores, given.scores(x), atol=1e-12)
        np.testing.assert_allclose(scores, plain.scores(x), atol=1e-9)


def test_boosting_walks_only_new_trees_where_scores_are_at_hand(monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(500, 3)), rng.integers(0, 3, 500)
    boosting, scores = Boosting(rounds=30, more_rounds=2, subsample=20), np.zeros((500, 3))
    monkeypatch.setattr(rounds_module, "_MAX_KEPT_SCORES", 0)
    boosting.fit(x, y)
    boosting.scores(x, scores)
    mark, walked = boosting.scores_mark(), []
    add_to = TreeEnsemble.add_to

    def counted(self, out, codes, first=0):
        if len(out) == 500:  # rows that are drawn are few
            walked.append(len(self.depths) - first)
        add_to(self, out, codes, first)

    monkeypatch.setattr(TreeEnsemble, "add_to", counted)
    boosting.fit_problem(kept_problem(x, y, None, NO_WEIGHT, scores))
    boosting.update_scores(x, scores, mark)
    assert walked
    assert max(walked) <= 2
    np.testing.assert_array_equal(scores, boosting.scores(x))


def test_classes_that_do_not_appear_are_declared():
    x = np.random.default_rng(0).normal(size=(60, 2))
    y = np.arange(60) % 2
    for factory in FACTORIES.values():
        assert factory().fit(x, y, n_outputs=4).scores(x).shape == (60, 4)
        assert factory().fit(x, y, np.zeros((60, 3))).fit(x, y).scores(x).shape == (60, 3)
    with pytest.raises(PotentiaError, match="bias says 3"):
        Linear().fit(x, y, np.zeros((60, 3)), n_outputs=2)
    with pytest.raises(PotentiaError, match="was fitted on 2"):
        Linear().fit(x, y).fit(x, y, np.zeros((60, 3)))


def test_rows_without_features():
    y = np.array([0, 1, 1])
    for potential in (Zero().fit(None, y), Constant().fit(np.zeros((3, 0)), y), Linear().fit(np.zeros((3, 0)), y)):
        assert potential.scores(np.zeros((5, 0))).shape == (5, 2)
        assert potential.scores(None, out=np.ones((4, 2))).shape == (4, 2)
    with pytest.raises(PotentiaError, match="number of rows is unknown"):
        Zero().fit(None, y).scores(None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.full((4, 2), np.inf)}, "row 0, feature 0"),
        ({"x": scipy.sparse.csr_array(np.diag([1.0, 1.0, np.nan, 1.0])[:, :3])}, "row 2, feature 2"),
        ({"x": np.zeros((3, 2))}, "x has 3 rows but y has 4"),
        ({"x": np.zeros(4)}, r"x must have shape \(N, d\), got \(4,\)"),
        ({"y": [0, 1, 2, 5]}, "y holds 5 at row 3, outside 0..2"),
        ({"y": [0, -1, 2, 0]}, "y holds -1 at row 1"),
        ({"y": [0.0, 1.0, 2.0, 0.0]}, "integer labels"),
        ({"y": np.full((4, 3), 0.5)}, "row 0 is not non-negative with sum 1"),
        ({"y": np.zeros((4, 3, 1), int)}, r"got shape \(4, 3, 1\)"),
        ({"bias": np.zeros((3, 3))}, r"bias must have shape \(4, K\), got \(3, 3\)"),
        ({"bias": np.where(np.arange(12).reshape(4, 3) == 4, -np.inf, 0)}, "bias row 1"),
        ({"bias": np.where(np.arange(12).reshape(4, 3) == 9, np.nan, 0)}, "bias row 3"),
        ({"weight": np.ones(3)}, r"weight must have shape \(4,\), got \(3,\)"),
        ({"weight": [1, 1, 1, np.nan]}, "weight must be finite"),
    ],
)
def test_bad_input_gets_one_clear_sentence(change, message):
    given = {"x": np.zeros((4, 2)), "y": [0, 1, 2, 0], "bias": np.zeros((4, 3)), "weight": np.ones(4), **change}
    with pytest.raises(PotentiaError, match=message):
        Linear().fit(**given)


def test_sparse_rows_are_refused_where_they_cannot_be_used():
    with pytest.raises(PotentiaError, match="x is sparse"):
        MLP().fit(scipy.sparse.csr_array(np.eye(3)), [0, 1, 0])


def test_lightgbm_learns_in_the_saturated_regime():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (1000, 2))
    y = (x[:, 0] * x[:, 1] > 0).astype(int)
    for height in (3.0, 10.0, 30.0, 100.0):
        bias = np.full((1000, 2), height)
        bias[np.arange(1000), y] = 0.0
        for params in ({}, {"min_data_in_leaf": 1}):
            light = LightGBM(rounds=30, learning_rate=0.3, params=params)
            for _ in range(3):  # a later fit sees rows that are nearly certain
                light.fit(x, y, bias)
            assert light.objective_ < 0.05 * 1000 * height
            assert (light.scores(x).argmax(1) == y).mean() > 0.95


def test_a_bias_made_on_demand_must_do():
    class Whole(Mean):
        def fit(self, x, y, bias=None, weight=None, **options):
            bias + 0.0
            return super().fit(x, y, bias, weight, **options)

    with pytest.raises(AssertionError, match="may only be sliced"):
        check_potential(Whole)


@pytest.mark.parametrize(
    "potential",
    [
        Linear(ridge=np.nan),
        Linear(ridge=np.inf),
        Constant(ridge=-1),
        MLP(ridge=-1),
        MLP(epochs=-1),
        MLP(learning_rate=np.nan),
        MLP(momentum=1.0),
        MLP(hidden=0),
        Boosting(shrinkage=-1),
        Boosting(shrinkage=np.nan),
        Boosting(min_split=2),
        Boosting(min_split="a"),
        Boosting(min_leaf=None),
        Boosting(rounds=-3),
        Boosting(rounds=2.5),
        Boosting(max_leaves=2.5),
        Boosting(subsample=2.5),
        Boosting(bins=3.5),
        Boosting(bins=1),
        Boosting(bins=1000),
        Boosting(seed=None),
        Boosting(seed=1.5),
        MLP(hidden=2.5),
        MLP(batch=2.5),
        MLP(seed=-1),
        Linear(max_iter=-1),
        Linear(tol="a"),
    ],
    ids=repr,
)
def test_options_without_sense_are_refused(potential):
    with pytest.raises(PotentiaError, match=r"must be (a|at)"):
        potential.fit(np.eye(4), [0, 1, 0, 1])


@pytest.mark.parametrize("make", [scipy.sparse.csr_matrix, scipy.sparse.csr_array])
def test_very_many_sparse_features(make):
    rows = scipy.sparse.random(120, 600, 0.02, random_state=0, format="csr")
    y = np.arange(120) % 3
    dense, thin = (Linear(tol=1e-12, max_iter=2000).fit(x, y) for x in (rows.toarray(), make(rows)))
    assert thin.objective_ == pytest.approx(dense.objective_, rel=1e-9)


def test_importing_is_light():
    code = "import sys, potentia.potentials; print([m for m in ('sklearn', 'lightgbm') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_boosting_on_all_rows_takes_a_weight_for_copies():
    rng = np.random.default_rng(0)
    x, y, weight = rng.normal(size=(200, 2)), rng.integers(0, 3, 200), rng.integers(1, 4, 200)
    many = np.repeat(np.arange(200), weight)
    found = [
        Boosting(rounds=6, subsample=None).fit(x, y, None, weight),
        Boosting(rounds=6, subsample=None).fit(x[many], y[many]),
    ]
    first, second = (p.scores(x) - p.scores(x).mean(1, keepdims=True) for p in found)
    np.testing.assert_allclose(first, second, atol=1e-3)


def test_a_potential_that_is_not_threaded_is_called_by_one_thread_at_a_time():
    busy, overlaps = Lock(), []

    class Fragile(Potential):
        def _begin(self, problem):
            self.size_ = problem.n_outputs

        def _fit(self, problem):
            return None

        def _scores(self, x):
            overlaps.append(not busy.acquire(blocking=False))
            time.sleep(0.002)
            if not overlaps[-1]:
                busy.release()
            return np.zeros((len(x), self.size_))

    potential = Fragile().fit(np.ones((10, 1)), np.arange(10) % 2)
    overlaps.clear()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: potential.scores(np.ones((10, 1))), range(16)))
    assert overlaps == [False] * 16


def test_lightgbm_takes_few_rows_and_refuses_features_that_do_not_vary():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2))
    few = LightGBM(rounds=5).fit(x, (x[:, 0] > 0).astype(int))
    assert few.scores(x).shape == (30, 2)
    with pytest.raises(PotentiaError, match="a feature that differs between rows"):
        LightGBM(rounds=5).fit(np.ones((200, 1)), np.arange(200) % 2)


@pytest.mark.parametrize(
    "transformer",
    [
        PolynomialFeatures(degree=(2, 3)),
        PolynomialFeatures(degree=np.int64(2)),
        SplineTransformer(knots=np.array([[0.0, 0.0], [1.0, 0.4], [2.0, 1.0]]), extrapolation="linear"),
        Pipeline([("nothing", "passthrough"), ("powers", PolynomialFeatures(2))]),
    ],
    ids=repr,
)
def test_expansions_with_lists_arrays_and_empty_steps_are_saved(transformer):
    rng = np.random.default_rng(0)
    x, y = rng.uniform(0, 2, size=(60, 2)), rng.integers(0, 2, 60)
    fitted = Linear(transformer=transformer).fit(x, y)
    meta, arrays = fitted.state()
    loaded = Potential.from_state(json.loads(json.dumps(meta)), arrays)
    assert np.array_equal(loaded.scores(x), fitted.scores(x))
