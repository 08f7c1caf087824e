"""Cells of an experiment and their rows on disk: a cell that has its row is not run again."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .._types import PotentiaError

#: Packages whose versions go into every row.
_PACKAGES = ("numpy", "scipy", "numba", "scikit-learn")

Cell = dict[str, Any]
Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """Rows of a file of JSON lines; none where there is no file. A last line cut short by a crash is dropped."""
    if not path.exists():
        return []
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise PotentiaError(f"{path} is not UTF-8 text") from None
    for number, line in enumerate(lines):
        try:
            if line.strip():
                rows.append(json.loads(line))
        except json.JSONDecodeError:
            if number < len(lines) - 1:
                raise PotentiaError(f"{path}, line {number + 1} is not JSON") from None
    return rows


def key_of(cell: Cell) -> str:
    """What tells cells apart."""
    return json.dumps(cell, sort_keys=True)


def run_cells(
    cells: Iterable[Cell],
    run: Callable[[Cell], Row],
    out: Path,
    say: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Run every cell that has no row in out/rows.jsonl yet, adding its row at once; all rows of the given cells."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "rows.jsonl"
    done = {key_of(row["cell"]): row for row in read_rows(path)}
    facts = {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()}
    rows = []
    for cell in cells:
        key = key_of(cell)
        if key not in done:
            begun = time.perf_counter()
            result = run(cell)
            row = {"cell": cell, **result, "seconds": time.perf_counter() - begun, "versions": facts}
            _append(path, row)
            done[key] = row
            say(f"{key}: {_summary(row)}")
        rows.append(done[key])
    return rows


def _append(path: Path, row: Row) -> None:
    # a line cut short by a crash must not run into this one
    whole = read_rows(path)
    text = "".join(json.dumps(r) + "\n" for r in [*whole, row])
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


def _summary(row: Row) -> str:
    numbers = [f"{k} {v:.4f}" for k, v in row.items() if k.endswith("error") and isinstance(v, float)]
    return ", ".join([*numbers, f"{row['seconds']:.0f} s"])
