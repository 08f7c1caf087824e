"""Files that state false indices, facts or names are refused, and a checkpoint has one user at a time."""

import multiprocessing
import warnings
import zipfile
from dataclasses import replace

import numpy as np
import pytest

import potentia as pt
import saved_models
from potentia.base.saving import file_kind, read_file, write_file
from potentia.base.schema import Array
from potentia.gradients.base import check_starts
from potentia.learn.checkpoint import Checkpoint

pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")


def triangle():
    graph = pt.Graph.complete(3, n_states=2)
    features = {kind: np.ones((len(scope), 1)) for kind, scope in graph.scopes.items()}
    return pt.Example(graph, features, [0, 1, 1])


def fit(learner, path, examples=None, callback=None):
    potentials = {kind: pt.Linear() for kind in ("node", "edge", "triple")}
    return pt.CRF(potentials, learner).fit(
        saved_models.examples() if examples is None else examples, checkpoint=path, callback=callback
    )


def rewrite(path, change):
    """Change the content and arrays of a file in place."""
    kind = file_kind(path)
    content, arrays = read_file(path, kind)
    write_file(path, kind, content, change(content, arrays) or arrays)


def parameters(crf):
    return np.concatenate([p.parameters for p in crf.potentials_.values()])


# -- indices -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [-2, 5000, 2**40])
def test_a_labelling_outside_the_examples_is_refused(entry, tmp_path):
    path = tmp_path / "state"
    fit(pt.MaxMargin(iterations=2, inference=pt.Exact()), path)

    def damage(content, arrays):
        arrays["arrays/set_entry"][3] = entry

    rewrite(path, damage)
    with pytest.raises(pt.PotentiaError, match=rf"set_entry holds {entry}, which is .*; delete it"):
        fit(pt.MaxMargin(iterations=4, inference=pt.Exact()), path)


def test_a_labelling_of_another_region_is_refused(tmp_path):
    path = tmp_path / "state"
    fit(pt.MaxMargin(iterations=2, inference=pt.Exact()), path)

    def damage(content, arrays):
        arrays["arrays/set_entry"][[0, 1]] = arrays["arrays/set_entry"][[1, 0]]

    rewrite(path, damage)
    with pytest.raises(pt.PotentiaError, match="labellings are not those of the examples"):
        fit(pt.MaxMargin(iterations=4, inference=pt.Exact()), path)


@pytest.mark.parametrize(
    ("learner", "key"),
    [
        (pt.MaxMargin(iterations=2, inference=pt.Exact()), "gap"),
        (pt.MaxMargin(iterations=2, inference=pt.Exact(), solver="one_slack"), "gap"),
        (pt.MarginalRisk(iterations=2), "examples"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
@pytest.mark.parametrize("wrong", [None, "text"])
def test_rows_of_a_history_have_what_convergence_is_judged_by(learner, key, wrong, tmp_path):
    path = tmp_path / "state"
    fit(learner, path)

    def damage(content, arrays):
        for row in content["history"]:
            del row[key]
            row.update({} if wrong is None else {key: wrong})

    rewrite(path, damage)
    with pytest.raises(pt.PotentiaError, match=r"damaged .* delete it|a fit in other stages"):
        fit(replace(learner, iterations=4), path)


@pytest.mark.parametrize("label", [-1, 2, 2**40])
def test_labels_of_saved_chains_are_states(label):
    graph, theta = pt.Graph.chain(3, n_states=2), {"node": np.zeros((3, 2)), "edge": None}
    result = pt.Gibbs(samples=5, burn_in=2, seed=0).infer(graph, theta)
    starts = {"free/iterations": np.array([5]), "free/messages": result.messages.copy()}
    assert check_starts(graph, starts).keys() == starts.keys()
    starts["free/messages"][0, 1] = label
    with pytest.raises(pt.PotentiaError, match=f"free/messages holds {label}"):
        check_starts(graph, starts)


def test_an_array_of_whole_numbers_declares_its_bounds():
    for options in ({}, {"low": 0}, {"below": 3}):
        with pytest.raises(TypeError, match="declares low and below, or ends"):
            Array("i4 i8", ("n",), **options)


# -- facts -------------------------------------------------------------------------------------------------------


def test_a_part_cannot_state_forests_that_do_not_cover_its_graph(tmp_path):
    (path,) = pt.write_parts([triangle()], tmp_path)
    rewrite(path, lambda content, arrays: content["graphs"][0].update(forests=1))
    with pytest.raises(pt.PotentiaError, match="1 forests do not cover the graph"):
        pt.parts([path]).sources[0].load()


@pytest.mark.parametrize("forests", [2, 3, 100])
def test_stated_forests_that_cover_a_graph_give_a_bound(forests, tmp_path):
    (path,) = pt.write_parts([triangle()], tmp_path)
    rewrite(path, lambda content, arrays: content["graphs"][0].update(forests=forests))
    graph = pt.parts([path]).sources[0].load()[0].graph
    theta = {"node": np.random.default_rng(0).normal(size=(3, 2)), "edge": 2.0 * np.eye(2)}
    bound = pt.TRW(iterations=500).infer(graph, theta)
    assert bound.bound == "upper"
    assert bound.value > pt.Exact().infer(graph, theta).value


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (2, 2), (5, 2), (4, 5), (2, 2, 3)])
def test_a_grid_keeps_its_forests_in_a_part(shape, tmp_path):
    for number, neighbours in enumerate([2 * len(shape), 3 ** len(shape) - 1]):
        graph = pt.Graph.grid(shape, n_states=2, neighbours=neighbours)
        features = {kind: np.ones((len(scope), 1)) for kind, scope in graph.scopes.items()}
        example = pt.Example(graph, features, np.zeros(graph.n_variables, int))
        (path,) = pt.write_parts([example], tmp_path / str(number))
        assert pt.parts([path]).sources[0].load()[0].graph.digest == graph.digest


def test_a_part_of_other_examples_is_known_whatever_it_states(tmp_path):
    (path,) = pt.write_parts([triangle()], tmp_path)
    before = pt.parts([path]).sources[0].digest()
    rewrite(path, lambda content, arrays: {**arrays, "labels": 1 - arrays["labels"]})
    assert pt.parts([path]).sources[0].digest() != before


def test_a_union_is_that_of_its_graphs(tmp_path):
    graph = pt.extend.Union([triangle().graph] * 2).graph
    features = {kind: np.ones((len(scope), 1)) for kind, scope in graph.scopes.items()}
    (path,) = pt.write_parts([pt.Example(graph, features, [0] * 6)], tmp_path)
    assert pt.parts([path]).sources[0].load()[0].graph.digest == graph.digest
    rewrite(path, lambda content, arrays: content["graphs"][1].update(parts=[0, 0, 0]))
    with pytest.raises(pt.PotentiaError, match="a union is not that of its graphs"):
        pt.parts([path]).sources[0].load()


# -- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["json", "arrays", "archive"])
def test_a_name_that_occurs_twice_is_refused(where, tmp_path):
    path = tmp_path / "file"
    write_file(path, "thing", {"a": 1, "b": 2}, {"x": np.zeros(2), "y": np.ones(2)})
    with zipfile.ZipFile(path) as archive:
        entries = [(name, archive.read(name)) for name in archive.namelist()]
    text = entries[0][1].decode()
    if where == "json":
        entries[0] = entries[0][0], text.replace('"b"', '"a"').encode()
    elif where == "arrays":
        entries[0] = entries[0][0], text.replace('"y"', '"x"').encode()
    else:
        entries.append(entries[1])
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for entry in entries:
            archive.writestr(*entry)
    with pytest.raises(pt.PotentiaError, match=r"file: the file is damaged: it holds '.*' twice"):
        read_file(path, "thing")


# -- resuming ----------------------------------------------------------------------------------------------------


def test_hidden_labels_of_regions_of_order_three_resume(tmp_path):
    examples = [
        pt.Example(e.graph, e.features, [-1, *e.labels[1:4], -1], np.linspace(0.5, 1.5, 5))
        for e in saved_models.examples()
    ]
    make = lambda: pt.IteratedLogistic(iterations=6, tol=0, hidden="soft")  # noqa: E731
    whole = fit(make(), None, examples)

    def interrupt(history):
        if len(history) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(make(), tmp_path / "state", examples, interrupt)
    resumed = fit(make(), tmp_path / "state", examples)
    assert np.array_equal(parameters(resumed), parameters(whole))


# -- one user ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "again",
    [
        lambda path: fit(pt.IteratedLogistic(iterations=2), path),
        lambda path: pt.LMSBN(0.1).fit(*saved_models.rows(), checkpoint=path),
        lambda path: pt.ChainCRF().fit([[{"a": 1.0}]], [["x"]], checkpoint=path),
    ],
)
def test_a_second_fit_on_a_checkpoint_is_refused_until_the_first_has_ended(again, tmp_path):
    path = tmp_path / "state"
    with Checkpoint(path), pytest.raises(pt.PotentiaError, match="state is in use by another fit; wait"):
        again(path)
    again(path)
    assert not [p.name for p in tmp_path.iterdir() if p.name.endswith(".lock")]


def _hold(path, ready):
    with Checkpoint(path):
        ready.send(True)
        ready.recv()


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path):
    path = tmp_path / "state"
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_hold, args=(path, theirs))
    process.start()
    theirs.close()
    ours.recv()
    with pytest.raises(pt.PotentiaError, match="in use by another fit"):
        fit(pt.IteratedLogistic(iterations=2), path)
    process.kill()
    process.join()
    fit(pt.IteratedLogistic(iterations=2), path)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
