"""`potentia demo` and `potentia report`: the main job end to end, and the page of its results."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .common import json_text, seed

DEMO_TEXT = (
    "Train CRFs on noisy images and a network of labels on digits; writes rows and report.html (a minute)."
)
DEMO_EXAMPLE = "potentia demo --out demo"
REPORT_TEXT = "One HTML page of all result rows under a folder: tables, curves, pictures, run facts."
REPORT_EXAMPLE = "potentia report demo --out demo/report.html"

#: What rows keep for the page only.
_FOR_THE_PAGE = ("history", "curves", "pictures", "couplings", "labels")


def add_demo(parser: argparse.ArgumentParser) -> None:
    """The options of `potentia demo`."""
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="DIR", help="folder for rows and page"
    )
    parser.add_argument("--seed", type=seed, default=0, help="seed of images, noise and the split of digits")


def add_report(parser: argparse.ArgumentParser) -> None:
    """The options of `potentia report`."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="searched for rows.jsonl files")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: report.html in DIR")


def demo(arguments: argparse.Namespace) -> None:
    """Run the demo and show its tables."""
    from .. import demo as module
    from ..report.runs import runs_table
    from ..report.tables import print_table

    begun = time.perf_counter()
    quiet = arguments.json
    say = (lambda text: None) if quiet else (lambda text: print(text, file=sys.stderr, flush=True))
    rows, path = module.run(arguments.out, arguments.seed, say=say, progress=not quiet)
    seconds = time.perf_counter() - begun
    if arguments.json:
        kept = {name: [_without(row) for row in part] for name, part in rows.items()}
        print(json_text({"rows": kept, "report": str(path), "seconds": seconds}))
        return
    for name, part in rows.items():
        beside = ": ours beside the paper's" if any(row.get("paper") for row in part) else ""
        print_table(*runs_table(name + beside, part))
        print(f"data: {part[0]['data']}\n")
    print(f"done in {seconds:.0f} s; open {path} in a browser")


def _without(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in _FOR_THE_PAGE}


def report(arguments: argparse.Namespace) -> None:
    """Write the page."""
    from ..report.page import report as write

    path = write(arguments.folder, arguments.out, _tables, _originals)
    size = path.stat().st_size
    if arguments.json:
        print(json_text({"report": str(path), "bytes": size}))
    else:
        print(f"{path}: {size / 1e6:.1f} MB, open it in a browser")


def _originals(name: str, cell: dict[str, Any]) -> list[Any]:
    """What a row's pictures show, where a study is one of the papers' and its data is there."""
    from ..experiments.reproduce import EXPERIMENTS, originals

    return originals(name, cell) if name in EXPERIMENTS and "quick" in cell else []


def _tables(name: str, rows: Sequence[dict[str, Any]]) -> list[Any]:
    """The papers' tables, where a study is one of theirs."""
    from ..experiments.reproduce import EXPERIMENTS, tables

    if name not in EXPERIMENTS:
        return []
    try:
        return tables(name, rows)
    except KeyError as unknown:
        # rows of an older version of the study; its table of all runs is still there
        print(
            f"potentia: no tables of {name}: {unknown} is missing in its rows or not known", file=sys.stderr
        )
        return []
