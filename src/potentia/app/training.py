"""What training on files of any form shares: a part held out, learners by name, fits that can be taken up again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..base.saving import digest_of
from ..base.types import Floats, Ints, PotentiaError
from ..features.example import Example
from ..inference.base import Inference
from ..inference.mean_field import MeanField
from ..inference.messages import TRW, LoopyBP, Smoothed
from ..learn.checkpoint import Checkpoint
from ..learn.iterated import IteratedLogistic
from ..learn.max_margin import MaxMargin
from ..learn.risk import MarginalRisk
from ..models.crf import CRF
from ..potentials import MLP, Boosting, Constant, Linear, Potential, Potts

#: Functions of pixels and of pairs that learners can train.
CRF_FUNCTIONS = ("boosting", "linear", "mlp", "constant")
#: The learners of images, and the functions that each can train.
TRAINABLE = {
    "ilr": (*CRF_FUNCTIONS, "potts"),
    "marginal": ("linear", "mlp", "constant", "potts"),
    "margin": ("linear", "constant"),
}

#: Inference of the marginal-based learner, by its name on the command line.
INFERENCE: dict[str, Callable[[], Inference]] = {
    "trw": lambda: TRW(iterations=20),
    "bp": lambda: LoopyBP(iterations=20),
    "mean-field": lambda: MeanField(iterations=20),
}


class TimeOverError(PotentiaError):
    """Training has no time left."""


class KeptFits:
    """Fitted functions and their losses by name, in a checkpoint's file if there is one."""

    def __init__(self, checkpoint: Checkpoint | None = None, state: Mapping[str, Any] | None = None) -> None:
        self.done: dict[str, tuple[Potential, float]] = {}
        self._checkpoint = checkpoint
        if state is not None:
            for (name, saved), row in zip(state["potentials"].items(), state["history"], strict=True):
                self.done[name] = Potential.from_state(*saved), row["objective"]

    def fitted(self, name: str, fit: Callable[[], tuple[Potential, float]]) -> tuple[Potential, float]:
        """The function of a name and its loss, fitted if it is not there yet."""
        if name not in self.done:
            self.done[name] = fit()
            if self._checkpoint is not None:
                losses = enumerate(loss for _, loss in self.done.values())
                self._checkpoint.keep({
                    "history": [{"iteration": k, "objective": loss, "seconds": 0.0} for k, loss in losses],
                    "arrays": {},
                    "potentials": {key: function.state() for key, (function, _) in self.done.items()},
                })  # fmt: skip
        return self.done[name]


@dataclass
class Run:
    """How to train, whatever the data.

    Attributes:
        checkpoint: file of an interrupted fit's state; None for none.
        validation: share of the data held out to measure errors on, or None.
        seed: of everything that is random.
        progress: show a bar with the time left.
        say: what to do with a sentence for the user.
        keep: what to do with a first model, before a better one is trained.
        until: when to end, as `time.monotonic` tells it.
        quick: train a first model only.
    """

    checkpoint: Path | None = None
    validation: float | None = None
    seed: int = 0
    progress: bool = False
    say: Callable[[str], None] = lambda text: None
    keep: Callable[[Any], None] | None = None
    until: float = math.inf
    quick: bool = False

    def over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.until

    def check_time(self) -> None:
        """Raise if the time is over."""
        if self.over():
            raise TimeOverError("the time is over before a model is trained: give more --minutes.")

    def split(self, n: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Numbers of the items to train on and of those held out, ascending; items of a group stay together."""
        if self.validation is None:
            return np.arange(n), np.arange(0)
        if not 0.0 < self.validation < 1.0:
            raise PotentiaError(f"validation is the share to hold out, between 0 and 1, not {self.validation}.")
        groups, what = (np.arange(n), "items") if groups is None else (groups, "groups")
        count = int(groups.max()) + 1
        held = max(1, round(self.validation * count))
        if held >= count:
            raise PotentiaError(f"{count} {what} are too few to hold {held} of them out for validation.")
        out = np.isin(groups, np.random.default_rng(self.seed).permutation(count)[:held])
        return np.flatnonzero(~out), np.flatnonzero(out)

    def check_resumable(self, marks: Sequence[str]) -> None:
        """Refuse a checkpoint that is damaged or of other data or options, before work that comes first."""
        with self._opened(self.checkpoint, marks):
            pass

    @contextmanager
    def _opened(
        self, path: Path | None, marks: Sequence[str]
    ) -> Iterator[tuple[Checkpoint | None, Mapping[str, Any] | None]]:
        """A checkpoint with a mark of data and options, and its state if it has one; None without a path.

        What it holds in the end is written, and Ctrl-C says what was kept.
        """
        mark = digest_of([*marks, f"{self.validation} {self.seed}"])
        try:
            with nullcontext() if path is None else Checkpoint(path, mark) as checkpoint:
                try:
                    yield checkpoint, None if checkpoint is None else checkpoint.load()
                finally:
                    if checkpoint is not None:
                        checkpoint.flush()
        except KeyboardInterrupt:
            if path is None or not path.exists():
                raise KeyboardInterrupt("interrupted before anything was learned, so nothing is kept") from None
            raise KeyboardInterrupt(
                f"interrupted; {path} keeps the progress; run the same command again to resume"
            ) from None

    @property
    def pixel_checkpoint(self) -> Path | None:
        """The file of classifiers of pixels, beside the checkpoint of the fit that follows them."""
        return None if self.checkpoint is None else self.checkpoint.with_name(self.checkpoint.name + ".pixels")

    @contextmanager
    def kept_fits(self, digest: str) -> Iterator[KeptFits]:
        """Where the fits of a stage before the CRF are kept; those of a killed run with the same data are in it."""
        with self._opened(self.pixel_checkpoint, [digest]) as opened:
            fits = KeptFits(*opened)
            if fits.done:
                self.say(f"resuming after {len(fits.done)} fits of pixels, from {self.pixel_checkpoint}")
            yield fits

    @contextmanager
    def resumable(self, marks: Sequence[str]) -> Iterator[Checkpoint | None]:
        """The checkpoint for a fit inside; `marks` name data and options. One of other data or options is refused."""
        with self._opened(self.checkpoint, marks) as (checkpoint, state):
            if state is not None:
                done = f"after iteration {len(state['history'])}, " if state["history"] else ""
                self.say(f"resuming {done}from {self.checkpoint}")
            yield checkpoint


def make_potential(name: str, seed: int) -> Potential:
    """A potential by its name on the command line."""
    if name in ("boosting", "mlp"):
        return Boosting(seed=seed) if name == "boosting" else MLP(seed=seed)
    return {"linear": Linear, "constant": Constant, "potts": Potts}[name]()


def make_learner(
    name: str,
    potentials: Mapping[str, Potential],
    run: Run,
    iterations: int | None = None,
    class_weight: Floats | None = None,
    epsilon: float | None = None,
    inference: str | None = None,
) -> Any:
    """A learner for images by its name on the command line, with defaults for graphs that have loops.

    class_weight: of all but "margin". epsilon: smoothing of "ilr", by default 0.1, or 1 where all functions are smooth.
    inference: of "marginal", a name of `INFERENCE`.
    """
    weights = None if class_weight is None else class_weight.tolist()
    given = {"track_error": run.validation is not None, "iterations": iterations, "class_weight": weights}
    shared: dict[str, Any] = {option: value for option, value in given.items() if value is not None}
    if name == "margin":
        best = Smoothed(0.0, iterations=50)
        return MaxMargin(**{"inference": best, "iterations": 50, "seed": run.seed, **shared})
    if name == "marginal":
        method = INFERENCE[inference or "trw"]()
        return MarginalRisk(**{"inference": method, "iterations": 200, "seed": run.seed, **shared})
    smooth = all(potential.differentiable or potential.shared for potential in potentials.values())
    # linear functions move slowly when fitted in turn with others: "mixed" steps them together
    convex = any(potential.convex for potential in potentials.values())
    solver = "direct" if smooth else ("mixed" if convex else "alternating")
    limit, smoothing = (100, 1.0) if smooth else (10, 0.1)
    # pairs that are smooth in their parameters are learned as well by few sweeps, and predict with as few
    few = {"sweeps": 8} if smooth else {}
    return IteratedLogistic(**{"epsilon": epsilon or smoothing, "iterations": limit, "solver": solver, **few, **shared})


def fit(model: CRF, train: Sequence[Example], held: Sequence[Example], digest: str, run: Run) -> dict[str, Any]:
    """Fit, resuming from the run's checkpoint if there is one; return facts of the fit.

    `digest` names the data: a checkpoint of other data, or of other options than the limit of iterations, is refused.
    """
    scopes = [scope for example in train for scope in example.graph.scopes.values()]
    check_pairs(any(len(scope) and scope.shape[1] > 1 for scope in scopes))
    with run.resumable(fit_marks(model, digest)) as checkpoint:
        model.fit(train, validation=held if len(held) else None, progress=run.progress, checkpoint=checkpoint,
                  callback=lambda history: run.over())  # fmt: skip
        facts = {"iterations": len(model.history_), "objective": model.history_[-1]["objective"]}
        facts |= cluster_facts(model.history_)
        parts = {"training": train, "validation": held}
        return facts | {f"{name}_accuracy": model.score(part) for name, part in parts.items() if len(part)}


def cluster_facts(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the rounds of a fit on a cluster took; nothing for other fits."""
    rounds = sum(row.get("rounds", 0) for row in history)
    if not rounds:
        return {}
    return {
        "workers": max(row["workers"] for row in history),
        "rounds": rounds,
        "bytes_per_round": round(sum(row["round_bytes"] for row in history) / rounds),
        "seconds_per_round": sum(row["round_seconds"] for row in history) / rounds,
    }


def check_pairs(has_some: bool) -> None:
    """Refuse data without any pair."""
    if not has_some:
        raise PotentiaError("no two pixels, regions or words to train on are neighbours: each stands alone.")


def fit_marks(model: CRF, digest: str) -> list[str]:
    """What a checkpoint of a fit must agree with: the data, potentials, and options but the limit of iterations."""
    options = replace(model.learner, iterations=0)  # type: ignore[type-var]
    return [digest, repr(model.potentials), repr(options)]
