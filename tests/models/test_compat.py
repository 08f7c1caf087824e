"""`potentia.compat`: the behaviour of python-crfsuite and sklearn-crfsuite, beside python-crfsuite where it matters."""

import pickle

import numpy as np
import pycrfsuite as peer
import pytest
from sklearn.base import clone
from sklearn.metrics import make_scorer
from sklearn.model_selection import RandomizedSearchCV, cross_val_predict, cross_val_score

import potentia as pt
from potentia.compat import pycrfsuite, sklearn_crfsuite
from potentia.compat.sklearn_crfsuite import CRF, metrics, scorers

X1 = [{"bias": 1, "tail": "ing"}, {"bias": True, "cap": False}, {"bias": 0.5, "tail": b"ed"}, {"deep": {"a": ["b"]}}]
Y1 = ["v", "n", "v", "n"]


def data(n=12):
    rng = np.random.default_rng(0)
    X = [[{**token, "u": float(rng.exponential())} for token in X1[: rng.integers(1, 5)]] for _ in range(n)]
    return X, [[str(rng.choice(["v", "n", "z"])) for _ in row] for row in X]


def trained(path, module, algorithm="lbfgs", **options):
    trainer = module.Trainer(algorithm, options, verbose=False)
    for xseq, yseq in zip(*data(), strict=True):
        trainer.append(xseq, yseq)
    trainer.train(str(path))
    return module.Tagger()


@pytest.mark.parametrize("options", [{}, {"c1": 0.1}, {"feature.possible_states": True, "c2": 0.1}])
def test_models_and_taggers_agree_with_python_crfsuite(options, tmp_path):
    ours, theirs = (trained(tmp_path / m.__name__, m, delta=1e-12, epsilon=1e-9, **options) for m in (pycrfsuite, peer))
    ours.open(str(tmp_path / pycrfsuite.__name__))
    theirs.open(str(tmp_path / "pycrfsuite"))
    a, b = ours.info(), theirs.info()
    assert set(a.labels) == set(b.labels)
    for found, expected in ((a.state_features, b.state_features), (a.transitions, b.transitions)):
        for key in {*found, *expected}:
            assert found.get(key, 0.0) == pytest.approx(expected.get(key, 0.0), abs=2e-4)
    read = peer.Tagger()  # theirs reads our file
    read.open(str(tmp_path / pycrfsuite.__name__))
    for xseq in data()[0]:
        labels = ours.tag(xseq)
        assert labels == read.tag(xseq) == theirs.tag(xseq)
        assert ours.probability(labels) == pytest.approx(read.probability(labels), abs=1e-9)
        for t, label in enumerate(labels):
            assert ours.marginal(label, t) == pytest.approx(read.marginal(label, t), abs=1e-9)


@pytest.mark.parametrize(("algorithm", "gap"), [("l2sgd", 1e-3), ("rprop", 1e-7)])
def test_other_algorithms_reach_the_same_objective(algorithm, gap):
    losses = [
        min(row["loss"] for row in CRF(name, delta=1e-9, max_iterations=300).fit(*data()).training_log_.iterations)
        for name in ("lbfgs", algorithm)
    ]
    assert losses[0] <= losses[1] < losses[0] * (1.0 + gap)


def test_item_sequences_are_numbers_by_name():
    tokens = [*X1, ["a", "b"], {"x": 1}.keys(), {"deep": {"n": -0.5, "s": {"t"}}, "b": b"c"}]
    ours, theirs = pycrfsuite.ItemSequence(tokens), peer.ItemSequence(tokens)
    assert ours.items() == theirs.items()
    assert len(ours) == 7
    assert repr(ours) == repr(theirs)
    assert pycrfsuite.ItemSequence(ours).items() == ours.items()
    for wrong in (["foo"], [3], [[{"foo": 1.0}]]):
        with pytest.raises(ValueError, match="item"):
            pycrfsuite.ItemSequence(wrong)


def test_taggers_take_every_form_of_items(tmp_path):
    X = [{"a": 1, "b": 1}, {"b": 1}, {"c": 1, "a": 1}]
    trainer = pycrfsuite.Trainer(params={"c2": 1e-3}, verbose=False)
    trainer.append(pycrfsuite.ItemSequence(X), ["x", "y", "z"])
    trainer.train(str(tmp_path / "model"))
    with pycrfsuite.Tagger().open(str(tmp_path / "model")) as tagger:
        for items in (X, iter(X), [token.keys() for token in X], [[*t] for t in X], pycrfsuite.ItemSequence(X)):
            assert tagger.tag(items) == ["x", "y", "z"]
        tagger.set(X)
        assert tagger.tag() == ["x", "y", "z"]
        for call in (lambda: tagger.marginal("?", 0), lambda: tagger.marginal("x", 3), lambda: tagger.probability("x")):
            with pytest.raises(ValueError, match=r"label|position|differ"):
                call()
        tagger.dump(str(tmp_path / "text"))
        text = (tmp_path / "text").read_text()
        assert "LABELS = {\n      0: x" in text
        assert "  (0) a --> x: " in text
    for call in (tagger.labels, lambda: tagger.tag(X)):
        with pytest.raises(ValueError, match="not open"):
            call()
    for call in (tagger.info, tagger.dump):
        with pytest.raises(RuntimeError, match="not open"):
            call()
    with pytest.raises(FileNotFoundError):
        tagger.open(str(tmp_path / "missing"))
    for damaged in (b"", b"lCRF", b"lCRFfoo" * 100):
        with pytest.raises(ValueError, match="model"):
            tagger.open_inmemory(damaged)
    with tagger.open_inmemory((tmp_path / "model").read_bytes()) as opened:
        assert opened.tag(X) == ["x", "y", "z"]


def test_options_have_the_names_and_defaults_of_python_crfsuite():
    ours, theirs = pycrfsuite.Trainer(), peer.Trainer()
    for algorithm in ("lbfgs", "l2sgd"):
        ours.select(algorithm)
        theirs.select(algorithm)
        assert ours.get_params() == theirs.get_params()
        ours.set_params(theirs.get_params())
    ours.set("c2", "0.25")
    assert ours.get("c2") == 0.25
    ours.set("feature.possible_states", 1)
    assert ours.get("feature.possible_states") is True
    assert "L2" in ours.help("c2")
    for call in (
        lambda: ours.set("c1", 1.0), lambda: ours.get("foo"), lambda: ours.help("foo"), lambda: ours.set("c2", "x"),
        lambda: ours.select("foo"), lambda: ours.select("lbfgs", "crf2d"), lambda: ours.append([{}], []),
        lambda: CRF(linesearch="?").fit([X1], [Y1]),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"option|algorithm|differ|linesearch"):
            call()
    for name in ("ap", "averaged-perceptron", "pa", "passive-aggressive", "arow"):
        with pytest.raises(ValueError, match=f'"{name}" is not available: use "lbfgs"'):
            ours.select(name)


def test_trainers_report_each_iteration(tmp_path, capsys):
    class Silent(pycrfsuite.Trainer):
        def __init__(self):
            self.messages, self.seen = [], []

        def message(self, message):
            self.messages.append(message)

    trainer = Silent()
    trainer.append(X1, Y1)
    trainer.train(str(tmp_path / "model"))
    assert "type: CRF1d\n" in trainer.messages
    assert "***** Iteration #1 *****\n" in trainer.messages

    class Told(pycrfsuite.Trainer):
        def on_iteration(self, log, info):
            print(f"<{info['num']} {info['avg_f1']:.2f}>")

    trainer = Told("lbfgs", {"max_iterations": 3})
    trainer.append(X1, Y1)
    trainer.append(X1, Y1, 1)
    trainer.train("", holdout=1)
    assert "<3 1.00>" in capsys.readouterr().out
    log = trainer.logparser
    assert [row["num"] for row in log.iterations] == [1, 2, 3]
    last = log.last_iteration
    assert last["scores"]["v"] == (2, 2, 2, 1.0, 1.0, 1.0)
    assert last["item_accuracy"] == 1
    assert {"loss", "feature_norm", "error_norm", "active_features", "time", "avg_recall"} <= last.keys()
    empty = pycrfsuite.Trainer(verbose=False)
    empty.train(str(tmp_path / "none"))
    assert (tmp_path / "none").read_bytes()[:4] == b"lCRF"


def test_the_losses_of_the_first_iterations_are_those_of_the_objective(tmp_path):
    model = CRF(max_iterations=5, c2=0.5).fit(*data())
    chain = pt.ChainCRF(c2=0.5, max_iterations=200).fit(*data())
    losses = [row["loss"] for row in model.training_log_.iterations]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] >= chain.history_[-1]["objective"] - 1e-6


@pytest.mark.parametrize("algorithm", [None, "lbfgs", "l2sgd", "rprop"])
def test_estimators_fit_predict_score_and_pickle(algorithm):
    crf = CRF(algorithm, c2=0.1).fit([X1], [Y1])
    predicted = crf.predict([X1, X1[:2]])
    assert predicted.dtype == object
    assert predicted.shape == (2,)
    assert predicted[0] == Y1
    assert crf.predict([X1, X1]).shape == (2, 4)  # as NumPy makes of lists of equal lengths
    assert crf.score([X1], [Y1]) == 1.0
    (rows,) = crf.predict_marginals([X1])
    assert all(sum(row.values()) == pytest.approx(1.0) and set(row) == {"v", "n"} for row in rows)
    assert crf.predict_single(X1) == Y1
    again = pickle.loads(pickle.dumps(crf))
    assert again.predict_marginals_single(X1) == crf.predict_marginals_single(X1)
    assert again.get_params() == crf.get_params() == clone(crf).get_params()
    assert clone(crf).tagger_ is None


def test_attributes_are_none_before_training():
    names = (
        "tagger_",
        "size_",
        "classes_",
        "num_attributes_",
        "attributes_",
        "state_features_",
        "transition_features_",
    )
    crf = CRF()
    assert [getattr(crf, name) for name in names] == [None] * 7
    assert crf.modelfile.name is None
    with pytest.raises(ValueError, match="not fitted"):
        crf.predict([X1])
    crf.fit([X1], [Y1])
    assert crf.num_attributes_ == len(crf.attributes_)
    assert {"bias", "tail:ing", "tail:ed", "deep:a:b"} <= set(crf.attributes_)
    assert crf.state_features_["tail:ing", "v"] > 0
    assert crf.transition_features_["v", "n"] > 0
    tagger = peer.Tagger()
    tagger.open(crf.modelfile.name)
    assert tagger.tag(X1) == crf.tagger_.tag(X1) == Y1
    with open(crf.modelfile.name, "rb") as file:
        assert len(file.read()) == crf.size_


def test_a_named_file_is_written_and_read(tmp_path):
    path = str(tmp_path / "crf.model")
    CRF(model_filename=path).fit([X1], [Y1])
    assert CRF(model_filename=path).score([X1], [Y1]) == 1.0
    assert pt.ChainCRF.from_crfsuite(path).predict([X1]) == [Y1]
    assert pickle.loads(pickle.dumps(CRF(model_filename=path))).predict_single(X1) == Y1


def test_held_out_sequences_are_evaluated_and_stop_the_training(capsys):
    X, y = data(30)
    with pytest.raises(ValueError, match="both X_dev and y_dev"):
        CRF().fit(X, y, X)
    crf = CRF(verbose=True).fit(X[:20], y[:20], X[20:], y[20:])
    assert "Item accuracy" in capsys.readouterr().out
    right = crf.score(X[20:], y[20:])
    assert float(crf.training_log_.last_iteration["item_accuracy"]) == pytest.approx(right)
    stopped = CRF(stop_window=3, stop_epsilon=0.5).fit(X, y)
    assert len(stopped.training_log_.iterations) == 3


def test_cross_validation_of_ragged_sequences():
    X, y = data(30)
    X, y = [*X, X1], [*y, Y1]
    crf = CRF(max_iterations=5)
    assert cross_val_score(crf, X, y, cv=3).shape == (3,)
    found = cross_val_predict(crf, X, y, cv=3)
    assert [len(row) for row in found] == [len(row) for row in y]


def test_searches_over_penalties_take_scorers():
    X, y = data(30)
    by_f1 = make_scorer(metrics.flat_f1_score, average="weighted", labels=["v", "n"])
    for scoring in (by_f1, scorers.flat_accuracy, scorers.sequence_accuracy):
        search = RandomizedSearchCV(
            CRF(max_iterations=5),
            {"c1": [0.01, 3.0], "c2": [0.1, 1.0]},
            n_iter=2,
            cv=3,
            scoring=scoring,
            random_state=0,
        ).fit(X, y)
        assert search.score(X, y) == scoring(search.best_estimator_, X, y)
    expected = metrics.sequence_accuracy_score(y, search.predict(X))
    assert scorers.sequence_accuracy(search.best_estimator_, X, y) == expected


def test_measures_join_the_sequences():
    a, b = [["x", "z", "y"], ["x", "x"]], [["y", "z", "y"], ["x", "y"]]
    assert metrics.flat_accuracy_score(a, b) == 0.6
    assert metrics.flat_precision_score(a, b, average="micro") == 0.6
    assert metrics.flat_recall_score(a, b, average="micro") == 0.6
    assert metrics.flat_f1_score(a, b, average="macro") == pytest.approx(2 / 3)
    assert metrics.flat_fbeta_score(a, b, beta=1, average="macro") == metrics.flat_f1_score(a, b, average="macro")
    assert "precision" in sklearn_crfsuite.metrics.flat_classification_report(a, b, labels=["x", "y"])
    assert metrics.sequence_accuracy_score(a, [a[0], b[1]]) == 0.5
    assert metrics.sequence_accuracy_score([], []) == 0
