"""`Form`: a form of the user's own data, known to `potentia train | predict | evaluate` by its option."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ..base.types import PotentiaError
from ..features.schemes import SCHEMES
from .classes import RARE
from .image_files import STACKS
from .intensity import NORMALISATIONS
from .pipeline import Pipeline
from .training import INFERENCE, PIXEL_FUNCTIONS, TRAINABLE, Run

#: Classes of forms that packages have installed are imported from entry points of this group.
ENTRY_POINTS = "potentia.forms"


class Option(NamedTuple):
    """An option of the command line.

    Attributes:
        help: what --help says.
        type: makes a value of the text given.
        metavar: placeholder of the value in --help.
        choices: all values, where there are few.
        required: whether the command needs it.
        flag: whether it takes no value; True is passed on where it is given.
        alias: another name.
    """

    help: str
    type: Callable[[str], Any] = str
    metavar: str | None = None
    choices: Sequence[str] | None = None
    required: bool = False
    flag: bool = False
    alias: str | None = None


class Form(ABC):
    """A form of data: the options that name and read it, and how to train on it.

    A subclass with a `name` is registered once it is defined; `potentia` also imports those that installed packages
    list as entry points of the group `potentia.forms`. What is trained is a `Pipeline` whose `form` is this name.

    Attributes:
        name: `--NAME SOURCE` gives the data; the value's metavar and the help of the option are `metavar` and `help`.
        options: by command ("train", "predict", "evaluate") and name, passed on where they are given: to `train`,
            `Pipeline.predict_files` and `Pipeline.evaluate_files`.
        examples: by command, arguments that work as they are; --help shows them.
        notes: by command, what else --help says.
        distributed: whether some of the work can be done by a cluster.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    metavar: ClassVar[str] = "FILE"
    options: ClassVar[Mapping[str, Mapping[str, Option]]] = {}
    examples: ClassVar[Mapping[str, str]] = {}
    notes: ClassVar[Mapping[str, str]] = {}
    distributed: ClassVar[bool] = True

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "name" in cls.__dict__:
            _FORMS[cls.name] = cls

    @abstractmethod
    def train(self, source: Path, *, run: Run, **options: Any) -> tuple[Pipeline, dict[str, Any]]:
        """A pipeline fitted to the data in `source`, and facts to show."""

    @abstractmethod
    def pipeline(self) -> type[Pipeline]:
        """The class of what `train` gives, which restores saved ones."""

    def detail(self, facts: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """Takes out of an evaluation's facts what is better shown as tables: lines by title, cells by heading."""
        return {}


_FORMS: dict[str, type[Form]] = {}


def all_forms() -> dict[str, Form]:
    """All known forms by name."""
    _import_forms()
    return {name: kind() for name, kind in _FORMS.items()}


@cache
def _import_forms() -> None:

    for entry in entry_points(group=ENTRY_POINTS):
        entry.load()


def whole_number(least: int = 1, most: int | None = None) -> Callable[[str], int]:
    """The type of an option that is a whole number."""
    wanted = "above zero" if least == 1 and most is None else f"from {least} to {most}"

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {wanted}")
        return int(text)

    return number


_ENCODING = Option(
    "of the file, such as latin-1 (default: UTF-8, or UTF-16 with a byte-order mark)", metavar="NAME"
)
_DECODE = Option("map (default): best whole sequence; mpm: best label of each token", choices=("map", "mpm"))
_MASKS = Option("folder of masks (PNG, TIFF), or one file", Path, "DIR", required=True)
_ITERATIONS = Option("limit on iterations", whole_number(), "N", alias="--epochs")


def _split(text: str) -> list[str]:
    """Names with commas between."""
    return [part.strip() for part in text.split(",") if part.strip()]


class _Own(Form):
    """A form whose `train` and pipeline are in a module of this package."""

    #: The module, and the class of pipelines there.
    place: ClassVar[tuple[str, str]]

    def train(self, source: Path, *, run: Run, **options: Any) -> tuple[Pipeline, dict[str, Any]]:
        trained: tuple[Pipeline, dict[str, Any]] = self._module.train(source, run=run, **options)
        return trained

    def pipeline(self) -> type[Pipeline]:
        kind: type[Pipeline] = getattr(self._module, self.place[1])
        return kind

    @property
    def _module(self) -> Any:
        return import_module(f".{self.place[0]}", __package__)


_GIVEN = {
    "features": Option(
        "folder of precomputed features, an array (h, w, n) per image (.npy, .npz, .tif)", Path, "DIR"
    ),
    "probabilities": Option(
        "folder of another model's probabilities or logits, (h, w, classes) per image", Path, "DIR"
    ),
}


class Images(_Own):
    """Images with masks."""

    name = "images"
    help = "folder of images (PNG, JPEG, TIFF), or one file"
    metavar = "DIR"
    place = ("images", "ImagePipeline")
    options: ClassVar = {
        "train": {
            "masks": _MASKS,
            "palette": Option("lines value,name[,#rrggbb] of classes", Path, "FILE"),
            "void": Option("values that mean unknown, such as 255 or #000000", metavar="VALUES"),
            "rare": Option("how to treat mask values that occur in few pixels", choices=RARE),
            "feature_set": Option(
                "filters (default), papers, or given: only what --features has",
                choices=("filters", "papers", "given"),
            ),
            **_GIVEN,
            "position": Option(
                "use positions of pixels (default: decided by cross-validation)", choices=("yes", "no")
            ),
            "normalise": Option(
                "intensities by type, over the set, or per image (default: type for 8 bits, else set)",
                choices=NORMALISATIONS,
            ),
            "stacks": Option("pages of TIFF files are images (default) or volumes", choices=STACKS),
            "node": Option("function of pixels (default: boosting)", choices=PIXEL_FUNCTIONS),
            "edge": Option(
                "function of neighbours (default: potts; linear for the papers' features, superpixels and margin)",
                choices=TRAINABLE["ilr"],
            ),
            "reduce": Option("share of the sides to keep, such as 0.25", float, "SHARE"),
            "superpixels": Option("label about N regions, not pixels", whole_number(), "N"),
            "search": Option(
                "choose node, edge, learner and epsilon by cross-validation over images", flag=True
            ),
            "budget": Option("seconds for --search of pairs (default: 600)", float, "SECONDS"),
            "pixels": Option("train pairs on at most N pixels", whole_number(), "N"),
            "learner": Option("ilr (default), marginal, margin", choices=tuple(TRAINABLE)),
            "epsilon": Option(
                "smoothing of ilr (default: 1 if all functions are smooth, else 0.1)", float, "E"
            ),
            "inference": Option("of --learner marginal (default: trw)", choices=tuple(INFERENCE)),
            "class_weight": Option(
                "'balanced', or a number per class with commas between", metavar="WEIGHTS"
            ),
            "iterations": _ITERATIONS,
        },
        "predict": {"marginals": Option("also write marginals", choices=("npz", "png")), **_GIVEN},
        "evaluate": {
            "masks": _MASKS,
            "void": Option("values of these masks that mean unknown, such as 255", metavar="VALUES"),
            **_GIVEN,
        },
    }
    examples: ClassVar = {
        "train": "--images photos --masks masks --out model",
        "predict": "model --images photos --out predicted",
        "evaluate": "model --images photos --masks masks",
    }
    notes: ClassVar = {
        "train": "Images and masks of one name (a.tif, a.png or a_mask.png) belong together; masks are PNG or TIFF. "
        "Every value in the masks is a class unless --void or a --palette says otherwise.",
        "predict": "For images, --out is a folder with label maps in the masks' own values (labels/), images with "
        "the classes' colours over them (overlays/) and, if requested, marginals/.",
    }

    def detail(self, facts: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """Scores per class, the confusion matrix and the reliability curve."""
        shown = {"iou": "IoU", "f1": "F1", "boundary_f1": "boundary F1"}
        classes = [{shown.get(k, k): v for k, v in line.items()} for line in facts.pop("classes")]
        names = [line["class"] for line in classes]
        confusion = [
            {"truth": name, **dict(zip(names, counts, strict=True))}
            for name, counts in zip(names, facts.pop("confusion"), strict=True)
        ]
        images = sorted(facts.pop("images"), key=lambda line: -line["error"])
        tables = {"classes": classes, "pixels by truth and prediction": confusion, "worst images": images[:5]}
        reliability = facts.pop("reliability", None)
        return tables | ({"calibration": reliability} if reliability else {})


class TableForm(_Own):
    """Rows with several labels."""

    name = "table"
    help = "rows with several labels (CSV, Parquet)"
    place = ("tables", "TablePipeline")
    options: ClassVar = {
        "train": {
            "labels": Option("label columns, with commas between", metavar="COLUMNS", required=True),
            "ignore": Option("columns to leave out of the features", metavar="COLUMNS"),
            "categorical": Option("columns whose numbers are codes of categories", metavar="COLUMNS"),
            "model": Option(
                "network (default), lmsbn, lmbm, independent",
                choices=("network", "lmsbn", "lmbm", "independent"),
            ),
            "kernel": Option(
                "linear, rbf (default: both in network, else linear)", choices=("linear", "rbf")
            ),
            "order": Option(
                "of labels: frequency (default of network), f-score, index, learned, cv (default of lmsbn)",
                choices=("frequency", "f-score", "index", "learned", "cv"),
            ),
            "loss": Option(
                "what network predicts best: exact_match (default), hamming_loss",
                choices=("exact_match", "hamming_loss"),
            ),
            "alpha": Option("how much to regularise (lmsbn: chosen by cross-validation)", float),
        },
        "predict": {
            "id": Option("columns to copy to the output", _split, "COLUMNS"),
            "probabilities": Option("also write each label's probability", flag=True),
            "scores": Option("also write each label's score", flag=True),
        },
    }
    examples: ClassVar = {
        "train": "--table data.csv --labels a,b,c --out model",
        "predict": "model --table data.csv --out predicted.csv",
        "evaluate": "model --table data.csv",
    }
    notes: ClassVar = {
        "train": "In tables, numeric columns are standardised; other columns, and those that --categorical names, are "
        "one-hot encoded. A missing number is replaced by the mean (with an indicator column if several are "
        "missing), a missing text has no indicator; missing are empty cells, ?, NA, N/A, NaN, null and none "
        "in any case.",
        "predict": "For tables, --out is a CSV or Parquet file of the label columns.",
    }

    def train(self, source: Path, *, run: Run, **options: Any) -> tuple[Pipeline, dict[str, Any]]:
        """With lists of columns from texts."""
        lists = ("labels", "ignore", "categorical")
        several = {name: _columns(name, options[name]) for name in lists if name in options}
        return super().train(source, run=run, **options | several)


class SequenceForm(_Own):
    """Tokens in columns."""

    name = "sequences"
    help = "a token per line in columns, labels last (.gz too), or a folder of such files"
    place = ("sequences", "SequencePipeline")
    options: ClassVar = {
        "train": {
            "iterations": _ITERATIONS,
            "c1": Option("coefficient of absolute weights, for small models (default: 0.1)", float),
            "c2": Option("coefficient of squared weights, of the whole file (default: 0.1)", float),
            "scheme": Option(
                "tag scheme to enforce (default: recognised from the labels)", choices=(*SCHEMES, "none")
            ),
            "gazetteers": Option("text files with a known phrase per line, commas between", metavar="FILES"),
            "encoding": _ENCODING,
        },
        "predict": {"decode": _DECODE, "encoding": _ENCODING},
        "evaluate": {
            "count_unknown": Option("labels that training did not have count as wrong", flag=True),
            "decode": _DECODE,
            "encoding": _ENCODING,
        },
    }
    examples: ClassVar = {
        "train": "--sequences train.tsv --out model",
        "predict": "model --sequences test.tsv --out predicted.tsv",
        "evaluate": "model --sequences test.tsv",
    }
    notes: ClassVar = {"predict": "For sequences, --out has the file's columns and the predicted label."}

    def train(self, source: Path, *, run: Run, **options: Any) -> tuple[Pipeline, dict[str, Any]]:
        """With a list of files from a text."""
        if "gazetteers" in options:
            options["gazetteers"] = [Path(name) for name in _split(options["gazetteers"])]
        return super().train(source, run=run, **options)

    def detail(self, facts: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """Scores per type of span."""
        return {"spans": facts.pop("spans")} if "spans" in facts else {}


def _columns(name: str, text: str) -> list[str]:
    """The columns that an option names."""
    found = _split(text)
    twice = [column for k, column in enumerate(found) if column in found[:k]]
    if twice:
        raise PotentiaError(f"--{name} names {twice[0]!r} twice.")
    if name == "labels" and not found:
        raise PotentiaError("--labels names no column.")
    return found
