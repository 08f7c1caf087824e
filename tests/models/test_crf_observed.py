"""Predictions of a CRF given some labels, and what results tell beside marginals."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest

import potentia as pt


@pytest.fixture(scope="module")
def fitted() -> tuple[pt.CRF, list[pt.Example]]:
    examples = pt.datasets.denoising(2, seed=0, size=(8, 8))
    learner = pt.IteratedLogistic(epsilon=1.0, iterations=200, track_error=False)
    return pt.CRF({"node": pt.Linear(), "edge": pt.Constant()}, learner).fit(examples), examples


def test_observed_labels_are_those_of_inference(fitted):
    crf, examples = fitted
    known = [np.full(64, -1), None]
    known[0][[3, 20, 40]] = [1, 0, 1]
    found = crf.predict_marginals(examples, observed=known)
    free = crf.predict_marginals(examples)
    theta = crf.theta(examples[0])
    direct = crf.inference_.infer(examples[0].graph, theta, observed=known[0]).variable_marginals
    np.testing.assert_allclose(found[0], direct, atol=1e-4)
    np.testing.assert_allclose(found[1], free[1], atol=1e-4)
    assert crf.predict(examples, observed=known)[0][[3, 20, 40]].tolist() == [1, 0, 1]


def test_observed_true_takes_the_labels_of_examples(fitted, tmp_path):
    crf, examples = fitted
    np.testing.assert_array_equal(crf.predict(examples, observed=True)[0], examples[0].labels)
    path = crf.predict(pt.parts([lambda: examples]), observed=True, out=tmp_path / "out")[0]
    assert path.is_file()


def test_bad_observations_are_one_sentence(fitted):
    crf, examples = fitted
    for observed, message in (
        ([None], "each of 2 examples"),
        (5, "each of 2 examples"),
        ([np.zeros(3, int), None], r"observed\[0\]"),
        ([None, np.full(64, 2)], r"observed\[1\]"),
    ):
        with pytest.raises(pt.PotentiaError, match=message):
            crf.predict(examples, observed=observed)


def test_entropy_and_plot():
    graph = pt.Graph.chain(3, n_states=[2, 3, 2])
    result = pt.TRW().infer(graph, {"node": [np.zeros(2), np.zeros(3), np.array([0.0, -np.inf])], "edge": None})
    np.testing.assert_allclose(result.entropy(), [np.log(2), np.log(3), 0.0], atol=1e-12)
    mpl.use("Agg")
    assert result.plot().get_xlabel() == "variable"


def test_labels_over_an_image():
    mpl.use("Agg")
    image, found = np.zeros((6, 8), np.uint8), np.zeros((6, 8), int)
    found[2:4, 2:5], found[0] = 1, -1
    axes = pt.plot.labels(image, found.ravel(), names=["sky", "sea"])
    assert [text.get_text() for text in axes.figure.legends[0].get_texts()] == ["sky", "sea"]
    with pytest.raises(pt.PotentiaError, match="found has shape"):
        pt.plot.labels(image, found[1:])
