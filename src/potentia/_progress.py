"""A bar on the error stream, with the time left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Bar:
    """One task after another, each with a text and a total; nothing at all unless `shown`."""

    def __init__(self, shown: bool) -> None:
        self._bar: Any = None
        self._task: Any = None
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
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, text: str, total: int) -> None:
        """The next task."""
        if self._bar is not None:
            self._task = self._bar.add_task(text, total=total)

    def advance(self, done: int | None = None, text: str | None = None) -> None:
        """Advance by one, or to `done`; show `text` if given."""
        if self._bar is not None:
            self._bar.update(
                self._task, advance=1 if done is None else None, completed=done, description=text
            )

    def over(self, items: Sequence[T], text: str) -> Iterator[T]:
        """The items one by one."""
        self.begin(text, len(items))
        for item in items:
            yield item
            self.advance()
