"""`potentia train`: from files to a pipeline that can predict."""

from __future__ import annotations

import argparse
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from .._types import PotentiaError
from .common import (
    add_manners,
    add_source,
    at_least_one,
    bar_shown,
    command_context,
    note,
    own_options,
    seed,
    show_facts,
    source_of,
)

TEXT = "Train on your own data and save all that prediction needs in one file."
EXAMPLES = """
  potentia train --images photos --masks masks --node boosting --edge linear --out model
  potentia train --table data.csv --labels a,b,c --out model
  potentia train --sequences train.tsv --out model

Pictures and masks (PNG) of one name belong together. Every value in the masks is a class unless --void or a --palette
says otherwise. In tables, columns of numbers are standardised, others become one indicator per text; a missing number
counts as the mean, a missing text as none; missing are empty cells, ?, NA, N/A, NaN, null and none in any case. Ctrl-C
keeps what is done: the same command goes on from there."""

#: Options of each form of data beyond those of all.
_OPTIONS = {
    "images": (
        "masks", "palette", "void", "node", "edge", "learner", "iterations", "reduce", "superpixels",
    ),
    "table": ("labels", "ignore", "learner", "alpha"),
    "sequences": ("iterations",),
}  # fmt: skip
_MODULES = {"images": "images", "table": "tables", "sequences": "sequences"}
_POTENTIALS = ("boosting", "linear", "mlp", "constant")
_LEARNERS = {"images": ("ilr", "marginal", "margin"), "table": ("lmsbn", "lmbm", "independent")}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_source(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to save to")
    pictures = parser.add_argument_group("pictures")
    pictures.add_argument("--masks", type=Path, metavar="DIR", help="folder of masks, PNG")
    pictures.add_argument(
        "--palette", type=Path, metavar="FILE", help="lines value,name[,#rrggbb] of classes"
    )
    pictures.add_argument("--void", metavar="VALUES", help="values that mean unknown, such as 255 or #000000")
    pictures.add_argument(
        "--node", choices=_POTENTIALS, help="function of pixels (default: boosting with ilr, else linear)"
    )
    pictures.add_argument("--edge", choices=_POTENTIALS, help="function of neighbours (default: linear)")
    pictures.add_argument(
        "--reduce", type=float, metavar="SHARE", help="share of the sides to keep, such as 0.25"
    )
    pictures.add_argument(
        "--superpixels", type=at_least_one, metavar="N", help="label about N regions, not pixels"
    )
    rows = parser.add_argument_group("tables")
    rows.add_argument("--labels", metavar="COLUMNS", help="label columns, with commas between")
    rows.add_argument("--ignore", metavar="COLUMNS", help="columns that are no features")
    rows.add_argument("--alpha", type=float, help="how much to regularise")
    learning = parser.add_argument_group("learning")
    learning.add_argument(
        "--learner",
        choices=[name for names in _LEARNERS.values() for name in names],
        help="pictures: ilr (default), marginal, margin; tables: lmsbn (default), lmbm, independent",
    )
    learning.add_argument(
        "--iterations", "--epochs", type=at_least_one, metavar="N", help="limit of iterations"
    )
    learning.add_argument("--validation", type=float, metavar="SHARE", help="share to hold out and measure")
    learning.add_argument("--seed", type=seed, default=0, help="of everything random (default: 0)")
    add_manners(parser)


def train(arguments: argparse.Namespace) -> None:
    """Train, save, and forget the checkpoint."""
    form, source = source_of(arguments)
    options = own_options(arguments, form, _OPTIONS)
    learner = options.get("learner")
    if learner is not None and learner not in _LEARNERS[form]:
        raise PotentiaError(
            f"--learner {learner} does not go with --{form}: take {', '.join(_LEARNERS[form])}"
        )
    needed = {"images": "masks", "table": "labels"}.get(form)
    if needed is not None and needed not in options:
        raise PotentiaError(f"--{form} needs --{needed} to learn from")

    from ..workflows.outputs import check_target
    from ..workflows.training import Run

    check_target(arguments.out, source)
    checkpoint = arguments.out.with_name(arguments.out.name + ".checkpoint")
    run = Run(
        checkpoint=checkpoint,
        validation=arguments.validation,
        seed=arguments.seed,
        progress=bar_shown(arguments),
        say=lambda text: note(arguments, text),
    )
    begun = time.perf_counter()
    with command_context(arguments):
        workflow: Any = import_module(f"..workflows.{_MODULES[form]}", __package__)
        pipeline, facts = workflow.train(source, **_listed(options), run=run)
        pipeline.save(arguments.out)
    checkpoint.unlink(missing_ok=True)
    facts |= {"seconds": time.perf_counter() - begun, "model": str(arguments.out)}
    show_facts(arguments, f"trained on {source}", facts)


def _listed(options: dict[str, Any]) -> dict[str, Any]:
    """Options that name several columns, as lists."""
    several = {
        name: [part.strip() for part in options[name].split(",") if part.strip()]
        for name in ("labels", "ignore")
        if name in options
    }
    if several.get("labels") == []:
        raise PotentiaError("--labels names no column")
    for name, columns in several.items():
        twice = [column for k, column in enumerate(columns) if column in columns[:k]]
        if twice:
            raise PotentiaError(f"--{name} names {twice[0]!r} twice")
    return options | several
