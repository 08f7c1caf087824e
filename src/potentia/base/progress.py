"""Progress on the error stream: a bar with the time left, or lines where there is no terminal."""

from __future__ import annotations

import sys
import threading
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

    In a terminal it is a bar. Elsewhere a thread prints a line every few seconds, also while a step takes long.
    """

    def __init__(self, shown: bool) -> None:
        self._progress: Any = None
        self._task: Any = None
        self._text = ""
        self._ended = threading.Event()
        self._lines: threading.Thread | None = None
        self._token: Token[Bar | None] | None = None
        if shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            )  # fmt: skip
            # without a terminal it keeps the numbers that the lines show
            terminal = sys.stderr.isatty()
            self._progress = Progress(*columns, console=Console(stderr=True), disable=not terminal)
            self._lines = None if terminal else threading.Thread(target=self._print_lines, daemon=True)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
            self._token = _current.set(self)
        if self._lines is not None:
            self._lines.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._lines is not None:
            self._ended.set()
            self._lines.join()
        if self._token is not None:
            self._progress.stop()
            _current.reset(self._token)

    def begin(self, text: str, total: int) -> None:
        """The next task."""
        self._text = text
        if self._progress is not None:
            self._task = self._progress.add_task(text, total=total)

    def advance(self, done: int | None = None, text: str | None = None) -> None:
        """Advance by one, or to `done`; show `text` if given."""
        self._text = self._text if text is None else text
        if self._task is not None:
            self._progress.update(
                self._task, advance=1 if done is None else None, completed=done, description=self._text
            )

    def note(self, text: str) -> None:
        """Show a text behind the one that is there, until the next step."""
        if self._task is not None:
            self._progress.update(self._task, description=f"{self._text}, {text}" if self._text else text)

    def over(self, items: Sequence[T], text: str) -> Iterator[T]:
        """The items one by one."""
        self.begin(text, len(items))
        for item in items:
            yield item
            self.advance()

    def _print_lines(self) -> None:
        """Print how far the task is every few seconds until the work has ended."""
        while not self._ended.wait(LINE_EVERY):
            if self._progress.tasks and self._progress.tasks[-1].total:
                task = self._progress.tasks[-1]
                passed, done = task.elapsed or 0.0, int(task.completed)
                left = f", {passed / done * (task.total - done):.0f} s left" if done else ""
                line = f"potentia: {task.description}: {done} of {task.total}, {passed:.0f} s{left}"
                print(line, file=sys.stderr, flush=True)
