"""The command line: `potentia COMMAND`, with the commands listed below."""

from __future__ import annotations

import argparse
import atexit
import gc
import math
import os
import re
import signal
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.resources import files
from inspect import cleandoc
from pathlib import Path
from typing import Any

from ..base import __version__
from ..base.signals import stopping
from ..base.types import PotentiaError, printable
from ..kernels.machine.jit import silence
from . import commands, own_data
from .commands import Parser, json_text, show_facts

# what is left ends with the process: the last collection would take a quarter of a short command's time
atexit.register(gc.freeze)


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
    """The parser of all commands."""
    parser = Parser(
        prog="potentia",
        description="Structured prediction with approximate inference.",
        epilog="`potentia COMMAND --help` shows the options of a command and an example.",
    )
    parser.add_argument("--version", action="version", version=f"potentia {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND")
    own = {
        name: (run, partial(module.add_options, name))
        for module in (own_data, commands)
        for name, run in module.COMMANDS.items()
    }
    every: dict[str, tuple[Any, Any]] = {
        "demo": own.pop("demo"),
        **own,
        "infer": (_infer, _add_infer),
        "completion": (
            _complete, lambda command: command.add_argument("shell", choices=_SHELLS, help="the shell to complete in")
        ),
    }  # fmt: skip
    for name, (run, add_options) in every.items():
        text, _, example = cleandoc(run.__doc__ or "").partition("\n\nexample:")
        command = subparsers.add_parser(
            name, help=re.split(r"\.(?:\s|$)", text)[0], description=text, epilog=f"example:{example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        command.set_defaults(command=run)
        command.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
        add_options(command)
    return parser


def _add_infer(infer: argparse.ArgumentParser) -> None:
    """The options of `potentia infer`."""
    add = infer.add_argument
    add("model", type=Path, help="a model in the UAI format (.uai or .uai.xz)")
    add("--evidence", type=Path, metavar="FILE", help="observed variables, UAI evidence format")
    text = (
        "marginals and log Z by --method (default); log Z with bounds (pr) or marginals (mar) within --seconds; the "
        "best labelling (map), or that of the variables of --query with the others summed out (mmap)"
    )
    add("--task", default="marginals", choices=["marginals", *_PORTFOLIOS], help=text)
    add("--seconds", type=float, help="time limit of the other tasks (default: 20 for pr and mar, else none)")
    add("--query", type=Path, metavar="FILE", help="variables of --task mmap: their number, then themselves")
    add("--method", choices=sorted(_METHODS), help="method of --task marginals (default: exact)")
    add("--epsilon", type=float, help="smoothing of --method smoothed (0: max-product)")
    add("--iterations", type=int, help="limit on iterations")
    add("--tol", type=float, help="stop when no marginal changes by more than this")
    add("--damping", type=float, help="weight of old messages, 0 to 1")
    orders = ["coloured", "sequential", "random", "residual"]
    add("--schedule", choices=orders, help="order of message updates")
    add("--out", type=Path, metavar="DIR", help="folder to write PR, MAR, MAP or MMAP result files to")


_METHODS = {
    "exact": "Exact", "trw": "TRW", "loopy_bp": "LoopyBP", "kikuchi": "Kikuchi", "smoothed": "Smoothed",
    "mean_field": "MeanField", "linear_program": "LinearProgram", "gibbs": "Gibbs",
}  # fmt: skip

#: Tasks with a portfolio of methods.
_PORTFOLIOS = {"pr": "Anytime", "mar": "Anytime", "map": "MAP", "mmap": "MAP"}
#: What is shown of a result, and of the portfolios' in addition.
_SHOWN = {
    "marginals": ("target", "value", "bound", "iterations", "residual", "converged"),
    "Anytime": (
        "lower", "upper", "lower_certain", "upper_certain", "confidence", "found_by", "marginals_by", "seconds"
    ),
    "MAP": ("gap", "found_by", "bound_by", "feasible", "interrupted"),
}  # fmt: skip
#: Options of `infer` that become fields of the method.
_OPTIONS = {**{name: name for name in ("epsilon", "iterations", "tol", "damping", "schedule")}, "seconds": "time_limit"}


def _infer(arguments: argparse.Namespace) -> None:
    """Inference on a model in the UAI format (.uai or .uai.xz).

    example: potentia infer model.uai --evidence model.uai.evid --method trw --json
    """
    from ..graph import uai
    from .pipeline import Staging

    name, method = _method(arguments)
    if arguments.task == "mmap":
        method.query = uai.read_query(arguments.query)
    graph, theta = uai.read(arguments.model)
    evidence = uai.read_evidence(arguments.evidence) if arguments.evidence else None
    result = method.infer(graph, theta, observed=evidence)
    labels = result.argmax()
    facts: dict[str, Any] = {
        "model": str(arguments.model),
        "variables": graph.n_variables,
        "regions": {kind: len(scope) for kind, scope in graph.scopes.items()},
        "method": name,
        **{name: getattr(result, name) for name in _SHOWN["marginals"]},
        "best_score": result.score(labels),
    }
    if arguments.task in _PORTFOLIOS:
        facts |= {name: getattr(result, name) for name in _SHOWN[_PORTFOLIOS[arguments.task]]}
    if arguments.out:
        tasks = _result_tasks(arguments.task, result, math.isfinite(facts["best_score"]))
        arguments.out.absolute().parent.mkdir(parents=True, exist_ok=True)
        stale = re.compile(rf"{re.escape(arguments.model.name)}\.(MAR|M?MAP|PR)")
        with Staging(arguments.out, stale) as staging:
            for task in tasks:
                uai.write_result(staging.file(f"{arguments.model.name}.{task}"), result, task)
        facts["files"] = [f"{arguments.model.name}.{task}" for task in tasks]
    if arguments.json:
        marginals = [row[:n].tolist() for row, n in zip(result.variable_marginals, graph.n_states, strict=True)]
        print(json_text({**facts, "labels": labels.tolist(), "marginals": marginals}))
        return
    show_facts(arguments, f"{name} on {arguments.model.name}", facts)


def _result_tasks(task: str, result: Any, feasible: bool) -> list[str]:
    """Tasks whose result files are written."""
    if task in ("pr", "mar"):
        return [task.upper()] if math.isfinite(result.value) else []
    if task in ("map", "mmap"):
        return [task.upper()] if feasible else []
    log_z = result.target == "log_partition" and math.isfinite(result.value)
    return ["MAR", *["MAP"] * feasible, *["PR"] * log_z]


def _method(arguments: argparse.Namespace) -> tuple[str, Any]:
    """The method's name on the command line, and the method."""
    task = arguments.task
    if task in _PORTFOLIOS and arguments.method is not None:
        raise PotentiaError(f"--task {task} chooses its methods; leave --method out.")
    if (task == "mmap") != (arguments.query is not None):
        raise PotentiaError("--task mmap and --query FILE go together.")
    name = task if task in _PORTFOLIOS else arguments.method or "exact"
    kind = getattr(import_module("potentia"), _PORTFOLIOS.get(task) or _METHODS[name])
    options = {option: getattr(arguments, option) for option in _OPTIONS}
    for option, value in options.items():
        if value is not None and _OPTIONS[option] not in kind.__dataclass_fields__:
            raise PotentiaError(f"{f'--task {task}' if task in _PORTFOLIOS else f'--method {name}'} has no --{option}.")
    return name, kind(**{_OPTIONS[option]: value for option, value in options.items() if value is not None})


_SHELLS = ("bash", "zsh", "fish")


def _complete(arguments: argparse.Namespace) -> None:
    """Print a script that completes commands, options and their values in a shell.

    example:
      potentia completion bash > ~/.local/share/bash-completion/completions/potentia
      potentia completion zsh >> ~/.zshrc
      potentia completion fish > ~/.config/fish/completions/potentia.fish
    """
    (group,) = (a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    text = _fish(group.choices) if arguments.shell == "fish" else _bash(group.choices)
    if arguments.shell == "zsh":
        text = f"autoload -U +X bashcompinit && bashcompinit\n{text}"
    print(json_text({"script": text}) if arguments.json else text)


def _bash(commands: dict[str, argparse.ArgumentParser]) -> str:
    """The completion script of bash."""
    values = [
        f'    "{name} {option}") words="{" ".join(map(str, action.choices))}" ;;'
        for name, command in commands.items()
        for action in command._actions
        if action.choices
        for option in action.option_strings or [name]
    ]
    options = [
        f'      {name}) words="{" ".join(o for o in command._option_string_actions if o.startswith("--"))}" ;;'
        for name, command in commands.items()
    ]
    template = files(__package__).joinpath("completion.bash").read_text(encoding="utf-8").rstrip()
    return template % (" ".join(commands), "\n".join(values), "\n".join(options))


def _fish(commands: dict[str, argparse.ArgumentParser]) -> str:
    """The completion script of fish."""
    lines = [f"complete -c potentia -n __fish_use_subcommand -f -a {name}" for name in commands]
    for name, command in commands.items():
        here = f"complete -c potentia -n '__fish_seen_subcommand_from {name}'"
        for action in command._actions:
            values = f" -x -a '{' '.join(map(str, action.choices))}'" if action.choices else ""
            lines += [
                f"{here} -l {option.lstrip('-')}{values}" for option in action.option_strings if option.startswith("--")
            ]
            lines += [f"{here}{values}"] if values and not action.option_strings else []
    return "\n".join(lines)
