"""Offsets of numbers far from zero: found from moments, subtracted, and announced by attributes "... is present"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..base.types import Bools, Floats, Ints

#: A number is far from zero if its mean is more than this many standard deviations away.
FAR = 10.0
#: A number whose standard deviation is below this share of its mean is constant but for rounding.
CONSTANT_SHARE = 1e-13
#: Fewer values do not tell how a number varies; of fewer than the second, small ones are not worth a warning.
_MIN_VALUES, _MANY_VALUES = 10, 100
#: Root mean square below which a number is small.
_SMALL = 0.1
#: Rows of dense columns that are looked at together.
_ROWS = 4096


class Moments(NamedTuple):
    """Of each number where it is not zero: its total weight, its mean, and the sum of its squared deviations."""

    weight: Floats
    mean: Floats
    deviation: Floats

    @classmethod
    def none(cls, n: int) -> Moments:
        """Of n numbers without values."""
        return cls(np.zeros(n), np.zeros(n), np.zeros(n))

    def add(self, other: Moments, place: Any) -> None:
        """Take in other values; entry k of `other` belongs to entry place[k] of these."""
        n, mean, deviation = (values[place] for values in self)
        total = n + other.weight
        with np.errstate(over="ignore", invalid="ignore"):
            share = other.weight / np.where(total > 0, total, 1.0)
            gap = other.mean - mean
            self.mean[place] = mean + share * gap
            self.deviation[place] = deviation + other.deviation + gap**2 * n * share
        self.weight[place] = total

    def offsets(self) -> Floats:
        """The offset of each number, zero for those that are not far from zero or do not vary.

        A mean in steps of about the standard deviation, so that the order of summation does not matter.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            spread = np.sqrt(self.deviation / np.where(self.weight > 0, self.weight, 1.0))
            size = np.abs(self.mean)
            far = (self.weight >= _MIN_VALUES) & (size > FAR * spread) & (spread > CONSTANT_SHARE * size)
        offsets = np.zeros(len(size))
        step = np.exp2(np.floor(np.log2(spread[far])))
        offsets[far] = np.round(self.mean[far] / step) * step
        return offsets

    def small_squares(self, offsets: Floats) -> Floats:
        """The sum of squares of each number less its offset if it is small, else infinity."""
        with np.errstate(over="ignore", invalid="ignore"):
            squares = self.deviation + np.where(offsets == 0, self.weight * self.mean**2, 0.0)
            small = (self.weight >= _MANY_VALUES) & (self.deviation > 0) & (squares < _SMALL**2 * self.weight)
        return np.where(small, squares, np.inf)


def attribute_moments(attribute: Any, value: Floats, weight: Floats, n: int) -> Moments:
    """Moments of n attributes from their items, which have values and weights."""
    # differences from a value of each attribute keep the digits that squares of large values would lose
    pivot = np.zeros(n)
    pivot[attribute] = value
    total = np.bincount(attribute, weight, n).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        gap = value - pivot[attribute]
        mean = np.bincount(attribute, weight * gap, n) / np.where(total > 0, total, 1.0)
        gap -= mean[attribute]
        deviation = np.bincount(attribute, weight * gap**2, n).astype(np.float64)
        return Moments(total, pivot + mean, deviation)


def column_moments(dense: Any, weight: Floats) -> Moments:
    """Moments of dense columns (tokens, D) where they are not zero, with a weight per token."""
    moments = Moments.none(dense.shape[1])
    for first in range(0, len(dense), _ROWS):
        rows = dense[first : first + _ROWS].astype(np.float64)
        there = np.where(rows != 0, weight[first : first + _ROWS, None], 0.0)
        total = there.sum(axis=0)
        some = np.where(total > 0, total, 1.0)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = (there * rows).sum(axis=0) / some
            deviation = (there * (rows - mean) ** 2).sum(axis=0)
        moments.add(Moments(total, mean, deviation), slice(None))
    return moments


class Offsets(NamedTuple):
    """Offsets by attribute and by dense column, and the attributes that say which numbers are there.

    Attributes:
        attribute: offset of each attribute by number; the entry after the last is zero.
        partner: number of the attribute "... is present" of each attribute, -1 if there is none.
        column: offset of each dense column.
        blocks: (first, end) of blocks of dense columns, with the numbers of their "... is present".
    """

    attribute: Floats
    partner: Any
    column: Floats
    blocks: list[tuple[int, int, int]]

    @classmethod
    def of(
        cls,
        numbers: Mapping[str, int],
        columns: Mapping[str, tuple[int, int]],
        offsets: Mapping[str, float],
        column: Any,
    ) -> Offsets:
        """From offsets by name and by column, for attributes and columns numbered so."""
        n = len(numbers)
        attribute, partner = np.zeros(n + 1), np.full(n + 1, -1, dtype=np.int32)
        for name, offset in offsets.items():
            if (k := numbers.get(name)) is not None:
                attribute[k], partner[k] = offset, numbers.get(presence_name(name), -1)
        blocks = [
            (first, end, numbers[presence_name(name)])
            for name, (first, end) in columns.items()
            if np.any(column[first:end]) and presence_name(name) in numbers
        ]
        return cls(attribute, partner, np.asarray(column, dtype=np.float64), blocks)

    def local(self, numbers: Any) -> tuple[Offsets, Any]:
        """For attributes of which number k is numbers[k] here, and these numbers with those of new attributes."""
        partner = self.partner[numbers]
        far = np.flatnonzero(partner >= 0)
        fresh = np.concatenate([partner[far], [number for *_, number in self.blocks]]).astype(numbers.dtype)
        partners = np.full(len(numbers) + len(fresh), -1, dtype=np.int32)
        partners[far] = len(numbers) + np.arange(len(far))
        offset = np.zeros(len(partners))
        offset[: len(numbers)] = self.attribute[numbers]
        begin = len(numbers) + len(far)
        blocks = [(first, end, begin + k) for k, (first, end, _) in enumerate(self.blocks)]
        return Offsets(offset, partners, self.column, blocks), np.concatenate([numbers, fresh])

    def announce(self, item_ptr: Ints, attribute: Any, value: Floats, dense: Any) -> tuple[Ints, Any, Floats]:
        """Items with those added that say which numbers are there; values are not centred yet."""
        value = value if value.size else np.ones(len(attribute))
        far = np.flatnonzero(self.partner[attribute] >= 0)
        token = np.searchsorted(item_ptr, far, side="right") - 1
        items = _add_items(item_ptr, attribute, value, token, self.partner[attribute[far]])
        for first, end, number in self.blocks:
            there = np.flatnonzero(self._far_entries(dense, first, end).any(axis=1))
            items = _add_items(*items, there, np.full(len(there), number))
        return items

    def centre(self, attribute: Any, value: Floats, dense: Any) -> tuple[Floats, Any]:
        """Values and dense rows less their offsets; entries that are zero stay so."""
        value = value - self.attribute[attribute]
        if not self.column.any():
            return value, dense
        there, centred = self._far_entries(dense, 0, dense.shape[1]), dense.astype(np.float64)
        return value, np.subtract(dense, self.column, out=centred, where=there).astype(dense.dtype)

    def _far_entries(self, dense: Any, first: int, end: int) -> Bools:
        """Which dense entries are not zero and in columns that have an offset."""
        far: Bools = (dense[:, first:end] != 0) & (self.column[first:end] != 0)
        return far


def presence_name(name: str) -> str:
    """The attribute that says that a number is there."""
    return f"{name} is present"


def _add_items(item_ptr: Ints, attribute: Any, value: Floats, token: Any, number: Any) -> tuple[Ints, Any, Floats]:
    """Items with more of value 1, of tokens in ascending order."""
    at = item_ptr[token]
    added = np.searchsorted(token, np.arange(len(item_ptr)), side="left")
    return item_ptr + added, np.insert(attribute, at, number), np.insert(value, at, 1.0)
