"""Small files and wide graphs that ask for much memory get one sentence before it is taken."""

import gzip
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest

import potentia as pt
from potentia.app.table_files import read_table
from potentia.base.saving import read_file, write_file
from potentia.features.tokens import conll
from potentia.learn.part_files import read_part, write_part

NOT_ENOUGH = r"needs about [\d.]+ GB of memory, but 0\.1 GB are available"


@pytest.fixture
def little(monkeypatch):
    """A tenth of a gigabyte."""
    monkeypatch.setenv("POTENTIA_MEMORY", "0.1")


# -- files -----------------------------------------------------------------------------------------------------


def test_a_part_file_of_nested_unions_is_refused(tmp_path):
    path = tmp_path / "part"
    graph = pt.Graph.chain(3, n_states=2)
    write_part(path, [pt.Example(pt.extend.Union([graph, graph]).graph, {})])
    content, arrays = read_file(path, "part")
    assert read_part(path)[0].graph.n_variables == 6
    for _ in range(40):
        content["graphs"].append({**content["graphs"][-1], "parts": [len(content["graphs"]) - 1] * 2})
        arrays = {name: arrays[name] for name in arrays}
        # the file may state what it likes; entries of the union itself are few
        arrays["n_states"] = np.concatenate([arrays["n_states"], arrays["n_states"][-6:]])
        arrays["scopes"] = np.concatenate([arrays["scopes"], arrays["scopes"][-14:]])
    write_file(path, "part", content, arrays)
    with pytest.raises(pt.PotentiaError, match="a union is not that of its graphs"):
        read_part(path)


def test_a_model_that_names_an_array_twice_is_refused(tmp_path):
    crf = pt.CRF({"node": pt.Linear(), "edge": pt.Linear()}, pt.IteratedLogistic(iterations=1))
    with warnings.catch_warnings(action="ignore"):
        crf.fit(pt.datasets.denoising(1, (6, 6), seed=0))
    crf.save(tmp_path / "model")
    content, arrays = read_file(tmp_path / "model", "CRF")
    found = next(meta for meta in content["potentials"].values() if meta["fitted"])
    name = next(name for name, value in found["fitted"].items() if "array" in value)
    found["fitted"] |= {f"again{k}_": found["fitted"][name] for k in range(400)}
    write_file(tmp_path / "model", "CRF", content, arrays)
    with pytest.raises(pt.PotentiaError, match=r"names the array .* twice"):
        pt.load(tmp_path / "model")


def test_marginals_of_one_wide_variable_are_refused(tmp_path, little):
    path = tmp_path / "wide.MAR"
    rows = ["1 1"] * 30_000 + [f"3000 {'0 ' * 2999}1"]
    path.write_text(f"MAR\n{len(rows)} {' '.join(rows)}\n")
    with pytest.raises(pt.PotentiaError, match=NOT_ENOUGH):
        pt.uai.read_result(path)


def test_a_uai_model_of_one_wide_variable_is_refused(tmp_path, little):
    path = tmp_path / "wide.uai"
    n = 30_000
    path.write_text(f"MARKOV\n{n} 3000 {'2 ' * (n - 1)}\n1\n1 1\n2 1 1\n")
    graph, theta = pt.uai.read(path)
    with pytest.raises(pt.PotentiaError, match=NOT_ENOUGH):
        pt.Exact().infer(graph, theta)


@pytest.mark.parametrize(
    ("name", "line", "read"),
    [
        ("m.uai.gz", b"1 " * 100, pt.uai.read),
        ("m.tsv.gz", b"a\tb\n" * 50, conll),
        ("m.csv", b"," * 199 + b"\n", read_table),
    ],
    ids=["uai", "tokens", "csv"],
)
def test_texts_of_many_entries_are_refused(tmp_path, little, name, line, read):
    path = tmp_path / name
    with gzip.open(path, "wb") if name.endswith("gz") else path.open("wb") as file:
        file.write(line * 20_000)
    with pytest.raises(pt.PotentiaError, match=NOT_ENOUGH):
        read(path)


def test_a_table_of_many_columns_is_read(tmp_path):
    path = tmp_path / "t.csv"
    names = [f"c{k}" for k in range(100_000)]
    path.write_text(f"{','.join(names)}\n{',1' * (len(names) - 1)}\n")
    assert list(read_table(path)) == names
    path.write_text(f"{','.join([*names, 'c7'])}\n{',1' * len(names)}\n")
    with pytest.raises(pt.PotentiaError, match="has two columns 'c7'"):
        read_table(path)


@pytest.mark.parametrize(("text", "n"), [("a", 4_000_000), ("a" * 10_000, 40_000)], ids=["rows", "texts"])
def test_a_small_parquet_file_of_many_rows_is_refused(tmp_path, little, text, n):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    one = arrow.DictionaryArray.from_arrays(np.zeros(n, dtype=np.int32), [text])
    parquet.write_table(arrow.table({"a": one}), path)
    assert path.stat().st_size < 100_000
    with pytest.raises(pt.PotentiaError, match=NOT_ENOUGH):
        read_table(path)


def test_a_parquet_file_in_several_batches_is_read_whole(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values = [str(k) for k in range(40_000)]
    parquet.write_table(arrow.table({"a": values, "b": [None] * 40_000}), tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet") == {"a": values, "b": [None] * 40_000}


# -- graphs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [{}, {"edge": pt.Potts(1.0)}], ids=["zero", "potts"])
def test_variables_of_many_states_get_an_estimate(little, theta):
    graph = pt.Graph.chain(2, n_states=70_000 // 10)
    with pytest.raises(pt.PotentiaError, match=f"2 variables of up to 7000 states {NOT_ENOUGH}"):
        pt.TRW().infer(graph, theta)


def test_regions_and_layouts_that_do_not_fit_get_an_estimate(monkeypatch):
    graph = pt.Graph.chain(300_000, n_states=2)
    monkeypatch.setenv("POTENTIA_MEMORY", "0.05")
    with pytest.raises(pt.PotentiaError, match="inference on 300000 variables needs about"):
        pt.TRW().infer(graph, {})


def test_steps_beyond_32_bits_are_refused():
    graph = pt.Graph([2, 50_000, 50_000], {"clique": [[0, 1, 2]]})
    with pytest.raises(pt.PotentiaError, match=r"regions\['clique'\]\[0\] has the shape \(2, 50000, 50000\)"):
        pt.TRW().infer(graph, {})


def test_messages_beyond_32_bits_are_refused(monkeypatch):

    monkeypatch.setenv("POTENTIA_MEMORY", "inf")
    states = np.ones(3001, dtype=np.int64)
    states[0] = 2**21  # a row of messages is as long as the most states
    graph = pt.Graph(states, {"edge": np.stack([np.arange(3000), np.arange(1, 3001)], axis=1)})
    with pytest.raises(pt.PotentiaError, match="too many for one graph"):
        graph.pair_layout("colours")


@pytest.mark.parametrize("model", [pt.LabelNetwork(["linear"]), pt.LMSBN(0.1, kernel="rbf")])
def test_multi_label_fits_state_their_memory_before_work(little, model):
    rng = np.random.default_rng(0)
    with pytest.raises(pt.PotentiaError, match=NOT_ENOUGH):
        model.fit(rng.normal(size=(6000, 2)), rng.random((6000, 100)) < 0.5)


def test_running_out_of_memory_gets_one_sentence():
    """In a process that may take little, with the estimates switched off."""
    program = (
        "import resource, potentia as pt, numpy as np\n"
        "graph = pt.Graph.chain(2, n_states=3)\n"
        "pt.MeanField().infer(graph, {})\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))\n"
        "try:\n"
        "    pt.MeanField().infer(pt.Graph.chain(2, n_states=30_000), {'edge': pt.Potts(1.0)})\n"
        "except pt.PotentiaError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "POTENTIA_MEMORY": "inf"},
    )
    assert done.stdout.startswith("inference needs more memory than there is"), done.stdout + done.stderr
    assert done.stdout.count("\n") == 1
