"""Features of pairs of neighbouring labels, from dictionaries and from templates, against enumeration."""

import itertools

import numpy as np
import pytest

import potentia as pt
from potentia.features.template import Template


def corpus(seed=0, n=14, longest=4):
    rng = np.random.default_rng(seed)
    X = [
        [{"w": str(rng.choice(list("abc"))), "v": float(rng.normal())} for _ in range(rng.integers(1, longest + 1))]
        for _ in range(n)
    ]
    return X, [[str(rng.choice(list("PQR"))) for _ in tokens] for tokens in X]


def attributes(tokens, t):
    return {"w:" + tokens[t]["w"]: 1.0, "v": tokens[t]["v"]}


def paths(model, tokens, of_token=attributes):
    """All labellings and their scores, from weights by name."""
    states, moves, pairs = model.state_features_, model.transition_features_, model.pair_features_
    for path in itertools.product(model.classes_, repeat=len(tokens)):
        score = 0.0
        for t, y in enumerate(path):
            for name, value in of_token(tokens, t).items():
                score += value * states.get((name, y), 0.0)
                if t:
                    score += value * pairs.get((name, path[t - 1], y), 0.0)
            score += moves.get((path[t - 1], y), 0.0) if t else 0.0
        yield list(path), score


def objective(model, X, y, c1, c2):
    total = 0.0
    for tokens, labels in zip(X, y, strict=True):
        scored = list(paths(model, tokens))
        right = [s for path, s in scored if all(b is None or a == b for a, b in zip(path, labels, strict=True))]
        total += np.logaddexp.reduce([s for _, s in scored]) - np.logaddexp.reduce(right)
    named = (model.state_features_, model.transition_features_, model.pair_features_)
    weights = np.array([w for group in named for w in group.values()])
    return total + c1 * np.abs(weights).sum() + c2 * np.square(weights).sum()


@pytest.mark.parametrize("c1", [0.0, 0.2])
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("keys", [("w",), ("w", "v")])
@pytest.mark.parametrize("everything", [False, True])
def test_objective_marginals_and_best_paths_are_those_of_enumeration(c1, hidden, keys, everything):
    X, y = corpus(len(keys))
    if hidden:
        y = [[None if k % 5 == 4 else label for k, label in enumerate(row, number)] for number, row in enumerate(y)]
    model = pt.ChainCRF(c1, 0.1, 25, delta=0, pair_attributes=keys, all_possible_transitions=everything)
    model.fit(X, y)
    assert any(name == "w:a" for name, _, _ in model.pair_features_)
    assert ("v" in keys) == any(name == "v" for name, _, _ in model.pair_features_)
    assert model.history_[-1]["objective"] == pytest.approx(objective(model, X, y, c1, 0.1), rel=1e-10)
    for tokens in X[:5]:
        ranked = sorted(paths(model, tokens), key=lambda item: -item[1])
        log_z = np.logaddexp.reduce([score for _, score in ranked])
        assert model.predict_single(tokens) == ranked[0][0]
        best = model.k_best([tokens], 4)[0]
        assert [p.log_probability for p in best] == pytest.approx([s - log_z for _, s in ranked[:4]], abs=1e-9)
        for t, row in enumerate(model.predict_marginals_single(tokens)):
            for label in model.classes_:
                p = sum(np.exp(s - log_z) for path, s in ranked if path[t] == label)
                assert row[label] == pytest.approx(p, abs=1e-12)


def test_saved_warm_and_fitted_in_parts(tmp_path):
    X, y = corpus(3, 30)
    model = pt.ChainCRF(0.05, 0.1, 60, pair_attributes=("w",)).fit(X, y)
    model.save(tmp_path / "chain")
    loaded = pt.load(tmp_path / "chain")
    assert loaded.get_params() == model.get_params()
    assert loaded.pair_features_ == model.pair_features_
    assert loaded.predict_marginals(X) == model.predict_marginals(X)
    pieces = pt.parts([lambda: (X[:11], y[:11]), lambda: (X[11:], y[11:])])
    in_parts = pt.ChainCRF(0.05, 0.1, 60, pair_attributes=("w",)).fit(pieces)
    assert in_parts.pair_features_.keys() == model.pair_features_.keys()
    assert in_parts.history_[-1]["objective"] == pytest.approx(model.history_[-1]["objective"], rel=1e-6)
    before = model.history_[-1]["objective"]
    model.fit(X, y, warm_start=True)
    assert model.history_[0]["objective"] <= before + 1e-9


def rows(seed=0, n=25):
    rng = np.random.default_rng(seed)
    X = [[[str(rng.choice(list("ABab"))), str(rng.integers(3))] for _ in range(rng.integers(1, 6))] for _ in range(n)]
    return X, [[str(rng.choice(list("PQR"))) for _ in tokens] for tokens in X]


def test_a_template_gives_what_its_names_give():
    """Lines u, b and * by hand: lists of names with states and, as dictionaries, pairs."""
    text = "U0:%x[0,0]\nU1:%x[-1,1]/%x[0,0]\n*2:%X[0,0]\nb3:%x[1,1]\nB\n"
    X, y = rows()
    model = pt.ChainCRF(c2=0.3, max_iterations=60, template=Template(text)).fit(X, y)
    assert {name[0] for name, _ in model.state_features_} == {"u", "*"}
    assert {name[0] for name, _, _ in model.pair_features_} == {"*", "b"}

    def of_token(tokens, t):
        def at(k):
            return tokens[k] if 0 <= k < len(tokens) else [f"_x{k if k < 0 else k - len(tokens) + 1:+d}"] * 2

        names = [f"u0:{tokens[t][0]}", f"u1:{at(t - 1)[1]}/{tokens[t][0]}", f"*2:{tokens[t][0].lower()}"]
        return dict.fromkeys([*names, f"b3:{at(t + 1)[1]}"], 1.0)

    for tokens in X[:6]:
        ranked = sorted(paths(model, tokens, of_token), key=lambda item: -item[1])
        assert model.predict_single(tokens) == ranked[0][0]
    without = pt.ChainCRF(template=Template("U0:%x[0,0]")).fit(X, y)
    assert not without.transition_features_


def test_what_cannot_be_is_refused_in_one_sentence():
    X, y = rows()
    with pytest.raises(pt.PotentiaError, match="has 2 columns, but the template asks for column 5"):
        pt.ChainCRF(template=Template("U0:%x[0,5]")).fit(X, y)
    with pytest.raises(pt.PotentiaError, match="pair_attributes must be a list of names"):
        pt.ChainCRF(pair_attributes="word").fit(*corpus())
    many = [[{"w": "a"}, {"w": "a"}] for _ in range(150)]
    with pytest.raises(pt.PotentiaError, match="at most 255 labels, but y has 300"):
        pt.ChainCRF(pair_attributes=["w"]).fit(many, [[f"{k}x", f"{k}y"] for k in range(150)])
