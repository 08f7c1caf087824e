"""Model files: what they hold and what they refuse."""

import gzip
import json
import lzma
import subprocess
import sys
import tracemalloc
import warnings
import zipfile
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.svm import SVC

import potentia as pt
import saved_models
from potentia.base import saving
from potentia.base.saving import Registered, file_kind, from_json, read_file, to_json, write_file
from potentia_studies import baselines


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with the models of `saved_models`."""
    folder = tmp_path_factory.mktemp("models")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pt.ConvergenceWarning)  # fits are cut short
        saved_models.make(folder)
    return folder


@dataclass(frozen=True)
class Absolute(pt.gradients.losses.MarginalLoss):
    power: float = 1.0

    name: ClassVar[str] = "absolute"

    def terms(self, mu, y):
        rows = np.arange(len(y))
        slopes = np.zeros_like(mu)
        slopes[rows, y] = -self.power * (1 - mu[rows, y]) ** (self.power - 1)
        return (1 - mu[rows, y]) ** self.power, slopes


@dataclass
class Sequential(pt.TRW):
    schedule: str = "sequential"


@dataclass(frozen=True)
class Finer(pt.gradients.Perturbation):
    multiplier: float = 0.5


@dataclass
class Weighted(Registered):
    """A Delta with an option."""

    weight: float = 1.0

    def __call__(self, example):
        wrong = np.full((example.graph.n_variables, 2), self.weight)
        wrong[np.arange(len(wrong)), example.labels] = 0.0
        return {"node": wrong}


def small_crf(learner, inference=None):
    potentials = {kind: pt.Linear() for kind in ("node", "edge", "triple")}
    return pt.CRF(potentials, learner, inference)


def test_a_custom_loss_gradient_and_inference_are_saved_with_their_options(tmp_path):
    risk = pt.MarginalRisk(Absolute(2.0), Sequential(iterations=200), gradient=Finer(), iterations=1, tol=0)
    crf = small_crf(risk, Sequential(rho=0.7)).fit(saved_models.examples())
    crf.save(tmp_path / "m")
    again = pt.load(tmp_path / "m")
    assert again.learner == risk
    assert again.inference_ == Sequential(rho=0.7)
    examples = saved_models.examples()
    for a, b in zip(crf.predict_marginals(examples), again.predict_marginals(examples), strict=True):
        np.testing.assert_array_equal(a, b)
    again.fit(examples)


def test_a_custom_delta_is_saved_by_class_and_a_function_by_its_name(tmp_path):
    learner = pt.IteratedLogistic(iterations=1, delta=Weighted(0.5))
    small_crf(learner).fit(saved_models.examples()).save(tmp_path / "m")
    assert pt.load(tmp_path / "m").learner.delta == Weighted(0.5)

    def own(example):
        return Weighted()(example)

    crf = small_crf(pt.IteratedLogistic(iterations=1, delta=own)).fit(saved_models.examples())
    crf.save(tmp_path / "m")
    again = pt.load(tmp_path / "m")
    assert [a.tolist() for a in again.predict(saved_models.examples())] == [
        a.tolist() for a in crf.predict(saved_models.examples())
    ]
    with pytest.raises(pt.PotentiaError, match=r"the function test_files\..*own is not in the file.*set that option"):
        again.fit(saved_models.examples())
    again.save(tmp_path / "n")
    assert pt.load(tmp_path / "n").learner.delta == again.learner.delta


def test_options_keep_their_mappings_and_nested_objects():
    @dataclass
    class Nested(Registered):
        table: dict = field(default_factory=dict)
        inner: object = None

    for value in ({0: [1], 2: []}, {"node": 0.1}, {"class": 1, "options": 2}, {"mapping": []}, {"function": "f"}):
        thing = Nested(value, [pt.Exact(), None, float("inf")])
        assert from_json(json.loads(json.dumps(to_json(thing))), Nested) == thing
    with pytest.raises(pt.PotentiaError, match="inner of Nested of type object cannot be saved"):
        to_json(Nested(inner=object()))


def test_options_that_a_file_cannot_hold_are_refused_when_saving():
    class Plain(Registered):
        def __init__(self, option):
            self.hidden = option

    class Silent(Registered):
        def __init__(self):
            self.option = 1

    for thing in (Plain(1), Silent()):
        with pytest.raises(pt.PotentiaError, match="make it a dataclass or define get_params"):
            to_json(thing)
    with pytest.raises(pt.PotentiaError, match="derive its class"):
        to_json(object())


def test_a_file_names_only_known_classes_of_the_right_kind():
    with pytest.raises(
        pt.PotentiaError, match=r"names the class my\.module\.Loss, which is unknown: import its module"
    ):
        from_json({"class": "my.module.Loss", "options": {}}, pt.gradients.losses.Loss)
    for name in ("TRW", "Nothing", "Loss", None, [], 3):
        with pytest.raises(pt.PotentiaError, match="which is not a Loss of this version"):
            from_json({"class": name, "options": {}}, pt.gradients.losses.Loss)
    with pytest.raises(pt.PotentiaError, match="options that TRW does not take"):
        from_json({"class": "TRW", "options": {"none_such": 1}}, pt.extend.Inference)
    with pytest.raises(pt.PotentiaError, match="describes no Inference"):
        from_json(3, pt.extend.Inference)


MODELS = [
    pt.LMSBN(1e-2),
    pt.LMBM(1e-2, cliques=[[0, 1]]),
    pt.multilabel.IndependentClassifiers(1e-2, "poly"),
    baselines.ClassifierChain(),
    baselines.ClassifierChain(order="random", random_state=3),
    baselines.LabelPowerset(),
    baselines.ChainSSVM(passes=5, tol=1.0),
    baselines.CompleteSSVM(inference=pt.Exact(), passes=5, tol=1.0),
    baselines.ThresholdClassifier(pt.LMSBN(1e-2), measure="f_micro"),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("labels", ["three", "one", "constant"])
def test_every_multilabel_estimator_saves_and_loads(model, labels, tmp_path):
    X, Y = saved_models.rows()
    Y = {"three": Y, "one": Y[:, 0], "constant": np.ones_like(Y)}[labels]
    model = clone(model)
    if labels == "one" and isinstance(model, pt.LMBM):
        model.set_params(cliques=2)
    model.fit(X, Y).save(tmp_path / "m")
    again = pt.load(tmp_path / "m")
    assert type(again) is type(model)
    assert repr(again) == repr(model)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_allclose(again.decision_function(X), model.decision_function(X), rtol=1e-12)
    clone(again).fit(X, Y)


class Shifted(pt.LMSBN):
    """A custom estimator."""


def test_a_custom_estimator_saves_and_loads(tmp_path):
    X, Y = saved_models.rows()
    Shifted(0.1).fit(X, Y).save(tmp_path / "m")
    assert type(pt.load(tmp_path / "m")) is Shifted
    with pytest.raises(pt.PotentiaError, match=r"m holds a test_files\.Shifted, not a LMSBN"):
        pt.LMSBN.load(tmp_path / "m")
    chain = baselines.ClassifierChain(SVC()).fit(X, Y)
    with pytest.raises(pt.PotentiaError, match="estimator of ClassifierChain of type SVC cannot be saved"):
        chain.save(tmp_path / "n")
    assert not (tmp_path / "n").exists()


@pytest.mark.parametrize("suffix", ["gz", "xz"])
def test_compressed_texts_are_unpacked_up_to_a_limit(suffix, tmp_path, monkeypatch):
    pack = {"gz": gzip.compress, "xz": lzma.compress}[suffix]
    (tmp_path / f"t.tsv.{suffix}").write_bytes(pack(b"word\tO\n" * 30_000))
    (tmp_path / f"m.uai.{suffix}").write_bytes(pack(b"MARKOV 1 2 1 1 0 2 0.5 0.5" + b" " * 10**6))
    assert len(pt.datasets.conll(tmp_path / f"t.tsv.{suffix}")[0][0]) == 30_000
    assert pt.uai.read(tmp_path / f"m.uai.{suffix}")[0].n_variables == 1
    for read, name in ((pt.datasets.conll, "t.tsv"), (pt.uai.read, "m.uai")):
        path = tmp_path / f"{name}.{suffix}"
        with pytest.raises(pt.PotentiaError, match="unpacks to more than 1000 bytes; pass a larger limit"):
            read(path, limit=1000)
        monkeypatch.setenv("POTENTIA_READ_LIMIT", "2000")
        with pytest.raises(pt.PotentiaError, match="unpacks to more than 2000 bytes"):
            read(path)
        monkeypatch.setenv("POTENTIA_READ_LIMIT", "much")
        with pytest.raises(pt.PotentiaError, match="POTENTIA_READ_LIMIT must be"):
            read(path)
        monkeypatch.delenv("POTENTIA_READ_LIMIT")


def test_a_compressed_model_file_is_refused_before_it_is_unpacked(models, tmp_path):
    with zipfile.ZipFile(models / "lmsbn") as old, zipfile.ZipFile(tmp_path / "m", "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
        new.writestr("bomb", bytes(10**8))
    tracemalloc.start()
    with pytest.raises(pt.PotentiaError, match="claim more bytes than the file has"):
        pt.load(tmp_path / "m")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**7


def altered(source, target, change):
    """A copy of a model file whose arrays `change` has altered in place."""
    kind = file_kind(source)
    content, arrays = read_file(source, kind)
    change(arrays)
    write_file(target, kind, content, arrays)
    return target


def exchange(arrays, a, b):
    arrays[a], arrays[b] = arrays[b], arrays[a]


CRAFTED = [
    ("lmsbn", lambda arrays: arrays["network/term_ptr"].__setitem__(-1, 10**6), "network/weight has the shape"),
    ("lmsbn", lambda arrays: arrays["network/term_ptr"].__setitem__(1, 7), "network/term_ptr does not hold offsets"),
    ("lmsbn", lambda arrays: arrays["network/members"].__setitem__(0, -9), "network/members holds -9"),
    ("lmsbn", lambda arrays: arrays["network/order"].__setitem__(0, 1), "order does not hold every label once"),
    ("lmbm", lambda arrays: exchange(arrays, "machine/sizes", "machine/members"), "machine/sizes has the shape"),
    ("lmbm", lambda arrays: exchange(arrays, "coef", "rows/X"), "has the shape"),
    ("lmbm", lambda arrays: arrays["machine/members"].__setitem__(0, 99), "machine/members holds 99"),
    (
        "independent",
        lambda arrays: arrays.update(coef=arrays["coef"].astype("f4")),
        "coef has the type float32, not f8",
    ),
    (
        "independent",
        lambda arrays: arrays["coef"].__setitem__((0, 0), np.nan),
        "coef holds numbers that are not finite",
    ),
    ("crf", lambda arrays: exchange(arrays, "edge/fitted.nodes_", "edge/fitted.depths_"), "has the shape"),
]


@pytest.mark.parametrize(("name", "change", "message"), CRAFTED)
def test_crafted_arrays_are_refused_before_a_kernel_indexes_with_them(name, change, message, models, tmp_path):
    target = altered(models / name, tmp_path / "m", change)
    with pytest.raises(pt.PotentiaError, match=rf"m: the saved \w+ is damaged: .*{message}") as caught:
        pt.load(target)
    assert "\n" not in str(caught.value)


def test_a_shape_larger_than_its_bytes_is_refused_before_it_is_allocated(models, tmp_path):
    with zipfile.ZipFile(models / "independent") as old:
        entries = {entry.filename: old.read(entry) for entry in old.infolist()}
    with zipfile.ZipFile(tmp_path / "m", "w") as new:
        for name, data in entries.items():
            new.writestr(name, data.replace(b"(3, 3), }    ", b"(3, 3000), } "))
    with pytest.raises(pt.PotentiaError, match=r"m: the array coef has 72 bytes, not those of \(3, 3000\)"):
        pt.load(tmp_path / "m")


@pytest.mark.parametrize("method", [pt.Exact(), pt.TRW(), pt.Gibbs(samples=5), pt.LinearProgram()])
def test_methods_declare_what_they_can_do(method):
    name = type(method).__name__
    assert method.threaded == (name != "LinearProgram")
    assert method.exact == (name == "Exact")
    assert method.relaxed == (name == "LinearProgram")
    assert method.iterative == (name == "TRW")
    assert method.on_one_thread().threads == (1 if name == "TRW" else None)


def test_every_structured_factor_of_a_file_is_found_by_a_process_that_has_not_used_it():
    code = "from potentia.base.saving import Registered, find_class; print(find_class({!r}, Registered).__module__)"
    for name in ("Cardinality", "PnPotts"):  # each in a process of its own, since one import brings all
        found = subprocess.run([sys.executable, "-c", code.format(name)], capture_output=True, text=True)
        assert found.stdout == "potentia.potentials.factors\n", found.stderr
    assert {name for name, module in saving._LATE.items() if module.endswith("factors")} == set(pt.factors.__all__)
