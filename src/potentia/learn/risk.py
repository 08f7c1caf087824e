"""Empirical risk of what inference predicts, minimised over all parameters [MBL-tpami]."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._memory import borrow_zeros
from .._options import check_count, check_number
from .._registry import Registered
from .._threads import map_items, thread_count
from .._types import Floats, PotentiaError, real_number
from ..adjoint.gradient import Gradient, Memory, evaluate, gradient_of
from ..adjoint.truncated import Truncated
from ..data.example import Example
from ..graph.scores import Scores
from ..inference.base import Inference
from ..inference.message_passing import TRW
from ..losses.base import Loss
from ..losses.names import loss_of
from ..potentials.base import Potential
from ..potentials.differentiable import Differentiable
from ..potentials.zero import Zero
from .descent import descend, warn_unsettled
from .functions import one_table
from .iterated import Callback, class_weighted
from .reprs import call_repr
from .resume import take_up
from .stochastic import adam
from .training_set import Shard, TrainingSet, gather, observed, table_shapes

#: Numbers in all scores of a kind up to which they are made at once.
_MOST_WHOLE = 1 << 25
STARTS = ("independent", "surrogate_likelihood", "zero")


@dataclass
class MarginalRisk(Registered):
    """Trains differentiable potentials (Linear, Constant, MLP) so that inference predicts well:

        min over w of  sum of losses / (weight of labelled variables) + ridge / 2 |w|^2

    The loss looks at what `inference` makes of the scores after its iterations, so that training makes up for what
    inference leaves out. Losses with hidden labels (-1) work on all variables.

    Attributes:
        loss: a name (see `pt.losses`) or a loss object.
        inference: what the loss is about, and what predictions use unless the CRF says otherwise.
        gradient: "truncated", "backpropagation", "perturbation", "implicit" or an object of `pt.adjoint`; for losses of
            marginals. With all but the first, inference starts from the messages it had for the parameters before.
        ridge: relative to the risk per variable; takes the place of the potentials' own ridge. None keeps those,
            added to the summed loss.
        iterations: limit of L-BFGS steps, or passes with `batch`.
        tol: stop when the objective falls by less than this share in ten steps (0: run all).
        start: "independent" fits the kinds of single variables by logistic regression and leaves the others at zero;
            "surrogate_likelihood" then minimises that first (helps against the local minima of the smoothed error);
            "zero"; None takes the second for smoothed errors and the first otherwise.
        incremental: train on so many examples first, then on twice as many in half the steps, and so on
            [MBL-tpami sec. 8.4]; None for all at once.
        batch: examples per step of stochastic descent (Adam); None for L-BFGS on all.
        rate: step size of stochastic descent, relative to parameters of size one.
        clamped: inference given the labels, for losses that need it; None for the same.
        class_weight: weight of each state of every variable, or None; multiplies the variables' own weights.
        track_error: predict the training examples after every iteration (and the validation examples, if given).
        seed: of the order of batches.
        threads: None for all cores (or POTENTIA_THREADS); examples are shared out over them.
    """

    loss: str | Loss = "univariate_logistic"
    inference: Inference | None = None
    gradient: str | Gradient = "truncated"
    ridge: float | None = 1e-3
    iterations: int = 1000
    tol: float = 1e-5
    start: str | None = None
    incremental: int | None = None
    batch: int | None = None
    rate: float = 0.05
    clamped: Inference | None = None
    class_weight: Sequence[float] | None = None
    track_error: bool = True
    seed: int = 0
    threads: int | None = None

    __repr__ = call_repr

    def scales(self, kinds: Sequence[str]) -> dict[str, float]:
        """theta = f at prediction."""
        return dict.fromkeys(kinds, 1.0)

    def predictor(self, kinds: Sequence[str]) -> Inference:
        """The inference that predictions of the trained model use."""
        return self.inference or TRW(iterations=20)

    def fit(
        self,
        potentials: Mapping[str, Potential],
        examples: Sequence[Example],
        *,
        evaluate: Callable[[], dict[str, float]] | None = None,
        callback: Callback | None = None,
        checkpoint: Any = None,
    ) -> list[dict[str, Any]]:
        """Train the potentials in place; returns the history, one dict per iteration.

        evaluate: errors to add to each iteration. checkpoint: has `load() -> state or None` and `save(state)`.
        """
        self._check(potentials)
        weighted = list(class_weighted(examples, self.class_weight))
        saved = None if checkpoint is None else checkpoint.load()
        history = [] if saved is None else take_up(potentials, saved)
        begun = time.perf_counter() - (history[-1]["seconds"] if history else 0.0)
        settled: bool | None = False
        for number, steps in self._stages(_fewest(weighted, potentials), len(weighted), history):
            risk = Risk(potentials, weighted[:number], self)
            if not history:
                self._begin(potentials, risk, weighted[:number])

            def record(risk: Risk = risk, number: int = number) -> bool:
                row: dict[str, Any] = {
                    "iteration": len(history) + 1,
                    "objective": risk.value,
                    "examples": number,
                }
                row["seconds"] = time.perf_counter() - begun
                if self.track_error and evaluate is not None:
                    row |= evaluate()
                history.append(row)
                if checkpoint is not None:
                    checkpoint.save(_state(potentials, history))
                return bool(callback(history)) if callback is not None else False

            settled = self._minimise(potentials, risk, weighted[:number], steps, record)
            if settled is None:
                break
        warn_unsettled(settled, self.tol if self.batch is None else 0.0, len(history))
        return history

    def _stages(self, fewest: int, n: int, history: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, int]]:
        """Numbers of examples, from `fewest` to n, and the steps still to be made on them."""
        number = n if self.incremental is None else min(max(self.incremental, fewest), n)
        steps = self.iterations
        while True:
            done = sum(row["examples"] == number for row in history)
            later = any(row["examples"] > number for row in history)
            if not later and (done < steps or not history):
                yield number, steps - done
            if number == n:
                return
            number, steps = min(2 * number, n), max(steps // 2, 1)

    def _begin(self, potentials: Mapping[str, Potential], risk: Risk, examples: Sequence[Example]) -> None:
        """The start of a fit, for potentials that were not fitted before."""
        fresh = risk.begin()
        start = self.start or (
            "surrogate_likelihood" if "smoothed_error" in loss_of(self.loss).name else "independent"
        )
        if start == "zero" or not fresh:
            return
        risk.fit_independently(fresh)
        if start == "surrogate_likelihood":
            first = replace(
                self, loss="surrogate_likelihood", start="independent", incremental=None, tol=1e-4
            )
            other = Risk(potentials, examples, first)
            descend(other.functions, other, self.iterations, first.tol, lambda: False)

    def _minimise(
        self,
        potentials: Mapping[str, Potential],
        risk: Risk,
        examples: Sequence[Example],
        steps: int,
        record: Callable[[], bool],
    ) -> bool | None:
        if self.batch is None:
            return descend(risk.functions, risk, steps, self.tol, record)
        cuts = range(0, len(examples), self.batch)
        parts = [Risk(potentials, examples[a : a + self.batch], self) for a in cuts]
        labelled = [part for part in parts if part.total > 0]
        return adam(risk, labelled, steps, self.rate, self.seed, record)

    def _check(self, potentials: Mapping[str, Potential]) -> None:
        loss_of(self.loss)
        gradient_of(self.gradient)
        for kind, potential in potentials.items():
            if not isinstance(potential, Differentiable | Zero):
                raise PotentiaError(
                    f"MarginalRisk follows gradients, which the {type(potential).__name__} of {kind!r} does not have"
                )
        for name in ("inference", "clamped"):
            given = getattr(self, name)
            if given is not None and not isinstance(given, Inference):
                raise PotentiaError(f"{name} must be an inference method, not a {type(given).__name__}")
        if self.start is not None and self.start not in STARTS:
            raise PotentiaError(f"start must be one of {', '.join(STARTS)}, not {self.start!r}")
        if self.ridge is not None:
            check_number("ridge", self.ridge)
        check_count("iterations", self.iterations)
        check_count("seed", self.seed)
        check_number("tol", self.tol)
        for name in ("incremental", "batch"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 1)
        if not 0 < real_number(self.rate, "rate") < np.inf:
            raise PotentiaError(f"rate must be positive and finite, not {self.rate!r}")


class Risk:
    """The objective on some examples: call it for its value and gradients at the potentials' current parameters.

    `total` is the weight of the labelled variables. A kind that the examples lack has its penalty only.
    """

    def __init__(
        self, potentials: Mapping[str, Potential], examples: Sequence[Example], options: MarginalRisk
    ) -> None:
        self.potentials = potentials
        self.data: TrainingSet = gather(examples, list(potentials), every_kind=False, drop_hidden=False)
        self.loss, self.gradient = loss_of(options.loss), gradient_of(options.gradient)
        self.threads = thread_count(options.threads)
        self.inference = options.predictor([])
        self.clamped = options.clamped
        if len(self.data.shards) > 1:
            # shards are what threads share out; work inside one must not wait for the pool it runs in
            self.inference = self.inference.on_one_thread()
            self.clamped = None if self.clamped is None else self.clamped.on_one_thread()
        self.weights = _shard_weights(examples, self.data)
        # what is run to convergence may start where it ended for the parameters before
        warm = not isinstance(self.gradient, Truncated) and getattr(self.inference, "tol", 0.0) > 0
        self.memories = [Memory() if warm else None for _ in self.data.shards]
        labelled = [s.labels >= 0 for s in self.data.shards]
        self.total = float(
            sum(
                seen.sum() if own is None else own[seen].sum()
                for seen, own in zip(labelled, self.weights, strict=True)
            )
        )
        self.ridge = options.ridge
        self.value = np.inf

    @property
    def functions(self) -> list[Differentiable]:
        """The potentials that have parameters."""
        return [p for p in self.potentials.values() if isinstance(p, Differentiable)]

    @contextmanager
    def _penalised(self) -> Iterator[None]:
        """The potentials' penalties are those of the learner's ridge, relative to the risk per variable, inside."""
        own: list[tuple[Any, float]] = [(p, p.ridge) for p in self.potentials.values() if hasattr(p, "ridge")]
        if self.ridge is not None:
            for potential, _ in own:
                potential.ridge = self.ridge * self.total
        try:
            yield
        finally:
            for potential, ridge in own:
                potential.ridge = ridge

    def begin(self) -> list[str]:
        """Make zero functions of potentials that were never fitted; their kinds."""
        fresh = [kind for kind, p in self.potentials.items() if not p.is_fitted]
        with self._penalised():
            for kind in fresh:
                self.potentials[kind].start(self.data.matrix(kind), self.data.n_outputs(kind))
        return fresh

    def fit_independently(self, kinds: Sequence[str]) -> None:
        """Plain logistic regressions of the kinds of single variables."""
        for kind in kinds:
            if len(self.data.shapes[kind]) == 1 and isinstance(self.potentials[kind], Differentiable):
                target, weight = self.data.targets[kind], self.data.weights[kind]
                seen = target >= 0
                own = None if weight is None else weight[seen]
                x = self.data.matrix(kind)
                with self._penalised():
                    self.potentials[kind].fit(
                        x if seen.all() else x[seen],
                        target[seen],
                        None,
                        own,
                        n_outputs=self.data.n_outputs(kind),
                    )

    def __call__(self) -> tuple[float, list[Floats]]:
        """Risk per variable plus penalties, and its gradient for each of `functions`."""
        with self._penalised():
            return self._evaluate()

    def _evaluate(self) -> tuple[float, list[Floats]]:
        scores = {
            kind: self.potentials[kind].scores(self.data.matrix(kind), trusted=True) for kind in self._whole()
        }
        d_scores = {kind: borrow_zeros(table.shape) for kind, table in scores.items()}
        numbers = list(range(len(self.data.shards)))
        parts = map_items(lambda number: self._of_shard(number, scores, d_scores), numbers, self.threads)
        value, slopes = sum(part[0] for part in parts), []
        for kind, potential in self.potentials.items():
            if isinstance(potential, Differentiable):
                penalty, slope = potential.penalty_and_gradient()
                value += penalty
                slope = slope + sum(part[1][kind] for part in parts if kind in part[1])
                if kind in d_scores:
                    slope += potential.vjp(self.data.matrix(kind), d_scores[kind], trusted=True)
                slopes.append(slope / self.total)
        self.value = value / self.total
        return self.value, slopes

    def _whole(self) -> list[str]:
        """Kinds whose scores of all rows are made at once; tables too large for that are made shard by shard."""
        return [
            kind
            for kind in self.data.shapes
            if not self._shared(kind) and self.data.n_rows(kind) * self.data.n_outputs(kind) <= _MOST_WHOLE
        ]

    def _of_shard(
        self, number: int, scores: Mapping[str, Floats], d_scores: Mapping[str, Floats]
    ) -> tuple[float, dict[str, Floats]]:
        """The loss of a shard, the gradient of kinds that are made shard by shard; fills its rows of d_scores."""
        shard = self.data.shards[number]
        kinds = [kind for kind, scope in shard.graph.scopes.items() if len(scope)]
        rows = {kind: self._rows(kind, shard) for kind in kinds if kind not in scores}
        theta = {}
        for kind in kinds:
            own = kind not in scores
            table = (
                self.potentials[kind].scores(rows[kind], trusted=True)
                if own
                else scores[kind][shard.rows[kind]]
            )
            shape = self.data.shapes[kind]
            theta[kind] = table.reshape(shape) if self._shared(kind) else table.reshape(len(table), *shape)
        value, d_theta = evaluate(
            self.loss, self.inference, self.gradient, Scores(shard.graph, theta), shard.labels,
            self.weights[number], self.clamped, self.memories[number],
        )  # fmt: skip
        for kind in d_scores:
            if kind in d_theta:
                part = d_scores[kind][shard.rows[kind]]
                part[...] = d_theta[kind].reshape(part.shape)
        slopes = {
            kind: potential.vjp(x, d_theta[kind].reshape(x.shape[0], -1), trusted=True)
            for kind, x in rows.items()
            if isinstance(potential := self.potentials[kind], Differentiable)
        }
        return value, slopes

    def _shared(self, kind: str) -> bool:
        """Whether all regions of the kind have one table, which need not be written out."""
        return one_table(self.data, kind, self.potentials[kind])

    def _rows(self, kind: str, shard: Shard) -> Any:
        """The features of a shard's regions; one row where none matter."""
        if not self._shared(kind):
            return self.data.matrix(kind)[shard.rows[kind]]
        return np.zeros((1, self.data.matrix(kind).shape[1]))


def _fewest(examples: Sequence[Example], kinds: Iterable[str]) -> int:
    """How many examples it takes until every kind and a labelled variable are among them."""
    table_shapes(kinds, [example.graph for example in examples])
    useful = [bool(observed(example).any()) for example in examples]
    if not any(useful):
        raise PotentiaError("no variable of the examples has a label and a positive weight")
    firsts = [next(i for i, e in enumerate(examples) if len(e.graph.scopes.get(kind, ()))) for kind in kinds]
    return 1 + max(useful.index(True), *firsts)


def _shard_weights(examples: Sequence[Example], data: TrainingSet) -> list[Floats | None]:
    """Weights of every shard's variables, or None where all are 1."""
    if all(example.weights is None for example in examples):
        return [None] * len(data.shards)
    own = [np.ones(e.graph.n_variables) if e.weights is None else e.weights for e in examples]
    ends = np.cumsum([shard.graph.n_variables for shard in data.shards])[:-1]
    return list(np.split(np.concatenate(own), ends))


def _state(potentials: Mapping[str, Potential], history: list[dict[str, Any]]) -> dict[str, Any]:
    return {"history": history, "potentials": {k: p.state() for k, p in potentials.items()}, "arrays": {}}
