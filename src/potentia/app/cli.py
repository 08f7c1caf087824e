"""The command line: `potentia COMMAND`, with the commands listed below."""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ..base.signals import stopping
from ..base.types import PotentiaError, printable
from ..base.version import __version__
from ..kernels.machine.jit import silence
from .commands import completion, own_data, studies, warmup
from .commands.common import Parser, show_facts
from .commands.common import json_text as _json


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; errors in the input print one sentence and give exit code 2, signals 128 and their number."""
    received: list[int] = []
    try:
        with stopping(received):
            parser = _parser()
            arguments = parser.parse_args(argv)
            if not hasattr(arguments, "command"):
                parser.print_help()
                return 0
            if getattr(arguments, "quiet", False):
                silence()
            arguments.command(arguments)
            sys.stdout.flush()
            return 0
    except KeyboardInterrupt as error:
        message, code = str(error) or "interrupted", 128 + (received or [signal.SIGINT])[0]
    except BrokenPipeError:
        # whoever read the output has seen enough; Python must not try to flush the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except PotentiaError as error:
        message, code = str(error), 2
    except OSError as error:
        message, code = f"{printable(str(error.filename or 'output'))}: {error.strerror or error}", 2
    except MemoryError:
        message, code = "this needs more memory than there is", 2
    print(f"potentia: {message}", file=sys.stderr)
    return code


def _parser() -> Parser:
    parser = Parser(
        prog="potentia",
        description="Structured prediction with approximate inference.",
        epilog="`potentia COMMAND --help` shows the options of a command and an example.",
    )
    parser.add_argument("--version", action="version", version=f"potentia {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")

    def add(
        name: str, function: Callable[[argparse.Namespace], None], text: str, example: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name, help=re.split(r"\.(?:\s|$)", text)[0], description=text, epilog=f"example: {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        command.set_defaults(command=function, parser=command)
        command.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
        return command

    def print_completion(arguments: argparse.Namespace) -> None:
        text = completion.script(parser, arguments.shell)
        print(_json({"script": text}) if arguments.json else text)

    def add_study(name: str, run: Callable[[argparse.Namespace], None]) -> None:
        studies.add_options(name, add(name, run, *studies.TEXTS[name]))

    def add_own(name: str, run: Callable[[argparse.Namespace], None]) -> None:
        own_data.add_options(name, add(name, run, own_data.TEXTS[name], own_data.examples(name)))

    add_study("demo", studies.demo)
    add_own("train", own_data.train)
    add_own("predict", own_data.predict)
    add_own("evaluate", own_data.evaluate)
    _add_infer(add(
        "infer", _infer, "Inference on a model in the UAI format (.uai or .uai.xz).",
        "potentia infer model.uai --evidence model.uai.evid --method trw --json",
    ))  # fmt: skip
    add_study("reproduce", studies.reproduce)
    add_study("report", studies.report)
    add_study("bench", studies.bench)
    warmup.add_options(add("warmup", warmup.warmup, warmup.TEXT, warmup.EXAMPLES))
    add("completion", print_completion, completion.TEXT, completion.EXAMPLE).add_argument(
        "shell", choices=completion.SHELLS, help="the shell to complete in"
    )
    return parser


def _add_infer(infer: argparse.ArgumentParser) -> None:
    infer.add_argument("model", type=Path, help="a model in the UAI format (.uai or .uai.xz)")
    infer.add_argument(
        "--evidence", type=Path, metavar="FILE", help="observed variables, UAI evidence format"
    )
    infer.add_argument(
        "--task", default="marginals", choices=["marginals", "map"],
        help="marginals and log Z by --method (default), or the best labelling by a portfolio",
    )  # fmt: skip
    infer.add_argument("--seconds", type=float, help="time limit of --task map (default: none)")
    infer.add_argument(
        "--method", choices=sorted(_METHODS), help="method of --task marginals (default: exact)"
    )
    infer.add_argument("--epsilon", type=float, help="smoothing of --method smoothed (0: max-product)")
    infer.add_argument("--iterations", type=int, help="limit on iterations")
    infer.add_argument("--tol", type=float, help="stop when no marginal changes by more than this")
    infer.add_argument("--damping", type=float, help="weight of old messages, 0 to 1")
    infer.add_argument(
        "--schedule",
        choices=["coloured", "sequential", "random", "residual"],
        help="order of message updates",
    )
    infer.add_argument(
        "--out", type=Path, metavar="DIR", help="folder to write PR, MAR and MAP result files to"
    )


_METHODS = {
    "exact": "Exact",
    "trw": "TRW",
    "loopy_bp": "LoopyBP",
    "kikuchi": "Kikuchi",
    "smoothed": "Smoothed",
    "mean_field": "MeanField",
    "linear_program": "LinearProgram",
    "gibbs": "Gibbs",
}

#: Options of `infer` that become fields of the method.
_OPTIONS = {
    **{name: name for name in ("epsilon", "iterations", "tol", "damping", "schedule")},
    "seconds": "time_limit",
}


def _infer(arguments: argparse.Namespace) -> None:
    from ..graph import uai
    from .pipeline import Staging

    name, method = _method(arguments)
    graph, theta = uai.read(arguments.model)
    evidence = uai.read_evidence(arguments.evidence) if arguments.evidence else None
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
        tasks = ["MAR"] * (arguments.task != "map") + (["MAP"] if math.isfinite(facts["best_score"]) else [])
        tasks += ["PR"] if result.target == "log_partition" and math.isfinite(result.value) else []
        arguments.out.absolute().parent.mkdir(parents=True, exist_ok=True)
        stale = re.compile(rf"{re.escape(arguments.model.name)}\.(MAR|MAP|PR)")
        with Staging(arguments.out, stale) as staging:
            for task in tasks:
                uai.write_result(staging.file(f"{arguments.model.name}.{task}"), result, task)
        facts["files"] = [f"{arguments.model.name}.{task}" for task in tasks]
    if arguments.json:
        marginals = [
            row[:n].tolist() for row, n in zip(result.variable_marginals, graph.n_states, strict=True)
        ]
        print(_json({**facts, "labels": labels.tolist(), "marginals": marginals}))
        return
    show_facts(arguments, f"{name} on {arguments.model.name}", facts)


def _method(arguments: argparse.Namespace) -> tuple[str, Any]:
    """The method's name on the command line, and the method."""
    if arguments.task == "map":
        if arguments.method is not None:
            raise PotentiaError("--task map chooses its methods; leave --method out.")
        name, kind_name = "map", "MAP"
    else:
        name = arguments.method or "exact"
        kind_name = _METHODS[name]
    kind = getattr(import_module("potentia"), kind_name)
    options: dict[str, Any] = {}
    for option, field in _OPTIONS.items():
        value = getattr(arguments, option)
        if value is not None:
            if field not in kind.__dataclass_fields__:
                source = "--task map" if name == "map" else f"--method {name}"
                raise PotentiaError(f"{source} has no --{option}.")
            options[field] = value
    return name, kind(**options)
