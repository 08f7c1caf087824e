"""What commands share: options, JSON, threads, and one sentence for every warning."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .._types import ConvergenceWarning, PotentiaError


def json_text(content: dict[str, Any]) -> str:
    """Strict JSON: numbers that are not finite become null."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(v) for key, v in value.items()}
        if isinstance(value, list | tuple):
            return [plain(v) for v in value]
        value = value.item() if hasattr(value, "item") else value
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(plain(content), allow_nan=False, default=str)


def add_source(parser: argparse.ArgumentParser) -> None:
    """The options that name the data, of which exactly one is given."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--images", type=Path, metavar="DIR", help="folder of pictures (PNG, JPEG)")
    source.add_argument("--table", type=Path, metavar="FILE", help="rows with several labels (CSV, Parquet)")
    source.add_argument(
        "--sequences", type=Path, metavar="FILE", help="a token per line in columns, labels last (.gz too)"
    )


def add_manners(parser: argparse.ArgumentParser) -> None:
    """The options of every command that may take long."""
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors (and --json)")
    parser.add_argument("--threads", type=at_least_one, metavar="N", help="default: all cores")


def at_least_one(text: str) -> int:
    """An option that is a whole number above zero."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def seed(text: str) -> int:
    """An option that numbers what is random."""
    if not text.isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 4294967295")
    return int(text)


def source_of(arguments: argparse.Namespace) -> tuple[str, Path]:
    """Which form of data was given, and where it is."""
    return next(
        (form, getattr(arguments, form))
        for form in ("images", "table", "sequences")
        if getattr(arguments, form) is not None
    )


def own_options(
    arguments: argparse.Namespace, form: str, forms: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """The options given that belong to a form of data; refuses those of other forms.

    forms: the names of each form's options, whose default is None.
    """
    for name in sorted({name for names in forms.values() for name in names} - set(forms[form])):
        if getattr(arguments, name) is not None:
            raise PotentiaError(f"--{name.replace('_', '-')} does not go with --{form}")
    found = {name: getattr(arguments, name) for name in forms[form]}
    return {name: value for name, value in found.items() if value is not None}


@contextmanager
def command_context(arguments: argparse.Namespace) -> Iterator[None]:
    """Keeps to --threads, and turns warnings that fits have not converged into sentences (none with --quiet)."""
    from threadpoolctl import threadpool_limits

    before = os.environ.get("POTENTIA_THREADS")
    if arguments.threads:
        os.environ["POTENTIA_THREADS"] = str(arguments.threads)
    try:
        with threadpool_limits(arguments.threads), warnings.catch_warnings():
            warnings.simplefilter("always", ConvergenceWarning)
            warnings.showwarning = lambda message, *_, **__: note(arguments, str(message))
            yield
    finally:
        if arguments.threads:
            os.environ.pop("POTENTIA_THREADS")
            os.environ |= {} if before is None else {"POTENTIA_THREADS": before}


def note(arguments: argparse.Namespace, text: str) -> None:
    """A sentence for the user that is no result."""
    if not arguments.quiet:
        print(f"potentia: {text}", file=sys.stderr)


def bar_shown(arguments: argparse.Namespace) -> bool:
    """Whether there is someone to watch a progress bar."""
    return not (arguments.quiet or arguments.json) and sys.stderr.isatty()


def show_facts(arguments: argparse.Namespace, title: str, facts: dict[str, Any]) -> None:
    """Facts as JSON or as a table, unless --quiet."""
    if arguments.json:
        print(json_text(facts))
    elif not arguments.quiet:
        from ..report.tables import Column, print_table

        rows = [{"fact": key.replace("_", " "), "value": shown_fact(value)} for key, value in facts.items()]
        print_table(title, [Column("fact", "fact"), Column("value", "value", str)], rows)


def shown_fact(value: Any) -> str:
    """A fact's value in a table."""
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, dict):
        return ", ".join(f"{v} {key}" for key, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value[:12])) + (", ..." if len(value) > 12 else "")
    return str(value)
