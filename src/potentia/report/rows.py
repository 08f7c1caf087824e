"""Result rows on disk: JSON lines, each with the cell that it is the result of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .._types import PotentiaError

#: What tells a run apart from others, and its result.
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
        raise PotentiaError(f"{path} is not UTF-8 text.") from None
    for number, line in enumerate(lines):
        try:
            if line.strip():
                rows.append(json.loads(line))
        except json.JSONDecodeError:
            if number < len(lines) - 1:
                raise PotentiaError(f"{path}, line {number + 1} is not JSON.") from None
    return rows
