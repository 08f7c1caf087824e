"""What commands share: options, JSON, threads, and one sentence for every warning."""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from typing import Any, NoReturn

from ...base.threads import using_threads
from ...base.types import ConvergenceWarning, printable
from ...learn.backends.connection import cluster


def whole_number(least: int = 1, most: int | None = None) -> Callable[[str], int]:
    """The type of an option that is a whole number."""
    wanted = "above zero" if least == 1 and most is None else f"from {least} to {most}"

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {wanted}")
        return int(text)

    return number


#: The type of an option that numbers what is random.
SEED = whole_number(0, 2**32 - 1)


def add_quiet_and_threads(parser: argparse.ArgumentParser) -> None:
    """The options of every command that may take long."""
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors (and --json)")
    parser.add_argument(
        "--threads", type=whole_number(), metavar="N", help="number of threads (default: all cores)"
    )


def plain(value: Any) -> Any:
    """Values as strict JSON has them: numbers that are not finite become null."""
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_text(content: dict[str, Any]) -> str:
    """Strict JSON: numbers that are not finite become null."""
    return json.dumps(plain(content), allow_nan=False, default=str)


@contextmanager
def command_context(arguments: argparse.Namespace) -> Iterator[None]:
    """Keeps to --threads and --cluster, and turns warnings that fits have not converged into sentences.

    There are none with --quiet.
    """
    from threadpoolctl import threadpool_limits

    threads = using_threads(arguments.threads) if arguments.threads else nullcontext()
    where = getattr(arguments, "cluster", None)
    workers = cluster(where, threads=arguments.threads or 1) if where else nullcontext()
    with threads, threadpool_limits(arguments.threads), workers, warnings.catch_warnings():
        warnings.simplefilter("always", ConvergenceWarning)
        warnings.showwarning = lambda message, *_, **__: note(arguments, str(message))
        yield


def note(arguments: argparse.Namespace, text: str) -> None:
    """A sentence for the user that is no result."""
    if not arguments.quiet:
        print(f"potentia: {printable(text)}", file=sys.stderr)


def bar_shown(arguments: argparse.Namespace) -> bool:
    """Whether progress is shown: a bar in a terminal, lines elsewhere."""
    return not (arguments.quiet or arguments.json)


def show_facts(arguments: argparse.Namespace, title: str, facts: dict[str, Any]) -> None:
    """Facts as JSON or as a table, unless --quiet."""
    if arguments.json:
        print(json_text(facts))
    else:
        lines = [{"fact": key.replace("_", " "), "value": _shown(value)} for key, value in facts.items()]
        show_lines(arguments, title, lines)


def show_lines(arguments: argparse.Namespace, title: str, lines: list[dict[str, Any]]) -> None:
    """Lines as a table whose headings are their keys, unless --quiet; a first column of names is aligned left."""
    from ..report.rows import Column, print_table

    if not getattr(arguments, "quiet", False):
        columns = [Column(key, key, _shown) for key in lines[0]]
        if isinstance(next(iter(lines[0].values())), str):
            columns[0] = Column(columns[0].heading, columns[0].key)
        print_table(title, columns, lines)


def _shown(value: Any) -> str:
    """A fact's value in a table."""
    if isinstance(value, float):
        return "–" if value != value else f"{value:.4f}"
    if isinstance(value, dict):
        return ", ".join(f"{v} {key}" for key, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value[:12])) + (", ..." if len(value) > 12 else "")
    return str(value)


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are one sentence instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and where help is, and exit with 2."""
        end = "" if message.endswith("?") else "."
        self.exit(2, f"{self.prog}: {message}{end} See `{self.prog} --help`.\n")

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As in the base class, but a command refuses unknown options first, so that it can suggest another."""
        known = self._option_string_actions
        for given in () if args is None or self._subparsers else args:
            name = given.partition("=")[0]
            if given == "--":
                break
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                self.error(f"unknown option {name}{did_you_mean(name, known)}")
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            what = "command" if isinstance(action, argparse._SubParsersAction) else "value"
            choices = [str(choice) for choice in action.choices]
            hint = did_you_mean(str(value), choices) or f", expected one of {', '.join(choices)}"
            error = f"unknown {what} {value!r}{hint}"
            raise argparse.ArgumentError(None if what == "command" else action, error)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ ", did you mean ...?" with the most similar name, or nothing if none is similar."""
    close = get_close_matches(word, list(known), n=1)
    return f", did you mean {close[0]}?" if close else ""
