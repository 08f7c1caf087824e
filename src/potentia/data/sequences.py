"""Sequences: handwritten words as chains, and token files in columns."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np

from .._text import read_text
from .._types import PotentiaError
from ..graph.structure import Graph
from .example import Example
from .loaders import FilePath, check_choice, data_folder, read_arrays

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
    name = Path(path)
    text = _text(name, encoding, limit)
    sentences = [_columns(tokens) for tokens in _sentences(io.StringIO(text), name, documents)]
    if not sentences:
        raise PotentiaError(f"{name}: the file has no tokens.")
    return sentences


def _text(name: Path, encoding: str | None, limit: int | None) -> str:
    """The file's text, or a sentence about how to read it."""
    try:
        text = read_text(name, encoding or "utf-8-sig", limit)
    except PotentiaError as error:
        if encoding is None and str(error).endswith("is not UTF-8."):
            raise PotentiaError(f"{str(error)[:-1]}; name its encoding, such as latin-1.") from None
        raise
    if "\0" in text:
        raise PotentiaError(
            f"{name}: the text has zero bytes, as UTF-16 has; name its encoding, such as utf-16-le."
        )
    return text


def _columns(tokens: Sequence[Sequence[str]]) -> list[list[str]]:
    return [list(column) for column in zip(*tokens, strict=True)]


def _sentences(lines: TextIO, name: Path, documents: bool) -> Iterable[list[list[str]]]:
    """Groups of lines between blank ones, each line split; every line must have as many columns as the first."""
    tokens: list[list[str]] = []
    separator: str | None = None
    n_columns = 0
    for number, line in enumerate(lines, 1):
        start = line.startswith(DOCUMENT_START)
        if not line.strip() or start:
            if tokens:
                yield tokens
            tokens = []
        if not line.strip() or (start and not documents):
            continue
        if not n_columns:
            separator = "\t" if "\t" in line else None
        fields = line.rstrip("\r\n").split(separator)
        n_columns = n_columns or len(fields)
        if len(fields) != n_columns:
            raise PotentiaError(
                f"{name}: line {number} has {len(fields)} columns, the first has {n_columns}."
            )
        tokens.append(fields)
    if tokens:
        yield tokens
