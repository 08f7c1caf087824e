"""Sentences to examples: sparse indicators of words and tags around each token."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..base.files import read_text
from ..base.options import check_count, check_flag, check_type, texts_of
from ..base.types import PotentiaError
from ..graph.structure import Graph
from .example import Example

#: A sentence as its columns: words, then any tags, the label last (as `pt.datasets.conll` reads it).
Sentence = Sequence[Sequence[str]]

_EDGE = "\x00"


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
            found = next(
                (p for p in self._by_first.get(lower[t], ()) if tuple(lower[t : t + len(p)]) == p), None
            )
            if found is None:
                t += 1
                continue
            marks[t : t + len(found)] = ["B", *["I"] * (len(found) - 1)]
            t += len(found)
        return marks


class TokenFeatures:
    """Indicators of what stands around a token, as chunkers use them, and of its spelling.

    For every column: its values at distances -window..window and the joint values of neighbours at distance at most
    one (for all but the first column also of three in a row within the window). With `spelling` also prefixes and
    suffixes of up to three letters and the shape of the word, and for every gazetteer, by name, whether the token
    begins or continues one of its phrases. What occurs fewer than `min_count` times in `fit` is left out.

    After `fit`: `classes_` (labels in order), `index_` (name of each indicator to its column).
    """

    def __init__(
        self,
        window: int = 2,
        min_count: int = 1,
        spelling: bool = False,
        gazetteers: Mapping[str, Gazetteer] | None = None,
    ) -> None:
        check_count("window", window)
        check_count("min_count", min_count, 1)
        check_flag("spelling", spelling)
        self.window, self.min_count, self.spelling = window, min_count, spelling
        check_type("gazetteers", gazetteers, Mapping, optional=True)
        self.gazetteers = dict(gazetteers or {})
        for name, gazetteer in self.gazetteers.items():
            check_type(f"gazetteers[{name!r}]", gazetteer, Gazetteer)

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
        if not hasattr(self, "index_"):
            raise PotentiaError("these TokenFeatures are not fitted: call fit first.")
        graphs: dict[int, Graph] = {}
        found = []
        for number, sentence in enumerate(sentences):
            inputs = sentence[:-1] if labelled else sentence
            if len(inputs) != self.n_columns_ - 1:
                raise PotentiaError(
                    f"sentence {number} has {len(inputs)} input columns, not {self.n_columns_ - 1}."
                )
            n = len(inputs[0])
            if any(len(column) != n for column in sentence):
                raise PotentiaError(
                    f"the columns of sentence {number} have {sorted({len(c) for c in sentence})} tokens."
                )
            graph = graphs.setdefault(n, Graph.chain(n, n_states=len(self.classes_)))
            labels = self._labels(sentence[-1]) if labelled else None
            found.append(Example(graph, {"node": self._matrix(inputs)}, labels, name=f"sentence {number}"))
        return found

    def _labels(self, column: Sequence[str]) -> Any:
        place = {label: k for k, label in enumerate(self.classes_)}
        return np.array([place.get(label, -1) for label in column])

    def _matrix(self, inputs: Sentence) -> Any:
        from scipy import sparse

        index = [[self.index_[name] for name in token if name in self.index_] for token in self.names(inputs)]
        ptr = np.cumsum([0, *map(len, index)])
        columns = np.concatenate(
            [np.zeros(0, dtype=np.int32), *(np.array(row, dtype=np.int32) for row in index)]
        )
        return sparse.csr_array(
            (np.ones(len(columns), dtype=np.float32), columns, ptr), shape=(len(index), len(self.index_))
        )

    def names(self, inputs: Sentence) -> Iterator[list[str]]:
        """The indicators of every token of a sentence without labels, by name."""
        w = self.window
        marks = {name: gazetteer.mark(inputs[0]) for name, gazetteer in self.gazetteers.items()}
        padded = [[*[_EDGE] * w, *column, *[_EDGE] * w] for column in inputs]
        for t in range(w, w + len(inputs[0])):
            names = [f"{c}[{d}]={column[t + d]}" for c, column in enumerate(padded) for d in range(-w, w + 1)]
            for c, column in enumerate(padded):
                reach = range(-1, 1) if c == 0 else range(-w, w)
                names += [f"{c}[{d}:2]={column[t + d]}|{column[t + d + 1]}" for d in reach if w]
                if c > 0:
                    names += [
                        f"{c}[{d}:3]={column[t + d]}|{column[t + d + 1]}|{column[t + d + 2]}"
                        for d in range(-w, w - 1)
                    ]
            if self.spelling:
                names += _spelling(padded[0][t])
            names += [f"{name}={own[t - w]}" for name, own in marks.items() if own[t - w]]
            yield names


def _spelling(word: str) -> list[str]:
    names = [f"prefix={word[:k]}" for k in (1, 2, 3)] + [f"suffix={word[-k:]}" for k in (1, 2, 3)]
    shape = "".join("X" if c.isupper() else "x" if c.islower() else "9" if c.isdigit() else c for c in word)
    return [*names, f"shape={shape}", f"lower={word.lower()}"]
