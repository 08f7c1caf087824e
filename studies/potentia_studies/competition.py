"""`python -m potentia_studies.competition FOLDER`: problems of the UAI 2022 competition, scored by its formula.

FOLDER holds `index.csv` and the models. Every problem runs in a separate process, one after another, within the
memory given; a row per problem is appended to the file of rows, and problems that have one are skipped.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import potentia as pt
from potentia.app.report.rows import Column, Table, print_table
from potentia.base.types import PotentiaError
from potentia.graph.scores import Scores
from potentia.inference.map.marginal import sum_given
from potentia.inference.order_search import allowed_states, first_order, interactions, search_orders

Row = dict[str, Any]
_LOG10 = math.log(10.0)
#: Seconds of elimination up and down per table entry.
_PER_ENTRY = 1e-8


def problems(folder: Path, task: str, prefix: str, every: int = 1) -> list[Row]:
    """Every k-th row of the index for a task, sorted by name, whose problem begins with `prefix`."""
    with (folder / "index.csv").open() as file:
        found = sorted((r for r in csv.DictReader(file) if r["task"] == task), key=lambda r: r["problem"])
    return [r for r in found[::every] if r["problem"].startswith(prefix)]


def load(folder: Path, problem: Row) -> tuple[pt.Graph, dict[str, Any], dict[int, int] | None]:
    """Graph, scores and evidence of a problem."""
    graph, theta = pt.uai.read(folder / problem["model"])
    evidence = pt.uai.read_evidence(folder / problem["evidence"]) if problem["evidence"] else None
    return graph, theta, evidence


def score(error: float, trivial: str) -> float | None:
    """100 (1 - error / trivial error), at least zero; None if the trivial error is not known."""
    return max(0.0, 100.0 * (1.0 - error / float(trivial))) if trivial else None


def hellinger(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The Hellinger distance between rows of two tables of marginals."""
    return np.sqrt(np.maximum(0.0, 1.0 - np.sqrt(p * q).sum(axis=1)))


def printed(folder: Path, task: str) -> dict[str, dict[str, float]]:
    """The scores after 20 s that the competition printed, by problem and solver, of the final board where it has it."""
    scores: dict[str, dict[str, float]] = {}
    with (folder / "scores.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["task"] == task and r["seconds"] == "20"]
    for row in sorted(rows, key=lambda r: r["board"], reverse=True):  # "tuning" before "final"
        scores.setdefault(row["problem"], {})[f"{row['solver']} ({row['board']})"] = float(row["score"])
    return scores


def solve(folder: Path, problem: Row, arguments: argparse.Namespace) -> Row:
    """One problem within the limits of CPU time; what was reached."""
    graph, theta, evidence = load(folder, problem)
    if arguments.method == "listed":
        return _listed(graph, theta, evidence)
    begun, wall = time.process_time(), time.monotonic()
    row = {"PR": _sums, "MMAP": _marginal_map, "MPE": _best}[problem["task"]](
        folder, problem, arguments, graph, theta, evidence
    )
    usage = resource.getrusage(resource.RUSAGE_SELF)
    row = {"cpu": time.process_time() - begun} | row
    return row | {"seconds": time.monotonic() - wall, "memory_gb": usage.ru_maxrss / 1e6}


def _listed(graph: pt.Graph, theta: Any, evidence: dict[int, int] | None) -> Row:
    """What elimination would take by the best order that a few seconds find, and whether that is 16 GB and an hour."""
    scores = Scores(graph, theta, evidence)
    joined = interactions(scores, allowed_states(scores))
    begun = time.process_time()
    best = search_orders(
        joined, first_order(joined), lambda order: order.total > 2**26 and time.process_time() - begun < 1.0, 0
    )
    gigabytes, seconds = 8e-9 * best.total / int(graph.n_states.max()), _PER_ENTRY * best.total
    return {"gigabytes": gigabytes, "expected": seconds, "listed": gigabytes < 16.0 and seconds < 3600.0}


def _sums(folder, problem, arguments, graph, theta, evidence) -> Row:  # type: ignore[no-untyped-def]
    """log Z and marginals, which are two tasks of the competition."""
    result = _method(arguments, graph).infer(graph, theta, observed=evidence)
    value = result.value / _LOG10
    best = problem["best_log10"]
    row = {"value": value, "best": float(best) if best else None, "found_by": getattr(result, "found_by", "")}
    if hasattr(result, "lower"):
        row |= {
            "lower": result.lower / _LOG10,
            "upper": result.upper / _LOG10,
            "certain": [bound / _LOG10 for bound in result.certain],
            "exact": result.bound == "exact",
            "effective": result.effective,
            "marginals_by": result.marginals_by,
        }
    if best:
        # the reference is printed to one digit
        row["error"] = max(0.0, abs(value - float(best)) - 0.05)
        row["score"] = score(row["error"], problem["trivial_error_log10"])
    return row | _marginals(Path(arguments.rows).parent / f"{problem['problem']}.npy", result, graph, evidence)


def _marginals(reference: Path, result: Any, graph: pt.Graph, evidence: dict[int, int] | None) -> Row:
    """Errors of marginals against exact ones: these, which are then stored, or stored ones; uniform ones score 0."""
    if result.converged and result.bound == "exact" and not reference.exists():
        np.save(reference, result.variable_marginals)
    if not reference.exists():
        return {}
    expected = np.load(reference)
    free = np.setdiff1d(np.arange(graph.n_variables), list(evidence or {}))
    uniform = (np.arange(expected.shape[1]) < graph.n_states[:, None]) / graph.n_states[:, None]
    error = float(hellinger(result.variable_marginals, expected)[free].mean())
    trivial = float(hellinger(uniform, expected)[free].mean())
    return {"hellinger": error, "trivial": trivial, "mar_score": max(0.0, 100.0 * (1.0 - error / trivial))}


def _marginal_map(folder, problem, arguments, graph, theta, evidence) -> Row:  # type: ignore[no-untyped-def]
    query = np.array((folder / problem["query"]).read_text().split(), dtype=np.int64)[1:]
    method = pt.MAP(cpu_limit=arguments.seconds, threads=1, query=query, exact_search=arguments.method != "alone")
    result = method.infer(graph, theta, observed=evidence)
    row = _labelling(problem, result)
    if not evidence:
        return row
    # The printed values are those of the first half of the evidence: as if its count were one of numbers, not of pairs.
    # Labellings that are best given all of it have exactly the printed value then; see docs/competition.md.
    half = dict(list(evidence.items())[: (len(evidence) + 1) // 2])
    value = sum_given(Scores(graph, theta, half), result.argmax(), exactly=True) / _LOG10
    error = max(0.0, float(problem["best_log10"]) - value - 0.05)
    as_printed = {"value": value, "error": error, "score": score(error, problem["trivial_error_log10"])}
    return row | {"as_printed": as_printed}


def _best(folder, problem, arguments, graph, theta, evidence) -> Row:  # type: ignore[no-untyped-def]
    method = pt.MAP(cpu_limit=arguments.seconds, threads=1, exact_search=arguments.method != "alone")
    return _labelling(problem, method.infer(graph, theta, observed=evidence))


def _labelling(problem: Row, result: Any) -> Row:
    value = result.score(result.argmax()) / _LOG10
    best = float(problem["best_log10"])
    error = max(0.0, best - value - 0.05)
    return {
        "value": value,
        "best": best,
        "bound": result.value / _LOG10,
        "exact": result.bound == "exact",
        "found_by": result.found_by,
        "cpu": result.cpu_seconds,
        "error": error,
        "score": score(error, problem["trivial_error_log10"]),
    }


def _method(arguments: argparse.Namespace, graph: pt.Graph) -> Any:
    """`Anytime`, or what there was before it: `Exact` where the width allows and `LoopyBP` elsewhere."""
    if arguments.method == "reference":
        return pt.Anytime(time_limit=3600.0, memory=arguments.memory)
    if arguments.method == "anytime":
        return pt.Anytime(
            time_limit=None, cpu_limit=arguments.seconds, threads=1, memory=arguments.memory, seed=arguments.seed
        )
    return _Plain()


class _Plain:
    """Exact elimination within its default width, loopy belief propagation elsewhere."""

    def infer(self, graph: pt.Graph, theta: Any, observed: Any) -> Any:
        try:
            return pt.Exact().infer(graph, theta, observed=observed)
        except PotentiaError:
            return pt.LoopyBP(iterations=500, threads=1).infer(graph, theta, observed=observed)


def main() -> None:
    """All problems of a task that have no row yet, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--task", default="PR", choices=["PR", "MMAP", "MPE"])
    parser.add_argument("--method", default="anytime", choices=["anytime", "plain", "reference", "alone", "listed"])
    parser.add_argument("--every", type=int, default=1, help="only every k-th problem in sorted order")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--memory", type=float, default=6.5, help="GB for tables")
    parser.add_argument("--limit", type=float, default=8.0, help="GB of the process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--problem", default="", help="only problems whose names begin so")
    parser.add_argument("--rows", default="rows.jsonl")
    parser.add_argument("--one", action="store_true", help="solve the one problem here and print its row")
    arguments = parser.parse_args()
    if arguments.one:
        resource.setrlimit(resource.RLIMIT_AS, (int(arguments.limit * 1e9),) * 2)
        (problem,) = [
            p for p in problems(arguments.folder, arguments.task, arguments.problem)
            if p["problem"] == arguments.problem
        ]  # fmt: skip
        print(json.dumps(solve(arguments.folder, problem, arguments)))
        return
    rows = Path(arguments.rows)
    done = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    entrants = printed(arguments.folder, arguments.task)
    entrants_mar = printed(arguments.folder, "MAR") if arguments.task == "PR" else {}
    for problem in problems(arguments.folder, arguments.task, arguments.problem, arguments.every):
        cell = {"task": arguments.task, "problem": problem["problem"], "method": arguments.method}
        if any(row["cell"] == cell for row in done):
            continue
        command = [sys.executable, "-m", "potentia_studies.competition", str(arguments.folder), "--one"]
        for name in ("task", "method", "seconds", "memory", "limit", "seed", "rows"):
            command += [f"--{name}", str(getattr(arguments, name))]
        command += ["--problem", problem["problem"]]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = run.stdout.splitlines()
        row = json.loads(lines[-1]) if run.returncode == 0 and lines else {"failed": run.stderr[-300:]}
        row = {"cell": cell} | row | {"entrants": entrants.get(problem["problem"], {})}
        if problem["problem"] in entrants_mar:
            row["entrants_mar"] = entrants_mar[problem["problem"]]
        done.append(row)
        with rows.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
    for table in tables(done):
        print_table(table.title, table.columns, table.lines)


def tables(rows: Sequence[Row]) -> list[Table]:
    """Means of every task beside those of the best entrants on the same problems, then each task's problems."""
    summary, parts = [], []
    for title, task, method, key in _TASKS:
        own = [row for row in rows if row["cell"]["task"] == task and row["cell"]["method"] == method]
        lines = [_line(row, key) for row in own if "mar_score" in row or key != "mar_score"]
        if not lines:
            continue
        means = _entrant_means(lines)
        scored = [line["score"] for line in lines if line["score"] is not None]
        others = [line["error"] <= 0.05 for line in lines if line["score"] is None and line.get("error") is not None]
        best = ", ".join(f"{name} {mean:.1f} ({n})" for mean, n, name in means[:4])
        matched = f"{sum(others)} of {len(others)}" if others else None
        mean = float(np.mean(scored)) if scored else None
        summary.append({"task": title, "n": len(scored), "score": mean, "matched": matched, "entrants": best})
        columns = [c for c in _COLUMNS if any(line.get(c.key) is not None for line in lines)]
        parts.append(Table(title, columns, lines))
    return [Table("Mean scores", _SUMMARY, summary), *parts]


def _line(row: Row, key: str) -> Row:
    """What a table shows of a row; of labellings the score is that of the evidence behind the printed values."""
    entrants = row.get("entrants_mar" if key == "mar_score" else "entrants", {})
    found = {"problem": row["cell"]["problem"], **row, **row.get("as_printed", {})} if key == "score" else {**row}
    best = sorted(entrants.items(), key=lambda item: -item[1])[:3]
    found |= {"problem": row["cell"]["problem"], "score": row.get(key) if key != "score" else found.get("score")}
    found["by"] = row.get("marginals_by") if key == "mar_score" else row.get("found_by")
    found["best_entrants"] = ", ".join(f"{name} {score:.1f}" for name, score in best)
    if row.get("exact"):
        found["bounds"] = "exact"
    elif "lower" in row:
        found["bounds"] = f"{row['lower']:.1f} to {row['upper']:.1f}"
    elif "bound" in row:
        found["bounds"] = f"at most {row['bound']:.1f}"
    return found | {"entrants": entrants}


def _entrant_means(lines: Sequence[Row]) -> list[tuple[float, int, str]]:
    """Mean printed score of each entrant with at least half of the scored problems, best first, and of how many."""
    scored = [line["entrants"] for line in lines if line["score"] is not None]
    scores: dict[str, list[float]] = {}
    for entrants in scored:
        for name, score in entrants.items():
            scores.setdefault(name, []).append(score)
    usual = ((float(np.mean(s)), len(s), name) for name, s in scores.items() if 2 * len(s) >= len(scored))
    return sorted(usual, reverse=True)


_TASKS = (
    ("PR: log10 Z", "PR", "anytime", "score"), ("MAR: marginals", "PR", "anytime", "mar_score"),
    ("MPE: best labelling, with toulbar2", "MPE", "anytime", "score"),
    ("MPE: best labelling, without toulbar2", "MPE", "alone", "score"),
    ("MMAP: best labelling of the query", "MMAP", "anytime", "score"),
)  # fmt: skip
_SUMMARY = [
    Column("task", "task"), Column("problems scored", "n", str), Column("potentia", "score", "{:.2f}".format),
    Column("others matched to 0.1", "matched"), Column("best entrants after 20 s (problems)", "entrants"),
]  # fmt: skip
_COLUMNS = [
    Column("problem", "problem"), Column("value", "value", "{:.1f}".format),
    Column("best printed", "best", "{:.1f}".format), Column("bounds", "bounds"),
    Column("CPU s", "cpu", "{:.1f}".format),
    Column("score", "score", "{:.1f}".format), Column("by", "by"), Column("best entrants", "best_entrants"),
]  # fmt: skip


if __name__ == "__main__":
    main()
