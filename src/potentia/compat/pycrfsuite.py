"""The interface of python-crfsuite: `Trainer`, `Tagger` and `ItemSequence`.

``import potentia.compat.pycrfsuite as pycrfsuite`` replaces ``import pycrfsuite``. Names, defaults, messages and model
files are those of python-crfsuite 0.9; training is `pt.ChainCRF`'s. The algorithms "ap", "pa" and "arow" are not
available. All three line searches are one that meets the strong Wolfe conditions; the options of calibration have no
effect. Attributes whose values sum to less than zero get weights, which CRFsuite leaves out.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from ..base.types import ConvergenceWarning, PotentiaError
from ..features.attributes import flat_features
from ..features.parts import Sequences
from ..learn.base import State
from ..learn.chain import marginals
from ..learn.chain_data import ChainData
from ..learn.chain_fit import ChainFit, Solver
from ..models.chain_crf import ChainCRF
from ..models.chain_files import NO_ENTRIES, StoredChain, crfsuite_bytes, parse_crfsuite, write_bytes

#: The version of CRFsuite whose files and messages these are.
CRFSUITE_VERSION = "0.12.2"

_UNAVAILABLE = ("ap", "averaged-perceptron", "pa", "passive-aggressive", "arow")
_NAMES = {"lbfgs": "L-BFGS optimization", "rprop": "RPROP optimization", "l2sgd": "Stochastic Gradient Descent (SGD)"}
_FEATURE_OPTIONS: dict[str, tuple[Any, str]] = {
    "feature.minfreq": (0.0, "Features whose values sum to less are left out."),
    "feature.possible_states": (False, "Also make features of attributes and labels that never occur together."),
    "feature.possible_transitions": (False, "Also make features of labels that never follow each other."),
}
_C1: dict[str, tuple[Any, str]] = {"c1": (0.0, "Coefficient of the L1 penalty.")}
_C2: dict[str, tuple[Any, str]] = {"c2": (1.0, "Coefficient of the L2 penalty.")}
_FALL: dict[str, tuple[Any, str]] = {
    "period": (10, 'Iterations (of "l2sgd", passes over the data) over which the fall of the objective is judged.'),
    "delta": (1e-5, "The training stops when the objective falls by at most this share in `period` iterations."),
}
_CALIBRATION = [("eta", 0.1), ("rate", 2.0), ("samples", 1000.0), ("candidates", 10), ("max_trials", 20)]
#: The options of each algorithm: default and help.
_OPTIONS: dict[str, dict[str, tuple[Any, str]]] = {
    "lbfgs": _FEATURE_OPTIONS | _C1 | _C2 | {
        "max_iterations": (2**31 - 1, "The largest number of iterations."),
        "num_memories": (6, "Steps from which the inverse of the Hessian is approximated."),
        "epsilon": (1e-5, "The training stops when the gradient is smaller than this share of the weights."),
        **_FALL,
        "linesearch": ("MoreThuente", "MoreThuente, Backtracking or StrongBacktracking."),
        "max_linesearch": (20, "The largest number of trials of a line search."),
    },
    "rprop": _FEATURE_OPTIONS | _C1 | _C2 | {"max_iterations": (1000, "The largest number of iterations."), **_FALL},
    "l2sgd": _FEATURE_OPTIONS | _C2 | {
        "max_iterations": (1000, "The largest number of passes over the data."), **_FALL,
        "delta": (1e-6, _FALL["delta"][1]),
    } | {f"calibration.{name}": (value, "No effect: steps need no calibration.") for name, value in _CALIBRATION},
}  # fmt: skip
_LINE_SEARCHES = ("MoreThuente", "Backtracking", "StrongBacktracking")


class CRFSuiteError(Exception):
    """Training failed."""


class ItemSequence:
    """The attributes of a sequence's items, as numbers by name."""

    def __init__(self, pyseq: Iterable[Any]) -> None:
        self._items = pyseq.items() if isinstance(pyseq, ItemSequence) else [*map(flat_features, pyseq)]

    def items(self) -> list[dict[str, float]]:
        """Each item as a dictionary of numbers."""
        return [dict(item) for item in self._items]

    def __iter__(self) -> Iterator[dict[str, float]]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"<ItemSequence of size {len(self)}>"


class LabelScore(NamedTuple):
    """How well a label is predicted: counts in both, in the predictions, in the truth, and shares of these."""

    match: int
    model: int
    ref: int
    precision: float
    recall: float
    f1: float


class TrainingLog:
    """What a training reported: `iterations` (dictionaries), `last_iteration`, seconds, and the lines of `log`."""

    def __init__(self) -> None:
        self.iterations: list[dict[str, Any]] = []
        self.last_iteration: dict[str, Any] | None = None
        self.featgen_num_features: int | None = None
        self.featgen_percent = 100
        self.featgen_seconds: float | None = None
        self.training_seconds: float | None = None
        self.storing_seconds: float | None = None
        self.log: list[str] = []
        self.last_log = ""


#: Told of the state after an iteration, the fit, and the labels predicted for validation.
Report = Callable[[State, ChainFit, list[Any] | None], None]


class CompatChain(ChainCRF):
    """A `ChainCRF` with all options of CRFsuite, which keeps numbers as they are and reports each iteration."""

    _centred = False

    def with_solver(self, solver: Solver, report: Report) -> Self:
        """The same, to be trained by this solver."""
        self._solver, self._report = solver, report  # type: ignore[misc]
        return self

    def _evaluation(self, fit: ChainFit, data: ChainData, validation: Any) -> Callable[[State], Mapping[str, Any]]:
        labels_of = None if validation is None else self._labels_of(fit, data, validation[0])[0]

        def evaluate(state: State) -> Mapping[str, Any]:
            found = None if labels_of is None else [data.classes[k] for k in labels_of(state).tolist()]
            self._report(state, fit, found)
            if found is None:
                return {}
            truth = [label for row in validation[1] for label in row]
            return {"validation_error": sum(a != b for a, b in zip(truth, found, strict=True)) / max(1, len(truth))}

        return evaluate


class Trainer:
    """Collects sequences and trains a model file from them.

    Override `message` to receive the lines of the log, or the methods `on_...` to receive what belongs together.
    """

    algorithm: str
    _X: list[Any]
    _y: list[list[str]]
    _groups: list[int]
    verbose: bool = False
    _event: str | None = None
    logparser: TrainingLog | None = None

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """With its options, whether or not a subclass calls `__init__`."""
        trainer = super().__new__(cls)
        trainer.clear()
        trainer.select("lbfgs")
        return trainer

    def __init__(
        self, algorithm: str | None = None, params: Mapping[str, Any] | None = None, verbose: bool = True
    ) -> None:
        if algorithm is not None:
            self.select(algorithm)
        if params is not None:
            self.set_params(params)
        self.verbose = verbose

    def append(self, xseq: Iterable[Any], yseq: Sequence[Any], group: int = 0) -> None:
        """Add a sequence with its labels; sequences of the group `holdout` are not trained on but evaluated."""
        items = xseq if isinstance(xseq, list | ItemSequence) else list(xseq)
        labels = [label.decode() if isinstance(label, bytes) else label for label in yseq]
        if len(items) != len(labels):
            raise PotentiaError(f"the numbers of items and labels differ: {len(items)} and {len(labels)}.")
        self._X.append(items)
        self._y.append(labels)
        self._groups.append(int(group))

    def clear(self) -> None:
        """Forget all sequences."""
        self._X, self._y, self._groups = [], [], []

    # -- options -------------------------------------------------------------------------------------------

    def select(self, algorithm: str, type: str = "crf1d") -> None:
        """Choose the algorithm: "lbfgs", "l2sgd" or "rprop"; all options get its defaults."""
        name = algorithm.lower()
        if name in _UNAVAILABLE:
            raise PotentiaError(f'the algorithm "{name}" is not available: use "lbfgs", "l2sgd" or "rprop".')
        if name not in _OPTIONS or type != "crf1d":
            raise PotentiaError(
                f"algorithm={algorithm!r}, type={type!r}: expected one of {', '.join(_OPTIONS)}; crf1d."
            )
        self.algorithm = name
        self._options = {key: default for key, (default, _) in _OPTIONS[name].items()}

    def params(self) -> list[str]:
        """The names of the algorithm's options."""
        return list(self._options)

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Set options by name."""
        for name, value in params.items():
            self.set(name, value)

    def get_params(self) -> dict[str, Any]:
        """All options by name."""
        return dict(self._options)

    def set(self, name: str, value: Any) -> None:
        """Set an option, a number or its text."""
        self._known(name)
        kind = type(_OPTIONS[self.algorithm][name][0])
        try:
            found = bool(int(value)) if kind is bool else kind(value)
        except (TypeError, ValueError):
            raise PotentiaError(f"the option {name!r} must be of type {kind.__name__}, not {value!r:.40}.") from None
        if name == "linesearch" and found not in _LINE_SEARCHES:
            raise PotentiaError(f"linesearch must be one of {', '.join(_LINE_SEARCHES)}, not {value!r:.40}.")
        self._options[name] = found

    def get(self, name: str) -> Any:
        """The value of an option."""
        return self._options[self._known(name)]

    def help(self, name: str) -> str:
        """What an option does."""
        return _OPTIONS[self.algorithm][self._known(name)][1]

    def _known(self, name: str) -> str:
        if name not in self._options:
            raise PotentiaError(f"{self.algorithm} has no option {name!r}; it has {', '.join(self._options)}.")
        return name

    # -- training ------------------------------------------------------------------------------------------

    def train(self, model: str, holdout: int = -1) -> None:
        """Train and write the model to the file `model` (none if it is empty)."""
        begun = time.perf_counter()
        stored = self.train_chain(holdout)[1]
        data = crfsuite_bytes(stored)
        if model:
            write_bytes(model, data)
        assert self.logparser is not None
        self.logparser.storing_seconds = time.perf_counter() - begun - (self.logparser.training_seconds or 0.0)
        self._tell("end", ["Storing the model\n", f"Number of active attributes: {len(stored.names)}\n", "\n"])

    def train_chain(
        self, holdout: int = -1, error_window: int = 0, error_change: float = 0.0
    ) -> tuple[ChainCRF | None, StoredChain]:
        """The trained `ChainCRF` and what a file holds of it; None without sequences.

        With `error_window`, training stops when the share of wrong labels (of the holdout group, if there is one)
        differed by less than `error_change` in the last `error_window` iterations, as Wapiti does.
        """
        self.logparser, begun = TrainingLog(), time.perf_counter()
        options: dict[str, Any] = {"num_memories": 6, "max_linesearch": 20, "epsilon": 0.0, "c1": 0.0} | self._options
        chosen = [group != holdout for group in self._groups]
        X, y, X_dev, y_dev = (
            [v for v, use in zip(values, chosen, strict=True) if use == wanted]
            for wanted in (True, False) for values in (self._X, self._y)
        )  # fmt: skip
        self._tell("start", [f"Holdout group: {holdout + 1}\n", "\n"] * (holdout >= 0) + ["Feature generation\n"])
        self._tell("featgen_progress", ["type: CRF1d\n"])
        if not X:
            self.logparser.training_seconds = 0.0
            self._tell("prepare_error", ["There are no sequences to train on\n"])
            return None, StoredChain.of([], [], NO_ENTRIES, np.zeros((0, 0)))
        solver = Solver(
            self.algorithm, options["num_memories"], options["max_linesearch"], options["epsilon"], options["period"],
            error_window, error_change,
        )  # fmt: skip
        chain = CompatChain(
            options["c1"], options["c2"], options["max_iterations"], min_freq=options["feature.minfreq"],
            all_possible_states=options["feature.possible_states"],
            all_possible_transitions=options["feature.possible_transitions"], delta=options["delta"],
        ).with_solver(solver, self._report(y_dev, begun))  # fmt: skip
        dev = (X_dev, y_dev) if X_dev else (X, y) if error_window else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the limit of iterations may be meant
            chain.fit(X, y, validation=dev)
        del chain._report
        self.logparser.training_seconds = seconds = time.perf_counter() - begun
        self._tell("optimization_end", [f"Total seconds required for training: {seconds:.3f}\n", "\n"])
        return chain, chain.stored("CRFsuite")

    def _report(self, y_dev: Sequence[Any], begun: float) -> Report:
        """What is told of each iteration."""
        told = begun

        def report(state: State, fit: ChainFit, found: list[Any] | None) -> None:
            nonlocal told
            log, now = self.logparser, time.perf_counter()
            assert log is not None
            if log.featgen_num_features is None:
                log.featgen_num_features = n = int(fit.layout.size - len(fit.padding))
                log.featgen_seconds = now - begun
                self._tell(
                    "featgen_end", [f"Number of features: {n}\n", f"Seconds required: {now - begun:.3f}\n", "\n"]
                )
                options = [f"{name}: {value}\n" for name, value in self._options.items() if "feature." not in name]
                self._tell("prepared", [f"{_NAMES[self.algorithm]}\n", *options, "\n"])
            vector = fit.vector(state)
            info: dict[str, Any] = {
                "num": int(state.history[-1]["iteration"]),
                "scores": {},
                "loss": float(state.history[-1]["objective"]),
                "feature_norm": float(np.linalg.norm(vector)),
                "active_features": int(np.count_nonzero(vector)),
                "time": now - told,
            }
            if "gradient" in state.arrays:
                info["error_norm"] = fit.slope_norm(state.arrays)
            told = now
            lines = [
                f"***** Iteration #{info['num']} *****\n",
                f"Loss: {info['loss']:.6f}\n",
                f"Feature norm: {info['feature_norm']:.6f}\n",
                *([f"Error norm: {info['error_norm']:.6f}\n"] if "error_norm" in info else []),
                f"Active features: {info['active_features']}\n",
                f"Seconds required for this iteration: {info['time']:.3f}\n",
            ]
            if y_dev and found is not None:
                info |= _scores(y_dev, found)
                lines += _score_lines(info)
            log.iterations.append(info)
            log.last_iteration = info
            self._tell("iteration", [*lines, "\n"])

        return report

    def _tell(self, event: str, lines: Sequence[str]) -> None:
        """Send lines to `message`, the last of them with the event that is over then."""
        assert self.logparser is not None
        self.logparser.log += lines
        self.logparser.last_log = "".join(lines)
        for k, line in enumerate(lines):
            self._event = event if k == len(lines) - 1 else None
            self.message(line)

    def message(self, message: str) -> None:
        """Receive a line of the log; if `verbose`, calls the method of an event that is over."""
        log, event = self.logparser, self._event
        if not self.verbose or event is None or log is None:
            return
        info, percent = [dict(log.last_iteration or {})], [log.featgen_percent]
        facts: dict[str, list[Any]] = {"iteration": info, "featgen_progress": percent}
        getattr(self, f"on_{event}")(log.last_log, *facts.get(event, []))

    def on_start(self, log: str, *facts: Any) -> None:
        """An event is over, with these lines of the log; facts: of an iteration, or the progress in percent."""
        print(log, end="")

    on_featgen_progress = on_featgen_end = on_prepared = on_prepare_error = on_start
    on_iteration = on_optimization_end = on_end = on_start


def _scores(truth: Sequence[Sequence[str]], names: Sequence[str]) -> dict[str, Any]:
    """Precision, recall and F1 of each label, and the shares of right labels and sequences."""
    flat = [label for row in truth for label in row]
    matches, models, refs = (
        Counter(a for a, b in zip(flat, names, strict=True) if a == b),
        Counter(names),
        Counter(flat),
    )
    scores: dict[str, LabelScore] = {}
    for label in sorted({*flat, *names}):
        match, model, ref = matches[label], models[label], refs[label]
        p, r = match / max(model, 1), match / max(ref, 1)
        scores[label] = LabelScore(match, model, ref, p, r, 2.0 * p * r / (p + r) if match else 0.0)
    means = {
        f"avg_{key}": math.fsum(getattr(s, key) for s in scores.values()) / len(scores)
        for key in ("precision", "recall", "f1")
    }
    ends = np.cumsum([0, *map(len, truth)]).tolist()
    whole = sum(list(row) == names[a:b] for row, a, b in zip(truth, ends, ends[1:], strict=False))
    of_items, of_sequences = Fraction(matches.total(), max(1, len(flat))), Fraction(whole, max(1, len(truth)))
    return {
        "scores": scores, **means, "item_accuracy": of_items, "item_accuracy_float": float(of_items),
        "instance_accuracy": of_sequences, "instance_accuracy_float": float(of_sequences),
    }  # fmt: skip


def _score_lines(info: Mapping[str, Any]) -> list[str]:
    """The scores as lines of the log."""
    lines = ["Performance by label (#match, #model, #ref) (precision, recall, F1):\n"]
    for label, s in info["scores"].items():
        shares = f"{s.precision:.4f}, {s.recall:.4f}, {s.f1:.4f}"
        lines.append(f"    {label}: ({s.match}, {s.model}, {s.ref}) ({shares})\n")
    means = ", ".join(f"{info[f'avg_{key}']:.6f}" for key in ("precision", "recall", "f1"))
    return [
        *lines,
        f"Macro-average precision, recall, F1: ({means})\n",
        f"Item accuracy: {info['item_accuracy_float']:.4f}\n",
        f"Instance accuracy: {info['instance_accuracy_float']:.4f}\n",
    ]


class ParsedDump(NamedTuple):
    """The content of a model: facts of its header, numbers of labels and attributes, weights by name."""

    header: dict[str, str]
    labels: dict[str, str]
    attributes: dict[str, str]
    transitions: dict[tuple[str, str], float]
    state_features: dict[tuple[str, str], float]


class Tagger:
    """Labels sequences by a model file."""

    def __init__(self) -> None:
        self._model: ChainCRF | None = None
        self._size = 0
        self._X: list[Any] | None = None
        self._marginals: Any = None

    def open(self, name: str) -> contextlib.closing[Tagger]:
        """Open a model file; in a `with` statement, it is closed at its end."""
        return self._opened(Path(name), Path(name).read_bytes())

    def open_inmemory(self, value: bytes) -> contextlib.closing[Tagger]:
        """Open the content of a model file."""
        return self._opened(Path("model"), bytes(value))

    def _opened(self, path: Path, data: bytes) -> contextlib.closing[Tagger]:
        return self.use(CompatChain.of_stored(parse_crfsuite(path, data)), len(data))

    def use(self, model: ChainCRF, size: int) -> contextlib.closing[Tagger]:
        """Use a model that is in memory; `size`: bytes that its file has or would have."""
        self._model, self._size, self._X = model, size, None
        return contextlib.closing(self)

    def close(self) -> None:
        """Let go of the model."""
        self._model = self._X = None

    def labels(self) -> list[str]:
        """All labels."""
        return [str(label) for label in self._opened_model().classes_]

    def set(self, xseq: Iterable[Any]) -> None:
        """The sequence that `tag`, `probability` and `marginal` are about."""
        self._opened_model()
        items = xseq if isinstance(xseq, list | ItemSequence) else list(xseq)
        self._X, self._marginals = [items], None

    def tag(self, xseq: Iterable[Any] | None = None) -> list[str]:
        """The best labels of a sequence, or of the one set."""
        if xseq is not None:
            self.set(xseq)
        return self._opened_model().predict(self._sequence())[0]

    def probability(self, yseq: Sequence[str]) -> float:
        """The probability of a labelling of the sequence set."""
        model, X = self._opened_model(), self._sequence()
        if len(yseq) != len(X[0]):
            raise PotentiaError(f"the numbers of items and labels differ: {len(X[0])} and {len(yseq)}.")
        for label in yseq:
            self._number(label)
        return math.exp(model.log_probability(X, [list(yseq)])[0]) if len(yseq) else 1.0

    def marginal(self, y: str, pos: int) -> float:
        """The probability of a label at a position of the sequence set."""
        X, number = self._sequence(), self._number(y)
        if not 0 <= pos < len(X[0]):
            raise PotentiaError(f"the position {pos} is outside a sequence of {len(X[0])} items.")
        if self._marginals is None:
            self._marginals = marginals(self._opened_model()._encoded(Sequences(X)), 1)[0]
        return float(self._marginals[pos, number])

    def info(self) -> ParsedDump:
        """The model's content."""
        model = self._opened_model(RuntimeError)
        labels, names = self.labels(), list(model.index_.numbers)
        header = {
            "magic": "lCRF", "size": str(self._size), "type": "FOMC", "version": "100", "num_features": "0",
            "num_labels": str(len(labels)), "num_attrs": str(len(names)),
        }  # fmt: skip
        of_labels, of_names = ({name: str(k) for k, name in enumerate(texts)} for texts in (labels, names))
        return ParsedDump(header, of_labels, of_names, model.transition_features_, model.state_features_)

    def dump(self, filename: str | None = None) -> None:
        """Write the model's content as text, to the standard output without a file name."""
        found = self.info()
        sections = {
            "FILEHEADER": [f"  {key}: {value}" for key, value in found.header.items()],
            "LABELS": [f"  {k:>5}: {name}" for name, k in found.labels.items()],
            "ATTRIBUTES": [f"  {k:>5}: {name}" for name, k in found.attributes.items()],
            "TRANSITIONS": [f"  (1) {a} --> {b}: {w:f}" for (a, b), w in found.transitions.items()],
            "STATE_FEATURES": [f"  (0) {a} --> {b}: {w:f}" for (a, b), w in found.state_features.items()],
        }
        text = "".join("\n".join([f"{name} = {{", *lines, "}", "", ""]) for name, lines in sections.items())
        if filename is None:
            sys.stdout.write(text)
        else:
            write_bytes(filename, text.encode("utf-8", "surrogatepass"))

    def _opened_model(self, kind: type[Exception] = PotentiaError) -> ChainCRF:
        if self._model is None:
            raise kind("the tagger is not open: call open with a model file.")
        return self._model

    def _sequence(self) -> list[Any]:
        self._opened_model()
        if self._X is None:
            raise PotentiaError("no sequence is set: call set or tag with one.")
        return self._X

    def _number(self, label: str) -> int:
        labels = self.labels()
        if label not in labels:
            raise PotentiaError(f"{label!r:.40} is not a label of the model.")
        return labels.index(label)
