"""The one training loop: history, clock, evaluation, callback, checkpoint and stopping for every learner."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..base.files import naming
from ..base.saving import digest_of, stable_repr
from ..base.types import ConvergenceWarning, Floats, Ints, PotentiaError, warn_caller
from ..features.example import Example
from ..features.parts import Examples, Held, Parts, Source
from ..potentials.base import Potential
from .backends.connection import map_anywhere
from .base import Fit, Learner, SavedFit, steps_made
from .part import Part

#: Called after every iteration with the history so far; returning True stops the fit.
Callback = Callable[[list[dict[str, Any]]], bool | None]
#: Errors to note in the history.
Evaluate = Callable[[], Mapping[str, float]]

#: Options that a resumed fit may change.
_FREE_OPTIONS = ("iterations", "threads", "track_error")


class Store(Protocol):
    """Where a fit's state is kept between iterations; a context that no other fit may enter meanwhile."""

    path: Path

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...

    def load(self) -> Mapping[str, Any] | None: ...

    def keep(self, state: Mapping[str, Any], last: bool = False) -> None: ...

    def flush(self) -> None: ...


def run(
    fit: Fit,
    potentials: Mapping[str, Potential],
    *,
    tracked: bool | Sequence[int] = False,
    evaluate: Evaluate | None = None,
    callback: Callback | None = None,
    checkpoint: Store | None = None,
) -> list[dict[str, Any]]:
    """Drive a fit to its end; returns the history, one dictionary per iteration, or that of the start as iteration 0.

    tracked: whether to evaluate after every iteration, or the iterations after which to. A checkpoint holds the state
    after a whole iteration, and is written at the end, however the fit ends.
    """
    with nullcontext() if checkpoint is None else checkpoint:
        return _run(fit, potentials, tracked, evaluate, callback, checkpoint)


def _run(
    fit: Fit,
    potentials: Mapping[str, Potential],
    tracked: bool | Sequence[int],
    evaluate: Evaluate | None,
    callback: Callback | None,
    checkpoint: Store | None,
) -> list[dict[str, Any]]:
    history = [] if checkpoint is None else _resume(fit, potentials, checkpoint)
    if not history:
        fit.prepare()
    begun = time.perf_counter() - (history[-1]["seconds"] if history else 0.0)
    stopped = ended = False
    try:
        while not (stopped or ended) and len(history) < fit.limit and not fit.settled(history):
            found = fit.step(history)
            ended = found is None
            if found is None:
                found = None if history else fit.standing()
            if found is None:
                break
            row: dict[str, Any] = {"iteration": 0 if ended else steps_made(history) + 1, **found}
            row["seconds"] = time.perf_counter() - begun
            due = tracked if isinstance(tracked, bool) else row["iteration"] in tracked
            if due and evaluate is not None:
                row |= evaluate()
            row |= fit.statistics()
            history.append(row)
            stopped = bool(callback(history)) if callback is not None else False
            if checkpoint is not None:
                last = stopped or ended or len(history) >= fit.limit or fit.settled(history)
                checkpoint.keep(_state(fit, potentials, history), last)
    finally:
        if checkpoint is not None:
            checkpoint.flush()
    complaint = None if stopped else fit.complaint(history)
    if complaint is not None:
        warn_caller(complaint, ConvergenceWarning)
    return history


def _state(fit: Fit, potentials: Mapping[str, Potential], history: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything a resumed fit needs."""
    return {
        "history": list(history),
        "potentials": {kind: potential.state() for kind, potential in potentials.items()},
        "arrays": fit.arrays(),
        "parts": fit.part_arrays(),
    }


def _resume(fit: Fit, potentials: Mapping[str, Potential], checkpoint: Store) -> list[dict[str, Any]]:
    """Take up a checkpoint's state, if there is one; the history so far."""
    saved = checkpoint.load()
    if saved is None:
        return []
    try:
        with naming(checkpoint.path):
            return _take_up(saved, fit, potentials)
    except PotentiaError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise PotentiaError(
            f"{checkpoint.path}: the checkpoint is damaged ({error}); delete it to start again."
        ) from None


def _take_up(saved: Mapping[str, Any], fit: Fit, potentials: Mapping[str, Potential]) -> list[dict[str, Any]]:
    """Put functions and state of a checkpoint where they belong; its history."""
    if set(saved["potentials"]) != set(potentials):
        raise PotentiaError(f"The checkpoint has potentials for {sorted(saved['potentials'])}.")
    for kind, (meta, arrays) in saved["potentials"].items():
        loaded = Potential.from_state(meta, arrays)
        if type(loaded) is not type(potentials[kind]):
            own, other = type(potentials[kind]).__name__, type(loaded).__name__
            raise PotentiaError(f"The checkpoint's potential of kind {kind!r} is a {other}, not a {own}.")
        if not loaded.is_fitted:
            raise PotentiaError(
                f"The checkpoint's potential of kind {kind!r} has no parameters; delete it to start again."
            )
        potentials[kind].reset().__dict__.update(loaded._fitted())
    history = list(saved["history"])
    fit.restore(SavedFit(history, saved["arrays"], saved["parts"]))
    return history


def fit_digest(learner: Learner, potentials: Mapping[str, Potential], examples: Examples) -> str:
    """A digest of options and examples: the checkpoint of a fit with another one is refused."""
    options = {name: value for name, value in vars(learner).items() if name not in _FREE_OPTIONS}
    sources = examples.sources if isinstance(examples, Parts) else [Held(examples)]
    everywhere = isinstance(examples, Parts) and not all(source.in_memory for source in sources)
    marks = map_anywhere(_digest, sources) if everywhere else [source.digest() for source in sources]
    return digest_of([stable_repr((type(learner).__name__, options, dict(potentials))), *marks])


def _digest(source: Source) -> str:
    return source.digest()


class Hamming:
    """1 for every wrong state of a labelled variable, (N, K), made on demand."""

    def __init__(self, targets: Ints, n_states: int) -> None:
        self._targets, self.shape = targets, (len(targets), n_states)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Floats:
        targets = self._targets[rows]
        wrong = np.ones((len(targets), self.shape[1]))
        known = np.flatnonzero(targets >= 0)
        wrong[known, targets[known]] = 0.0
        wrong[targets < 0] = 0.0
        return wrong


def delta_tables(part: Part, delta: Any) -> dict[str, Any]:
    """Delta per kind (N, K), None if it is zero: Hamming on single-variable kinds, or a user's."""
    if delta != "hamming":
        return own_delta(part, delta)
    return {
        kind: Hamming(part.targets[kind], shape[0]) if len(shape) == 1 else None
        for kind, shape in part.shapes.items()
    }


def own_delta(data: Part, delta: Callable[[Example], Mapping[str, Any]] | None) -> dict[str, Floats | None]:
    """A user's Delta of all examples, per kind (N, K); None for a kind that it never names."""
    if delta is None:
        return dict.fromkeys(data.shapes)
    given = [_checked_delta(delta(example), example, data.shapes) for example in data.examples]
    found: dict[str, Floats | None] = {}
    for kind, shape in data.shapes.items():
        if not any(kind in own for own in given):
            found[kind] = None
            continue
        parts = [np.zeros((0, data.n_outputs(kind)))]
        for own, example, kept in zip(given, data.examples, data.kept, strict=True):
            table = own.get(kind, np.zeros((len(example.graph.scopes.get(kind, ())), *shape)))
            rows = slice(None) if kept is None else kept.get(kind, slice(None))
            parts.append(table[rows].reshape(-1, data.n_outputs(kind)))
        found[kind] = np.concatenate(parts)
    return found


def _checked_delta(tables: Any, example: Example, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Floats]:
    """What a user's Delta returned for an example, as finite tables of its regions."""
    if not isinstance(tables, Mapping):
        raise PotentiaError(f"delta must return {{kind: table}}, not a {type(tables).__name__}.")
    if example.labels is None or np.any(example.labels < 0):
        raise PotentiaError("a custom delta requires examples without hidden labels.")
    scopes, found = example.graph.scopes, {}
    for kind, given in tables.items():
        if kind not in scopes or kind not in shapes:
            raise PotentiaError(f"delta names kind {kind!r}, but the graph has {', '.join(scopes)}.")
        table, shape = np.asarray(given, dtype=float), (len(scopes[kind]), *shapes[kind])
        if table.shape != shape or not np.all(np.isfinite(table)):
            got = "one that is not finite" if table.shape == shape else str(table.shape)
            raise PotentiaError(f"delta must give a finite table of shape {shape} for {kind!r}, not {got}.")
        found[kind] = table
    return found
