"""The one training loop: history, clock, evaluation, callback, progress, checkpoint and stopping for every learner."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ..base.files import naming
from ..base.progress import Bar
from ..base.saving import digest_of, stable_repr
from ..base.types import ConvergenceWarning, PotentiaError, warn_caller
from ..features.parts import Examples, Held, Parts, Source
from ..potentials.base import Potential
from .backends.connection import map_anywhere
from .base import Learner, SavedState, State

#: Called after every iteration with the history so far; returning True stops the fit.
Callback = Callable[[list[dict[str, Any]]], bool | None]

#: Options that a resumed fit may change.
_FREE_OPTIONS = ("iterations", "threads", "track_error")

_LOG = logging.getLogger(__name__)


class Store(Protocol):
    """Where a fit's state is kept between iterations; a context that no other fit may enter meanwhile."""

    path: Path

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...

    def load(self) -> Mapping[str, Any] | None: ...

    def keep(self, state: Mapping[str, Any], last: bool = False) -> None: ...

    def flush(self) -> None: ...


def run(
    learner: Learner,
    data: Any,
    potentials: Mapping[str, Potential],
    *,
    tracked: bool | Sequence[int] = False,
    evaluate: Callable[[State], Mapping[str, float]] | None = None,
    callback: Callback | None = None,
    checkpoint: Store | None = None,
    bar: Bar | None = None,
    statistics: Callable[[], Mapping[str, Any]] = dict,
) -> tuple[State, bool]:
    """Step until the learner is done or the callback stops; the last state, and whether it converged.

    tracked: whether to evaluate after every iteration, or the iterations after which to. A checkpoint holds the state
    after a whole iteration, and is written at the end, however the fit ends. statistics: more to note in the history.
    """
    with nullcontext() if checkpoint is None else checkpoint:
        state = _begin(learner, data, potentials, checkpoint)
        if bar is not None:
            bar.begin("fitting", state.limit)
        begun = time.perf_counter() - (state.history[-1]["seconds"] if state.history else 0.0)
        stopped = False
        try:
            while (stop := learner.done(state)) is None and not stopped:
                before = len(state.history)
                state = learner.step(data, state)
                if len(state.history) == before:
                    continue
                row = {**state.history[-1], "seconds": time.perf_counter() - begun}
                due = tracked if isinstance(tracked, bool) else row["iteration"] in tracked
                row |= evaluate(state) if due and evaluate is not None else {}
                row |= statistics()
                state = replace(state, history=(*state.history[:-1], row))
                if bar is not None:
                    bar.advance(row["iteration"], _shown(row))
                _LOG.info("%s", summary_line(row))
                stopped = bool(callback(list(state.history))) if callback is not None else False  # type: ignore[arg-type]
                if checkpoint is not None:
                    last = stopped or learner.done(state) is not None
                    checkpoint.keep(_content(learner, data, state), last)
        finally:
            if checkpoint is not None:
                checkpoint.flush()
        if stopped:
            return state, len(state.history) < state.limit or (stop is not None and stop.converged)
        assert stop is not None
        if stop.warning is not None:
            warn_caller(stop.warning, ConvergenceWarning)
        return state, stop.converged


def _content(learner: Learner, data: Any, state: State) -> dict[str, Any]:
    """What a checkpoint holds of a state."""
    return {
        "history": list(state.history),
        "potentials": {kind: potential.state() for kind, potential in state.potentials.items()},
        "arrays": state.arrays,
        "parts": learner.saved_parts(data, state),
    }


def _begin(
    learner: Learner, data: Any, potentials: Mapping[str, Potential], checkpoint: Store | None
) -> State:
    """The state that a checkpoint holds, if there is one, or else the first."""
    saved = None if checkpoint is None else checkpoint.load()
    if checkpoint is None or saved is None:
        return learner.init(data, potentials)
    try:
        with naming(checkpoint.path):
            state = learner.init(data, _loaded(saved["potentials"], potentials))
            held = SavedState(tuple(saved["history"]), saved["arrays"], saved["parts"])
            return learner.resume(data, state, held) if held.history else state
    except PotentiaError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise PotentiaError(
            f"{checkpoint.path}: the checkpoint is damaged ({error}); delete it to start again."
        ) from None


def _loaded(saved: Mapping[str, Any], potentials: Mapping[str, Potential]) -> dict[str, Potential]:
    """The functions of a checkpoint, in the place of these."""
    if set(saved) != set(potentials):
        raise PotentiaError(f"The checkpoint has potentials for {sorted(saved)}.")
    found = {}
    for kind, potential in potentials.items():
        meta, arrays = saved[kind]
        loaded = Potential.from_state(meta, arrays)
        if type(loaded) is not type(potential):
            expected, other = type(potential).__name__, type(loaded).__name__
            raise PotentiaError(
                f"The checkpoint's potential of kind {kind!r} is a {other}, not a {expected}."
            )
        if not loaded.is_fitted:
            raise PotentiaError(
                f"The checkpoint's potential of kind {kind!r} has no parameters; delete it to start again."
            )
        potential.reset().__dict__.update(loaded._fitted())
        found[kind] = potential
    return found


def summary_line(row: Mapping[str, Any]) -> str:
    """An iteration of the history in one line."""
    errors = [f"{key.replace('_', ' ')} {value:.4f}" for key, value in row.items() if key.endswith("_error")]
    return ", ".join([f"iteration {row['iteration']}: objective {row['objective']:.6g}", *errors])


def _shown(row: Mapping[str, Any]) -> str:
    """An iteration of the history beside a progress bar."""
    error = f", error {row['train_error']:.4f}" if "train_error" in row else ""
    rounds = f", {row['rounds']} rounds on {row['workers']} workers" if "rounds" in row else ""
    return f"objective {row['objective']:.5g}{error}{rounds}"


def fit_digest(learner: Learner, potentials: Mapping[str, Potential], examples: Examples) -> str:
    """A digest of options and examples: the checkpoint of a fit with another one is refused."""
    options = {name: value for name, value in vars(learner).items() if name not in _FREE_OPTIONS}
    sources = examples.sources if isinstance(examples, Parts) else [Held(examples)]
    everywhere = isinstance(examples, Parts) and not all(source.in_memory for source in sources)
    marks = map_anywhere(_digest, sources) if everywhere else [source.digest() for source in sources]
    return digest_of([stable_repr((type(learner).__name__, options, dict(potentials))), *marks])


def _digest(source: Source) -> str:
    return source.digest()
