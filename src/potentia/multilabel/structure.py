"""Which labels come before which, and what of the earlier ones a label's score is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal

import numpy as np

from .._options import check_choice
from .._types import Floats, Ints, PotentiaError, shown, whole_numbers

#: A network's parents: "all" earlier labels, or the parents of each label (a mapping may leave labels out).
Parents = Literal["all"] | Sequence[Sequence[int]] | Mapping[int, Sequence[int]]


def parent_sets(parents: Parents, n_labels: int) -> list[set[int]] | None:
    """Parents of each label, or None for all earlier labels; refuses unknown labels and cycles."""
    if isinstance(parents, str):
        check_choice("parents", parents, ("all",), "the parents of each label")
        return None
    if isinstance(parents, Mapping):
        given = [parents.get(k, ()) for k in range(n_labels)]
        _check_labels(whole_numbers(list(parents), "parents"), n_labels, "parents")
    else:
        if not isinstance(parents, Sequence | np.ndarray):
            raise PotentiaError(f"parents must be 'all' or the parents of each label, not {shown(parents)}.")
        given = [*parents]
        if len(given) != n_labels:
            raise PotentiaError(f"parents has {len(given)} entries for {n_labels} labels.")
    sets = []
    for k, entry in enumerate(given):
        values = whole_numbers(
            list(entry) if isinstance(entry, Iterable) else [entry], f"parents of label {k}"
        )
        _check_labels(values, n_labels, f"parents of label {k}")
        sets.append(set(values.tolist()))
    topological(sets, np.arange(n_labels))
    return sets


def topological(sets: list[set[int]], wish: Ints) -> Ints:
    """An order with parents first that follows `wish` where it can: always the first label of it that is free."""
    order: list[int] = []
    left = [int(k) for k in wish]
    while left:
        free = next((k for k in left if sets[k].issubset(order)), None)
        if free is None:
            raise PotentiaError(f"parents form a cycle among the labels {sorted(left)}.")
        order.append(free)
        left.remove(free)
    return np.array(order, dtype=np.int64)


def given_order(order: Any, n_labels: int, sets: list[set[int]] | None) -> Ints:
    """A user's order, checked: every label once, parents first."""
    found = whole_numbers(order, "order")
    if found.shape != (n_labels,) or not np.array_equal(np.sort(found), np.arange(n_labels)):
        raise PotentiaError(f"order must hold every label 0..{n_labels - 1} once.")
    if sets is not None:
        place = np.argsort(found)
        for k, parents in enumerate(sets):
            late = [j for j in sorted(parents) if place[j] > place[k]]
            if late:
                raise PotentiaError(f"order has label {k} before its parent {late[0]}.")
    return found


def products(places: Sequence[int], largest: int) -> list[tuple[int, ...]]:
    """The labels whose product is a feature, for every feature: singles first, then up to `largest` at once."""
    return [c for size in range(1, largest + 1) for c in combinations(places, size)]


def product_columns(signs: Floats, features: Sequence[tuple[int, ...]]) -> Floats:
    """Columns (n, features) of products of signs."""
    columns = np.empty((len(signs), len(features)))
    for t, members in enumerate(features):
        np.prod(signs[:, list(members)], axis=1, out=columns[:, t])
    return columns


def restrict(sets: list[set[int]] | None, keep: Ints) -> list[set[int]] | None:
    """The parents among the kept labels, renumbered."""
    if sets is None:
        return None
    place = {int(k): p for p, k in enumerate(keep)}
    return [{place[j] for j in sets[k] if j in place} for k in keep]


def _check_labels(values: Ints, n_labels: int, name: str) -> None:
    if values.size and not (values.min() >= 0 and values.max() < n_labels):
        raise PotentiaError(f"{name} must name labels 0..{n_labels - 1}.")
