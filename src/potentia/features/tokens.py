"""Tokens: files of them in columns, and the words, tags and spelling around each as sparse indicators."""

from __future__ import annotations

import codecs
import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

import numpy as np

from ..base.files import check_pieces, read_span, read_text
from ..base.types import PotentiaError, check_count, check_flag, check_type, texts_of

if TYPE_CHECKING:
    from .example import Example

#: A sentence as its columns: words, then any tags, the label last (as `pt.datasets.conll` reads it).
Sentence = Sequence[Sequence[str]]

_EDGE = "\x00"


#: The word of a line that begins a document in the CoNLL shared tasks' files.
DOCUMENT_START = "-DOCSTART-"


def conll(
    path: str | os.PathLike[str], limit: int | None = None, encoding: str | None = None, documents: bool = False
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


def no_tokens(path: str | os.PathLike[str]) -> PotentiaError:
    """What to raise for a file without tokens."""
    return PotentiaError(f"{path}: the file has no tokens.")


#: How the lines of a token file are split: by tabs, or None for spaces; and the number of columns.
Splitting = tuple[str | None, int]


def _splitting(line: str) -> Splitting:
    """As the first line says."""
    separator = "\t" if "\t" in line else None
    return separator, len(line.rstrip("\r\n").split(separator))


@dataclass(frozen=True)
class TokenSpan:
    """Consecutive sentences of a token file: bytes first .. end - 1, or the whole file where `end` is None.

    Attributes:
        path: the file.
        encoding: as in `conll`.
        splitting: of the file's first line; None for that of the span's own.
    """

    path: Path
    first: int = 0
    end: int | None = None
    encoding: str | None = None
    splitting: Splitting | None = None

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
        return [[list(column) for column in zip(*tokens, strict=True)] for tokens in groups]

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
    splitting = _first_splitting(path, encoding)
    return [TokenSpan(path, a, b, encoding, splitting) for a, b in pairwise([0, *cuts, size])]


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


def _first_splitting(path: Path, encoding: str | None) -> Splitting | None:
    """How a file is split, by its first line that is not blank and begins no document."""
    with path.open(encoding=encoding or "utf-8-sig", errors="replace", newline="\n") as file:
        found = (line for line in file if line.strip() and not line.startswith(DOCUMENT_START))
        return next(map(_splitting, found), None)


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
        raise PotentiaError(f"{name}: the text has zero bytes, as UTF-16 has; name its encoding, such as utf-16-le.")
    check_pieces(name, text, " \t\n")
    return text


def _sentences(lines: TextIO, span: TokenSpan, documents: bool, labelled: bool) -> Iterable[list[list[str]]]:
    """Groups of lines between blank ones, each line split; every line must have as many columns as the first."""
    tokens: list[list[str]] = []
    splitting = span.splitting
    for number, line in enumerate(lines, 1):
        start = line.startswith(DOCUMENT_START)
        if not line.strip() or start:
            if tokens:
                yield tokens
            tokens = []
        if not line.strip() or (start and not documents):
            continue
        separator, n_columns = splitting = splitting or _splitting(line)
        fields = line.rstrip("\r\n").split(separator)
        if len(fields) != n_columns:
            raise PotentiaError(
                f"{span.path}: line {span.line(number)} has {len(fields)} columns, the first has {n_columns}."
            )
        if labelled and not fields[-1].strip():
            raise PotentiaError(
                f"{span.path}: line {span.line(number)} has no label in its last column; every token needs one."
            )
        tokens.append(fields)
    if tokens:
        yield tokens


# -- features ------------------------------------------------------------------------------------------------


class Gazetteer:
    """Phrases by which tokens are marked; upper and lower case are the same.

    Attributes:
        phrases: in lower case, words separated by single spaces, in order.
    """

    def __init__(self, phrases: Iterable[str]) -> None:
        split = {tuple(phrase.lower().split()) for phrase in texts_of("phrases", phrases)}
        split.discard(())
        self.phrases = sorted(" ".join(words) for words in split)
        self._by_first: dict[str, list[tuple[str, ...]]] = {}
        for words in sorted(split, key=len, reverse=True):
            self._by_first.setdefault(words[0], []).append(words)

    @classmethod
    def read(cls, path: str | os.PathLike[str], encoding: str = "utf-8-sig") -> Gazetteer:
        """The phrases of a text file, one per line; plain or compressed (`.gz`, `.xz`)."""
        found = cls(read_text(Path(path), encoding).splitlines())
        if not found.phrases:
            raise PotentiaError(f"{path}: the file has no phrases.")
        return found

    def mark(self, words: Sequence[str]) -> list[str]:
        """Per word "B" where a phrase begins, "I" where it continues, "" elsewhere; leftmost longest match."""
        lower = [word.lower() for word in texts_of("words", words)]
        marks, t = [""] * len(lower), 0
        while t < len(lower):
            found = next((p for p in self._by_first.get(lower[t], ()) if tuple(lower[t : t + len(p)]) == p), None)
            if found is None:
                t += 1
                continue
            marks[t : t + len(found)] = ["B", *["I"] * (len(found) - 1)]
            t += len(found)
        return marks


class Clusters:
    """Classes of words, such as Brown clusters; a word that is not there is looked up in lower case.

    Attributes:
        codes: the class of each word; a Brown cluster's is its path, of which prefixes are features, too.
    """

    #: Letters of a path that are features.
    PREFIXES = (4, 6, 10, 20)

    def __init__(self, codes: Mapping[str, str]) -> None:
        self.codes = {str(word): str(code) for word, code in codes.items()}
        self._paths = all(set(code) <= {"0", "1"} for code in self.codes.values())

    @classmethod
    def read(cls, path: str | os.PathLike[str], encoding: str = "utf-8-sig") -> Clusters:
        """Lines "path word count" as Brown's program writes them, or "word class"; plain or compressed."""
        rows = [line.split() for line in read_text(Path(path), encoding).splitlines() if line.strip()]
        odd = next((k for k, row in enumerate(rows, 1) if len(row) not in (2, 3)), None)
        if odd is not None or not rows:
            where = (
                "the file has no words" if odd is None else f"line {odd} is neither 'path word count' nor 'word class'"
            )
            raise PotentiaError(f"{path}: {where}.")
        brown = all(set(row[0]) <= {"0", "1"} for row in rows)
        return cls({row[1]: row[0] for row in rows} if brown else {row[0]: row[1] for row in rows})

    def mark(self, words: Sequence[str]) -> list[list[str]]:
        """The classes of every word, none of unknown ones."""
        found = [self.codes.get(word) or self.codes.get(word.lower()) for word in words]
        if not self._paths:
            return [[] if code is None else [code] for code in found]
        return [[] if code is None else list(dict.fromkeys(code[:k] for k in self.PREFIXES)) for code in found]


class TokenFeatures:
    """Indicators of what stands around a token, as chunkers use them, and of its spelling.

    For every column: its values at distances -window..window and the joint values of neighbours at distance at most
    one (for all but the first column also of three in a row within the window). With `spelling` also prefixes and
    suffixes of up to four letters, the shape of the word, and of it and its neighbours the short shape (runs of a
    character as one) and the word in lower case; for every gazetteer, by name, whether the token begins or continues
    one of its phrases, and for all `clusters`, by name, the classes of the word and of its neighbours. What occurs
    fewer than `min_count` times in `fit` is left out.

    After `fit`: `classes_` (labels in order), `index_` (name of each indicator to its column).
    """

    def __init__(
        self,
        window: int = 2,
        min_count: int = 1,
        spelling: bool = False,
        gazetteers: Mapping[str, Gazetteer] | None = None,
        clusters: Mapping[str, Clusters] | None = None,
    ) -> None:
        check_count("window", window)
        check_count("min_count", min_count, 1)
        check_flag("spelling", spelling)
        self.window, self.min_count, self.spelling = window, min_count, spelling
        check_type("gazetteers", gazetteers, Mapping, optional=True)
        self.gazetteers = dict(gazetteers or {})
        for name, gazetteer in self.gazetteers.items():
            check_type(f"gazetteers[{name!r}]", gazetteer, Gazetteer)
        check_type("clusters", clusters, Mapping, optional=True)
        self.clusters = dict(clusters or {})
        for name, classes in self.clusters.items():
            check_type(f"clusters[{name!r}]", classes, Clusters)

    def fit(self, sentences: Sequence[Sentence]) -> TokenFeatures:
        """Learn the labels and the indicators that occur in these sentences."""
        if not sentences or len(sentences[0]) < 2:
            raise PotentiaError("sentences need at least two columns: words, and labels last.")
        counts = Counter(name for s in sentences for token in self.names(s[:-1]) for name in token)
        kept = sorted(name for name, n in counts.items() if n >= self.min_count)
        self.index_ = {name: k for k, name in enumerate(kept)}
        self.classes_ = sorted({label for s in sentences for label in s[-1]})
        self.n_columns_ = len(sentences[0])
        return self

    def transform(self, sentences: Sequence[Sentence], labelled: bool = True) -> list[Example]:
        """A chain per sentence; labels not seen in `fit` become -1. Without `labelled` all columns are inputs."""
        from ..graph.structure import Graph
        from .example import Example

        if not hasattr(self, "index_"):
            raise PotentiaError("these TokenFeatures are not fitted: call fit first.")
        place = {label: k for k, label in enumerate(self.classes_)}
        graphs: dict[int, Graph] = {}
        found = []
        for number, sentence in enumerate(sentences):
            inputs = sentence[:-1] if labelled else sentence
            if len(inputs) != self.n_columns_ - 1:
                raise PotentiaError(f"sentence {number} has {len(inputs)} input columns, not {self.n_columns_ - 1}.")
            n = len(inputs[0])
            if any(len(column) != n for column in sentence):
                raise PotentiaError(
                    f"the columns of sentence {number} have {sorted({len(c) for c in sentence})} tokens."
                )
            graph = graphs.setdefault(n, Graph.chain(n, n_states=len(self.classes_)))
            labels = np.array([place.get(label, -1) for label in sentence[-1]]) if labelled else None
            found.append(Example(graph, {"node": self._matrix(inputs)}, labels, name=f"sentence {number}"))
        return found

    def _matrix(self, inputs: Sentence) -> Any:
        """Indicators of a sentence's tokens, (n_tokens, n_features), CSR."""
        from scipy import sparse

        index = [[self.index_[name] for name in token if name in self.index_] for token in self.names(inputs)]
        ptr = np.cumsum([0, *map(len, index)])
        columns = np.concatenate([np.zeros(0, dtype=np.int32), *(np.array(row, dtype=np.int32) for row in index)])
        return sparse.csr_array(
            (np.ones(len(columns), dtype=np.float32), columns, ptr), shape=(len(index), len(self.index_))
        )

    def names(self, inputs: Sentence) -> Iterator[list[str]]:
        """The indicators of every token of a sentence without labels, by name."""
        w = self.window
        marks = {name: gazetteer.mark(inputs[0]) for name, gazetteer in self.gazetteers.items()}
        classes = {name: [[], *own.mark(inputs[0]), []] for name, own in self.clusters.items()}
        padded = [[*[_EDGE] * w, *column, *[_EDGE] * w] for column in inputs]
        spelt = ["", *map(_short_shape, inputs[0]), ""], ["", *(word.lower() for word in inputs[0]), ""]
        for t in range(w, w + len(inputs[0])):
            names = [f"{c}[{d}]={column[t + d]}" for c, column in enumerate(padded) for d in range(-w, w + 1)]
            for c, column in enumerate(padded):
                reach = range(-1, 1) if c == 0 else range(-w, w)
                names += [f"{c}[{d}:2]={column[t + d]}|{column[t + d + 1]}" for d in reach if w]
                if c > 0:
                    names += [
                        f"{c}[{d}:3]={column[t + d]}|{column[t + d + 1]}|{column[t + d + 2]}" for d in range(-w, w - 1)
                    ]
            if self.spelling:
                names += _spelling(padded[0][t])
                short, lower = (of_words[t - w : t - w + 3] for of_words in spelt)
                names += [f"short[-1]={short[0]}", f"short={short[1]}", f"short[1]={short[2]}"]
                names += [f"lower[-1]={lower[0]}", f"lower[1]={lower[2]}"]
            names += [f"{name}={own[t - w]}" for name, own in marks.items() if own[t - w]]
            for name, of_words in classes.items():
                around = enumerate(of_words[t - w : t - w + 3], -1)
                names += [f"{name}[{d}]={code}" for d, codes in around for code in codes]
            yield names


def _spelling(word: str) -> list[str]:
    """Names of features of a word's spelling: prefixes, suffixes, shape, lower case."""
    names = [f"prefix={word[:k]}" for k in (1, 2, 3, 4)] + [f"suffix={word[-k:]}" for k in (1, 2, 3, 4)]
    return [*names, f"shape={_shape(word)}", f"lower={word.lower()}"]


def _shape(word: str) -> str:
    """Letters as X or x, digits as 9, others as they are."""
    return "".join("X" if c.isupper() else "x" if c.islower() else "9" if c.isdigit() else c for c in word)


def _short_shape(word: str) -> str:
    """The shape with runs of a character as one."""
    return "".join(c for c, _ in groupby(_shape(word)))
