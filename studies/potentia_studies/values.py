"""Single numbers in the sentences of the README and the documentation, from stored rows.

A number is named either by its place in a study's tables, `STUDY/TABLE/LINE/COLUMN` with the number of the table (and
`/paper` for the paper's number beside it), or by an entry of `VALUES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from potentia.app.report.rows import shown

from .stored import bench_rows, study_rows
from .studies import study_named


def value(name: str, root: Path) -> str:
    """The number of this name as a page shows it."""
    if name in VALUES:
        return VALUES[name](root)
    study, number, line, column, *paper = name.split("/")
    table = study_named(study).tables(study_rows(study, root))[int(number)]
    row = next(row for row in table.lines if str(row[table.columns[0].key]) == line)
    entry = shown(next(c for c in table.columns if c.key == column), row)
    ours, _, theirs = entry.partition(" / ")
    return (theirs if paper else ours).partition(" ±")[0]


def _row(root: Path, part: str, **facts: Any) -> Mapping[str, Any]:
    rows = (row for row in bench_rows(root) if row["part"] == part)
    return next(row for row in rows if facts.items() <= row.items())


# -- potentia bench ----------------------------------------------------------------------------------------------


def _over_plain(root: Path, graph: str, scores: str = "tables") -> str:
    """How many times as fast as a plain Numba loop a call of message passing is."""
    return f"{_row(root, 'calls', graph=f'grid {graph}', scores=scores)['over_plain']:.1f}"


# -- studies/benchmarks/first_run.py ---------------------------------------------------------------------------------


def _first_run(key: str, step: int, root: Path) -> str:
    """A measurement, rounded to a multiple of `step`."""
    return str(step * round(_row(root, "first run")[key] / step))


# -- studies/benchmarks/cluster.py: measured, and computed from it for 1e9 variables ---------------------------------

_LARGE, _CORES, _MACHINES = 1e9, 512, 32


def _fit(key: str, show: str, root: Path, workers: int = 1) -> str:
    return show.format(_row(root, "cluster", workers=workers)[key])


def _cpu(root: Path, workers: int) -> str:
    return " + ".join(f"{s:.0f}" for s in _row(root, "cluster", workers=workers)["cpu_seconds"])


def _speed_up(root: Path) -> str:
    """How much faster two workers are than one."""
    one, two = (_row(root, "cluster", workers=n)["seconds"] for n in (1, 2))
    return f"{one / two:.2f}"


def _round_seconds(root: Path) -> float:
    """What the rounds of a step add, in seconds: the larger of both measurements."""
    rows = [_row(root, "cluster", workers=n) for n in (1, 2)]
    return float(max(row["rounds_per_step"] * row["round_ms"] for row in rows) / 1e3)


def _least_work(root: Path) -> str:
    """Seconds of work in a step of which the rounds are a tenth."""
    return f"{9 * _round_seconds(root):.1f}"


def _large_step(root: Path, cores: int) -> float:
    return float(_row(root, "cluster", workers=1)["step_us"] * _LARGE / 1e6 / cores)


def _large_efficiency(root: Path) -> str:
    """With rounds that take as much longer as there are more machines."""
    work = _large_step(root, _CORES)
    return f"{work / (work + _MACHINES * _round_seconds(root)):.2f}"


# -- studies/benchmarks/memory.py ------------------------------------------------------------------------------------


def _out_of_core(key: str, show: str, root: Path, resident: int = 2) -> str:
    return show.format(_row(root, "out of core", resident=resident)[key])


def _client(key: str, root: Path, place: int) -> str:
    """Of the command that trains on the smallest or the largest file."""
    rows = sorted((row for row in bench_rows(root) if row["part"] == "client memory"), key=lambda row: row["file_mib"])
    return f"{rows[place][key]:.0f}"


VALUES: dict[str, Callable[[Path], str]] = {
    "over a plain loop, 2 states": partial(_over_plain, graph="200x300, 2 states"),
    "over a plain loop, 8 states": partial(_over_plain, graph="48x64, 8 states"),
    "over a plain loop, 21 states": partial(_over_plain, graph="100x100, 21 states"),
    "over a plain loop, 64 states, shared": partial(_over_plain, graph="96x72, 64 states", scores="shared table"),
    "over a plain loop, 64 states, Potts": partial(_over_plain, graph="96x72, 64 states", scores="Potts"),
    "installed MB": partial(_first_run, "installed_mb", 50),
    "first model": partial(_first_run, "first_model_cpu_seconds", 1),
    "demo": partial(_first_run, "demo_cpu_seconds", 1),
    "cluster build": partial(_fit, "build_us", "{:.1f} µs"),
    "cluster step": partial(_fit, "step_us", "{:.1f} µs"),
    "cluster rounds": partial(_fit, "rounds_per_step", "{:.0f}"),
    "cluster round, 1 worker": partial(_fit, "round_ms", "{:.0f} ms"),
    "cluster round, 2 workers": partial(_fit, "round_ms", "{:.0f} ms", workers=2),
    "cluster variables": lambda root: f"{_row(root, 'cluster', workers=1)['variables'] / 1e6:.1f} million",
    "cluster steps": partial(_fit, "steps", "{}"),
    "cluster CPU, 1 worker": partial(_cpu, workers=1),
    "cluster CPU, 2 workers": partial(_cpu, workers=2),
    "cluster seconds, 1 worker": partial(_fit, "seconds", "{:.0f}"),
    "cluster seconds, 2 workers": partial(_fit, "seconds", "{:.0f}", workers=2),
    "cluster speed-up": _speed_up,
    "cluster waiting, 2 workers": partial(_fit, "waiting_seconds", "{:.1f}", workers=2),
    "cluster least work": _least_work,
    "large step, one core": lambda root: f"{_large_step(root, 1):.0f} s",
    "large step, many cores": lambda root: f"{_large_step(root, _CORES):.1f} s",
    "large efficiency": _large_efficiency,
    "out of core data": lambda root: f"{_row(root, 'out of core')['data_mib'] / 1024:.1f}",
    "out of core budget": partial(_out_of_core, "budget_mib", "{:.0f}"),
    "out of core, 2 parts": partial(_out_of_core, "peak_mib", "{:.0f}"),
    "out of core, 3 parts": partial(_out_of_core, "peak_mib", "{:.0f}", resident=3),
    "out of core, all parts": partial(_out_of_core, "memory_peak_mib", "{:,.0f}"),
    "out of core difference": partial(_out_of_core, "difference", "{:g}"),
    "client memory, small": partial(_client, "peak_mib", place=0),
    "client memory, large": partial(_client, "peak_mib", place=-1),
    "client file, small": partial(_client, "file_mib", place=0),
    "client file, large": partial(_client, "file_mib", place=-1),
}
