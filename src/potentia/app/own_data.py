"""`potentia train | predict | evaluate`: from the user's files to a pipeline, and from a pipeline to files."""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from ..base.types import PotentiaError
from ..features.schemes import SCHEMES
from ..learn.checkpoint import Checkpoint
from .commands import (
    SEED,
    add_quiet_and_threads,
    bar_shown,
    command_context,
    json_text,
    note,
    plain,
    show_facts,
    show_lines,
    whole_number,
)
from .pipeline import Pipeline, check_target, file_digests, load_pipeline
from .report.figures import kept_image
from .report.rows import append_row, read_rows, versions

#: The forms of data: the option that names a source; the module that trains on it, its placeholder and its help.
_FORMS = {
    "images": ("images", "DIR", "folder of images (PNG, JPEG, TIFF, GIF), or one file"),
    "table": ("tables", "FILE", "rows with several labels (CSV, Parquet)"),
    "sequences": ("sequences", "FILE", "a token per line in columns, labels last (.gz too), or a folder of such files"),
}
#: An option that some forms of data have: its name with underscores, as functions take it, the forms, whether these
#: need it, and what `add_argument` takes.
Option = tuple[str, list[str], bool, dict[str, Any]]


def _option(name: str, forms: str, text: str, required: bool = False, **parsed: Any) -> Option:
    """An option of some forms of data."""
    return name, forms.split(", "), required, {"help": text, **parsed}


def _split(text: str) -> list[str]:
    """Names with commas between; those that have a comma stand in double quotes."""
    parts = next(csv.reader([text], skipinitialspace=True), [])
    return [part.strip() for part in parts if part.strip()]


def _paths(text: str) -> list[Path]:
    """Paths with commas between."""
    return [Path(name) for name in _split(text)]


_MASKS = _option(
    "masks", "images", "folder of masks (PNG, TIFF, GIF), or one file", required=True, type=Path, metavar="DIR"
)
_FEATURES = _option(
    "features", "images", "folder of precomputed features, an array (h, w, n) per image (.npy, .npz, .tif)",
    type=Path, metavar="DIR",
)  # fmt: skip
_PROBABILITIES = _option(
    "probabilities", "images", "folder of another model's probabilities or logits, (h, w, classes) per image",
    type=Path, metavar="DIR",
)  # fmt: skip
_DECODE = _option("decode", "sequences", "map (default): best whole sequence; mpm: best label of each token",
    choices=("map", "mpm"))  # fmt: skip
_ENCODING = _option(
    "encoding", "sequences", "of the file, such as latin-1 (default: UTF-8, or UTF-16 with a byte-order mark)",
    metavar="NAME",
)  # fmt: skip
# choices are written out, since the modules that they name take long to import
_FUNCTIONS = ("boosting", "linear", "mlp", "constant")
_FLAG: dict[str, Any] = {"action": "store_const", "const": True}
_OPTIONS = {
    "train": (
        _MASKS,
        _option("palette", "images", "lines value,name[,#rrggbb] of classes", type=Path, metavar="FILE"),
        _option("void", "images", "values that mean unknown, such as 255 or #000000", metavar="VALUES"),
        _option("rare", "images", "how to treat mask values that occur in few pixels",
            choices=("void", "nearest", "keep")),
        _option("feature_set", "images", "filters (default), papers, or given: only what --features has",
            choices=("filters", "papers", "given")),
        _FEATURES,
        _PROBABILITIES,
        _option("position", "images", "use positions of pixels (default: decided by cross-validation)",
            choices=("yes", "no")),
        _option("regions", "images", "use regions around pixels (default: decided by cross-validation)",
            choices=("yes", "no")),
        _option("normalise", "images",
            "intensities by type, over the set, or per image (default: type for 8 bits, else set)",
            choices=("type", "set", "image")),
        _option("stacks", "images", "pages of TIFF files are images (default) or volumes",
            choices=("images", "volumes")),
        _option("groups", "images", "images held out together: 'folder', a CSV file of images and groups, or a regular "
            "expression whose first group is found in names", metavar="GROUPS"),
        _option("axes", "images",
            "axes of TIFF files that do not state them, such as CYX or YXC: C channels, others but Y and X pages",
            metavar="LETTERS"),
        _option("node", "images", "function of pixels (default: boosting)",
            choices=(*_FUNCTIONS, "forest", "lightgbm", "network", "auto")),
        _option("edge", "images",
            "function of neighbours (default: potts; linear for the papers' features, superpixels and margin)",
            choices=(*_FUNCTIONS, "potts")),
        _option("reduce", "images", "share of the sides to keep, such as 0.25", type=float, metavar="SHARE"),
        _option("superpixels", "images", "label about N regions, not pixels", type=whole_number(), metavar="N"),
        _option("minutes", "images", "how long to improve a first model, at most", type=float, metavar="N"),
        _option("search", "images", "choose node, edge, learner and epsilon by cross-validation over images", **_FLAG),
        _option("budget", "images", "seconds for --search of pairs (default: 600)", type=float, metavar="SECONDS"),
        _option("pixels", "images", "train pairs on at most N pixels", type=whole_number(), metavar="N"),
        _option("learner", "images", "ilr (default), marginal, margin", choices=("ilr", "marginal", "margin")),
        _option("epsilon", "images", "smoothing of ilr (default: 1 if all functions are smooth, else 0.1)",
            type=float, metavar="E"),
        _option("inference", "images", "of --learner marginal (default: trw)", choices=("trw", "bp", "mean-field")),
        _option("class_weight", "images", "'balanced', or a number per class with commas between", metavar="WEIGHTS"),
        _option("iterations", "images, sequences", "limit on iterations", type=whole_number(), metavar="N"),
        _option("labels", "table", "label columns, with commas between", required=True, metavar="COLUMNS"),
        _option("ignore", "table", "columns to leave out of the features", metavar="COLUMNS"),
        _option("categorical", "table", "columns whose numbers are codes of categories", metavar="COLUMNS"),
        _option("text", "table", "columns of words, which become hashed words and pairs of words", metavar="COLUMNS"),
        _option("model", "table", "network (default), lmsbn, lmbm, independent",
            choices=("network", "lmsbn", "lmbm", "independent")),
        _option("kernel", "table", "linear, rbf (default: both in network, else linear)", choices=("linear", "rbf")),
        _option("order", "table",
            "of labels: frequency (default of network), f-score, index, learned, cv (default of lmsbn)",
            choices=("frequency", "f-score", "index", "learned", "cv")),
        _option("target", "table", "what network predicts best: exact (default: whole rows), hamming (labels), f1",
            choices=("exact", "hamming", "f1")),
        _option("alpha", "table", "how much to regularise (lmsbn: chosen by cross-validation)", type=float),
        _option("c1", "sequences", "coefficient of absolute weights, for small models (default: 0.1)", type=float),
        _option("c2", "sequences", "coefficient of squared weights, of the whole file (default: 0.1)", type=float),
        _option("scheme", "sequences", "tag scheme to enforce (default: recognised from the labels)",
            choices=(*SCHEMES, "none")),
        _option("gazetteers", "sequences", "text files with a known phrase per line, commas between",
            type=_paths, metavar="FILES"),
        _option("clusters", "sequences",
            "text files of word classes, commas between: 'path word count' (Brown) or 'word class'",
            type=_paths, metavar="FILES"),
        _ENCODING,
    ),
    "predict": (
        _option("marginals", "images", "also write marginals", choices=("npz", "png")),
        _option("instances", "images", "number and measure connected regions of these classes (default: all but the "
            "first), in instances/ and instances.csv", type=_split, nargs="?", const=[], metavar="CLASSES"),
        _FEATURES,
        # a folder of images and a flag of tables: the parser takes both, `_check_probabilities` what the form has
        _option("probabilities", "images, table",
            f"images: {_PROBABILITIES[3]['help']}; table: also write each label's probability",
            type=Path, metavar="DIR", nargs="?", const=True),
        _option("id", "table", "columns to copy to the output", type=_split, metavar="COLUMNS"),
        _option("scores", "table", "also write each label's score", **_FLAG),
        _DECODE,
        _ENCODING,
    ),
    "evaluate": (
        _MASKS,
        _option("void", "images", "values of these masks that mean unknown, such as 255", metavar="VALUES"),
        _FEATURES,
        _PROBABILITIES,
        _option("count_unknown", "sequences", "labels that training did not have count as wrong", **_FLAG),
        _DECODE,
        _ENCODING,
    ),
}  # fmt: skip


def add_options(command: str, parser: argparse.ArgumentParser) -> None:
    """The options of the command in groups: those of all forms, then of each."""
    if command != "train":
        text = "a file that `potentia train` wrote"
        if command == "evaluate":
            text += ", or a folder of label maps, also of other tools"
        parser.add_argument("model", type=Path, help=text)
    data = parser.add_argument_group("data")
    # of a folder of label maps, masks say all
    source = data.add_mutually_exclusive_group(required=command != "evaluate")
    for form, (_, metavar, text) in _FORMS.items():
        source.add_argument(f"--{form}", type=Path, metavar=metavar, help=text)
    if command != "evaluate":
        text = "the model file to write" if command == "train" else "file or folder to write"
        data.add_argument("--out", type=Path, required=True, metavar="PATH", help=text)
    if command == "train":
        text = "share of the data to hold out and evaluate on"
        data.add_argument("--validation", type=float, metavar="SHARE", help=text)
        parser.add_argument("--seed", type=SEED, default=0, help="seed of all random choices (default: 0)")
    add_quiet_and_threads(parser)
    text = "run on a Dask cluster, whose workers read the data: a scheduler's address (tcp://...) or 'local'"
    parser.add_argument("--cluster", metavar="WHERE", help=text)
    groups: dict[str, Any] = {}
    for name, forms, _, parsed in _OPTIONS[command]:
        title = f"options of --{' and --'.join(forms)}"
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        groups[title].add_argument(_flag(name), **parsed)


def _flag(name: str) -> str:
    """An option as it is written on the command line."""
    return f"--{name.replace('_', '-')}"


def _given(arguments: argparse.Namespace, command: str) -> tuple[str, Path, dict[str, Any]]:
    """The form of data, where it is, and the form's options that were given; refuses those of other forms."""
    form = next((form for form in _FORMS if getattr(arguments, form) is not None), "")
    if not form:
        raise PotentiaError(f"{arguments.model} is a model: give --images, --table or --sequences to evaluate it on.")
    options = {}
    for name, forms, required, _ in _OPTIONS[command]:
        value = getattr(arguments, name)
        if value is not None and form not in forms:
            raise PotentiaError(f"{_flag(name)} cannot be combined with --{form}.")
        if value is None and required and form in forms:
            raise PotentiaError(f"--{form} needs {_flag(name)} to {command}.")
        if value is not None:
            options[name] = value
    if command == "predict" and "probabilities" in options:
        _check_probabilities(form, options["probabilities"])
    columns = ("labels", "ignore", "categorical", "text")
    options |= {name: _columns(name, options[name]) for name in columns if name in options}
    return form, getattr(arguments, form), options


def _check_probabilities(form: str, value: Any) -> None:
    """Refuse the flag of tables with a value, and the folder of images without one."""
    if form == "table" and value is not True:
        raise PotentiaError(f"--probabilities takes no value with --table, but is followed by {str(value)!r}.")
    if form == "images" and value is True:
        raise PotentiaError(f"--probabilities needs a value with --images: {_PROBABILITIES[3]['help']}.")


def _columns(name: str, text: str) -> list[str]:
    """The columns that an option names."""
    columns = _split(text)
    twice = [column for k, column in enumerate(columns) if column in columns[:k]]
    if twice:
        raise PotentiaError(f"--{name} names {twice[0]!r} twice.")
    if name == "labels" and not columns:
        raise PotentiaError("--labels names no column.")
    return columns


def train(arguments: argparse.Namespace) -> None:
    """Train on your own data and save all that prediction needs in one file.

    example:
      potentia train --images photos --masks masks --out model
      potentia train --table data.csv --labels a,b,c --out model
      potentia train --sequences train.tsv --out model

    Images and masks of one name (a.tif, a.png or a_mask.png) belong together; masks are PNG or TIFF. Every value
    in the masks is a class unless --void or a --palette says otherwise.
    In tables, numeric columns are standardised; other columns, and those that --categorical names, are one-hot
    encoded, and those that --text names hashed by words and pairs of words. A missing number is replaced by the
    mean (with an indicator column if several are missing), a missing text has no indicator; missing are empty
    cells, ?, NA, N/A, NaN, null and none in any case.
    After Ctrl-C the same command resumes from a checkpoint. Workers of a --cluster need the same paths as the
    command.
    """
    from .training import Run

    form, source, options = _given(arguments, "train")
    check_target(arguments.out, source)
    checkpoint = arguments.out.with_name(arguments.out.name + ".checkpoint")
    decisions: list[str] = []

    def say(text: str) -> None:
        decisions.append(text)
        note(arguments, text)

    def keep(first: Pipeline) -> None:
        first.trained_on = file_digests(source)
        first.save(arguments.out)
        seconds = time.perf_counter() - begun
        note(arguments, f"a first model is in {arguments.out} after {seconds:.0f} s; a better one will replace it.")

    run = Run(checkpoint, arguments.validation, arguments.seed, bar_shown(arguments), say, keep)
    begun = time.perf_counter()
    with command_context(arguments):
        # imported here, because each form brings large libraries along
        module = import_module(f".{_FORMS[form][0]}", __package__)
        pipeline, facts = module.train(source, run=run, **options)
        pipeline.trained_on = file_digests(source)
        pipeline.save(arguments.out)
    # training that has begun with the same checkpoint meanwhile keeps it
    for path in filter(None, (checkpoint, run.pixel_checkpoint)):
        with suppress(PotentiaError), Checkpoint(path) as done:
            done.remove()
    seconds, history = time.perf_counter() - begun, getattr(pipeline.model, "history_", ())
    given = {_flag(name): str(value) for name, value in options.items()}
    card = {"facts": pipeline.facts(), "options": given, "decisions": decisions}
    keep_run(arguments, arguments.out, "train", source, facts | {"card": card}, seconds, history)
    facts |= {"seconds": seconds, "model": str(arguments.out)}
    show_facts(arguments, f"trained on {source}", facts)


def predict(arguments: argparse.Namespace) -> None:
    """Predict with a model that `potentia train` saved.

    example:
      potentia predict model --images photos --out predicted
      potentia predict model --table data.csv --out predicted.csv
      potentia predict model --sequences test.tsv --out predicted.tsv

    For images, --out is a folder with label maps in the masks' own values (labels/), images with the classes'
    contours over them (overlays/), the classes (classes.csv) and, if requested, marginals/.
    For tables, --out is a CSV or Parquet file of the label columns.
    For sequences, --out has the file's columns and the predicted label.
    Workers of a --cluster need the same paths as the command.
    """
    form, source, options = _given(arguments, "predict")
    if arguments.out.exists() and arguments.model.exists() and arguments.out.samefile(arguments.model):
        raise PotentiaError(f"{arguments.out} is the model itself; --out needs another name.")
    with command_context(arguments):
        pipeline = _load(arguments.model, form)
        facts = pipeline.predict_files(source, arguments.out, progress=bar_shown(arguments), **options)
    show_facts(arguments, f"predicted {source}", facts)


def evaluate(arguments: argparse.Namespace) -> None:
    """Compare a saved model's predictions with the truth.

    example:
      potentia evaluate model --images photos --masks masks
      potentia evaluate model --table data.csv
      potentia evaluate model --sequences test.tsv

    Workers of a --cluster need the same paths as the command.
    """
    begun, folder = time.perf_counter(), arguments.model.is_dir()
    facts, tables, source, digests, seen = (_compare_folder if folder else _evaluate)(arguments)
    shown = facts.pop("shown", ())
    known = {"training_share": seen / len(digests)} if digests else {}
    keep_run(arguments, arguments.model, "evaluate", source, facts | known, time.perf_counter() - begun, shown=shown)
    if arguments.json:
        print(json_text(facts | ({"training_files": seen} if seen else {})))
        return
    if seen:
        files = f"the model was trained on {seen} of the files evaluated on"
        note(arguments, f"{files}, so the scores are better than on new data.")
    lines = tables(facts)
    show_facts(arguments, f"{arguments.model} {'against' if folder else 'on'} {source}", facts)
    for title, part in lines.items():
        show_lines(arguments, title, part)


#: What an evaluation found: facts, tables of these, the data, their digests, and how many training has seen.
_Evaluation = tuple[dict[str, Any], Callable[[dict[str, Any]], dict[str, Any]], Path, list[str], int]


def _evaluate(arguments: argparse.Namespace) -> _Evaluation:
    """Predict with a model and compare."""
    form, source, options = _given(arguments, "evaluate")
    with command_context(arguments):
        pipeline = _load(arguments.model, form)
        facts = pipeline.evaluate_files(source, progress=bar_shown(arguments), **options)
        digests = file_digests(source)
    return facts, pipeline.detail_tables, source, digests, sum(digest in pipeline.trained_on for digest in digests)


def _compare_folder(arguments: argparse.Namespace) -> _Evaluation:
    """Compare a folder of label maps with masks."""
    from .label_maps import evaluate_maps, score_tables

    folder, masks = arguments.model, arguments.masks
    others = [f"--{name}" for name in (*_FORMS, "features", "probabilities") if getattr(arguments, name) is not None]
    if masks is None or others:
        wrong = f"leave out {others[0]}" if others else "give --masks"
        raise PotentiaError(f"{folder} is a folder of label maps, which are compared with masks: {wrong}.")
    with command_context(arguments):
        return evaluate_maps(folder, masks, arguments.void), score_tables, masks, [], 0


def _load(path: Path, form: str) -> Pipeline:
    """A saved pipeline, refused if it is for another form of data."""
    pipeline = load_pipeline(path)
    if pipeline.form != form:
        raise PotentiaError(f"{path} was trained on --{pipeline.form}, not on --{form}.")
    return pipeline


#: The commands; --help shows their docstrings.
COMMANDS = {"train": train, "predict": predict, "evaluate": evaluate}


def runs_folder(model: Path) -> Path:
    """Where the rows of a model's runs are."""
    return model.with_name(model.name + ".runs")


def keep_run(
    arguments: argparse.Namespace, model: Path, command: str, source: Path, facts: Mapping[str, Any], seconds: float,
    history: Sequence[Mapping[str, Any]] = (), shown: Sequence[Mapping[str, Any]] = (),
) -> None:  # fmt: skip
    """Add a row about a run of train or evaluate for `potentia report`; training begins a new file.

    Where that cannot be written, results are shown all the same. facts: what the command prints. shown: images, see
    `kept_image`.
    """
    path = runs_folder(model) / "rows.jsonl"
    moved = {"classes": "class_scores", "images": "image_errors"}
    cell: dict[str, Any] = {"command": command, "run": 1, "data": str(source)}
    row = {"cell": cell, **{moved.get(key, key): value for key, value in facts.items()}}
    row |= {"seconds": seconds, "versions": versions()}
    try:
        path.parent.mkdir(exist_ok=True)
        if command == "train":
            path.unlink(missing_ok=True)
            row.pop("class_scores", None)  # names only
        cell["run"] = len(read_rows(path)) + 1
        row |= {"history": list(history)} if history else {}
        row |= {"pictures": [kept_image(image) for image in shown]} if shown else {}
        append_row(path, plain(row))
    except OSError as error:
        problem = f"cannot be written ({error.strerror or error})"
        note(arguments, f"{runs_folder(model)} {problem}: no report of this run.")


def report_source(folder: Path) -> Path:
    """The folder that a report is about: of a model, or of predictions, that of its runs."""
    if os.path.isdir(runs_folder(folder)):
        return runs_folder(folder)
    if os.path.isdir(folder / "labels"):
        wanted = f"run `potentia evaluate {folder} --masks MASKS` first"
        raise PotentiaError(f"{folder} is a folder of predictions, which have no results yet: {wanted}.")
    return folder
