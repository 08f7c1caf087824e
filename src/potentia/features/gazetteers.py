"""Lists of known phrases, such as names of places, and where they occur in a sentence."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from .._options import texts_of
from .._text import read_text
from .._types import PotentiaError


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
