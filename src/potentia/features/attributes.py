"""Sequences as numbers: attributes of tokens by name, blocks of dense columns, and labels."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, count, pairwise, repeat
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from ..base.types import Bools, Floats, Ints, PotentiaError, real_numbers, shown
from ..kernels.attributes import TokenAttributes
from .offsets import Offsets
from .template import Template


class NameTable:
    """Names by their 64-bit hashes, sorted, with the first of every bucket of leading bits.

    Two names with one hash are taken for one another; among a million names that happens to a lookup with probability
    5e-14. Hashes of texts differ between processes, so a table must not leave its own.
    """

    def __init__(self, numbers: Mapping[str, int]) -> None:
        hashes = _hashes(numbers)
        order = np.argsort(hashes)
        self.hashes = hashes[order]
        self.numbers = np.fromiter(numbers.values(), dtype=np.int32, count=len(numbers))[order]
        bits = len(numbers).bit_length() + 1
        self.shift = np.uint64(64 - bits)
        sizes = np.bincount((self.hashes >> self.shift).astype(np.int64), minlength=2**bits)
        self.start = np.concatenate([[0], np.cumsum(sizes)])

    def find(self, names: Sequence[str], unknown: int) -> Any:
        """Numbers of names, `unknown` for those that have none."""
        hashes = _hashes(names)
        bucket = (hashes >> self.shift).astype(np.int64)
        at, end = self.start[bucket], self.start[bucket + 1]
        found = np.full(len(names), unknown, dtype=np.int32)
        left = np.flatnonzero(at < end)
        while left.size:
            place = at[left]
            hit = self.hashes[place] == hashes[left]
            found[left[hit]] = self.numbers[place[hit]]
            at[left] += 1
            left = left[~hit & (at[left] < end[left])]
        return found


def _hashes(names: Mapping[str, int] | Sequence[str]) -> Any:
    """64-bit hashes of names, in order."""
    return np.fromiter(map(hash, names), dtype=np.int64, count=len(names)).view(np.uint64)


#: Names from which on a table finds them faster than a dictionary; as many are looked up at a time.
_MANY_NAMES = 20_000
#: Most features that are found again by key and value, without putting their names together.
_MAX_KNOWN = 1 << 16
#: Most features that are dictionaries, whose features are found so.
_MAX_INNER = 16
#: Arrays with larger numbers are kept in double precision, so that numbers far from zero can be centred.
_MAX_SINGLE = 2.0**16


class KnownFeatures(dict[Any, int]):
    """Numbers of features (key, value) that are attributes of value 1; others raise a KeyError.

    number: of a name, None if it has none. unknown: of features that have none or are zero; None raises for zeros.
    prefix: of the names, for features in a dictionary that is a feature itself; `inner`: those tables by its key.
    """

    def __init__(self, number: Callable[[str], int | None], unknown: int | None, prefix: str = "") -> None:
        self.number, self.unknown, self.prefix = number, unknown, prefix
        self.inner: dict[str, KnownFeatures] = {}

    def __missing__(self, feature: tuple[Any, Any]) -> int:
        """Find a feature's number, and keep it while there is room."""
        key, value = feature
        if self.prefix:
            if type(key) is not str:
                raise KeyError(feature)
            key = self.prefix + key
        if type(value) is str:
            found = self.number(f"{key}:{value}")
        elif type(value) not in (bool, int, float) or value not in (0, 1) or (not value and self.unknown is None):
            raise KeyError(feature)
        else:
            found = self.number(key) if value else None
        if found is None:
            assert self.unknown is not None
            found = self.unknown
        if len(self) < _MAX_KNOWN and type(key) is str:  # 1 and True are equal, but not their names
            self[feature] = found
        return found

    def inside(self, key: str, features: Mapping[Any, Any]) -> list[int]:
        """Numbers of the features in a dictionary that is the feature `key`."""
        if key not in self.inner:
            if len(self.inner) == _MAX_INNER or type(key) is not str:
                raise KeyError(key)
            self.inner[key] = KnownFeatures(self.number, self.unknown, f"{key}:")
        return [*map(self.inner[key].__getitem__, features.items())]


#: Columns of dense features by name, (first, end).
Columns = Mapping[str, tuple[int, int]]


def n_columns(columns: Columns) -> int:
    """Number of columns of dense features."""
    return max((end for _, end in columns.values()), default=0)


class AttributeIndex:
    """Numbers of attributes by name, and columns of dense features by name.

    A token is a dictionary, or a list of names: text values become attributes "key:value" of value 1, numbers and
    booleans attributes "key" of that value, and dictionaries, lists and sets attributes whose names begin with "key:".
    An array (or a list of floats in one) is a block of dense columns.

    Attributes:
        numbers: of attributes by name.
        columns: (first, end) of dense features by name.
        offsets: what `encode` subtracts from the values of attributes, by name; see `offsets`.
        column_offsets: what it subtracts from dense columns; empty if nothing.
        template: makes the attributes of tokens that are rows of columns, if there is one.
    """

    _numbers: Mapping[str, int] | None

    def __init__(
        self,
        numbers: Mapping[str, int] | PackedNames | None = None,
        columns: Mapping[str, tuple[int, int]] | None = None,
        offsets: Mapping[str, float] | None = None,
        column_offsets: Any = (),
        template: Template | None = None,
    ) -> None:
        self._packed = numbers if isinstance(numbers, PackedNames) else None
        self._numbers = None if isinstance(numbers, PackedNames) else {} if numbers is None else numbers
        self.columns: dict[str, tuple[int, int]] = dict(columns or {})
        self.offsets: dict[str, float] = dict(offsets or {})
        self.column_offsets: Floats = np.asarray(column_offsets, dtype=np.float64)
        self.template = template
        self._table: NameTable | None = None
        self._known: KnownFeatures | None = None

    @property
    def numbers(self) -> Mapping[str, int]:
        """Numbers by name; those of a file are found at first use, so that a model is loaded at once."""
        if self._numbers is None:
            assert self._packed is not None
            names = self._packed.names()
            self._numbers, self._packed = {name: k for k, name in enumerate(names)}, None
            if len(self._numbers) < len(names):
                raise PotentiaError("the saved model is damaged: two attributes have the same name.")
        return self._numbers

    @numbers.setter
    def numbers(self, numbers: Mapping[str, int]) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._packed) if self._numbers is None and self._packed is not None else len(self.numbers)

    def __getstate__(self) -> dict[str, Any]:
        """Without the tables, which are of use in this process only."""
        return self.__dict__ | {"_table": None, "_known": None}

    def find(self, names: list[str]) -> Any:
        """Numbers of many names, the one after the last for unknown ones."""
        if min(len(names), len(self.numbers)) < _MANY_NAMES:
            return _numbers(self.numbers.get, names, repeat(len(self.numbers)))
        if self._table is None:
            self._table = NameTable(self.numbers)
        return self._table.find(names, len(self.numbers))

    def learn(self, X: Iterable[Any], first: int = 0) -> tuple[TokenAttributes, Any]:
        """Encode sequences; every name that occurs gets a number. Messages number the sequences from `first` on."""
        if self.template is not None:
            names, codes, lengths = self.template.items(X, first=first)
            self.numbers = {name: k for k, name in enumerate(names)}
            return _in_rows(codes.astype(np.int32), lengths)
        growing: defaultdict[str, int] = defaultdict(count().__next__)
        number = growing.__getitem__
        known = KnownFeatures(number, None)
        encoded = _Encoder(known, partial(_numbers, number), self.columns, True).encode(X, first)
        strange = [name for name in growing if not isinstance(name, str)]
        if strange:
            raise PotentiaError(f"X has a feature named {_shown(strange[0])}; names must be texts.")
        growing.default_factory = None
        self.numbers = growing
        return encoded

    def encode(self, X: Iterable[Any], first: int = 0) -> tuple[TokenAttributes, Any]:
        """The attributes and dense columns of all tokens, (tokens, columns) float32 or, for large numbers, float64.

        Unknown names are left out, or get the number after the last.
        """
        if self.template is not None:
            names, codes, lengths = self.template.items(X, first=first)
            return _in_rows(self.find(names)[codes], lengths)
        if self._known is None:
            self._known = KnownFeatures(self.numbers.get, len(self.numbers))
        tokens, dense = _Encoder(self._known, self.find, self.columns, False).encode(X, first)
        if not self.is_centred:
            return tokens, dense
        offsets = self.centring()
        item_ptr, attribute, value = offsets.announce(*tokens[1:], dense)
        value, dense = offsets.centre(attribute, value, dense)
        return TokenAttributes(tokens.sequence_ptr, item_ptr, attribute, value), dense

    @property
    def is_centred(self) -> bool:
        """Whether anything is subtracted."""
        return bool(self.offsets) or bool(self.column_offsets.size)

    def centring(self) -> Offsets:
        """The offsets by number."""
        return Offsets.of(self.numbers, self.columns, self.offsets, self.column_offsets)


def _in_rows(attribute: Any, lengths: Ints) -> tuple[TokenAttributes, Any]:
    """Tokens that have as many attributes each, (tokens, items), in sequences of these lengths; no dense columns."""
    n, width = attribute.shape
    sequence_ptr = np.concatenate([[0], np.cumsum(lengths)])
    tokens = TokenAttributes(sequence_ptr, np.arange(n + 1) * width, attribute.ravel(), np.zeros(0))
    return tokens, np.zeros((n, 0), dtype=np.float32)


def _numbers(number: Any, names: Sequence[str], *unknown: Iterable[int]) -> Any:
    """The number of each name; `unknown` is a second argument of `number`."""
    return np.fromiter(map(number, names, *unknown), dtype=np.int32, count=len(names))


class _Encoder:
    """Turns tokens into items, one sequence after another.

    known: numbers of features. find: numbers of many names. grows: unknown names and arrays get numbers.
    """

    def __init__(self, known: KnownFeatures, find: Any, columns: dict[str, tuple[int, int]], grows: bool) -> None:
        self.known, self.number, self.find, self.columns, self.grows = known, known.number, find, columns, grows
        self.first = 0
        #: Names whose numbers are to be found.
        self.pending: list[str] = []
        #: Attributes of finished sequences, and of the current one.
        self.chunks: list[Any] = []
        self.items: list[int] = []
        self.n_items, self.item_ptr, self.sequence_ptr = 0, array("q", [0]), array("q", [0])
        #: Positions of items with other values than 1, and these values.
        self.odd, self.odd_values = array("q"), array("d")
        self.dense: list[Any] = []

    def encode(self, X: Iterable[Any], first: int = 0) -> tuple[TokenAttributes, Any]:
        """Attributes and dense features of all tokens of X; `first` is the number of the first sequence."""
        check_sequences(X)
        self.first = first
        for row, given in enumerate(X, first):
            if isinstance(given, np.ndarray) and given.ndim == 2 and given.dtype.kind in "biuf":
                self._rows(row, given)
                self.sequence_ptr.append(self.sequence_ptr[-1] + len(given))
                continue
            tokens = given if type(given) is list else _listed(row, given)
            kinds = set(map(type, tokens))
            if kinds == {list}:
                self._lists(tokens)
            else:
                try:
                    self._sequence(row, tokens, kinds == {dict})
                except OverflowError:
                    raise PotentiaError(f"X[{row}] has a number that a double cannot hold.") from None
            self.sequence_ptr.append(self.sequence_ptr[-1] + len(tokens))
        return self._arrays()

    def _where(self, token: int) -> str:
        """What messages call a token."""
        row = bisect_right(self.sequence_ptr, token) - 1
        return f"X[{self.first + row}][{token - self.sequence_ptr[row]}]"

    def _rows(self, row: int, given: Any) -> None:
        """A sequence that is an array: a row of numbers for each token, all of them the feature "x"."""
        self._flush()
        first, _ = self._block(row, 0, "x", given[0] if len(given) else np.zeros(given.shape[1]))
        self.item_ptr.extend([self.n_items] * len(given))
        self._dense_rows(len(given), [(slice(None), first, given)])

    def _lists(self, tokens: list[list[Any]]) -> None:
        """A sequence of lists of names, which is the fastest."""
        self.pending += chain.from_iterable(tokens)
        self.item_ptr.extend(accumulate(map(len, tokens[1:]), initial=self.n_items + len(tokens[0])))
        self.n_items = self.item_ptr[-1]
        if len(self.pending) >= _MANY_NAMES:
            self._flush()
        if self.columns:
            self._dense_rows(len(tokens), [])

    def _flush(self) -> None:
        """Find the numbers of pending names."""
        names, self.pending = self.pending, []
        if names:
            try:
                self.chunks.append(self.find(names))
            except TypeError:
                k = next(k for k, name in enumerate(names) if not isinstance(name, str))
                token = bisect_right(self.item_ptr, self.n_items - len(names) + k) - 1
                raise self._no_name(names[k], token) from None

    def _no_name(self, given: Any, token: int) -> PotentiaError:
        """The error for something that is not the name of a feature."""
        where = self._where(token)
        return PotentiaError(f"{where} holds {_shown(given)}, where the name of a feature is expected.")

    def _sequence(self, row: int, tokens: list[Any], dictionaries: bool) -> None:
        """A sequence of tokens in any form, or of dictionaries only."""
        self._flush()
        if dictionaries and self._plain(tokens):
            return
        blocks: list[tuple[int, int, Any]] = []
        self.items = []
        for place, token in enumerate(tokens):
            if isinstance(token, dict):
                self._features(row, place, token, blocks)
            elif isinstance(token, list | tuple | set | KeysView):
                try:
                    self.items += [k for k in map(self.number, token) if k is not None]
                except TypeError:
                    strange = next(name for name in token if not isinstance(name, str))
                    raise self._no_name(strange, self.sequence_ptr[-1] + place) from None
            else:
                raise PotentiaError(
                    f"X[{row}][{place}] is {_shown(token)}: describe each token by a dictionary of features, such "
                    "as {'word': 'The', 'is_title': True}."
                )
            self.item_ptr.append(self.n_items + len(self.items))
        self.chunks.append(np.array(self.items, dtype=np.int32))
        self.n_items += len(self.items)
        if self.columns:
            self._dense_rows(len(tokens), blocks)

    def _plain(self, tokens: list[dict[Any, Any]]) -> bool:
        """Tokens whose features are texts or 0 or 1, which is faster; False for others."""
        lengths = [*map(len, tokens)]
        features = chain.from_iterable(map(dict.items, tokens))
        try:
            self.chunks.append(np.fromiter(map(self.known.__getitem__, features), np.int32, sum(lengths)))
        except (KeyError, TypeError):  # another value, or one that is no key, such as a list
            return False
        self.item_ptr.extend([*accumulate(lengths, initial=self.n_items)][1:])
        self.n_items = self.item_ptr[-1]
        if self.columns:
            self._dense_rows(len(tokens), [])
        return True

    def _features(self, row: int, place: int, token: dict[Any, Any], blocks: list[Any]) -> None:
        """A token as a dictionary."""
        items, known = self.items, self.known
        for feature in token.items():
            key, value = feature
            kind = type(value)
            if kind is str:
                items.append(known[feature])
            elif kind is bool or kind is float or kind is int:
                if value or self.grows:
                    k = self.number(key)
                    if k is not None:
                        if value != 1:
                            self._note_value(value)
                        items.append(k)
            elif kind is dict:
                try:
                    items += known.inside(key, value)
                except (KeyError, TypeError):  # as in `_plain`
                    self._other(row, place, key, value, blocks)
            else:
                self._other(row, place, key, value, blocks)

    def _note_value(self, value: float) -> None:
        """The next item has this value."""
        self.odd.append(self.n_items + len(self.items))
        self.odd_values.append(value)

    def _other(self, row: int, place: int, key: Any, value: Any, blocks: list[Any]) -> None:
        """A feature that is no plain text or number."""
        if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "biuf":
            blocks.append((place, *self._block(row, place, key, value)))
            return
        for name, weight in _flattened(f"X[{row}][{place}]", key, value):
            k = self.number(name) if weight != 0 or self.grows else None
            if k is not None:
                if weight != 1:
                    self._note_value(weight)
                self.items.append(k)

    def _block(self, row: int, place: int, key: Any, value: Any) -> tuple[int, Any]:
        """The first column of a dense feature, and its values."""
        if key not in self.columns:
            if not self.grows:
                raise PotentiaError(f"X[{row}][{place}] has the array {key!r}, which training did not have.")
            first = n_columns(self.columns)
            self.columns[str(key)] = (first, first + len(value))
        first, end = self.columns[key]
        if len(value) != end - first:
            raise PotentiaError(
                f"X[{row}][{place}] has {len(value)} numbers in {key!r}, but others have {end - first}."
            )
        return first, value

    def _dense_rows(self, n: int, blocks: list[tuple[Any, int, Any]]) -> None:
        """Add the dense features of a sequence's n tokens from (token, first column, values)."""
        width = n_columns(self.columns)
        rows = np.zeros((n, width))
        for place, first, values in blocks:
            rows[place, first : first + np.shape(values)[-1]] = values
        large = max(rows.max(initial=0.0), -rows.min(initial=0.0)) > _MAX_SINGLE
        self.dense.append((len(self.sequence_ptr) - 1, rows if large else rows.astype(np.float32)))

    def _arrays(self) -> tuple[TokenAttributes, Any]:
        """All that was added as arrays, checked to be finite."""
        self._flush()
        sequence_ptr, item_ptr, value = np.array(self.sequence_ptr), np.array(self.item_ptr), np.zeros(0)
        if self.odd:
            value = np.ones(self.n_items)
            value[np.array(self.odd)] = self.odd_values
            if not np.isfinite(value).all():
                token = bisect_right(self.item_ptr, int(np.argmin(np.isfinite(value)))) - 1
                raise PotentiaError(f"{self._where(token)} has a number among its features that is not finite.")
        dense = np.zeros((self.sequence_ptr[-1], 0), dtype=np.float32)
        if self.columns:
            dense = self._joined(sequence_ptr)
            if not np.isfinite(dense).all():
                token = int(np.argmin(np.isfinite(dense).all(axis=1)))
                raise PotentiaError(f"{self._where(token)} has an array among its features that is not finite.")
        one = len(self.chunks) == 1  # which needs no copy
        attribute = self.chunks[0] if one else np.concatenate([np.zeros(0, dtype=np.int32), *self.chunks])
        return TokenAttributes(sequence_ptr, item_ptr, attribute, value), dense

    def _joined(self, sequence_ptr: Ints) -> Any:
        """Dense rows of all tokens; those made before a feature first occurred lack its columns."""
        width = n_columns(self.columns)
        kinds = {np.dtype(np.float32), *(rows.dtype for _, rows in self.dense)}
        joined = np.zeros((int(sequence_ptr[-1]), width), dtype=np.result_type(*kinds))
        for number, rows in self.dense:
            joined[sequence_ptr[number] : sequence_ptr[number + 1], : rows.shape[1]] = rows
        return joined


def pack_names(names: Iterable[str]) -> dict[str, Any]:
    """Texts as two arrays: their bytes one after another, and where each begins."""
    encoded = [name.encode("utf-8", "surrogatepass") for name in names]
    return {"names": np.frombuffer(b"".join(encoded), dtype=np.uint8), "name_ptr": np.cumsum([0, *map(len, encoded)])}


class PackedNames:
    """Texts that `pack_names` packed, to be taken apart when they are needed; refuses bytes that are no texts."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.blob, self.ptr = arrays["names"], arrays["name_ptr"]
        self.text = self.blob.tobytes().decode("utf-8", "surrogatepass")
        inner = self.ptr[self.ptr < len(self.blob)]
        if len(self.text) < len(self.blob) and np.any(self.blob[inner] & 0xC0 == 0x80):
            raise PotentiaError("the file is damaged: a name begins in the middle of a letter.")

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def names(self) -> list[str]:
        """The texts."""
        ptr = self.ptr
        if len(self.text) < len(self.blob):  # places of letters, of which some have several bytes
            ptr = np.concatenate([[0], np.cumsum(self.blob & 0xC0 != 0x80)])[ptr]
        text = self.text
        return [text[a:b] for a, b in pairwise(ptr.tolist())]


def _listed(row: int, given: Any) -> list[Any]:
    """The tokens of a sequence that is no list."""
    if isinstance(given, str | Mapping) or not np.iterable(given):
        raise PotentiaError(
            f"X[{row}] must be a list of feature dictionaries, one per token, not a {type(given).__name__}."
        )
    return list(given)


def check_sequences(X: Any) -> None:
    """Refuse what cannot be a list of sequences."""
    if type(X) is not list and (isinstance(X, str | Mapping) or not np.iterable(X)):
        raise PotentiaError(f"X must be a list of sequences of feature dictionaries, not a {type(X).__name__}.")


def _flattened(where: str, key: Any, value: Any) -> Iterator[tuple[str, float]]:
    """Names and values of the attributes of a feature."""
    if not isinstance(key, str):
        raise PotentiaError(f"{where} has a feature named {_shown(key)}; names must be texts.")
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if isinstance(value, str):
        yield f"{key}:{value}", 1.0
    elif isinstance(value, Real | np.bool_):
        yield key, float(value)
    elif isinstance(value, Mapping):
        for inner, own in value.items():
            for name, weight in _flattened(where, inner, own):
                yield f"{key}:{name}", weight
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            for name, weight in _flattened(where, inner, 1.0):
                yield f"{key}:{name}", weight
    else:
        raise PotentiaError(
            f"{where} has the feature {key!r} of type {type(value).__name__}; give a text, a number, a boolean, an "
            "array of numbers, or a dictionary, list or set of features."
        )


def flat_features(token: Any) -> dict[str, float]:
    """The attributes of a token, a dictionary or a list of names, as numbers by name; those of one name are added."""
    if isinstance(token, str) or not isinstance(token, Mapping | Iterable):
        raise PotentiaError(f"an item is {_shown(token)}: give a dictionary of features or a list of names.")
    features = token.items() if isinstance(token, Mapping) else ((name, 1.0) for name in token)
    found: dict[str, float] = {}
    for key, value in features:
        for name, number in _flattened("an item", key.decode() if isinstance(key, bytes) else key, value):
            found[name] = found.get(name, 0.0) + number
    return found


def _shown(given: Any) -> str:
    """A wrong value and its type in a few characters."""
    return f"the text {given!r:.40}" if isinstance(given, str) else f"{shown(given):.40} of type {type(given).__name__}"


# -- labels --------------------------------------------------------------------------------------------------

Label = str | int
#: What may say that a token has one of several labels.
_CHOICES = (set, frozenset, tuple, list)
#: Labels are numbered by 16 bits.
MAX_LABELS = 2**16 - 1


def label_values(y: Any, first: int = 0) -> set[Any]:
    """The different labels of sequences, of which the first has this number in messages."""
    if isinstance(y, str) or not isinstance(y, Sequence | np.ndarray) or getattr(y, "ndim", 1) == 0:
        raise PotentiaError(f"y must be a list of lists of labels, not a {type(y).__name__}.")
    found: set[Any] = set()
    for number, row in enumerate(y, first):
        if isinstance(row, str) or not isinstance(row, Sequence | np.ndarray):
            raise PotentiaError(f"y[{number}] must be a list of labels, not {row!r:.40}.")
        try:
            try:
                found.update(row.tolist() if isinstance(row, np.ndarray) else row)
            except TypeError:  # a set or list of labels
                found.update(chain.from_iterable(v if isinstance(v, _CHOICES) else (v,) for v in row))
        except TypeError:
            raise PotentiaError(f"y[{number}] must hold texts or whole numbers, not {shown(row)}.") from None
    for choice in [v for v in found if isinstance(v, _CHOICES)]:
        found.discard(choice)
        found.update(choice)
    found.discard(None)
    # NumPy's texts and numbers as Python's, so that digests and files do not depend on which were given
    found = {label.item() if isinstance(label, np.integer | np.str_) else label for label in found}
    strange = next((label for label in found if isinstance(label, bool) or not isinstance(label, str | int)), None)
    if strange is not None:
        raise PotentiaError(f"y: labels must be texts or whole numbers, or None if not known, not {strange!r:.40}.")
    return found


def label_classes(found: set[Any]) -> list[Label]:
    """The different labels of a data set, in order."""
    if len({isinstance(label, str) for label in found}) > 1:
        raise PotentiaError("y mixes texts and whole numbers; labels must be of one type.")
    if not found:
        raise PotentiaError("y has no labels to learn from.")
    if len(found) > MAX_LABELS:
        raise PotentiaError(f"y has {len(found)} different labels; at most {MAX_LABELS} are possible.")
    return [str(label) if isinstance(label, str) else int(label) for label in sorted(found)]


def check_label_type(y: Any, classes: Sequence[Label]) -> None:
    """Refuse texts where the classes are whole numbers, and the other way round: no label would be right."""
    texts, found = isinstance(classes[0], str), label_values(y)
    if found and not any(isinstance(label, str) == texts for label in found):
        expected, given = ("texts", "whole numbers") if texts else ("whole numbers", "texts")
        raise PotentiaError(f"y holds {given}, but the labels that the model was trained on are {expected}.")


def check_lengths(y: Any, lengths: Sequence[int], first: int = 0, total: int | None = None) -> None:
    """Refuse labels that do not belong to sequences of these lengths.

    The sequences may be some of a data set of `total` sequences, where the first of them is number `first`.
    """
    if len(y) != len(lengths):
        n_labelled = len(y) if total is None else total
        raise PotentiaError(f"X has {first + len(lengths)} sequences, but y has {n_labelled}.")
    for number, (row, n) in enumerate(zip(y, lengths, strict=True), first):
        if len(row) != n:
            raise PotentiaError(f"X[{number}] has {n} tokens, but y[{number}] has {len(row)} labels.")


def encode_labels(y: Any, classes: Sequence[Label]) -> Any:
    """Numbers of all labels, -1 where not known."""
    place: dict[Any, int] = dict(zip(classes, range(len(classes)), strict=True)) | {None: -1}
    return np.fromiter(map(place.__getitem__, chain.from_iterable(y)), dtype=np.int32)


class Choices(NamedTuple):
    """Tokens of which only some labels are allowed.

    Attributes:
        token: numbers of the tokens, ascending.
        allowed: labels of each, (tokens, L).
    """

    token: Ints
    allowed: Bools


def encode_choices(y: Any, classes: Sequence[Label], first: int = 0, name: str = "y") -> tuple[Any, Choices | None]:
    """Numbers of all labels, -1 where not known or where a set or list says which labels are possible; and these."""
    if not any(isinstance(label, _CHOICES) for row in y for label in row):
        return encode_labels(y, classes), None
    place = {label: k for k, label in enumerate(classes)}
    rows, token, allowed, begin = [], [], [], 0
    for number, row in enumerate(y, first):
        single: list[Any] = []
        for k, label in enumerate(row):
            if isinstance(label, _CHOICES):
                chosen = [place[v] for v in label if v in place]
                if not chosen:
                    raise PotentiaError(f"{name}[{number}][{k}] allows no label that the model has: {shown(label)}.")
                token.append(begin + k)
                allowed.append(np.isin(np.arange(len(place)), chosen))
                label = None
            single.append(label)
        rows.append(single)
        begin += len(single)
    return encode_labels(rows, classes), Choices(np.array(token), np.array(allowed))


def sequence_weights(given: Any, n: int) -> Floats:
    """One weight per sequence, ones if not given."""
    if given is None:
        return np.ones(n)
    weight = real_numbers(given, "sample_weight")
    if weight.shape != (n,) or not np.isfinite(weight).all() or weight.min(initial=0.0) < 0:
        raise PotentiaError(f"sample_weight must be {n} finite numbers >= 0, one per sequence.")
    return weight
