"""The CRF estimator: predictions, saving, scikit-learn's conventions, errors."""

import json
import zipfile

import numpy as np
import pytest
import threadpoolctl
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

import potentia as pt
from potentia.features.example import Example
from potentia.potentials import MLP, Boosting, Constant, LightGBM, Linear, Zero
from sample_images import noisy

pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")  # fits are cut short

QUICK = pt.IteratedLogistic(iterations=2, sweeps=3, track_error=False)


SAVED = {
    "zero": Zero(),
    "constant": Constant(),
    "linear": Linear(),
    "boosting": Boosting(rounds=5),
    "mlp": MLP(hidden=5, epochs=1),
    "lightgbm": LightGBM(rounds=3),
}


@pytest.mark.parametrize("name", SAVED)
def test_saving_gives_identical_predictions(name, tmp_path):
    crf = pt.CRF({"node": SAVED[name], "edge": SAVED[name]}, QUICK, decode="map").fit(noisy())
    crf.save(tmp_path / "model")
    loaded = pt.load(tmp_path / "model")
    test = noisy(2, (7, 5), seed=3)
    for a, b in zip(crf.predict_marginals(test), loaded.predict_marginals(test), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(crf.predict(test), loaded.predict(test), strict=True):
        np.testing.assert_array_equal(a, b)
    assert loaded.history_ == json.loads(json.dumps(crf.history_))
    assert loaded.learner == crf.learner
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def damage(path, change):
    """Rewrite the JSON head of a saved file."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    head = json.loads(parts["potentia.json"])
    change(head)
    parts["potentia.json"] = json.dumps(head).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)


def test_damaged_newer_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "model"
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, QUICK).fit(noisy())
    crf.save(path)
    whole = path.read_bytes()
    damage(path, lambda head: head.update(schema=99))
    with pytest.raises(pt.PotentiaError, match="schema 99"):
        pt.load(path)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(pt.PotentiaError, match="damaged"):
        pt.load(path)
    path.write_bytes(b"PNG")
    with pytest.raises(pt.PotentiaError, match="not a potentia file"):
        pt.load(path)
    with pytest.raises(pt.PotentiaError, match="nowhere"):
        pt.load(tmp_path / "nowhere")
    flipped = bytearray(whole)
    flipped[len(whole) * 3 // 4] ^= 0xFF
    path.write_bytes(bytes(flipped))
    with pytest.raises(pt.PotentiaError, match="damaged"):
        pt.load(path)


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model"
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, QUICK).fit(noisy())
    crf.save(path)
    before = path.read_bytes()

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(pt.PotentiaError, match="model cannot be written: No space"):
        crf.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_scikit_learn_clone_params_and_search():
    crf = pt.CRF({"node": Linear(ridge=0.5), "edge": Constant()}, pt.IteratedLogistic(iterations=1, sweeps=2))
    assert crf.get_params()["node__ridge"] == 0.5
    assert crf.get_params()["learner__sweeps"] == 2
    crf.fit(noisy())
    copy = clone(crf)
    assert not hasattr(copy, "potentials_")
    assert not copy.potentials["node"].is_fitted
    copy.set_params(node__ridge=2.0, learner__epsilon=0.3, edge=Linear(), decode="map")
    assert copy.potentials["node"].ridge == 2.0
    assert copy.learner.epsilon == 0.3
    assert isinstance(copy.potentials["edge"], Linear)
    assert crf.potentials["node"].ridge == 0.5
    with pytest.raises(pt.PotentiaError, match="no parameter 'nodes__ridge'"):
        copy.set_params(nodes__ridge=1)
    examples = noisy(6)
    scores = cross_val_score(crf, examples, cv=3)
    assert scores.shape == (3,)
    assert scores.min() > 0.4
    search = GridSearchCV(crf, {"node__ridge": [1e-3, 1e3]}, cv=2).fit(examples)
    assert search.best_params_["node__ridge"] in (1e-3, 1e3)


def test_templates_stay_unfitted_and_classes_need_not_all_appear():
    graph = pt.Graph.chain(4, n_states=3)
    labels = np.array([0, 2, 2, 0])  # state 1 never appears
    example = Example(graph, {"node": np.column_stack([labels, np.ones(4)])}, labels)
    crf = pt.CRF({"node": Linear(), "edge": Constant()}, QUICK).fit([example])
    assert not crf.potentials["node"].is_fitted
    assert crf.predict_marginals([example])[0].shape == (4, 3)
    np.testing.assert_array_equal(crf.predict([example])[0], labels)


def test_predictions_use_the_inference_asked_for_and_score_counts_labelled_variables():
    train = noisy()
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, QUICK, inference=pt.TRW(iterations=5)).fit(train)
    assert crf.infer(train[0]).target == "log_partition"
    marginals = crf.predict_marginals(train[:1])[0]
    np.testing.assert_allclose(
        marginals, pt.TRW(iterations=5).infer(train[0].graph, crf.theta(train[0])).variable_marginals
    )
    y = train[0].labels.copy()
    y[5:] = -1
    found = crf.predict(train[:1])[0]
    part = Example(train[0].graph, train[0].features, y)
    assert crf.score([part]) == pytest.approx(np.mean(found[:5] == y[:5]))


def test_progress_is_lines_where_there_is_no_terminal(capsys, monkeypatch):
    monkeypatch.setattr("potentia.base.progress.LINE_EVERY", 0.001)
    learner = pt.IteratedLogistic(solver="alternating", iterations=100, tol=0, track_error=False)
    pt.CRF({"node": Linear(), "edge": Linear()}, learner).fit(noisy(2), progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert any("objective" in line and " of 100, " in line for line in lines)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pt.CRF({}).fit(noisy(1)), "potentials must map"),
        (lambda: pt.CRF({"node": 3}).fit(noisy(1)), "not a Potential"),
        (lambda: pt.CRF({"node": pt.Linear}).fit(noisy(1)), r"is the class Linear \(write Linear\(\)\)"),
        (lambda: pt.CRF({"learner": Linear()}).fit(noisy(1)), "a kind cannot be called 'learner'"),
        (lambda: pt.CRF({"a__b": Linear()}).fit(noisy(1)), "a kind cannot be called 'a__b'"),
        (lambda: pt.CRF({"node": Linear()}).fit(noisy(1)), "no potential for that kind"),
        (lambda: pt.CRF({"node": Linear(), "edge": Linear(), "tri": Zero()}).fit(noisy(1)), "'tri'"),
        (lambda: pt.CRF({"node": Linear(), "edge": Linear()}).fit([]), "no examples"),
        (lambda: pt.CRF({"node": Linear(), "edge": Linear()}, decode="best").fit(noisy(1)), "decode"),
        (lambda: pt.CRF({"node": Linear(), "edge": Linear()}).predict(noisy(1)), "not fitted"),
        (lambda: pt.CRF({"node": Linear(), "edge": Linear()}).save("x"), "fitted"),
        (lambda: pt.CRF({"node": Linear(), "edge": Linear()}, QUICK).fit([unlabelled()]), "no labels"),
        (lambda: pt.CRF({"node": Linear(), "edge": Linear()}, QUICK).fit([*noisy(1), wider()]), "columns"),
        (lambda: pt.CRF({"node": Linear(), "edge": Linear()}, QUICK).fit([mixed()]), "different shapes"),
        (lambda: pt.CRF({"node": Linear(), "edge": Linear()}, QUICK).fit(noisy(1)).predict([wider()]), "features"),
        (lambda: pt.CRF({"node": Linear(), "edge": Linear()}, QUICK).fit(noisy(1)).score([unlabelled()]), "no labels"),
    ],
)
def test_bad_input_gets_one_sentence(make, words):
    with pytest.raises(pt.PotentiaError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def unlabelled():
    e = noisy(1)[0]
    return Example(e.graph, e.features)


def wider():
    e = noisy(1)[0]
    return Example(e.graph, {k: np.column_stack([v, v]) for k, v in e.features.items()}, e.labels)


def mixed():
    graph = pt.Graph.chain(3, n_states=[2, 3, 2])
    return Example(graph, {"node": np.ones((3, 1)), "edge": np.ones((2, 1))}, [0, 1, 1])


@pytest.mark.parametrize("examples", [[], noisy(1)[0], [3], [Example(noisy(1)[0].graph)]])
def test_a_fit_that_fails_leaves_the_model_as_it_was(examples):
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, QUICK)
    with pytest.raises(pt.PotentiaError) as caught:
        crf.fit(examples)
    assert "\n" not in str(caught.value)
    assert not hasattr(crf, "potentials_")
    before = crf.fit(noisy()).predict_marginals(noisy())
    for warm in (False, True):
        with pytest.raises(pt.PotentiaError):
            crf.fit(examples, warm_start=warm)
    np.testing.assert_array_equal(crf.predict_marginals(noisy()), before)


def test_an_interrupted_fit_leaves_the_model_as_it_was():
    def interrupt(history):
        raise KeyboardInterrupt

    crf = pt.CRF({"node": Linear(), "edge": Linear()}, QUICK).fit(noisy())
    before = crf.predict_marginals(noisy())
    with pytest.raises(KeyboardInterrupt):
        crf.fit(noisy(seed=4), callback=interrupt, warm_start=True)
    np.testing.assert_array_equal(crf.predict_marginals(noisy()), before)


def test_warm_start_takes_new_options():
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, QUICK).fit(noisy())
    crf.set_params(node__ridge=1000.0, edge=Zero()).fit(noisy(), warm_start=True)
    assert crf.potentials_["node"].ridge == 1000.0
    assert type(crf.potentials_["edge"]) is Zero
    network = pt.CRF({"node": MLP(hidden=3), "edge": Constant()}, QUICK).fit(noisy())
    with pytest.raises(pt.PotentiaError, match="hidden units"):
        network.set_params(node__hidden=4).fit(noisy(), warm_start=True)


def test_clones_share_nothing_and_keep_their_class():
    class Own(pt.CRF):
        pass

    base = Own({"node": Linear(transformer=PolynomialFeatures(2)), "edge": Constant()}, QUICK)
    copied = clone(base).set_params(node__transformer__degree=5)
    assert type(copied) is Own
    assert base.potentials["node"].transformer.degree == 2
    plain = pt.CRF({"node": Linear(), "edge": Constant()})
    assert plain.set_params(learner="joint", learner__epsilon=0.3).learner.epsilon == 0.3


@pytest.mark.parametrize(
    "options", [{"class_weight": np.array([1.0, 2.0])}, {"track_error": range(1, 3)}, {"threads": np.int64(1)}]
)
def test_options_of_any_plain_type_are_saved(options, tmp_path):
    learner = pt.IteratedLogistic(iterations=2, sweeps=3, **options)
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, learner).fit(noisy())
    crf.save(tmp_path / "model")
    loaded = pt.load(tmp_path / "model")
    ((name, value),) = options.items()
    np.testing.assert_array_equal(getattr(loaded.learner, name), value)
    np.testing.assert_array_equal(loaded.predict(noisy()), crf.predict(noisy()))


def test_a_scaler_that_does_not_scale_is_saved(tmp_path):
    node = Linear(transformer=StandardScaler(with_std=False))
    crf = pt.CRF({"node": node, "edge": Constant()}, QUICK).fit(noisy())
    crf.save(tmp_path / "model")
    np.testing.assert_array_equal(
        pt.load(tmp_path / "model").predict_marginals(noisy()), crf.predict_marginals(noisy())
    )


def test_other_numbers_of_states_than_those_fitted_are_refused():
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, QUICK).fit(noisy())
    graph = pt.Graph.chain(3, n_states=3)
    with pytest.raises(pt.PotentiaError, match=r"tables of shape \(3,\), but this CRF was fitted"):
        crf.predict([Example(graph, {"node": np.ones((3, 2)), "edge": np.ones((2, 2))})])


def test_tables_of_another_shape_with_as_many_entries_are_refused(tmp_path):
    def pairs(a, b):
        graph = pt.Graph([a, b], {"pair": [[0, 1]]})
        return [Example(graph, {"pair": np.ones((1, 1))}, [1, 1]) for _ in range(3)]

    crf = pt.CRF({"pair": Linear()}, QUICK).fit(pairs(2, 3))
    crf.save(tmp_path / "model")
    for model in (crf, pt.load(tmp_path / "model")):
        assert len(model.predict(pairs(2, 3))) == 3
        with pytest.raises(pt.PotentiaError, match=r"shape \(3, 2\), but .* tables of shape \(2, 3\)"):
            model.predict(pairs(3, 2))


def test_kinds_with_slashes_are_saved(tmp_path):
    graph = pt.Graph([2] * 4, {"a/b": np.arange(4)[:, None], "a": [[0, 1], [2, 3]]})
    examples = [Example(graph, {"a/b": np.eye(4)}, [0, 1, 1, 0])]
    crf = pt.CRF({"a/b": Linear(), "a": Constant()}, QUICK).fit(examples)
    crf.save(tmp_path / "model")
    assert np.array_equal(pt.load(tmp_path / "model").predict(examples), crf.predict(examples))


def test_examples_without_a_kind_are_predicted_in_any_number():
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, QUICK).fit(noisy())
    n = 60_000
    graph = pt.Graph(np.full(n, 2), {"node": np.arange(n)[:, None]})
    features = np.random.default_rng(0).uniform(size=(n, 2))
    found = crf.predict([Example(graph, {"node": features}) for _ in range(4)])
    assert all(np.array_equal(y, crf.theta(Example(graph, {"node": features}))["node"].argmax(1)) for y in found)


def test_examples_may_come_from_generators():
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, pt.IteratedLogistic(iterations=2, sweeps=2))
    crf.fit((e for e in noisy()), validation=(e for e in noisy(2)))
    assert len(crf.history_) > 1
    assert crf.score(e for e in noisy(2)) == 1.0 - crf.history_[-1]["validation_error"]


@pytest.mark.parametrize(
    "change",
    [
        lambda head: head["content"].pop("potentials"),
        lambda head: head["content"].pop("learner"),
        lambda head: head["content"].update(decode="none such"),
        lambda head: head["content"]["learner"]["options"].update(unknown=1),
        lambda head: head["content"]["potentials"]["node"]["params"].update(unknown={"value": 1}),
        lambda head: head.update(content=[]),
        lambda head: head.update(arrays=5),
    ],
)
def test_a_head_that_was_tampered_with_gets_one_sentence(change, tmp_path):
    path = tmp_path / "model"
    pt.CRF({"node": Linear(), "edge": Linear()}, QUICK).fit(noisy()).save(path)
    damage(path, change)
    with pytest.raises(pt.PotentiaError, match=r"model(: | is damaged)") as caught:
        pt.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("array", "change"),
    [
        ("node_ptr_", lambda a: a + 10**9),
        ("node_ptr_", lambda a: a[:-1]),
        ("depths_", lambda a: a + 10**9),
        ("depths_", lambda a: -a),
        ("nodes_", lambda a: a + (10**9 << 24)),
        ("nodes_", lambda a: a | 0xFFFF << 8),
        ("nodes_", lambda a: a.astype(float)),
        ("values_", lambda a: a[1:]),
        ("edges_", lambda a: a[:, 1:]),
    ],
)
def test_trees_that_were_tampered_with_are_refused_before_any_walk(array, change):
    fitted = Boosting(rounds=3).fit(np.arange(200.0)[:, None], np.arange(200) // 30 % 2)
    meta, arrays = fitted.state()
    name = f"fitted.{array}"
    assert np.any(arrays[name])
    with pytest.raises(pt.PotentiaError, match="saved potential is damaged"):
        pt.extend.Potential.from_state(meta, arrays | {name: change(arrays[name])})


@pytest.mark.parametrize("make", [Linear, Constant, lambda: MLP(epochs=1), lambda: Linear(intercept=False)])
def test_arrays_of_another_size_are_refused_when_loaded(make):
    rng = np.random.default_rng(0)
    meta, arrays = make().fit(rng.normal(size=(60, 3)), rng.integers(0, 2, 60)).state()
    assert arrays
    for name, array in arrays.items():
        with pytest.raises(pt.PotentiaError, match="saved potential is damaged"):
            pt.extend.Potential.from_state(meta, arrays | {name: array[:-1]})


def test_inference_set_after_fit_is_what_predictions_use(tmp_path):
    train = noisy()
    crf = pt.CRF({"node": Linear(), "edge": Linear()}, QUICK).fit(train)
    trained = crf.inference_
    before = crf.predict_marginals(train)[0]
    crf.set_params(inference=pt.MeanField())
    assert crf.inference_ == pt.MeanField()
    changed = crf.predict_marginals(train)[0]
    assert np.allclose(changed, crf.infer(train[0]).variable_marginals, atol=1e-5)
    assert not np.allclose(changed, before)
    crf.save(tmp_path / "model")
    loaded = pt.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_marginals(train)[0], changed)
    loaded.inference = None
    assert loaded.inference_ == trained
    np.testing.assert_array_equal(loaded.predict_marginals(train)[0], before)
    with pytest.raises(pt.PotentiaError, match="inference must be an Inference"):
        loaded.set_params(inference="trw").predict_marginals(train)
    assert not hasattr(clone(loaded), "inference_")


@pytest.mark.parametrize("form", ["list", "parts", "hidden", "weights"])
def test_features_far_from_zero_train_as_centred_ones(form):
    def examples(offset):
        found = []
        for example in noisy():
            labels = example.labels.copy()
            if form == "hidden":
                labels[::5] = -1
            features = {kind: x + offset for kind, x in example.features.items()}
            weights = np.linspace(0.5, 2.0, len(labels)) if form == "weights" else None
            found.append(Example(example.graph, features, labels, weights=weights))
        return pt.parts([lambda k=k: found[k::2] for k in range(2)]) if form == "parts" else found

    learner = pt.IteratedLogistic(iterations=20, sweeps=3)
    near, far = (pt.CRF({"node": Linear(), "edge": pt.Potts()}, learner).fit(examples(shift)) for shift in (0.0, 1e6))
    assert np.isclose(near.history_[-1]["objective"], far.history_[-1]["objective"], rtol=1e-2)
    assert abs(near.score(examples(0.0)) - far.score(examples(1e6))) < 0.01


def test_fits_keep_linear_algebra_on_one_thread():
    """Results would depend on the number of its threads, which fight with ours for the cores."""

    def blas_threads():
        return {library["num_threads"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"}

    seen = []
    learners = [pt.IteratedLogistic(iterations=1), pt.MarginalRisk(iterations=1)]
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        for learner in learners:
            crf = pt.CRF({"node": Linear(), "edge": Linear()}, learner)
            crf.fit(noisy(1), callback=lambda history: seen.append(blas_threads()))
        tokens = [[{"w": "a"}, {"w": "b"}]]
        chain = pt.ChainCRF(max_iterations=1)
        chain.fit(tokens, [["x", "y"]], callback=lambda history: seen.append(blas_threads()))
        assert blas_threads() == {2}
    assert seen == [{1}] * 3


def test_functions_of_features_without_features_give_a_warning():
    graph = pt.Graph.chain(6, n_states=2)
    examples = [pt.Example(graph, {"node": np.eye(2)[[0, 0, 1, 1, 0, 1]]}, [0, 0, 1, 1, 0, 1])]
    learner = pt.IteratedLogistic(iterations=2, track_error=False, tol=1.0)
    with pytest.warns(UserWarning, match="no example has features of kind 'edge', so that Linear") as caught:
        pt.CRF({"node": pt.Linear(), "edge": pt.Linear()}, learner).fit(examples)
    assert {w.filename for w in caught} == {__file__}
    for pairs in (pt.Constant(), pt.Potts()):
        pt.CRF({"node": pt.Linear(), "edge": pairs}, learner).fit(examples)
