"""Progress on the error stream: a bar with the time left, or lines where there is no terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar, Token
from typing import Any, Self, TypeVar

T = TypeVar("T")

#: Seconds between two lines where there is no terminal.
LINE_EVERY = 5.0
#: The bar of the work under way in this thread.
_current: ContextVar[Bar | None] = ContextVar("potentia_bar", default=None)


def note(text: str) -> None:
    """Show how far a step is, beside the bar of the work that it belongs to, if there is one."""
    bar = _current.get()
    if bar is not None:
        bar.note(text)


class Bar:
    """One task after another, each with a text and a total; nothing at all unless `shown`.

    In a terminal it is a bar. Elsewhere it is a line every few seconds, also while a step takes long.
    """

    def __init__(self, shown: bool) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._text = ""
        self._lines: _Lines | None = None
        self._token: Token[Bar | None] | None = None
        if shown and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True))
        elif shown:
            self._lines = _Lines()

    def __enter__(self) -> Self:
        for shown in (self._bar, self._lines):
            if shown is not None:
                shown.start()
                self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        for shown in (self._bar, self._lines):
            if shown is not None:
                shown.stop()
        if self._token is not None:
            _current.reset(self._token)

    def begin(self, text: str, total: int) -> None:
        """The next task."""
        self._text = text
        if self._bar is not None:
            self._task = self._bar.add_task(text, total=total)
        if self._lines is not None:
            self._lines.begin(text, total)

    def advance(self, done: int | None = None, text: str | None = None) -> None:
        """Advance by one, or to `done`; show `text` if given."""
        self._text = self._text if text is None else text
        if self._bar is not None:
            self._bar.update(
                self._task, advance=1 if done is None else None, completed=done, description=self._text
            )
        if self._lines is not None:
            self._lines.advance(done, self._text)

    def note(self, text: str) -> None:
        """Show a text behind the one that is there, until the next step."""
        shown = f"{self._text}, {text}" if self._text else text
        if self._task is not None:
            self._bar.update(self._task, description=shown)
        if self._lines is not None:
            self._lines.text = shown

    def over(self, items: Sequence[T], text: str) -> Iterator[T]:
        """The items one by one."""
        self.begin(text, len(items))
        for item in items:
            yield item
            self.advance()


class _Lines:
    """A thread that prints where the current task is, every few seconds until it is stopped."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._print, daemon=True)
        self.text, self._done, self._total, self._begun = "", 0, 0, time.monotonic()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def begin(self, text: str, total: int) -> None:
        self.text, self._done, self._total, self._begun = text, 0, total, time.monotonic()

    def advance(self, done: int | None, text: str) -> None:
        self._done = self._done + 1 if done is None else done
        self.text = text

    def _print(self) -> None:
        while not self._stopped.wait(LINE_EVERY):
            if self._total:
                passed = time.monotonic() - self._begun
                left = (
                    f", {passed / self._done * (self._total - self._done):.0f} s left" if self._done else ""
                )
                print(
                    f"potentia: {self.text}: {self._done} of {self._total}, {passed:.0f} s{left}",
                    file=sys.stderr,
                    flush=True,
                )
