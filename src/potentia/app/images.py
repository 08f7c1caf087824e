"""Images with masks, from folders or arrays, to a pipeline that labels the pixels of new images: `ImageSegmenter`."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..base.params import Params
from ..base.saving import digest_of
from ..base.types import (
    ConvergenceWarning,
    Floats,
    Ints,
    PotentiaError,
    check_choice,
    check_count,
    check_flag,
    check_positive,
    plain_array,
    shown,
    whole_numbers,
)
from ..features.colour import reduce_labels
from ..features.example import Example
from ..models.crf import CRF
from ..models.cross_fit import CrossFitted, log_probabilities
from ..potentials import Linear, Potential, Temperature
from .image_files import (
    STACKS,
    ImageFile,
    InputReader,
    Mask,
    check_same_size,
    checked_axes,
    code_colours,
    colour_codes,
    image_files,
    input_reader,
    paired_files,
    read_image,
    read_mask,
)
from .image_groups import draw_folds, find_groups
from .image_pipeline import BOUNDARY, ImagePipeline
from .image_stages import TrainingImages, two_stages
from .pixel_functions import PIXEL_FUNCTIONS, check_torch, pixel_function, tried_functions
from .pixel_values import NORMALISATIONS, RARE, Classes, find_classes, learn_intensity
from .pixels import whole
from .training import (
    INFERENCE,
    TRAINABLE,
    Run,
    TimeOverError,
    check_pairs,
    fit,
    fit_marks,
    make_learner,
    make_potential,
)

__all__ = ["ImagePipeline", "ImageSegmenter", "train"]

#: The papers' sets of features of pixels and of pairs: a linear function needs expanded ones.
_PAPERS = {"linear": "mbl", "constant": "ilr", "boosting": "ilr", "mlp": "ilr", "potts": "mbl"}
#: Pixels that a first model learns from.
_FIRST_PIXELS = 20_000
#: The values of options that are words; those that are not named here are checked where they are used.
_WORDS = {
    "rare": RARE,
    "learner": tuple(TRAINABLE),
    "inference": tuple(INFERENCE),
    "feature_set": ("filters", "papers", "given"),
    "position": ("yes", "no"),
    "regions": ("yes", "no"),
    "normalise": NORMALISATIONS,
    "stacks": STACKS,
}
#: The share of the time that classifiers of pixels may take; pairs have the rest.
_PIXEL_SHARE = 0.8
#: Options that only some learners have.
_OF_LEARNERS = {"epsilon": ("ilr",), "inference": ("marginal",), "class_weight": ("ilr", "marginal")}


@dataclass(kw_only=True, eq=False, repr=False)
class ImageSegmenter(Params):
    """Labels the pixels of images: what `potentia train --images` trains, in scikit-learn's manner.

    Args:
        palette: a file of lines `value,name[,#rrggbb]`; None takes every value in the masks as a class.
        void: values that mean unknown, with commas between. rare: what to do with values in a few pixels only, see
            `find_classes`.
        node, edge: functions of pixels (of `PIXEL_FUNCTIONS`; "auto" cross-validates those on filters) and of pairs;
            node None is boosting, with the papers' features where the learner can train it, else linear. edge None is
            potts, and linear with the papers' features, of superpixels and where the learner cannot train potts.
        learner: of `TRAINABLE`.
        iterations, epsilon, inference: see `make_learner`.
        class_weight: "balanced" (each class weighs the same in all), or numbers with commas between.
        feature_set: "filters" (default), "papers", or "given": only what `features` has.
        features, probabilities: folders with an array (h, w, n) for each image. Probabilities replace the classifier.
        position, regions: "yes", "no" or None to find out by cross-validation whether the classifier sees positions,
            and features of the regions (superpixels) around a pixel, which need scikit-image.
        normalise: see `Intensity`; stacks: whether pages of TIFF files are "images" or "volumes"; axes: of TIFF files,
            see `checked_axes`.
        reduce, superpixels: see `ImagePipeline`.
        pixels: number of pixels that pairs are trained on, at most.
        minutes: how long training may take, at most: a first model is trained in any case, and a better one if there
            is time.
        search: choose node, edge, learner and epsilon by cross-validation over images; budget: seconds for pairs.
        groups: images that are held out together, see `find_groups`; None for each alone.
        seed: of everything that is random.

    After `fit`: `pipeline_`, what `pt.load` gives of a saved model, and `facts_`, what the command prints.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> masks = [np.tile(np.arange(24) > 8 * k, (24, 1)).astype(np.uint8) for k in (1, 2)]
        >>> images = [(100 * mask + rng.integers(0, 60, (24, 24))).astype(np.uint8) for mask in masks]
        >>> model = pt.ImageSegmenter(node="linear", superpixels=40).fit(images, masks)
        >>> model.predict(images)[0].shape, model.predict_proba(images)[0].shape
        ((24, 24), (24, 24, 2))
    """

    palette: str | Path | None = None
    void: str | None = None
    rare: str | None = None
    node: str | None = None
    edge: str | None = None
    learner: str = "ilr"
    iterations: int | None = None
    epsilon: float | None = None
    inference: str | None = None
    class_weight: str | None = None
    feature_set: str | None = None
    features: str | Path | None = None
    probabilities: str | Path | None = None
    position: str | None = None
    regions: str | None = None
    normalise: str | None = None
    stacks: str = "images"
    axes: str | None = None
    reduce: float | None = None
    superpixels: int | None = None
    pixels: int | None = None
    minutes: float | None = None
    search: bool = False
    budget: float = 600.0
    groups: Any = None
    seed: int = 0

    @property
    def _single_stage(self) -> bool:
        """Whether the CRF is fitted to features at once, without a classifier of pixels before it."""
        return self.superpixels is not None or self.feature_set == "papers"

    @property
    def _n_axes(self) -> int:
        """2 for images, 3 for volumes."""
        return 3 if self.stacks == "volumes" else 2

    @property
    def _cross_fits_regions(self) -> bool:
        """Whether superpixels are labelled by trees that are fitted before the CRF."""
        trees = self._functions[0] in ("boosting", "forest", "lightgbm")
        return trees and self.superpixels is not None and self.learner != "margin"

    @property
    def _may_see_regions(self) -> bool:
        """Whether features of regions can be beside those of pixels."""
        filters = self.feature_set in (None, "filters") and self.probabilities is None
        return filters and self.superpixels is None and self._n_axes == 2 and self.node != "network"

    @property
    def _functions(self) -> tuple[str, str]:
        """The functions of pixels and of pairs."""
        node, edge = self.node, self.edge
        if node is None:
            node = "boosting" if self.learner == "ilr" or not self._single_stage else "linear"
        if edge is None:
            edge = "linear" if self._single_stage or "potts" not in TRAINABLE[self.learner] else "potts"
        return node, edge

    def _check(self) -> None:
        """Refuse unknown options, and those that exclude each other."""
        for name, words in _WORDS.items():
            check_choice(name, getattr(self, name), words, "" if name in ("learner", "stacks") else "None")
        for name in ("iterations", "superpixels", "pixels"):
            check_count(name, getattr(self, name), 1, optional=True)
        check_count("seed", self.seed)
        check_flag("search", self.search)
        node, edge = self._functions
        joint = self._single_stage and not self._cross_fits_regions
        able, alone = (TRAINABLE[self.learner], "superpixels" if self.superpixels is not None else "feature-set papers")
        refusals = [
            (
                self.superpixels is not None and self.reduce is not None,
                "superpixels are made of the whole image: give --superpixels or --reduce.",
            ),
            (
                self._n_axes == 3 and (self._single_stage or self.reduce is not None),
                "--stacks volumes goes with neither --superpixels, --reduce nor the papers' features.",
            ),
            *(
                (self._single_stage and folder is not None, f"--{alone} cannot be combined with --{option}.")
                for option, folder in (("features", self.features), ("probabilities", self.probabilities))
            ),
            (
                self.probabilities is not None and self.feature_set is not None,
                "--probabilities take the classifier's place: to use them beside filters, give --features.",
            ),
            (
                self.feature_set == "given" and self.features is None,
                "--feature-set given takes the features in --features, which is missing.",
            ),
            (
                self.regions == "yes" and not self._may_see_regions,
                "--regions goes with filters of images: leave out --stacks volumes, --superpixels, --probabilities and "
                "other --feature-set or --node network.",
            ),
            (
                self.search and (self._single_stage or self.node is not None),
                "--search chooses functions itself: leave out --node, --superpixels and the papers' features.",
            ),
            (
                self.search and self.budget <= 0,
                f"--budget is a number of seconds above zero, not {self.budget:g}.",
            ),
            (node == "network" and self._n_axes == 3, "--node network labels images, not volumes."),
            (node not in PIXEL_FUNCTIONS, f"node must be one of {', '.join(PIXEL_FUNCTIONS)}, not {node!r}."),
            *(
                (name not in able, f"--learner {self.learner} cannot train --{kind} {name}: take {', '.join(able)}.")
                for kind, name in {**({"node": node} if joint else {}), "edge": edge}.items()
            ),
            *(
                (
                    getattr(self, option) is not None and self.learner not in learners,
                    f"--{option.replace('_', '-')} cannot be combined with --learner {self.learner}.",
                )
                for option, learners in _OF_LEARNERS.items()
            ),
        ]  # fmt: skip
        for refused, message in refusals:
            if refused:
                raise PotentiaError(message)
        if node == "network":
            check_torch()
        for name in ("epsilon", "minutes"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if self.reduce is not None:
            check_positive("reduce", self.reduce, 1.0)

    def fit(self, images: Any, masks: Any, *, progress: bool = False, run: Run | None = None) -> Self:
        """Train on images and their masks.

        Args:
            images: a folder, or a list of arrays (h, w) or (h, w, channels).
            masks: a folder of masks of the same names, or a list of arrays (h, w) of classes, -1 where unknown, or
                (h, w, 3) of colours.
            progress: show a progress bar.
            run: how the command line trains, in place of `seed` and `progress`.
        """
        check_flag("progress", progress)
        self._check()
        if isinstance(images, str | os.PathLike):
            if not isinstance(masks, str | os.PathLike):
                raise PotentiaError("masks must be a folder, as images is one.")
            read, raw, places = _from_files(Path(images), Path(masks), self)
        else:
            read, raw, places = _from_arrays(images, masks, self)
        for k, (mask, place) in enumerate(zip(raw, places, strict=True)):
            check_same_size(read(k)[0], mask.codes, place)
        classes = find_classes(raw, self.palette, self.void, self.rare)
        labels = [classes.labels(mask, place).astype(np.int16) for mask, place in zip(raw, places, strict=True)]
        for y, place in zip(labels, places, strict=True):
            if not np.any(y >= 0) and read.arrays is None:
                raise PotentiaError(f"{place}: every pixel is void, so there is nothing to learn.")
        run = run or Run(seed=self.seed, progress=progress)
        until = math.inf if self.minutes is None else time.monotonic() + 60.0 * self.minutes
        first = self._first(read, labels, classes, run)
        try:
            found = _fit_images(read, labels, classes, self, replace(run, until=until))
        except TimeOverError:
            if first is None:
                raise
            found = first
            run.say("the time is over, so the first model is kept.")
        self.pipeline_, self.facts_ = found
        return self

    def _first(
        self, read: InputReader, labels: list[np.ndarray], classes: Classes, run: Run
    ) -> tuple[ImagePipeline, dict[str, Any]] | None:
        """A model that is trained in seconds, where the time is limited or a better one takes long."""
        resumes = any(path is not None and path.exists() for path in (run.checkpoint, run.pixel_checkpoint))
        many = run.keep is not None and not resumes and sum(y.size for y in labels) > 2 * _FIRST_PIXELS
        if self._single_stage or not (many or self.minutes is not None):
            return None
        node = None if self.node in ("network", "auto") else self.node
        quick = replace(
            self,
            node=node,
            search=False,
            position=self.position or "no",
            regions=self.regions or "no",
            pixels=min(self.pixels or _FIRST_PIXELS, _FIRST_PIXELS),
        )
        first = _fit_images(
            read, labels, classes, quick, replace(run, checkpoint=None, quick=True, say=lambda text: None)
        )
        if run.keep is not None:
            run.keep(first[0])
        return first

    def predict(self, images: Any) -> Any:
        """Masks, in the values of those trained on: one for an image, a list for a list or a folder."""
        return _each(lambda image: self._values(self._fitted().predict(image)), images)

    def predict_proba(self, images: Any) -> Any:
        """Probabilities (h, w, n_classes) of one image, or a list of them."""
        return _each(self._fitted().predict_marginals, images)

    def score(self, images: Any, masks: Any) -> float:
        """Share of pixels of known class that are predicted correctly; of arrays."""
        right = total = 0
        for k, (found, mask) in enumerate(zip(self.predict(list(images)), list(masks), strict=True)):
            truth, codes = _mask(np.asarray(mask), k).codes, _mask(found, k).codes
            known = ~np.isin(truth, [-1, *self._fitted().classes.void])
            right, total = right + int(np.sum((truth == codes) & known)), total + int(known.sum())
        if total == 0:
            raise PotentiaError("no pixel of the masks has a known class.")
        return right / total

    @property
    def classes_(self) -> list[str]:
        """Names of the classes, in the order of `predict_proba`."""
        return self._fitted().classes.names

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model for `pt.load` and `potentia predict`."""
        self._fitted().save(path)

    def _values(self, labels: Any) -> np.ndarray:
        mask = self._fitted().classes.mask(labels)
        return code_colours(mask.codes) if mask.coloured else mask.codes

    def _fitted(self) -> ImagePipeline:
        if not hasattr(self, "pipeline_"):
            raise PotentiaError("this ImageSegmenter is not fitted: call fit first.")
        return self.pipeline_


def train(images: Path, masks: Path, *, run: Run | None = None, **options: Any) -> tuple[ImagePipeline, dict[str, Any]]:
    """A pipeline fitted to the images of a folder and the masks of their names, and facts of the fit.

    The options are those of `ImageSegmenter`.
    """
    segmenter = ImageSegmenter(**options).fit(images, masks, run=run)
    return segmenter.pipeline_, segmenter.facts_


def _from_files(images: Path, masks: Path, chosen: ImageSegmenter) -> tuple[InputReader, list[Mask], list[Path]]:
    """The reader of a folder's images, their masks, and where these are."""
    files = paired_files(images, masks, chosen.stacks, checked_axes(chosen.axes))
    read = input_reader([image for image, _ in files], chosen.features, chosen.probabilities, chosen._n_axes)
    raw = [read_mask(mask) for _, mask in files]
    for values, (_, mask) in zip(raw, files, strict=True):
        if values.codes.ndim != chosen._n_axes:
            raise PotentiaError(f"{mask.path}: a mask has {chosen._n_axes} axes, not shape {values.codes.shape}.")
    return read, raw, [mask.path for _, mask in files]


def _from_arrays(images: Any, masks: Any, chosen: ImageSegmenter) -> tuple[InputReader, list[Mask], list[Path]]:
    """The same of lists of arrays, whose places are their numbers."""
    if chosen.features is not None or chosen.probabilities is not None:
        raise PotentiaError("features and probabilities are folders beside a folder of images.")
    arrays, raw = _arrays("images", images), [_mask(mask, k) for k, mask in enumerate(_arrays("masks", masks))]
    if len(arrays) != len(raw):
        raise PotentiaError(f"there are {len(arrays)} images, but {len(raw)} masks.")
    files = [ImageFile(f"image {k}", Path(f"image {k}")) for k in range(len(arrays))]
    return InputReader(files, None, None, chosen._n_axes, arrays), raw, [file.path for file in files]


def _arrays(name: str, given: Any) -> list[np.ndarray]:
    if isinstance(given, str | os.PathLike) or not np.iterable(given):
        raise PotentiaError(f"{name} must be a folder or a list of arrays, as the other one, not {shown(given)}.")
    found = [plain_array(image, f"{name}[{k}]") for k, image in enumerate(given)]
    if not found or any(image.ndim < 2 for image in found):
        raise PotentiaError(f"{name} must be a list of at least one array (h, w) or (h, w, channels).")
    return found


def _mask(values: np.ndarray, number: int) -> Mask:
    """A mask of an array of classes, -1 where unknown, or of colours."""
    if values.ndim == 3 and values.shape[2] == 3 and values.dtype == np.uint8:
        return Mask(colour_codes(values), True, None)
    codes = whole_numbers(values, f"masks[{number}]")
    if codes.min() < -1 or codes.max() >= 2**24:
        raise PotentiaError(
            f"masks[{number}] holds {codes.min()} to {codes.max()}; classes count from 0, -1 is unknown."
        )
    return Mask(codes, False, None)


def _each(predict: Any, images: Any) -> Any:
    """What a function gives for an image, or for each of a list or a folder."""
    if isinstance(images, str | os.PathLike):
        path = Path(images)
        if not path.is_dir():
            return predict(read_image(path))
        return [predict(read_image(file)) for file in image_files(path)]
    if isinstance(images, Sequence):
        return [predict(read_image(Path(i)) if isinstance(i, str | os.PathLike) else np.asarray(i)) for i in images]
    return predict(np.asarray(images))


def _fit_images(
    read: InputReader, labels: list[np.ndarray], classes: Classes, chosen: ImageSegmenter, run: Run
) -> tuple[ImagePipeline, dict[str, Any]]:
    """A pipeline fitted to the images that `read` reads, with labels (*size) of each, -1 where unknown.

    A classifier of single pixels is fitted to pixels drawn from all images, and a CRF to its out-of-fold predictions
    in windows of the images. With `feature_set` "papers", and of superpixels, the CRF is fitted to features at once.
    """
    weights = _class_weights(chosen.class_weight, labels, classes)
    pipeline = _unfitted(chosen, read, classes, weights, run)
    facts: dict[str, Any] = {"n_images": len(read.files), "classes": classes.names}
    groups = find_groups(chosen.groups, read.files)
    digest = _digest(pipeline, read, labels, chosen, groups)
    own, held = (part.tolist() for part in run.split(len(read.files), groups))
    if groups is not None and len(np.unique(groups[own])) < 2:
        raise PotentiaError("--validation leaves one group to train on, but cross-validation needs two or more.")
    if chosen._single_stage:
        parts = [
            [pipeline.paper_example(read(k)[0], labels[k].astype(np.int64), read.files[k].name)[0] for k in part]
            for part in (own, held)
        ]  # fmt: skip
        if chosen._cross_fits_regions:
            return pipeline, facts | _fit_regions(
                pipeline.model, chosen._functions[0], parts[0], parts[1], weights, digest, run
            )
        return pipeline, facts | fit(pipeline.model, parts[0], parts[1], digest, run)
    sizes = [pipeline.small_size(y.shape) for y in labels]
    small = [
        y if y.shape == size else reduce_labels(y, size, len(classes)).astype(y.dtype)
        for y, size in zip(labels, sizes, strict=True)
    ]
    check_pairs(any(y.size > 1 for y in small))
    if not chosen.search:
        run.check_resumable(fit_marks(pipeline.model, digest))
    begun = time.monotonic()
    by_then = replace(run, until=begun + _PIXEL_SHARE * (run.until - begun))
    regions = chosen.regions if chosen._may_see_regions and find_spec("skimage") is not None else chosen.regions or "no"
    nodes = tried_functions() if chosen.search or chosen.node == "auto" else (chosen._functions[0],)
    with run.kept_fits(digest) as kept:
        training = TrainingImages(pipeline, read, small, weights, own, held, by_then, groups, kept=kept)
        examples, pixel_facts = two_stages(training, nodes, chosen.position, regions, chosen.pixels)
    facts |= pixel_facts
    if chosen.search:
        names = [file.name for file in read.files]
        held_together = None if groups is None else groups[[names.index(str(e.name)) for e in examples]]
        best, search_facts = search_pairs(examples, chosen, run, weights, held_together)
        pipeline.model = _crf(best, run, weights)
        facts |= search_facts
    whole_held = [training.example(k, whole(small[k].shape)) for k in held]
    fitted = fit(pipeline.model, examples, whole_held, digest, run)
    fitted["cross_fitted_accuracy"] = fitted.pop("training_accuracy")
    return pipeline, facts | fitted


def _fit_regions(
    model: CRF, node: str, own: list[Example], held: list[Example], weights: Floats | None, digest: str, run: Run
) -> dict[str, Any]:
    """Fit trees of superpixels, and the CRF to what they say of images that they did not see.

    Trees and pairs that are trained at once are far too certain of other images. weights: of classes.
    """
    balanced = own
    if weights is not None:
        # unknown labels, -1, have no weight that counts
        shares = [e.all_weights * weights[e.all_labels] for e in own]
        balanced = [Example(e.graph, e.features, e.labels, w) for e, w in zip(own, shares, strict=True)]
    make = partial(pixel_function, node, run.seed, int(own[0].graph.n_states[0]), leaves=16)
    found = CrossFitted(make, balanced, "node")
    seen = [e.with_features({"node": soft}) for e, soft in zip(own, found.unseen, strict=True)]
    soft = [log_probabilities(found.final.scores(e.features["node"])) for e in held]
    facts = fit(model, seen, [e.with_features({"node": s}) for e, s in zip(held, soft, strict=True)], digest, run)
    model.see_through("node", found.final)
    facts["cross_fitted_accuracy"] = facts.pop("training_accuracy")
    return facts


def _class_weights(text: str | None, labels: Sequence[np.ndarray], classes: Classes) -> Floats | None:
    """The weight of every class; None for 1."""
    if text is None:
        return None
    n = len(classes)
    if text == "balanced":
        counts = sum(np.bincount(y[y >= 0].ravel(), minlength=n) for y in labels)
        return np.asarray(np.sum(counts) / (n * np.maximum(counts, 1)), dtype=np.float64)
    try:
        weights = np.array([float(part) for part in text.split(",")])
    except ValueError:
        weights = np.zeros(0)
    if weights.shape != (n,) or not np.all((weights > 0) & np.isfinite(weights)):
        raise PotentiaError(
            f"--class-weight is 'balanced' or {n} numbers above zero, of the classes {', '.join(classes.names)}."
        )
    return weights


def _unfitted(
    chosen: ImageSegmenter, read: InputReader, classes: Classes, weights: Floats | None, run: Run
) -> ImagePipeline:
    """The pipeline before its model and its classifier of pixels are fitted."""
    node, edge = chosen._functions
    features = chosen.feature_set or ("filters" if chosen.probabilities is None else "probabilities")
    images = (read(k)[0] for k in range(len(read.files)))
    return ImagePipeline(
        _crf(chosen, run, weights),
        classes,
        _PAPERS.get(node, BOUNDARY) if chosen._single_stage else features,
        _PAPERS[edge] if chosen._single_stage else BOUNDARY,
        1.0 if chosen.reduce is None else chosen.reduce,
        chosen.superpixels,
        learn_intensity(images, chosen._n_axes, chosen.normalise, [str(file.path) for file in read.files]),
        axes=chosen._n_axes,
        file_axes=chosen.axes or "",
    )


def _crf(chosen: ImageSegmenter, run: Run, weights: Floats | None) -> CRF:
    """The unfitted model; of log-probabilities of pixels it has one weight where the learner can train that."""
    node, edge = chosen._functions
    function: Potential = Linear() if chosen.learner == "margin" else Temperature()
    if chosen._single_stage and not chosen._cross_fits_regions:
        function = make_potential(node, run.seed)
    potentials = {"node": function, "edge": make_potential(edge, run.seed)}
    options = chosen.iterations, weights, chosen.epsilon, chosen.inference
    return CRF(potentials, make_learner(chosen.learner, potentials, run, *options))


def _digest(
    pipeline: ImagePipeline,
    read: InputReader,
    labels: Sequence[np.ndarray],
    chosen: ImageSegmenter,
    groups: Ints | None,
) -> str:
    """A digest of the data and of the options that the model does not tell; groups by their images, not their file."""
    together = None if groups is None else groups.tolist()
    options = [chosen._functions[0], chosen.position, chosen.regions, chosen.pixels, chosen.class_weight, together]
    parts: list[str | bytes] = [repr(pipeline.settings()), repr(options)]
    for k, file in enumerate(read.files):
        image, given = read(k)
        beside = [array.tobytes() for array in given[:2] if array is not None]
        parts += [file.name, image.tobytes(), labels[k].tobytes(), *beside]
    return digest_of(parts)


#: What `search_pairs` tries, the default first.
CANDIDATES: tuple[Mapping[str, Any], ...] = (
    {"learner": "ilr", "edge": "potts", "epsilon": 1.0},
    {"learner": "ilr", "edge": "linear", "epsilon": 1.0},
    {"learner": "ilr", "edge": "potts", "epsilon": 0.3},
    {"learner": "ilr", "edge": "potts", "epsilon": 3.0},
    {"learner": "marginal", "edge": "potts"},
    {"learner": "ilr", "edge": "mlp", "epsilon": 1.0},
)
#: Folds of examples, and steps of a fit while searching; the chosen model is fitted in full.
_FOLDS, _ITERATIONS = 3, 30


def search_pairs(
    examples: Sequence[Example], chosen: ImageSegmenter, run: Run, weights: Floats | None, groups: Ints | None = None
) -> tuple[ImageSegmenter, dict[str, Any]]:
    """The options with the lowest cross-validated error of those tried before the budget (seconds) was used up."""
    begun = time.perf_counter()
    texts = [", ".join(f"--{name} {value}" for name, value in each.items()) for each in CANDIDATES]
    tried: list[ImageSegmenter] = []
    errors: list[float] = []
    for candidate, text in zip(CANDIDATES, texts, strict=True):
        if errors and (time.perf_counter() - begun) * (len(errors) + 1) / len(errors) > chosen.budget:
            break
        tried.append(replace(chosen, **{"epsilon": None, "inference": None, **candidate}))
        errors.append(_error(tried[-1], examples, run, weights, groups))
        run.say(f"{text}: cross-validated error {errors[-1]:.4f}")
    best = int(np.argmin(errors))
    left_out = len(CANDIDATES) - len(errors)
    more = f"; {left_out} others did not fit in the budget of {chosen.budget:g} s" if left_out else ""
    run.say(f"chosen: {texts[best]}, with the lowest cross-validated error of {len(errors)} choices{more}.")
    return tried[best], {"chosen": texts[best], "search_error": errors[best]}


def _error(
    chosen: ImageSegmenter, examples: Sequence[Example], run: Run, weights: Floats | None, groups: Ints | None
) -> float:
    """The share of wrong pixels of held-out examples."""
    alone = np.arange(len(examples)) if groups is None else groups
    folds = draw_folds(alone, _FOLDS, np.random.default_rng(run.seed))
    wrong = known = 0.0
    for fold in range(int(folds.max()) + 1 if folds.max() else 0):
        own, held = ([e for e, f in zip(examples, folds, strict=True) if (f == fold) == out] for out in (False, True))
        model = _crf(replace(chosen, iterations=_ITERATIONS), replace(run, validation=None), weights)
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            model.fit(own)
        size = sum(int(np.count_nonzero(e.labels >= 0)) for e in held if e.labels is not None)
        wrong += (1.0 - model.score(held)) * size if size else 0.0
        known += size
    return wrong / known if known else float("nan")
