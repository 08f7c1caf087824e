"""`potentia train | predict | evaluate`: from the user's own files to a pipeline, and from a pipeline to files."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from ...base.types import PotentiaError
from ...learn.checkpoint import Checkpoint
from ..forms import Form, Option, all_forms
from ..pipeline import Pipeline, check_target, file_digests, load_pipeline
from ..report.images import pack
from ..report.rows import append_row, read_rows, versions
from ..training import Run
from .common import (
    SEED,
    add_quiet_and_threads,
    bar_shown,
    command_context,
    json_text,
    note,
    plain,
    show_facts,
    show_lines,
)

TEXTS = {
    "train": "Train on your own data and save all that prediction needs in one file.",
    "predict": "Predict with a model that `potentia train` saved.",
    "evaluate": "Compare a saved model's predictions with the truth.",
}
_PATHS = "Workers of a --cluster need the same paths as the command."
_NOTES = {
    "train": f"After Ctrl-C the same command resumes from a checkpoint. {_PATHS}",
    "predict": _PATHS,
    "evaluate": _PATHS,
}


def examples(command: str) -> str:
    """What --help shows below "example:"."""
    forms = all_forms().values()
    lines = [f"\n  potentia {command} {form.examples[command]}" for form in forms if command in form.examples]
    notes = [*(form.notes[command] for form in forms if command in form.notes), _NOTES.get(command, "")]
    return "".join(lines) + "\n\n" + "\n".join(fill(note, 110) for note in notes if note)


def add_options(command: str, parser: argparse.ArgumentParser) -> None:
    """The options of all forms and those of the command."""
    if command != "train":
        parser.add_argument("model", type=Path, help="a file that `potentia train` wrote")
    forms = all_forms()
    source = parser.add_mutually_exclusive_group(required=True)
    for form in forms.values():
        source.add_argument(f"--{form.name}", type=Path, metavar=form.metavar, help=form.help)
    if command != "evaluate":
        text = "the model file to write" if command == "train" else "file or folder to write"
        parser.add_argument("--out", type=Path, required=True, metavar="PATH", help=text)
    if command == "train":
        parser.add_argument(
            "--validation", type=float, metavar="SHARE", help="share of the data to hold out and evaluate on"
        )
        parser.add_argument("--seed", type=SEED, default=0, help="seed of all random choices (default: 0)")
    add_quiet_and_threads(parser)
    parser.add_argument(
        "--cluster",
        metavar="WHERE",
        help="run on a Dask cluster, whose workers read the data: a scheduler's address (tcp://...) or 'local'",
    )
    shared: dict[str, dict[str, Option]] = {}
    for form in forms.values():
        for name, option in form.options.get(command, {}).items():
            shared.setdefault(name, {})[form.name] = option
    for name, owners in shared.items():
        _add_shared(parser, name, owners)


def _add_shared(parser: argparse.ArgumentParser, name: str, owners: Mapping[str, Option]) -> None:
    """An option that one or several forms have; each form checks its own choices later."""
    option = next((own for own in owners.values() if not own.flag), next(iter(owners.values())))
    helps = {
        own.help: [f for f, other in owners.items() if other.help == own.help] for own in owners.values()
    }
    text = "; ".join(f"{', '.join(names)}: {part}" for part, names in helps.items())
    flags = [f"--{name.replace('_', '-')}", *([option.alias] if option.alias else [])]
    if option.flag:
        parser.add_argument(*flags, action="store_const", const=True, help=text)
        return
    several = [choice for own in owners.values() for choice in own.choices or ()]
    choices = list(dict.fromkeys(several)) or None
    # a flag of some forms and a value of others: the parser takes both, `_check_value` what the form has
    bare: dict[str, Any] = {"nargs": "?", "const": True} if any(own.flag for own in owners.values()) else {}
    parser.add_argument(*flags, type=option.type, metavar=option.metavar, choices=choices, help=text, **bare)


def _given(arguments: argparse.Namespace, command: str) -> tuple[Form, Path, dict[str, Any]]:
    """The form of data, where it is, and the form's options that were given; refuses those of other forms."""
    forms = all_forms()
    form = next(form for form in forms.values() if getattr(arguments, form.name) is not None)
    if arguments.cluster is not None and not form.distributed:
        raise PotentiaError(
            f"--cluster does not go with --{form.name}, which one process works on; --threads says on how many cores."
        )
    own = form.options.get(command, {})
    for name in sorted(
        {name for other in forms.values() for name in other.options.get(command, {})} - set(own)
    ):
        if getattr(arguments, name) is not None:
            raise PotentiaError(f"--{name.replace('_', '-')} cannot be combined with --{form.name}.")
    options = {name: getattr(arguments, name) for name in own if getattr(arguments, name) is not None}
    for name, option in own.items():
        _check_value(form, name, option, options.get(name))
        if option.required and name not in options:
            raise PotentiaError(f"--{form.name} needs --{name.replace('_', '-')} to {command}.")
        if option.choices and options.get(name, option.choices[0]) not in option.choices:
            able = ", ".join(option.choices)
            raise PotentiaError(
                f"--{name} {options[name]} cannot be combined with --{form.name}: use {able}."
            )
    return form, getattr(arguments, form.name), options


def _check_value(form: Form, name: str, option: Option, given: Any) -> None:
    """Refuse a flag with a value, and an option without one, where other forms use the name in the other way."""
    flag = f"--{name.replace('_', '-')}"
    if given is not None and option.flag and given is not True:
        raise PotentiaError(f"{flag} takes no value with --{form.name}, but is followed by {str(given)!r}.")
    if given is True and not option.flag:
        raise PotentiaError(f"{flag} needs a value with --{form.name}: {option.help}.")


def train(arguments: argparse.Namespace) -> None:
    """Train, save, and forget the checkpoint."""
    form, source, options = _given(arguments, "train")
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
        pipeline, facts = form.train(source, run=run, **options)
        pipeline.trained_on = file_digests(source)
        pipeline.save(arguments.out)
    # training that has begun with the same checkpoint meanwhile keeps it
    with suppress(PotentiaError), Checkpoint(checkpoint) as done:
        done.remove()
    seconds = time.perf_counter() - begun
    history = getattr(pipeline.model, "history_", ())
    _keep(arguments, arguments.out, "train", source, facts, seconds, history)
    facts |= {"seconds": seconds, "model": str(arguments.out)}
    show_facts(arguments, f"trained on {source}", facts)


def predict(arguments: argparse.Namespace) -> None:
    """Predict and write files."""
    form, source, options = _given(arguments, "predict")
    if arguments.out.exists() and arguments.model.exists() and arguments.out.samefile(arguments.model):
        raise PotentiaError(f"{arguments.out} is the model itself; --out needs another name.")
    with command_context(arguments):
        pipeline = _load(arguments.model, form)
        facts = pipeline.predict_files(source, arguments.out, progress=bar_shown(arguments), **options)
    show_facts(arguments, f"predicted {source}", facts)


def evaluate(arguments: argparse.Namespace) -> None:
    """Predict and compare."""
    form, source, options = _given(arguments, "evaluate")
    begun = time.perf_counter()
    with command_context(arguments):
        pipeline = _load(arguments.model, form)
        facts = pipeline.evaluate_files(source, progress=bar_shown(arguments), **options)
        seen = _training_files(pipeline, source)
    shown = facts.pop("shown", ())
    _keep(arguments, arguments.model, "evaluate", source, facts, time.perf_counter() - begun, (), shown)
    if arguments.json:
        print(json_text(facts | ({"training_files": seen} if seen else {})))
        return
    if seen:
        note(
            arguments,
            f"the model was trained on {seen} of the files evaluated on, so the scores are better than on new data.",
        )
    tables = form.detail(facts)
    show_facts(arguments, f"{arguments.model} on {source}", facts)
    for title, lines in tables.items():
        show_lines(arguments, title, lines)


def _training_files(pipeline: Pipeline, source: Path) -> int:
    """How many of the files to evaluate on the model was trained on."""
    return sum(digest in pipeline.trained_on for digest in file_digests(source)) if pipeline.trained_on else 0


def _keep(arguments: argparse.Namespace, model: Path, *run: Any) -> None:
    """Keep a run for `potentia report`; where that cannot be written, results are shown all the same."""

    try:
        keep_run(model, *run)
    except OSError as error:
        note(
            arguments,
            f"{runs_folder(model)} cannot be written ({error.strerror or error}): no report of this run.",
        )


def _load(path: Path, form: Form) -> Pipeline:
    pipeline = load_pipeline(path)
    if pipeline.form != form.name:
        raise PotentiaError(f"{path} was trained on --{pipeline.form}, not on --{form.name}.")
    return pipeline


#: What is shown of a label map: longer sides are reduced.
_LONGEST = 128


def runs_folder(model: Path) -> Path:
    """Where the rows of a model's runs are."""
    return model.with_name(model.name + ".runs")


def keep_run(
    model: Path,
    command: str,
    source: Path,
    facts: Mapping[str, Any],
    seconds: float,
    history: Sequence[Mapping[str, Any]] = (),
    shown: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Add a row about a run of train or evaluate; training begins a new file.

    facts: what the command prints. shown: images with their truth, marginals and prediction as arrays.
    """
    path = runs_folder(model) / "rows.jsonl"
    path.parent.mkdir(exist_ok=True)
    if command == "train":
        path.unlink(missing_ok=True)
    cell = {"command": command, "run": len(read_rows(path)) + 1, "data": str(source)}
    moved = {"classes": "class_scores", "images": "image_errors"}
    row = {"cell": cell, **{moved.get(key, key): value for key, value in facts.items()}}
    row |= {"seconds": seconds, "versions": versions()}
    if command == "train":
        row.pop("class_scores", None)  # names only
    if history:
        row["history"] = list(history)
    if shown:
        row["pictures"] = [_packed(image) for image in shown]
    append_row(path, plain(row))


def report_source(given: Path) -> Path:
    """The folder that a report is about: of a model, that of its runs."""
    return runs_folder(given) if given.is_file() and os.path.isdir(runs_folder(given)) else given


def _packed(image: Mapping[str, Any]) -> dict[str, Any]:
    """An image as rows keep it; of a volume its middle plane."""
    arrays = {key: np.asarray(image[key]) for key in ("input", "truth", "marginals", "prediction")}
    if arrays["truth"].ndim == 3:
        arrays = {key: value[len(value) // 2] for key, value in arrays.items()}
    step = -(-max(arrays["truth"].shape) // _LONGEST)
    small = {key: value[::step, ::step] for key, value in arrays.items()}
    states = {key: "".join(chr(48 + int(k)) for k in small[key].ravel()) for key in ("truth", "prediction")}
    return {
        "name": f"{image['name']}: error {image['error']:.4f}",
        "input": pack(small["input"] / 255.0),
        "marginals": pack(small["marginals"]),
        **states,
    }
