"""Data sets in part files: what is written is read, and fits out of core are those in memory to the last bit."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

import potentia as pt
from learners import LEARNERS, digest, hidden, ilr, weighted
from potentia import Constant, Example, Linear
from potentia.base.saving import read_file, write_file
from potentia.learn import part as shards
from potentia.learn import part_files
from sample_images import noisy

pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")  # fits are cut short

#: Table entries of a part of two images of 6 x 8.
TWO_IMAGES = 2 * (48 * 2 + 82 * 4)


def few_entries(rng, n_rows, share):
    """A sparse matrix of six columns in which this share of the entries is not zero."""
    return sparse.csr_array(rng.random((n_rows, 6)) * (rng.random((n_rows, 6)) < share))


def mixed_examples():
    """Chains, grids, a union; dense, float32 and sparse features; hidden labels, weights, names, none of them."""
    rng = np.random.default_rng(3)
    chain, grid = pt.Graph.chain(5, n_states=3), pt.Graph.grid((3, 4), n_states=2)
    both = pt.extend.Union([grid, grid]).graph
    bare = pt.Graph([2, 3], {"node": [[0]], "pair": [[0, 1]], "none": np.zeros((0, 2), int)})
    return [
        Example(chain, {"node": rng.normal(size=(5, 2)), "edge": few_entries(rng, 4, 0.1)}),
        Example(grid, {"node": rng.normal(size=(12, 4)).astype(np.float32)}, np.arange(12) % 2, name="a"),
        Example(grid, {"edge": few_entries(rng, 17, 0.5)}, np.arange(12) % 3 - 1),
        Example(both, {"node": rng.normal(size=(24, 2))}, weights=rng.uniform(0, 1, 24)),
        Example(bare, {}, [1, 2], [0.5, 0.0], inputs={"node": rng.integers(9, size=(2, 3), dtype=np.uint8)}),
    ]


def test_what_is_written_is_read(tmp_path):
    examples = mixed_examples()
    paths = pt.write_parts(iter(examples), tmp_path / "new" / "folder", part_entries=150)
    assert len(paths) > 1
    found = [example for part in pt.parts(tmp_path / "new" / "folder") for example in part]
    for a, b in zip(examples, found, strict=True):
        assert (a.graph.digest, a.name, list(a.features)) == (b.graph.digest, b.name, list(b.features))
        assert a.graph.n_forests == b.graph.n_forests
        for kind, x in a.features.items():
            assert b.features[kind].dtype == x.dtype
            assert sparse.issparse(b.features[kind]) == sparse.issparse(x)
            whole = [m.toarray() if sparse.issparse(m) else m for m in (x, b.features[kind])]
            np.testing.assert_array_equal(*whole)
        assert list(a.inputs) == list(b.inputs)
        for kind, array in a.inputs.items():
            assert b.inputs[kind].dtype == array.dtype
            np.testing.assert_array_equal(b.inputs[kind], array)
        for name in ("labels", "weights"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    with pytest.raises(pt.PotentiaError, match="already holds part files"):
        pt.write_parts(examples, tmp_path / "new" / "folder")


def test_arrays_begin_at_multiples_of_64_bytes(tmp_path):
    values = np.arange(7, dtype=np.float32) * np.pi
    write_file(tmp_path / "f", "thing", {}, {"a": np.arange(3), "b": values, "c": np.zeros((0, 2))})
    assert (tmp_path / "f").read_bytes().index(values.tobytes()) % 64 == 0
    np.testing.assert_array_equal(read_file(tmp_path / "f", "thing")[1]["b"], values)


def test_damaged_part_files_get_one_sentence(tmp_path):
    (path,) = pt.write_parts(mixed_examples(), tmp_path)
    content, arrays = read_file(path, part_files.KIND)
    broken = [
        ({**content, "graphs": [{**content["graphs"][0], "n_variables": 10**9}]}, arrays),
        ({**content, "examples": [{**content["examples"][0], "graph": 7}]}, arrays),
        ({**content, "examples": [{**content["examples"][0], "features": {"node": 99}}]}, arrays),
        ({**content, "examples": [content["examples"][0]] * 50}, arrays),
        ({**content, "examples": [{**content["examples"][0], "inputs": {"node": 3}}]}, arrays),
        (content, {**arrays, "labels": arrays["labels"][:5]}),
        (content, {**arrays, "labels": arrays["labels"] + 9}),
        (content, {**arrays, "scopes": arrays["scopes"] - 50}),
        (content, {**arrays, "matrix1/columns": arrays["matrix1/columns"] + 6}),
        (content, {**arrays, "matrix1/offsets": arrays["matrix1/offsets"][::-1]}),
        (content, {**arrays, "matrix0/values": arrays["matrix0/values"] * np.nan}),
        ({**content, "matrices": [{"sparse": False, "columns": 3}]}, arrays),
    ]
    for number, (meta, values) in enumerate(broken):
        other = tmp_path / f"broken{number}"
        write_file(other, part_files.KIND, meta, values)
        with pytest.raises(pt.PotentiaError, match=f"broken{number}"):
            part_files.read_part(other)
    flipped = bytearray(path.read_bytes())
    flipped[flipped.index(arrays["matrix0/values"].tobytes())] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(pt.PotentiaError, match="damaged"):
        part_files.read_part(path)


def files_of(examples, folder):
    pt.write_parts(examples, folder, part_entries=TWO_IMAGES)
    return pt.parts(folder)


NAMES = [name for name in LEARNERS if name != "margin"]


@pytest.mark.parametrize("name", NAMES)
def test_a_fit_out_of_core_has_the_bits_of_one_in_memory(name, tmp_path):
    case, examples = LEARNERS[name], LEARNERS[name].examples()
    held = pt.parts(examples, part_entries=TWO_IMAGES)
    files = files_of(examples, tmp_path / "data")
    files.resident = 2 if name == "alternating" else 1
    assert len(held) == len(files) == 3
    a, b = case.crf().fit(held), case.crf().fit(files)
    assert digest(a) == digest(b)
    for row, other in zip(a.history_, b.history_, strict=True):
        assert {k: v for k, v in row.items() if k != "seconds"} == {k: v for k, v in other.items() if k != "seconds"}
    assert a.score(examples) == b.score(files)
    for x, y in zip(a.predict_marginals(held), b.predict_marginals(files), strict=True):
        np.testing.assert_array_equal(x, y)
    for x, y in zip(a.predict(held), b.predict(files), strict=True):
        np.testing.assert_array_equal(x, y)


def test_predictions_are_written_part_by_part(tmp_path):
    examples = noisy(5, (6, 8))
    crf = LEARNERS["alternating"].crf().fit(examples)
    files = files_of(examples, tmp_path / "data")
    for data in (files, pt.parts(examples, part_entries=TWO_IMAGES)):
        for predict in (crf.predict, crf.predict_marginals):
            paths = predict(data, out=tmp_path / "out" / predict.__name__)
            assert [path.name for path in paths] == [f"predictions-0000{k}.npz" for k in range(3)]
            found = [array for path in paths for array in np.load(path).values()]
            for a, b in zip(found, predict(data), strict=True):
                np.testing.assert_array_equal(a, b)


def test_float32_sparse_class_weights_and_loaders_out_of_core(tmp_path):
    examples = [
        Example(
            e.graph,
            {"node": sparse.csr_array(e.features["node"]), "edge": e.features["edge"].astype(np.float32)},
            e.labels,
            e.weights,
        )
        for e in hidden(noisy(6, (6, 8)))
    ]
    learner = ilr(solver="alternating", class_weight=[1.0, 2.0])
    potentials = {"node": Linear(), "edge": Linear()}
    held = pt.parts(examples, part_entries=TWO_IMAGES)
    paths = pt.write_parts(examples[:4], tmp_path, part_entries=TWO_IMAGES)
    files = pt.parts([*paths, lambda: iter(examples[4:])])
    fits = [pt.CRF(potentials, learner).fit(data, validation=data) for data in (held, files)]
    assert digest(fits[0]) == digest(fits[1])
    with pytest.raises(pt.PotentiaError, match="class_weight must hold 2 finite numbers"):
        pt.CRF(potentials, replace(learner, class_weight=[1.0, 2.0, 3.0])).fit(files)


def test_three_variables_and_unlabelled_parts_out_of_core(tmp_path):
    """Regions of three variables keep other messages; a part without labels takes no part."""
    rng = np.random.default_rng(1)
    graph = pt.Graph(np.full(6, 2), {"edge": [[0, 1], [1, 2], [3, 4]], "triple": [[0, 1, 2], [2, 3, 4], [3, 4, 5]]})
    examples = [
        Example(
            graph,
            {"edge": rng.normal(size=(3, 2)), "triple": rng.normal(size=(3, 2))},
            np.full(6, -1) if k == 2 else rng.integers(2, size=6),
        )
        for k in range(4)
    ]
    potentials = {"edge": Linear(), "triple": Constant()}
    for solver in ("alternating", "direct"):
        learner = ilr(solver=solver)
        held = pt.parts(examples, part_entries=1)
        pt.write_parts(examples, tmp_path / solver, part_entries=1)
        a = pt.CRF(potentials, learner).fit(held)
        b = pt.CRF(potentials, learner).fit(pt.parts(tmp_path / solver))
        assert digest(a) == digest(b)


@pytest.mark.parametrize("name", ["mixed", "drawn", "mlp"])
def test_one_part_that_is_read_when_visited_is_drawn_from(name, tmp_path):
    examples = noisy(3, (6, 8))
    pt.write_parts(examples, tmp_path)
    a, b = (LEARNERS[name].crf().fit(data) for data in (examples, pt.parts(tmp_path)))
    assert digest(a) == digest(b)


def test_a_checkpoint_of_parts_resumes_in_memory_and_out_of_core(tmp_path):
    crf, examples = LEARNERS["alternating"].crf, weighted(noisy(5, (6, 8)))
    files = files_of(examples, tmp_path / "data")
    straight = crf().fit(files)
    path = tmp_path / "state"
    crf().fit(files, checkpoint=path, callback=lambda history: len(history) == 2)
    resumed = crf().fit(pt.parts(examples, part_entries=TWO_IMAGES), checkpoint=path)
    assert digest(resumed) == digest(straight)
    with pytest.raises(pt.PotentiaError, match="other options or data"):
        crf().fit(files_of(examples[:4], tmp_path / "other"), checkpoint=path)


def test_parts_that_cannot_be_used_get_one_sentence(tmp_path):
    crf = LEARNERS["alternating"].crf()
    good = noisy(2)

    def fails():
        raise ValueError("no such disk")

    cases = [
        (lambda: pt.parts([]), "there are no parts"),
        (lambda: pt.parts(tmp_path), "holds no files named"),
        (lambda: pt.parts([3]), "must be a path, a function that returns examples or an Example, not a int"),
        (lambda: pt.parts([fails], part_entries=5), "part_entries cuts examples given as such"),
        (lambda: pt.parts(good, resident=0), "resident"),
        (lambda: crf.fit(pt.parts([fails])), r"the loader .*fails raised ValueError: no such disk"),
        (lambda: crf.fit(pt.parts([lambda: [3]])), "returned a int as item 0, not an Example"),
        (lambda: crf.fit(pt.parts([lambda: 3])), "must return a list of Example, not one int"),
        (lambda: crf.fit(pt.parts([lambda: []])), "there are no examples"),
        (lambda: crf.fit(pt.parts(["nowhere.potentia"])), "nowhere.potentia does not exist"),
        (lambda: crf.fit(pt.parts([lambda: noisy(1), lambda: bare(good)])), "example 1 of .* has no labels"),
        (lambda: pt.CRF(crf.potentials, pt.MaxMargin()).fit(pt.parts(good)), "take solver='one_slack'"),
    ]
    for call, message in cases:
        with pytest.raises(pt.PotentiaError, match=message):
            call()


def bare(examples):
    return [examples[0], Example(examples[1].graph, examples[1].features)]


def test_state_files_are_deleted(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    seen = []

    def look(history):
        seen.append([len(list(folder.iterdir())) for folder in (tmp_path / "temporary").iterdir()])

    LEARNERS["direct"].crf().fit(files_of(noisy(4, (6, 8)), tmp_path / "data"), callback=look)
    assert all(len(folders) == 1 for folders in seen)
    assert max(files for (files,) in seen) <= 4  # two parts, each with the state of the last step and of this one
    assert not list((tmp_path / "temporary").iterdir())


def test_equal_graphs_of_parts_share_one_layout_out_of_core(tmp_path, monkeypatch):
    built = []
    original = shards.Union
    monkeypatch.setattr(shards, "Union", lambda graphs: built.append(1) or original(graphs))
    files = files_of(noisy(6, (6, 8)), tmp_path)
    LEARNERS["alternating"].crf().fit(files)
    assert len(built) <= 1  # none if an earlier one is still in memory


MEMORY = """
import resource, sys
import numpy as np
import potentia as pt

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

def images(n, columns):
    rng = np.random.default_rng(0)
    graph = pt.Graph.grid((40, 40), n_states=2)
    for _ in range(n):
        y = rng.integers(2, size=1600)
        node = rng.normal(size=(1600, columns)).astype(np.float32)
        node[:, 0] += y
        yield pt.Example(graph, {"node": node}, y)

learner = pt.IteratedLogistic(iterations=1, sweeps=2, solver="alternating")
crf = pt.CRF({"node": pt.Linear(max_iter=2), "edge": pt.Constant(max_iter=2)}, learner)
crf.fit(list(images(1, 400)))  # compiles, and takes what every fit takes
before = peak()
pt.write_parts(images(32, 400), sys.argv[1], part_entries=1)
files = pt.parts(sys.argv[1], resident=4)
crf.fit(files)
crf.score(files)
data = sum(s.n_bytes() for s in files.sources) / 2**20
limit = 4 * data / len(files)
print(data, limit, peak() - before)
"""


def test_memory_is_bounded_by_the_parts_in_flight(tmp_path):
    """Data of eight times the memory of the parts in flight: the fit takes that and a constant."""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", MEMORY, str(tmp_path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    data, limit, taken = map(float, run.stdout.split())
    assert data >= 5 * limit
    assert taken <= limit + 40
