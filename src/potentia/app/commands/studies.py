"""`potentia demo | reproduce | report | bench`: runs that write rows, and the page of their results."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ...base.types import PotentiaError
from ..pipeline import check_target, write_text
from ..report.rows import print_table
from .common import SEED, json_text

#: What --help says of each command, and its example.
TEXTS = {
    "demo": (
        "Train CRFs on noisy images and label networks on digits, and write rows and report.html (one to two minutes).",
        "potentia demo --out demo",
    ),
    "reproduce": (
        "Reproduce a table of a paper and show it next to the paper's; finished cells are not run again.",
        "potentia reproduce denoising --quick --out results",
    ),
    "report": (
        "One HTML page of all result rows under a folder: tables, curves, images, run facts.",
        "potentia report demo --out demo/report.html",
    ),
    "bench": (
        "Measure the speed of inference, compared with two lower bounds on it measured in the same run.",
        "potentia bench --quick",
    ),
}

#: The studies; their modules come at first use, for they bring scikit-learn along.
NAMES = (
    "denoising", "horses-ilr", "backgrounds-ilr", "misspecification", "perturbation", "denoising-berkeley", "horses",
    "backgrounds", "fitting-speed", "horses-network", "scene", "multilabel-tables",
    "search-speed", "sequences", "images",
)  # fmt: skip
#: What rows keep for the page only.
_FOR_THE_PAGE = ("history", "curves", "pictures", "couplings", "labels")


def add_options(command: str, parser: argparse.ArgumentParser) -> None:
    """The options of a command."""
    add = parser.add_argument
    if command == "demo":
        add("--out", type=Path, default=Path("demo"), metavar="DIR", help="folder for rows and page")
        add("--seed", type=SEED, default=0, help="seed of images, noise and the split of digits")
    elif command == "reproduce":
        add("name", choices=NAMES, metavar="name", help=", ".join(NAMES))
        add("--quick", action="store_true", help="a small version in under a minute")
        add("--full", action="store_true", help="all folds of cross-validation, where there are any")
        add("--out", type=Path, default=Path("results"), metavar="DIR", help="folder for rows and figures")
    elif command == "report":
        add(
            "folder",
            type=Path,
            metavar="DIR",
            help="a folder with rows.jsonl files, or a model that `potentia train` wrote",
        )
        add("--out", type=Path, metavar="FILE", help="the page to write (default: report.html in DIR)")
    else:
        add("--quick", action="store_true", help="smaller grids, fewer repetitions")
        add("--out", type=Path, metavar="FILE", help="also write the rows as JSON lines")


class StudiesMissingError(PotentiaError):
    """The studies, which are not part of the library, are not installed."""


def _study_module(name: str) -> Any:
    """A module of the studies, which lie beside the library's sources in its repository."""
    try:
        return import_module(f"potentia_studies.{name}")
    except ModuleNotFoundError as missing:
        if missing.name != "potentia_studies":
            raise
        raise StudiesMissingError(
            "The studies and benchmarks are not part of the library: `pip install -e studies` in a clone of its "
            "repository installs them."
        ) from None


def demo(arguments: argparse.Namespace) -> None:
    """Run the demo and show its tables."""
    from .. import demo as module
    from ..report.rows import runs_table

    begun = time.perf_counter()
    say = _say(arguments, sys.stderr)
    rows, path = module.run(arguments.out, arguments.seed, say=say, progress=not arguments.json)
    seconds = time.perf_counter() - begun
    if arguments.json:
        kept = {name: [_without(row) for row in part] for name, part in rows.items()}
        print(json_text({"rows": kept, "report": str(path), "seconds": seconds}))
        return
    for name, part in rows.items():
        print_table(*runs_table(name, part))
        print(f"data: {part[0]['data']}\n")
    print(f"done in {seconds:.0f} s; open {path} in a browser")


def _without(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in _FOR_THE_PAGE}


def report(arguments: argparse.Namespace) -> None:
    """Write the page."""
    from ..report.page import report as write
    from .own_data import report_source

    source = report_source(arguments.folder)
    try:
        path = write(source, arguments.out, _tables, _study_module("studies").report_originals)
    except StudiesMissingError:
        path = write(source, arguments.out)
    size = path.stat().st_size
    if arguments.json:
        print(json_text({"report": str(path), "bytes": size}))
    else:
        print(f"{path}: {size / 1e6:.1f} MB, open it in a browser")


def _tables(name: str, rows: Sequence[dict[str, Any]]) -> list[Any]:
    try:
        tables: list[Any] = _study_module("studies").report_tables(name, rows)
        return tables
    except KeyError as unknown:
        # rows of an older version of the study; its table of all runs is still there
        missing = f"{unknown} is missing in its rows or not known"
        print(f"potentia: no tables of {name}: {missing}", file=sys.stderr)
        return []


def reproduce(arguments: argparse.Namespace) -> None:
    """Run a study and print its tables."""
    study = _study_module("studies").study_named(arguments.name)
    out = arguments.out / (arguments.name + ("-quick" if arguments.quick else ""))
    rows = study.reproduce(arguments.quick, out, _say(arguments, sys.stdout), arguments.full)
    _show(arguments, {"rows": rows, "out": str(out)}, study.tables(rows))
    if not arguments.json:
        print(f"rows and figures: {out}")


def bench(arguments: argparse.Namespace) -> None:
    """Measure and print tables."""
    module = _study_module("bench.run")
    if arguments.out:
        check_target(arguments.out)
    rows = module.run(quick=arguments.quick)
    if arguments.out:
        write_text(arguments.out, "".join(json.dumps(row) + "\n" for row in rows))
    _show(arguments, {"rows": rows}, module.tables(rows))


def _show(arguments: argparse.Namespace, content: dict[str, Any], tables: Sequence[Any]) -> None:
    if arguments.json:
        print(json_text(content))
        return
    for table in tables:
        print_table(*table)


def _say(arguments: argparse.Namespace, stream: Any) -> Callable[[str], None]:
    """Prints a line to the stream, unless --json."""
    return lambda text: None if arguments.json else print(text, file=stream, flush=True)
