"""Short tables of the README and other pages: results with what differs from the papers, speed, and fault campaigns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from potentia.app.report.rows import Column, Table, shown

from .stored import bench_rows, study_rows
from .studies import study_named


class Headline(NamedTuple):
    """One entry of a study's tables: by the number of the table, what its line begins with, and the column's key."""

    text: str
    study: str
    table: int
    line: str
    column: str
    differs: str = ""


_HORSES = "random split, a quarter of the resolution (the paper states neither), pixel features computed at full size"

RESULTS = (
    Headline(
        "denoising, boosted nodes and pairs: error [ILR-nips table 1]", "denoising", 0, "boosting", "boosting",
        "images drawn again by the paper's recipe; trees as in ILR-chapter",
    ),
    Headline(
        "denoising, linear nodes and pairs: error", "denoising", 0, "linear", "linear",
        "the same images; L-BFGS over all parameters instead of 25 alternations",
    ),
    Headline("Weizmann horses, boosted nodes, MLP pairs: error [ILR-nips table 1]", "horses-ilr", 0, "boosting", "mlp",
             _HORSES),
    Headline(
        "Stanford backgrounds, boosted nodes, MLP pairs: error [ILR-chapter table 1.1]", "backgrounds-ilr", 0,
        "boosting", "mlp", "fold 0 of the author's toolbox (the chapter does not state its split)",
    ),
    Headline(
        "Berkeley denoising, n = 1.25, univariate logistic loss through TRW: error [MBL-tpami table 1]",
        "denoising-berkeley", 0, "univariate logistic", "1.25", "images binarised again by the paper's recipe",
    ),
    Headline("Weizmann horses, the same loss through 20 iterations: error [MBL-tpami table 2]", "horses", 0,
             "univariate logistic", "20", _HORSES),
    Headline(
        "Stanford backgrounds, the same loss through 20 iterations: error [MBL-tpami table 3]", "backgrounds", 0,
        "univariate logistic", "20", "one fold instead of five",
    ),
    Headline(
        "Scene, LMSBN with RBF kernel: exact match [LMSBN figure 4]", "scene", 0, "LMSBNkf", "exact_match",
        "the paper prints no numbers; `label_scale` is tuned, too",
    ),
    Headline("Scene, label powerset with RBF kernel: exact match", "scene", 0, "powersetk", "exact_match",
             "not in the paper; options chosen in five folds from 36 candidates, as the network's"),
    Headline("Scene, independent RBF machines: exact match", "scene", 0, "BCk", "exact_match",
             "options chosen in five folds from 36 candidates"),
    Headline(
        "twelve multi-label sets, `LabelNetwork()`: mean rank of thirteen systems by exact match", "multilabel-tables",
        0, "label network", "rank", "not in a paper; three folds of 600 rows and 25 labels",
    ),
    Headline("the same sets, label powerset with RBF kernel", "multilabel-tables", 0, "powerset, RBF", "rank"),
    Headline("CoNLL-2000 chunks, `potentia train --sequences`: F1", "sequences", 0, "CoNLL-2000", "span_f1",
             "not in a paper"),
    Headline("CoNLL-2000, `ChainCRF` with c2 = 1: F1", "sequences", 1, "CoNLL-2000", "quality"),
    Headline("CoNLL-2000, CRFsuite, the same features and objective: F1", "sequences", 1, "CoNLL-2000",
             "crfsuite_quality"),
)  # fmt: skip


def results(root: Path) -> list[Table]:
    """Results beside the papers', with what differs and the command that makes them."""
    tables = {name: study_named(name).tables(study_rows(name, root)) for name in {h.study for h in RESULTS}}
    lines = []
    for headline in RESULTS:
        ours, _, paper = _entry(tables[headline.study][headline.table], headline).partition(" / ")
        command = f"`potentia reproduce {headline.study}`"
        lines.append(headline._asdict() | {"ours": ours, "paper": paper, "command": command})
    columns = [Column("result", "text"), Column("ours", "ours"), Column("paper", "paper")]
    return [Table("", [*columns, Column("differs", "differs"), Column("command", "command")], lines)]


def _entry(table: Table, headline: Headline) -> str:
    """What a study's table shows there, without spread and rank; a dash where it has no such line."""
    line = next((line for line in table.lines if line[table.columns[0].key] == headline.line), {})
    column = next(column for column in table.columns if column.key == headline.column)
    return shown(column, line).partition(" ±")[0]


#: Graphs of the speed table.
_GRAPHS = (
    "grid 100x100, 2 states", "grid 48x64, 8 states", "grid 1000x1000, 2 states", "grid 100x100, 21 states",
    "irregular, 8 states",
)  # fmt: skip


def speed(root: Path) -> list[Table]:
    """Forward sweeps of TRW beside their floors."""
    rows = bench_rows(root)
    exp = next(row["numpy_exp_ns"] for row in rows if row["part"] == "machine")
    found = {(r["graph"], r["asked_threads"]): r for r in rows if r["part"] == "sweep" and r["method"] == "TRW"}
    lines = []
    for graph in _GRAPHS:
        one, two = found[graph, 1], found[graph, 2]
        gain = one["ns_per_message"] / two["ns_per_message"] if two["threads"] == 2 else None
        lines.append(one | {"exps": one["ns_per_message"] / exp, "gain": gain})
    number = "{:.1f}".format
    columns = [
        Column("TRW on", "graph"), Column("ns per message", "ns_per_message", number),
        Column("in NumPy exps", "exps", number), Column("table floor, ns", "table_floor_ns", number),
        Column("log floor, ns", "log_floor_ns", number), Column("two threads: speed-up", "gain", "{:.2f}".format),
    ]  # fmt: skip
    return [Table("", columns, lines)]


def torch_speed(root: Path) -> list[Table]:
    """`pt.torch` beside pytorch-crf and plain PyTorch."""
    number = "{:.1f}".format
    columns = [
        Column("forward and backward", "what"), Column("ms", "ms", number), Column("compared with", "beside"),
        Column("its ms", "other_ms", number), Column("times as fast", "ratio", number),
    ]  # fmt: skip
    return _part_table(root, "torch", columns)


def faults(root: Path) -> list[Table]:
    """Runs of the programs of `tests/faults`, as their rows were noted."""
    number = "{:,}".format
    columns = [
        Column("campaign", "campaign"), Column("program", "program"), Column("seeds", "seeds"),
        Column("trials", "trials", number), Column("failures", "failures", number), Column("cause", "cause"),
    ]  # fmt: skip
    return _part_table(root, "faults", columns)


def _part_table(root: Path, part: str, columns: list[Column]) -> list[Table]:
    """The rows of a part of the benchmarks, if there are any."""
    rows = [row for row in bench_rows(root) if row["part"] == part]
    return [Table("", columns, rows)] if rows else []


HEADLINES: dict[str, Callable[[Path], list[Table]]] = {
    "results": results,
    "speed": speed,
    "torch": torch_speed,
    "faults": faults,
}
