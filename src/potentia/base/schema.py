"""Declarations of what saved classes hold, and the one checker that reads them before a file's content is used.

A schema maps names to fields, in the order in which they are checked. Sizes have names: the first field that mentions
"K" settles it, and later ones must agree. "K+1" is one more than "K", and "*" any size.
"""

# ruff: noqa: N802 (kinds of fields are named as types, because schemas read as declarations)

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from .types import Floats, Ints, PotentiaError

Sizes = dict[str, int]
Schema = Mapping[str, "Field"]


class _DamageError(Exception):
    """What is wrong with a value, as the end of a sentence that begins with its name."""


Reader = Callable[..., Any]


@dataclass(kw_only=True)
class Field:
    """A value of a file; an optional one may be missing or null, a nullable one null.

    read(value, sizes) is the value, checked; it may settle sizes.
    """

    read: Reader = lambda value, sizes: value
    optional: bool = False
    nullable: bool = False


def _declares(reader: Reader) -> Callable[..., Field]:
    """A kind of field: from reader(value, sizes, *options), how a schema declares one with some options."""
    names = list(inspect.signature(reader).parameters)[2:]

    def declare(*options: Any, optional: bool = False, nullable: bool = False, **named: Any) -> Field:
        """A field whose options are given by position or by name."""
        read = partial(reader, **dict(zip(names, options, strict=False)), **named)
        return Field(read=read, optional=optional, nullable=nullable)

    declare.__doc__ = reader.__doc__
    return declare


def check(schema: Schema, values: Any, what: str, sizes: Sizes | None = None) -> dict[str, Any]:
    """The values that a schema names, each as its field demands, or one sentence about the first that is not."""
    try:
        return _read(schema, values, {} if sizes is None else sizes)
    except _DamageError as damage:
        raise PotentiaError(f"the saved {what} is damaged: {damage}.") from None


def check_state(schema: Schema, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of the arrays of a checkpoint, checked as above; the sentence says what to do.

    Schemas of checkpoints name every array of a state, as those of models do.
    """
    try:
        found = _read(schema, arrays, {})
    except _DamageError as damage:
        raise PotentiaError(
            f"the checkpoint is damaged or belongs to other examples: {damage}; delete it to start again."
        ) from None
    return {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in found.items()}


def like(arrays: Mapping[str, Floats], **options: Any) -> Schema:
    """A schema of floats with the names and shapes of these arrays."""
    return {name: Array("f8", array.shape, **options) for name, array in arrays.items()}


def _read(schema: Schema, values: Any, sizes: Sizes) -> dict[str, Any]:
    """The values of a mapping, each checked by its field in the schema's order; sizes become known on the way."""
    if not isinstance(values, Mapping):
        raise _DamageError(f"it holds a {type(values).__name__} where names and values are expected")
    found: dict[str, Any] = {}
    for name, field in schema.items():
        value = values.get(name)
        if isinstance(field, Rule):
            result = field.holds(found)
            if field.is_size:
                sizes[name] = found[name] = int(result)
            elif not result:
                raise _DamageError(f"{name} {field.otherwise}")
        elif value is not None:
            try:
                found[name] = field.read(value, sizes)
            except _DamageError as damage:
                raise _DamageError(f"{name} {damage}") from None
        elif field.optional or (field.nullable and name in values):
            found[name] = None
        else:
            raise _DamageError(f"{name} is missing")
    return found


def _settle(sizes: Sizes, size: str | int | None, n: int) -> bool:
    """Whether a size is n, which settles it if it was open."""
    if size is None or size == "*":
        return True
    if isinstance(size, int):
        return size == n
    name, _, more = size.partition("+")
    sizes.setdefault(name, n - int(more or 0))
    return n >= int(more or 0) and _value(sizes, size) == n


def _value(sizes: Sizes, size: str | int) -> int:
    """A settled size, such as "K" or "K+1"."""
    name, _, more = str(size).partition("+")
    return sizes[name] + int(more or 0)


def _known(sizes: Sizes, size: str | int) -> bool:
    """Whether the size of this name is known by now."""
    return str(size).partition("+")[0] in sizes


@dataclass
class Array(Field):
    """An array of one of some types ("f8", "i4 i8"; "label" for numbers or texts) and of a shape (None: of any).

    low, below: bounds of its entries, the second a size or a number, or one number per entry of the last axis. ends:
    the array holds offsets, which start at 0, never fall, and end at this size. Whole numbers have bounds or are
    offsets, because kernels use them as indices and check nothing. Floats must be finite unless `finite` is
    False, and are never NaN. order: "C" for kernels, "K" to keep the file's, on which the last bits of a matrix product
    depend.
    """

    dtype: str
    shape: tuple[str | int, ...] | None
    low: float | None = None
    below: str | float | Ints | None = None
    ends: str | None = None
    finite: bool = True
    order: Literal["C", "K"] = "C"

    def __post_init__(self) -> None:
        whole = any(kind[0] in "iu" for kind in self.dtype.split())
        if whole and self.ends is None and (self.low is None or self.below is None):
            raise TypeError(f"an array of type {self.dtype} declares low and below, or ends.")
        self.read = self._checked

    def _checked(self, value: Any, sizes: Sizes) -> Any:
        """The array in native byte order, with its type, shape and entries checked."""
        if not isinstance(value, np.ndarray):
            raise _DamageError("is not an array")
        kind = value.dtype.str[1:]
        if (kind[0] not in "biufU") if self.dtype == "label" else (kind not in self.dtype.split()):
            raise _DamageError(f"has the type {value.dtype}, not {self.dtype}")
        shape = value.shape if self.shape is None else self.shape
        if value.ndim != len(shape) or not all(map(_settle, [sizes] * value.ndim, shape, value.shape)):
            expected = ", ".join(str(_value(sizes, size) if _known(sizes, size) else size) for size in shape)
            raise _DamageError(f"has the shape {value.shape}, not ({expected})")
        value = np.asarray(value, dtype=value.dtype.newbyteorder("="), order=self.order)
        if value.size:
            self._check_entries(value, sizes)
        if self.ends is not None and not self._are_offsets(value, sizes):
            raise _DamageError("does not hold offsets that start at 0 and never fall")
        return value

    def _check_entries(self, value: np.ndarray, sizes: Sizes) -> None:
        """Refuse entries that are not finite or out of bounds."""
        if value.dtype.kind == "f" and (np.isnan(value).any() or (self.finite and np.isinf(value).any())):
            raise _DamageError("holds numbers that are not finite")
        if self.low is not None and value.min() < self.low:
            raise _DamageError(f"holds {value.min()}, which is below {self.low}")
        below = _value(sizes, self.below) if isinstance(self.below, str) else self.below
        if below is not None and (above := value >= below).any():
            where = np.unravel_index(np.argmax(above), value.shape)
            limit = np.broadcast_to(below, value.shape)[where]
            raise _DamageError(f"holds {value[where]}, which is not below {limit}")

    def _are_offsets(self, value: np.ndarray, sizes: Sizes) -> bool:
        """Whether entries ascend from 0 and end with the declared size."""
        return (
            len(value) > 0
            and value[0] == 0
            and bool((value[1:] >= value[:-1]).all())
            and _settle(sizes, self.ends, int(value[-1]))
        )


@_declares
def Count(value: Any, sizes: Sizes, size: str | None = None, least: int = 0, most: int = 2**31) -> Any:
    """A whole number between bounds, which settles a size."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _DamageError(f"is {_short(value)}, not a whole number between {least} and {most}")
    if not _settle(sizes, size, value):
        raise _DamageError(f"is {value}, not {sizes[str(size)]}")
    return value


@_declares
def Number(value: Any, _: Sizes, finite: bool = True) -> Any:
    """A number, finite unless `finite` is False."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _DamageError(f"is {_short(value)}, not a number")
    if finite and not (abs(value) < 2**1023 and math.isfinite(value)):
        raise _DamageError(f"is {_short(value)}, not a finite number")
    return value


@_declares
def Kind(value: Any, _: Sizes, kinds: tuple[type, ...]) -> Any:
    """A value of some classes."""
    if not isinstance(value, kinds):
        raise _DamageError(f"is {_short(value)}, not a {' or '.join(kind.__name__ for kind in kinds)}")
    return value


FLAG = Kind((bool,))
TEXT = Kind((str,))


@_declares
def Choice(value: Any, _: Sizes, choices: tuple[str, ...]) -> Any:
    """One of some texts."""
    if not isinstance(value, str) or value not in choices:
        raise _DamageError(f"is {_short(value)}, not one of {', '.join(choices)}")
    return value


@_declares
def Items(value: Any, sizes: Sizes, each: Field, size: str | None = None) -> Any:
    """A list of values of one field, whose length settles a size."""
    if not isinstance(value, list):
        raise _DamageError(f"is {_short(value)}, not a list")
    if not _settle(sizes, size, len(value)):
        raise _DamageError(f"has {len(value)} entries, not {sizes[str(size)]}")
    return [each.read(item, sizes) for item in value]


@_declares
def Named(value: Any, sizes: Sizes, each: Field) -> Any:
    """Values of one field by name."""
    if not isinstance(value, dict):
        raise _DamageError(f"is {_short(value)}, not a dictionary")
    return {key: each.read(item, sizes) for key, item in value.items()}


@_declares
def Section(value: Any, sizes: Sizes, schema: Schema) -> Any:
    """A dictionary with its own schema; keys that the schema does not name are left unchanged."""
    checked = _read(schema, value, sizes)
    return dict(value) | {name: item for name, item in checked.items() if name in value}


@_declares
def Either(value: Any, sizes: Sizes, first: Field, second: Field) -> Any:
    """A value of the first of two fields that takes it."""
    tried = dict(sizes)
    try:
        value = first.read(value, tried)
    except _DamageError:
        return second.read(value, sizes)
    sizes.update(tried)
    return value


@dataclass
class Rule(Field):
    """Something that must hold of the values checked so far, or a size computed from them; no value of the file."""

    holds: Callable[[dict[str, Any]], Any]
    otherwise: str = ""
    is_size: bool = False


def Size(compute: Callable[[dict[str, Any]], Any]) -> Rule:
    """A size computed from the values checked so far."""
    return Rule(compute, is_size=True)


def _short(value: Any) -> str:
    """A value in a few characters, for messages."""
    text = repr(value) if isinstance(value, str | int | float | bool) else f"a {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:37]}..."
