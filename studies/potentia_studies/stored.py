"""Rows stored in the repository: those of full runs of the studies, and of `potentia bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from potentia.app.report.rows import Row, read_rows


def study_rows(name: str, root: Path) -> list[Row]:
    """Rows of a study's full run; an empty list if there is no file."""
    rows = read_rows(root / "studies" / "results" / name / "rows.jsonl")
    return [row for row in rows if not row["cell"].get("quick")]


def bench_rows(root: Path) -> list[dict[str, Any]]:
    """Rows of the last full runs of `potentia bench` and the other benchmarks."""
    files = sorted((root / "studies" / "benchmarks").glob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]
