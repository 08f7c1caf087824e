"""How well predictions agree with the truth: sets of labels [LMSBN Eq. 9-13], and label maps of images.

Measures of label sets take truth and prediction of equal shape (n, K), or (n,) for one label, of any two values per
label: what counts as present is 1, True, or whatever `positive` says. Those of label maps (IoU, F1, boundary F1, the
confusion matrix, calibration) take class numbers of any shape; negative ones are unknown (void) and are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .base.types import (
    ArrayLike,
    Bools,
    Floats,
    Ints,
    PotentiaError,
    check_count,
    plain_array,
    real_numbers,
    shown,
    whole_numbers,
)


def exact_match(truth: Any, predicted: Any, positive: Any = 1) -> float:
    """Share of rows whose labels are all right [LMSBN Eq. 9]."""
    a, b = _present(truth, predicted, positive)
    return float(np.mean(np.all(a == b, axis=1)))


def hamming_loss(truth: Any, predicted: Any, positive: Any = 1) -> float:
    """Share of labels that are wrong [LMSBN Eq. 10]."""
    a, b = _present(truth, predicted, positive)
    return float(np.mean(a != b))


def f_samples(truth: Any, predicted: Any, positive: Any = 1) -> float:
    """F-score of each row's set of labels, averaged; a row with no label in either counts as 1 [LMSBN Eq. 11]."""
    a, b = _present(truth, predicted, positive)
    return float(np.mean(_f(a, b, axis=1, empty=1.0)))


def f_macro(truth: Any, predicted: Any, positive: Any = 1) -> float:
    """F-score of each label, averaged over labels; a label that is absent from both counts as 0 [LMSBN Eq. 12]."""
    a, b = _present(truth, predicted, positive)
    return float(np.mean(_f(a, b, axis=0, empty=0.0)))


def f_micro(truth: Any, predicted: Any, positive: Any = 1) -> float:
    """F-score of all labels of all rows at once; 0 where there is no label at all [LMSBN Eq. 13]."""
    a, b = _present(truth, predicted, positive)
    return float(_f(a.reshape(-1, 1), b.reshape(-1, 1), axis=0, empty=0.0)[0])


#: The paper's five measures by name; of `hamming_loss` less is better.
MEASURES = {
    "exact_match": exact_match,
    "hamming_loss": hamming_loss,
    "f_micro": f_micro,
    "f_macro": f_macro,
    "f_samples": f_samples,
}


def all_measures(truth: Any, predicted: Any, positive: Any = 1) -> dict[str, float]:
    """All five measures."""
    return {name: measure(truth, predicted, positive) for name, measure in MEASURES.items()}


def f_scores(truth: Any, predicted: Any, positive: Any = 1) -> Floats:
    """F-score of each label (K); 0 for a label that is absent from both."""
    return _f(*_present(truth, predicted, positive), axis=0, empty=0.0)


def _present(truth: Any, predicted: Any, positive: Any) -> tuple[Bools, Bools]:
    """Which labels have the value `positive` in truth and in prediction, (n, K) each."""
    arrays = []
    if np.iterable(positive) and not isinstance(positive, str | bytes):
        raise PotentiaError(f"positive must be one value, not {shown(positive)}.")
    for name, labels in (("truth", truth), ("predicted", predicted)):
        values = plain_array(labels.toarray() if hasattr(labels, "toarray") else labels, name) == positive
        if values.ndim not in (1, 2) or values.size == 0:
            raise PotentiaError(f"{name} must be labels (n, K) or (n,), not of shape {values.shape}.")
        arrays.append(values[:, None] if values.ndim == 1 else values)
    if arrays[0].shape != arrays[1].shape:
        raise PotentiaError(f"truth has shape {arrays[0].shape} but predicted {arrays[1].shape}.")
    return arrays[0], arrays[1]


def _f(a: Bools, b: Bools, axis: int, empty: float) -> Floats:
    """2 |a and b| / (|a| + |b|) along an axis; `empty` where both are empty."""
    both = np.sum(a & b, axis=axis)
    total = a.sum(axis=axis) + b.sum(axis=axis)
    return np.where(total == 0, empty, 2.0 * both / np.maximum(total, 1))


# -- label maps -----------------------------------------------------------------------------------------------

#: Bins of the reliability curve.
N_BINS = 15


def confusion_matrix(truth: ArrayLike, predicted: ArrayLike, n_classes: int) -> Ints:
    """Pixels by true class (rows) and predicted class (columns)."""
    a, b = _label_maps(truth, predicted, n_classes)
    known = a >= 0
    a, b = a[known], b[known]
    if a.size and (max(a.max(), b.max()) >= n_classes or b.min() < 0):
        raise PotentiaError(
            f"classes are 0..{n_classes - 1} (n_classes = {n_classes}), but there is "
            f"{max(a.max(), b.max())} or a negative one."
        )
    return np.bincount(a * n_classes + b, minlength=n_classes**2).reshape(n_classes, n_classes)


def _label_maps(truth: ArrayLike, predicted: ArrayLike, n_classes: int) -> tuple[Ints, Ints]:
    """Two label maps as arrays of classes, checked to have one size."""
    check_count("n_classes", n_classes, 1)
    a, b = whole_numbers(truth, "truth"), whole_numbers(predicted, "predicted")
    if a.shape != b.shape:
        raise PotentiaError(f"truth has shape {a.shape} but predicted {b.shape}.")
    return a, b


def class_scores(confusion: ArrayLike) -> dict[str, Floats]:
    """Recall, precision, F1 and IoU of every class of a confusion matrix; NaN for classes that do not occur."""
    counts = whole_numbers(confusion, "confusion")
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1]:
        raise PotentiaError(f"confusion must be truth by prediction, (n_classes, n_classes), not {counts.shape}.")
    right, size, named = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
    return {
        "recall": _share(right, size),
        "precision": _share(right, named),
        "f1": _share(2 * right, size + named),
        "iou": _share(right, size + named - right),
    }


def mean_iou(truth: ArrayLike, predicted: ArrayLike, n_classes: int) -> float:
    """Intersection over union, averaged over the classes that are somewhere."""
    return float(np.nanmean(class_scores(confusion_matrix(truth, predicted, n_classes))["iou"]))


def boundary_counts(truth: ArrayLike, predicted: ArrayLike, n_classes: int, tolerance: int = 2) -> Ints:
    """(n_classes, 4): boundary pixels of the prediction that are near a true one, all, and the same of the truth.

    A class's boundary are its pixels that touch another class or the unknown; near is within `tolerance` pixels along
    the axes and diagonals. Pixels at and beside unknown ones are left out.
    """
    from scipy import ndimage  # a tenth of a second that importing the package does without

    check_count("tolerance", tolerance)
    a, b = _label_maps(truth, predicted, n_classes)
    square = ndimage.generate_binary_structure(a.ndim, a.ndim)
    counted = ~ndimage.binary_dilation(a < 0, square, iterations=tolerance + 1) if np.any(a < 0) else True
    counts = np.zeros((n_classes, 4), dtype=np.int64)
    for k in range(n_classes):
        true, other = _boundary(a == k), _boundary(b == k)
        # SciPy repeats without end where iterations is 0
        near_true, near_other = (
            ndimage.binary_dilation(line, square, iterations=tolerance) if tolerance else line for line in (true, other)
        )
        true, other = true & counted, other & counted
        counts[k] = (
            np.count_nonzero(other & near_true), np.count_nonzero(other),
            np.count_nonzero(true & near_other), np.count_nonzero(true),
        )  # fmt: skip
    return counts


def boundary_f1(counts: ArrayLike) -> Floats:
    """F1 of every class's boundary from summed `boundary_counts`; NaN where neither has one."""
    near, lines = (real_numbers(counts, "counts")[:, part] for part in ([0, 2], [1, 3]))
    with np.errstate(invalid="ignore", divide="ignore"):
        precision, recall = np.where(lines > 0, near / lines, 0.0).T
        f1 = np.where(precision + recall > 0, 2 * precision * recall / (precision + recall), 0.0)
    return np.where(lines.sum(axis=1) > 0, f1, np.nan)


def _boundary(region: np.ndarray) -> np.ndarray:
    """Pixels of a region with a neighbour along an axis that is not in it."""
    from scipy import ndimage

    inner = ndimage.binary_erosion(region, border_value=1)
    line: np.ndarray = region & ~inner
    return line


@dataclass
class Calibration:
    """How often predictions of a certain confidence are right, gathered image by image.

    Attributes:
        counts, confidence, right: per bin of confidence the pixels, the summed confidence, and how many were right.
    """

    counts: Floats = field(default_factory=lambda: np.zeros(N_BINS))
    confidence: Floats = field(default_factory=lambda: np.zeros(N_BINS))
    right: Floats = field(default_factory=lambda: np.zeros(N_BINS))

    def add(self, truth: Ints, marginals: np.ndarray) -> None:
        """Count an image with classes (*size) and marginals (*size, n_classes)."""
        known = truth >= 0
        marginals = marginals[known]
        best = marginals.argmax(axis=-1)
        top = np.clip(marginals.max(axis=-1), 0.0, 1.0).astype(np.float64)
        place = np.minimum((top * N_BINS).astype(np.int64), N_BINS - 1)
        self.counts += np.bincount(place, minlength=N_BINS)
        self.confidence += np.bincount(place, weights=top, minlength=N_BINS)
        self.right += np.bincount(place, weights=best == truth[known], minlength=N_BINS)

    def merge(self, other: Calibration) -> None:
        """Add the counts of another calibration."""
        self.counts += other.counts
        self.confidence += other.confidence
        self.right += other.right

    def error(self) -> float:
        """The expected calibration error: mean distance of confidence and accuracy over the bins, by pixels."""
        return float(np.abs(self.confidence - self.right).sum() / max(self.counts.sum(), 1.0))

    def curve(self) -> list[dict[str, Any]]:
        """The reliability curve: confidence, accuracy and pixels of every bin that has some."""
        return [
            {"confidence": float(c / n), "accuracy": float(r / n), "pixels": int(n)}
            for n, c, r in zip(self.counts, self.confidence, self.right, strict=True)
            if n > 0
        ]


def segmentation_scores(
    confusion: ArrayLike, names: Sequence[str], boundary: ArrayLike | None = None
) -> dict[str, Any]:
    """All scores of a confusion matrix (truth by prediction), by class and averaged over the classes that occur.

    boundary: summed `boundary_counts`, for the F1 of boundaries.
    """
    counts = whole_numbers(confusion, "confusion")
    if counts.sum() == 0:
        raise PotentiaError("the masks have no pixel of a known class to compare with.")
    by_class = class_scores(counts)
    if boundary is not None:
        by_class["boundary_f1"] = boundary_f1(boundary)
    classes = [
        {"class": name, "pixels": int(counts[k].sum()), **{key: float(v[k]) for key, v in by_class.items()}}
        for k, name in enumerate(names)
    ]
    means = {
        f"mean_{key}": float(np.nanmean(v)) if np.isfinite(v).any() else float("nan") for key, v in by_class.items()
    }
    accuracy = float(np.trace(counts) / counts.sum())
    return {"accuracy": accuracy, "error": 1.0 - accuracy, **means, "classes": classes, "confusion": counts.tolist()}


def _share(part: Ints, total: Ints) -> Floats:
    """part / total; NaN where the total is 0."""
    return np.where(total > 0, part / np.maximum(total, 1), np.nan)
