"""The command line: `potentia demo | train | predict | evaluate | infer | reproduce | report | bench`."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ._types import PotentiaError
from ._version import __version__
from .commands import apply, show, train
from .commands.common import json_text as _json
from .commands.common import shown_fact


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; errors in the input print one sentence and give exit code 2."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        arguments.command(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # whoever read the output has seen enough; Python must not try to flush the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except PotentiaError as error:
        print(f"potentia: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"potentia: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
        return 2
    except MemoryError:
        print("potentia: this needs more memory than there is", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print(f"potentia: {str(error) or 'interrupted'}", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="potentia", description="Structured prediction with approximate inference."
    )
    parser.add_argument("--version", action="version", version=f"potentia {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, function: Callable[[argparse.Namespace], None], text: str, example: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name, help=text, description=text, epilog=f"example: {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        command.set_defaults(command=function)
        command.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
        return command

    show.add_demo(add("demo", show.demo, show.DEMO_TEXT, show.DEMO_EXAMPLE))
    train.add_options(add("train", train.train, train.TEXT, train.EXAMPLES))
    apply.add_predict(add("predict", apply.predict, apply.PREDICT_TEXT, apply.PREDICT_EXAMPLES))
    apply.add_evaluate(add("evaluate", apply.evaluate, apply.EVALUATE_TEXT, apply.EVALUATE_EXAMPLES))

    _add_infer(add(
        "infer", _infer, "Inference on a model in the UAI format (.uai or .uai.xz).",
        "potentia infer model.uai --evidence model.uai.evid --method trw --json",
    ))  # fmt: skip
    _add_reproduce(add(
        "reproduce", _reproduce, "Run a paper's table, ours beside the paper's; finished cells are not run again.",
        "potentia reproduce denoising --quick --out results",
    ))  # fmt: skip
    show.add_report(add("report", show.report, show.REPORT_TEXT, show.REPORT_EXAMPLE))
    _add_bench(add(
        "bench", _bench, "Speed of inference beside two floors measured in the same run.",
        "potentia bench --quick",
    ))  # fmt: skip
    return parser


def _add_infer(infer: argparse.ArgumentParser) -> None:
    infer.add_argument("model", type=Path)
    infer.add_argument(
        "--evidence", type=Path, metavar="FILE", help="observed variables, UAI evidence format"
    )
    infer.add_argument(
        "--task", default="marginals", choices=["marginals", "map"],
        help="marginals and log Z by --method (default), or the best labelling by a portfolio",
    )  # fmt: skip
    infer.add_argument("--seconds", type=float, help="time limit of --task map (default: none)")
    infer.add_argument("--method", choices=sorted(_METHODS), help="of --task marginals; default: exact")
    infer.add_argument("--epsilon", type=float, help="smoothing of --method smoothed (0: max-product)")
    infer.add_argument("--iterations", type=int, help="limit on iterations")
    infer.add_argument("--tol", type=float, help="stop when no marginal changes by more")
    infer.add_argument("--damping", type=float, help="weight of old messages, 0 to 1")
    infer.add_argument("--schedule", choices=["coloured", "sequential", "random", "greedy"])
    infer.add_argument("--out", type=Path, metavar="DIR", help="write PR, MAR and MAP result files there")


def _add_reproduce(reproduce: argparse.ArgumentParser) -> None:
    reproduce.add_argument(
        "name",
        help="denoising, horses-ilr, backgrounds-ilr, misspecification, perturbation, denoising-berkeley, horses, "
        "backgrounds, fitting-speed, scene or search-speed",
    )
    reproduce.add_argument("--quick", action="store_true", help="a small version in under a minute")
    reproduce.add_argument(
        "--full", action="store_true", help="all folds of cross-validation, where there are any"
    )
    reproduce.add_argument(
        "--out", type=Path, default=Path("results"), metavar="DIR", help="folder for rows and figures"
    )


def _add_bench(bench: argparse.ArgumentParser) -> None:
    bench.add_argument("--quick", action="store_true", help="smaller grids, fewer repetitions")
    bench.add_argument("--out", type=Path, metavar="FILE", help="also write the rows as JSON lines")


_METHODS = {
    "exact": ("exact", "Exact"),
    "trw": ("message_passing", "TRW"),
    "loopy_bp": ("message_passing", "LoopyBP"),
    "kikuchi": ("message_passing", "Kikuchi"),
    "smoothed": ("message_passing", "Smoothed"),
    "mean_field": ("mean_field", "MeanField"),
    "linear_program": ("linear_program", "LinearProgram"),
    "gibbs": ("gibbs", "Gibbs"),
}

#: Options of `infer` that become fields of the method.
_OPTIONS = {
    **{name: name for name in ("epsilon", "iterations", "tol", "damping", "schedule")},
    "seconds": "time_limit",
}


def _infer(arguments: argparse.Namespace) -> None:
    from .graph.uai import read_uai, read_uai_evidence, write_uai_result
    from .report.tables import Column, print_table

    name, method = _method(arguments)
    graph, theta = read_uai(arguments.model)
    evidence = read_uai_evidence(arguments.evidence) if arguments.evidence else None
    result = method.infer(graph, theta, observed=evidence)
    labels = result.argmax()
    facts: dict[str, Any] = {
        "model": str(arguments.model),
        "variables": graph.n_variables,
        "regions": {kind: len(scope) for kind, scope in graph.scopes.items()},
        "method": name,
        "target": result.target,
        "value": result.value,
        "bound": result.bound,
        "iterations": result.iterations,
        "residual": result.residual,
        "converged": result.converged,
        "best_score": result.score(labels),
    }
    if arguments.task == "map":
        facts |= {"gap": result.gap, "found_by": result.found_by, "bound_by": result.bound_by}
        facts |= {"feasible": result.feasible, "interrupted": result.interrupted}
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        tasks = ["MAR"] * (arguments.task != "map") + (["MAP"] if math.isfinite(facts["best_score"]) else [])
        tasks += ["PR"] if result.target == "log_partition" and math.isfinite(result.value) else []
        for task in tasks:
            write_uai_result(arguments.out / f"{arguments.model.name}.{task}", result, task)
        facts["files"] = [f"{arguments.model.name}.{task}" for task in tasks]
    if arguments.json:
        marginals = [
            row[:n].tolist() for row, n in zip(result.variable_marginals, graph.n_states, strict=True)
        ]
        print(_json({**facts, "labels": labels.tolist(), "marginals": marginals}))
        return
    rows = [{"fact": key.replace("_", " "), "value": shown_fact(value)} for key, value in facts.items()]
    print_table(
        f"{name} on {arguments.model.name}",
        [Column("fact", "fact"), Column("value", "value", str)],
        rows,
    )


def _method(arguments: argparse.Namespace) -> tuple[str, Any]:
    """The method's name on the command line, and the method."""
    if arguments.task == "map":
        if arguments.method is not None:
            raise PotentiaError("--task map chooses its methods; leave --method out.")
        name, module, kind_name = "map", "map", "MAP"
    else:
        name = arguments.method or "exact"
        module, kind_name = _METHODS[name]
    kind = getattr(import_module(f".inference.{module}", __package__), kind_name)
    options: dict[str, Any] = {}
    for option, field in _OPTIONS.items():
        value = getattr(arguments, option)
        if value is not None:
            if field not in kind.__dataclass_fields__:
                source = "--task map" if name == "map" else f"--method {name}"
                raise PotentiaError(f"{source} has no --{option}")
            options[field] = value
    return name, kind(**options)


def _reproduce(arguments: argparse.Namespace) -> None:
    from .experiments.reproduce import reproduce, tables
    from .report.tables import print_table

    out = arguments.out / (arguments.name + ("-quick" if arguments.quick else ""))
    say: Callable[[str], None] = (
        (lambda text: None) if arguments.json else (lambda text: print(text, flush=True))
    )
    rows = reproduce(arguments.name, arguments.quick, out, say, arguments.full)
    if arguments.json:
        print(_json({"rows": rows, "out": str(out)}))
        return
    for title, columns, part in tables(arguments.name, rows):
        print_table(title, columns, part)
    print(f"rows and figures: {out}")


def _bench(arguments: argparse.Namespace) -> None:
    from .bench import run as bench
    from .report.tables import print_table
    from .workflows.outputs import check_target, write_text

    if arguments.out:
        check_target(arguments.out)
    rows = bench.run(quick=arguments.quick)
    if arguments.out:
        write_text(arguments.out, "".join(json.dumps(row) + "\n" for row in rows))
    if arguments.json:
        print(_json({"rows": rows}))
        return
    for title, columns, part in bench.tables(rows):
        print_table(title, columns, part)
