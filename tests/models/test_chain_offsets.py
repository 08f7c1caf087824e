"""Numbers far from zero in `ChainCRF`: what they say is learned, and other data are left alone."""

import numpy as np
import pytest

import potentia as pt
from potentia.base.types import PotentiaError
from potentia.features.offsets import Moments, attribute_moments, column_moments

pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")


def corpus(offset, seed=0, n=80, form="number", there=1.0):
    """Labels that a number tells, which has an offset; `there`: the share of tokens that have it."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for _ in range(n):
        state, tokens, labels = 0, [], []
        for _ in range(rng.integers(1, 9)):
            state = state if rng.random() < 0.5 else int(rng.integers(3))
            token, number = {"bias": True, "w": str(rng.integers(4))}, 2.0 * state + rng.normal(scale=0.7)
            if rng.random() < there:
                token["x"] = number + offset if form == "number" else np.array([rng.normal(), number + offset])
            tokens.append(token)
            labels.append("abc"[state])
        X.append(tokens)
        y.append(labels)
    return X, y


def score(offset, **options):
    model = pt.ChainCRF().fit(*corpus(offset, **options))
    return model, model.score(*corpus(offset, seed=1, **options))


@pytest.mark.parametrize("form", ["number", "array"])
@pytest.mark.parametrize("there", [1.0, 0.7])
def test_an_offset_hides_nothing(form, there):
    plain, wanted = score(0.0, form=form, there=there)
    assert wanted > 0.65
    assert not plain.offsets_
    for offset in (50.0, -1e3, 1e6, 1e10):
        model, found = score(offset, form=form, there=there)
        assert found > wanted - 0.02, offset
        centre = model.offsets_["x"] if form == "number" else model.offsets_["x"][1]
        assert abs(centre - offset) < 6.0
        assert form == "number" or model.offsets_["x"][0] == 0.0


def test_scores_are_those_of_the_weights_by_name():
    model, _ = score(2000.0, there=0.6)
    states = model.state_features_
    tokens = [{"x": 2003.5, "w": "1"}, {"w": "2"}, {"x": 1999.0}]
    offset = model.offsets_["x"]
    node = np.zeros((3, 3))
    for t, token in enumerate(tokens):
        values = {f"w:{token['w']}": 1.0} if "w" in token else {}
        if "x" in token:
            values |= {"x": token["x"] - offset, "x is present": 1.0}
        for k, label in enumerate(model.classes_):
            node[t, k] = sum(v * states.get((name, label), 0.0) for name, v in values.items())
    pairs = [[model.transition_features_.get((a, b), 0.0) for b in "abc"] for a in "abc"]
    wanted = pt.Exact().infer(pt.Graph.chain(3, n_states=3), {"node": node, "edge": np.array(pairs)})
    found = [[row[label] for label in "abc"] for row in model.predict_marginals_single(tokens)]
    np.testing.assert_allclose(found, wanted.marginals["node"], atol=1e-10)


@pytest.mark.parametrize("value", [1.0, 3.0])
def test_constants_and_numbers_near_zero_keep_their_bits(value):
    """An attribute far from zero beside them, in sequences of weight zero, changes nothing either."""
    X, y = corpus(0.0)
    X = [[{**token, "bias": value, "size": 1.0 + abs(token["x"])} for token in row] for row in X]
    model = pt.ChainCRF().fit(X, y)
    assert not model.offsets_
    far = [[{**token, "x": token["x"] + 1e6} for token in row] for row in X]
    weight = [1.0] * len(X) + [0.0] * len(X)
    both = pt.ChainCRF().fit([*X, *far], [*y, *y], sample_weight=weight)
    unlabelled = pt.ChainCRF().fit([*X, *far], [*y, *([None] * len(row) for row in y)])
    for other in (both, unlabelled):
        assert not other.offsets_
        for key, found in other.state_features_.items():
            assert found == pytest.approx(model.state_features_.get(key, 0.0), abs=1e-6)


@pytest.mark.parametrize("form", ["number", "array"])
def test_min_freq_counts_values_as_given(form):
    X, y = corpus(100.0, form=form)
    model = pt.ChainCRF(min_freq=30.0).fit(X, y)
    assert model.score(X, y) > 0.7
    assert ("x is present", "a") in model.state_features_
    assert (("x", "a") in model.state_features_) == (form == "number")


@pytest.mark.parametrize("form", ["number", "array"])
@pytest.mark.parametrize("c1", [0.0, 1.0])
def test_saved_resumed_and_threaded_fits_are_the_same(form, c1, tmp_path, monkeypatch):
    monkeypatch.setattr("potentia.learn.chain._SHARD_WORK", 500)
    X, y = corpus(1e6, form=form, there=0.8)
    options = {"c1": c1, "c2": 0.1, "delta": 0.0, "max_iterations": 15}
    whole = pt.ChainCRF(**options).fit(X, y)
    path = tmp_path / "fit.checkpoint"
    pt.ChainCRF(**options).fit(X, y, checkpoint=path, callback=lambda h: len(h) == 6)
    resumed = pt.ChainCRF(**options, threads=1).fit(X, y, checkpoint=path)
    assert resumed.state_features_ == whole.state_features_
    whole.save(tmp_path / "model")
    loaded = pt.load(tmp_path / "model")
    assert repr(loaded.offsets_) == repr(whole.offsets_)
    assert loaded.predict_marginals(X) == whole.predict_marginals(X)
    np.testing.assert_array_equal(loaded.weights_.dense, resumed.weights_.dense)


def test_a_number_is_centred_where_only_its_presence_has_a_weight():
    """With a strong L1 penalty the number's own weights may all be zero."""
    rng = np.random.default_rng(0)
    there = rng.random(300) < 0.5
    X = [[{"x": 1e4 + rng.normal()} if own else {"other": True}] for own in there]
    y = [["ab"[int(own)]] for own in there]
    model = pt.ChainCRF(c1=5.0).fit(X, y)
    assert {name for name, _ in model.state_features_} <= {"x is present", "other"}
    assert model.score(X, y) == 1.0
    assert model.predict([[{"x": 9999.0}], [{"other": True}]]) == [["b"], ["a"]]


@pytest.mark.parametrize("form", ["number", "array"])
def test_a_warm_start_begins_where_the_last_fit_ended(form):
    X, y = corpus(2000.0, form=form, there=0.8)
    model = pt.ChainCRF(c2=0.1, delta=1e-9, max_iterations=300).fit(X, y)
    end = model.history_[-1]["objective"]
    model.set_params(max_iterations=1).fit(X, y, warm_start=True)
    assert model.history_[0]["objective"] <= end * (1 + 1e-9)


@pytest.mark.parametrize("form", ["number", "array"])
def test_a_warm_start_takes_other_offsets_into_account(form):
    """A fit of data whose mean has moved, or that need no offset, starts from the same scores."""
    X, y = corpus(2000.0, form=form)
    more = [[{**token, "x": token["x"] + 40.0} for token in row] for row in X]
    for first in (more, corpus(0.0, form=form)[0]):
        model = pt.ChainCRF(c2=1e-6, delta=0.0, max_iterations=15).fit(first, y)
        before = model.predict_marginals(X)
        model.set_params(max_iterations=0).fit(X, y, warm_start=True)
        assert abs(np.max(model.offsets_["x"]) - 2000.0) < 6.0
        for a, b in zip(before, model.predict_marginals(X), strict=True):
            for p, q in zip(a, b, strict=True):
                assert list(p.values()) == pytest.approx(list(q.values()), abs=1e-6)


def test_parts_have_the_offsets_of_the_whole():
    X, y = corpus(1e6, there=0.8)
    whole = pt.ChainCRF(delta=1e-9, max_iterations=300).fit(X, y)
    for n in (2, 7):
        cut = pt.parts([lambda k=k, n=n: (X[k::n], y[k::n]) for k in range(n)])
        model = pt.ChainCRF(delta=1e-9, max_iterations=300).fit(cut)
        assert model.offsets_ == whole.offsets_
        for key, weight in whole.state_features_.items():
            assert model.state_features_[key] == pytest.approx(weight, abs=1e-3)


def test_a_damaged_offset_is_refused(tmp_path):
    content, arrays = score(1e6)[0].state()
    with pytest.raises(PotentiaError, match="offsets is inf, not a finite number"):
        pt.ChainCRF.from_state({**content, "offsets": {"x": float("inf")}}, arrays)
    with pytest.raises(PotentiaError, match="column_offsets has the shape"):
        pt.ChainCRF.from_state(content, {**arrays, "column_offsets": np.zeros(3)})


def test_moments_are_those_of_the_values():
    rng = np.random.default_rng(3)
    attribute, weight = rng.integers(0, 5, 400), rng.integers(0, 3, 400).astype(float)
    value = rng.normal(size=400) + 10.0 ** rng.integers(0, 9, 5)[attribute]
    found = Moments.none(6)
    for part in np.array_split(np.arange(400), 3):
        found.add(attribute_moments(attribute[part], value[part], weight[part], 6), np.arange(6))
    for k in range(5):
        own = np.repeat(value[attribute == k], weight[attribute == k].astype(int))
        assert found.weight[k] == len(own)
        assert found.mean[k] == pytest.approx(own.mean(), rel=1e-14)
        assert found.deviation[k] == pytest.approx(len(own) * own.var(), rel=1e-6)
    assert found.weight[5] == found.offsets()[5] == 0.0
    dense = np.zeros((400, 5))
    dense[np.arange(400), attribute] = value
    for a, b in zip(column_moments(dense, weight), found, strict=True):
        np.testing.assert_allclose(a, b[:5], rtol=1e-6)
