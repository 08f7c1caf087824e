"""`ChainCRF`: restrictions on labels, class weights, spans, probabilities and sets, beside enumeration."""

import itertools

import numpy as np
import pytest

import potentia as pt
from potentia.features.schemes import spans

pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")
TAGS = ["O", "B-X", "I-X", "B-Y", "I-Y"]


def corpus(seed=0, n=40, labels=TAGS, lengths=(1, 6)):
    """Words whose labels are random, legal in BIO."""
    rng, X, y = np.random.default_rng(seed), [], []
    for _ in range(n):
        row = []
        for _ in range(rng.integers(*lengths)):
            options = [t for t in labels if t[0] != "I" or (row and row[-1][0] != "O" and row[-1][1:] == t[1:])]
            row.append(str(rng.choice(options)))
        X.append([{"w": tag[0] if rng.random() < 0.7 else "?", "v": float(rng.normal())} for tag in row])
        y.append(row)
    return X, y


def every_labelling(model, tokens, scheme=None, allowed=None):
    """All labellings with their probabilities, from the weights by name."""
    states, moves, names = model.state_features_, model.transition_features_, model.classes_
    paths, scores = [], []
    for path in itertools.product(names, repeat=len(tokens)):
        if allowed is not None and not all(a is None or label in a for a, label in zip(allowed, path, strict=True)):
            continue
        if any(pair in model.constraints for pair in itertools.pairwise([None, *path, None])):
            continue
        if scheme == "BIO" and any(
            b[0] == "I" and not (a is not None and a[0] != "O" and a[1:] == b[1:])
            for a, b in itertools.pairwise([None, *path])
        ):
            continue
        node = sum(
            states.get((f"w:{t['w']}", label), 0.0) + t["v"] * states.get(("v", label), 0.0)
            for t, label in zip(tokens, path, strict=True)
        )
        paths.append(path)
        scores.append(node + sum(moves.get(pair, 0.0) for pair in itertools.pairwise(path)))
    p = np.exp(np.array(scores) - np.logaddexp.reduce(scores))
    return paths, p


def options(scheme):
    return {"c2": 0.3, "max_iterations": 20, "scheme": scheme}


@pytest.mark.parametrize("scheme", [None, "BIO"])
def test_spans_pairs_and_labellings_have_the_probabilities_of_enumeration(scheme):
    X, y = corpus()
    model = pt.ChainCRF(**options(scheme)).fit(X, y)
    chosen = [s for s in X if len(s) < 5][:6]
    pairs, predicted = model.predict_pairs(chosen), model.predict_spans(chosen)
    every, few = model.predict_spans(chosen, min_probability=0.0), model.predict_spans(chosen, min_probability=0.1)
    for k, tokens in enumerate(chosen):
        paths, p = every_labelling(model, tokens, scheme)
        joint = np.zeros((len(tokens) - 1, 5, 5))
        truth = {}
        for path, q in zip(paths, p, strict=True):
            numbers = [model.classes_.index(label) for label in path]
            for t, (a, b) in enumerate(itertools.pairwise(numbers)):
                joint[t, a, b] += q
            for span in spans(path, scheme):
                truth[span] = truth.get(span, 0.0) + q
        np.testing.assert_allclose(pairs[k], joint, atol=1e-12)
        assert {span[:3]: pytest.approx(span.probability, abs=1e-12) for span in every[k]} == truth
        assert {span[:3] for span in few[k]} == {span for span, q in truth.items() if q >= 0.1}
        assert [span[:3] for span in predicted[k]] == [*spans(model.predict([tokens])[0], scheme)]
        assert [span.probability for span in predicted[k]] == pytest.approx([truth[s[:3]] for s in predicted[k]])
        best = int(np.argmax(p))
        found = model.log_probability([tokens] * 2, [paths[best], [None] * len(tokens)])
        np.testing.assert_allclose(np.exp(found), [p[best], 1.0], atol=1e-12)


def test_probabilities_of_sets_and_predictions_among_allowed_labels():
    X, y = corpus(1)
    model = pt.ChainCRF(**options(None)).fit(X, y)
    tokens = next(s for s in X if len(s) == 4)
    allowed = [{"O", "B-X"}, None, ("I-X", "O", "B-Y"), "I-Y"]
    given = [allowed[0], None, allowed[2], ["I-Y"]]
    paths, p = every_labelling(model, tokens)
    inside = [q for path, q in zip(paths, p, strict=True)
              if all(a is None or label in a for a, label in zip(given, path, strict=True))]  # fmt: skip
    assert np.exp(model.log_probability([tokens], [allowed])[0]) == pytest.approx(sum(inside))
    paths, p = every_labelling(model, tokens, allowed=given)
    assert model.predict([tokens], allowed=[allowed]) == [list(paths[int(np.argmax(p))])]
    (rows,) = model.predict_marginals([tokens], allowed=[allowed])
    for t, row in enumerate(rows):
        for label, q in row.items():
            assert q == pytest.approx(sum(p[k] for k, path in enumerate(paths) if path[t] == label), abs=1e-12)
    within = model.log_probability([tokens] * 2, [paths[0], ["B-Y"] * 4], allowed=[allowed] * 2)
    assert np.exp(within[0]) == pytest.approx(p[0])
    assert within[1] == -np.inf
    with pytest.raises(pt.PotentiaError, match=r"allowed\[0\]\[0\] allows no label"):
        model.predict([tokens], allowed=[[{"?"}, None, None, None]])
    with pytest.raises(pt.PotentiaError, match=r"allowed\[0\]\[0\] allows no label that the model has: \('\?',\)"):
        model.predict([tokens], allowed=[["?", None, None, None]])


def test_sets_of_labels_train_the_sum_over_them():
    # the value of the objective at weights found otherwise, and the gradient: it cannot fall any further
    X, y = corpus(2, 12, lengths=(1, 5))
    rng = np.random.default_rng(0)
    partial = [[{label, str(rng.choice(TAGS))} if rng.random() < 0.4 else label for label in row] for row in y]
    partial[0] = [None] * len(partial[0])
    model = pt.ChainCRF(c2=0.5, max_iterations=200, delta=0.0, all_possible_transitions=True)
    model.fit(X, partial)
    weights = [*model.state_features_.values(), *model.transition_features_.values()]
    value = 0.5 * float(np.square(weights).sum())
    for tokens, row in zip(X[1:], partial[1:], strict=True):
        sets = [label if isinstance(label, set) else {label} for label in row]
        paths, p = every_labelling(model, tokens)
        value -= np.log(sum(q for path, q in zip(paths, p, strict=True)
                            if all(a in s for a, s in zip(path, sets, strict=True))))  # fmt: skip
    assert model.history_[-1]["objective"] == pytest.approx(value, rel=1e-9)
    single = [[{label} if k % 2 else (label,) for k, label in enumerate(row)] for row in y]
    same = pt.ChainCRF(c2=0.5, max_iterations=200, delta=0.0).fit(X, single)
    other = pt.ChainCRF(c2=0.5, max_iterations=200, delta=0.0).fit(X, y)
    assert same.history_[-1]["objective"] == pytest.approx(other.history_[-1]["objective"], rel=1e-9)
    with pytest.raises(pt.PotentiaError, match=r"y\[0\]\[0\] allows no label"):
        pt.ChainCRF().fit([[{"a": 1.0}] * 2], [[set(), "O"]])


def test_constraints_hold_in_training_and_prediction_and_are_saved(tmp_path):
    X, y = corpus(3)
    forbidden = [("O", "B-Y"), (None, "B-Y"), ("B-X", None)]
    with pytest.raises(pt.PotentiaError, match="is not allowed there in the constraints"):
        pt.ChainCRF(constraints=forbidden).fit(X, y)
    kept = [k for k, row in enumerate(y) if not set(forbidden) & set(itertools.pairwise([None, *row, None]))]
    X, y = [X[k] for k in kept], [y[k] for k in kept]
    model = pt.ChainCRF(c2=0.3, max_iterations=20, constraints=forbidden, class_weight={"O": 2.0}).fit(X, y)
    for tokens in [s for s in X if len(s) < 5][:4]:
        paths, p = every_labelling(model, tokens)
        assert model.predict([tokens]) == [list(paths[int(np.argmax(p))])]
        assert np.exp(model.log_probability([tokens], [paths[0]])) == pytest.approx(p[0])
    model.save(tmp_path / "chain")
    loaded = pt.load(tmp_path / "chain")
    assert loaded.get_params()["constraints"] == tuple(forbidden)
    assert loaded.class_weight == {"O": 2.0}
    assert loaded.predict_marginals(X) == model.predict_marginals(X)
    assert model.set_params(constraints=()).predict_marginals(X) != loaded.predict_marginals(X)
    for wrong in ([("O", "?")], ["O"], [(None, None)]):
        with pytest.raises(pt.PotentiaError, match="constraints"):
            pt.ChainCRF(constraints=wrong).fit(X, y)


@pytest.mark.parametrize("weight", [{"B-X": 3.0, "O": 0.5}, "balanced"])
def test_class_weights_multiply_labellings_by_their_errors(weight):
    X, y = corpus(4, 12, lengths=(1, 5))
    model = pt.ChainCRF(c2=0.5, max_iterations=200, delta=0.0, class_weight=weight).fit(X, y)
    if weight == "balanced":
        count = {label: sum(row.count(label) for row in y) for label in model.classes_}
        weight = {label: sum(count.values()) / len(count) / n for label, n in count.items()}
    values = [*model.state_features_.values(), *model.transition_features_.values()]
    value = 0.5 * float(np.square(values).sum())
    for tokens, row in zip(X, y, strict=True):
        paths, p = every_labelling(model, tokens)
        cost = [np.prod([weight.get(b, 1.0) for a, b in zip(path, row, strict=True) if a != b]) for path in paths]
        value -= np.log(p[paths.index(tuple(row))] / (p * cost).sum())
    assert model.history_[-1]["objective"] == pytest.approx(value, rel=1e-9)
    plain = pt.ChainCRF(c2=0.5).fit(X, y)
    bold = pt.ChainCRF(c2=0.5, class_weight={"B-X": 20.0}).fit(X, y)
    found = [sum(row.count("B-X") for row in m.predict(X)) for m in (plain, bold)]
    assert found[1] > found[0]
    with pytest.raises(pt.PotentiaError, match="class_weight"):
        pt.ChainCRF(class_weight={"O": 0.0}).fit(X, y)


def test_arrays_are_sequences(tmp_path):
    rng = np.random.default_rng(5)
    X = [rng.normal(size=(n, 3)) for n in (4, 1, 0, 6)]
    y = [["a" if row[0] > 0 else "b" for row in sequence] for sequence in X]
    arrays = pt.ChainCRF(c2=0.1).fit(X, y)
    dictionaries = [[{"x": row} for row in sequence] for sequence in X]
    named = pt.ChainCRF(c2=0.1).fit(dictionaries, y)
    assert arrays.predict_marginals(X) == named.predict_marginals(X) == named.predict_marginals(dictionaries)
    with pytest.raises(pt.PotentiaError, match="3"):
        arrays.predict([np.zeros((2, 4))])


def test_partial_fits_reach_the_fit_and_grow():
    X, y = corpus(6, 60)
    fitted = pt.ChainCRF(c2=0.5).fit(X, y)
    steps = pt.ChainCRF(c2=0.5)
    for _ in range(8):
        for k in range(0, 60, 20):
            steps.partial_fit(X[k : k + 20], y[k : k + 20])
    assert abs(steps.score(X, y) - fitted.score(X, y)) < 0.03
    assert steps.n_iter_ == 24
    before = steps.state_features_
    steps.partial_fit([[{"new": 1.0}]], [["fresh"]], classes=["later"])
    assert set(steps.classes_) == {*TAGS, "fresh", "later"}
    after = steps.state_features_
    assert after["new", "fresh"] > 0
    unmoved = [key for key in before if key[0].startswith("w:")]
    assert [after[key] for key in unmoved] == pytest.approx([before[key] for key in unmoved], rel=1e-12)
    assert pt.ChainCRF().fit(X[:5], y[:5]).partial_fit(X, y).predict(X)


def test_validation_reports_errors_after_every_iteration():
    X, y = corpus(7)
    model = pt.ChainCRF(max_iterations=5, delta=0.0).fit(X, y, validation=(X[:10], y[:10]))
    error = 1.0 - model.score(X[:10], y[:10])
    whole = np.mean([a != b for a, b in zip(model.predict(X[:10]), y[:10], strict=True)])
    assert model.history_[-1]["validation_error"] == pytest.approx(error)
    assert model.history_[-1]["validation_sequence_error"] == pytest.approx(whole)


def test_sets_cover_what_they_say_over_splits(tmp_path):
    X, y = corpus(8, 400)
    model = pt.ChainCRF(c2=0.3, max_iterations=15, scheme="BIO").fit(X[:100], y[:100])
    X, y, rng = X[100:], y[100:], np.random.default_rng(0)
    missed, missed_spans = [], []
    for _ in range(20):
        order = rng.permutation(len(X)).tolist()
        held, rest = order[:150], order[150:]
        model.calibrate([X[k] for k in held], [y[k] for k in held])
        sets = model.predict_set([X[k] for k in rest], 0.8)
        for k, row in zip(rest, sets, strict=True):
            missed.append(np.mean([a not in s for a, s in zip(y[k], row, strict=True)]))
        found = model.predict_span_sets([X[k] for k in rest], 0.8)
        for k, row in zip(rest, found, strict=True):
            truth = {*spans(y[k], "BIO")}
            if truth:
                missed_spans.append(len(truth - {s[:3] for s in row}) / len(truth))
    assert 0.15 < np.mean(missed) < 0.21
    assert 0.15 < np.mean(missed_spans) < 0.215
    model.save(tmp_path / "chain")
    assert pt.load(tmp_path / "chain").predict_set(X[:9], 0.8) == model.predict_set(X[:9], 0.8)
    assert all(set(row[0]) == set(model.classes_) for row in model.predict_set(X[:2], 0.9999))
    with pytest.raises(pt.PotentiaError, match="sets need calibrate"):
        pt.ChainCRF().fit(X, y).predict_set(X)


def test_labels_of_parts_are_compared_with_and_not_looked_at():
    X, y = corpus(5, 12)
    model = pt.ChainCRF(**options(None)).fit(X, y)
    wrong = [[TAGS[(TAGS.index(label) + 1) % len(TAGS)] for label in row] for row in y]
    parts = pt.parts([lambda: (X[:5], wrong[:5]), lambda: (X[5:], wrong[5:])])
    assert model.predict(parts) == model.predict(X)
    assert model.predict_marginals(parts) == model.predict_marginals(X)
    assert model.score(parts) == model.score(X, wrong) < 0.5
