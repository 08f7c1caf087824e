"""A seeded fuzzer of files: whatever a file holds, reading it gives a working object or one sentence.

Models, checkpoints and part files, UAI models and evidence, tokens in columns, tables, result rows and images.

Before the random trials, every array of whole numbers in every file gets entries far outside, which must be refused.

`python tests/faults/fuzz_files.py --trials 10000 --seed 1` prints a table and every failure, and exits with 1 if there
is one. Run it in a process of its own: a crash is a failure, and its memory is limited.
"""

import argparse
import copy
import json
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
import zipfile
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import sparse

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import potentia as pt
import saved_models
from potentia.app.cli import main as main_command
from potentia.app.image_files import read_image, read_mask
from potentia.app.image_pipeline import ImagePipeline
from potentia.app.table_files import read_table
from potentia.base.saving import file_kind, read_file, write_file
from potentia.base.schema import Array
from potentia.features.tokens import conll
from potentia.models.multilabel import base
from potentia_studies import baselines

#: Seconds that a trial may take.
PATIENCE = 30
TEXTS = (".uai", ".evid", ".tsv", ".csv", ".jsonl", ".wcsp", ".cfn", ".bif", ".fg", ".wapiti", ".crfpp", ".template")
BYTES = (".png", ".tif", ".bmp", ".crfsuite")
VALUES = [
    None, True, False, -1, 0, 1, 2, 3, 7, 10**6, 2**31, 2**63, 0.5, -0.5, 1e308, float("nan"), float("inf"), "", "x",
    "all", "rbf", "TRW", "LMSBN", [], [1], [[0]], ["a", "a"], {}, {"a": 1}, {"class": "Exact", "options": {}},
    {"class": "os.system", "options": {}}, {"function": "os.system"}, {"mapping": [[0, 1]]}, {"array": "signs"},
]  # fmt: skip
ENTRIES = [-1, 0, 1, 2, 255, 10**6, 2**31, 2**62, -(2**62), 1e308, float("nan"), float("inf")]
WORDS = [
    "", "-1", "0", "1", "2", "3.5", "nan", "-inf", "1e999", "1" * 5000, "x", '"', ",", "\t", "\0", "\r", "\ufeff", "é",
    "#", "MARKOV", "BAYES", "[" * 3000, '{"cell": {}}', "null", "=1+1", "B-X", "I-X",
]  # fmt: skip
FORMATS = {name: getattr(pt.formats, name) for name in ("wcsp", "cfn", "bif", "fg")}
TEMPLATE = "U00:%x[-1,0]\nU01:%x[0,0]/%x[0,1]\n\nB\n"
CRFPP = (
    "version: 100\ncost-factor: 0.5\nmaxid: 8\nxsize: 2\n\nO\nB-X\n\nU01:%x[0,0]\nB\n\n"
    "0 B\n4 U01:a\n6 U01:b\n\n0.1\n-0.5\n0.25\n1\n2\n-1\n0.5\n0.75\n"
)
#: Arrays of whole numbers that are no indices: values of labels, bytes of texts, counts.
NO_INDEX = re.compile(r"classes/|names$|n_states$|\biterations$")
TYPES = ["f8", "f4", ">f8", "i8", "i4", "u1", "?", "c16", "U3", "S2"]


def places(value, path=()):
    """Every place in a tree of dictionaries and lists."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


def follow(tree, path):
    for key in path:
        tree = tree[key]
    return tree


def change_json(rng, content):
    """Replace, remove, repeat or exchange values."""
    content = json.loads(json.dumps(content, default=lambda value: np.asarray(value).tolist()))
    paths = places(content)
    path = paths[rng.integers(len(paths))]
    holder, key = follow(content, path[:-1]), path[-1]
    how = rng.integers(6)
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[key]))
    elif how == 2:
        holder[key] = copy.deepcopy(follow(content, paths[rng.integers(len(paths))]))
    elif how == 3 and isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
        holder[key] = [holder[key] + 1, holder[key] * 1000, -holder[key], str(holder[key])][rng.integers(4)]
    else:
        holder[key] = copy.deepcopy(VALUES[rng.integers(len(VALUES))])
    return content


def change_array(rng, array):
    """Another type, shape, order or entry."""
    how = rng.integers(9)
    with np.errstate(all="ignore"), suppress(ValueError, TypeError, OverflowError, IndexError):
        if how == 0:
            return array.astype(TYPES[rng.integers(len(TYPES))])
        if how == 1:
            return array[: len(array) // 2]
        if how == 2:
            return np.concatenate([array, array])
        if how == 3:
            return array.T.copy(order="F") if rng.integers(2) else array.reshape(-1)
        if how == 4:
            return array[None]
        if how == 5:
            return array[..., :0]
        changed = array.copy()
        changed.reshape(-1)[rng.integers(array.size)] = ENTRIES[rng.integers(len(ENTRIES))]
        return changed
    return array.reshape(-1)[:0]


def change_content(rng, content, arrays):
    """One to three changes of JSON and arrays."""
    arrays = dict(arrays)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        names = list(arrays)
        how = rng.integers(4) if names else 0
        name, other = (names[rng.integers(len(names))] for _ in range(2)) if names else ("", "")
        if how < 2:
            content = change_json(rng, content) if places(content) else content
        elif how == 2 and rng.integers(2):
            arrays[name], arrays[other] = arrays[other], arrays[name]
        elif how == 2 and rng.integers(2):
            del arrays[name]
        else:
            arrays[name] = change_array(rng, np.asarray(arrays[name]))
    return content, arrays


def repeat_name(rng, source, target):
    """Give two values of a file one name: in its JSON, in its list of arrays, or in the archive."""
    with zipfile.ZipFile(source) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    head, more = json.loads(entries["potentia.json"]), []
    how = rng.integers(3)
    if how == 0 and len(head["arrays"]) > 1:
        one, other = rng.choice(len(head["arrays"]), 2, replace=False)
        head["arrays"][one] = head["arrays"][other]
        entries["potentia.json"] = json.dumps(head).encode()
    elif how == 1 and len(entries) > 1:
        names = list(entries)
        more = [(names[rng.integers(len(names))], entries[names[rng.integers(len(names))]])]
    else:
        holders = [holder for path in [(), *places(head)] if isinstance(holder := follow(head, path), dict)]
        holder = [holder for holder in holders if holder][rng.integers(sum(map(bool, holders)))]
        key = list(holder)[rng.integers(len(holder))]
        holder["twice"] = VALUES[rng.integers(len(VALUES))]
        entries["potentia.json"] = json.dumps(head).replace('"twice"', json.dumps(key)).encode()
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in [*entries.items(), *more]:
            archive.writestr(name, data)


def index_edits(source):
    """Every array of whole numbers in a file with entries far outside, one at a time: its name and the rest."""
    kind = file_kind(source)
    content, arrays = read_file(source, kind)
    for name, array in arrays.items():
        if array.dtype.kind not in "iu" or not array.size or NO_INDEX.search(name):
            continue
        for at in {0, array.size // 2, array.size - 1}:
            for entry in (-2, 5000, 2**40, 2**62):
                if np.iinfo(array.dtype).min <= entry <= np.iinfo(array.dtype).max:
                    changed = array.copy()
                    changed.reshape(-1)[at] = entry
                    yield f"{name}[{at}] = {entry}", (kind, content, arrays | {name: changed})


def declared_indices():
    """Names of the arrays of whole numbers in the schemas of all modules and classes of the library."""
    modules = [module for name, module in sys.modules.items() if name.startswith("potentia.")]
    owners = [thing for module in modules for thing in vars(module).values()]
    schemas = [owner if isinstance(owner, dict) else getattr(owner, "saved", None) for owner in owners]
    fields = [item for schema in schemas if isinstance(schema, dict) for item in schema.items()]
    whole = [name for name, field in fields if isinstance(field, Array) and field.dtype[0] in "iu"]
    return {name for name in whole if not NO_INDEX.search(name)}


def change_text(rng, text):
    """Exchange, remove or repeat words and lines."""
    lines = text.split("\n")
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at, how = rng.integers(len(lines)), rng.integers(5)
        if how == 0 and len(lines) > 1:
            del lines[at]
        elif how == 1:
            lines.insert(at, lines[rng.integers(len(lines))])
        else:
            words = re.split(r"([\s,:\[\]{}]+)", lines[at])
            words[rng.integers(len(words))] = WORDS[rng.integers(len(WORDS))]
            lines[at] = "".join(words)
    return "\n".join(lines)


def damage(rng, path):
    """Cut the file short, or change some of its bytes."""
    data = bytearray(path.read_bytes())
    if rng.integers(2):
        data = data[: rng.integers(len(data))]
    else:
        for _ in range(rng.integers(1, 6)):
            data[rng.integers(len(data))] = rng.integers(256)
    path.write_bytes(data)


def use_model(path):
    """Load a model and predict with it."""
    model = pt.load(path)
    repr(model)
    if isinstance(model, pt.CRF):
        kinds = {*model.potentials_}
        given = next(s for s in (dense(), groups(), saved_models.examples()) if kinds <= {*s[0].features})
        found = model.predict_marginals(given)
        assert len(found) == 3
        model.predict(given)
        if hasattr(model, "calibration_"):
            model.predict_set(given)
    elif isinstance(model, pt.ChainCRF):
        X = chains()[0]
        assert list(map(len, model.predict(X))) == list(map(len, X))
        model.predict_marginals(X)
        model.k_best(X, 2)
        if model.calibration_ is not None:
            model.predict_set(X)
    elif isinstance(model, pt.SegmentCRF):
        assert list(map(len, model.predict(chains()[0]))) == list(map(len, chains()[0]))
        model.predict_marginals(chains()[0])
        model.k_best(chains()[0], 2)
    elif isinstance(model, pt.SequenceLabeller):
        X = readings()[0] if isinstance(model.model_, pt.CRF) else words()[0]
        assert list(map(len, model.predict(X))) == list(map(len, X))
        model.predict_proba(X)
    elif isinstance(model, pt.NodeClassifier):
        X, y, edges = network()
        assert len(model.predict(X, edges)) == len(y)
    elif isinstance(model, ImagePipeline):
        image = discs()[0][0]
        assert model.predict(image).shape == image.shape[:2]
        model.predict_marginals(image)
    elif hasattr(model, "features") and hasattr(model.features, "names"):
        model.predict([[["a", "cat", "the"]]])
    elif hasattr(model, "features"):
        model.predict({"size": ["0.3", None, "-2"], "colour": ["red", "green", "blue"]})
    else:
        X, Y = saved_models.rows()
        assert len(model.predict(X)) == len(X)
        model.decision_function(X)
        if hasattr(model, "labelling_loss"):
            model.labelling_loss(X, Y)
        if model._held_out is not None:
            model.predict_set(X)


def chains():
    """Sequences of tokens, and labels."""
    X = [[{"w": w, "n": 0.5, "v": np.array([k, 1.0])} for k, w in enumerate(s)] for s in ("abc", "ba", "c")]
    return X, [["O", "B-X", "I-X"], ["B-X", "O"], ["O"]]


def readings():
    """Sequences of rows of numbers, and their labels."""
    rng = np.random.default_rng(4)
    y = [rng.integers(0, 3, 6) for _ in range(4)]
    return [np.eye(3)[own] + rng.normal(size=(6, 3)) for own in y], [np.array(["a", "b", "c"])[own] for own in y]


def network():
    """Rows of numbers of the nodes of a ring, their labels and edges."""
    rng = np.random.default_rng(5)
    y = np.repeat([0, 1], 10)
    edges = np.column_stack([np.arange(20), np.arange(1, 21) % 20])
    return np.column_stack([y, y]) + rng.normal(size=(20, 2)), y, edges


def discs():
    """Images and masks."""
    rng = np.random.default_rng(6)
    rows, columns = np.indices((12, 13))
    masks = [((rows - k) ** 2 + (columns - 6) ** 2 < 15) * 7 for k in (4, 6, 7)]
    images = [np.clip(90 + 12 * mask[..., None] + rng.normal(0, 30, (12, 13, 3)), 0, 255) for mask in masks]
    return [image.astype(np.uint8) for image in images], masks


def dense():
    """Small grids with features of the dense term."""
    rng = np.random.default_rng(8)
    graph = pt.Graph([2] * 6, {"node": np.arange(6)[:, None]})
    labels = [rng.integers(0, 2, 6) for _ in range(3)]
    return [
        pt.Example(graph, {"node": y[:, None] + rng.normal(size=(6, 1)), "dense": rng.normal(size=(6, 2))}, y)
        for y in labels
    ]


def groups():
    """Five variables in two groups, whose scores depend on how many are on."""
    rng = np.random.default_rng(9)
    regions = {"node": np.arange(5)[:, None], "group": [[0, 1, 2], [2, 3, 4]]}
    graph, labels = pt.Graph([2] * 5, regions), [rng.integers(0, 2, 5) for _ in range(3)]
    return [
        pt.Example(graph, {"node": y[:, None] + rng.normal(size=(5, 1)), "group": np.ones((2, 1))}, y) for y in labels
    ]


def spans():
    """Sequences of tokens, and their segments."""
    return chains()[0], [[(0, 1, "O"), (1, 3, "X")], [(0, 1, "X")], []]


def make_models(folder):
    """The models of `saved_models`, and those of other classes."""
    saved_models.make(folder)
    X, Y = saved_models.rows()
    pt.LMSBN(0.1).fit(X, Y).calibrate(X, Y).save(folder / "lmsbn-sets")
    pt.SegmentCRF(c2=0.1, scheme="BIO").fit(*chains()).save(folder / "segments")
    pt.ChainCRF(c2=0.1).fit(*chains()).calibrate(*chains()).save(folder / "chain-sets")
    pt.SequenceLabeller("linear").fit(*readings()).save(folder / "readings")
    pt.SequenceLabeller("linear").fit(*words()).save(folder / "words")
    some, y, edges = network()
    pt.NodeClassifier("mlp").fit(some, edges, y).save(folder / "nodes")
    quick = {"node": "linear", "iterations": 5}
    pt.ImageSegmenter(**quick, edge="constant").fit(*discs()).save(folder / "image")
    pt.ImageSegmenter(**quick, superpixels=20).fit(*discs()).save(folder / "superpixels")
    risk = pt.MarginalRisk("univariate_logistic", pt.MeanField(iterations=5, tol=0), iterations=3)
    model = pt.CRF({"node": pt.Linear(), "dense": pt.DenseGaussian()}, risk).fit(dense())
    model.calibrate(dense()).save(folder / "dense")
    factors = {"node": pt.Linear(), "group": pt.factors.Cardinality()}
    pt.CRF(factors, pt.IteratedLogistic(iterations=1)).fit(groups()).save(folder / "groups")
    baselines.ThresholdClassifier(pt.LMSBN(0.1), cv=2).fit(X, Y).save(folder / "thresholds")
    baselines.ChainSSVM(passes=2, tol=1.0).fit(X, Y).save(folder / "ssvm")
    baselines.ClassifierChain().fit(X, Y).save(folder / "chain")
    baselines.LabelPowerset().fit(X, Y).save(folder / "powerset")
    pt.ChainCRF(0.01, scheme="BIO", pair_attributes=["w"]).fit(*chains()).save(folder / "chain-crf")
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures, SplineTransformer, StandardScaler

    pt.LMSBN(0.1, kernel="rbf").fit(sparse.csr_array(X), Y).save(folder / "sparse")
    expanded = make_pipeline(StandardScaler(), SplineTransformer(n_knots=3), PolynomialFeatures(1))
    potentials = {"node": pt.Linear(transformer=expanded), "edge": pt.LightGBM(rounds=2, num_leaves=3)}
    potentials["edge"].params = {"min_data_in_leaf": 2}
    learner = pt.IteratedLogistic(iterations=1)
    pt.CRF(potentials | {"triple": pt.Constant()}, learner).fit(saved_models.examples()).save(folder / "crf-others")


def make_checkpoints(folder):
    """Interrupted fits: name to a function that resumes from a file."""
    X, Y = saved_models.rows()
    fits = {
        "lmsbn": lambda path: pt.LMSBN(0.1).fit(X, Y, checkpoint=path),
        "chain-crf": lambda path: pt.ChainCRF(c2=0.1, max_iterations=4, delta=0.0).fit(*chains(), checkpoint=path),
        "segments": lambda path: pt.SegmentCRF(0.1, max_iterations=4, delta=0.0).fit(*spans(), checkpoint=path),
        "lmbm": lambda path: pt.LMBM(1e-4, passes=200, tol=1e-14).fit(X, Y, checkpoint=path),
    }
    often, base._EVERY = base._EVERY, -1.0
    for name, fit in fits.items():
        fit(folder / name)
    base._EVERY = often
    learners = {
        "iterated": pt.IteratedLogistic(iterations=3, sweeps=2),
        "direct": pt.IteratedLogistic(iterations=3, sweeps=2, solver="direct"),
        "risk": pt.MarginalRisk("univariate_logistic", pt.TRW(iterations=5, tol=0), iterations=3),
        "hidden": pt.IteratedLogistic(iterations=3, sweeps=2, hidden="soft"),
        "warm": pt.MarginalRisk("univariate_logistic", pt.TRW(), iterations=3, gradient="implicit"),
        "gibbs": pt.MarginalRisk("surrogate_likelihood", pt.Gibbs(samples=5, burn_in=2, seed=0), iterations=3),
        "margin": pt.MaxMargin(iterations=3, inference=pt.Exact()),
        "dense": pt.MarginalRisk("univariate_logistic", pt.MeanField(iterations=5, tol=0), iterations=3),
        "slack": pt.MaxMargin(iterations=3, inference=pt.Exact(), solver="one_slack"),
    }
    for name, learner in learners.items():
        fits[name] = partial(fit_crf, learner)
        with suppress(KeyboardInterrupt):
            fit_crf(learner, folder / name, interrupt)
    return fits


def make_data(folder):
    """Files of data: what reads each of them."""
    examples = saved_models.examples()
    rng = np.random.default_rng(0)
    graph = pt.Graph.grid((3, 3), n_states=2)
    theta = {"node": rng.normal(size=(9, 2)), "edge": rng.normal(size=(12, 2, 2))}
    pt.uai.write(folder / "grid.uai", graph, theta)
    (folder / "grid.uai.evid").write_text("2 0 1 4 0\n")
    for name, tool in FORMATS.items():
        net = (graph, theta) if name != "bif" else pt.Graph.from_factors(conditional_tables(rng))
        tool.write(folder / f"grid.{name}", *net)
    pt.ChainCRF().fit(*words()).to_crfsuite(folder / "chain.crfsuite")
    template = pt.features.Template(TEMPLATE)
    pt.ChainCRF(template=template).fit(rows(), words()[1]).to_wapiti(folder / "chain.wapiti")
    (folder / "chain.crfpp").write_text(CRFPP)
    (folder / "words.template").write_text(TEMPLATE)
    (folder / "tokens.tsv").write_text("a X B-P\nb Y I-P\nc X O\n\na Y O\n")
    (folder / "table.csv").write_text('size,"the, colour",label\n0.5,red,1\n-2,"blue ""sky""",0\n,green,1\n')
    row = {
        "cell": {"study": "s", "n": 1},
        "error": 0.25,
        "seconds": 1.5,
        "history": [{"iteration": 1, "objective": 2.0}],
    }
    (folder / "rows.jsonl").write_text("".join(json.dumps(row | {"error": k / 8}) + "\n" for k in range(3)))
    for name in ("image.png", "image.tif", "image.bmp"):
        Image.fromarray(rng.integers(0, 255, (8, 9, 3), dtype=np.uint8)).save(folder / name)
    Image.fromarray(rng.integers(0, 3, (8, 9), dtype=np.uint8)).save(folder / "mask.png")
    for name, some in {"part": examples, "grids": grids()}.items():
        (part,) = pt.write_parts(some, folder / "parts")
        part.rename(folder / f"{name}.potentia")
        (folder / "parts").rmdir()
    return {
        "grid.uai": lambda path: pt.TRW(iterations=3).infer(*pt.uai.read(path)),
        "grid.uai.evid": pt.uai.read_evidence,
        **{f"grid.{name}": partial(use_format, tool) for name, tool in FORMATS.items()},
        "chain.crfsuite": lambda path: use_chain(pt.ChainCRF.from_crfsuite(path), words()[0]),
        "chain.wapiti": lambda path: use_chain(pt.ChainCRF.from_wapiti(path), rows()),
        "chain.crfpp": lambda path: use_chain(pt.ChainCRF.from_crfpp(path), rows()),
        "words.template": use_template,
        "tokens.tsv": conll,
        "table.csv": read_table,
        "rows.jsonl": use_rows,
        "image.png": read_image,
        "image.tif": read_image,
        "image.bmp": read_image,
        "mask.png": read_mask,
        "part.potentia": use_part,
        "grids.potentia": use_part,
    }


def grids():
    """A grid, a triangle and their union, with sparse features."""
    rng = np.random.default_rng(1)
    graphs = [pt.Graph.grid((3, 3), n_states=2, neighbours=8), pt.Graph.complete(3, n_states=2)]
    found = []
    for graph in [*graphs, pt.extend.Union(graphs).graph]:
        features = {kind: sparse.csr_array(rng.normal(size=(len(s), 2))) for kind, s in graph.scopes.items()}
        found.append(pt.Example(graph, features, rng.integers(0, 2, graph.n_variables)))
    return found


def conditional_tables(rng):
    """Log tables of a small Bayesian network."""
    some = [rng.dirichlet(np.ones(2), size) for size in ((), (2,), (2, 2))]
    return [([0], np.log(some[0])), ([0, 1], np.log(some[1])), ([0, 1, 2], np.log(some[2]))]


def use_format(tool, path):
    """Read a model of another tool and infer."""
    model = tool.read(path)
    pt.TRW(iterations=3).infer(model.graph, model.theta)


def words():
    """Sequences of dictionaries of texts, and labels."""
    return [[{"w": w} for w in s] for s in ("abc", "ba", "c")], chains()[1]


def rows():
    """The same as rows of two columns."""
    return [[[w, w.upper()] for w in s] for s in ("abc", "ba", "c")]


def use_chain(model, X):
    """Predict with a model of another tool, and write it again."""
    assert list(map(len, model.predict(X))) == list(map(len, X))
    model.predict_marginals(X)


def use_template(path):
    """Train on a template's features."""
    template = pt.features.Template(path.read_text(errors="replace"))
    pt.ChainCRF(template=template, max_iterations=2, delta=0.0).fit(rows(), words()[1])


def use_rows(path):
    """Read rows and write a report of them."""
    with tempfile.TemporaryDirectory() as name:
        shutil.copy(path, Path(name) / "rows.jsonl")
        code = main_command(["report", name, "--out", str(Path(name) / "page.html"), "--json"])
        assert code in (0, 2)


def use_part(path):
    """Fit on a part; what is called a bound on log Z of its graphs is one."""
    examples = list(pt.parts([path]).sources[0].load())
    for example in examples:
        rng = np.random.default_rng(0)
        if example.graph.n_states.max() > 9:
            continue
        theta = {k: [rng.normal(size=n) for n in example.graph.table_shapes(k)] for k in example.graph.kinds}
        exact = pt.Exact().infer(example.graph, theta).value
        bound = pt.TRW(iterations=200).infer(example.graph, theta)
        assert bound.bound != "upper" or bound.value > exact - 1e-6, (bound.value, exact)
    potentials = {kind: pt.Linear() for kind in (examples[-1].graph.kinds if examples else ["node"])}
    learner = pt.IteratedLogistic(iterations=1, sweeps=1)
    pt.CRF(potentials, learner).fit(pt.parts([path]))


def checkpoint_jobs(path, fit):
    """The files of a checkpoint, and what resumes from them when one was altered."""
    parts = sorted(path.parent.glob(f"{path.name}.*"))

    def resume(altered, changed):
        with tempfile.TemporaryDirectory() as name:
            for file in (path, *parts):
                shutil.copy(altered if file == changed else file, Path(name) / file.name)
            fit(Path(name) / path.name)

    return [(file, partial(resume, changed=file)) for file in (path, *parts)]


def fit_crf(learner, path, callback=None):
    if isinstance(getattr(learner, "inference", None), pt.MeanField):
        potentials, examples = {"node": pt.Linear(), "dense": pt.DenseGaussian()}, dense()
    else:
        potentials, examples = {kind: pt.Linear() for kind in ("node", "edge", "triple")}, saved_models.examples()
    pt.CRF(potentials, learner).fit(examples, checkpoint=path, callback=callback)


def interrupt(history):
    if len(history) == 2:
        raise KeyboardInterrupt


class OvertimeError(Exception):
    """A trial took too long."""


def trial(rng, source, work, use):
    """What came of one altered file: "refused", "works", or a failure's traceback."""
    target = work / f"altered{source.suffix}"
    shutil.copy(source, target)
    repeated = False
    if source.suffix in BYTES or rng.integers(8) == 0:
        damage(rng, target)
    elif source.suffix in TEXTS:
        target.write_text(change_text(rng, source.read_text()), newline="")
    elif rng.integers(10) == 0:
        repeat_name(rng, source, target)
        repeated = True
    else:
        kind = file_kind(source)
        try:
            write_file(target, kind, *change_content(rng, *read_file(source, kind)))
        except ValueError:  # arrays that NumPy's format does not take
            return "not written"
    outcome = outcome_of(target, use)
    return "a repeated name was read" if repeated and outcome == "works" else outcome


def outcome_of(target, use):
    """What came of the use of an altered file, which is deleted."""
    signal.alarm(PATIENCE)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            use(target)
        return "works"
    except pt.PotentiaError as error:
        return "refused" if "\n" not in str(error) else f"more than one line: {error}"
    except BaseException:
        return traceback.format_exc()
    finally:
        signal.alarm(0)
        target.unlink(missing_ok=True)


def campaign(trials, seed, only=""):
    """Outcomes of so many trials, and the failures."""
    counts, failures = Counter(), []
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models, checkpoints, data = (Path(name) / part for part in ("models", "checkpoints", "data"))
        for folder in (models, checkpoints, data):
            folder.mkdir()
        make_models(models)
        fits = make_checkpoints(checkpoints)
        jobs = [(path, use_model) for path in sorted(models.iterdir())]
        jobs += [job for name, fit in fits.items() for job in checkpoint_jobs(checkpoints / name, fit)]
        jobs += [(data / name, use) for name, use in make_data(data).items()]
        for path, use in jobs:
            use(path)
        jobs = [(path, use) for path, use in jobs if re.search(only, str(path.relative_to(name)))]
        edited = set()
        for path, use in jobs:
            for edit, altered in () if path.suffix in (*TEXTS, *BYTES) else index_edits(path):
                write_file(target := Path(name) / f"altered{path.suffix}", *altered)
                outcome = outcome_of(target, use)
                counts[path.parent.name, path.name, "index"] += 1
                edited.add(edit.partition("[")[0])
                if outcome != "refused":
                    failures.append(f"{path.parent.name}/{path.name}, {edit}:\n{outcome}")
        missing = [name for name in declared_indices() if not any(own.endswith(name) for own in edited)]
        failures += [f"no file holds the declared index {name}" for name in missing]
        for number in range(trials):
            path, use = jobs[number % len(jobs)]
            outcome = trial(np.random.default_rng([seed, number]), path, Path(name), use)
            known = outcome in ("works", "refused", "not written")
            counts[path.parent.name, path.name, outcome if known else "failed"] += 1
            if not known:
                failures.append(f"seed {seed}, trial {number}, {path.parent.name}/{path.name}:\n{outcome}")
    return counts, failures


def overtime(*_):
    raise OvertimeError


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a part of the names of the files")
    parser.add_argument("--gigabytes", type=float, default=8.0)
    options = parser.parse_args()
    limit = int(options.gigabytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGALRM, overtime)
    counts, failures = campaign(options.trials, options.seed, options.only)
    for (folder, name, outcome), n in sorted(counts.items()):
        print(f"{folder:12} {name:12} {outcome:12} {n:6}")
    print("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
