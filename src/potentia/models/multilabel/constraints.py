"""Constraints on labellings: structured factors of labels by name, as rules that searches check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.saving import Registered
from ...base.types import Bools, Floats, InfeasibleError, Ints, PotentiaError, shown
from ...graph.structured import StructuredValue
from ...kernels.search import Rules

#: Constraints as users give them: factors with names of labels, or the parent of each label of a hierarchy.
Constraints = Sequence[Any] | Mapping[Any, Any] | None


@dataclass(frozen=True)
class Constraint(Registered):
    """Which numbers of some labels may count: `allowed[c]` for c of `labels` present, or absent if not in `on`.

    text: what messages call it. labels: their numbers. on: for each whether its presence counts, or its absence.
    """

    text: str
    labels: tuple[int, ...]
    on: tuple[bool, ...]
    allowed: tuple[bool, ...]

    def __post_init__(self) -> None:
        for name, kind in (("labels", int), ("on", bool), ("allowed", bool)):
            values = tuple(getattr(self, name)) if isinstance(getattr(self, name), list | tuple) else (None,)
            if not all(type(value) is kind for value in values):
                raise PotentiaError(f"a saved constraint is damaged: its {name} are {shown(getattr(self, name))}.")
            object.__setattr__(self, name, values)
        if not len(set(self.labels)) == len(self.labels) == len(self.on) == len(self.allowed) - 1:
            raise PotentiaError(f"the saved constraint {shown(self.text)} is damaged.")


def read_constraints(option: Constraints, names: list[str]) -> list[Constraint]:
    """The constraints of an option; labels are called by their names, or by their numbers."""
    if option is None:
        return []
    if isinstance(option, Mapping):
        return [_implies(child, parent, names) for child, parent in option.items()]
    if isinstance(option, str) or not isinstance(option, Sequence):
        raise PotentiaError(
            f"constraints must be a list of pt.factors with names of labels, or a dictionary of the parents of labels, "
            f"not {shown(option)}."
        )
    return [_read(factor, names) for factor in option]


def _read(factor: Any, names: list[str]) -> Constraint:
    if isinstance(factor, Constraint):
        if not all(0 <= k < len(names) for k in factor.labels):
            raise PotentiaError(f"the constraint {factor.text} names labels outside 0..{len(names) - 1}.")
        return factor
    if not isinstance(factor, StructuredValue):
        raise PotentiaError(f"constraints must be pt.factors such as Implies('a', 'b'), not {shown(factor)}.")
    if not factor.names:
        raise PotentiaError(f"{type(factor).__name__}() in constraints needs the names of its labels.")
    text, n = f"{type(factor).__name__}({', '.join(factor.names)})", len(factor.names)
    structure = factor.structure(n)
    # one of two states: what counts is how many labels have the state that counts
    states = np.resize(structure.on, n) if structure.rule in ("count", "parity") else np.ones(n, dtype=int)
    if states.max() > 1:
        raise PotentiaError(f"{text} counts state {states.max()}, but labels have the states 0 and 1.")
    labels = np.where(np.tri(n + 1, n, -1) > 0, states, 1 - states)
    scores = factor.score(labels)
    if not np.all((scores == 0) | np.isneginf(scores)):
        raise PotentiaError(f"{text} has finite scores; constraints on labels must be hard, of infinite weight.")
    numbers = tuple(_number(name, names) for name in factor.names)
    return Constraint(text, numbers, tuple((states == 1).tolist()), tuple((scores == 0).tolist()))


def _implies(child: Any, parent: Any, names: list[str]) -> Constraint:
    """Whoever has the child has the parent: the number of (child absent, parent present) is at least 1."""
    pair = _number(child, names), _number(parent, names)
    if pair[0] == pair[1]:
        raise PotentiaError(f"constraints make label {child} its own parent.")
    return Constraint(f"Implies({child}, {parent})", pair, (False, True), (False, True, True))


def _number(name: Any, names: list[str]) -> int:
    """A label's number."""
    if str(name) in names:
        return names.index(str(name))
    if isinstance(name, int | np.integer) and not isinstance(name, bool) and 0 <= name < len(names):
        return int(name)
    some = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    raise PotentiaError(f"constraints name the label {shown(name)}, which y does not have; it has {some}.")


def check_labels(constraints: list[Constraint], signs: Floats) -> None:
    """Refuse labels (n, K), signs or 0 for missing ones, that no labelling within the constraints agrees with."""
    for c in constraints:
        own = signs[:, list(c.labels)] * np.where(c.on, 1.0, -1.0)
        count, free = np.sum(own > 0, axis=1), np.sum(own == 0, axis=1)
        bad = np.flatnonzero(_reach(np.array(c.allowed))[count] > count + free)
        if bad.size:
            raise PotentiaError(
                f"row {bad[0]} of y violates {c.text}, as do {bad.size - 1} others; correct or drop them."
            )


def among_varying(constraints: list[Constraint], varying: Ints, constant: Floats) -> list[Constraint]:
    """What the constraints leave for the labels that vary, numbered among themselves.

    The others have constant signs (K), which are not 0.
    """
    place, left = {int(k): i for i, k in enumerate(varying)}, []
    for c in constraints:
        members = list(zip(c.labels, c.on, strict=True))
        known = sum(bool(constant[k] > 0) == on for k, on in members if k not in place)
        members = [(place[k], on) for k, on in members if k in place]
        allowed = c.allowed[known : known + len(members) + 1]
        if not any(allowed):
            raise InfeasibleError(f"{c.text} cannot hold, given the labels that are constant in training.")
        if members and not all(allowed):
            left.append(Constraint(c.text, tuple(k for k, _ in members), tuple(on for _, on in members), allowed))
    return left


def make_rules(constraints: Sequence[Constraint], order: Ints) -> Rules:
    """The rules of labels by place; `order` holds all labels that the constraints have."""
    place = np.argsort(order)
    entries = sorted(
        (int(place[k]), r, 1.0 if on else -1.0)
        for r, c in enumerate(constraints)
        for k, on in zip(c.labels, c.on, strict=True)
    )
    reach = [_reach(np.array(c.allowed)) for c in constraints]
    return Rules(
        np.searchsorted([i for i, _, _ in entries], np.arange(len(order) + 1)).astype(np.int64),
        np.array([r for _, r, _ in entries], dtype=np.int64),
        np.array([on for _, _, on in entries], dtype=np.float64),
        np.array([len(c.labels) for c in constraints], dtype=np.int64),
        np.cumsum([0, *(len(part) for part in reach)]).astype(np.int64),
        np.concatenate([*reach, np.zeros(0, dtype=np.int64)]).astype(np.int64),
    )


def _reach(allowed: Bools) -> Ints:
    """The least allowed number that is at least c = 0..n + 1, of numbers 0..n; n + 1 if there is none."""
    n, numbers = len(allowed) - 1, np.flatnonzero(allowed)
    return np.append(numbers, n + 1)[np.searchsorted(numbers, np.arange(n + 2))]


def forced(rules: Rules, placed: Floats) -> Bools:
    """Which labels (n, V) by place rules leave no choice, given the labels before them."""
    result = np.zeros(placed.shape, dtype=bool)
    count, left = np.zeros((len(placed), len(rules.size)), dtype=np.int64), rules.size.copy()
    for i in range(placed.shape[1]):
        up, low = np.ones(len(placed), dtype=bool), np.ones(len(placed), dtype=bool)
        for s in range(rules.label_ptr[i], rules.label_ptr[i + 1]):
            r, on = rules.rule[s], rules.on[s] > 0
            reach, most = rules.reach[rules.reach_ptr[r] : rules.reach_ptr[r + 1]], count[:, r] + left[r] - 1
            counts, does_not = reach[count[:, r] + 1] <= most + 1, reach[count[:, r]] <= most
            up &= counts if on else does_not
            low &= does_not if on else counts
            left[r] -= 1
            count[:, r] += placed[:, i] == rules.on[s]
        result[:, i] = up != low
    return result


def forced_by_others(rules: Rules, signs: Floats) -> Bools:
    """Which labels (n, K) could not have the other sign, given all other labels."""
    label = np.repeat(np.arange(signs.shape[1]), np.diff(rules.label_ptr))
    result = np.zeros(signs.shape, dtype=bool)
    for r in range(len(rules.size)):
        own = rules.rule == r
        members, reach = label[own], rules.reach[rules.reach_ptr[r] : rules.reach_ptr[r + 1]]
        counts = signs[:, members] == rules.on[own]
        other = counts.sum(axis=1)[:, None] + np.where(counts, -1, 1)
        result[:, members] |= reach[other] != other
    return result
