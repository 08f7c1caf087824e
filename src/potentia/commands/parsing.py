"""The argument parser: errors in one sentence, with a suggestion for what was misspelt."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn


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


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """ ", did you mean ...?" with the most similar name, or nothing if none is similar."""
    close = get_close_matches(given, list(known), n=1)
    return f", did you mean {close[0]}?" if close else ""
