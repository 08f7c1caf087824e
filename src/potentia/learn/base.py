"""`Learner` and `State`: how potentials are trained, as steps from state to state, and the loop that drives them."""

from __future__ import annotations

import copy
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import numpy as np

from ..base.files import naming
from ..base.optimise import Search
from ..base.params import Params
from ..base.progress import Bar
from ..base.saving import Registered, digest_of, stable_repr
from ..base.schema import check_state, like
from ..base.types import ConvergenceWarning, Floats, PotentiaError, check_choice, warn_caller
from ..features.parts import Examples, Parts, Source
from .backends.connection import map_anywhere
from .checkpoint import Checkpoint

if TYPE_CHECKING:
    from ..inference.base import Inference
    from ..potentials.base import Differentiable, Potential
    from .data import Dataset

# what graphs need is imported where it is used: chains do without

#: Iterations over which the objective's fall is judged: a single step may be short without being the last.
WINDOW = 10
#: A fall in WINDOW iterations beyond this share counts as unfinished where no tolerance is given.
STILL_FALLING = 1e-2

Row = Mapping[str, Any]

#: Called after every iteration with the history so far; returning True stops the fit.
Callback = Callable[[list[dict[str, Any]]], bool | None]

#: Options that a resumed fit may change.
_FREE_OPTIONS = ("iterations", "threads", "track_error")

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class State:
    """Where a fit stands after an iteration; a step makes a new one, and this one stays valid.

    Attributes:
        potentials: the functions.
        limit: iterations after which the fit ends at the latest.
        arrays: what else the learner needs to know, such as its optimiser's state.
        parts: what it knows about every part of the data, as the backend's `map` returned it.
        history: one row per iteration, at least {"iteration": ..., "objective": ...}.
        ended: nothing more can be gained.
        failure: why the fit ended elsewhere than at a minimum.
        doubt: what makes the last gradient inaccurate.

    Example:
        >>> import potentia as pt
        >>> state = pt.extend.State({"node": pt.Linear()}, limit=10)
        >>> later = state.after({"objective": 1.5})
        >>> len(state.history), len(later.history), later.history[-1]["objective"]
        (0, 1, 1.5)
    """

    potentials: Mapping[str, Potential]
    limit: int
    arrays: Mapping[str, Any] = field(default_factory=dict)
    parts: Any = None
    history: tuple[Row, ...] = ()
    ended: bool = False
    failure: str | None = None
    doubt: str | None = None

    def after(self, row: Row, **changes: Any) -> State:
        """The state after one more iteration, of which the history tells `row`."""
        return replace(self, history=(*self.history, {"iteration": steps_made(self.history) + 1, **row}), **changes)

    def at_end(self, row: Row | None, **changes: Any) -> State:
        """The state of a fit that cannot gain any more; the history of one that never could tells of its start."""
        first = () if self.history or row is None else ({"iteration": 0, **row},)
        return replace(self, history=(*self.history, *first), ended=True, **changes)


class Stop(NamedTuple):
    """Why a fit ended: whether it `converged`, and the text of a `warning` (None: no warning).

    Example:
        >>> import potentia as pt
        >>> pt.extend.Stop(converged=False, warning="the step became too short").converged
        False
    """

    converged: bool
    warning: str | None = None


class Learner(Params, Registered, ABC):
    """Trains the potentials of a `CRF`: a dataclass whose fields are its options.

    A custom class defines `init` and `step`, and may override when it is done, what `finish` returns and what
    predictions of the trained model use. It works with checkpoints, progress and saving as the library's own do.

    Example:
        >>> import potentia as pt
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Once(pt.extend.Learner):
        ...     def init(self, data, potentials):
        ...         return pt.extend.State(data.begin(potentials), limit=1)
        ...     def step(self, data, state):
        ...         return state.after({"objective": 0.0})
        >>> train = pt.datasets.denoising(1, (8, 8), seed=0)
        >>> crf = pt.CRF({"node": pt.Linear(), "edge": pt.Linear()}, Once()).fit(train)
        >>> len(crf.history_)
        1
    """

    #: What predictions take of inference's result unless a CRF says otherwise.
    decode: ClassVar[str] = "mpm"
    #: The option that a user sets the limit of iterations by.
    limit_name: ClassVar[str] = "iterations"
    #: Predict the examples after every iteration, or after those listed; None: where that costs little.
    track_error: bool | Sequence[int] | None = False
    threads: int | None = None
    tol: float = 0.0
    #: Iterations over which the fall of the objective is compared with `tol`.
    window: int = WINDOW

    def check(self, potentials: Mapping[str, Potential]) -> None:
        """Refuse options and potentials that cannot be used, before work starts."""
        return

    def gather(self, examples: Examples, potentials: Mapping[str, Potential]) -> Dataset:
        """The examples, a list or `pt.parts`, as the parts that this learner works on."""
        from .data import Dataset

        return Dataset.of(examples, potentials)

    @abstractmethod
    def init(self, data: Dataset, potentials: Mapping[str, Potential]) -> State:
        """Where the fit begins: with potentials of an earlier fit, or with ones that were never fitted."""

    @abstractmethod
    def step(self, data: Dataset, state: State) -> State:
        """One iteration: `state.after(row)`, or `state.at_end(row)` if nothing more can be gained."""

    def done(self, state: State) -> Stop | None:
        """Why the fit ends here; None to go on.

        It ends if nothing more can be gained, at the limit, or when the objective fell by at most `tol` of itself in
        the last `window` iterations.
        """
        rows = self.judged(state)
        settled = has_settled(rows, self.tol, self.window)
        if not (state.ended or settled or len(state.history) >= state.limit):
            return None
        if state.failure is not None:
            return Stop(False, state.failure)
        warning = None if settled else self._still_falling(rows, state.limit)
        return Stop(state.ended or settled or len(state.history) < state.limit, state.doubt or warning)

    def judged(self, state: State) -> Sequence[Row]:
        """The rows of the history that convergence is judged by."""
        return state.history

    def finish(self, data: Dataset, state: State) -> Mapping[str, Potential]:
        """The fitted potentials."""
        return state.potentials

    # -- checkpoints -----------------------------------------------------------------------------------------

    def saved_parts(self, data: Dataset, state: State) -> Iterable[Mapping[str, Any]]:
        """What a checkpoint keeps of every part: nothing that `init` would find again."""
        return []

    def resume(self, data: Dataset, state: State, saved: State) -> State:
        """The state that was saved; `state` is what `init` made of the saved potentials.

        saved: with the history and, not yet checked, the arrays and those of the parts, which are read on demand.
        """
        arrays = check_state(like(state.arrays), saved.arrays)
        return replace(state, arrays=arrays, history=saved.history)

    # -- predictions of the trained model --------------------------------------------------------------------

    def scales(self, kinds: Sequence[str]) -> dict[str, float]:
        """Factors between f and theta at prediction, per kind."""
        return dict.fromkeys(kinds, 1.0)

    def predictor(self, kinds: Sequence[str]) -> Inference:
        """The inference that predictions of the trained model use."""
        from ..inference.messages import TRW

        return TRW(iterations=20)

    # -- help ------------------------------------------------------------------------------------------------

    def _still_falling(self, history: Sequence[Row], limit: int) -> str | None:
        """What to warn of if the fit was stopped by its iteration limit."""
        if not 2 <= len(history) >= limit or fall(history) <= (self.tol or STILL_FALLING):
            return None
        return (
            f"The objective still fell by {fall(history):.2g} of itself in the last "
            f"{min(WINDOW, len(history) - 1)} of {len(history)} iterations; raise `{self.limit_name}`."
        )

    def check_choices(self, choices: Mapping[str, Sequence[str]]) -> None:
        """Refuse an option that is not one of its choices."""
        for name, allowed in choices.items():
            check_choice(name, getattr(self, name), allowed)

    def check_inference(self, *names: str) -> None:
        """Refuse an option that should be an inference method and is not."""
        from ..inference.base import Inference

        for name in names:
            method = getattr(self, name)
            if method is not None and not isinstance(method, Inference):
                raise PotentiaError(f"{name} must be an inference method, not a {type(method).__name__}.")


# -- parameters of several potentials as one vector ------------------------------------------------------------


def movable(potentials: Mapping[str, Potential], kinds: Iterable[str]) -> dict[str, Differentiable]:
    """Copies of the potentials of some kinds that have parameters, to be moved."""
    return {
        kind: cast("Differentiable", copy.deepcopy(potentials[kind]))
        for kind in kinds
        if potentials[kind].differentiable
    }


def join_parameters(functions: Mapping[str, Differentiable]) -> Floats:
    """All parameters as one vector."""
    return np.concatenate([np.zeros(0), *(f.parameters for f in functions.values())])


def set_parameters(functions: Mapping[str, Differentiable], vector: Floats) -> None:
    """Give every function its share of a vector of all parameters."""
    first = 0
    for function in functions.values():
        size = function.n_parameters
        function.parameters = vector[first : first + size]
        first += size


def failure_of(search: Search, steps: int, tol: float) -> str | None:
    """The warning for a search that stopped before a minimum up to `tol`; None if it reached one."""
    if search.diverged:
        return f"The parameters ran away after {steps} iterations: this loss seems to have no minimum here."
    if not search.missed > (tol or STILL_FALLING) * abs(search.value):
        return None
    return (
        "The fit ended before its minimum: no step along the gradient lowers the objective, so nearby values or "
        "gradients are inaccurate or not finite."
    )


# -- histories -------------------------------------------------------------------------------------------------


def steps_made(history: Sequence[Mapping[str, Any]]) -> int:
    """Iterations that a history tells of; the row of a start is number 0."""
    return int(history[-1]["iteration"]) if history else 0


def has_settled(history: Sequence[Mapping[str, Any]], tol: float, window: int = WINDOW) -> bool:
    """Whether the objective fell by at most `tol` of itself in the last iterations; never for a tolerance of 0."""
    return tol > 0 and len(history) > window and fall(history, window) <= tol


def fall(history: Sequence[Mapping[str, Any]], window: int = WINDOW) -> float:
    """Share of itself by which the objective fell in the last iterations."""
    before = history[max(0, len(history) - 1 - window)]["objective"]
    now = history[-1]["objective"]
    return share(before - now, before) if before != now else 0.0


def share(amount: float, objective: float) -> float:
    """`amount / abs(objective)`; infinite if the objective is 0 and the amount is not."""
    if objective == 0:
        return math.copysign(math.inf, amount) if amount != 0 else 0.0
    return float(amount / abs(objective))


# -- the training loop -----------------------------------------------------------------------------------------


def run(
    learner: Learner,
    data: Any,
    potentials: Mapping[str, Potential],
    *,
    tracked: bool | Sequence[int] = False,
    evaluate: Callable[[State], Mapping[str, float]] | None = None,
    callback: Callback | None = None,
    checkpoint: Checkpoint | None = None,
    bar: Bar | None = None,
    statistics: Callable[[], Mapping[str, Any]] = dict,
) -> tuple[State, bool]:
    """Step until the learner is done or the callback stops; the last state, and whether it converged.

    tracked: whether to evaluate after every iteration, or the iterations after which to. A checkpoint holds the state
    after a whole iteration, and is written at the end, however the fit ends. statistics: more to note in the history.
    """
    with nullcontext() if checkpoint is None else checkpoint:
        saved = None if checkpoint is None else checkpoint.load()
        if checkpoint is None or saved is None:
            state = learner.init(data, potentials)
        else:
            state = _resumed(learner, data, potentials, saved, checkpoint.path)
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


def _resumed(
    learner: Learner, data: Any, potentials: Mapping[str, Potential], saved: Mapping[str, Any], path: Path
) -> State:
    """The state that a checkpoint holds."""
    try:
        with naming(path):
            state = learner.init(data, _loaded(saved["potentials"], potentials))
            history = tuple(saved["history"])
            loaded = replace(state, arrays=saved["arrays"], parts=saved["parts"], history=history)
            state = learner.resume(data, state, loaded) if history else state
            learner.done(state)  # which reads what the history must have
            return state
    except PotentiaError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise PotentiaError(f"{path}: the checkpoint is damaged ({error}); delete it to start again.") from None


def _loaded(saved: Mapping[str, Any], potentials: Mapping[str, Potential]) -> dict[str, Potential]:
    """The potentials of a checkpoint, checked to have the classes of the given ones."""
    from ..potentials.base import Potential

    if set(saved) != set(potentials):
        raise PotentiaError(f"The checkpoint has potentials for {sorted(saved)}.")
    functions = {}
    for kind, potential in potentials.items():
        meta, arrays = saved[kind]
        loaded = Potential.from_state(meta, arrays)
        if type(loaded) is not type(potential):
            expected, other = type(potential).__name__, type(loaded).__name__
            raise PotentiaError(f"The checkpoint's potential of kind {kind!r} is a {other}, not a {expected}.")
        if not loaded.is_fitted:
            raise PotentiaError(
                f"The checkpoint's potential of kind {kind!r} has no parameters; delete it to start again."
            )
        potential.reset().__dict__.update(loaded._fitted())
        functions[kind] = potential
    return functions


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
    from ..features.example import Held

    options = {name: value for name, value in vars(learner).items() if name not in _FREE_OPTIONS}
    sources = examples.sources if isinstance(examples, Parts) else [Held(examples)]
    everywhere = isinstance(examples, Parts) and not all(source.in_memory for source in sources)
    marks = map_anywhere(Source.digest, sources) if everywhere else [source.digest() for source in sources]
    return digest_of([stable_repr((type(learner).__name__, options, dict(potentials))), *marks])
