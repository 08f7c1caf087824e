"""`segment`: label one image from a few strokes; resume with more strokes, or with the next image."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..base.saving import digest_of
from ..base.types import ArrayLike, Floats, Ints, PotentiaError, check_type, plain_array, whole_numbers
from ..features.colour import resize, upsample_marginals
from ..features.image import reduced_size
from ..features.pixels import edge_features
from ..inference.messages import TRW
from ..learn.risk import MarginalRisk
from ..models.crf import CRF
from ..potentials import Linear, Potts, Temperature
from .image_files import Given, Mask, read_image
from .image_pipeline import BOUNDARY, ImagePipeline, grid
from .pixel_values import Intensity, find_classes, learn_intensity
from .pixels import PixelRows, PixelStage, log_probabilities, whole
from .refine import Refinement

#: Images of more pixels than this are reduced for the CRF; labels are at full size.
_MAX_PIXELS = 1_000_000
#: The largest number of pixels under strokes that one image contributes.
_MAX_ROWS = 6000
#: The penalty of the linear function of standardised features.
_RIDGE = 10.0
#: The weight of log-probabilities, and those of a pair of unlike pixels and what similar ones have beside it.
_NODE, _LEAST_PAIR, _PAIR = 0.15, 0.2, 2.0
#: Features of a pair in `ImagePipeline`, and the column that the weight follows: similarity at scale 1.
_PAIR_FEATURES, _SIMILARITY = 11, 2


@dataclass(frozen=True, eq=False)
class Segmentation(Refinement):
    """What `segment` finds; its entropy shows where strokes help most.

    Attributes:
        labels: (h, w), values of the strokes.
        probabilities: (h, w, n_classes), in the order of `classes`.
        classes: the values of the strokes, ascending.
        model: predicts other images; `model.save(path)` writes it for `potentia predict`.
    """

    classes: Ints
    model: ImagePipeline = field(repr=False)
    memory: Memory = field(repr=False)


@dataclass(frozen=True, eq=False)
class Memory:
    """What a warm start takes over.

    Attributes:
        digest: of the image.
        intensity: how images are normalised.
        features: (n_pixels, n_features) of the image at the size that the CRF sees.
        pairs: how much its neighbours like to be equal.
        rows: features and classes of the pixels under strokes, by digest of the image.
    """

    digest: str
    intensity: Intensity
    features: np.ndarray
    pairs: Floats
    rows: dict[str, tuple[np.ndarray, Ints]]


def segment(
    image: ArrayLike | str | os.PathLike[str], scribbles: ArrayLike, *, warm_start: Segmentation | None = None
) -> Segmentation:
    """Labels and probabilities of all pixels of an image from a few strokes.

    A linear function of multi-scale filters, and of the position as long as there is one image, is fitted to the
    pixels under the strokes; a CRF whose pairs are stronger between similar pixels makes its labels consistent.
    Pixels under strokes keep their labels.

    Args:
        image: (h, w) or (h, w, channels), or a file.
        scribbles: (h, w) whole numbers: the class of pixels under strokes, -1 elsewhere.
        warm_start: an earlier segmentation. Of the same image, its features are used again, which is several times as
            fast; of another image, the strokes drawn there are learned from, too.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> image = np.full((20, 30, 3), 40, dtype=np.uint8)
        >>> image[:, 15:] = 200
        >>> strokes = np.full((20, 30), -1)
        >>> strokes[5:15, 3:5], strokes[5:15, 25:27] = 0, 1
        >>> result = pt.segment(image, strokes)
        >>> result.labels[10, ::6].tolist(), result.probabilities.shape
        ([0, 0, 0, 1, 1], (20, 30, 2))
    """
    check_type("warm_start", warm_start, Segmentation, optional=True)
    path = Path(image) if isinstance(image, str | os.PathLike) else None
    pixels = plain_array(image, "image") if path is None else read_image(path)
    marks = _check_marks(scribbles, pixels.shape)
    memory = _remember(pixels, None if warm_start is None else warm_start.memory)
    reduce = _reduction(marks.shape)
    size = reduced_size(marks.shape, reduce)
    small = _shrunk(marks, size)
    memory.rows.pop(memory.digest, None)
    if small.max() >= 0:
        memory.rows[memory.digest] = _draw(memory.features, small.ravel())
    x, codes = (np.concatenate(parts) for parts in zip(*memory.rows.values(), strict=True))
    classes = np.unique(np.append(codes, marks[marks >= 0]))
    if len(classes) < 2:
        raise PotentiaError(f"the strokes have class {classes[0]} only; draw strokes of two classes at least.")
    # strokes of other images say nothing about where in this one a class is
    columns = slice(None) if len(memory.rows) == 1 else slice(0, -2)
    function = _fit_pixels(x[:, columns], np.searchsorted(classes, codes), len(classes))
    crf = _fixed_crf(len(classes))
    scores = log_probabilities(function, memory.features[:, columns])
    observed = np.where(small >= 0, np.searchsorted(classes, np.maximum(small, classes[0])), -1).ravel()
    theta = {"node": _NODE * scores.astype(np.float64), "edge": Potts(memory.pairs)}
    result = crf.inference_.infer(grid(size, len(classes)), theta, observed=observed)
    table = upsample_marginals(result.variable_marginals, size, marks.shape)
    table = np.where((marks >= 0)[..., None], marks[..., None] == classes, table)
    rows = PixelRows("filters", len(memory.rows) == 1, 0, memory.intensity.channels)
    model = ImagePipeline(
        crf,
        find_classes([Mask(classes[None], False, None)], None, None, "keep"),
        "filters",
        BOUNDARY,
        reduce,
        intensity=memory.intensity,
        pixels=PixelStage(rows, function),
    )
    return Segmentation(classes[table.argmax(axis=-1)], table, classes, model, memory)


def _check_marks(scribbles: ArrayLike, shape: tuple[int, ...]) -> Ints:
    marks = whole_numbers(scribbles, "scribbles")
    if len(shape) not in (2, 3):
        raise PotentiaError(f"image must have shape (h, w) or (h, w, channels), not {shape}.")
    if marks.shape != shape[:2]:
        raise PotentiaError(f"scribbles has shape {marks.shape}, but the image has {shape[:2]} pixels.")
    if marks.size < 2 or marks.max() < 0:
        raise PotentiaError("scribbles holds no class: give 0, 1, ... under strokes, and -1 elsewhere.")
    if marks.min() >= 0:
        raise PotentiaError("scribbles gives every pixel a class; pixels without a stroke are -1.")
    if marks.max() > 255:
        raise PotentiaError(f"scribbles has class {marks.max()}; classes are 0 to 255.")
    return marks


def _reduction(size: tuple[int, ...]) -> float:
    return min(1.0, float(np.sqrt(_MAX_PIXELS / (size[0] * size[1]))))


def _shrunk(marks: Ints, size: tuple[int, ...]) -> Ints:
    """Marks at a smaller size: a pixel with a stroke in it has its class."""
    small = np.full(size, -1)
    row, column = np.nonzero(marks >= 0)
    small[row * size[0] // marks.shape[0], column * size[1] // marks.shape[1]] = marks[row, column]
    return small


def _remember(pixels: np.ndarray, before: Memory | None) -> Memory:
    """The memory of an image: that of before if it is the same, else new features beside the earlier strokes."""
    digest = digest_of([repr((pixels.shape, pixels.dtype)), np.ascontiguousarray(pixels)])
    if before is not None and before.digest == digest:
        return replace(before, rows=dict(before.rows))
    intensity = learn_intensity([pixels], 2, None) if before is None else before.intensity
    size = reduced_size(pixels.shape[:2], _reduction(pixels.shape[:2]))
    values = resize(intensity.apply(pixels), size)
    features = PixelRows("filters", True, 0, values.shape[-1]).rows(values, whole(size), Given())
    edges = grid(size, 2).scopes["edge"]
    similarity = edge_features(values, edges, "boundary")[:, _SIMILARITY].astype(np.float64)
    pairs = _LEAST_PAIR + _PAIR * similarity
    return Memory(digest, intensity, features, pairs, {} if before is None else dict(before.rows))


def _draw(features: np.ndarray, marks: Ints) -> tuple[np.ndarray, Ints]:
    """Features and classes of the pixels under strokes; of many a regular sample of each class."""
    classes = np.unique(marks[marks >= 0])
    limit = max(1, _MAX_ROWS // len(classes))
    chosen = [np.flatnonzero(marks == k) for k in classes]
    rows = np.concatenate([own[:: -(-len(own) // limit)] for own in chosen])
    return features[rows], marks[rows]


def _fit_pixels(x: np.ndarray, labels: Ints, n_classes: int) -> Linear:
    """A linear function of standardised features; each class weighs the same."""
    from sklearn.preprocessing import StandardScaler

    counts = np.bincount(labels, minlength=n_classes)
    weight = len(labels) / (np.count_nonzero(counts) * counts[labels])
    function = Linear(ridge=_RIDGE, transformer=StandardScaler(), max_iter=100, tol=1e-4)
    return function.fit(x, labels, weight=weight, n_outputs=n_classes)


def _fixed_crf(n_classes: int) -> CRF:
    """A CRF of log-probabilities whose pairs have the weights of `Memory.pairs`, in a form that can be saved."""
    node = Temperature().start(np.eye(n_classes), n_classes)
    node.parameters = np.array([_NODE])
    edge = Potts(ridge=0.0).start(np.eye(_PAIR_FEATURES + 1, _PAIR_FEATURES), n_classes**2)
    table = np.zeros((_PAIR_FEATURES + 1, 1))
    table[_SIMILARITY], table[-1] = _PAIR, _LEAST_PAIR
    edge.parameters = np.asarray(np.linalg.solve(edge.basis_, table)[:, 0], dtype=np.float64)
    inference = TRW(iterations=20, tol=0.0)
    crf = CRF({"node": Temperature(), "edge": Potts()}, MarginalRisk(inference=inference))
    crf.potentials_ = {"node": node, "edge": edge}
    crf.scales_, crf.trained_inference_ = {"node": 1.0, "edge": 1.0}, inference
    crf.shapes_ = {"node": (n_classes,), "edge": (n_classes, n_classes)}
    crf.history_, crf.converged_ = [], True
    return crf
