"""Sequences: handwritten words as chains, and token files in columns."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple, TextIO

import numpy as np

from ..base.files import check_pieces, read_span, read_text
from ..base.types import PotentiaError
from ..graph.structure import Graph
from .data_files import FilePath, check_choice, data_folder, read_arrays
from .example import Example

_N_LETTERS = 26
_N_FOLDS = 10
_ARRAYS = ("pixels", "labels", "offsets", "folds", "words")


def letters(folder: FilePath | None = None, folds: int | Iterable[int] | None = None) -> list[Example]:
    """The OCR words of Taskar et al. (2003): chains of 26 states (a..z) with 128 pixels per letter, 0 or 1, float32.

    `folds` are those wanted of 0..9, all if None. 6877 words in all; words of one length share a graph. Pairs have
    no features.
    """
    wanted = range(_N_FOLDS) if folds is None else list(folds) if isinstance(folds, Iterable) else [folds]
    for fold in wanted:
        check_choice("folds", fold, range(_N_FOLDS))
    path = data_folder(folder) / "letters" / "letters.npz"
    arrays = read_arrays(path, _ARRAYS)
    offsets, labels = arrays["offsets"], arrays["labels"].astype(np.int64)
    pixels = np.unpackbits(arrays["pixels"], axis=1).astype(np.float32)
    if len(pixels) != len(labels) or offsets[-1] != len(labels) or len(offsets) != len(arrays["folds"]) + 1:
        raise PotentiaError(f"{path}: 'pixels', 'labels', 'offsets' and 'folds' do not fit each other.")
    graphs = {int(n): Graph.chain(int(n), n_states=_N_LETTERS) for n in np.unique(np.diff(offsets))}
    examples = []
    for i in np.flatnonzero(np.isin(arrays["folds"], list(wanted))):
        rows = slice(int(offsets[i]), int(offsets[i + 1]))
        graph = graphs[rows.stop - rows.start]
        examples.append(
            Example(graph, {"node": pixels[rows]}, labels[rows], name=f"{arrays['words'][i]}-{i}")
        )
    return examples


#: The word of a line that begins a document in the CoNLL shared tasks' files.
DOCUMENT_START = "-DOCSTART-"


def conll(
    path: FilePath, limit: int | None = None, encoding: str | None = None, documents: bool = False
) -> list[list[list[str]]]:
    """The sentences of a token file, each as its columns: one list of words, one per tag, the label last.

    One token per line, a blank line between sentences, plain or compressed (`.gz`, `.xz`). Columns are separated by
    tabs, or by spaces in a file whose first line has no tab. Lines -DOCSTART-, which begin a document, count as blank
    lines; with `documents` each is a sentence. limit: bytes that a compressed file may have unpacked; None for
    POTENTIA_READ_LIMIT, or 256 MiB. encoding: such as "latin-1"; None for UTF-8, or UTF-16 where the file says so.
    """
    sentences = TokenSpan(Path(path), encoding=encoding).sentences(documents, limit)
    if not sentences:
        raise no_tokens(path)
    return sentences


def no_tokens(path: FilePath) -> PotentiaError:
    """What to raise for a file without tokens."""
    return PotentiaError(f"{path}: the file has no tokens.")


class Columns(NamedTuple):
    """How the lines of a token file are split: by tabs, or None for spaces; and the number of columns."""

    separator: str | None
    number: int

    @classmethod
    def of(cls, line: str) -> Columns:
        """As the first line says."""
        separator = "\t" if "\t" in line else None
        return cls(separator, len(line.rstrip("\r\n").split(separator)))


@dataclass(frozen=True)
class TokenSpan:
    """Consecutive sentences of a token file: bytes first .. end - 1, or the whole file where `end` is None.

    Attributes:
        path: the file.
        encoding: as in `conll`.
        columns: of the file's first line; None for those of the span's own.
    """

    path: Path
    first: int = 0
    end: int | None = None
    encoding: str | None = None
    columns: Columns | None = None

    @property
    def name(self) -> str:
        """What messages call it."""
        return str(self.path) if self.end is None else f"{self.path} (bytes {self.first} to {self.end})"

    @property
    def n_bytes(self) -> int | None:
        """Its size, where that is known without unpacking it."""
        return None if self.end is None else self.end - self.first

    def sentences(
        self, documents: bool = False, limit: int | None = None, labelled: bool = False
    ) -> list[list[list[str]]]:
        """The sentences, each as its columns, as `conll` gives them; `labelled` refuses an empty last column."""
        span = None if self.end is None else (self.first, self.end)
        text = _text(self.path, self.encoding, limit, span)
        groups = _sentences(io.StringIO(text), self, documents, labelled)
        return [_columns(tokens) for tokens in groups]

    def line(self, number: int) -> int:
        """The number in the file of a line of the span, 1 for the first."""
        before = read_span(self.path, 0, self.first) if self.first else b""
        return before.count(b"\n") + number


#: Encodings in which bytes of ASCII stand for themselves only, so that lines can be found without decoding.
_PLAIN = re.compile(r"(utf-8|utf-8-sig|ascii|iso8859-\d+|cp125\d|koi8-[ru])")


def token_spans(path: Path, encoding: str | None, span_bytes: int) -> list[TokenSpan]:
    """A token file cut at the first blank line after every `span_bytes` bytes; one span if it cannot be cut.

    What is compressed, or encoded so that lines are only found by decoding, is not cut.
    """
    whole = [TokenSpan(path, encoding=encoding)]
    try:
        plain = _PLAIN.fullmatch(codecs.lookup(encoding or "utf-8").name) is not None
        if not plain or path.suffix in (".gz", ".xz") or not path.is_file():
            return whole
        size = path.stat().st_size
        if size <= span_bytes:
            return whole
        with path.open("rb") as file:
            if encoding is None and file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
                return whole
            cuts = _cuts(file, size, span_bytes)
    except (LookupError, OSError):
        return whole  # which says what is wrong when it is read
    columns = _first_columns(path, encoding)
    return [TokenSpan(path, a, b, encoding, columns) for a, b in pairwise([0, *cuts, size])]


def _cuts(file: BinaryIO, size: int, span_bytes: int) -> list[int]:
    """Where sentences begin, about `span_bytes` bytes apart."""
    cuts: list[int] = []
    at = span_bytes
    while at < size:
        file.seek(at)
        file.readline()  # the rest of a line
        while (line := file.readline()) and line.strip():
            pass
        if not line or file.tell() >= size:
            break
        cuts.append(file.tell())
        at = cuts[-1] + span_bytes
    return cuts


def _first_columns(path: Path, encoding: str | None) -> Columns | None:
    """The columns of a file by its first line that is not blank and begins no document."""
    with path.open(encoding=encoding or "utf-8-sig", errors="replace", newline="\n") as file:
        found = (line for line in file if line.strip() and not line.startswith(DOCUMENT_START))
        return next(map(Columns.of, found), None)


def _text(name: Path, encoding: str | None, limit: int | None, span: tuple[int, int] | None) -> str:
    """The file's text, or a sentence about how to read it."""
    # only the beginning of a file has a mark
    default = "utf-8" if span is not None and span[0] else "utf-8-sig"
    try:
        text = read_text(name, encoding or default, limit, span)
    except PotentiaError as error:
        if encoding is None and str(error).endswith("is not UTF-8."):
            raise PotentiaError(f"{str(error)[:-1]}; name its encoding, such as latin-1.") from None
        raise
    if "\0" in text:
        raise PotentiaError(
            f"{name}: the text has zero bytes, as UTF-16 has; name its encoding, such as utf-16-le."
        )
    check_pieces(name, text, " \t\n")
    return text


def _columns(tokens: Sequence[Sequence[str]]) -> list[list[str]]:
    return [list(column) for column in zip(*tokens, strict=True)]


def _sentences(lines: TextIO, span: TokenSpan, documents: bool, labelled: bool) -> Iterable[list[list[str]]]:
    """Groups of lines between blank ones, each line split; every line must have as many columns as the first."""
    tokens: list[list[str]] = []
    columns = span.columns
    for number, line in enumerate(lines, 1):
        start = line.startswith(DOCUMENT_START)
        if not line.strip() or start:
            if tokens:
                yield tokens
            tokens = []
        if not line.strip() or (start and not documents):
            continue
        columns = columns or Columns.of(line)
        fields = line.rstrip("\r\n").split(columns.separator)
        if len(fields) != columns.number:
            raise PotentiaError(
                f"{span.path}: line {span.line(number)} has {len(fields)} columns, the first has {columns.number}."
            )
        if labelled and not fields[-1].strip():
            raise PotentiaError(
                f"{span.path}: line {span.line(number)} has no label in its last column; every token needs one."
            )
        tokens.append(fields)
    if tokens:
        yield tokens
