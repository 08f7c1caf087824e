"""`potentia reproduce` and `potentia bench`; the modules that they run come at first use, for they import much."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from potentia.app.commands import json_text, say_to
from potentia.app.pipeline import check_target, write_text
from potentia.app.report.rows import print_table

#: The studies.
NAMES = (
    "denoising", "horses-ilr", "backgrounds-ilr", "misspecification", "perturbation", "denoising-berkeley", "horses",
    "backgrounds", "fitting-speed", "horses-network", "scene", "multilabel-tables",
    "search-speed", "sequences", "parsers", "images", "learners",
)  # fmt: skip


def reproduce(arguments: argparse.Namespace) -> None:
    """Run a study and print its tables."""
    from .studies import study_named

    study = study_named(arguments.name)
    out = arguments.out / (arguments.name + ("-quick" if arguments.quick else ""))
    rows = study.reproduce(arguments.quick, out, say_to(sys.stdout, arguments), arguments.full)
    _show(arguments, {"rows": rows, "out": str(out)}, study.tables(rows))
    if not arguments.json:
        print(f"rows and figures: {out}")


def bench(arguments: argparse.Namespace) -> None:
    """Measure and print tables."""
    from .bench.run import run, tables

    if arguments.out:
        check_target(arguments.out)
    rows = run(quick=arguments.quick)
    if arguments.out:
        write_text(arguments.out, "".join(json.dumps(row) + "\n" for row in rows))
    _show(arguments, {"rows": rows}, tables(rows))


def _show(arguments: argparse.Namespace, content: dict[str, Any], tables: Sequence[Any]) -> None:
    """Print the tables, or the content with --json."""
    if arguments.json:
        print(json_text(content))
        return
    for table in tables:
        print_table(*table)
