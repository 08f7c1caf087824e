"""L-BFGS, OWL-QN and Adam whose whole state is a few arrays, so that a stopped run resumes bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from .schema import Array, check_state, like
from .types import Floats, PotentiaError

#: f(point) -> value and gradient.
Objective = Callable[[Floats], tuple[float, Floats]]

#: Constants of the strong Wolfe conditions: sufficient decrease, and how much of the slope may be left.
_DECREASE, _CURVATURE = 1e-4, 0.9
#: Evaluations that one line search may take.
_EVALUATIONS = 20
#: Largest factor by which a line search lengthens a step that was too short.
_STRETCH = 4.0


class _Trial(NamedTuple):
    """A step length on the search line with the value and slope there."""

    length: float
    value: float
    slope: float


class LBFGS:
    """Limited-memory BFGS [Nocedal and Wright 2006, Alg. 7.5] with a line search for the strong Wolfe conditions.

    A value that is not finite counts as a step that went too far. After `step` returned True the objective was last
    evaluated at `point`. Memory: 2 `memory` vectors; a step costs about one evaluation and 4 `memory` products.

    Attributes:
        point, value, gradient: where it stands.
        missed: after a step that failed, the decrease that the slope promised. Beyond rounding, values or gradients
            are inaccurate or not finite.
    """

    def __init__(self, objective: Objective, point: Floats, memory: int = 20) -> None:
        self.objective, self.memory = objective, memory
        self.point: Floats = np.array(point, dtype=np.float64)
        self.value, self.gradient = np.nan, np.zeros_like(self.point)
        self.pairs: list[tuple[Floats, Floats]] = []
        #: Length of the last step, where a search along the gradient begins.
        self.reach = 1.0
        self.missed = 0.0

    @property
    def begun(self) -> bool:
        """Whether the objective was evaluated at `point`."""
        return bool(np.isfinite(self.value))

    def begin(self) -> None:
        """Evaluate the objective at `point`."""
        self.value, self.gradient = self._evaluate(self.point)
        if not self.begun:
            raise PotentiaError("The objective is not a finite number where the fit begins.")

    def step(self) -> bool:
        """Move to a lower value; False where that is not possible, because of rounding or as `missed` says."""
        self.missed = 0.0
        if not self.begun:
            self.begin()
        if self._search(self._direction(self.gradient)):
            return True
        # pairs may mislead where curvature changes: try the gradient itself before giving up
        several, self.pairs = bool(self.pairs), []
        return several and self._search(-self.gradient)

    def _direction(self, gradient: Floats) -> Floats:
        """-H gradient by the two-loop recursion."""
        d = -gradient
        shares = []
        for s, y in reversed(self.pairs):
            share = float(s @ d) / float(s @ y)
            shares.append(share)
            d -= share * y
        if self.pairs:
            s, y = self.pairs[-1]
            d *= float(s @ y) / float(y @ y)
        for (s, y), share in zip(self.pairs, reversed(shares), strict=True):
            d += (share - float(y @ d) / float(s @ y)) * s
        return d

    def _search(self, d: Floats) -> bool:
        """Find a length along d, and take the step."""
        slope = float(self.gradient @ d)
        size = float(np.sqrt(d @ d))
        if not slope < 0.0 or not np.isfinite(size):
            return False
        start = _Trial(0.0, self.value, slope)
        length = 1.0 if self.pairs else self.reach / size
        low, high = start, None
        for _ in range(_EVALUATIONS):
            point = self.point + length * d
            value, gradient = self._evaluate(point)
            trial = _Trial(length, value, float(gradient @ d))
            too_far = not value <= self.value + _DECREASE * length * slope or value > low.value
            self._note_missed(-length * slope, value)
            if not too_far and abs(trial.slope) <= -_CURVATURE * slope:
                self._accept(point, value, gradient)
                return True
            low, high = _bracket(low, high, trial, too_far)
            if high is not None and abs(high.length - low.length) <= 1e-14 * max(low.length, high.length):
                break
            length = _next_length(low, high)
        return self._settle_for(low, d)

    def _note_missed(self, promised: float, value: float) -> None:
        """Note how far the value would fall along the line, by the parabola through its slope and a higher value."""
        if not value < self.value:
            rise = value - self.value if np.isfinite(value) else 0.0
            self.missed = max(self.missed, promised * (promised / (4.0 * (rise + promised))))

    def _settle_for(self, low: _Trial, d: Floats) -> bool:
        """Take the lowest point met that meets the decrease condition, if any."""
        if low.length == 0.0 or not low.value < self.value:
            return False
        point = self.point + low.length * d
        self._accept(point, *self._evaluate(point))
        return True

    def _accept(self, point: Floats, value: float, gradient: Floats) -> None:
        s, y = point - self.point, gradient - self.gradient
        self.reach = float(np.sqrt(s @ s))
        if float(s @ y) > 1e-14 * float(y @ y):
            self.pairs = [*self.pairs, (s, y)][-self.memory :]
        self.point, self.value, self.gradient, self.missed = point, value, gradient, 0.0

    def _evaluate(self, point: Floats) -> tuple[float, Floats]:
        value, gradient = self.objective(point)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return np.inf, np.zeros_like(point)
        return float(value), np.asarray(gradient, dtype=np.float64)

    def state(self) -> dict[str, Floats]:
        """Everything a resumed run needs, as arrays."""
        shape = len(self.pairs), len(self.point)
        return {
            "point": self.point,
            "value": np.array([self.value, self.reach]),
            "gradient": self.gradient,
            "steps": np.array([s for s, _ in self.pairs]).reshape(shape),
            "changes": np.array([y for _, y in self.pairs]).reshape(shape),
        }

    def restore(self, arrays: Mapping[str, Floats]) -> None:
        """Take back what `state` gave."""
        n = len(self.point)
        found = check_state(
            {
                "point": Array("f8", (n,)),
                "value": Array("f8", (2,)),
                "gradient": Array("f8", (n,)),
                "steps": Array("f8", ("pairs", n)),
                "changes": Array("f8", ("pairs", n)),
            },
            arrays,
        )
        self.point, self.gradient = found["point"], found["gradient"]
        self.value, self.reach = map(float, found["value"])
        self.pairs = list(zip(found["steps"], found["changes"], strict=True))[-self.memory :]


class OWLQN(LBFGS):
    """Orthant-wise limited-memory BFGS [Andrew and Gao 2007]: a smooth objective plus the sum of l1 |point|.

    Steps stay in one orthant, so that entries become exactly zero. `value` includes the penalty, `gradient` is that of
    the smooth part.
    """

    def __init__(self, objective: Objective, point: Floats, l1: float | Floats, memory: int = 20) -> None:
        super().__init__(objective, point, memory)
        self.l1 = l1

    def step(self) -> bool:
        """Move to a lower value; False where that is not possible."""
        self.missed = 0.0
        if not self.begun:
            self.begin()
        slope = self._steepest()
        if not slope.any():
            return False
        if self._descend(self._direction(slope), slope):
            return True
        several, self.pairs = bool(self.pairs), []
        return several and self._descend(-slope, slope)

    def _steepest(self) -> Floats:
        """The subgradient of least size."""
        up, down = self.gradient + self.l1, self.gradient - self.l1
        at_zero = np.where(up < 0.0, up, np.where(down > 0.0, down, 0.0))
        return np.where(self.point > 0.0, up, np.where(self.point < 0.0, down, at_zero))

    def _descend(self, d: Floats, slope: Floats) -> bool:
        """Shorten a step along d, within the orthant that the point and the slope point to, until the value falls."""
        d = np.where(d * slope < 0.0, d, 0.0)
        size = float(np.sqrt(d @ d))
        if not 0.0 < size < np.inf:
            return False
        orthant = np.where(self.point != 0.0, np.sign(self.point), -np.sign(slope))
        length = 1.0 if self.pairs else self.reach / size
        for _ in range(_EVALUATIONS):
            point = self.point + length * d
            point[point * orthant <= 0.0] = 0.0
            value, gradient = self._evaluate(point)
            promised = -float(slope @ (point - self.point))
            if promised > 0.0:
                self._note_missed(promised, value)
            if value <= self.value - _DECREASE * promised:
                if not value < self.value:
                    return False
                self._accept(point, value, gradient)
                return True
            length *= 0.5
        return False

    def _evaluate(self, point: Floats) -> tuple[float, Floats]:
        value, gradient = super()._evaluate(point)
        return value + float(np.sum(self.l1 * np.abs(point))), gradient


def _bracket(low: _Trial, high: _Trial | None, trial: _Trial, too_far: bool) -> tuple[_Trial, _Trial | None]:
    """The ends of the interval that holds a good length [Nocedal and Wright 2006, Alg. 3.5 and 3.6]."""
    if too_far:
        return low, trial
    if high is None:
        return (trial, None) if trial.slope < 0.0 else (trial, low)
    return (trial, low) if trial.slope * (high.length - low.length) >= 0.0 else (trial, high)


def _next_length(low: _Trial, high: _Trial | None) -> float:
    """Where to look next: further out, or inside the interval at the minimum of a cubic, away from its ends."""
    if high is None:
        return _STRETCH * low.length
    width = high.length - low.length
    if not np.isfinite(high.value):
        return low.length + 0.1 * width
    share = _cubic_minimum(low, high, width)
    return low.length + min(max(share, 0.1), 0.9) * width


def _cubic_minimum(low: _Trial, high: _Trial, width: float) -> float:
    """Where between the ends (0 to 1) the cubic through both values and slopes is least."""
    a, b = low.slope * width, high.slope * width
    t = a + b - 3.0 * (high.value - low.value)
    root = t * t - a * b
    if not root >= 0.0:
        return 0.5
    root = np.sqrt(root)
    below = b - a + 2.0 * root
    return float(1.0 - (b + root - t) / below) if below != 0.0 else 0.5


class Adam:
    """Adam [Kingma and Ba 2015] with steps of size `rate`.

    Attributes:
        point: where it stands.
    """

    _FIRST, _SECOND, _SMALL = 0.9, 0.999, 1e-8

    def __init__(self, point: Floats) -> None:
        self.point: Floats = np.array(point, dtype=np.float64)
        self.mean, self.square = np.zeros_like(self.point), np.zeros_like(self.point)
        self.steps = 0

    def step(self, gradient: Floats, rate: float | Floats) -> None:
        """Move against the running mean of the gradients; `rate` may differ between components."""
        self.steps += 1
        self.mean = self._FIRST * self.mean + (1 - self._FIRST) * gradient
        self.square = self._SECOND * self.square + (1 - self._SECOND) * gradient * gradient
        mean = self.mean / (1 - self._FIRST**self.steps)
        self.point = self.point - rate * (
            mean / (np.sqrt(self.square / (1 - self._SECOND**self.steps)) + self._SMALL)
        )

    def state(self) -> dict[str, Floats]:
        """Everything a resumed run needs, as arrays."""
        return {
            "point": self.point,
            "mean": self.mean,
            "square": self.square,
            "steps": np.array([float(self.steps)]),
        }

    def restore(self, arrays: Mapping[str, Floats]) -> None:
        """Take back what `state` gave."""
        bounds = {"square": Array("f8", self.point.shape, low=0.0), "steps": Array("f8", (1,), low=1.0)}
        found = check_state({**like(self.state()), **bounds}, arrays)
        self.point, self.mean, self.square = found["point"], found["mean"], found["square"]
        self.steps = int(found["steps"][0])
