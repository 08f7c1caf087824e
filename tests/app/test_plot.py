"""Plots, reprs, notebook views and logging."""

import logging

import matplotlib
import numpy as np
import pytest

import potentia as pt
from potentia.app.report.rows import Column, Table
from potentia.app.sequences import SequencePipeline
from potentia.app.tables import TablePipeline
from potentia.features import TokenFeatures
from potentia_studies.studies import STUDIES

matplotlib.use("Agg")
pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")  # fits are cut short


@pytest.fixture(scope="module")
def examples():
    return pt.datasets.denoising(2, (12, 12), seed=3)


@pytest.fixture(scope="module")
def crf(examples):
    learner = pt.IteratedLogistic(iterations=2, sweeps=2)
    return pt.CRF({"node": pt.Linear(), "edge": pt.Constant()}, learner).fit(examples, validation=examples)


@pytest.fixture(autouse=True)
def _no_figure_is_left():
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def test_potentials_are_drawn_as_inference_sees_them(crf, examples):
    node, edge = pt.plot.potentials(crf, examples)
    line = node.lines[1]
    x = np.array([[1.0, v] for v in line.get_xdata()])
    theta = crf.potentials_["node"].scores(x) * crf.scales_["node"]
    assert np.allclose(line.get_ydata(), theta[:, 1] - theta.mean(axis=1))
    assert line.get_xdata()[-1] == max(e.features["node"][:, 1].max() for e in examples)
    assert [t.get_text() for t in node.get_legend().get_texts()] == ["y = 0", "y = 1"]
    table = edge.images[0].get_array()
    assert table.shape == (2, 2)
    assert "Constant" in edge.get_title()
    assert len(pt.plot.potentials(crf)) == 2


def test_history_shows_errors_else_the_objective(crf):
    lines = pt.plot.history(crf).lines
    assert [line.get_label() for line in lines] == ["training error", "validation error"]
    assert list(lines[0].get_ydata()) == [row["train_error"] for row in crf.history_]
    axes = pt.plot.history([{"iteration": 1, "objective": 3.0}, {"iteration": 2, "objective": 2.0}])
    assert axes.get_ylabel() == "objective"


def test_what_has_no_history_is_refused():
    with pytest.raises(pt.PotentiaError, match="or its history_, not a LMSBN"):
        pt.plot.history(pt.LMSBN())


def test_marginals_as_an_image_and_as_a_map(crf, examples):
    result = crf.infer(examples[0])
    pixels = pt.plot.marginals(result, (12, 12)).images[0].get_array()
    assert np.array_equal(pixels.ravel(), result.variable_marginals[:, 1])
    assert pt.plot.marginals(result.variable_marginals).images[0].get_array().shape == (2, 144)


def test_graph_takes_positions_labels_and_an_axis():
    from matplotlib.figure import Figure

    graph = pt.Graph([2] * 5, {"edge": [[0, 1], [3, 4]], "triple": [[0, 1, 2], [2, 3, 4]]})
    axes = Figure().subplots()
    assert pt.plot.graph(graph, labels=[0, 1, 0, 1, 1], ax=axes) is axes
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["triple"]
    positions = np.arange(10.0).reshape(5, 2)
    dots = pt.plot.graph(graph, positions=positions).collections[-1]
    assert np.array_equal(dots.get_offsets(), positions)


@pytest.mark.parametrize("neighbours", [4, 8])
@pytest.mark.parametrize("shape", [(5, 6), (1, 7), (7, 1), (2, 2), (30, 40)])
def test_a_grid_is_drawn_as_a_grid(shape, neighbours):
    graph = pt.Graph.grid(shape, n_states=2, neighbours=neighbours)
    axes = pt.plot.graph(graph)
    down, right = np.divmod(np.arange(graph.n_variables), shape[1] if 1 not in shape else max(shape))
    assert np.array_equal(axes.collections[-1].get_offsets(), np.stack([right, -down], axis=1))
    assert axes.get_legend() is None


def test_a_tree_is_drawn_below_its_root():
    parents = [2, 2, -1, 0, 0, -1, 5]
    axes = pt.plot.graph(pt.Graph.tree(parents, n_states=2))
    where, ring = (np.asarray(axes.collections[k].get_offsets()) for k in (-1, -2))
    assert np.array_equal(ring, where[[2, 5]])
    for child, parent in enumerate(parents):
        assert where[child, 1] == (0 if parent < 0 else where[parent, 1] - 1)
    assert len(np.unique(where, axis=0)) == 7, "no two variables at one place"
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["root"]


def test_pairs_without_an_orientation_are_no_tree():
    graph = pt.Graph([2] * 3, {"edge": [[0, 2], [1, 2]]})
    assert pt.plot.graph(graph).get_legend() is None


def test_springs_put_neighbours_together():
    graph = pt.Graph.grid((5, 6), n_states=2)
    graph = pt.Graph(graph.n_states, {"node": graph.scopes["node"], "edge": graph.scopes["edge"][:-1]})
    where = np.asarray(pt.plot.graph(graph).collections[-1].get_offsets())
    apart = np.linalg.norm(where[:, None] - where[None], axis=2)
    first, second = graph.scopes["edge"].T
    assert apart[first, second].max() < apart[np.triu_indices(30, 1)].mean()
    assert apart[np.triu_indices(30, 1)].min() > 0.01


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: pt.plot.history(pt.CRF({"node": pt.Linear()})), "not fitted"),
        (lambda: pt.plot.history([]), "empty"),
        (lambda: pt.plot.marginals(np.ones((6, 2)), (2, 2)), "do not fill"),
        (lambda: pt.plot.marginals(np.ones((4, 2)), (2, 2), state=2), "2 states"),
        (lambda: pt.plot.marginals(np.ones(4)), "shape"),
        (lambda: pt.plot.graph(pt.Graph.chain(3, n_states=2), positions=[[0, 0]]), "positions"),
        (lambda: pt.plot.graph(pt.Graph.complete(600, n_states=2)), "needs positions"),
        (lambda: pt.plot.graph(pt.Graph.chain(3, n_states=2), labels=[0, 1]), "labels must have shape"),
    ],
)
def test_bad_input_is_one_sentence(draw, words):
    with pytest.raises(pt.PotentiaError, match=words):
        draw()


def test_features_and_axes_are_checked(crf):
    with pytest.raises(pt.PotentiaError, match="must be one of the"):
        pt.plot.potentials(crf, feature=5)
    with pytest.raises(pt.PotentiaError, match="axes"):
        pt.plot.potentials(crf, axes=[])
    with pytest.raises(pt.PotentiaError, match="0 examples"):
        pt.plot.potentials(crf, [])


def test_pipelines_around_a_crf_are_plotted(crf):
    chain = pt.ChainCRF(max_iterations=2).fit([[{"a": 1}, {"b": 1}]], [["A", "B"]])
    pipeline = SequencePipeline(chain, TokenFeatures(), 2)
    assert pt.plot.history(pipeline).get_xlabel() == "iteration"
    with pytest.raises(pt.PotentiaError, match="not a ChainCRF"):
        pt.plot.potentials(pipeline)
    with pytest.raises(pt.PotentiaError, match="not a LMSBN"):
        pt.plot.history(TablePipeline(pt.LMSBN(), "lmsbn", [], []))


def test_reprs_are_calls_with_what_was_changed():
    named = {name: getattr(pt, name) for name in pt.__all__}  # each is there only once it was asked for
    for call in (
        "IteratedLogistic(epsilon=0.5, tol=0.001)",
        "MarginalRisk(ridge=0.1)",
        "MaxMargin(solver='one_slack')",
        "CRF({'node': Linear(ridge=2.0)}, learner=MaxMargin(), decode='map')",
        "CRF({'node': Linear()})",
        "LMSBN(alpha=0.1)",
    ):
        assert repr(eval(call, named)) == call
    union = pt.extend.Union([pt.Graph.chain(3, n_states=2), pt.Graph.chain(2, n_states=2)])
    assert repr(union).startswith("Union(2 graphs as one Graph(5 variables of 2 states")


def test_notebooks_show_results_models_and_tables(crf, examples):
    assert "144 with 2 states" in examples[0].graph._repr_html_()
    assert "264 of 2 variables" in examples[0].graph._repr_html_()
    shown = examples[0]._repr_html_()
    assert "features &#x27;node&#x27;" in shown
    assert f"state 1: {examples[0].labels.sum()}" in shown
    result = crf.infer(examples[0])._repr_html_()
    assert "an upper bound" in result
    assert "144 variables" in result
    assert "iteration 2: objective" in crf._repr_html_()
    assert "not fitted" in pt.CRF({"node": pt.Linear()})._repr_html_()
    shown = Table("a < b", [Column("x", "x"), Column("y", "y", str)], [{"x": "<i>", "y": 1.5}])._repr_html_()
    assert "a &lt; b" in shown
    assert "&lt;i&gt;" in shown
    assert STUDIES["denoising"].tables([])[0]._repr_html_().startswith("<table")


def test_every_iteration_is_logged_and_nothing_printed(examples, caplog, capfd):
    learner = pt.IteratedLogistic(iterations=2, sweeps=1)
    model = pt.CRF({"node": pt.Linear(), "edge": pt.Zero()}, learner)
    with caplog.at_level(logging.INFO, logger="potentia"):
        model.fit(examples)
        pt.LMSBN(alpha=0.1).fit(np.eye(4), np.array([[0, 1], [1, 0], [0, 0], [1, 1]]))
    said = [record.getMessage() for record in caplog.records]
    assert [text.split(",")[0].split(":")[0] for text in said] == ["iteration 1", "iteration 2", "LMSBN"]
    assert "train error" in said[0]
    model.fit(examples)
    assert capfd.readouterr() == ("", "")
