"""`learners`: which learner labels best, on small tasks of many kinds; the default of `pt.CRF` follows its table."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import ndimage
from scipy.spatial import cKDTree

import potentia as pt
from potentia.app.report.rows import Cell, Column, Row, Table
from potentia.base.types import Floats, Ints
from potentia.features import image_example, superpixel_example

from . import public_sets
from .study import Rows, Study

Sets = tuple[list[pt.Example], list[pt.Example]]


class Task(NamedTuple):
    """A data set and potentials: train and test examples, and what scores variables and pairs."""

    title: str
    load: Callable[[np.random.Generator], Sets]
    node: Callable[[], Any] = pt.Linear
    edge: Callable[[], Any] = pt.Potts


def _disc(rng: np.random.Generator, side: int, noise: float) -> tuple[Floats, Ints]:
    """A grey image of some discs with noise, and where they are."""
    rows, columns = np.indices((side, side))
    labels = np.zeros((side, side), dtype=np.int64)
    for _ in range(3):
        y, x, r = rng.uniform(0, side), rng.uniform(0, side), rng.uniform(side / 8, side / 4)
        labels |= (rows - y) ** 2 + (columns - x) ** 2 < r * r
    return 0.4 + 0.2 * labels + rng.normal(0, noise, labels.shape), labels


def _discs(train: int, side: int, noise: float = 0.35, known: float = 1.0) -> Callable[..., Sets]:
    def load(rng: np.random.Generator) -> Sets:
        found = []
        for number in range(train + 12):
            image, labels = _disc(rng, side, noise)
            if number < train:
                labels = np.where(rng.random(labels.shape) < known, labels, -1)
            found.append(image_example(image, labels, n_states=2, node="filters"))
        return found[:train], found[train:]

    return load


def _denoising(train: int, side: int) -> Callable[..., Sets]:
    def load(rng: np.random.Generator) -> Sets:
        return pt.datasets.denoising(train, (side, side), seed=5), pt.datasets.denoising(10, (side, side), seed=6)

    return load


def _regions(train: int, side: int, n_states: int) -> Callable[..., Sets]:
    """Voronoi cells of several classes, each pixel seen through noise of three channels."""
    colours = np.random.default_rng(1).uniform(0, 1, (n_states, 3))

    def one(rng: np.random.Generator) -> pt.Example:
        centres, own = rng.uniform(0, side, (12, 2)), rng.integers(0, n_states, 12)
        places = np.indices((side, side)).reshape(2, -1).T
        labels = own[cKDTree(centres).query(places)[1]].reshape(side, side)
        image = colours[labels] + rng.normal(0, 0.6, (side, side, 3))
        return image_example(image, labels, n_states=n_states, node="filters")

    return lambda rng: ([one(rng) for _ in range(train)], [one(rng) for _ in range(10)])


def _chains(train: int, nonlinear: bool, known: float = 1.0) -> Callable[..., Sets]:
    """Sensor readings in four modes that last; nonlinear: a mode shows in the length of a vector only."""

    def one(rng: np.random.Generator, share: float) -> pt.Example:
        n = int(rng.integers(30, 60))
        moves = np.where(rng.random(n) < 0.1, rng.integers(0, 4, n), 0)
        labels = np.cumsum(moves) % 4
        centre = labels[:, None] * 0.7 if nonlinear else np.eye(4)[labels] * 1.2
        x = rng.normal(size=(n, 4)) * (0.5 + centre) if nonlinear else centre + rng.normal(size=(n, 4))
        seen = np.where(rng.random(n) < share, labels, -1)
        return pt.Example(pt.Graph.chain(n, n_states=4), {"node": x}, seen)

    return lambda rng: ([one(rng, known) for _ in range(train)], [one(rng, 1.0) for _ in range(60)])


def _network(known: float) -> Callable[..., Sets]:
    """One network of three communities; nodes have weak features, a share of them labels. The others are the test."""

    def load(rng: np.random.Generator) -> Sets:
        n, k = 900, 3
        labels = rng.integers(0, k, n)
        x = np.eye(k)[labels] * 0.7 + rng.normal(size=(n, k))
        first, second = rng.integers(0, n, (2, 14 * n))
        likely = np.where(labels[first] == labels[second], 0.28, 0.07)
        chosen = rng.random(len(first)) < likely
        graph = pt.Graph.from_edges(n, np.stack([first[chosen], second[chosen]], axis=1), n_states=k)
        seen = rng.random(n) < known
        train = pt.Example(graph, {"node": x}, np.where(seen, labels, -1))
        return [train], [pt.Example(graph, {"node": x}, np.where(seen, -1, labels))]

    return load


def _points(train: int, n: int) -> Callable[..., Sets]:
    """Neighbouring points of the plane, whose class is a smooth function of the place; features are noisy."""

    def one(rng: np.random.Generator) -> pt.Example:
        places = rng.uniform(0, 3, (n, 2))
        wave = ndimage.gaussian_filter(rng.normal(size=(60, 60)), 6)
        value = ndimage.map_coordinates(wave / wave.std(), places.T * 20, order=1, mode="nearest")
        labels = np.digitize(value, [-0.6, 0.6])
        x = np.stack([np.cos(2.1 * labels), np.sin(2.1 * labels)], axis=1) + rng.normal(0, 0.9, (n, 2))
        near = cKDTree(places).query(places, k=6)[1][:, 1:]
        edges = np.stack([np.repeat(np.arange(n), 5), near.ravel()], axis=1)
        graph = pt.Graph.from_edges(n, edges, n_states=3)
        ends = places[graph.scopes["edge"]]
        apart = np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1)
        return pt.Example(graph, {"node": x, "edge": np.stack([apart, apart**2], axis=1)}, labels)

    return lambda rng: ([one(rng) for _ in range(train)], [one(rng) for _ in range(10)])


def _superpixels(train: int) -> Callable[..., Sets]:
    """Regions of Weizmann horses."""

    def load(rng: np.random.Generator) -> Sets:
        images = public_sets.horses(split="train", size="quarter")
        chosen = [images[k] for k in rng.permutation(len(images))[: train + 30]]
        found = [
            superpixel_example(image.image, image.labels, n_states=2, n_segments=150, pixel_weights=True)[0]
            for image in chosen
        ]
        return found[:train], found[train:]

    return load


TASKS = {
    "discs": Task("discs, 8 images, linear", _discs(8, 32)),
    "discs-few": Task("discs, 2 images, linear", _discs(2, 32)),
    "discs-hidden": Task("discs, 8 images, 5 % labelled, linear", _discs(8, 32, known=0.05)),
    "discs-mlp": Task("discs, 6 images, MLP", _discs(6, 28), pt.MLP),
    "discs-boosting": Task("discs, 8 images, boosting", _discs(8, 32), pt.Boosting),
    "denoising": Task("noisy pixels and pairs, 6 images, linear pairs", _denoising(6, 40), pt.Linear, pt.Linear),
    "denoising-boosting": Task("the same, boosting, linear pairs", _denoising(6, 40), pt.Boosting, pt.Linear),
    "regions": Task("five classes, 6 images, linear", _regions(6, 28, 5)),
    "regions-one": Task("five classes, 1 image of 64 x 64, linear pairs", _regions(1, 64, 5), pt.Linear, pt.Linear),
    "regions-boosting": Task("five classes, 6 images, boosting", _regions(6, 28, 5), pt.Boosting),
    "chains": Task("chains, 40, linear", _chains(40, False), pt.Linear, pt.Constant),
    "chains-few": Task("chains, 5, half labelled, linear", _chains(5, False, 0.5), pt.Linear, pt.Constant),
    "chains-mlp": Task("chains, 60, MLP", _chains(60, True), pt.MLP, pt.Constant),
    "chains-boosting": Task("chains, 60, boosting", _chains(60, True), pt.Boosting, pt.Constant),
    "network": Task("one network, 20 % labelled, linear", _network(0.2)),
    "network-few": Task("one network, 5 % labelled, linear", _network(0.05)),
    "points": Task("neighbouring points, 4 graphs, linear", _points(4, 400)),
    "points-boosting": Task("neighbouring points, 4 graphs, boosting", _points(4, 400), pt.Boosting),
    "superpixels": Task("superpixels of horses, 30 images, linear", _superpixels(30), pt.Linear, pt.Linear),
}

LEARNERS: dict[str, str] = {
    "accuracy": "`MarginalRisk`",
    "direct": "`IteratedLogistic`, direct",
    "mixed": "mixed",
    "alternating": "alternating",
}


def can_train(task: str, learner: str) -> bool:
    """Whether a learner can train a task's potentials."""
    smooth = TASKS[task].node is not pt.Boosting
    return learner in ("accuracy", "alternating") or (learner == "direct") == smooth


def load(quick: bool, task: str, draw: int) -> Sets:
    """Examples to train and to test on."""
    return TASKS[task].load(np.random.default_rng([draw, list(TASKS).index(task)]))


def run(cell: Cell, sets: Sets) -> Row:
    """Share of wrong test variables, and CPU seconds of the fit."""
    task = TASKS[cell["task"]]
    learner = "accuracy" if cell["learner"] == "accuracy" else pt.IteratedLogistic(
        solver=cell["learner"], track_error=False
    )  # fmt: skip
    crf = pt.CRF({"node": task.node(), "edge": task.edge()}, learner)
    begun = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        crf.fit(sets[0])
    seconds = time.process_time() - begun
    wrong = weight = 0.0
    # nodes that were trained on keep their labels
    observed = [sets[0][0].labels] if cell["task"].startswith("network") else False
    for example, found in zip(sets[1], crf.predict(sets[1], observed=observed), strict=True):
        truth = np.asarray(example.labels)
        own = np.where(truth >= 0, 1.0 if example.weights is None else example.weights, 0.0)
        wrong, weight = wrong + float(own @ (found != truth)), weight + float(own.sum())
    return {"error": round(wrong / weight, 5), "cpu_seconds": round(seconds, 2)}


def tables(rows: Rows) -> list[Table]:
    """Errors by task and learner, means over draws; the last lines are the mean rank and CPU seconds."""
    errors: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        errors.setdefault((row["cell"]["task"], row["cell"]["learner"]), []).append(row["error"])
    mean = {key: float(np.mean(own)) for key, own in errors.items()}
    lines, ranks = [], {name: list[float]() for name in LEARNERS}
    for task, (title, *_) in TASKS.items():
        own = {name: mean[task, name] for name in LEARNERS if (task, name) in mean}
        if own:
            lines.append({"task": title, **{name: f"{error:.4f}" for name, error in own.items()}})
        for name, error in own.items():
            ranks[name].append(0.5 + sum((other < error) + 0.5 * (other == error) for other in own.values()))
    seconds = {name: sum(r["cpu_seconds"] for r in rows if r["cell"]["learner"] == name) for name in LEARNERS}
    fits = {name: sum(r["cell"]["learner"] == name for r in rows) for name in LEARNERS}
    lines.append({"task": "mean rank", **{name: f"{np.mean(own):.2f}" for name, own in ranks.items() if own}})
    lines.append({"task": "CPU seconds of a fit", **{n: f"{seconds[n] / fits[n]:.1f}" for n in LEARNERS if fits[n]}})
    columns = [Column("task", "task"), *(Column(title, name, str) for name, title in LEARNERS.items())]
    return [Table("Error by learner", columns, lines)]


#: Draws of a task: one where draws are equal or fits long, none of tasks that have no rows yet; three otherwise.
DRAWS = {
    "denoising": 1, "denoising-boosting": 1, "discs-mlp": 1, "discs-boosting": 1, "chains-boosting": 2,
    "points-boosting": 2, "regions-boosting": 0, "regions-one": 0, "chains-mlp": 0,
}  # fmt: skip
CELLS = [
    {"task": task, "draw": draw, "learner": learner}
    for task in TASKS
    for draw in range(DRAWS.get(task, 3))
    for learner in LEARNERS
    if can_train(task, learner)
]
STUDY = Study(
    "learners",
    CELLS,
    [cell for cell in CELLS if cell["task"] in ("chains-few", "points")],
    run,
    tables,
    load=load,
    needs=("task", "draw"),
)
