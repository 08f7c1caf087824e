"""The one training loop: history, clock, evaluation, callback, checkpoint and stopping for every learner."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

from .._digest import digest_of, stable_repr
from .._files import naming
from .._types import ConvergenceWarning, PotentiaError, warn_caller
from ..data.parts import Examples, Held, Parts, Source
from ..parallel.connection import map_anywhere
from ..potentials.base import Potential
from .learner import Fit, Learner, SavedFit, steps_made

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
