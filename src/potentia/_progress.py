"""A bar on the error stream, with the time left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextvars import ContextVar, Token
from typing import Any, Self, TypeVar

T = TypeVar("T")

#: The bar of the work under way in this thread.
_current: ContextVar[Bar | None] = ContextVar("potentia_bar", default=None)


def note(text: str) -> None:
    """Show how far a step is, beside the bar of the work that it belongs to, if there is one."""
    bar = _current.get()
    if bar is not None:
        bar.note(text)


class Bar:
    """One task after another, each with a text and a total; nothing at all unless `shown`."""

    def __init__(self, shown: bool) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._text = ""
        self._token: Token[Bar | None] | None = None
        if shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True))

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
            self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._token is not None:
            _current.reset(self._token)

    def begin(self, text: str, total: int) -> None:
        """The next task."""
        self._text = text
        if self._bar is not None:
            self._task = self._bar.add_task(text, total=total)

    def advance(self, done: int | None = None, text: str | None = None) -> None:
        """Advance by one, or to `done`; show `text` if given."""
        self._text = self._text if text is None else text
        if self._bar is not None:
            self._bar.update(
                self._task, advance=1 if done is None else None, completed=done, description=self._text
            )

    def note(self, text: str) -> None:
        """Show a text behind the one that is there, until the next step."""
        if self._task is not None:
            self._bar.update(self._task, description=f"{self._text}, {text}" if self._text else text)

    def over(self, items: Sequence[T], text: str) -> Iterator[T]:
        """The items one by one."""
        self.begin(text, len(items))
        for item in items:
            yield item
            self.advance()
