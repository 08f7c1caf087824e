"""`Template`: attributes of tokens from rows of columns, by patterns as CRF++ and Wapiti write them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count
from typing import Literal, NamedTuple

import numpy as np

from ..base.saving import Registered
from ..base.types import Ints, PotentiaError, check_choice

DIALECTS = ("wapiti", "crf++")
#: Most patterns of a template, columns of a row, and tokens that a pattern may look away from its own.
_MAX_PATTERNS, _MAX_COLUMNS, _MAX_OFFSET = 10_000, 1_000, 1_000
#: A macro: %x[offset,column], with "@" before an offset that counts from the sequence's ends, and a quoted expression.
_MACRO = re.compile(r'%([xXtTmM])\[\s*(@?)\s*([+-]?\d{1,9})\s*,\s*(\d{1,9})\s*(?:,\s*"((?:[^"\\]|\\.)*)"\s*)?\]')
#: Classes of bytes in Wapiti's regular expressions.
_CLASSES = {
    "a": "[A-Za-z]", "d": "[0-9]", "l": "[a-z]", "p": r"[!-/:-@\[-`{-~]", "s": r"[ \t\n\v\f\r]", "u": "[A-Z]",
    "w": "[A-Za-z0-9]",
}  # fmt: skip
_LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


class Macro(NamedTuple):
    """A place of a pattern that a token's columns fill.

    Attributes:
        kind: "x" for the column's text, "t" for whether `expression` matches it, "m" for what it matches.
        lower: whether the text is turned to lower case.
        absolute: whether `offset` counts from the first token (1, 2, ...) or the last (-1, -2, ...).
        offset: of the token, from the current one.
        column: number of the column.
    """

    kind: str
    lower: bool
    absolute: bool
    offset: int
    column: int
    expression: str

    def apply(self, text: str) -> str:
        """What this macro makes of a column's text."""
        if self.kind == "x":
            return text.translate(_LOWER) if self.lower else text
        match = _compiled(self.expression).search(text.encode("utf-8", "surrogateescape").decode("latin-1"))
        if self.kind == "t":
            return "true" if match else "false"
        matched = match.group().encode("latin-1").decode("utf-8", "surrogateescape") if match else ""
        return matched.translate(_LOWER) if self.lower else matched


class Pattern(NamedTuple):
    """A line of a template: literal texts around macros.

    Attributes:
        scope: "u" for features of a token's label, "b" of it and the label before, "*" of both.
        texts: literal texts, one more than `macros`.
        source: the line.
    """

    scope: str
    texts: tuple[str, ...]
    macros: tuple[Macro, ...]
    source: str


class NamedItems(NamedTuple):
    """Names of the attributes of tokens, each name once: token t has names[codes[t, k]] by pattern k.

    `lengths`: tokens of each sequence.
    """

    names: list[str]
    codes: Ints
    lengths: Ints


@dataclass(frozen=True)
class Template(Registered):
    """Patterns that turn rows of columns into attributes, one per pattern and token, as CRF++ and Wapiti do.

    A line such as ``U01:%x[-1,0]/%x[0,1]`` is replaced by column 0 of the token before and column 1 of the token
    itself. Lines that begin with ``U`` make features of a token's label, with ``B`` of its label and the one before,
    with ``*`` of both. ``%X`` turns to lower case, ``%t[0,0,"^\\d*$"]`` says whether an expression matches,
    ``%m[0,0,"..."]`` gives what it matches; ``@`` before an offset counts from the ends of the sequence.

    Args:
        text: the template; lines that begin with ``#`` are comments.
        dialect: whose names tokens outside the sequence get, "_x-1" or "_B-1"; Wapiti also takes text after ``#`` as a
            comment and writes the first letter of a pattern small.
    """

    text: str
    dialect: Literal["wapiti", "crf++"] = "wapiti"

    def __post_init__(self) -> None:
        check_choice("dialect", self.dialect, DIALECTS)
        if not isinstance(self.text, str):
            raise PotentiaError(f"text must be the text of a template, not a {type(self.text).__name__}.")
        _parsed(self.text, self.dialect)

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The lines, in order."""
        return _parsed(self.text, self.dialect)

    @property
    def n_columns(self) -> int:
        """Columns that a row must have at least."""
        return 1 + max((m.column for p in self.patterns for m in p.macros), default=-1)

    def __call__(self, X: Iterable[Sequence[Sequence[str]]]) -> list[list[list[str]]]:
        """Names of the attributes of every token that its label gets weights for, which `ChainCRF` takes."""
        names, codes, lengths = self.items(X, "u*")
        rows = iter(codes.tolist())
        return [[[names[k] for k in next(rows)] for _ in range(n)] for n in lengths.tolist()]

    @property
    def constant(self) -> str | None:
        """The name of the pattern of pairs without macros, which stands for transitions whatever the tokens are."""
        texts = [p.texts[0] for p in self.patterns if p.scope in "b*" and not p.macros]
        return texts[0] if texts else None

    def items(self, X: Iterable[Sequence[Sequence[str]]], scopes: str = "ub*", first: int = 0) -> NamedItems:
        """The attributes of all tokens by the patterns whose scope is one of `scopes`, but for the constant "b".

        Messages number the sequences from `first` on.
        """
        sequences = [sequence if isinstance(sequence, list) else list(sequence) for sequence in X]
        patterns = [p for p in self.patterns if p.scope in scopes and (p.macros or p.scope != "b")]
        tokens = _Tokens(sequences, sorted({m.column for p in patterns for m in p.macros}), self.dialect, first)
        numbers: defaultdict[str, int] = defaultdict(count().__next__)
        codes = np.empty((tokens.n, len(patterns)), dtype=np.int64)
        for k, pattern in enumerate(patterns):
            names, local = tokens.fill(pattern)
            codes[:, k] = np.fromiter(map(numbers.__getitem__, names), dtype=np.int64, count=len(names))[local]
        return NamedItems(list(numbers), codes, tokens.lengths)


class _Tokens:
    """Columns of all tokens as numbers of their texts, and where tokens are in their sequences."""

    def __init__(
        self, sequences: Sequence[Sequence[Sequence[str]]], columns: list[int], dialect: str, first: int
    ) -> None:
        length = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
        self.n, self.length, self.lengths = int(length.sum()), np.repeat(length, length), length
        self.start = np.repeat(np.cumsum(length) - length, length)
        self.place = np.arange(self.n) - self.start
        self.texts: dict[int, list[str]] = {}
        self.codes: dict[int, Ints] = {}
        self.filled: dict[Macro, tuple[list[str], Ints]] = {}
        self.dialect = dialect
        rows = list(chain.from_iterable(sequences))
        for column in columns:
            numbers: defaultdict[str, int] = defaultdict(count().__next__)
            try:
                texts = [row[column] for row in rows]
                self.codes[column] = np.fromiter(map(numbers.__getitem__, texts), dtype=np.int64, count=self.n)
            except (IndexError, KeyError, TypeError):
                _refuse(sequences, column, first)
            if not all(type(text) is str for text in numbers):
                _refuse(sequences, column, first)
            self.texts[column] = list(numbers)

    def macro(self, macro: Macro) -> tuple[list[str], Ints]:
        """Texts that fill a macro, and the number of each token's."""
        if macro in self.filled:
            return self.filled[macro]
        places = macro.offset + (self.place if not macro.absolute else -1 if macro.offset > 0 else self.length)
        texts, codes = list(self.texts[macro.column]), self.codes[macro.column]
        inside = (places >= 0) & (places < self.length)
        local = codes[np.where(inside, self.start + places, 0)] if self.n else codes
        # how far outside: -1, -2, ... before the first token, 1, 2, ... after the last
        outside = np.where(places < 0, places, places - self.length + 1)[~inside]
        distances, number = np.unique(outside, return_inverse=True)
        local = local.copy()
        local[~inside] = len(texts) + number
        texts += [_border(distance, self.dialect) for distance in distances.tolist()]
        self.filled[macro] = [macro.apply(text) for text in texts], local
        return self.filled[macro]

    def fill(self, pattern: Pattern) -> tuple[list[str], Ints]:
        """The names that occur by a pattern, and the number of each token's."""
        if not pattern.macros:
            return [pattern.texts[0]], np.zeros(self.n, dtype=np.int64)
        parts = [self.macro(macro) for macro in pattern.macros]
        used, code = np.unique(parts[0][1], return_inverse=True)
        names = [pattern.texts[0] + parts[0][0][k] + pattern.texts[1] for k in used.tolist()]
        for (texts, local), literal in zip(parts[1:], pattern.texts[2:], strict=True):
            used, code = np.unique(code * len(texts) + local, return_inverse=True)
            before, last = (part.tolist() for part in np.divmod(used, len(texts)))
            names = [names[a] + texts[b] + literal for a, b in zip(before, last, strict=True)]
        return names, code


def _border(distance: int, dialect: str) -> str:
    """The text of a token that lies outside its sequence."""
    if dialect == "crf++":
        return f"_B{distance:+d}"
    return f"_x{distance:+d}" if abs(distance) <= 4 else f"_x{'-' if distance < 0 else '+'}#"


def _refuse(sequences: Sequence[Sequence[Sequence[str]]], column: int, first: int) -> None:
    """Name the first row that lacks a text in a column."""
    for number, sequence in enumerate(sequences, first):
        for place, row in enumerate(sequence):
            if isinstance(row, str) or not isinstance(row, Sequence):
                raise PotentiaError(
                    f"X[{number}][{place}] must be a row of columns (a list of texts), not a {type(row).__name__}."
                )
            if len(row) <= column:
                raise PotentiaError(
                    f"X[{number}][{place}] has {len(row)} columns, but the template asks for column {column}, "
                    "counted from 0."
                )
            if type(row[column]) is not str:
                raise PotentiaError(
                    f"X[{number}][{place}][{column}] must be a text, not a {type(row[column]).__name__}."
                )


@lru_cache(maxsize=16)
def _parsed(text: str, dialect: str) -> tuple[Pattern, ...]:
    """The patterns of a template file, at least one."""
    patterns = tuple(_patterns(text, dialect))
    if not patterns:
        raise PotentiaError("the template has no pattern; a line such as U00:%x[0,0] is one.")
    if len(patterns) > _MAX_PATTERNS:
        raise PotentiaError(f"the template has {len(patterns)} patterns; at most {_MAX_PATTERNS} are read.")
    return patterns


def _patterns(text: str, dialect: str) -> Iterator[Pattern]:
    """The patterns of a template's lines, one by one."""
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.split("#")[0].rstrip() if dialect == "wapiti" else "" if line.startswith("#") else line.strip()
        if not bare:
            continue
        if bare[0] not in "uUbB*":
            raise PotentiaError(f"line {number} of the template must begin with U, B or *, not {bare[0]!r}.")
        shown = bare[0].lower() + bare[1:] if dialect == "wapiti" else bare
        matches = list(_MACRO.finditer(shown))
        ends = [0, *(end for match in matches for end in match.span()), len(shown)]
        texts = tuple(shown[a:b] for a, b in zip(ends[::2], ends[1::2], strict=True))
        if any(re.search(r"%[xXtTmM]", literal) for literal in texts):
            raise PotentiaError(
                f"line {number} of the template has a macro that is not of the form %x[offset,column]: {bare[:60]!r}."
            )
        yield Pattern(bare[0].lower(), texts, tuple(_macro(match, number) for match in matches), shown)


def _macro(match: re.Match[str], number: int) -> Macro:
    """A macro such as %x[-1,0] with its offset and column, checked."""
    kind, at, offset, column, expression = match.groups()
    if abs(int(offset)) > _MAX_OFFSET or int(column) >= _MAX_COLUMNS:
        raise PotentiaError(
            f"line {number} of the template looks at offset {offset} and column {column}; offsets reach "
            f"{_MAX_OFFSET} tokens and rows have fewer than {_MAX_COLUMNS} columns."
        )
    if (kind.lower() == "x") != (expression is None):
        needs = "takes no" if kind.lower() == "x" else "needs a quoted"
        raise PotentiaError(f"line {number} of the template: %{kind} {needs} regular expression.")
    if at and int(offset) == 0:
        raise PotentiaError(f"line {number} of the template: offsets after @ are 1, 2, ... or -1, -2, ...")
    return Macro(kind.lower(), kind.isupper(), bool(at), int(offset), int(column), expression or "")


@lru_cache(maxsize=1024)
def _compiled(expression: str) -> re.Pattern[str]:
    """Wapiti's expression as one of Python over bytes: literals, '.', classes, '?', a lazy '*', '^' and '$'."""
    source = expression.encode("utf-8", "surrogateescape").decode("latin-1")
    pieces, k = ["\\A"] if source.startswith("^") else [], int(source.startswith("^"))
    while k < len(source):
        letter, step = source[k], 1
        if letter == "$" and k + 1 == len(source):
            pieces.append("\\Z")
        elif letter == "*" or (letter == "?" and not pieces):
            pieces.append("" if letter == "*" else re.escape(letter))
        else:
            if letter == "\\" and k + 1 < len(source):
                named, step = source[k + 1], 2
                single = _CLASSES.get(named.lower())
                atom = (
                    re.escape(named) if single is None else f"(?!{single})[\\x00-\\xff]" if named.isupper() else single
                )
            else:
                atom = "[\\x00-\\xff]" if letter == "." else re.escape(letter)
            after = source[k + step : k + step + 1]
            pieces.append(f"(?:{atom})" + {"*": "*?", "?": "?"}.get(after, ""))
            step += after in ("*", "?") and bool(after)
        k += step
    return re.compile("".join(pieces), re.DOTALL)
