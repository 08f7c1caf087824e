"""Every option of every public class and function: a wrong value gets one sentence or is accepted by design."""

import inspect
import warnings
from contextlib import suppress
from dataclasses import fields, is_dataclass

import numpy as np
import pytest

import potentia as pt
import saved_models
from potentia_studies import baselines, bounds
from potentia_studies.public_sets import image_examples

WRONG = ["x", None, -1, float("nan"), 1.7, [], object(), True]
X, Y = saved_models.rows()
IMAGE = np.random.default_rng(0).integers(0, 256, (9, 8, 3)).astype(np.uint8)
LABELS = np.zeros((9, 8), dtype=int)
GRAPH = pt.Graph.chain(4, n_states=2)
THETA = {"node": np.arange(8.0).reshape(4, 2), "edge": np.zeros((3, 2, 2))}
SENTENCES = [[["a", "b"], ["N", "V"]]]


def infer(method):
    method.infer(GRAPH, THETA)
    method.on_one_thread().infer(GRAPH, THETA)


def evaluate(loss):
    pt.loss_and_gradient(loss, pt.TRW(iterations=2), GRAPH, THETA, [0, 1, 0, 1])


def differentiate(gradient):
    pt.loss_and_gradient("univariate_logistic", pt.TRW(iterations=20), GRAPH, THETA, [0, 1, 0, 1], gradient)


def fit(model):
    model.fit(X[:12], Y[:12]).predict(X[:3])


INFERENCE = [
    pt.TRW(), pt.LoopyBP(), pt.Smoothed(), pt.Kikuchi(), pt.MeanField(), pt.Exact(), pt.LinearProgram(),
    pt.Gibbs(samples=20, burn_in=2), pt.extend.MessagePassing(counting={"node": 1.0, "edge": 1.0}),
]  # fmt: skip
LOSSES = [getattr(pt.gradients.losses, name) for name in pt.gradients.losses.__all__]
LOSSES = [loss() for loss in LOSSES if is_dataclass(loss) and not inspect.isabstract(loss)]
GRADIENTS = [
    pt.gradients.Truncated(),
    pt.gradients.BackPropagation(),
    pt.gradients.Perturbation(),
    pt.gradients.Implicit(),
]
MODELS = [
    pt.LMSBN(0.1), pt.LMSBN(0.1, kernel="rbf"), pt.LMSBN(0.1, "learned"), pt.LMBM(0.1), pt.LMBM(0.1, kernel="poly"),
    pt.multilabel.IndependentClassifiers(0.1), baselines.ClassifierChain(), baselines.LabelPowerset(), 
    baselines.ChainSSVM(tol=1.0), baselines.CompleteSSVM(tol=1.0), baselines.ThresholdClassifier(cv=2),
]  # fmt: skip
FUNCTIONS = [
    (pt.datasets.denoising, {"n_images": 1, "size": (4, 4)}),
    (pt.features.image_example, {"image": IMAGE, "labels": LABELS, "n_states": 2}),
    (pt.features.superpixel_example, {"image": IMAGE, "labels": LABELS, "n_states": 2, "n_segments": 4}),
    (pt.features.superpixels, {"image": IMAGE, "n_segments": 4}),
    (pt.features.pixel_features, {"image": IMAGE}),
    (pt.features.hog, {"image": IMAGE}),
    (pt.features.fourier, {"base": np.zeros((3, 2))}),
    (pt.features.resize, {"image": IMAGE.astype(float), "size": (3, 3)}),
    (pt.features.reduce_labels, {"labels": LABELS, "size": (3, 3), "n_states": 2}),
    (pt.features.edge_features, {"image": IMAGE, "edges": [[0, 1]]}),
    (lambda **options: pt.features.TokenFeatures(**options).fit(SENTENCES).transform(SENTENCES), {}),
]


def options_of(thing):
    if is_dataclass(thing):
        return {field.name: getattr(thing, field.name) for field in fields(thing)}
    return thing.get_params(deep=False)


def cases():
    for things, use in ((INFERENCE, infer), (LOSSES, evaluate), (GRADIENTS, differentiate), (MODELS, fit)):
        for thing in things:
            for name in options_of(thing):
                yield pytest.param(thing, name, use, id=f"{type(thing).__name__}-{name}")


def refused_or_accepted(call):
    """A PotentiaError or none at all."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        with suppress(pt.PotentiaError):
            call()


@pytest.mark.parametrize(("thing", "name", "use"), list(cases()))
def test_wrong_options_of_classes(thing, name, use):
    for wrong in WRONG:
        options = options_of(thing) | {name: wrong}
        refused_or_accepted(lambda options=options: use(type(thing)(**options)))


@pytest.mark.parametrize(("function", "given"), FUNCTIONS, ids=lambda value: getattr(value, "__name__", ""))
def test_wrong_options_of_functions(function, given):
    names = [name for name in inspect.signature(function).parameters if name != "options"]
    for name in names or ("window", "min_count", "spelling"):
        for wrong in WRONG:
            refused_or_accepted(lambda name=name, wrong=wrong: function(**given | {name: wrong}))


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (pt.LMSBN, {"interactions": None}),
        (pt.LMSBN, {"label_scale": None}),
        (pt.LMSBN, {"bound": None}),
        (pt.LMSBN, {"budget": 1.7}),
        (pt.LMSBN, {"budget": 2**63}),
        (pt.LMSBN, {"budget": -(10**5000)}),
        (pt.LMSBN, {"n_orders": 0}),
        (pt.LMBM, {"passes": 1.5}),
        (baselines.ThresholdClassifier, {"cv": 2.5}),
        (baselines.ChainSSVM, {"inference": "exact"}),
        (baselines.ClassifierChain, {"estimator": 3}),
    ],
)
def test_options_that_were_bare_errors_or_accepted_are_refused(model, options):
    with pytest.raises(pt.PotentiaError, match=f"^{next(iter(options))} must be"):
        model(**options).fit(X, Y)


@pytest.mark.parametrize("scale", [1e300, 1e-300])
@pytest.mark.parametrize("model", [*MODELS, pt.LightGBM(rounds=2), pt.Linear()], ids=lambda m: type(m).__name__)
def test_features_of_extreme_size_get_one_sentence_or_a_model(model, scale):
    labels = Y[:, 0] if isinstance(model, pt.extend.Potential) else Y
    refused_or_accepted(lambda: type(model)(**model.get_params(deep=False)).fit(X * scale, labels))


PLACES = pt.features.Gazetteer(["New York"])
EXAMPLE = pt.Example(GRAPH, {"node": np.ones((4, 1))}, [0, 1, 0, 1])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: pt.CRF({"node": pt.Linear()}).fit([EXAMPLE], checkpoint=1), "checkpoint must be a str"),
        (lambda: pt.ChainCRF().fit([[{"a": 1}]], [["x"]], checkpoint=1), "checkpoint must be a str"),
        (lambda: pt.LMSBN().fit(X[:12], Y[:12], checkpoint=1), "checkpoint must be a str"),
        (lambda: pt.CRF({"node": pt.Linear()}).fit([EXAMPLE], callback=1), "callback must be a function"),
        (lambda: image_examples(3, n_states=2), "images must be a list of LabelledImage"),
        (lambda: image_examples([IMAGE], n_states=2), r"images\[0\] must be a LabelledImage"),
        (lambda: pt.features.Gazetteer(3), "phrases must be a list of texts, not 3"),
        (lambda: pt.features.Gazetteer("Rome"), "phrases must be a list of texts, not 'Rome'"),
        (lambda: pt.features.Gazetteer(["Rome", 3]), r"phrases\[1\] must be a text, not 3"),
        (lambda: PLACES.mark([3]), r"words\[0\] must be a text, not 3"),
        (lambda: pt.multilabel.indicators_to_labels(GRAPH, 3), "indicators must be a Mapping, not 3"),
        (lambda: pt.multilabel.indicators_to_labels(GRAPH, {"node": None}), "indicators of kind 'node' do not fit"),
        (
            lambda: pt.multilabel.indicators_to_labels(GRAPH, {"node": np.array(2)}),
            "indicators of kind 'node' do not fit",
        ),
        (lambda: pt.TRW().infer(pt.Graph([2, 3, 2], {"edge": [[0, 1], [1, 2]]}), {"edge": np.array(2.0)}), "2 tables"),
        (lambda: pt.multilabel.indicators_to_labels(3, {}), "graph must be a Graph, not 3"),
        (lambda: pt.Graph.grid(IMAGE, n_states=2), r"shape must be the sides .* of shape \(9, 8, 3\)"),
        (lambda: pt.TRW(iterations=IMAGE).infer(GRAPH, THETA), "iterations must be a whole number"),
        (lambda: pt.load(3), "path must be a str or PathLike, not 3"),
        (lambda: bounds.likelihood_bound(pt.LMBM(), X, Y), "model must be a LMSBN"),
    ],
)
def test_wrong_types_get_one_short_line_that_names_the_argument(call, sentence):
    with pytest.raises(pt.PotentiaError, match=sentence) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_boundaries_without_tolerance_are_not_near_each_other():
    truth, predicted = np.zeros((4, 8), dtype=int), np.zeros((4, 8), dtype=int)
    truth[:, 2:], predicted[:, 6:] = 1, 1
    counts = pt.metrics.boundary_counts(truth, predicted, 2, tolerance=0)
    assert counts[:, [0, 2]].tolist() == [[0, 0], [0, 0]]
