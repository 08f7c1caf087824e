"""`potentia predict` and `potentia evaluate`: a saved pipeline on new data."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .._types import PotentiaError
from .common import (
    add_manners,
    add_source,
    bar_shown,
    command_context,
    json_text,
    own_options,
    show_facts,
    source_of,
)

PREDICT_TEXT = "Predict with a model that `potentia train` saved."
PREDICT_EXAMPLES = """
  potentia predict model --images photos --out predicted
  potentia predict model --table data.csv --out predicted.csv
  potentia predict model --sequences test.tsv --out predicted.tsv

Of pictures, --out is a folder with label maps in the masks' own values (labels/), pictures with the classes' colours
over them (overlays/) and, if asked for, marginals/. Of tables, it is a CSV file of the label columns; of sequences,
the file's columns and the predicted label."""
EVALUATE_TEXT = "Compare a saved model's predictions with the truth."
EVALUATE_EXAMPLES = """
  potentia evaluate model --images photos --masks masks
  potentia evaluate model --table data.csv
  potentia evaluate model --sequences test.tsv"""

_PREDICT = {"images": ("marginals",), "table": (), "sequences": ()}
_EVALUATE = {"images": ("masks", "void"), "table": (), "sequences": ("count_unknown",)}


def add_predict(parser: argparse.ArgumentParser) -> None:
    """The options of `potentia predict`."""
    parser.add_argument("model", type=Path, help="a file that `potentia train` wrote")
    add_source(parser)
    parser.add_argument("--out", type=Path, required=True, help="folder (pictures) or file to write")
    parser.add_argument("--marginals", choices=["npz", "png"], help="pictures: also write marginals")
    add_manners(parser)


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    """The options of `potentia evaluate`."""
    parser.add_argument("model", type=Path, help="a file that `potentia train` wrote")
    add_source(parser)
    parser.add_argument("--masks", type=Path, metavar="DIR", help="folder of masks, PNG")
    parser.add_argument(
        "--void", metavar="VALUES", help="values of these masks that mean unknown, such as 255"
    )
    parser.add_argument(
        "--count-unknown", action="store_const", const=True,
        help="sequences: labels that training did not have count as wrong",
    )  # fmt: skip
    add_manners(parser)


def predict(arguments: argparse.Namespace) -> None:
    """Predict and write files."""
    form, source = source_of(arguments)
    options = own_options(arguments, form, _PREDICT)
    if arguments.out.exists() and arguments.model.exists() and arguments.out.samefile(arguments.model):
        raise PotentiaError(f"{arguments.out} is the model itself; --out needs another name")
    with command_context(arguments):
        pipeline = _pipeline(arguments.model, form)
        facts = pipeline.predict_files(source, arguments.out, progress=bar_shown(arguments), **options)
    show_facts(arguments, f"predicted {source}", facts)


def evaluate(arguments: argparse.Namespace) -> None:
    """Predict and compare."""
    form, source = source_of(arguments)
    options = own_options(arguments, form, _EVALUATE)
    with command_context(arguments):
        pipeline = _pipeline(arguments.model, form)
        facts = pipeline.evaluate_files(source, progress=bar_shown(arguments), **options)
    if arguments.json:
        print(json_text(facts))
        return
    tables = {name: facts.pop(name) for name in ("classes", "confusion") if name in facts}
    show_facts(arguments, f"{arguments.model} on {source}", facts)
    if tables and not arguments.quiet:
        _show_classes(**tables)


def _pipeline(path: Path, form: str) -> Any:
    from ..workflows.pipeline import load_pipeline

    pipeline = load_pipeline(path)
    if pipeline.form != form:
        raise PotentiaError(f"{path} was trained on --{pipeline.form}, not on --{form}")
    return pipeline


def _show_classes(classes: list[dict[str, Any]], confusion: list[list[int]]) -> None:
    from ..report.tables import Column, print_table

    def share(value: float) -> str:
        return "–" if value != value else f"{value:.4f}"

    columns = [Column("class", "class"), Column("pixels", "pixels", str)]
    columns += [Column("recall", "recall", share), Column("IoU", "iou", share)]
    print_table("classes", columns, classes)
    names = [row["class"] for row in classes]
    rows = [
        {"truth": name, **{str(k): n for k, n in enumerate(counts)}}
        for name, counts in zip(names, confusion, strict=True)
    ]
    found = [Column(name, str(k), str) for k, name in enumerate(names)]
    print_table("pixels by truth and prediction", [Column("truth", "truth"), *found], rows)
