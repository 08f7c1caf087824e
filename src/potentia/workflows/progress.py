"""A bar over items, with the time left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def with_bar(items: Sequence[T], text: str, shown: bool) -> Iterator[T]:
    """The items one by one, with a bar on the error stream where `shown`."""
    if not shown:
        yield from items
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield from bar.track(items, description=text)
