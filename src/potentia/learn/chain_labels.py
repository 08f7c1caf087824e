"""Labels of sequences as users give them: their classes, checks, numbers, and what a tagging scheme allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._types import Floats, Ints, PotentiaError
from ..features.attributes import EncodedTokens
from ..features.schemes import allowed_tags
from .chain_layout import Constraints

Label = str | int
#: Labels are numbered by 16 bits.
MAX_LABELS = 2**16 - 1


def label_classes(y: Any) -> list[Label]:
    """The different labels, in order."""
    if isinstance(y, str) or not isinstance(y, Sequence | np.ndarray):
        raise PotentiaError(f"y must be a list of lists of labels, not a {type(y).__name__}.")
    found: set[Any] = set()
    for number, row in enumerate(y):
        if isinstance(row, str) or not isinstance(row, Sequence | np.ndarray):
            raise PotentiaError(f"y[{number}] must be a list of labels, not {row!r:.40}.")
        found.update(row.tolist() if isinstance(row, np.ndarray) else row)
    found.discard(None)
    strange = next(
        (label for label in found if isinstance(label, bool) or not isinstance(label, str | int)), None
    )
    if strange is not None:
        raise PotentiaError(
            f"labels must be texts or whole numbers, or None if not known, not {strange!r:.40}."
        )
    if len({isinstance(label, str) for label in found}) > 1:
        raise PotentiaError("y mixes texts and whole numbers; labels must be of one type.")
    if not found:
        raise PotentiaError("y has no labels to learn from.")
    if len(found) > MAX_LABELS:
        raise PotentiaError(f"y has {len(found)} different labels; at most {MAX_LABELS} are possible.")
    return [str(label) if isinstance(label, str) else int(label) for label in sorted(found)]


def check_lengths(y: Any, lengths: Sequence[int]) -> None:
    """Refuse labels that do not belong to sequences of these lengths."""
    if len(y) != len(lengths):
        raise PotentiaError(f"X has {len(lengths)} sequences, but y has {len(y)}.")
    for number, (row, n) in enumerate(zip(y, lengths, strict=True)):
        if len(row) != n:
            raise PotentiaError(f"X[{number}] has {n} tokens, but y[{number}] has {len(row)} labels.")


def encode_labels(y: Any, classes: list[Label], encoded: EncodedTokens) -> Any:
    """Numbers of all labels, -1 where not known."""
    check_lengths(y, np.diff(encoded.sequence_ptr).tolist())
    place: dict[Any, int] = {label: k for k, label in enumerate(classes)} | {None: -1}
    return np.fromiter((place[label] for row in y for label in row), dtype=np.int32)


def sequence_weights(given: Any, n: int) -> Floats:
    """One weight per sequence, ones if not given."""
    if given is None:
        return np.ones(n)
    weight = np.asarray(given, dtype=np.float64)
    if weight.shape != (n,) or not np.isfinite(weight).all() or weight.min(initial=0.0) < 0:
        raise PotentiaError(f"sample_weight must be {n} finite numbers >= 0, one per sequence.")
    if not weight.any():
        raise PotentiaError("sample_weight is zero for every sequence.")
    return weight


def scheme_constraints(classes: Sequence[Label], scheme: str | None) -> Constraints:
    """What a scheme allows, or everything."""
    n = len(classes)
    if scheme is None:
        return Constraints(np.ones(n, dtype=bool), np.ones((n, n), dtype=bool), np.ones(n, dtype=bool))
    allowed = Constraints(*allowed_tags([str(label) for label in classes], scheme))
    if not (allowed.start.any() and allowed.end.any()):
        raise PotentiaError(f"no label may begin or end a sequence in the scheme {scheme}.")
    return allowed


def check_allowed(
    sequence_ptr: Ints, labels: Any, classes: Sequence[Label], allowed: Constraints, scheme: str | None
) -> None:
    """Refuse labels that the scheme does not allow."""
    if scheme is None or not len(labels):
        return
    filled = np.flatnonzero(np.diff(sequence_ptr))
    starts, ends = sequence_ptr[filled], sequence_ptr[filled + 1] - 1
    bad = np.zeros(len(labels), dtype=bool)
    both = (labels[:-1] >= 0) & (labels[1:] >= 0)
    bad[1:] = both & ~allowed.transitions[labels[:-1], labels[1:]]
    bad[starts] = (labels[starts] >= 0) & ~allowed.start[labels[starts]]
    bad[ends] |= (labels[ends] >= 0) & ~allowed.end[labels[ends]]
    if bad.any():
        token = int(np.argmax(bad))
        number = int(np.searchsorted(sequence_ptr, token, side="right")) - 1
        raise PotentiaError(
            f"the label {classes[labels[token]]!r} of token {token - int(sequence_ptr[number])} in y[{number}] is not "
            f"allowed there in the scheme {scheme}; correct it, or leave the scheme out."
        )
