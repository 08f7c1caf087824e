"""How well labellings agree with the truth [LMSBN Eq. 9-13].

Every measure takes truth and prediction of equal shape (n, K), or (n,) for one label, of any two values per label:
what counts as present is 1, True, or whatever `positive` says.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.types import Bools, Floats, PotentiaError, plain_array, shown


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
    arrays = []
    if np.iterable(positive) and not isinstance(positive, str | bytes):
        raise PotentiaError(f"positive must be one value, not {shown(positive)}.")
    for name, given in (("truth", truth), ("predicted", predicted)):
        values = plain_array(given.toarray() if hasattr(given, "toarray") else given, name) == positive
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
