"""`sequences`: token files by the command line's pipeline, and `ChainCRF` beside CRFsuite."""

from __future__ import annotations

import potentia as pt
from potentia.app import sequences
from potentia.app.report.rows import Cell, Column, Row, Table, grid

from .bench.sequences import GENERATED, TOKENS, compare
from .study import Rows, Study, part_rows


def run(cell: Cell, data: None) -> Row:
    """Scores of what `potentia train --sequences` makes of a file, or times and memory."""
    return _command(cell) if cell["part"] == "command" else _speed(cell)


def _command(cell: Cell) -> Row:
    folder, name = pt.datasets.data_folder(None) / "sequences", TOKENS[cell["data"]]
    pipeline, facts = sequences.train(folder / f"{name}_train.tsv.gz", iterations=3 if cell["quick"] else None)
    scores = pipeline.evaluate_files(folder / f"{name}_test.tsv.gz", count_unknown=True)
    return {key: facts[key] for key in ("iterations", "objective", "scheme")} | scores


def _speed(cell: Cell) -> Row:
    ours, *theirs = compare(cell["data"])
    found = {**ours, **{f"crfsuite_{key}": value for row in theirs for key, value in row.items()}}
    # the runner notes its own seconds
    return {"fit_seconds": found.pop("seconds"), **found}


def tables(rows: Rows) -> list[Table]:
    """Scores of the command; ratios of time and memory."""
    score, ratio = "{:.4f}".format, "{:.2f}".format
    scores = [
        Column("data", "data"), Column("accuracy", "accuracy", score), Column("precision", "span_precision", score),
        Column("recall", "span_recall", score), Column("F1", "span_f1", score), Column("iterations", "iterations", str),
    ]  # fmt: skip
    speeds = [
        Column("data", "data"), Column("F1 or accuracy", "quality", score),
        Column("CRFsuite", "crfsuite_quality", score),
        Column("seconds", "fit_seconds", ratio), Column("CRFsuite", "crfsuite_seconds", ratio),
        Column("times as fast", "seconds_ratio", ratio), Column("predicting", "predict_seconds", ratio),
        Column("CRFsuite", "crfsuite_predict_seconds", ratio), Column("times as fast", "predict_seconds_ratio", ratio),
        Column("memory, share of CRFsuite's", "memory_ratio", ratio),
    ]  # fmt: skip
    return [
        Table("`potentia train --sequences`", scores, part_rows(rows, "command")),
        Table("`ChainCRF` beside CRFsuite, to the same objective, one thread", speeds, part_rows(rows, "speed")),
    ]


STUDY = Study(
    "sequences",
    [*grid(part=("command",), data=tuple(TOKENS)), *grid(part=("speed",), data=(*TOKENS, GENERATED))],
    grid(part=("command",), data=("WNUT-17",)),
    run,
    tables,
)
