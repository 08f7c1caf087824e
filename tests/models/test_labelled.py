"""`SequenceLabeller` and `NodeClassifier`: data as people have them, to labels as they gave them."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

import potentia as pt
from potentia.base.saving import file_kind, read_file, write_file

NAMES = np.array(["idle", "run", "walk"])


def readings(n: int, seed: int = 0) -> tuple[list[np.ndarray], list[list[str]]]:
    rng = np.random.default_rng(seed)
    X, y = [], []
    for _ in range(n):
        labels = np.cumsum(rng.random(20) < 0.15) % 3
        X.append(np.eye(3)[labels] * 1.5 + rng.normal(size=(20, 3)))
        y.append(NAMES[labels].tolist())
    return X, y


def network(seed: int = 0, n: int = 90) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    ends = rng.integers(0, n, (1200, 2))
    kept = rng.random(1200) < np.where(labels[ends[:, 0]] == labels[ends[:, 1]], 0.5, 0.05)
    return np.eye(3)[labels] + rng.normal(size=(n, 3)), ends[kept], NAMES[labels]


@pytest.fixture(scope="module")
def labeller() -> pt.SequenceLabeller:
    return pt.SequenceLabeller("linear").fit(*readings(8))


@pytest.fixture(scope="module")
def classifier() -> pt.NodeClassifier:
    X, edges, y = network()
    return pt.NodeClassifier("linear").fit(X, edges, hidden(y))


def hidden(y: np.ndarray) -> np.ndarray:
    """Two thirds of the labels unknown."""
    known = y.astype(object)
    known[np.arange(len(y)) % 3 > 0] = None
    return known


def test_readings_are_labelled_by_name(labeller, tmp_path):
    X, y = readings(6, seed=1)
    assert labeller.classes_.tolist() == NAMES.tolist()
    found = labeller.predict(X)
    assert [len(own) for own in found] == [20] * 6
    assert isinstance(found[0][0], str)
    assert labeller.score(X, y) > 0.8
    np.testing.assert_allclose(labeller.predict_proba(X)[0].sum(axis=1), 1.0)
    labeller.save(tmp_path / "model")
    assert pt.load(tmp_path / "model").predict(X) == found


def test_words_and_dictionaries(tmp_path):
    words = [["The", "dog", "barks"], ["A", "cat"], ["The", "cat", "sleeps"]] * 4
    tags = [["D", "N", "V"], ["D", None], ["D", "N", "V"]] * 4
    model = pt.SequenceLabeller().fit(words, tags)
    assert model.predict([["The", "dog", "sleeps"]]) == [["D", "N", "V"]]
    np.testing.assert_allclose(model.predict_proba([["dog"]])[0].sum(), 1.0)
    model.save(tmp_path / "model")
    assert pt.load(tmp_path / "model").predict(words) == model.predict(words)
    tokens = [[{"word": word} for word in own] for own in words]
    assert pt.SequenceLabeller().fit(tokens, tags).predict(tokens[:1]) == [["D", "N", "V"]]


@pytest.mark.parametrize("unknown", [None, np.nan, -1])
def test_unknown_labels_and_numbers(unknown):
    X, y = readings(6)
    numbers = [[unknown if k % 4 == 0 else int(np.flatnonzero(label == NAMES)[0]) for k, label in enumerate(own)] for own in y]  # fmt: skip  # noqa: E501
    model = pt.SequenceLabeller("linear").fit(X, numbers)
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.score(X, numbers) > 0.8


def test_sequences_of_one_item_and_of_one_number():
    model = pt.SequenceLabeller("linear").fit([[[0.0]], [[1.0]]] * 10, [["a"], ["b"]] * 10)
    assert model.predict([[[1.0]], [[0.0], [1.0]]]) == [["b"], ["a", "b"]]
    model = pt.SequenceLabeller("linear").fit([np.arange(6.0)] * 4, [list("aaabbb")] * 4)
    assert model.predict([np.arange(6.0)]) == [list("aaabbb")]


def test_balanced_classes_and_weights():
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(30, 2)) for _ in range(6)]
    y = [(x[:, 0] + rng.normal(size=30) > 1.6).astype(int).tolist() for x in X]
    plain, balanced = (
        sum(map(sum, pt.SequenceLabeller("linear", class_weight=w).fit(X, y).predict(X))) for w in (None, "balanced")
    )
    assert balanced > plain
    first = pt.SequenceLabeller("linear").fit(X, y, sample_weight=[1, 0, 0, 0, 0, 0])
    only = pt.SequenceLabeller("linear").fit(X[:1], y[:1])
    np.testing.assert_allclose(first.predict_proba(X)[0], only.predict_proba(X)[0], atol=0.1)


def test_clone_and_cross_validation(labeller):
    X, y = readings(6)
    assert cross_val_score(clone(labeller), X, y, cv=2).mean() > 0.7
    graphs = [network(seed, 40) for seed in range(4)]
    given = [(x, edges) for x, edges, _ in graphs]
    assert cross_val_score(pt.NodeClassifier("linear"), given, [y for *_, y in graphs], cv=2).mean() > 0.7


def test_nodes_of_the_fitted_network(classifier, tmp_path):
    X, edges, y = network()
    found = classifier.predict()
    assert np.mean(found == y) > 0.85
    known = np.arange(len(y)) % 3 == 0
    assert np.array_equal(found[known], y[known])
    np.testing.assert_allclose(classifier.predict_proba().sum(axis=1), 1.0)
    new_x, new_edges, new_y = network(seed=1)
    assert classifier.score(new_x, new_edges, new_y) > 0.8
    classifier.save(tmp_path / "model")
    loaded = pt.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X, edges), classifier.predict(X, edges))
    with pytest.raises(pt.PotentiaError, match="give X and edges"):
        loaded.predict()


def test_forms_of_edges_agree(classifier):
    X, edges, _ = network()
    both = np.concatenate([edges, edges[:, ::-1]])
    adjacency = sparse.coo_array((np.ones(len(edges)), edges.T), shape=(90, 90)).tocsr()
    adjacency.data[:] = 1.0
    graph = nx.Graph()
    graph.add_nodes_from(range(90))
    graph.add_edges_from(edges.tolist())
    expected = classifier.predict_proba(X, edges)
    for form in (edges.T, both, adjacency, graph):
        np.testing.assert_allclose(classifier.predict_proba(X, form), expected, atol=1e-3)
    np.testing.assert_allclose(classifier.predict_proba(sparse.csr_array(X), edges), expected, atol=1e-6)


def test_networks_without_features_and_with_features_of_edges():
    X, edges, y = network()
    assert np.mean(pt.NodeClassifier().fit(None, edges, hidden(y)).predict() == y) > 0.8
    same = (y[edges[:, 0]] == y[edges[:, 1]]).astype(float)[:, None]
    model = pt.NodeClassifier("linear", neighbours=False).fit(X, edges, hidden(y), edge_features=same)
    assert np.mean(model.predict() == y) > 0.9


def test_bad_input_is_one_sentence(labeller, classifier):
    X, y = readings(2)
    x, edges, labels = network()
    nan = x.copy()
    nan[3, 1] = np.nan
    for call, message in (
        (lambda: pt.SequenceLabeller().fit(X, y[:1]), "X has 2 sequences, but y has 1"),
        (lambda: pt.SequenceLabeller().fit(X, [["a"] * 20] * 2), "class 'a' only"),
        (lambda: pt.SequenceLabeller().fit(X, [[None] * 20] * 2), "no known label"),
        (lambda: pt.SequenceLabeller().fit(X, [y[0], y[1][:5]]), r"y\[1\] has 5 labels for 20 rows"),
        (lambda: pt.SequenceLabeller("tree").fit(X, y), "node"),
        (lambda: pt.SequenceLabeller(class_weight=3).fit(X, y), "class_weight"),
        (lambda: pt.SequenceLabeller(class_weight="balanced").fit([["a"]], [["A"]]), "one|needs|class"),
        (lambda: pt.SequenceLabeller().fit(["ab"], [["a"]]), "X"),
        (lambda: pt.SequenceLabeller().predict(X), "not fitted"),
        (lambda: labeller.predict([X[0][:, :2]]), "2 features, but the model needs 3"),
        (lambda: labeller.predict([]), "no sequence"),
        (lambda: labeller.score(X, [["fly"] * 20] * 2), "'fly'"),
        (lambda: pt.NodeClassifier().fit(nan, edges, labels), "row 3, column 1"),
        (lambda: pt.NodeClassifier().fit(x[:10], edges, labels[:10]), "but X has 10 rows"),
        (lambda: pt.NodeClassifier().fit(x, edges, labels[:5]), "5 labels for 90 rows"),
        (lambda: pt.NodeClassifier().fit(x, edges, labels, edge_features=x), "rows for"),
        (lambda: classifier.predict(x[:, :1], edges), "features, but the model was trained on"),
    ):
        with pytest.raises(pt.PotentiaError, match=message):
            call()


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("readings", ("params", "window"), {}),
        ("readings", ("params", "window"), -1),
        ("readings", ("params", "seed"), "x"),
        ("readings", ("form",), "chain"),
        ("words", ("model", "labels"), [0, 1, "A"]),
        ("words", ("model", "labels"), [0, 1, 3]),
        ("words", ("model", "labels"), [0, 1, -1]),
        ("nodes", ("params", "neighbours"), 3),
        ("nodes", ("form",), "chain"),
    ],
)
def test_damaged_files_are_refused_when_they_are_read(name, place, value, labeller, classifier, tmp_path):
    words = [["the", "cat", "ran"], ["a", "dog", "sat"]]
    fitted = {"readings": labeller, "nodes": classifier}
    model = fitted[name] if name in fitted else pt.SequenceLabeller().fit(words, [["D", "N", "V"]] * 2)
    model.save(tmp_path / "model")
    kind = file_kind(tmp_path / "model")
    content, arrays = read_file(tmp_path / "model", kind)
    holder = content
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    write_file(tmp_path / "model", kind, content, arrays)
    with pytest.raises(pt.PotentiaError, match="model"):
        pt.load(tmp_path / "model")


def test_a_window_that_memory_does_not_hold_is_refused():
    with pytest.raises(pt.PotentiaError, match=r"the window of X\[0\] needs about .* GB"):
        pt.SequenceLabeller("linear", window=10**12).fit(*readings(2))
