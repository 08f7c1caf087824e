"""The stages of training on images: a classifier of pixels, and examples for pairs of its out-of-fold predictions.

Pairs are trained on predictions by models that did not see an image: on images that it was fitted to, a boosted
classifier looks nearly perfect, and pairs would learn that it needs no help.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..base.progress import Bar
from ..base.resources import check_memory
from ..base.types import Floats, Ints, PotentiaError
from ..features.example import Example
from ..features.image import RegionMeans
from ..features.pixels import typical_contrast
from ..learn.data import PART_ENTRIES
from ..learn.joint import MAX_KEPT_SCORES
from ..potentials import Boosting, LightGBM, Potential
from . import pixels
from .image_files import Given, InputReader
from .image_groups import draw_folds
from .image_pipeline import ImagePipeline, grid
from .pixel_functions import pixel_function
from .pixels import TILE_SIDES, Context, PixelRows, PixelStage, Window
from .training import KeptFits, Run, TimeOverError

if TYPE_CHECKING:
    from .pixel_network import AnyStage

#: Folds of images.
_FOLDS = 4
#: Fits of fifty trees each, and by how much of itself the held-out loss must fall for another one.
_STAGES, _ENOUGH = 5, 1e-3
#: Features that lower the loss by this share of it in two folds, of this many samples or more, are used.
_CLEAR, _MANY = 0.05, 12


class Sample(NamedTuple):
    """Pixels drawn from one image or a part of it: features (n, d), labels (n,), where they are (n, axes)."""

    x: np.ndarray
    labels: Ints
    places: np.ndarray


@dataclass
class CrossFittedStage:
    """Classifiers of a training set.

    Attributes:
        final: fitted to all samples; predicts new images.
        by_fold: fitted to all samples but those of a fold.
        folds: the fold of every sample.
        used: whether optional features are used, by their kind.
        losses: by fold, mean log-loss of the samples by the models that did not see them.
        tried: by kind their mean with and without these features after one fit, where both were tried.
        stages: fits that each model took.
    """

    final: Potential
    by_fold: list[Potential]
    folds: Ints
    used: dict[str, bool]
    losses: list[float]
    tried: dict[str, dict[bool, float]]
    stages: int

    @property
    def loss(self) -> float:
        """Mean log-loss of samples that models did not see."""
        return float(np.mean(self.losses))

    def unseen(self, number: int) -> Potential:
        """The classifier that did not see sample `number`."""
        return self.by_fold[int(self.folds[number])]


def cross_fit(
    make: Callable[[], Potential],
    samples: Sequence[Sample],
    n_states: int,
    *,
    kinds: np.ndarray | None = None,
    optional: Mapping[str, bool | None] | None = None,
    class_weight: Floats | None = None,
    beat: Sequence[float] | None = None,
    groups: Ints | None = None,
    run: Run | None = None,
    kept: KeptFits | None = None,
    stage: str = "",
) -> CrossFittedStage:
    """Classifiers fitted to all samples but those of a fold each, and one fitted to all.

    Args:
        make: an unfitted classifier.
        samples: of images that must be distinguished.
        kinds: of every feature; None for one kind.
        optional: whether to use the features of a kind; None uses them if the loss is lower in every fold, or of many
            samples much lower in two.
        class_weight: weight of every class.
        beat: losses by fold; after two folds that lose against them there is no more, and `final` stays unfitted.
        groups: by sample, those that are in one fold together; None for each alone.
        run: how to train. Once every fold has a classifier, the end of the time ends their improvement only.
        kept: where fits are kept, under names that begin with `stage`.
    """
    run, kept = run or Run(), kept or KeptFits()
    # of strokes, parts of images may have none: they follow a fold that has some
    known = np.array([len(sample.labels) > 0 for sample in samples])
    alone = np.arange(len(samples)) if groups is None else groups
    folds = draw_folds(alone, _FOLDS, np.random.default_rng(run.seed), known)
    n_folds = int(folds.max()) + 1
    most = _STAGES if isinstance(make(), Boosting | LightGBM) and not run.quick else 1
    kinds = np.zeros(samples[0].x.shape[1]) if kinds is None else kinds
    used = {kind: use is not False for kind, use in (optional or {}).items()}
    undecided = [kind for kind, use in (optional or {}).items() if use is None and n_folds > 1]
    tried: dict[str, dict[bool, float]] = {}

    def rows(chosen: np.ndarray, used: Mapping[str, bool]) -> dict[str, Any]:
        """Features, labels and weights of the chosen samples."""
        taken = [sample for sample, use in zip(samples, chosen, strict=True) if use]
        x, y = (np.concatenate(parts) for parts in list(zip(*taken, strict=True))[:2])
        if len(y) == 0:
            raise PotentiaError("no pixel with a known class was drawn from the images to train on.")
        weight = None if class_weight is None else class_weight[y]
        out = np.isin(kinds, [kind for kind, use in used.items() if not use])
        return {"x": x[:, ~out] if out.any() else x, "y": y, "weight": weight}

    fits: dict[tuple[Any, ...], list[tuple[Potential, float]]] = {}

    def improved(
        function: Potential, seen: Mapping[str, Any], unseen: Mapping[str, Any] | None = None
    ) -> tuple[Potential, float]:
        """A copy of a function, fitted further, and its mean loss of rows that it did not see, if there are any."""
        function = copy.deepcopy(function)
        function.fit(**seen, n_outputs=n_states)
        return function, 0.0 if unseen is None else function.loss(**unseen) / len(unseen["y"])

    def fit_fold(number: int, used: Mapping[str, bool], limit: int) -> tuple[Potential, float, int]:
        """The classifier that does not see a fold, its loss there, and the fits after which that fell no more."""
        if n_folds == 1:
            return make(), np.nan, most
        seen, unseen = rows(folds != number, used), rows(folds == number, used)
        done = fits.setdefault((number, *used.values()), [])
        while len(done) < limit and (len(done) < 2 or done[-1][1] < (1 - _ENOUGH) * done[-2][1]):
            if not done:
                run.check_time()
            elif run.over():
                break
            name = f"{stage}, fold {number} {used}, fit {len(done)}"
            done.append(kept.fitted(name, partial(improved, done[-1][0] if done else make(), seen, unseen)))
        best = min(range(len(done)), key=lambda k: done[k][1])
        bar.advance(text=f"pixels, fold {number + 1}")
        return *done[best], best + 1

    with Bar(run.progress) as bar:
        bar.begin("pixels", 5 + 8 * len(undecided))
        used |= dict.fromkeys(undecided, False)
        for kind in undecided:
            # few images show chance positions, too: a mean alone would take them up
            better, losses = True, list[list[float]]()
            while better and len(losses) < n_folds:
                losses.append([fit_fold(len(losses), used | {kind: use}, 1)[1] for use in (False, True)])
                better = losses[-1][True] < losses[-1][False]
                clear = len(losses) > 1 and all(on < (1 - _CLEAR) * off for off, on in losses)
                if clear and known.sum() >= _MANY:
                    break
            used[kind] = better
            tried[kind] = dict(zip((False, True), np.mean(losses, axis=0).tolist(), strict=True))
        found: list[tuple[Potential, float, int]] = []
        while len(found) < n_folds:
            found.append(fit_fold(len(found), used, most))
            if beat is not None and len(found) == 2 and found[0][1] > beat[0] and found[1][1] > beat[1]:
                break
        functions, reached, counts = (list(column) for column in zip(*found, strict=True))
        stages, final = int(np.median(counts)), make()
        if len(found) == n_folds:
            everything = rows(np.ones(len(samples), dtype=bool), used)
            for count in range(stages):
                if n_folds == 1:
                    run.check_time()
                elif run.over():
                    # one that did not see a fold is nearly as good as one that saw all
                    final = final if count else functions[0]
                    break
                final, _ = kept.fitted(f"{stage}, fit {count}", partial(improved, final, everything))
        bar.advance(text="pixels, all images")
    return CrossFittedStage(final, functions if n_folds > 1 else [final], folds, used, reached, tried, stages)


#: Bytes of the program itself, and features of a pair.
_PROGRAM, _PAIR_FEATURES = 3e8, 11
#: Copies of the tables of pairs while messages are passed: scores, theta, both directions of the engine, a temporary.
_COPIES = 5


def estimate_bytes(
    sizes: Sequence[tuple[int, ...]],
    rows: PixelRows | None,
    n_rows: int,
    windows: Sequence[int],
    n_states: int,
    by_weight: bool = False,
) -> float:
    """Bytes that training takes at its peak, of images of these sizes.

    n_rows: pixels drawn for the classifier. windows: pixels in each window that pairs are trained on. by_weight:
    whether pairs have a weight each instead of a table.
    """
    axes = len(sizes[0])
    labels = sum(float(np.prod(size)) for size in sizes) * 8
    paired = _paired_bytes(windows, n_states, axes, by_weight)
    if rows is None:
        return _PROGRAM + labels + paired
    largest = max(float(np.prod([min(side, TILE_SIDES[axes] + 128) for side in size])) for size in sizes)
    n_features = rows.n_features + pixels.n_context(n_states, axes)
    features = 2.5 * largest * n_features * 4
    drawn = n_rows * n_features * (4 + 4 + 8 + 1)
    return _PROGRAM + labels + max(features + n_rows * n_features * 4, drawn, paired + features)


def _paired_bytes(windows: Sequence[int], n_states: int, axes: int, by_weight: bool) -> float:
    """Features and messages of all windows, and tables of pairs of one part at a time, which has a window at least.

    By weight there are no tables, unless a weight turns negative; then messages, before and after a step, count most.
    """
    edge = axes * (_PAIR_FEATURES * 4 + n_states * 8 * 4)
    held = sum(windows) * (edge + n_states * (4 + 8 * 4))
    if by_weight:
        return 2.0 * held
    entries = axes * n_states**2
    part = max(entries * max(windows), min(entries * sum(windows), PART_ENTRIES))
    kept = entries * sum(windows)
    return held + 8.0 * (_COPIES * part + (kept if kept <= MAX_KEPT_SCORES else 0))


#: Pixels drawn for the classifier, and those that pairs are trained on: fewer where more classes make tables large.
_N_ROWS, _N_PAIRED, _LEAST_PAIRED = 150_000, 200_000, 10_000
_PAIR_ENTRIES = 8_000_000
#: Pixels of a window, at least, and windows, at least.
_WINDOW_PIXELS, _FEWEST_WINDOWS = 64**2, 8
#: With fewer images than this, out-of-fold predictions are made for bands of each image.
_FEW_IMAGES, _BANDS = 3, 4
#: Features that cross-validation may choose, and what the options say of them.
_OPTIONAL = {"position": "their position", "regions": "the regions around them"}
_DECIDED = {"yes": True, "no": False, None: None}


@dataclass(frozen=True, eq=False)
class TrainingImages:
    """Images to train on.

    Attributes:
        pipeline: not fitted yet.
        read: reads image k.
        labels: by image, at the size that the CRF sees, -1 where unknown.
        weights: of classes, or None.
        own, held: numbers of the images to train on, and of those held out.
        run: how to train.
        groups: by image, those that are held out together; None for each alone.
        regions: of images, those that were needed.
        kept: fits of pixels, those of an interrupted run among them.
    """

    pipeline: ImagePipeline
    read: InputReader
    labels: list[np.ndarray]
    weights: Floats | None
    own: list[int]
    held: list[int]
    run: Run
    groups: Ints | None = None
    regions: dict[int, RegionMeans] = field(default_factory=dict)
    kept: KeptFits = field(default_factory=KeptFits)

    def image(self, k: int, rows: PixelRows | None = None) -> tuple[np.ndarray, Given]:
        """An image as the CRF sees it, and what belongs to it, with regions if `rows` have them."""
        image, given = self.read(k)
        values = self.pipeline.prepare(image)
        if rows is not None and rows.regions:
            self.regions[k] = self.regions.get(k) or RegionMeans.of(values)
            given = given._replace(regions=self.regions[k])
        return values, self.pipeline.prepare_given(given, image.shape[: self.pipeline.axes])

    @cached_property
    def units(self) -> list[tuple[int, Window]]:
        """Parts of images that are held out together: whole ones, or bands of few."""
        if self.groups is not None or len(self.own) >= _FEW_IMAGES:
            return [(k, pixels.whole(self.labels[k].shape)) for k in self.own]
        return [(k, band) for k in self.own for band in pixels.bands(self.labels[k].shape, _BANDS)]

    @property
    def unit_groups(self) -> Ints:
        """The group of every unit."""
        alone = np.arange(len(self.units))
        return alone if self.groups is None else np.asarray(self.groups[[k for k, _ in self.units]])

    def example(
        self, k: int, window: Window, stage: AnyStage | None = None, coarse: np.ndarray | None = None
    ) -> Example:
        """A window of image k with scores by a stage, whose context is `coarse`, or else by the pipeline's own."""
        seen = stage or self.pipeline.pixels
        values, given = self.image(k, None if seen is None else seen.rows)
        if stage is None:
            scores = self.pipeline.node_scores(values, given)[window]
        else:
            scores = stage.scores(values, window, given, None if coarse is None else Context(coarse))
        labels, name = self.labels[k][window], self.read.files[k].name
        return self.pipeline.window_example(values, window, scores, labels, name)


def two_stages(
    images: TrainingImages, nodes: Sequence[str], position: str | None, regions: str | None, n_pixels: int | None
) -> tuple[list[Example], dict[str, Any]]:
    """Fit the pixel classifier, where there is one; examples for the CRF in windows of the images.

    nodes: functions of pixels to try. position, regions: "yes", "no" or None to try both. n_pixels: that pairs are
    trained on, at most.
    """
    pipeline, run = images.pipeline, images.run
    n_rows, n_wanted = n_drawn(n_pixels, len(pipeline.classes), pipeline.axes)
    chosen, windows = _draw_windows(images, n_wanted, np.random.default_rng(run.seed))
    rows, beside = None, images.read(images.own[0])[1].features
    if pipeline.node != "probabilities":
        n_given = 0 if beside is None else int(beside.shape[-1])
        by_network = nodes == ("network",)
        own = "image" if by_network and pipeline.node == "filters" else pipeline.node
        position_tried = position == "yes" or (position is None and not by_network)
        around = regions != "no" and not by_network
        rows = PixelRows(own, position_tried, n_given, pipeline.intensity.channels, pipeline.axes, around)
    _say_memory(images, rows, n_rows, [int(np.prod(pixels.window_size(window))) for window in windows])
    pipeline.typical = _typical(images)
    facts: dict[str, Any] = {}
    unseen: Sequence[AnyStage] = []
    coarse: dict[int, np.ndarray] = {}
    if rows is not None:
        if by_network:
            from .pixel_network import cross_fit_networks

            pipeline.pixels, unseen, loss = cross_fit_networks(images, rows, n_rows)
        else:
            use = {"position": _DECIDED[position], "regions": _DECIDED[regions]}
            pipeline.pixels, unseen, coarse, loss = _classify(images, rows, n_rows, nodes, use)
        facts = {"pixel_features": pipeline.pixels.n_features, "pixel_loss": loss}
    examples = []
    with Bar(run.progress) as bar:
        for number, window in zip(bar.over(chosen, "out-of-fold predictions"), windows, strict=False):
            k = images.units[number][0]
            examples.append(images.example(k, window, unseen[number] if unseen else None, coarse.get(k)))
    return examples, facts


def n_drawn(limit: int | None, n_states: int, axes: int = 2) -> tuple[int, int]:
    """Pixels that the classifier is fitted to, and those that pairs are: as many as tables of a fixed size allow."""
    if limit is not None:
        return min(_N_ROWS, limit), limit
    return _N_ROWS, max(_LEAST_PAIRED, min(_N_PAIRED, _PAIR_ENTRIES // (axes * n_states**2)))


def _draw_windows(images: TrainingImages, n_pixels: int, rng: np.random.Generator) -> tuple[list[int], list[Window]]:
    """Windows of about `n_pixels` in all, and the numbers of their units.

    Where there are too many units for windows of a useful size, some are left out: in small windows, most of which show
    one class only, pairs would learn to make everything one class.
    """
    count = min(len(images.units), max(_FEWEST_WINDOWS, n_pixels // _WINDOW_PIXELS))
    chosen = np.sort(rng.choice(len(images.units), count, replace=False)).tolist()
    windows = []
    for number in chosen:
        k, window = images.units[number]
        windows.append(pixels.draw_window(window, max(1, n_pixels // count), images.labels[k][window] >= 0, rng))
    return chosen, windows


def _say_memory(images: TrainingImages, rows: PixelRows | None, n_rows: int, windows: Sequence[int]) -> None:
    """Tell the user how much memory is needed, and what would halve it; refuse more than there is."""
    sizes = [images.labels[k].shape for k in (*images.own, *images.held)]
    n_states = len(images.pipeline.classes)
    by_weight = images.pipeline.model.potentials["edge"].by_weight
    needed = estimate_bytes(sizes, rows, n_rows, windows, n_states, by_weight)
    largest = max(sizes, key=lambda size: float(np.prod(size)))
    shown = " x ".join(map(str, largest[::-1]))
    fewer = f"--pixels {max(1, sum(windows) // 2)} trains pairs on half as many pixels"
    if len(largest) == 2:
        fewer += f", --reduce {0.7 * images.pipeline.reduce:.2g} on half-size images"
    what = f"{len(sizes)} images of up to {shown}" if len(sizes) > 1 else f"one image of {shown}"
    check_memory(needed, f"training on {what}", fewer)
    images.run.say(f"{what}, {n_states} classes: about {needed / 1e9:.1f} GB of memory. {fewer}.")


def _classify(
    images: TrainingImages, rows: PixelRows, n_rows: int, nodes: Sequence[str], use: Mapping[str, bool | None]
) -> tuple[PixelStage, list[PixelStage], dict[int, np.ndarray], float]:
    """The classifiers of the function with the lowest cross-validated loss, with context where that helps.

    These are the final ones; for every unit those that did not see it; by image the context of the latter, if any; and
    the loss.
    """
    run, rng = images.run, np.random.default_rng([images.run.seed, 1])
    n = max(1, n_rows // len(images.units))
    with Bar(run.progress) as bar:
        samples = [_sample(images, rows, k, window, n, rng) for k, window in bar.over(images.units, "features")]
    fitted = {}
    for node in nodes:
        optional = {kind: chosen for kind, chosen in use.items() if kind in rows.kinds}
        fitted[node] = _cross_fit(images, node, samples, kinds=rows.kinds, optional=optional, stage=node)
        if len(nodes) > 1:
            run.say(f"--node {node}: cross-validated loss of pixels {fitted[node].loss:.4f}")
    node, first = min(fitted.items(), key=lambda item: item[1].loss)
    for kind, tried in first.tried.items():
        used_text, needed = ("with", "") if first.used[kind] else ("without", f"; {kind} must gain in every fold")
        run.say(
            f"pixels are classified {used_text} {_OPTIONAL[kind]}: the cross-validated loss is {tried[True]:.4f} "
            f"with and {tried[False]:.4f} without{needed}."
        )
    seen = ~np.isin(rows.kinds, [kind for kind, is_used in first.used.items() if not is_used])
    rows = replace(rows, **{kind: first.used.get(kind, False) for kind in _OPTIONAL})  # type: ignore[arg-type]
    unseen = [PixelStage(rows, first.unseen(number)) for number in range(len(samples))]
    if len(first.by_fold) > 1 and not run.quick and not run.over():
        coarse = _coarse_predictions(images, unseen)
        wider = [
            sample._replace(x=np.hstack([sample.x[:, seen], Context(coarse[k]).at(sample.places)]))
            for (k, _), sample in zip(images.units, samples, strict=True)
        ]
        try:
            second = _cross_fit(images, node, wider, beat=first.losses, stage=f"{node} with context")
        except TimeOverError:
            run.say("the time is over, so pixels are classified without the predictions around them.")
            return PixelStage(rows, first.final), unseen, {}, first.loss
        n_compared = len(second.losses)
        before = float(np.mean(first.losses[:n_compared]))
        helps = n_compared == len(first.losses) and second.loss < before
        run.say(
            f"pixels are classified {'with' if helps else 'without'} the predictions around them: the cross-validated "
            f"loss is {second.loss:.4f} with them and {before:.4f} without."
        )
        if helps:
            unseen = [replace(stage, second=second.unseen(number)) for number, stage in enumerate(unseen)]
            return PixelStage(rows, first.final, second.final), unseen, coarse, second.loss
    return PixelStage(rows, first.final), unseen, {}, first.loss


def _cross_fit(images: TrainingImages, node: str, samples: Sequence[Sample], **options: Any) -> CrossFittedStage:
    """`cross_fit` with classifiers of pixels that generalise to other images."""
    run, n_states = images.run, len(images.pipeline.classes)
    return cross_fit(
        lambda: pixel_function(node, run.seed, n_states),
        samples,
        n_states,
        class_weight=images.weights,
        groups=images.unit_groups,
        run=run,
        kept=images.kept,
        **options,
    )


def _coarse_predictions(images: TrainingImages, unseen: Sequence[PixelStage]) -> dict[int, np.ndarray]:
    """By image the out-of-fold probabilities on a coarse grid."""
    coarse: dict[int, np.ndarray] = {}
    with Bar(images.run.progress) as bar:
        for stage, (k, window) in zip(unseen, bar.over(images.units, "context"), strict=True):
            values, given = images.image(k, stage.rows)
            shape = (*pixels.coarse_size(values.shape[:-1]), len(images.pipeline.classes))
            grid_of = coarse.setdefault(k, np.empty(shape, dtype=np.float32))
            stage.fill_coarse(grid_of, stage.tile_rows(values, window, given))
    return coarse


def _sample(
    images: TrainingImages, rows: PixelRows, k: int, window: Window, n: int, rng: np.random.Generator
) -> Sample:
    """About n pixels of a window, with features computed tile by tile."""
    values, given = images.image(k, rows)
    labels, axes = images.labels[k], rows.axes
    known = int(np.count_nonzero(labels[window] >= 0))
    empty = np.zeros((0, rows.n_features), dtype=np.float32), np.zeros(0, np.int64), np.zeros((0, axes), np.int32)
    drawn = [Sample(*empty)]
    for tile in pixels.tiles(window, TILE_SIDES[axes]):
        y = labels[tile].ravel()
        places = np.flatnonzero(y >= 0)
        wanted = min(len(places), round(n * len(places) / max(1, known)))
        if wanted:
            chosen = np.sort(rng.choice(places, wanted, replace=False))
            x = rows.rows(values, tile, given)[chosen]
            drawn.append(Sample(x, y[chosen].astype(np.int64), pixels.places_in(tile)[chosen]))
    return Sample(*(np.concatenate(parts) for parts in zip(*drawn, strict=True)))


def _typical(images: TrainingImages) -> list[float]:
    """The units of pair features: means over up to ten images, in one tile of each."""
    axes, contrasts = images.pipeline.axes, []
    for k in images.own[:: -(-len(images.own) // 10)]:
        values, _ = images.image(k)
        tile = pixels.tiles(pixels.whole(values.shape[:-1]), TILE_SIDES[axes])[0]
        pairs = grid(pixels.window_size(tile), len(images.pipeline.classes)).scopes["edge"]
        contrasts.append(typical_contrast(values[tile], pairs, axes=axes))
    means: list[float] = np.mean(contrasts, axis=0).tolist()
    return means
