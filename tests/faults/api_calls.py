"""Random calls of the public interface with wrong types, shapes and values, each of which must work or be refused.

A refusal is one line that names an argument: a PotentiaError, TypeError or ValueError.

    python tests/faults/api_calls.py --calls 4000 --seed 1
"""

import argparse
import contextlib
import copy
import re
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import torch

import potentia as pt
from potentia_studies import baselines, bounds
from potentia_studies.public_sets import LabelledImage, image_examples

PATIENCE = 60
HUGE = 2**70
#: What messages call some arguments: parts of x, the sequences of which xseq is one, the loss of a name, weights.
ALSO = {
    "x": "pystruct|regions|features",
    "xseq": "X",
    "name": "loss",
    "rho": "counting number",
    "epsilon": "counting number",
}


class OvertimeError(Exception):
    """A call took too long."""


def junk(rng):
    """A value that fits hardly any argument."""
    made = [
        lambda: None, lambda: 0, lambda: -1, lambda: 3, lambda: 1.5, lambda: np.nan, lambda: np.inf,
        lambda: HUGE, lambda: -HUGE, lambda: True, lambda: "x", lambda: "", lambda: b"x", lambda: (),
        lambda: [], dict, set, lambda: {"node": 1}, lambda: {"node": None}, lambda: {3: [1]}, object,
        lambda: (k for k in range(3)), lambda: range(3), lambda: str, lambda: len, lambda: 1j,
        lambda: np.float32(2), lambda: np.array(2), lambda: np.zeros(0), lambda: np.zeros((0, 2)),
        lambda: np.zeros((2, 2, 2)), lambda: np.array(["a", "b"]), lambda: np.array([None, 1], dtype=object),
        lambda: np.array([1j, 2]), lambda: np.array(["2020-01-01"], dtype="M8[D]"),
        lambda: np.ma.array([1.0, 2.0], mask=[True, False]), lambda: [[1], [2, 3]], lambda: [None, 1],
        lambda: ["a", 1], lambda: [np.nan], lambda: [HUGE], lambda: torch.zeros(2), lambda: Path("x"),
        lambda: slice(2), lambda: pt.Graph.chain(2, n_states=2), lambda: pt.Exact(), lambda: pt.Linear(),
        lambda: [[[]]], lambda: {"node": {"node": 1}}, lambda: memoryview(b"abc"), lambda: Exception("x"),
    ]  # fmt: skip
    return made[rng.integers(len(made))]()


def altered_array(rng, given):
    """An array of another type, shape, layout or with other entries."""
    spoiled = given.astype(float) if given.dtype.kind in "fiub" else given
    if spoiled.size and spoiled.dtype.kind == "f":
        entry = rng.integers(spoiled.size)
        spoiled = spoiled.copy()
        spoiled.reshape(-1)[entry] = [np.nan, np.inf, -np.inf, -7.0, 1e300, 0.5, 2.0**53][rng.integers(7)]
    made = [
        lambda: frozen(given), lambda: given.astype(given.dtype.newbyteorder(">")), lambda: given.T,
        lambda: np.asfortranarray(given), lambda: given[::-1], lambda: given[None], lambda: given[..., None],
        lambda: given[:-1], lambda: given[..., :-1], lambda: given.ravel(), lambda: given[:0],
        lambda: given.astype(object), lambda: given.astype("f4"), lambda: given.astype("f2"),
        lambda: given.astype("i1"), lambda: given.astype("u8"), lambda: given.astype("c16"),
        lambda: given.astype(str), lambda: given.tolist(), lambda: iter(given.tolist()),
        lambda: np.ma.array(given, mask=rng.random(given.shape) < 0.4), lambda: given > 0,
        lambda: np.concatenate([given, given]), lambda: spoiled, lambda: spoiled, lambda: spoiled,
        lambda: np.array([*given.ravel().tolist(), None], dtype=object), lambda: -given.astype("i8") - 1,
        lambda: given.astype("i8") + 1000, lambda: np.full(given.shape, HUGE, dtype=object),
        lambda: torch.from_numpy(np.ascontiguousarray(given)), lambda: tuple(given.tolist()),
        lambda: dict(enumerate(given.tolist())),
    ]  # fmt: skip
    return made[rng.integers(len(made))]()


def frozen(array):
    """A copy that cannot be written to."""
    array = array.copy()
    array.setflags(write=False)
    return array


def altered(rng, given):
    """A good value with something wrong, or junk."""
    if rng.random() < 0.3:
        return junk(rng)
    if isinstance(given, np.ndarray):
        with np.errstate(all="ignore"):
            try:
                return altered_array(rng, given)
            except (TypeError, ValueError, OverflowError):
                return junk(rng)
    if isinstance(given, torch.Tensor):
        found = altered(rng, given.detach().numpy())
        if isinstance(found, np.ndarray) and rng.random() < 0.6:
            try:
                return torch.from_numpy(np.array(found))
            except (TypeError, ValueError):
                return found
        return found
    if isinstance(given, dict) and given:
        found, key = dict(given), list(given)[rng.integers(len(given))]
        how = rng.integers(8)
        if how == 0:
            del found[key]
        elif how == 1:
            found[junk_key(rng)] = junk(rng)
        else:
            found[key] = altered(rng, given[key])
        return found
    if isinstance(given, list | tuple) and given:
        found, at = list(given), rng.integers(len(given))
        how = rng.integers(8)
        if how == 0:
            del found[at]
        elif how == 1:
            return iter(found)
        elif how == 2:
            found.append(junk(rng))
        else:
            found[at] = altered(rng, found[at])
        return tuple(found) if isinstance(given, tuple) else found
    if isinstance(given, bool | int | float) and rng.random() < 0.5:
        return [-given, given + 0.5, given * HUGE, str(given), [given], np.float64(given), np.int8(1)][rng.integers(7)]
    return junk(rng)


def junk_key(rng):
    return ["other", "", 3, None, ("node",), b"node"][rng.integers(6)]


def targets(folder):
    """What is called, by name: a function and its good arguments."""
    rng = np.random.default_rng(0)
    graph = pt.Graph.grid((2, 3), n_states=2)
    node, edge = rng.normal(size=(6, 2)), rng.normal(size=(7, 2, 2))
    theta, y = {"node": node, "edge": edge}, np.array([0, 1, 1, 0, 1, 0])
    features = {"node": rng.normal(size=(6, 3)), "edge": rng.normal(size=(7, 2))}
    example = pt.Example(graph, features, y)
    examples = [example, pt.Example(graph, features, 1 - y)]
    learner = pt.IteratedLogistic(iterations=1, sweeps=1, track_error=False)
    crf = pt.CRF({"node": pt.Linear(), "edge": pt.Constant()}, learner).fit(examples)
    words = [[{"w": w, "n": 0.5} for w in text] for text in ("abc", "ba", "c")]
    tags = [["O", "B-X", "I-X"], ["B-X", "O"], ["O"]]
    chain = pt.ChainCRF(c2=0.1, max_iterations=3).fit(words, tags)
    X, Y = rng.normal(size=(12, 3)), rng.integers(0, 2, (12, 3))
    Y[:2] = [[0, 1, 0], [1, 0, 1]]
    image = rng.integers(0, 255, (6, 7, 3), dtype=np.uint8)
    labels = rng.integers(0, 2, (6, 7))
    marginals = np.full((6, 7, 2), 0.5)
    file = folder / "grid.uai"
    pt.uai.write(file, graph, theta)
    crf.save(folder / "model")
    tensor = {kind: torch.from_numpy(table) for kind, table in theta.items()}
    emissions, told = torch.randn(3, 2, 4, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.int64)
    layer, torch_chain = pt.torch.CRFLayer(graph, pt.TRW(iterations=3)), pt.torch.LinearChain(4)
    result = pt.TRW(iterations=3).infer(graph, theta)
    model = pt.LMSBN(0.1).fit(X, Y)
    calls = {
        "Graph": (
            pt.Graph,
            {
                "n_states": np.full(6, 2),
                "regions": {"node": np.arange(6)[:, None], "edge": np.array(graph.scopes["edge"])},
            },
        ),
        "Graph.chain": (pt.Graph.chain, {"n": 4, "n_states": 2}),
        "Graph.tree": (pt.Graph.tree, {"parents": np.array([-1, 0, 0, 1]), "n_states": 2}),
        "Graph.grid": (pt.Graph.grid, {"shape": (2, 3), "n_states": 2, "neighbours": 4}),
        "Graph.complete": (pt.Graph.complete, {"n": 4, "n_states": np.array([2, 2, 3, 2])}),
        "Graph.from_pystruct": (
            pt.Graph.from_pystruct,
            {"x": (rng.normal(size=(3, 2)), np.array([[0, 1], [1, 2]])), "n_states": 2},
        ),
        "Graph.from_networkx": (pt.Graph.from_networkx, {"network": nx.path_graph(3), "n_states": {0: 2, 1: 3, 2: 2}}),
        "Union": (pt.extend.Union, {"parts": [graph, graph]}),
        "Example": (
            pt.Example,
            {
                "graph": graph,
                "features": features,
                "labels": y,
                "weights": np.ones(6),
                "name": "e",
                "inputs": {"node": np.ones((3, 2))},
            },
        ),
        "DenseGaussian": (
            pt.DenseGaussian,
            {
                "features": rng.normal(size=(6, 2)),
                "weight": 1.0,
                "compatibility": 1 - np.eye(2),
                "normalisation": "symmetric",
            },
        ),
        "indicators_to_labels": (
            pt.multilabel.indicators_to_labels,
            {"graph": graph, "indicators": pt.multilabel.labels_to_indicators(graph, y)},
        ),
        "labels_to_indicators": (pt.multilabel.labels_to_indicators, {"graph": graph, "labels": y}),
        "loss_and_gradient": (
            pt.loss_and_gradient,
            {
                "loss": "univariate_logistic",
                "inference": pt.TRW(iterations=3, tol=0),
                "graph": graph,
                "theta": theta,
                "y": y,
                "gradient": "truncated",
                "weights": np.ones(6),
                "class_weight": [1.0, 2.0],
            },
        ),
        "linear_response": (
            pt.gradients.linear_response,
            {"inference": pt.TRW(iterations=50), "graph": graph, "theta": theta, "pairs": np.array([[0, 1], [0, 5]])},
        ),
        "result.score": (result.score, {"labels": y}),
        "CRF.fit": (
            lambda **given: copy.deepcopy(crf).fit(**given),
            {
                "examples": examples,
                "validation": examples,
                "callback": lambda history: False,
                "progress": False,
                "checkpoint": None,
                "warm_start": False,
            },
        ),
        "CRF": (
            lambda **given: pt.CRF(**given).fit(examples),
            {
                "potentials": {"node": pt.Linear(), "edge": pt.Constant()},
                "learner": learner,
                "inference": pt.TRW(iterations=3),
                "decode": "mpm",
            },
        ),
        "CRF.predict": (crf.predict, {"examples": examples}),
        "CRF.predict_marginals": (crf.predict_marginals, {"examples": examples}),
        "CRF.score": (crf.score, {"examples": examples}),
        "CRF.theta": (crf.theta, {"example": example}),
        "CRF.infer": (crf.infer, {"example": example}),
        "ChainCRF.fit": (
            lambda **given: pt.ChainCRF(max_iterations=2).fit(**given),
            {
                "X": words,
                "y": tags,
                "sample_weight": np.ones(3),
                "checkpoint": None,
                "callback": None,
                "warm_start": False,
            },
        ),
        "ChainCRF": (
            lambda **given: pt.ChainCRF(**given).fit(words, tags),
            {
                "c1": 0.1,
                "c2": 0.1,
                "max_iterations": 2,
                "min_freq": 0.0,
                "scheme": "BIO",
                "delta": 1e-5,
                "decode": "map",
                "threads": 1,
            },
        ),
        "ChainCRF.predict": (chain.predict, {"X": words}),
        "ChainCRF.predict_single": (chain.predict_single, {"xseq": words[0]}),
        "ChainCRF.predict_marginals": (chain.predict_marginals, {"X": words}),
        "ChainCRF.k_best": (chain.k_best, {"X": words, "k": 2}),
        "ChainCRF.score": (chain.score, {"X": words, "y": tags}),
        "error_bound": (bounds.error_bound, {"model": model, "X": X, "y": Y}),
        "likelihood_bound": (bounds.likelihood_bound, {"model": model, "X": X, "y": Y}),
        "features.image_example": (
            pt.features.image_example,
            {"image": image, "labels": labels, "n_states": 2, "node": "filters", "edge": "boundary", "reduce": 1.0},
        ),
        "image_examples": (
            image_examples,
            {"images": [LabelledImage("a", image, labels)], "n_states": 2, "reduce": 0.5},
        ),
        "features.pixel_features": (
            pt.features.pixel_features,
            {"image": image / 255.0, "node": "filters", "size": (3, 4)},
        ),
        "features.edge_features": (
            pt.features.edge_features,
            {"image": image / 255.0, "edges": np.array([[0, 1], [1, 2]]), "edge": "boundary"},
        ),
        "features.filter_bank": (pt.features.filter_bank, {"image": image / 255.0, "scales": (1.0, 2.0), "axes": 2}),
        "features.hog": (pt.features.hog, {"image": image / 255.0}),
        "features.resize": (pt.features.resize, {"image": image / 255.0, "size": (3, 4)}),
        "features.reduce_labels": (pt.features.reduce_labels, {"labels": labels, "size": (3, 4), "n_states": 2}),
        "features.upsample_marginals": (
            pt.features.upsample_marginals,
            {"marginals": marginals.reshape(-1, 2), "size": (6, 7), "full_size": (12, 14)},
        ),
        "features.bilateral": (pt.features.bilateral, {"image": image, "sd_position": 3.0, "sd_colour": 13.0}),
        "features.superpixels": (pt.features.superpixels, {"image": image / 255.0, "n_segments": 5}),
        "features.superpixel_example": (
            pt.features.superpixel_example,
            {"image": image / 255.0, "labels": labels, "n_states": 2, "n_segments": 5},
        ),
        "features.typical_contrast": (
            pt.features.typical_contrast,
            {"image": image / 255.0, "edges": np.array([[0, 1], [1, 2]])},
        ),
        "features.span_scores": (pt.features.span_scores, {"truth": tags, "predicted": tags}),
        "features.Gazetteer": (pt.features.Gazetteer, {"phrases": ["New York", "Rome"]}),
        "features.Gazetteer.mark": (pt.features.Gazetteer(["New York"]).mark, {"words": ["in", "New", "York"]}),
        "features.TokenFeatures": (
            lambda **given: list(pt.features.TokenFeatures(**given).names([["a", "b"]])),
            {"window": 1, "min_count": 1, "spelling": True, "gazetteers": {"g": pt.features.Gazetteer(["a"])}},
        ),
        "segmentation.confusion_matrix": (
            pt.metrics.confusion_matrix,
            {"truth": labels, "predicted": labels, "n_classes": 2},
        ),
        "segmentation.class_scores": (pt.metrics.class_scores, {"confusion": np.eye(2)}),
        "segmentation.mean_iou": (pt.metrics.mean_iou, {"truth": labels, "predicted": labels, "n_classes": 2}),
        "segmentation.boundary_counts": (
            pt.metrics.boundary_counts,
            {"truth": labels, "predicted": labels, "n_classes": 2, "tolerance": 1},
        ),
        "uai.read": (pt.uai.read, {"path": file}),
        "uai.write": (pt.uai.write, {"path": folder / "out.uai", "graph": graph, "theta": theta}),
        "uai.write_result": (pt.uai.write_result, {"path": folder / "out.MAR", "result": result, "task": "MAR"}),
        "load": (pt.load, {"path": folder / "model"}),
        "plot.marginals": (pt.plot.marginals, {"found": np.full((6, 2), 0.5), "shape": (2, 3), "state": 1}),
        "plot.graph": (pt.plot.graph, {"g": graph, "labels": y, "positions": rng.normal(size=(6, 2))}),
        "plot.history": (pt.plot.history, {"model": crf}),
        "plot.potentials": (pt.plot.potentials, {"crf": crf, "examples": examples, "feature": 0}),
        "torch.CRFLayer": (layer, {"theta": tensor}),
        "torch.CRFLayer.loss": (
            layer.loss,
            {
                "theta": tensor,
                "labels": torch.from_numpy(y),
                "name": "univariate_logistic",
                "weights": torch.ones(6),
                "reduction": "mean",
            },
        ),
        "torch.CRFLayer.map": (layer.map, {"theta": tensor}),
        "torch.LinearChain": (
            torch_chain,
            {"emissions": emissions, "tags": told, "mask": torch.ones(3, 2, dtype=torch.bool), "reduction": "sum"},
        ),
        "torch.LinearChain.decode": (
            torch_chain.decode,
            {"emissions": emissions, "mask": torch.ones(3, 2, dtype=torch.bool)},
        ),
        "torch.LinearChain()": (pt.torch.LinearChain, {"num_tags": 3, "tags": ["O", "B-X", "I-X"], "scheme": "BIO"}),
    }
    for method in (
        pt.Exact(),
        pt.TRW(iterations=3),
        pt.LoopyBP(iterations=3),
        pt.MeanField(iterations=3),
        pt.Kikuchi(iterations=3),
        pt.Smoothed(iterations=3),
        pt.LinearProgram(),
        pt.MAP(time_limit=0.5, exact_search=False),
        pt.Gibbs(samples=5, burn_in=2),
    ):
        calls[f"{type(method).__name__}.infer"] = (
            method.infer,
            {"graph": graph, "theta": theta, "observed": {0: 1}, "start": None},
        )
    for cls, options in {
        pt.TRW: {"iterations": 3, "tol": 1e-6, "damping": 0.1, "schedule": "coloured", "seed": 0, "rho": 0.5},
        pt.Smoothed: {"iterations": 3, "epsilon": {"node": 0.1, "edge": 0.2}},
        pt.MeanField: {"iterations": 3, "tol": 1e-6},
        pt.MAP: {"time_limit": 0.5, "seed": 0, "exact_search": False},
        pt.Exact: {},
    }.items():
        calls[cls.__name__] = (lambda cls=cls, **given: cls(**given).infer(graph, theta), options)
    for cls, options in {
        pt.IteratedLogistic: {
            "epsilon": 0.1,
            "iterations": 1,
            "sweeps": 1,
            "tol": 0.1,
            "solver": "auto",
            "class_weight": [1.0, 2.0],
        },
        pt.MarginalRisk: {"loss": "univariate_logistic", "inference": pt.TRW(iterations=2), "iterations": 1},
        pt.MaxMargin: {"iterations": 1, "inference": pt.Exact()},
    }.items():
        calls[cls.__name__] = (
            lambda cls=cls, **given: pt.CRF({"node": pt.Linear(), "edge": pt.Constant()}, cls(**given)).fit(examples),
            options,
        )
    for name in ("Linear", "Boosting", "Constant", "MLP"):
        calls[f"{name}.fit"] = (
            lambda name=name, **given: getattr(pt, name)().fit(**given),
            {"x": X, "y": Y[:, 0], "bias": np.zeros((12, 2)), "weight": np.ones(12), "n_outputs": 2},
        )
    for cls, options in {
        pt.LMSBN: {"alpha": 0.1},
        pt.LMBM: {"alpha": 0.01, "passes": 3},
        baselines.LabelPowerset: {},
        pt.multilabel.IndependentClassifiers: {},
        baselines.ClassifierChain: {},
        baselines.ChainSSVM: {"passes": 2},
    }.items():
        fitted = cls(**options).fit(X, Y)
        calls[f"{cls.__name__}.fit"] = (
            lambda fitted=fitted, **given: copy.deepcopy(fitted).fit(**given),
            {"X": X, "y": Y},
        )
        calls[f"{cls.__name__}.predict"] = (fitted.predict, {"X": X})
        calls[cls.__name__] = (lambda cls=cls, **given: cls(**given).fit(X, Y), options)
    for name in ("exact_match", "hamming_loss", "f_macro"):
        calls[f"metrics.{name}"] = (getattr(pt.metrics, name), {"truth": Y, "predicted": Y, "positive": 1})
    return calls


def named(message, given):
    """Whether a message names one of a call's arguments, or shows the file that it is."""
    words = [*given, *(ALSO[name] for name in given if name in ALSO)]
    files = [str(given[name]) for name in ("path", "checkpoint") if isinstance(given.get(name), str | Path)]
    return any(re.search(rf"\b{word.rstrip('s')}", message, re.IGNORECASE) for word in words) or any(
        name in message for name in files
    )


def outcome(function, given):
    """What came of one call: "works", "refused", or a failure."""
    signal.alarm(PATIENCE)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            function(**given)
        return "works"
    except (TypeError, ValueError) as error:
        text = str(error)
        if "\n" in text or not text or len(text) > 1000:
            return "not one line: " + traceback.format_exc()
        if not named(text, given):
            return "names no argument: " + traceback.format_exc()
        return "refused"
    except BaseException:
        return traceback.format_exc()
    finally:
        signal.alarm(0)
        plt.close("all")


def campaign(calls, seed, only=None):
    """Outcomes of so many calls, and the failures."""
    counts, failures = Counter(), []
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = targets(Path(name))
        names = [key for key in table if table[key][1] and (only is None or only in key)]
        for key in names:
            found = outcome(table[key][0], table[key][1])
            if found != "works":
                failures.append(f"{key} with good arguments: {found}")
        for number in range(calls):
            rng = np.random.default_rng([seed, number])
            key = names[number % len(names)]
            function, good = table[key]
            given = dict(good)
            for argument in rng.choice(list(good), size=min(len(good), rng.choice([1, 1, 2])), replace=False):
                given[argument] = altered(rng, good[argument])
            found = outcome(function, given)
            counts[found if found in ("works", "refused") else "failed"] += 1
            if found not in ("works", "refused"):
                changed = {a: v for a, v in given.items() if v is not good[a]}
                failures.append(f"seed {seed}, call {number}, {key}({changed!r:.300}):\n{found}")
    return counts, failures


def overtime(*_):
    raise OvertimeError


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="calls whose name contains this")
    parser.add_argument("--gigabytes", type=float, default=8.0)
    options = parser.parse_args()
    limit = int(options.gigabytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGALRM, overtime)
    mpl.use("agg")
    counts, failures = campaign(options.calls, options.seed, options.only)
    print("\n".join(failures))
    print(f"{options.calls} calls: {counts['works']} work, {counts['refused']} refused, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
