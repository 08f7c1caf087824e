"""`ChainCRF`: beside enumeration, CRFsuite and itself; what it takes, refuses, saves and resumes."""

import itertools
import pickle
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import potentia as pt
from potentia.base.saving import file_kind, read_file, write_file
from potentia.base.types import PotentiaError
from potentia.features.attributes import AttributeIndex
from potentia.features.schemes import Allowed, allowed_tags
from potentia.learn.chain import likeliest_labels, scheme_constraints
from potentia.learn.chain_data import OF_LABELS, OF_PAIRS, ChainData, chain_sources
from potentia.learn.chain_fit import ChainFit
from tags import legal

pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")


def token(rng):
    return {
        "w": str(rng.choice(list("abcdef"))),
        "size": float(np.abs(rng.normal())),
        "flag": bool(rng.integers(2)),
        "n": {"x": str(rng.choice(["p", "q"])), "y": ["u", "v"][: rng.integers(0, 3)]},
    }


def corpus(seed=0, n=30, labels="ABCDE", lengths=(1, 7)):
    rng = np.random.default_rng(seed)
    X = [[token(rng) for _ in range(rng.integers(*lengths))] for _ in range(n)]
    y = [[str(rng.choice(list(labels))) if t["flag"] else labels[ord(t["w"]) % 3] for t in s] for s in X]
    return X, y


def theta(model, tokens):
    """Scores of tokens and of pairs, by the names of features."""
    states, pairs = model.state_features_, model.transition_features_
    rows = []
    for features in tokens:
        values = {f"w:{features['w']}": 1.0, "size": features["size"], "flag": float(features["flag"])}
        values |= {f"n:x:{features['n']['x']}": 1.0} | {f"n:y:{name}": 1.0 for name in features["n"]["y"]}
        rows.append([sum(v * states.get((a, label), 0.0) for a, v in values.items()) for label in model.classes_])
    table = [[pairs.get((a, b), 0.0) for b in model.classes_] for a in model.classes_]
    return np.array(rows), np.array(table)


def enumerate_paths(node, pair, allowed=None):
    """All labellings with their scores."""
    n, L = node.shape
    for path in itertools.product(range(L), repeat=n):
        score = node[np.arange(n), path].sum() + pair[path[:-1], path[1:]].sum()
        legal = allowed is None or (
            allowed.start[path[0]] and allowed.end[path[-1]] and allowed.transitions[path[:-1], path[1:]].all()
        )
        if legal:
            yield path, score


def test_predictions_marginals_and_best_paths_are_those_of_enumeration():
    X, y = corpus(lengths=(1, 5))
    model = pt.ChainCRF(c2=0.1, max_iterations=20).fit(X, y)
    for tokens in X[:8]:
        node, pair = theta(model, tokens)
        paths = sorted(enumerate_paths(node, pair), key=lambda item: -item[1])
        log_z = np.logaddexp.reduce([score for _, score in paths])
        best = [[model.classes_[k] for k in path] for path, _ in paths[:3]]
        assert model.predict_single(tokens) == best[0]
        found = model.k_best([tokens], 3)[0]
        assert [path.labels for path in found] == best
        assert [p.log_probability for p in found] == pytest.approx([s - log_z for _, s in paths[:3]])
        for t, row in enumerate(model.predict_marginals_single(tokens)):
            for k, label in enumerate(model.classes_):
                p = sum(np.exp(score - log_z) for path, score in paths if path[t] == k)
                assert row[label] == pytest.approx(p, abs=1e-12)


def naive_objective(model, X, y, c1, c2, weight, allowed):
    value = 0.0
    for tokens, labels, w in zip(X, y, weight, strict=True):
        node, pair = theta(model, tokens)
        paths = list(enumerate_paths(node, pair, allowed))
        known = [
            s
            for path, s in paths
            if all(b is None or model.classes_[k] == b for k, b in zip(path, labels, strict=True))
        ]
        value += w * (np.logaddexp.reduce([s for _, s in paths]) - np.logaddexp.reduce(known))
    all_weights = [*model.state_features_.values(), *model.transition_features_.values()]
    return value + c2 * np.square(all_weights).sum() + c1 * np.abs(all_weights).sum()


@pytest.mark.parametrize("c1", [0.0, 0.3])
@pytest.mark.parametrize("scheme", [None, "BIO"])
@pytest.mark.parametrize("hidden", [False, True])
def test_the_objective_is_that_of_enumeration(c1, scheme, hidden):
    X, _ = corpus(1, n=10, lengths=(1, 5))
    rng = np.random.default_rng(2)
    y = []
    for tokens in X:
        row, last = [], "O"
        for _ in tokens:
            last = str(rng.choice(["O", "B-X", *(["I-X"] if last != "O" else [])]))
            row.append(last)
        y.append(row)
    y[0] = ["B-X", *y[0][1:]]
    y[1] = ["B-X", "I-X", *y[1][2:]][: len(X[1])]
    if hidden:
        y = [[None if rng.random() < 0.3 else label for label in row] for row in y]
    weight = rng.uniform(0.5, 2.0, len(X))
    model = pt.ChainCRF(c1, 0.2, 15, scheme=scheme, all_possible_transitions=True)
    model.fit(X, y, sample_weight=weight)
    allowed = scheme_constraints(model.classes_, scheme)
    naive = naive_objective(model, X, y, c1, 0.2, weight, allowed)
    assert model.history_[-1]["objective"] == pytest.approx(naive, rel=1e-10)


def begin(X, y, classes, allowed, scope=OF_LABELS):
    data = ChainData(*chain_sources(X, y, np.linspace(0.5, 1.5, len(X))))
    data.classes = classes  # also those that no label has
    scopes = np.full(len(data.index.numbers), scope, dtype=np.uint8)
    states, features, pair_features, _ = data.number(allowed, None, scopes, least=0.0)
    options = {"c1": 0.0, "c2": 0.3, "delta": 0.0, "max_iterations": 5, "threads": 1}
    return ChainFit(data.parts, states, features, pair_features, allowed.transitions, data.n_dense, **options)


@pytest.mark.parametrize("n_labels", [2, 8, 11, 35])
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("scale", [0.5, 300.0])
@pytest.mark.parametrize("scope", [OF_LABELS, OF_PAIRS, OF_LABELS | OF_PAIRS])
def test_the_gradient_is_that_of_differences(n_labels, dense, scale, scope):
    rng = np.random.default_rng(n_labels)
    classes = [f"{k:02d}" for k in range(n_labels)]
    X, _ = corpus(3, n=12)
    if dense:
        X = [[{**t, "v": rng.normal(size=3)} for t in s] for s in X]
    y = [[None if rng.random() < 0.2 else str(rng.choice(classes)) for _ in s] for s in X]
    y[0] = [None] * len(X[0])
    transitions = rng.random((n_labels, n_labels)) < 0.9
    row = [classes.index(b) if b else -1 for b in y[1]]
    for labels in y:
        row = [classes.index(b) if b else -1 for b in labels]
        for a, b in itertools.pairwise(row):
            transitions[a, b] |= a >= 0 and b >= 0
    transitions[0, :] = transitions[:, 0] = True
    allowed = Allowed(np.ones(n_labels, bool), transitions, np.ones(n_labels, bool))
    fit = begin(X, y, classes, allowed, scope)
    point = scale * rng.normal(size=fit.layout.size) / fit.scale
    point[fit.padding] = 0.0
    value, gradient = fit.objective(point)
    assert np.isfinite(value)
    assert not gradient[fit.padding].any()
    for _ in range(4):
        d = rng.normal(size=point.size) / fit.scale
        d[fit.padding] = 0.0
        h = 1e-5
        slope = (fit.objective(point + h * d)[0] - fit.objective(point - h * d)[0]) / (2 * h)
        assert gradient @ d == pytest.approx(slope, rel=2e-5, abs=1e-3 * scale)


@pytest.mark.parametrize(
    ("c1", "c2", "transitions", "states", "min_freq"),
    [
        (0, 1.0, False, False, 0), (0, 0.1, True, True, 0), (0.5, 0.1, False, False, 0), (1.0, 0, True, False, 0),
        (0, 0.5, False, False, 3),
    ],
)  # fmt: skip
def test_weights_and_predictions_are_those_of_crfsuite(c1, c2, transitions, states, min_freq):
    pycrfsuite = pytest.importorskip("pycrfsuite")
    X, y = corpus(4, n=50)
    trainer = pycrfsuite.Trainer(verbose=False)
    for tokens, labels in zip(X, y, strict=True):
        trainer.append(tokens, labels)
    trainer.set_params(
        {
            "c1": c1, "c2": c2, "max_iterations": 3000, "delta": 1e-14, "epsilon": 1e-9, "feature.minfreq": min_freq,
            "feature.possible_transitions": transitions, "feature.possible_states": states,
        }
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trainer.train(str(Path(folder) / "model"))
        tagger = pycrfsuite.Tagger()
        tagger.open(str(Path(folder) / "model"))
    info = tagger.info()
    model = pt.ChainCRF(
        c1, c2, 3000, delta=0.0, all_possible_transitions=transitions, all_possible_states=states, min_freq=min_freq
    ).fit(X, y)  # fmt: skip
    theirs = trainer.logparser.last_iteration["loss"]
    assert model.history_[-1]["objective"] == pytest.approx(theirs, rel=1e-7)
    for own, other in ((model.state_features_, info.state_features), (model.transition_features_, info.transitions)):
        assert max(abs(own.get(k, 0.0) - other.get(k, 0.0)) for k in {*own, *other}) < 1e-4
    assert model.predict(X) == [tagger.tag(tokens) for tokens in X]
    tagger.set(X[0])
    for t, row in enumerate(model.predict_marginals_single(X[0])):
        assert all(p == pytest.approx(tagger.marginal(label, t), abs=1e-4) for label, p in row.items())


def test_attributes_are_named_as_in_crfsuite():
    pycrfsuite = pytest.importorskip("pycrfsuite")
    tokens = [
        {"a": "x", "b": 2.5, "c": True, "d": False, "e": {"f": "y", "g": 3, "h": ["i", "j"]}, "k": ["l", "l"]},
        ["m", "n"],
        {"ü": "ß:ä"},
        {},
    ]
    index = AttributeIndex()
    found, _ = index.learn([tokens])
    names = list(index.numbers)
    for t, theirs in enumerate(pycrfsuite.ItemSequence(tokens).items()):
        own = range(*found.item_ptr[t : t + 2])
        values = {names[found.attribute[j]]: found.value[j] for j in own}
        assert values == theirs
    again, _ = index.encode([tokens])
    assert np.array_equal(again.attribute, found.attribute[found.value != 0])
    assert np.array_equal(again.value, found.value[found.value != 0])
    unseen = len(index.numbers)  # the number after the last, which models leave out
    assert index.encode([[{"a": "unseen", "b": 1.0}]])[0].attribute.tolist() == [unseen, index.numbers["b"]]
    lists, _ = index.encode([[["m", "unseen"], []], [["n"]]])
    assert lists.attribute.tolist() == [index.numbers["m"], len(names), index.numbers["n"]]
    assert lists.item_ptr.tolist() == [0, 2, 2, 3]
    assert lists.sequence_ptr.tolist() == [0, 2, 3]


def test_many_names_are_found_as_a_dictionary_finds_them(monkeypatch):
    rng = np.random.default_rng(0)
    names = [[[f"n{k}" for k in rng.integers(0, 5000, 4)] for _ in range(7)] for _ in range(50)]
    index = AttributeIndex()
    found, _ = index.learn(names)
    other = [[[*token, "unseen", f"n{k}"] for k, token in enumerate(s)] for s in names] + [[["n1"], {"n2": 1}, {"n3"}]]
    plain, _ = index.encode(other)
    assert index._table is None
    monkeypatch.setattr("potentia.features.attributes._MANY_NAMES", 30)
    again, _ = index.encode(other)
    assert index._table is not None
    assert all(np.array_equal(a, b) for a, b in zip(plain, again, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(found, index.encode(names)[0], strict=True))
    # hashes of texts are those of one process
    assert pickle.loads(pickle.dumps(index))._table is None
    with pytest.raises(PotentiaError, match=r"X\[0\]\[0\] holds \['c'\] of type list, where the name"):
        index.encode([[["a", ["c"]]]])
    with pytest.raises(PotentiaError, match=r"X\[1\]\[2\] holds \['c'\] of type list, where the name"):
        index.learn([[["a"]], [["b"], [], ["a", ["c"]]]])


def test_l1_makes_small_models():
    X, y = corpus(5)
    plain = pt.ChainCRF(c2=0.01).fit(X, y)
    sparse = pt.ChainCRF(c1=2.0, c2=0.01).fit(X, y)
    assert 0 < len(sparse.state_features_) < 0.7 * len(plain.state_features_)
    assert len(sparse.index_.numbers) < len(plain.index_.numbers)
    empty = pt.ChainCRF(c1=1e4).fit(X, y)
    assert not empty.state_features_
    assert len(empty.predict(X)) == len(X)


def test_dense_features_say_what_indicators_say():
    X, y = corpus(6, labels="ABC")
    words = sorted({t["w"] for s in X for t in s})
    dense = [[{"v": (np.array(words) == t["w"]).astype(float)} for t in s] for s in X]
    sparse = [[{f"v{words.index(t['w'])}": 1.0} for t in s] for s in X]
    options = {"c2": 0.1, "all_possible_states": True, "delta": 0.0, "max_iterations": 300}
    a, b = pt.ChainCRF(**options).fit(dense, y), pt.ChainCRF(**options).fit(sparse, y)
    assert a.history_[-1]["objective"] == pytest.approx(b.history_[-1]["objective"], rel=1e-8)
    assert a.predict(dense) == b.predict(sparse)
    mixed = [[{**s, **d} for s, d in zip(p, q, strict=True)] for p, q in zip(X, dense, strict=True)]
    assert pt.ChainCRF(c2=0.1).fit(mixed, y).score(mixed, y) > 0.6


@pytest.mark.parametrize("scheme", ["BIO", "IOB1", "BIOES"])
@pytest.mark.parametrize("decode", ["map", "mpm"])
def test_schemes_are_kept_in_training_and_decoding(scheme, decode):
    rng = np.random.default_rng(0)
    pool = [row for n in range(1, 5) for row in legal(scheme, n)]
    y = [pool[k] for k in rng.integers(len(pool), size=40)]
    X = [[token(rng) for _ in row] for row in y]
    model = pt.ChainCRF(c2=0.01, max_iterations=15, scheme=scheme, decode=decode).fit(X, y)
    allowed = scheme_constraints(model.classes_, scheme)
    place = {label: k for k, label in enumerate(model.classes_)}
    long = [[token(rng) for _ in range(9)] for _ in range(20)]
    for row in model.predict(long) if decode == "map" else []:
        path = [place[label] for label in row]
        assert allowed.start[path[0]]
        assert allowed.end[path[-1]]
        assert allowed.transitions[path[:-1], path[1:]].all()
    first = [row[0] for row in model.predict_marginals(long)]
    assert all(p == 0.0 for row in first for label, p in row.items() if not allowed.start[place[label]])
    with pytest.raises(PotentiaError, match=r"the label 'E-X' of token 1 in y\[0\] is not allowed|is not a tag of"):
        pt.ChainCRF(scheme=scheme).fit(X[:2], [["O", "E-X"][: len(X[0])] + ["O"] * (len(X[0]) - 2), y[1]])


def test_partial_labels_help_and_unlabelled_sequences_change_nothing():
    X, y = corpus(7, n=40, labels="ABC")
    rng = np.random.default_rng(0)
    some = [[b if rng.random() < 0.6 else None for b in row] for row in y]
    model = pt.ChainCRF(c2=0.1).fit(X, some)
    few = pt.ChainCRF(c2=0.1).fit(X[:3], y[:3])
    assert model.score(X, y) > few.score(X, y)
    more = pt.ChainCRF(c2=0.1).fit(X + X[:3], some + [[None] * len(s) for s in X[:3]])
    assert more.history_[-1]["objective"] == pytest.approx(model.history_[-1]["objective"], rel=1e-9)


def same(a, b):
    assert a.classes_ == b.classes_
    assert a.state_features_ == b.state_features_
    assert a.transition_features_ == b.transition_features_


def test_results_do_not_depend_on_threads(monkeypatch):
    monkeypatch.setattr("potentia.learn.chain._SHARD_WORK", 500)
    X, y = corpus(8)
    same(*(pt.ChainCRF(max_iterations=10, threads=n).fit(X, y) for n in (1, 3)))


@pytest.mark.parametrize("c1", [0.0, 0.2])
def test_a_saved_model_predicts_identically(c1, tmp_path):
    X, y = corpus(9)
    X = [[{**t, "v": np.full(2, k, dtype=np.float32)} for k, t in enumerate(s)] for s in X]
    model = pt.ChainCRF(c1, 0.1, 20).fit(X, y)
    model.save(tmp_path / "model")
    loaded = pt.load(tmp_path / "model")
    assert loaded.get_params() == model.get_params()
    same(loaded, model)
    assert loaded.predict_marginals(X) == model.predict_marginals(X)
    assert loaded.predict([]) == loaded.predict_marginals([]) == loaded.k_best([], 2) == []
    assert loaded.predict([[]]) == [[]]
    assert loaded.history_ == model.history_


@pytest.mark.parametrize("c1", [0.0, 0.2])
@pytest.mark.parametrize("cut", [1, 8])
def test_a_resumed_fit_is_the_same_fit(c1, cut, tmp_path):
    X, y = corpus(10)
    options = {"c1": c1, "c2": 0.1, "delta": 0.0}
    whole = pt.ChainCRF(**options, max_iterations=20).fit(X, y)
    path = tmp_path / "fit.checkpoint"
    pt.ChainCRF(**options, max_iterations=20).fit(X, y, checkpoint=path, callback=lambda h: len(h) == cut)
    same(pt.ChainCRF(**options, max_iterations=20, threads=1).fit(X, y, checkpoint=path), whole)
    with pytest.raises(PotentiaError, match="other options or data"):
        pt.ChainCRF(**options | {"c2": 0.2}).fit(X, y, checkpoint=path)


@pytest.mark.parametrize(("before", "fell"), [(0.0, False), (0, False), (1e300, True)])
def test_a_resumed_fit_takes_any_objective_for_its_past(before, fell, tmp_path):
    X, y = corpus(10)
    path = tmp_path / "fit.checkpoint"
    model = pt.ChainCRF(c2=0.1, delta=0.0, max_iterations=4)
    model.fit(X, y, checkpoint=path, callback=lambda h: len(h) == 2)
    kind = file_kind(path)
    content, arrays = read_file(path, kind)
    content["history"][0]["objective"] = before
    write_file(path, kind, content, arrays)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model.fit(X, y, checkpoint=path)
    assert ["still fell" in str(warning.message) for warning in found] == [True] * fell


def test_a_warm_start_begins_where_the_last_fit_ended():
    X, y = corpus(11, labels="ABCD")
    model = pt.ChainCRF(c2=0.1, max_iterations=60).fit(X, y)
    end = model.history_[-1]["objective"]
    model.set_params(max_iterations=1).fit(X, y, warm_start=True)
    assert model.history_[-1]["objective"] <= end
    others = [*X, [{"w": "new"}]], [*y, ["0 new label"]]
    cold = pt.ChainCRF(c2=0.1, max_iterations=3).fit(*others).history_[-1]["objective"]
    model.set_params(max_iterations=3).fit(*others, warm_start=True)
    assert model.history_[-1]["objective"] < cold


def test_scikit_learn_conventions():
    X, y = corpus(12)
    model = pt.ChainCRF(0.1, max_iterations=7, scheme=None)
    assert clone(model).get_params() == model.get_params()
    assert not hasattr(clone(model.fit(X, y)), "weights_")
    search = GridSearchCV(model, {"c2": [0.01, 10.0]}, cv=2).fit(X, y)
    assert search.best_params_["c2"] in (0.01, 10.0)
    assert model.score(X, y) == pytest.approx(
        np.mean([a == b for p, q in zip(model.predict(X), y, strict=True) for a, b in zip(p, q, strict=True)])
    )
    ints = [[ord(b) for b in row] for row in y]
    assert pt.ChainCRF(0.1, max_iterations=7).fit(X, ints).classes_ == sorted({b for r in ints for b in r})


def test_generators_sets_and_empty_sequences_are_taken():
    X, y = corpus(13)
    listed = pt.ChainCRF(max_iterations=5).fit([*X, []], [*y, []])
    same(pt.ChainCRF(max_iterations=5).fit((iter(s) for s in X), y), listed)
    names = [[{f"w={t['w']}"} for t in s] for s in X]
    assert len(pt.ChainCRF(max_iterations=5).fit(names, y).predict(names)) == len(X)


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        ([["The", "dog"]], [["A", "B"]], r"X\[0\]\[0\] is the text 'The': describe each token by a dictionary"),
        (["The dog"], [["A", "B"]], r"X\[0\] must be a list of feature dictionaries"),
        ("The dog", [["A", "B"]], "X must be a list of sequences"),
        ([[{"a": 1}]], [["A", "B"]], r"X\[0\] has 1 tokens, but y\[0\] has 2 labels"),
        ([[{"a": 1}]], [], "y has no labels"),
        ([[{"a": 1}]], [["A"], ["A"]], "X has 1 sequences, but y has 2"),
        ([[{"a": 1}]], ["A"], r"y\[0\] must be a list of labels, not 'A'"),
        ([[{"a": 1}]], [[1.5]], "labels must be texts or whole numbers"),
        ([[{"a": 1}, {}]], [["A", 1]], "y mixes texts and whole numbers"),
        ([[{"a": None}]], [["A"]], r"X\[0\]\[0\] has the feature 'a' of type NoneType"),
        ([[{"a": float("nan")}]], [["A"]], r"X\[0\]\[0\] has a number among its features that is not"),
        ([[], [{"a": 1}, {"b": 2.0, "a": np.inf}]], [[], ["A", "A"]], r"X\[1\]\[1\] has a number among its"),
        ([[], [{"a": 1}, {"a": np.array([np.nan])}]], [[], ["A", "A"]], r"X\[1\]\[1\] has an array among its"),
        ([[{"a": 10**400}]], [["A"]], r"X\[0\] has a number that a double cannot hold"),
        ([[["a"], ["b", ["c"]]]], [["A", "A"]], r"X\[0\]\[1\] holds \['c'\] of type list, where the name"),
        ([[{"a": 1}, ("b", {})]], [["A", "A"]], r"X\[0\]\[1\] holds {} of type dict, where the name"),
        ([[["a"], ["b", 3]]], [["A", "A"]], "a feature named 3 of type int; names must be texts"),
        ([[{1: 2.0}]], [["A"]], "a feature named 1 of type int"),
        ([[["a", None]]], [["A"]], "a feature named None of type NoneType"),
        ([[{"a": np.ones(2)}, {"a": np.ones(3)}]], [["A", "A"]], r"X\[0\]\[1\] has 3 numbers in 'a', but others"),
    ],
)  # fmt: skip
def test_wrong_data_get_a_sentence(X, y, words):
    with pytest.raises(PotentiaError, match=words):
        pt.ChainCRF().fit(X, y)


def test_labels_of_numpy_are_those_of_python(tmp_path):
    X, y = corpus(16, n=10)
    path = tmp_path / "fit.checkpoint"
    numbers = [["ABCDE".index(label) for label in row] for row in y]
    for plain, given in ((y, np.str_), (numbers, np.int64)):
        path.unlink(missing_ok=True)
        model = pt.ChainCRF(max_iterations=4).fit(X, plain, checkpoint=path)
        other = [[given(label) for label in row] for row in plain]
        again = pt.ChainCRF(max_iterations=4).fit(X, other, checkpoint=path)
        same(again, model)
        assert {type(label) for label in again.classes_} == {type(plain[0][0])}
        assert model.score(X, other) == model.score(X, plain)


def test_labels_of_another_type_are_refused_in_score():
    X, y = corpus(17, n=10)
    model = pt.ChainCRF(max_iterations=4).fit(X, y)
    with pytest.raises(PotentiaError, match=r"y holds whole numbers, but the labels .* are texts"):
        model.score(X, [[0] * len(row) for row in y])
    assert model.score(X, [["unseen"] * len(row) for row in y]) == 0.0


def test_names_with_surrogates_are_saved(tmp_path):
    X, y = [[{"w": "\ud800"}, {"w": "b"}]] * 3, [["a", "b"]] * 3
    model = pt.ChainCRF(max_iterations=4).fit(X, y)
    model.save(tmp_path / "model")
    assert pt.load(tmp_path / "model").predict_marginals(X) == model.predict_marginals(X)


@pytest.mark.parametrize("form", [float, lambda v: np.array([v, v])])
def test_numbers_that_the_penalty_hides_are_warned_of(form):
    rng = np.random.default_rng(0)
    y = [["ab"[k] for k in rng.integers(0, 2, 5)] for _ in range(40)]

    def fit(scale, c2=1.0):
        X = [[{"w": "x", "v": form(scale * (label == "a") + 0.1 * scale * rng.normal())} for label in row] for row in y]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            right = pt.ChainCRF(c2=c2).fit(X, y).score(X, y)
        assert {w.filename for w in caught} <= {__file__}
        return right, [str(w.message) for w in caught]

    right, messages = fit(1e-3)
    assert right < 0.9
    assert messages == [
        "the numbers of 'v' are so small that the penalty c2 = 1 leaves hardly any weight to them: scale them, or "
        "lower c2."
    ]
    for scale, c2 in ((1.0, 1.0), (1e-3, 1e-6)):
        right, messages = fit(scale, c2)
        assert right > 0.95
        assert not messages


def test_wrong_options_get_a_sentence():
    X, y = corpus(14, n=3)
    for option, value in {"c1": -1, "c2": "a", "max_iterations": 1.5, "scheme": "IOE", "decode": "best"}.items():
        with pytest.raises(PotentiaError, match=option):
            pt.ChainCRF(**{option: value}).fit(X, y)
    with pytest.raises(PotentiaError, match="sample_weight must be 3 finite numbers"):
        pt.ChainCRF().fit(X, y, sample_weight=[1, 2])
    with pytest.raises(PotentiaError, match="not fitted"):
        pt.ChainCRF().predict(X)
    model = pt.ChainCRF(max_iterations=2).fit(X, y)
    with pytest.raises(PotentiaError, match="the array 'v', which training did not have"):
        model.predict([[{"v": np.ones(2)}]])
    before = model.predict(X)
    with pytest.raises(PotentiaError):
        model.fit(X, y[:2])
    assert model.predict(X) == before


@pytest.mark.parametrize("scheme", ["BIO", "BIOES"])
def test_the_best_label_of_each_token_obeys_the_scheme(scheme):
    rng = np.random.default_rng(0)
    names = ["O", "B-X", "I-X"] if scheme == "BIO" else ["O", "B-X", "I-X", "E-X", "S-X"]
    start, after, end = allowed_tags(names, scheme)
    ptr = np.array([0, *np.cumsum(rng.integers(0, 6, 200))])
    mu = rng.dirichlet(np.full(len(names), 0.5), ptr[-1])
    labels = likeliest_labels(ptr, mu, Allowed(start, after, end))
    for a, b in itertools.pairwise(ptr.tolist()):
        own = labels[a:b]
        if a == b:
            continue
        every = [
            y
            for y in itertools.product(range(len(names)), repeat=b - a)
            if start[y[0]] and end[y[-1]] and all(after[i, j] for i, j in itertools.pairwise(y))
        ]
        assert tuple(own.tolist()) in every
        rows = np.arange(a, b)
        assert mu[rows, own].sum() == pytest.approx(max(mu[rows, list(y)].sum() for y in every))


def test_a_model_that_decodes_token_by_token_predicts_allowed_labels():
    # I-X is likely at the second token whatever the first one is, and B-X at the first one is not
    X = [[{"a": 1.0}, {"b": 1.0}]] * 5
    y = [["B-X", "I-X"]] * 2 + [["O", "O"]] + [["O", "B-X"]] * 2
    model = pt.ChainCRF(c2=0.01, scheme="BIO", decode="mpm").fit(X, y)
    (marginals,) = model.predict_marginals(X[:1])
    assert max(marginals[0], key=marginals[0].get) == "O"
    assert max(marginals[1], key=marginals[1].get) in ("I-X", "B-X")
    assert model.predict(X[:1])[0] in (["O", "B-X"], ["B-X", "I-X"])


def test_the_scheme_may_be_changed_after_the_fit():
    X = [[{"a": 1.0}, {"b": 1.0}]]
    model = pt.ChainCRF(c2=0.01).fit(X, [["O", "I-X"]])
    assert model.predict(X) == [["O", "I-X"]]
    assert model.set_params(scheme="BIO").predict(X) == [["O", "O"]]
    assert model.set_params(scheme=None).predict(X) == [["O", "I-X"]]


def test_a_warm_start_keeps_what_the_new_sequences_do_not_have():
    model = pt.ChainCRF(c2=0.1).fit([[{"old": 1.0}, {"both": 1.0}, {"both": 1.0}]], [["a", "b", "c"]])
    before, transitions = model.state_features_, model.transition_features_
    model.fit([[{"new": 1.0}, {"both": 1.0}]], [["b", "a"]], warm_start=True)
    after = model.state_features_
    assert model.classes_ == ["a", "b", "c"]
    assert after["old", "a"] == pytest.approx(before["old", "a"], rel=1e-12)
    assert after["new", "b"] > 0
    assert after["both", "b"] != before["both", "b"]
    assert model.transition_features_.keys() >= transitions.keys()
    assert model.predict([[{"old": 1.0}]]) == [["a"]]


@pytest.mark.parametrize("y", [3, "x", np.array(2)], ids=["number", "text", "array of no dimension"])
def test_labels_that_are_no_list_get_one_sentence(y):
    X = [[{"a": 1.0}]]
    fitted = pt.ChainCRF(max_iterations=1, delta=0.0).fit(X, [["x"]])
    for call in (lambda: fitted.score(X, y), lambda: pt.ChainCRF().fit(X, y)):
        with pytest.raises(pt.PotentiaError, match="y must be a list of lists of labels"):
            call()
