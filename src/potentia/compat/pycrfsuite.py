"""python-crfsuite's `Trainer`, `Tagger` and `ItemSequence`, with its names, positions, defaults and files.

Models are CRFsuite's files, in both directions. The algorithms are "lbfgs" and "l2sgd"; the line search and the
calibration of step sizes are potentia's, so that their options are taken and have no effect.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from ..base.types import PotentiaError
from ..features.attributes import flattened
from ..learn.chain import ChainSolver
from ..models.chain_crf import ChainCRF

__all__ = ["ItemSequence", "Tagger", "Trainer"]

_FEATURES = {
    "feature.minfreq": (0.0, "The minimum frequency of features."),
    "feature.possible_states": (False, "Force to generate possible state features."),
    "feature.possible_transitions": (False, "Force to generate possible transition features."),
}
#: Parameters by algorithm: default and description.
_PARAMETERS: dict[str, dict[str, tuple[Any, str]]] = {
    "lbfgs": _FEATURES
    | {
        "c1": (0.0, "Coefficient for L1 regularization."),
        "c2": (1.0, "Coefficient for L2 regularization."),
        "max_iterations": (2147483647, "The maximum number of iterations."),
        "num_memories": (6, "The number of limited memories for approximating the inverse hessian matrix."),
        "epsilon": (1e-5, "Stop where the gradient is smaller than this share of the weights."),
        "period": (10, "The number of iterations over which `delta` is tested."),
        "delta": (
            1e-5,
            "Stop where the objective improves by less than this share over `period` iterations.",
        ),
        "linesearch": ("MoreThuente", "Taken for compatibility; there is one line search."),
        "max_linesearch": (20, "Taken for compatibility; there is one line search."),
    },
    "l2sgd": _FEATURES
    | {
        "c2": (1.0, "Coefficient for L2 regularization."),
        "max_iterations": (1000, "The maximum number of iterations (epochs)."),
        "period": (10, "The number of iterations over which `delta` is tested."),
        "delta": (
            1e-6,
            "Stop where the objective improves by less than this share over `period` iterations.",
        ),
        "calibration.eta": (0.1, "The first step size that is tried."),
        "calibration.rate": (2.0, "Taken for compatibility; step sizes are halved or doubled."),
        "calibration.samples": (1000.0, "The number of sequences on which step sizes are tried."),
        "calibration.candidates": (10, "Taken for compatibility."),
        "calibration.max_trials": (20, "Taken for compatibility."),
    },
}
_ALIASES = {"lbfgs": "lbfgs", "l2sgd": "l2sgd", "l2-sgd": "l2sgd"}
_LINE_SEARCHES = ("MoreThuente", "Backtracking", "StrongBacktracking")


def check_algorithm(name: str) -> str:
    """An algorithm by its name here; one sentence for those that are not here."""
    if name in ("ap", "averaged-perceptron", "pa", "passive-aggressive", "arow"):
        raise ValueError(
            f"The algorithm {name!r} is not here; use 'lbfgs' or 'l2sgd', which reach a lower loss."
        )
    if name not in _ALIASES:
        raise ValueError(f"Bad arguments: algorithm={name!r}; 'lbfgs' and 'l2sgd' are known.")
    return _ALIASES[name]


def make_chain(algorithm: str, params: Mapping[str, Any]) -> ChainCRF:
    """An unfitted chain with CRFsuite's options by CRFsuite's names."""
    found = {name: default for name, (default, _) in _PARAMETERS[algorithm].items()} | dict(params)
    solver = ChainSolver(
        algorithm,
        found.get("num_memories", 6),
        found["period"],
        found.get("epsilon", 0.0),
        found.get("calibration.eta", 0.1),
    )
    return ChainCRF(
        float(found.get("c1", 0.0)),
        float(found["c2"]),
        min(int(found["max_iterations"]), 2**31 - 1),
        min_freq=float(found["feature.minfreq"]),
        all_possible_states=bool(found["feature.possible_states"]),
        all_possible_transitions=bool(found["feature.possible_transitions"]),
        delta=float(found["delta"]),
        solver=solver,
        centre=False,
    )


class ItemSequence:
    """The features of all items of a sequence, prepared once."""

    def __init__(self, pyseq: Iterable[Any]) -> None:
        self._items = [dict(flattened(f"item {t}", item)) for t, item in enumerate(pyseq)]

    def items(self) -> list[dict[str, float]]:
        """A dictionary {name: value} for every item."""
        return [dict(item) for item in self._items]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Any:
        return iter(self._items)

    def __repr__(self) -> str:
        return f"<ItemSequence of size {len(self)}>"


def prepared(xseq: Iterable[Any]) -> list[Any]:
    """A sequence as `ChainCRF` takes it: dictionaries and lists of texts, without bytes and other iterables."""
    return [
        token
        if isinstance(token, dict) and not any(isinstance(x, bytes) for pair in token.items() for x in pair)
        else dict(flattened(f"item {t}", token))
        for t, token in enumerate(xseq)
    ]


class Trainer:
    """Trains CRFsuite models.

    Args:
        algorithm: "lbfgs" or "l2sgd".
        params: parameters by name, see `params` and `help`.
        verbose: print messages while training.
    """

    def __init__(
        self, algorithm: str | None = None, params: Mapping[str, Any] | None = None, verbose: bool = True
    ) -> None:
        self.verbose = verbose
        self.logparser = TrainLog()
        self._data: list[tuple[list[Any], list[str], int]] = []
        self.select("lbfgs" if algorithm is None else algorithm)
        self.set_params(params or {})

    def select(self, algorithm: str, type: str = "crf1d") -> None:
        """Choose an algorithm, which resets all parameters."""
        if type != "crf1d":
            raise ValueError(f"Bad arguments: type={type!r}; only 'crf1d' is known.")
        self._algorithm = check_algorithm(algorithm)
        self._params = {name: default for name, (default, _) in _PARAMETERS[self._algorithm].items()}

    def append(self, xseq: Iterable[Any], yseq: Iterable[str], group: int = 0) -> None:
        """Add a sequence and its labels."""
        tokens, labels = prepared(xseq), [_text(y) for y in yseq]
        if len(tokens) != len(labels):
            raise ValueError(
                f"The numbers of items and labels differ: |x| = {len(tokens)}, |y| = {len(labels)}"
            )
        self._data.append((tokens, labels, int(group)))

    def clear(self) -> None:
        """Remove all sequences."""
        self._data = []

    def params(self) -> list[str]:
        """Names of the parameters."""
        return list(self._params)

    def get(self, name: str) -> Any:
        """The value of a parameter."""
        return self._params[self._known(name)]

    def set(self, name: str, value: Any) -> None:
        """Set a parameter; texts are turned into its type."""
        default = _PARAMETERS[self._algorithm][self._known(name)][0]
        self._params[name] = _cast(name, value, default)

    def get_params(self) -> dict[str, Any]:
        """All parameters."""
        return dict(self._params)

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Set several parameters."""
        for name, value in params.items():
            self.set(name, value)

    def help(self, name: str) -> str:
        """What a parameter means."""
        return _PARAMETERS[self._algorithm][self._known(name)][1]

    def _known(self, name: str) -> str:
        if name not in self._params:
            raise ValueError(f"Parameter not found: {name}")
        return name

    def message(self, message: str) -> None:
        """Called with every message; prints it if `verbose`."""
        if self.verbose:
            sys.stdout.write(message)

    def train(self, model: str | os.PathLike[str], holdout: int = -1) -> None:
        """Train, and write the model to a file, or nowhere if `model` is empty.

        holdout: the group that is left out of training and evaluated after every iteration.
        """
        chosen = [(x, y) for x, y, group in self._data if holdout < 0 or group != holdout]
        if not chosen:
            raise ValueError("The data set is empty: append sequences before training.")
        X, y = map(list, zip(*chosen, strict=True))
        held_out = [(x, y) for x, y, group in self._data if holdout >= 0 and group == holdout]
        self.logparser = TrainLog()
        chain = make_chain(self._algorithm, self._params)

        def report(history: list[dict[str, Any]]) -> None:
            row = history[-1]
            self.logparser.iterations.append(
                {"num": row["iteration"], "loss": row["objective"], "time": row.get("seconds")}
            )
            self.message(f"***** Iteration #{row['iteration']} *****\nLoss: {row['objective']:.6f}\n\n")

        with quiet():
            chain.fit(X, y, callback=report)
        if held_out:
            X, y = map(list, zip(*held_out, strict=True))
            self.logparser.holdout_accuracy = chain.score(X, y)
            self.message(f"Item accuracy: {self.logparser.holdout_accuracy:.4f}\n")
        if os.fspath(model):
            chain.to_crfsuite(model)
            self.message(f"Storing the model: {os.fspath(model)}\n")


class TrainLog:
    """What happened while training.

    Attributes:
        iterations: a dictionary per iteration with "num", "loss" and "time".
        holdout_accuracy: share of right labels in the group that was held out, None without one.
    """

    def __init__(self) -> None:
        self.iterations: list[dict[str, Any]] = []
        self.holdout_accuracy: float | None = None

    @property
    def last_iteration(self) -> dict[str, Any] | None:
        """The last iteration, None before the first."""
        return self.iterations[-1] if self.iterations else None


class ModelInfo(NamedTuple):
    """What a model holds, as python-crfsuite's `Tagger.info` returns it."""

    header: dict[str, str]
    labels: dict[str, str]
    attributes: dict[str, str]
    transitions: dict[tuple[str, str], float]
    state_features: dict[tuple[str, str], float]


class Tagger:
    """Labels sequences with a CRFsuite model."""

    _closed: ClassVar[str] = "The tagger is not opened"

    def __init__(self) -> None:
        self.model: ChainCRF | None = None
        self._size = 0
        self._tokens: list[Any] | None = None

    def open(self, name: str | os.PathLike[str]) -> Any:
        """Open a model file; the result closes the tagger at the end of a with statement."""
        path = Path(name)
        if not path.is_file():
            raise OSError(f"No such file: {os.fspath(name)!r}")
        try:
            self.model = ChainCRF.from_crfsuite(path)
        except PotentiaError as error:
            raise ValueError(str(error)) from None
        self._size, self._tokens = path.stat().st_size, None
        return contextlib.closing(self)

    def open_inmemory(self, value: bytes) -> Any:
        """Open a model that is the content of a file."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            path.write_bytes(value)
            return self.open(path)

    def close(self) -> None:
        """Forget the model."""
        self.model, self._tokens = None, None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def labels(self) -> list[str]:
        """The labels of the model."""
        return [str(label) for label in self._opened().classes_]

    def set(self, xseq: Iterable[Any]) -> None:
        """Set the sequence that `tag`, `probability` and `marginal` are about."""
        self._opened()
        self._tokens = prepared(xseq)

    def tag(self, xseq: Iterable[Any] | None = None) -> list[str]:
        """The best labels of a sequence, of the current one if None."""
        if xseq is not None:
            self.set(xseq)
        return self._opened().predict([self._current()])[0]

    def probability(self, yseq: Sequence[str]) -> float:
        """The probability of the current sequence's labels."""
        model, tokens = self._opened(), self._current()
        if len(yseq) != len(tokens):
            raise ValueError(
                f"The numbers of items and labels differ: |x| = {len(tokens)}, |y| = {len(yseq)}"
            )
        return float(np.exp(model.log_probability([tokens], [list(yseq)])[0]))

    def marginal(self, y: str, pos: int) -> float:
        """The probability of a label at a position of the current sequence."""
        rows = self._opened().predict_marginals([self._current()])[0]
        if not 0 <= pos < len(rows):
            raise ValueError(f"The position, {pos} is out of range of {len(rows)}")
        if y not in rows[pos]:
            raise ValueError(f"There is no label {y!r} in the model")
        return rows[pos][y]

    def info(self) -> ModelInfo:
        """Labels, attributes and weights by name."""
        model = self._opened()
        header = {
            "size": str(self._size), "type": "FOMC", "version": "100", "num_features": "0",
            "num_labels": str(len(model.classes_)), "num_attrs": str(len(model.index_.numbers)),
        }  # fmt: skip
        return ModelInfo(
            header,
            {str(label): str(k) for k, label in enumerate(model.classes_)},
            {name: str(k) for k, name in enumerate(model.index_.numbers)},
            model.transition_features_,
            model.state_features_,
        )

    def dump(self, filename: str | os.PathLike[str] | None = None) -> None:
        """Write the model as text, to a file or to the standard output."""
        info = self.info()
        parts = [
            ("FILEHEADER", [f"  {name}: {value}" for name, value in info.header.items()]),
            ("LABELS", [f"  {k:>5}: {name}" for name, k in info.labels.items()]),
            ("ATTRIBUTES", [f"  {k:>5}: {name}" for name, k in info.attributes.items()]),
            ("TRANSITIONS", [f"  (1) {a} --> {b}: {w:f}" for (a, b), w in info.transitions.items()]),
            ("STATE_FEATURES", [f"  (0) {a} --> {b}: {w:f}" for (a, b), w in info.state_features.items()]),
        ]
        text = "\n".join("\n".join([f"{name} = {{", *lines, "}", ""]) for name, lines in parts)
        if filename is None:
            sys.stdout.write(text)
        else:
            Path(filename).write_text(text, encoding="utf-8")

    def _opened(self) -> ChainCRF:
        if self.model is None:
            raise ValueError(self._closed)
        return self.model

    def _current(self) -> list[Any]:
        if self._tokens is None:
            raise ValueError("There is no current sequence: call set or tag with one")
        return self._tokens


@contextlib.contextmanager
def quiet() -> Any:
    """Without warnings that a fit stopped at its limit, which CRFsuite does not give either."""
    import warnings

    from ..base.types import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def _text(label: Any) -> str:
    if isinstance(label, bytes):
        return label.decode("utf-8")
    if not isinstance(label, str):
        raise TypeError(f"labels must be texts, not {type(label).__name__}")
    return label


def _cast(name: str, value: Any, default: Any) -> Any:
    """A value as the type of a parameter's default."""
    if isinstance(default, str):
        if value not in _LINE_SEARCHES:
            raise ValueError(f"{name} must be one of {', '.join(_LINE_SEARCHES)}, not {value!r}")
        return value
    try:
        number = float(
            {"True": 1, "true": 1, "False": 0, "false": 0}.get(value, value)
            if isinstance(value, str)
            else value
        )
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number, not {value!r}") from None
    return bool(number) if isinstance(default, bool) else int(number) if isinstance(default, int) else number
