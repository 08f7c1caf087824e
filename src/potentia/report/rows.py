"""Result rows on disk: JSON lines, each with the cell that it is the result of."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .._files import locked_folder, replacing
from .._types import PotentiaError

#: Packages whose versions go into every row.
_PACKAGES = ("numpy", "scipy", "numba", "scikit-learn")
#: The values that identify a run, and its result.
Cell = dict[str, Any]
Row = dict[str, Any]


def versions() -> dict[str, str]:
    """The versions that a row's result was made with."""
    return {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()}


def read_rows(path: Path) -> list[Row]:
    """Rows of a file of JSON lines; empty if there is no file. A last line cut short by a crash is dropped."""
    if not path.exists():
        return []
    if not path.is_file():
        raise PotentiaError(f"{path} is not a file.")
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise PotentiaError(f"{path} is not UTF-8 text.") from None
    except OSError as error:
        raise PotentiaError(f"{path} cannot be read: {error.strerror or error}.") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        # the decoder also refuses numbers of thousands of digits and deep nesting
        except (ValueError, RecursionError):
            if number < len(lines):
                raise PotentiaError(f"{path}, line {number} is not JSON.") from None
            continue
        rows.append(_row(f"{path}, line {number}", found))
    return rows


def _row(place: str, found: Any) -> Row:
    """A row with a cell, or a sentence that there is none."""
    if not isinstance(found, dict) or not isinstance(found.get("cell"), dict):
        raise PotentiaError(f"{place} is not a result row: it has no cell.")
    return found


def append_row(path: Path, row: Row) -> None:
    """Add a row; runs that write to one folder at a time wait for each other."""
    with locked_folder(path.parent), replacing(path) as raw:
        # the file is rewritten, because a line cut short by a crash must not run into this one
        for known in [*read_rows(path), row]:
            raw.write(json.dumps(known).encode() + b"\n")
