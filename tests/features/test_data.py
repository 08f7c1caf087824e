"""Examples, synthetic data and the readers of local data sets."""

from __future__ import annotations

import gzip
import pickle
import re

import numpy as np
import pytest
from scipy import sparse

from data_sets import DATA, needs
from potentia.base.types import PotentiaError
from potentia.features import datasets
from potentia.features.attributes import AttributeIndex, flat_features
from potentia.features.example import Example
from potentia.features.tokens import token_spans
from potentia.graph.structure import Graph
from potentia_studies import public_sets
from potentia_studies.public_sets import read_pixels


def refused(message):
    return pytest.raises(PotentiaError, match=message)


# -- Example ---------------------------------------------------------------------------------------------------


@pytest.fixture
def chain():
    return Graph.chain(3, n_states=2)


def test_example_keeps_what_it_is_given_without_copies(chain):
    node, edge = np.ones((3, 4), dtype=np.float32), np.ones((2, 5))
    example = Example(chain, {"node": node, "edge": edge}, [0, -1, 1], [1, 0, 2.5], name="one")
    assert example.graph is chain
    assert example.features["node"] is node
    assert example.features["edge"] is edge
    assert example.labels.dtype == np.int64
    assert example.labels.tolist() == [0, -1, 1]
    assert example.weights.tolist() == [1.0, 0.0, 2.5]
    assert example.name == "one"


def test_example_takes_sparse_features_and_other_numbers(chain):
    csr = sparse.csr_array(np.eye(3, dtype=np.float32))
    example = Example(chain, {"node": csr, "edge": [[1], [2]]})
    assert example.features["node"].dtype == np.float32
    assert np.shares_memory(example.features["node"].data, csr.data)
    assert example.features["edge"].dtype == np.float64
    assert Example(chain, {"node": sparse.coo_array(np.eye(3))}).features["node"].format == "csr"


def test_kinds_labels_and_weights_may_be_left_out(chain):
    example = Example(chain, {"edge": None})
    assert dict(example.features) == {}
    assert example.labels is None
    assert example.weights is None
    assert "no features; no labels" in repr(example)


def test_example_is_frozen_also_after_pickling(chain):
    made = Example(chain, {"node": np.zeros((3, 1))}, [0, 1, 1], [1, 1, 1])
    for example in (made, pickle.loads(pickle.dumps(made))):
        with pytest.raises(AttributeError):
            example.labels = None
        with pytest.raises(TypeError):
            example.features["node"] = None
        with pytest.raises(ValueError, match="read-only"):
            example.labels[0] = 1
        with pytest.raises(ValueError, match="read-only"):
            example.weights[0] = 7


def test_labels_are_a_copy(chain):
    y = np.array([0, 1, 0])
    example = Example(chain, labels=y)
    y[0] = 1
    assert example.labels[0] == 0


def test_repr_says_what_is_there(chain):
    shown = repr(Example(chain, {"node": np.zeros((3, 7))}, [0, -1, 1], [1, 1, 1], "word"))
    assert shown == (
        "Example('word': Graph(3 variables of 2 states; node: 3, edge: 2); node 3 x 7 float64; "
        "labels (2 of 3 known); weights)"
    )


@pytest.mark.parametrize(
    ("features", "labels", "weights", "message"),
    [
        ({"node": np.zeros((4, 1))}, None, None, r"features\['node'\] has 4 rows, but the graph has 3 such regions"),
        ({"node": np.zeros(3)}, None, None, r"features\['node'\] must have shape .* not \(3,\)"),
        ({"node": [[1], [2, 3], [4]]}, None, None, "its rows differ in length"),
        ({"node": [["a"]] * 3}, None, None, "must hold real numbers"),
        ({"node": [[1j]] * 3}, None, None, "must hold real numbers, not complex128"),
        ({"edge": [[0, 1], [2, np.nan]]}, None, None, r"\['edge'\] .* not finite at row 1, column 1"),
        ({"node": sparse.csr_array([[np.inf], [0], [0]])}, None, None, r"\['node'\] .* not finite\.$"),
        ({"pair": [[0]]}, None, None, "features has kind 'pair', but the graph has node, edge"),
        ([[1]], None, None, "features must be a mapping"),
        ({}, [0, 1], None, r"labels has shape \(2,\); the graph needs \(3,\)"),
        ({}, [0, 1, 2], None, r"labels\[2\] = 2 is not a state of variable 2"),
        ({}, None, [1, 1], r"weights has shape \(2,\); the graph needs \(3,\)"),
        ({}, None, [1, -1, 1], r"weights\[1\] = -1.0, but a weight is finite and at least 0"),
        ({}, None, [1, 1, np.nan], r"weights\[2\] = nan"),
        ({}, None, ["a", "b", "c"], "weights must hold real numbers"),
    ],
)
def test_bad_parts_are_refused_in_a_sentence(chain, features, labels, weights, message):
    with refused(message) as caught:
        Example(chain, features, labels, weights)
    assert "\n" not in str(caught.value)


def test_a_graph_comes_first():
    with refused("needs a Graph first, not list"):
        Example([0, 1])


def test_a_bad_value_deep_in_a_large_array_is_found(monkeypatch):
    monkeypatch.setattr("potentia.features.example._PIECE", 16)
    x = np.zeros((50, 3), dtype=np.float32)
    x[43, 2] = np.inf
    with refused("row 43, column 2"):
        Example(Graph.chain(50, n_states=2), {"node": x})


# -- denoising -------------------------------------------------------------------------------------------------


def test_denoising_has_the_papers_shape():
    examples = datasets.denoising()
    assert len(examples) == 16
    first = examples[0]
    assert first.features["node"].shape == (10000, 2)
    assert first.features["edge"].shape == (19800, 2)
    assert all(e.graph is first.graph for e in examples)
    assert np.all(first.features["node"][:, 0] == 1)
    assert np.all(first.features["edge"][:, 0] == 1)


def test_denoising_features_have_the_papers_ranges():
    examples = datasets.denoising(8, (60, 40), seed=3)
    y = np.concatenate([e.labels for e in examples])
    phi = np.concatenate([e.features["node"][:, 1] for e in examples])
    for value, low, high in ((0, 0.0, 0.9), (1, 0.1, 1.0)):
        part = phi[y == value]
        assert low <= part.min() < low + 0.01
        assert high - 0.01 < part.max() <= high
        # the mean of a uniform, to five standard errors
        assert abs(part.mean() - (low + high) / 2) < 5 * 0.9 / np.sqrt(12 * len(part))
    first, second = examples[0].graph.scopes["edge"].T
    cut = np.concatenate([e.labels[first] != e.labels[second] for e in examples])
    pair = np.concatenate([e.features["edge"][:, 1] for e in examples])
    assert pair[~cut].min() < 0.01
    assert 0.79 < pair[~cut].max() <= 0.8
    assert 0.2 <= pair[cut].min() < 0.25
    assert 0.95 < pair[cut].max() <= 1.0


def test_denoising_truth_is_smooth_and_near_balanced():
    examples = datasets.denoising()
    first, second = examples[0].graph.scopes["edge"].T
    y = np.stack([e.labels for e in examples])
    assert 0.35 < y.mean() < 0.65
    assert np.mean(y[:, first] != y[:, second]) < 0.06


def test_denoising_is_seeded_and_begins_the_same_for_fewer_images():
    long, short, other = (
        datasets.denoising(3, (20, 20)),
        datasets.denoising(2, (20, 20)),
        datasets.denoising(1, (20, 20), 1),
    )
    for a, b in zip(long, short, strict=False):
        assert np.array_equal(a.labels, b.labels)
        assert all(np.array_equal(a.features[kind], b.features[kind]) for kind in ("node", "edge"))
    assert not np.array_equal(long[0].features["node"], other[0].features["node"])
    assert not np.array_equal(long[0].features["node"], long[1].features["node"])


def test_denoising_refuses_empty_sizes():
    with refused("n_images must be a whole number >= 1, not 0"):
        datasets.denoising(0)
    with refused(r"size must be a height and a width of at least 1, not \(0, 5\)"):
        datasets.denoising(1, (0, 5))
    with refused(r"not \(5,\)"):
        datasets.denoising(1, (5,))


# -- where data lies -------------------------------------------------------------------------------------------


def test_data_folder_prefers_the_argument_then_the_environment(tmp_path, monkeypatch):
    given, set_in = tmp_path / "given", tmp_path / "set"
    given.mkdir()
    set_in.mkdir()
    monkeypatch.setenv("POTENTIA_DATA", str(set_in))
    assert datasets.data_folder(given) == given
    assert datasets.data_folder() == set_in
    monkeypatch.setenv("POTENTIA_DATA", str(tmp_path / "gone"))
    with refused("POTENTIA_DATA names .*gone, which is not a folder"):
        datasets.data_folder()
    with refused("the folder given names .*nowhere"):
        datasets.data_folder(tmp_path / "nowhere")


def test_no_folder_is_looked_for_and_the_error_says_what_to_set(tmp_path, monkeypatch):
    monkeypatch.delenv("POTENTIA_DATA", raising=False)
    (tmp_path / "shared" / "data").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with refused("pass folder= or set POTENTIA_DATA"):
        datasets.data_folder()


# -- packed images -------------------------------------------------------------------------------------------


def write_horses(folder, **changes):
    """Two tiny images in the packed layout, some arrays replaced (None: left out)."""
    arrays = {
        "pixels": np.arange(30, dtype=np.uint8).reshape(10, 3),
        "labels": np.array([0, 1, 0, 1, 1, 0, 0, 1, 1, 0], dtype=np.uint8),
        "offsets": np.array([0, 6, 10]),
        "shapes": np.array([[2, 3], [2, 2]]),
        "names": np.array(["a", "b"]),
    } | changes
    (folder / "weizmann_horses").mkdir(exist_ok=True)
    path = folder / "weizmann_horses" / "horses_quarter.npz"
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return path


def test_packed_images_are_cut_by_offsets(tmp_path):
    write_horses(tmp_path)
    first, second = public_sets.horses(tmp_path, "all", size="quarter")
    assert (first.name, second.name) == ("a", "b")
    assert np.array_equal(first.image, np.arange(18).reshape(2, 3, 3))
    assert np.array_equal(second.labels, [[0, 1], [1, 0]])
    assert repr(first) == "LabelledImage('a', 2 x 3)"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": None}, "the array 'labels' is missing"),
        ({"offsets": np.array([0, 5, 10])}, "'offsets' do not fit the 'shapes'"),
        ({"shapes": np.array([[2, 3]])}, "'shapes' and 'offsets' do not fit the 2 names"),
        ({"pixels": np.zeros((9, 3), np.uint8)}, "do not hold 10 pixels"),
        ({"pixels": np.zeros((10, 3))}, "do not hold 10 pixels"),
        ({"labels": np.full(10, 2)}, r"'labels' must lie in -1\.\.1"),
        ({"names": np.array(["a", None], dtype=object)}, "not a readable .npz file"),
    ],
)
def test_damaged_packed_files_are_named(tmp_path, changes, message):
    path = write_horses(tmp_path, **changes)
    with refused(re.escape(str(path)) + ".*" + message):
        public_sets.horses(tmp_path)


def test_missing_and_foreign_files_are_named(tmp_path):
    with refused("horses_quarter.npz: there is no such file"):
        public_sets.horses(tmp_path)
    path = write_horses(tmp_path)
    path.write_bytes(b"no archive")
    with refused("horses_quarter.npz: this is not a readable .npz file"):
        public_sets.horses(tmp_path)
    with refused("a.jpg: there is no such file"):
        read_pixels(tmp_path / "a.jpg", "RGB")
    (tmp_path / "a.jpg").write_bytes(b"no image")
    with refused("a.jpg: this is not a readable image"):
        read_pixels(tmp_path / "a.jpg", "RGB")


def test_full_size_images_must_fit_their_labels(tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    write_horses(tmp_path)
    for folder, size, name in (("images", (8, 6), "a.jpg"), ("masks", (8, 6), "a.png"), ("images", (8, 6), "b.jpg")):
        (tmp_path / "weizmann_horses" / folder).mkdir(exist_ok=True)
        image_module.new("RGB", size, "white").save(tmp_path / "weizmann_horses" / folder / name)
    image_module.new("L", (8, 5)).save(tmp_path / "weizmann_horses" / "masks" / "b.png")
    with refused(r"b.png: the labels are \(5, 8\), but the image is \(6, 8\)"):
        public_sets.horses(tmp_path, "all")


def test_options_of_the_loaders_are_checked(tmp_path):
    with refused("split must be one of 'train', 'test', 'all', not 'valid'"):
        public_sets.horses(tmp_path, "valid")
    with refused("size must be one of 'fifth', 'full', not 'half'"):
        public_sets.stanford_backgrounds(tmp_path, size="half")
    with refused("fold must be one of 0, 1, 2, 3, 4, not 5"):
        public_sets.stanford_backgrounds(tmp_path, fold=5)
    with refused("folds must be one of 0, 1, .* not 10"):
        public_sets.letters(tmp_path, 10)
    with refused("noise must be a positive number, not 0"):
        public_sets.berkeley_denoising(tmp_path, noise=0)


def test_labelled_images_are_checked():
    with refused(r"x: image has shape \(2, 2\)"):
        public_sets.LabelledImage("x", np.zeros((2, 2)), np.zeros((2, 2)))
    with refused(r"x: labels has shape \(2, 3\), but the image is \(2, 2\)"):
        public_sets.LabelledImage("x", np.zeros((2, 2, 3)), np.zeros((2, 3)))


# -- token files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".tsv", ".tsv.gz"])
def test_conll_reads_columns(tmp_path, suffix):
    path = tmp_path / f"tokens{suffix}"
    text = "The\tDT\tO\ncafé\tNN\tB\n\n\nOne two\tNN\tO\n"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    assert datasets.conll(path) == [[["The", "café"], ["DT", "NN"], ["O", "B"]], [["One two"], ["NN"], ["O"]]]


def test_conll_reads_columns_between_spaces(tmp_path):
    path = tmp_path / "tokens.txt"
    path.write_text("The DT O\r\ndog NN  B\r\n\r\n", newline="")
    assert datasets.conll(path) == [[["The", "dog"], ["DT", "NN"], ["O", "B"]]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tO\nb\n", "line 2 has 1 columns, the first has 2"),
        (b"\n \n", "the file has no tokens"),
        (b"a\tO\n\xff\xfe\tO\n", "the text is not UTF-8"),
    ],
)
def test_conll_refuses_damaged_text(tmp_path, content, message):
    path = tmp_path / "tokens.tsv"
    path.write_bytes(content)
    with refused(re.escape(f"{path}: ") + message):
        datasets.conll(path)


@pytest.mark.parametrize("separator", ["\t", " "])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", [None, "latin-1", "utf-16"])
def test_spans_of_a_token_file_are_its_sentences(tmp_path, separator, end, encoding):
    rows = ["-DOCSTART- X O", "", "The DT O", "café NN B", " ", "", "One CD O", "-DOCSTART- X O", "two CD B", "", ""]
    text = end.join(row.replace(" ", separator) if row.strip() else row for row in rows * 3)
    path = tmp_path / "tokens.tsv"
    path.write_bytes(text.encode(encoding or "utf-8-sig"))
    for size in (1, 20, 50, 99, len(text) + 1):
        spans = token_spans(path, encoding, size)
        assert (len(spans) > 3) == (size < 50 and encoding != "utf-16")
        for documents in (False, True):
            joined = [sentence for span in spans for sentence in span.sentences(documents)]
            assert joined == datasets.conll(path, encoding=encoding, documents=documents)


def test_errors_in_a_span_name_the_line_of_the_file(tmp_path):
    path = tmp_path / "tokens.tsv"
    path.write_text("a\tO\n\n" * 5 + "b\n")
    with refused(re.escape(f"{path}: ") + "line 11 has 1 columns, the first has 2"):
        token_spans(path, None, 9)[-1].sentences()


def test_conll_refuses_damaged_archives(tmp_path):
    path = tmp_path / "tokens.tsv.gz"
    with refused("there is no such file"):
        datasets.conll(path)
    whole = gzip.compress(b"a\tO\n" * 1000)
    for content in (b"plain text", whole[: len(whole) // 2], whole[:12] + b"\xff" * 8 + whole[20:]):
        path.write_bytes(content)
        with refused("the file cannot be read"):
            datasets.conll(path)


# -- the real sets ---------------------------------------------------------------------------------------------


@needs("weizmann_horses")
def test_horses_are_split_as_the_paper_counts():
    train, test = (public_sets.horses(DATA, part, size="quarter") for part in ("train", "test"))
    assert (len(train), len(test)) == (200, 128)
    assert len({p.name for p in train} | {p.name for p in test}) == 328
    assert [p.name for p in public_sets.horses(DATA, "test", size="quarter")] == [p.name for p in test]
    assert {p.name for p in public_sets.horses(DATA, "test", size="quarter", seed=1)} != {p.name for p in test}
    share = np.mean([np.mean(p.labels == 1) for p in train])
    assert 0.2 < share < 0.3


@needs("weizmann_horses")
def test_quarter_horses_are_reduced_full_ones():
    small = public_sets.horses(DATA, "test", size="quarter")[:3]
    for a, b in zip(small, public_sets.horses(DATA, "test"), strict=False):
        assert a.name == b.name
        assert a.labels.shape == tuple(round(side / 4) for side in b.labels.shape)
        assert set(np.unique(b.labels)) == {0, 1}
        assert abs(a.labels.mean() - b.labels.mean()) < 0.02
        assert abs(a.image.mean() - b.image.mean()) < 2.0


@needs("stanford_background")
def test_stanford_folds_part_the_images():
    every = public_sets.stanford_backgrounds(DATA, "all", size="fifth")
    assert len(every) == 715
    tested = []
    for fold in range(5):
        train, test = (
            public_sets.stanford_backgrounds(DATA, part, size="fifth", fold=fold) for part in ("train", "test")
        )
        assert (len(train), len(test)) == (572, 143)
        assert not {p.name for p in train} & {p.name for p in test}
        tested += [p.name for p in test]
    assert sorted(tested) == [p.name for p in every]
    assert {int(v) for p in every for v in np.unique(p.labels)} == set(range(-1, 8))
    assert public_sets.stanford_backgrounds(DATA, "test", size="fifth")[0].name == every[4].name


@needs("stanford_background")
def test_full_stanford_images_have_the_eight_classes_and_void():
    full = public_sets.stanford_backgrounds(DATA, "test")
    assert full[0].image.dtype == np.uint8
    assert min(p.labels.min() for p in full) == -1
    assert max(p.labels.max() for p in full) == 7
    assert len(public_sets.BACKGROUND_CLASSES) == 8


@needs("bsds_denoise")
def test_berkeley_noise_follows_the_papers_formula():
    train, test = (public_sets.berkeley_denoising(DATA, part, noise=5.0) for part in ("train", "test"))
    assert (len(train), len(test)) == (32, 100)
    assert not {e.name for e in train} & {e.name for e in test}
    example = train[0]
    y, seen = example.labels, example.features["node"][:, 1]
    assert np.all(example.features["node"][:, 0] == 1)
    flipped = np.where(y == 1, 1 - seen, seen)
    # t^n with t uniform has mean 1 / (n + 1)
    assert abs(flipped.mean() - 1 / 6) < 5 * 0.25 / np.sqrt(len(y))
    first, second = example.graph.scopes["edge"].T
    assert np.array_equal(example.features["edge"][:, 0] == 1, second == first + 1)
    assert np.all(example.features["edge"].sum(axis=1) == 1)
    again = public_sets.berkeley_denoising(DATA, "all", noise=5.0)
    same = next(e for e in again if e.name == example.name)
    assert np.array_equal(same.features["node"], example.features["node"])


@needs("letters")
def test_letters_are_chains_of_their_words():
    fold = public_sets.letters(DATA, 0)
    assert len(fold) == 626
    for example in fold[:50]:
        word = example.name.split("-")[0]
        assert "".join(chr(97 + k) for k in example.labels) == word
        assert example.features["node"].shape == (len(word), 128)
    assert len(public_sets.letters(DATA, range(1, 10))) == 6877 - 626
    assert set(np.unique(fold[0].features["node"])) == {0.0, 1.0}


@needs("sequences")
@pytest.mark.parametrize(
    ("name", "n_sentences", "n_tokens", "n_columns"),
    [
        ("conll2000_train", 8936, 211727, 3),
        ("conll2000_test", 2012, 47377, 3),
        ("wnut17_train", 3394, 62730, 2),
        ("wnut17_dev", 1009, 15733, 2),
        ("wnut17_test", 1287, 23394, 2),
        ("ud_ewt_dev", 2001, 25147, 3),
    ],
)
def test_token_files_have_their_published_counts(name, n_sentences, n_tokens, n_columns):
    sentences = datasets.conll(DATA / "sequences" / f"{name}.tsv.gz")
    assert len(sentences) == n_sentences
    assert sum(len(s[0]) for s in sentences) == n_tokens
    assert {len(s) for s in sentences} == {n_columns}


def test_features_in_dictionaries_are_those_of_the_flat_token():
    rng = np.random.default_rng(0)
    values = ["a", "b", True, False, 1, 0, 1.0, 0.0, 2.5, -1, b"x", {"d": True, "e": "f"}, ["g", "h"]]

    def token():
        keys = rng.choice([f"k{k}" for k in range(25)], 3, replace=False).tolist()
        return {key: {str(k): values[rng.integers(len(values))] for k in range(3)} for key in keys} | {"u": "v"}

    X = [[token() for _ in range(4)] for _ in range(40)]
    index, flat = AttributeIndex(), [[flat_features(t) for t in row] for row in X]
    found = [index.learn(X)[0], index.encode(X)[0]]
    names = list(index.numbers)
    assert set(names) == {name for row in flat for token in row for name in token}
    for tokens, zeros in zip(found, (True, False), strict=True):
        value = tokens.value if tokens.value.size else np.ones(len(tokens.attribute))
        ptr = tokens.item_ptr
        for t, expected in enumerate(token for row in flat for token in row):
            items = zip(tokens.attribute[ptr[t] : ptr[t + 1]], value[ptr[t] : ptr[t + 1]], strict=True)
            # the number after the last is that of no attribute
            own = {names[k]: v for k, v in items if k < len(names)}
            assert own == {name: v for name, v in expected.items() if zeros or v != 0}
    with pytest.raises(PotentiaError, match="names must be texts"):
        index.encode([[{"k1": {5: "a"}}]])
