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
from pathlib import Path
from typing import Any

import numpy as np

import potentia as pt
from potentia.base.types import PotentiaError
from potentia.graph.scores import Scores
from potentia.inference.map.marginal import sum_given

Row = dict[str, Any]
_LOG10 = math.log(10.0)


def problems(folder: Path, task: str, prefix: str) -> list[Row]:
    """The rows of the index for a task whose problems begin with `prefix`."""
    with (folder / "index.csv").open() as file:
        return [r for r in csv.DictReader(file) if r["task"] == task and r["problem"].startswith(prefix)]


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


def solve(folder: Path, problem: Row, arguments: argparse.Namespace) -> Row:
    """One problem within the limits of CPU time; what was reached."""
    graph, theta, evidence = load(folder, problem)
    warm_up()
    begun = time.process_time()
    row = {"PR": _log_partition, "MAR": _marginals, "MMAP": _marginal_map, "MPE": _best}[problem["task"]](
        folder, problem, arguments, graph, theta, evidence
    )
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return row | {"cpu": time.process_time() - begun, "memory_gb": usage.ru_maxrss / 1e6}


def warm_up() -> None:
    """Load or compile the kernels on a small model, so that limits count computing only."""
    graph = pt.Graph.grid((9, 9), n_states=3)
    rng = np.random.default_rng(0)
    theta = {"node": rng.normal(size=(81, 3)), "edge": rng.normal(size=(len(graph.scopes["edge"]), 3, 3))}
    pt.Anytime(time_limit=2.0, memory=1e-4).infer(graph, theta)
    pt.Anytime(time_limit=2.0).infer(graph, theta)


def _log_partition(folder, problem, arguments, graph, theta, evidence) -> Row:  # type: ignore[no-untyped-def]
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
        }
    if best:
        # the reference is printed to one digit
        row["error"] = max(0.0, abs(value - float(best)) - 0.05)
        row["score"] = score(row["error"], problem["trivial_error_log10"])
    return row


def _marginals(folder, problem, arguments, graph, theta, evidence) -> Row:  # type: ignore[no-untyped-def]
    result = _method(arguments, graph).infer(graph, theta, observed=evidence)
    row = {"value": result.value / _LOG10, "found_by": getattr(result, "marginals_by", "")}
    reference = Path(arguments.rows).parent / f"{problem['problem']}.npy"
    if arguments.method == "reference":
        np.save(reference, result.variable_marginals)
        return row | {"exact": bool(result.converged)}
    if reference.exists():
        expected = np.load(reference)
        free = np.setdiff1d(np.arange(graph.n_variables), list(evidence or {}))
        uniform = (np.arange(expected.shape[1]) < graph.n_states[:, None]) / graph.n_states[:, None]
        error = float(hellinger(result.variable_marginals, expected)[free].mean())
        trivial = float(hellinger(uniform, expected)[free].mean())
        row |= {"error": error, "trivial": trivial, "score": max(0.0, 100.0 * (1.0 - error / trivial))}
    return row


def _marginal_map(folder, problem, arguments, graph, theta, evidence) -> Row:  # type: ignore[no-untyped-def]
    query = np.array((folder / problem["query"]).read_text().split(), dtype=np.int64)[1:]
    method = pt.MAP(time_limit=arguments.seconds, query=query, exact_search=not arguments.alone)
    result = method.infer(graph, theta, observed=evidence)
    row = _labelling(problem, result)
    if not evidence:
        return row
    # The printed values are those of the first half of the evidence: as if its count were one of numbers, not of pairs.
    half = dict(list(evidence.items())[: (len(evidence) + 1) // 2])
    value = sum_given(Scores(graph, theta, half), result.argmax(), exactly=True) / _LOG10
    error = max(0.0, float(problem["best_log10"]) - value - 0.05)
    as_printed = {"value": value, "error": error, "score": score(error, problem["trivial_error_log10"])}
    return row | {"as_printed": as_printed}


def _best(folder, problem, arguments, graph, theta, evidence) -> Row:  # type: ignore[no-untyped-def]
    method = pt.MAP(time_limit=arguments.seconds, threads=1, exact_search=not arguments.alone)
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
    parser.add_argument("--task", default="PR", choices=["PR", "MAR", "MMAP", "MPE"])
    parser.add_argument("--method", default="anytime", choices=["anytime", "plain", "reference"])
    parser.add_argument("--alone", action="store_true", help="without toulbar2")
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
    for problem in problems(arguments.folder, arguments.task, arguments.problem):
        cell = {"task": arguments.task, "problem": problem["problem"], "method": arguments.method}
        if any(all(row[k] == v for k, v in cell.items()) for row in done):
            continue
        command = [sys.executable, "-m", "potentia_studies.competition", str(arguments.folder), "--one"]
        for name in ("task", "method", "seconds", "memory", "limit", "seed", "rows"):
            command += [f"--{name}", str(getattr(arguments, name))]
        command += ["--problem", problem["problem"], *(["--alone"] if arguments.alone else [])]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = run.stdout.splitlines()
        row = json.loads(lines[-1]) if run.returncode == 0 and lines else {"failed": run.stderr[-300:]}
        done.append(cell | row)
        with rows.open("a") as file:
            file.write(json.dumps(cell | row) + "\n")
        print(json.dumps(cell | row), flush=True)
    summarise([row for row in done if row["task"] == arguments.task and row["method"] == arguments.method])


def summarise(rows: list[Row]) -> None:
    """Mean score, and the share of values matched to 0.1 among the rows without one."""
    scored = [row["score"] for row in rows if row.get("score") is not None]
    others = [row for row in rows if row.get("score") is None and "error" in row]
    matched = [row["error"] <= 0.05 for row in others]
    print(f"{len(scored)} scored, mean {np.mean(scored) if scored else math.nan:.2f}")
    printed = [row.get("as_printed", row)["score"] for row in rows if row.get("score") is not None]
    if printed != scored:
        print(f"with the evidence behind the printed values, mean {np.mean(printed):.2f}")
    if others:
        print(f"{len(others)} others, {100 * np.mean(matched):.1f} % within 0.1")


if __name__ == "__main__":
    main()
