"""`pt.torch.Network`: any module as a potential, alone and beside others, in every learner that takes it."""

import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from sklearn.base import clone

import potentia as pt
from potentia import Boosting, Constant, Example, Linear, PotentiaError
from potentia.base.progress import Bar
from potentia.base.saving import read_file, write_file
from potentia.learn.base import join_parameters
from potentia.learn.risk_objective import Risk, begin_potentials, open_parts
from potentia.potentials.inputs import Inputs
from potentia.testing import check_potential

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # modules are too small to share
from torch import nn  # noqa: E402

from networks import Around, Perceptron, Pixels, Words  # noqa: E402
from potentia.models.torch import Network  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")  # fits are cut short


def labelled_images(sizes=((6, 7), (8, 5), (6, 7), (9, 9)), seed=0, hidden=0.0, weighted=False, dtype=np.float32):
    """Noisy images of stripes, with features of pairs."""
    rng = np.random.default_rng(seed)
    found = []
    for k, (height, width) in enumerate(sizes):
        y = (np.add.outer(np.arange(height), np.arange(width)) // 3 + k) % 2
        image = (y + 0.6 * rng.normal(size=y.shape)).astype(dtype)[None]
        labels = np.where(rng.random(y.size) < hidden, -1, y.ravel())
        graph = pt.Graph.grid(y.shape, n_states=2)
        first, second = graph.scopes["edge"].T
        edge = np.abs(image.ravel()[first] - image.ravel()[second])[:, None]
        weights = rng.random(y.size) * (rng.random(y.size) > 0.1) if weighted else None
        features = {"edge": edge, "node": image.reshape(-1, 1)}
        found.append(Example(graph, features, labels, weights, f"p{k}", {"node": image}))
    return found


def network(**options):
    return Network(Pixels, per="example", **({"batch": 2, "rate": 0.02, "seed": 1} | options))


FACTORIES = {
    "rows": lambda: Network(Perceptron, epochs=2, batch=20, rate=0.05),
    "rows in float64": lambda: Network(Perceptron, epochs=2, batch=20, rate=0.05, ridge=0.1, module__double=True),
    "dropout": lambda: Network(Perceptron, batch=20, rate=0.05, module__dropout=0.3),
    "sequences": lambda: Network(Around, per="example", epochs=3, batch=2, rate=0.05),
    "sequences in float64": lambda: Network(Around, per="example", epochs=3, batch=2, rate=0.05, module__double=True),
}


#: Networks start at random, and compute in float32 and in batches.
NETWORK = {"starts_at_zero": False, "weights_are_copies": False, "precision": 1e-5}


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
def test_contract(factory):
    check_potential(factory, **NETWORK)


@pytest.mark.parametrize("double", [False, True])
def test_contract_of_a_network_of_images(double):
    rng = np.random.default_rng(0)
    images = [rng.normal(size=(1, 8, 7)), rng.normal(size=(1, 8, 7)), rng.normal(size=(1, 16, 8))]
    check_potential(lambda: network(epochs=3, module__classes=3, module__double=double), inputs=images, **NETWORK)


def test_a_linear_module_is_linear_s_fit():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3)) @ rng.normal(size=(3, 3))
    y = (x + rng.gumbel(size=(300, 3))).argmax(1)
    bias, weight = rng.normal(size=(300, 3)), rng.random(300)
    theirs = Linear(ridge=5.0, tol=1e-10, max_iter=500).fit(x, y, bias, weight)
    ours = Network(DoubleLinear, epochs=300, batch=300, ridge=5.0, module__n_in=3, module__n_out=3)
    for rate in (0.1, 0.03, 0.01, 0.003, 0.001):
        ours.set_params(rate=rate).fit(x, y, bias, weight)
    # a constant added to b changes no loss and has no penalty
    np.testing.assert_allclose(ours.weights_["weight"].T, theirs.coef_, atol=1e-4)
    b = ours.weights_["bias"]
    np.testing.assert_allclose(b - b.mean(), theirs.intercept_ - theirs.intercept_.mean(), atol=1e-4)
    assert ours.objective_ == pytest.approx(theirs.objective_, rel=1e-8)


class DoubleLinear(nn.Linear):
    def __init__(self, n_in, n_out):
        super().__init__(n_in, n_out, dtype=torch.float64)


@pytest.mark.parametrize("learner", ["direct", "risk"])
def test_line_searches_with_a_linear_module_are_those_with_linear(learner):
    train = labelled_images(dtype=np.float64)
    chosen = {
        "direct": pt.IteratedLogistic(solver="direct", iterations=60, tol=0),
        "risk": pt.MarginalRisk(inference=pt.TRW(iterations=5, tol=0), iterations=60, tol=0, ridge=1e-2),
    }[learner]
    ours = Network(DoubleLinear, ridge=0.3, module__n_in=1, module__n_out=2)
    models = [
        pt.CRF({"node": node, "edge": Linear(ridge=0.3)}, chosen).fit(train) for node in (ours, Linear(ridge=0.3))
    ]
    a, b = (m.history_[-1]["objective"] for m in models)
    assert a == pytest.approx(b, rel=1e-6)
    for mine, other in zip(*(m.predict_marginals(train) for m in models), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-3)


@pytest.mark.parametrize("inference", [pt.TRW(iterations=4, tol=0), pt.MeanField(iterations=4, tol=0)])
def test_gradients_of_the_risk_through_the_module(inference):
    train = labelled_images(((4, 5), (5, 3)), hidden=0.3, weighted=True, dtype=np.float64)
    node = network(module__double=True, module__dropout=0.4)
    edge = Network(DoubleLinear, module__n_in=1, module__n_out=4)
    potentials = {"node": node, "edge": edge}
    learner = pt.MarginalRisk(inference=inference, ridge=0.1)
    data = learner.gather(train, potentials)
    totals, states = open_parts(data, learner, len(train))
    potentials = begin_potentials(data, None, states, potentials, False)
    rng = np.random.default_rng(0)
    for potential in potentials.values():
        potential.parameters = potential.parameters + 0.3 * rng.normal(size=potential.n_parameters)
    risk = Risk(data, learner.ridge, totals, potentials, states)
    slopes = np.split(risk(join_parameters(potentials))[1], [potentials["node"].n_parameters])
    for potential, slope in zip(potentials.values(), slopes, strict=True):
        point, way = potential.parameters, rng.normal(size=potential.n_parameters)
        values = []
        for step in (1e-5, -1e-5):
            potential.parameters = point + step * way
            values.append(risk(join_parameters(potentials))[0])
        potential.parameters = point
        assert (values[0] - values[1]) / 2e-5 == pytest.approx(slope @ way, rel=1e-5, abs=1e-8)


LEARNERS = {
    "auto": pt.IteratedLogistic(iterations=4, sweeps=4, tol=0),
    "alternating": pt.IteratedLogistic(solver="alternating", iterations=4, sweeps=4, tol=0),
    "soft": pt.IteratedLogistic(hidden="soft", iterations=4, sweeps=4, tol=0),
    "risk": pt.MarginalRisk(inference=pt.TRW(iterations=4, tol=0), batch=2, iterations=4),
}
EDGES = {"linear": Linear, "constant": Constant, "boosting": lambda: Boosting(rounds=3, more_rounds=1)}


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("name", LEARNERS)
def test_networks_beside_others_resume_and_save_to_the_bit(name, edge, tmp_path):
    if name == "risk" and edge == "boosting":
        pytest.skip("boosting has no gradient")
    train = labelled_images(hidden=0.3, weighted=name != "soft")
    test = labelled_images(((7, 4), (6, 7)), seed=5)
    node = network(module__dropout=0.2)
    model = pt.CRF({"node": node, "edge": EDGES[edge]()}, LEARNERS[name])
    whole = clone(model).fit(train, validation=test)
    values = [row["objective"] for row in whole.history_]
    if name in ("auto", "alternating"):
        assert all(b <= a * (1 + 1e-9) for a, b in pairwise(values))
    assert values[-1] < values[0]
    model.fit(train, validation=test, checkpoint=tmp_path / "c", callback=lambda history: len(history) == 2)
    resumed = clone(model).fit(train, validation=test, checkpoint=tmp_path / "c")
    assert [row["objective"] for row in resumed.history_] == values
    for key, value in whole.potentials_["node"].weights_.items():
        np.testing.assert_array_equal(resumed.potentials_["node"].weights_[key], value)
    resumed.save(tmp_path / "model")
    loaded = pt.load(tmp_path / "model")
    for a, b, c in zip(*(m.predict_marginals(test) for m in (whole, resumed, loaded)), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
    assert repr(loaded.potentials["node"]) == repr(node)
    # and both train on alike
    again = [m.fit(train, warm_start=True).predict_marginals(test) for m in (resumed, loaded)]
    for a, b in zip(*again, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["auto", "risk"])
def test_fits_from_part_files_are_those_of_the_same_parts_in_memory(name, tmp_path):
    train = labelled_images(hidden=0.2)
    pt.write_parts(train, tmp_path / "parts", part_entries=500)
    found = []
    for data in (pt.parts(tmp_path / "parts"), pt.parts(train, part_entries=500)):
        model = pt.CRF({"node": network(), "edge": Linear()}, LEARNERS[name]).fit(data)
        found.append(model.predict_marginals(train))
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_network_alone_learns():
    train, test = labelled_images(((12, 12),) * 6), labelled_images(((12, 12),) * 3, seed=9)
    grids = [pt.Graph((2,) * 144, {"node": np.arange(144)[:, None]})] * 6
    bare = [
        [Example(g, labels=e.labels, inputs=e.inputs) for g, e in zip(grids, own, strict=False)]
        for own in (train, test)
    ]
    model = pt.CRF({"node": network(epochs=6)}, pt.IteratedLogistic(iterations=6, tol=0)).fit(bare[0])
    assert model.score(bare[1]) > 0.8
    joint = pt.CRF({"node": network(epochs=6), "edge": Linear()}, pt.IteratedLogistic(iterations=6, tol=0))
    assert joint.fit(train).score(test) > 0.8


def test_hidden_labels_change_nothing_but_the_rows():
    """A network sees the image behind hidden labels: its scores of labelled pixels are those of the whole image."""
    [e] = labelled_images(((6, 7),), hidden=0.5)
    rows = np.flatnonzero(e.labels >= 0)
    whole = network().start(Inputs([e.inputs["node"]], [42]), 2)
    np.testing.assert_allclose(
        whole.scores(Inputs([e.inputs["node"]], [42], rows)), whole.scores(Inputs([e.inputs["node"]], [42]))[rows]
    )


class GraphOrder(Pixels):
    """The same scores, in the order of the graph's variables."""

    def forward(self, x):
        return super().forward(x).flatten(2).mT


def test_pixels_are_in_the_order_of_the_grid():
    train = labelled_images()
    models = [
        pt.CRF({"node": Network(module, per="example", batch=2, seed=3), "edge": Linear()}, LEARNERS["auto"])
        for module in (Pixels, GraphOrder)
    ]
    a, b = (m.fit(train).theta(train[1])["node"] for m in models)
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    weights = models[0].potentials_["node"].weights_
    module = Pixels().eval()
    module.load_state_dict({key: torch.from_numpy(value) for key, value in weights.items()})
    with torch.no_grad():
        image = module(torch.from_numpy(train[1].inputs["node"])[None])[0].numpy()
    # variable (row, column) of the grid is pixel (row, column) of the image
    np.testing.assert_allclose(image[:, 3, 2], a.reshape(8, 5, 2)[3, 2], rtol=1e-4, atol=1e-6)


class Frozen(Pixels):
    """Only the last layer is trained."""

    def __init__(self, **options):
        super().__init__(**options)
        self.first.requires_grad_(False)


def test_frozen_parameters_stay():
    train = labelled_images()
    node = Network(Frozen, per="example", batch=2, rate=0.05)
    model = pt.CRF({"node": node, "edge": Constant()}, LEARNERS["risk"]).fit(train)
    fitted = model.potentials_["node"]
    begun = clone(node).start(Inputs([e.inputs["node"] for e in train], [42, 40, 42, 81]), 2)
    np.testing.assert_array_equal(fitted.weights_["first.weight"], begun.weights_["first.weight"])
    assert not np.array_equal(fitted.weights_["last.weight"], begun.weights_["last.weight"])
    assert fitted.n_parameters == sum(
        begun.weights_[k].size for k in ("norm.weight", "norm.bias", "last.weight", "last.bias")
    )


def test_integer_inputs_reach_embeddings():
    rng = np.random.default_rng(0)
    examples = []
    for n in (5, 8, 5, 3):
        words = rng.integers(0, 6, n)
        examples.append(Example(pt.Graph.chain(n, n_states=3), labels=words % 3, inputs={"node": words}))
    node = Network(Words, per="example", epochs=40, rate=0.05, module__n_words=6, module__n_out=3)
    model = pt.CRF({"node": node, "edge": Constant()}, pt.IteratedLogistic(iterations=3)).fit(examples)
    assert model.score(examples) == 1.0


def test_seeds_and_the_global_random_state():
    train = labelled_images()

    def scores(seed, **options):
        model = pt.CRF({"node": network(seed=seed, **options), "edge": Constant()}, LEARNERS["auto"])
        return model.fit(train).theta(train[0])["node"]

    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = scores(3, module__dropout=0.5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    np.testing.assert_array_equal(scores(3, module__dropout=0.5), first)
    assert not np.array_equal(scores(4, module__dropout=0.5), first)


def test_progress_shows_epochs(monkeypatch):
    shown = []
    monkeypatch.setattr(Bar, "note", lambda bar, text: shown.append(text))
    model = pt.CRF({"node": network(epochs=2), "edge": Constant()}, LEARNERS["alternating"])
    model.fit(labelled_images(), progress=True)
    assert shown == ["epoch 1 of 2", "epoch 2 of 2"] * 4
    model.fit(labelled_images())
    assert len(shown) == 8


def test_modes():
    """Passes are in training mode, scores and gradients in evaluation mode."""
    train = labelled_images(((6, 7),) * 2)
    node = network(module__dropout=0.5)
    x = Inputs([e.inputs["node"] for e in train], [42, 42])
    node.start(x, 2)
    np.testing.assert_array_equal(node.scores(x), node.scores(x))
    running = node.weights_["norm.running_mean"].copy()
    node.vjp(x, np.ones((84, 2)))
    np.testing.assert_array_equal(node.weights_["norm.running_mean"], running)
    node.fit(x, np.concatenate([e.labels for e in train]))
    assert node.weights_["norm.num_batches_tracked"] == 1
    assert not np.array_equal(node.weights_["norm.running_mean"], running)


def test_options_are_those_of_skorch():
    node = Network(Pixels, "example", module__channels=3, module__width=5)
    assert node.get_params()["module__width"] == 5
    assert clone(node).get_params() == node.get_params()
    model = pt.CRF({"node": node, "edge": Constant()})
    model.set_params(node__module__width=6, node__rate=0.5)
    assert (node.module__width, node.rate) == (6, 0.5)
    assert repr(node).endswith("per='example', rate=0.5, module__channels=3, module__width=6)")
    with pytest.raises(PotentiaError, match=r"no parameter .width.; keywords of the module are written module__width"):
        Network(Pixels, width=3)
    with pytest.raises(PotentiaError, match="has no parameter"):
        node.set_params(epoch=3)


REFUSALS = [
    (Network(3), "module must be a class derived from torch.nn.Module, not 3"),
    (Network(Pixels, per="pixel"), "per must be 'row' or 'example'"),
    (network(module__depth=3), "the module Pixels cannot be built with {'depth': 3}: "),
    (network(device="nowhere"), "device 'nowhere' cannot be used"),
    (network(device=3), "device must be a text"),
    (network(module__classes=3), r"returned the shape \(2, 3, 6, 7\) for inputs of shape \(2, 1, 6, 7\); expected"),
    (network(module__channels=2), r"Pixels fails on inputs of shape \(2, 1, 6, 7\) and torch.float32: "),
    (network(epochs=0), "epochs"),
    (network(batch=0), "batch"),
    (network(rate=-1), "rate"),
    (Network(Perceptron, module__n_in=1), r"Perceptron fails on inputs|returned the shape"),
    (Network(nn.Identity), "Identity has no parameters to train"),
]


@pytest.mark.parametrize(("node", "sentence"), REFUSALS)
def test_what_cannot_be_used_is_refused(node, sentence):
    train = labelled_images(((6, 7),) * 2)
    with pytest.raises(PotentiaError, match=sentence):
        pt.CRF({"node": node, "edge": Constant()}, LEARNERS["alternating"]).fit(train)


def test_learners_refuse_what_they_cannot_train():
    train = labelled_images(((6, 7),))
    for learner, sentence in [
        (pt.MaxMargin(), "must be linear in its parameters"),
        (pt.MarginalRisk(), "too imprecise: give batch=, or a module in float64"),
        (pt.IteratedLogistic(solver="direct"), "too imprecise: give a module in float64"),
    ]:
        with pytest.raises(PotentiaError, match=sentence):
            pt.CRF({"node": network(), "edge": Linear()}, learner).fit(train)


def test_files_name_classes_that_the_program_has_defined(tmp_path):
    train = labelled_images(((6, 7),))
    node = Network(Perceptron, module__n_in=1, module__n_out=2, module__hidden=3, module__activation=nn.ReLU)
    learner = pt.IteratedLogistic(iterations=1, track_error=False)
    with pytest.raises(PotentiaError, match="Perceptron fails"):
        pt.CRF({"node": node, "edge": Constant()}, learner).fit(train)
    node = network(module__norm=False)
    model = pt.CRF({"node": node, "edge": Constant()}, learner).fit(train)
    model.save(tmp_path / "model")
    code = f"""
import potentia as pt
try:
    pt.load({str(tmp_path / "model")!r})
except pt.PotentiaError as error:
    print(error)
import networks
print(pt.load({str(tmp_path / "model")!r}).potentials["node"])
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    first, second = done.stdout.strip().splitlines()
    assert "names the module networks.Pixels, which is unknown: import or define it first." in first
    assert second == repr(node)


def test_classes_among_the_options_are_found_again():
    x, y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30) % 3
    node = Network(Perceptron, module__activation=nn.ReLU).fit(x, y)
    again = pt.extend.Potential.from_state(*node.state())
    assert again.module is Perceptron
    assert again.module__activation is nn.ReLU
    np.testing.assert_array_equal(again.scores(x), node.scores(x))


def test_damaged_weights_are_refused():
    x, y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30) % 3
    meta, arrays = Network(Perceptron).fit(x, y).state()
    name = next(key for key in arrays if "weight" in key.rpartition("/")[2])
    for bad, sentence in [(arrays[name][:-1], "has the shape"), (np.full_like(arrays[name], np.nan), "not finite")]:
        with pytest.raises(PotentiaError, match=sentence):
            pt.extend.Potential.from_state(meta, arrays | {name: bad})
    meta["params"]["module__hidden"] = {"value": 9}
    with pytest.raises(PotentiaError, match="belong to another module"):
        pt.extend.Potential.from_state(meta, arrays)


def test_without_pytorch_files_of_networks_say_how_to_install_it(tmp_path):
    train = labelled_images(((6, 7),))
    learner = pt.IteratedLogistic(iterations=1, track_error=False)
    pt.CRF({"node": network(), "edge": Constant()}, learner).fit(train).save(tmp_path / "model")
    code = f"""
import sys
from itertools import pairwise
sys.modules["torch"] = None
import numpy as np
import potentia as pt
graph = pt.Graph.chain(3, n_states=2)
examples = [pt.Example(graph, {{"node": np.eye(3)}}, [0, 1, 1], inputs={{"node": np.eye(3)}})]
pt.CRF({{"node": pt.Linear(), "edge": pt.Constant()}}, pt.IteratedLogistic(iterations=1)).fit(examples)
for attempt in (lambda: pt.load({str(tmp_path / "model")!r}), lambda: pt.torch.Network):
    try:
        attempt()
    except pt.PotentiaError as error:
        print(error)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path]), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.count("PyTorch is not installed: pip install potentia[torch].") == 2


def test_a_file_whose_module_is_larger_than_its_weights_is_refused_before_it_is_built(tmp_path):
    rng = np.random.default_rng(0)
    train = [Example(pt.Graph.chain(4, n_states=2), {"node": rng.normal(size=(4, 3))}, [0, 1, 0, 1])]
    node = Network(nn.Linear, module__in_features=3, module__out_features=2)
    model = pt.CRF({"node": node, "edge": Constant()}, pt.IteratedLogistic(iterations=1)).fit(train)
    model.save(tmp_path / "model")
    content, arrays = read_file(tmp_path / "model", "CRF")
    params = content["potentials"]["node"]["params"]
    # 4 EB, which no machine gives: asking for it would be another error
    params["module__in_features"] = params["module__out_features"] = {"value": 2**30}
    write_file(tmp_path / "model", "CRF", content, arrays)
    with pytest.raises(PotentiaError, match=r"another module than Linear: weight has the shape \(2, 3\)"):
        pt.load(tmp_path / "model")
