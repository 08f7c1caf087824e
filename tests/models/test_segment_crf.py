"""`SegmentCRF` against sums over all segmentations, against a chain where segments are single tokens, and its files."""

import math
from itertools import product

import numpy as np
import pytest

import potentia as pt
from potentia import PotentiaError

WORDS = [["a", "b", "a", "c"], ["b", "b"], ["c", "a", "b"], ["a"]]
X = [[{"w": w, "n": 0.5 * len(row), "up": w == "a"} for w in row] for row in WORDS]
Y = [[(0, 2, "P"), (3, 4, "Q")], [(0, 2, "Q")], [(1, 3, "P")], []]
TAGS = [["B-P", "I-P", "O", "B-Q"], ["B-Q", "I-Q"], ["O", "B-P", "I-P"], ["O"]]
OPTIONS = {"c2": 0.3, "delta": 0.0, "max_iterations": 60}


def phrase(tokens, start, end):
    return {"phrase": " ".join(t["w"] for t in tokens[start:end]), "half": 0.5 * (end - start)}


@pytest.fixture(autouse=True)
def quiet(recwarn):
    """Fits of so few sequences may end before their limit."""


def segmentations(n, longest):
    """All lists of (start, end, label) that cover n tokens."""
    if n == 0:
        yield []
        return
    for label, most in longest.items():
        for d in range(1, min(n, most) + 1):
            for before in segmentations(n - d, longest):
                yield [*before, (n - d, n, label)]


def named(features):
    for key, value in features.items():
        yield (f"{key}:{value}", 1.0) if isinstance(value, str) else (key, float(value))


def counted(model, tokens, path):
    """What a segmentation's score is linear in: features by name."""
    found, before = {}, None
    longest = dict(zip(model.labels_, model.max_lengths_, strict=True))

    def add(key, value=1.0):
        found[key] = found.get(key, 0.0) + value

    for k, (start, end, label) in enumerate(path):
        for t in range(start, end):
            several = longest[label] > 1
            parts = ["any", *["first"] * (several and t == start), *["last"] * (several and t == end - 1)]
            for part, (name, value) in product(parts, list(named(tokens[t]))):
                add((name, part, label), value)
        if model.features is not None:
            for name, value in named(model.features(tokens, start, end)):
                add((name, "any", label), value)
        add(("length", label, end - start))
        if k:
            add(("pair", before, label))
        before = label
    return found


def weights_of(model):
    lengths = {("length", *key): w for key, w in model.length_features_.items()}
    pairs = {("pair", *key): w for key, w in model.transition_features_.items()}
    return model.state_features_ | lengths | pairs


def enumerated(model, weights, tokens):
    """Segmentations with their scores, and log Z."""
    longest = dict(zip(model.labels_, model.max_lengths_, strict=True))
    paths = list(segmentations(len(tokens), longest))
    counts = [counted(model, tokens, path) for path in paths]
    scores = np.array([sum(weights.get(key, 0.0) * v for key, v in found.items()) for found in counts])
    return paths, counts, scores, np.logaddexp.reduce(scores)


def agrees(path, tags):
    """Whether a segmentation has these tags (BIO), where they are known."""
    own = {t: ("O" if y is None else f"{'B' if t == a else 'I'}-{y}") for a, b, y in path for t in range(a, b)}
    return all(tag is None or own[t] == tag for t, tag in enumerate(tags))


def objective(model, weights, X, tags):
    """Penalised negative log-likelihood, and its gradient, by enumeration."""
    value, slope = 0.0, dict.fromkeys(weights, 0.0)
    for tokens, row in zip(X, tags, strict=True):
        paths, counts, scores, log_z = enumerated(model, weights, tokens)
        fits = np.array([agrees(path, row) for path in paths])
        known = np.logaddexp.reduce(scores[fits])
        value += log_z - known
        p = np.exp(scores - log_z) - np.where(fits, np.exp(scores - known), 0.0)
        for found, q in zip(counts, p, strict=True):
            for key, v in found.items():
                if key in slope:
                    slope[key] += q * v
    for key, w in weights.items():
        value += model.c2 * w * w
        slope[key] += 2 * model.c2 * w
    return value, slope


@pytest.fixture(scope="module", params=["tokens", "phrases", "unknown"])
def fitted(request):
    """A model, and the tags that it was trained on."""
    tags = [list(row) for row in TAGS]
    if request.param == "unknown":
        tags[0][1] = tags[2][0] = None
        tags[1] = [None, None]
    function = phrase if request.param == "phrases" else None
    model = pt.SegmentCRF(**OPTIONS, scheme="BIO", features=function).fit(X, tags)
    return model, tags


def test_the_objective_is_that_of_all_segmentations_and_its_gradient_is_zero_at_the_end(fitted):
    model, tags = fitted
    value, slope = objective(model, weights_of(model), X, tags)
    assert value == pytest.approx(model.history_[-1]["objective"], rel=1e-10)
    assert max(map(abs, slope.values())) < 1e-4


def test_probabilities_are_those_of_all_segmentations(fitted):
    model, _ = fitted
    weights = weights_of(model)
    marginals, best = model.predict_marginals(X, least=0.0), model.set_params(scheme=None).k_best(X, 10_000)
    model.set_params(scheme="BIO")
    for tokens, found, ranked in zip(X, marginals, best, strict=True):
        paths, _, scores, log_z = enumerated(model, weights, tokens)
        expected = {}
        for path, score in zip(paths, scores, strict=True):
            for segment in path:
                if segment[2] is not None:
                    expected[segment] = expected.get(segment, 0.0) + math.exp(score - log_z)
        assert {tuple(s): p for s, p in found.items()} == pytest.approx(expected, abs=1e-10)
        shown = {tuple(s for s in path if s[2] is not None): x - log_z for path, x in zip(paths, scores, strict=True)}
        assert {tuple(map(tuple, r.segments)): r.log_probability for r in ranked} == pytest.approx(shown, abs=1e-9)
        assert [r.log_probability for r in ranked] == sorted((r.log_probability for r in ranked), reverse=True)
    assert [paths[0].segments for paths in best] == model.set_params(scheme=None).predict(X)
    model.set_params(scheme="BIO")


def test_single_tokens_are_a_chain():
    y = [[{"a": "O", "b": "P", "c": "Q"}[w] for w in row] for row in WORDS]
    y[0][2] = "P"
    spans = [[(t, t + 1, label) for t, label in enumerate(row) if label != "O"] for row in y]
    chain = pt.ChainCRF(**OPTIONS, all_possible_transitions=True).fit(X, y)
    model = pt.SegmentCRF(**OPTIONS).fit(X, spans)
    assert model.history_[-1]["objective"] == pytest.approx(chain.history_[-1]["objective"], rel=1e-8)
    weights = {(name, label or "O"): w for (name, part, label), w in model.state_features_.items() if part == "any"}
    assert weights == pytest.approx(chain.state_features_, abs=1e-4)
    pairs = {(a or "O", b or "O"): w for (a, b), w in model.transition_features_.items()}
    assert pairs == pytest.approx(chain.transition_features_, abs=1e-4)
    probabilities = [
        [{label: found.get((t, t + 1, label), 0.0) for label in "PQ"} for t in range(len(tokens))]
        for tokens, found in zip(X, model.predict_marginals(X, least=0.0), strict=True)
    ]
    for own, others in zip(probabilities, chain.predict_marginals(X), strict=True):
        for p, q in zip(own, others, strict=True):
            assert p == pytest.approx({label: q[label] for label in "PQ"}, abs=1e-5)


def test_schemes_are_read_and_written():
    model = pt.SegmentCRF(**OPTIONS).fit(X, Y)
    bio = pt.SegmentCRF(**OPTIONS, scheme="BIO").fit(X, TAGS)
    assert model.history_[-1]["objective"] == bio.history_[-1]["objective"]
    assert model.predict(X) == Y
    assert bio.predict(X) == TAGS
    bioes = [["B-P", "E-P", "O", "S-Q"], ["B-Q", "E-Q"], ["O", "B-P", "E-P"], ["O"]]
    assert pt.SegmentCRF(**OPTIONS, scheme="BIOES").fit(X, bioes).predict(X) == bioes
    iob1 = [["I-P", "I-P", "O", "I-Q"], ["I-Q", "I-Q"], ["O", "I-P", "I-P"], ["O"]]
    assert pt.SegmentCRF(**OPTIONS, scheme="IOB1").fit(X, iob1).predict(X) == iob1
    assert model.score(X, Y) == bio.score(X, TAGS) == 1.0


@pytest.mark.parametrize("features", [None, phrase])
def test_a_saved_model_predicts_the_same(features, tmp_path):
    arrays = [[{**token, "v": np.array([len(row), 1.0])} for token in row] for row in X]
    model = pt.SegmentCRF(**OPTIONS, c1=0.01, features=features).fit(arrays, Y)
    model.save(tmp_path / "model")
    loaded = pt.load(tmp_path / "model")
    if features is not None:
        with pytest.raises(PotentiaError, match="set it first"):
            loaded.predict(arrays)
        loaded.set_params(features=features)
    assert loaded.predict_marginals(arrays) == model.predict_marginals(arrays)
    assert loaded.state_features_ == model.state_features_


def test_results_do_not_depend_on_threads_and_weights_repeat_sequences():
    many = [X[k % 4] for k in range(300)], [Y[k % 4] for k in range(300)]
    one, two = (pt.SegmentCRF(c2=0.1, max_iterations=4, threads=n).fit(*many) for n in (1, 2))
    assert one.state_features_ == two.state_features_
    weighted = pt.SegmentCRF(c2=0.1, max_iterations=4).fit(X, Y, sample_weight=[75.0] * 4)
    assert weighted.history_[-1]["objective"] == pytest.approx(one.history_[-1]["objective"], rel=1e-8)


@pytest.mark.parametrize(
    ("options", "y", "sentence"),
    [
        ({}, [[(0, 5, "P")], [], [], []], r"y\[0\] has the segment"),
        ({}, [[(0, 2, "P"), (1, 3, "P")], [], [], []], "must not overlap"),
        ({}, TAGS, "set scheme"),
        ({"scheme": "BIO"}, [["I-P", "O", "O", "O"], *TAGS[1:]], "does not allow"),
        ({"scheme": "BIO"}, [["O"], *TAGS[1:]], r"4 tokens, but y\[0\] has 1"),
        ({"max_length": 1}, Y, "max_length is 1"),
        ({}, [[], [], [], []], "no segments to learn from"),
        ({}, Y[:3], "4 sequences, but y has 3"),
        ({"features": 3}, Y, "must be a function"),
    ],
)
def test_wrong_input_is_refused(options, y, sentence):
    with pytest.raises(PotentiaError, match=sentence):
        pt.SegmentCRF(**options).fit(X, y)


def test_a_fit_is_resumed(tmp_path):
    whole = pt.SegmentCRF(c2=0.1, delta=0.0, max_iterations=6).fit(X, Y)
    begun = pt.SegmentCRF(c2=0.1, delta=0.0, max_iterations=3)
    begun.fit(X, Y, checkpoint=tmp_path / "state")
    assert len(begun.history_) == 3
    begun.set_params(max_iterations=6).fit(X, Y, checkpoint=tmp_path / "state")
    assert begun.state_features_ == whole.state_features_
