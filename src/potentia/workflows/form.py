"""`Form`: a form of the user's own data, known to `potentia train | predict | evaluate` by its option."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from .pipeline import Pipeline
from .training import Run

#: Classes of forms that packages have installed are imported from entry points of this group.
ENTRY_POINTS = "potentia.forms"


class Option(NamedTuple):
    """An option of the command line.

    Attributes:
        help: what --help says.
        type: makes a value of the text given.
        metavar: placeholder of the value in --help.
        choices: all values, where there are few.
        required: whether the command needs it.
        flag: whether it takes no value; True is passed on where it is given.
        alias: another name.
    """

    help: str
    type: Callable[[str], Any] = str
    metavar: str | None = None
    choices: Sequence[str] | None = None
    required: bool = False
    flag: bool = False
    alias: str | None = None


class Form(ABC):
    """A form of data: the options that name and read it, and how to train on it.

    A subclass with a `name` is registered once it is defined; `potentia` also imports those that installed packages
    list as entry points of the group `potentia.forms`. What is trained is a `Pipeline` whose `form` is this name.

    Attributes:
        name: `--NAME SOURCE` gives the data; the value's metavar and the help of the option are `metavar` and `help`.
        options: by command ("train", "predict", "evaluate") and name, passed on where they are given: to `train`,
            `Pipeline.predict_files` and `Pipeline.evaluate_files`.
        examples: by command, arguments that work as they are; --help shows them.
        notes: by command, what else --help says.
        distributed: whether some of the work can be done by a cluster.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    metavar: ClassVar[str] = "FILE"
    options: ClassVar[Mapping[str, Mapping[str, Option]]] = {}
    examples: ClassVar[Mapping[str, str]] = {}
    notes: ClassVar[Mapping[str, str]] = {}
    distributed: ClassVar[bool] = True

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "name" in cls.__dict__:
            _FORMS[cls.name] = cls

    @abstractmethod
    def train(self, source: Path, *, run: Run, **options: Any) -> tuple[Pipeline, dict[str, Any]]:
        """A pipeline fitted to the data in `source`, and facts to show."""

    @abstractmethod
    def pipeline(self) -> type[Pipeline]:
        """The class of what `train` gives, which restores saved ones."""

    def detail(self, facts: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """Takes out of an evaluation's facts what is better shown as tables: lines by title, cells by heading."""
        return {}


_FORMS: dict[str, type[Form]] = {}


def all_forms() -> dict[str, Form]:
    """All known forms by name."""
    _import_forms()
    return {name: kind() for name, kind in _FORMS.items()}


@cache
def _import_forms() -> None:
    from . import forms  # noqa: F401

    for entry in entry_points(group=ENTRY_POINTS):
        entry.load()


def whole_number(least: int = 1, most: int | None = None) -> Callable[[str], int]:
    """The type of an option that is a whole number."""
    wanted = "above zero" if least == 1 and most is None else f"from {least} to {most}"

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {wanted}")
        return int(text)

    return number
