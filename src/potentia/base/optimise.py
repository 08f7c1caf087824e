"""L-BFGS, OWL-QN and Adam as functions from state to state, so that a stopped run resumes bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .schema import Array, Schema, check_state
from .types import Bools, Floats, PotentiaError

#: f(point) -> value and gradient; a third item, if any, is what else belongs to the point.
Objective = Callable[[Floats], tuple[Any, ...]]

#: Constants of the strong Wolfe conditions: sufficient decrease, and how much of the slope may be left.
_DECREASE, _CURVATURE = 1e-4, 0.9
#: Evaluations that one line search may take.
_EVALUATIONS = 20
#: Steps along which the gradient changes by less are not remembered: the objective looks flat or concave there.
_CONVEX = 1e-14
#: Largest factor by which a line search lengthens a step that was too short.
_STRETCH = 4.0
#: Vectors of at least this many parameters remember fewer steps.
_MANY_PARAMETERS = 500_000
#: Parameters beyond this are on their way to infinity: the objective has no minimum.
DIVERGED = 1e50
#: Factors of Adam's running means of gradients and of their squares, and what keeps it from dividing by zero.
_FIRST, _SECOND, _SMALL = 0.9, 0.999, 1e-8


class Search(NamedTuple):
    """Where L-BFGS or OWL-QN stands; `Search(point)` is where one begins.

    Attributes:
        value, gradient: at `point`; NaN and None before the first step. OWL-QN's value includes its penalty, its
            gradient does not.
        aux: what the objective returned with them.
        pairs: the latest steps and the changes of the gradient along them.
        reach: length of the last step, where a search along the gradient begins.
        missed: after a step that failed, the decrease that the slope promised. Beyond rounding, values or gradients
            are inaccurate or not finite.
        stopped: the last step gained nothing: `point` is a minimum, or as `missed` and `diverged` say.
        diverged: the last step of L-BFGS led beyond `DIVERGED`.
    """

    point: Floats
    value: float = np.nan
    gradient: Any = None
    aux: Any = None
    pairs: tuple[tuple[Floats, Floats], ...] = ()
    reach: float = 1.0
    missed: float = 0.0
    stopped: bool = False
    diverged: bool = False

    def arrays(self) -> dict[str, Floats]:
        """All but `aux`, as named arrays without copies."""
        found = {"point": self.point}
        if self.gradient is not None:
            found["gradient"] = self.gradient
            found["search"] = np.array([self.value, self.reach, self.missed, float(self.stopped)])
        for number, (step, change) in enumerate(self.pairs):
            found |= {f"step{number}": step, f"change{number}": change}
        return found

    @classmethod
    def of(cls, arrays: Mapping[str, Floats], aux: Any = None) -> Search:
        """The search whose `arrays` these are."""
        if "gradient" not in arrays:
            return cls(arrays["point"])
        value, reach, missed, stopped = arrays["search"].tolist()
        n = sum(name.startswith("step") for name in arrays)
        pairs = tuple((arrays[f"step{k}"], arrays[f"change{k}"]) for k in range(n))
        return cls(arrays["point"], value, arrays["gradient"], aux, pairs, reach, missed, bool(stopped))

    @staticmethod
    def check(arrays: Mapping[str, Any], n: int) -> dict[str, Any]:
        """Arrays that a file holds of a search over n parameters, refused where they cannot be one."""
        vector = Array("f8", (n,))
        names = ["point"]
        for number in range(sum(name.startswith("step") for name in arrays)):
            names += [f"step{number}", f"change{number}"]
        begun: Schema = {"gradient": vector, "search": Array("f8", (4,))} if len(arrays) > 1 else {}
        return check_state({**dict.fromkeys(names, vector), **begun}, arrays)


class _Trial(NamedTuple):
    """A step length on the search line with the value and slope there."""

    length: float
    value: float
    slope: float


def begin(search: Search, objective: Objective) -> Search:
    """The search with the objective evaluated at its point, unless it was."""
    if search.gradient is not None:
        return search
    value, gradient, aux = _finite(objective(search.point))
    if not np.isfinite(value):
        raise PotentiaError("The objective is not a finite number where the fit begins.")
    return search._replace(value=value, gradient=gradient, aux=aux)


def lbfgs(search: Search, objective: Objective, memory: int | None = None, trials: int = _EVALUATIONS) -> Search:
    """A step of limited-memory BFGS [Nocedal and Wright 2006, Alg. 7.5] to a lower value, if there is one.

    The line search meets the strong Wolfe conditions; a value that is not finite counts as a step that went too far.
    `memory`: pairs to remember, of two vectors each; None is 20, or 6 where the pairs of many parameters
    are most of the memory. `trials`: evaluations that a line search may take. A step costs about one evaluation and
    4 `memory` products.
    """
    if memory is None:
        memory = 20 if search.point.size < _MANY_PARAMETERS else 6
    search = begin(search, objective)._replace(missed=0.0, stopped=False)
    search = _line_search(search, _direction(search.pairs, search.gradient), objective, memory, trials)
    if search.stopped and search.pairs and not search.diverged:
        # pairs may mislead where curvature changes: try the gradient itself before giving up
        search = _line_search(search._replace(pairs=(), stopped=False), -search.gradient, objective, memory, trials)
    return search


def owlqn(
    search: Search, objective: Objective, l1: float | Floats, memory: int = 20, trials: int = _EVALUATIONS
) -> Search:
    """A step of orthant-wise L-BFGS [Andrew and Gao 2007] on a smooth objective plus the sum of l1 |point|.

    Steps stay in one orthant, so that entries become exactly zero. The direction is that of the entries that move:
    those that are zero and stay so would bend it, although the step leaves them out.
    """

    def penalised(point: Floats) -> tuple[Any, ...]:
        """The value with the l1 penalty, and the gradient without."""
        penalty = float(np.sum(l1 * np.abs(point)))
        value, *others = objective(point)
        return value + penalty, *others

    search = begin(search, penalised)._replace(missed=0.0, stopped=False)
    slope = least_subgradient(search.point, search.gradient, l1)
    if not slope.any():
        return search._replace(stopped=True)
    search = _orthant_search(search, _direction(search.pairs, slope, slope != 0.0), slope, penalised, memory, trials)
    if search.stopped and search.pairs:
        search = _orthant_search(search._replace(pairs=(), stopped=False), -slope, slope, penalised, memory, trials)
    return search


def _finite(evaluated: tuple[Any, ...]) -> tuple[float, Floats, Any]:
    """What an objective returned, as value, gradient and aux; an infinite value where any of it is not finite."""
    value, gradient, *aux = evaluated
    if not (np.isfinite(value) and np.isfinite(gradient).all()):
        return np.inf, np.zeros_like(gradient, dtype=np.float64), None
    return float(value), np.asarray(gradient, dtype=np.float64), aux[0] if aux else None


def _direction(pairs: Sequence[tuple[Floats, Floats]], gradient: Floats, moving: Bools | None = None) -> Floats:
    """-H gradient by the two-loop recursion, of the entries that are `moving`; zero for others."""
    chosen: Any = slice(None) if moving is None or moving.all() else np.flatnonzero(moving)
    d, used, size = -gradient[chosen], list[tuple[tuple[Floats, Floats], float, float]](), 1.0
    for pair in reversed(pairs):
        s, y = (part[chosen] for part in pair)  # copies of one pair at a time, if any
        curvature = float(s @ y)
        if moving is not None and not curvature > _CONVEX * float(y @ y):
            continue
        if not used:
            size = curvature / float(y @ y)
        share = float(s @ d) / curvature
        used.append((pair, share, curvature))
        d -= share * y
    d *= size
    for pair, share, curvature in reversed(used):
        s, y = (part[chosen] for part in pair)
        d += (share - float(y @ d) / curvature) * s
    whole = np.zeros_like(gradient)
    whole[chosen] = d
    return whole


def _line_search(search: Search, d: Floats, objective: Objective, memory: int, trials: int) -> Search:
    """Find a length along d, and take the step."""
    slope = float(search.gradient @ d)
    size = float(np.sqrt(d @ d))
    if not slope < 0.0 or not np.isfinite(size):
        return search._replace(stopped=True)
    length = 1.0 if search.pairs else search.reach / size
    low, high = _Trial(0.0, search.value, slope), None
    for _ in range(trials):
        point = search.point + length * d
        if not max(point.max(initial=0.0), -point.min(initial=0.0)) <= DIVERGED:
            return search._replace(stopped=True, diverged=True)
        value, gradient, aux = _finite(objective(point))
        trial = _Trial(length, value, float(gradient @ d))
        too_far = not value <= search.value + _DECREASE * length * slope or value > low.value
        search = _note_missed(search, -length * slope, value)
        if not too_far and abs(trial.slope) <= -_CURVATURE * slope:
            return _accept(search, point, value, gradient, aux, memory)
        del point, gradient, aux  # which may be large
        low, high = _bracket(low, high, trial, too_far)
        if high is not None and abs(high.length - low.length) <= 1e-14 * max(low.length, high.length):
            break
        length = _next_length(low, high)
    if low.length == 0.0 or not low.value < search.value:
        return search._replace(stopped=True)
    # the lowest point met that meets the decrease condition
    point = search.point + low.length * d
    return _accept(search, point, *_finite(objective(point)), memory)


def _note_missed(search: Search, promised: float, value: float) -> Search:
    """Note how far the value would fall along the line, by the parabola through its slope and a higher value."""
    if value < search.value:
        return search
    rise = value - search.value if np.isfinite(value) else 0.0
    return search._replace(missed=max(search.missed, promised * (promised / (4.0 * (rise + promised)))))


def _accept(search: Search, point: Floats, value: float, gradient: Floats, aux: Any, memory: int) -> Search:
    """The search at a new point; the step is remembered if it shows positive curvature."""
    s, y = point - search.point, gradient - search.gradient
    pairs = search.pairs
    if float(s @ y) > _CONVEX * float(y @ y):
        pairs = (*pairs, (s, y))[-memory:]
    return Search(point, value, gradient, aux, pairs, float(np.sqrt(s @ s)))


def least_subgradient(point: Floats, gradient: Floats, l1: float | Floats) -> Floats:
    """The subgradient of least size of a function with this gradient plus the sum of l1 |point|."""
    up, down = gradient + l1, gradient - l1
    at_zero = np.where(up < 0.0, up, np.where(down > 0.0, down, 0.0))
    return np.where(point > 0.0, up, np.where(point < 0.0, down, at_zero))


def _orthant_search(search: Search, d: Floats, slope: Floats, objective: Objective, memory: int, trials: int) -> Search:
    """Shorten a step along d, within the orthant that the point and the slope point to, until the value falls."""
    d[~(d * slope < 0.0)] = 0.0
    size = float(np.sqrt(d @ d))
    if not 0.0 < size < np.inf:
        return search._replace(stopped=True)
    length = 1.0 if search.pairs else search.reach / size
    for _ in range(trials):
        point = search.point + length * d
        point[point * np.sign(np.where(search.point != 0.0, search.point, -slope)) <= 0.0] = 0.0
        promised = -float(slope @ (point - search.point))
        value, gradient, aux = _finite(objective(point))
        if promised > 0.0:
            search = _note_missed(search, promised, value)
        if value <= search.value - _DECREASE * promised:
            if not value < search.value:
                break
            return _accept(search, point, value, gradient, aux, memory)
        del point, gradient, aux
        length *= 0.5
    return search._replace(stopped=True)


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


def adam_start(point: Floats) -> dict[str, Floats]:
    """Adam's state at a point, before its first step."""
    point = np.array(point, dtype=np.float64)
    return {"point": point, "mean": np.zeros_like(point), "square": np.zeros_like(point), "steps": np.zeros(1)}


def adam(state: Mapping[str, Floats], gradient: Floats, rate: float | Floats) -> dict[str, Floats]:
    """A step of Adam [Kingma and Ba 2015] against the running mean of the gradients.

    `rate`, the size of a step, may differ between components.
    """
    steps = int(state["steps"][0]) + 1
    mean = _FIRST * state["mean"] + (1 - _FIRST) * gradient
    square = _SECOND * state["square"] + (1 - _SECOND) * gradient * gradient
    direction = mean / (1 - _FIRST**steps)
    point = state["point"] - rate * (direction / (np.sqrt(square / (1 - _SECOND**steps)) + _SMALL))
    return {"point": point, "mean": mean, "square": square, "steps": np.array([float(steps)])}


def check_adam(arrays: Mapping[str, Any], n: int) -> dict[str, Any]:
    """Arrays that a file holds of Adam over n parameters, refused where they cannot be its state."""
    vector = Array("f8", (n,))
    bounds = {"square": Array("f8", (n,), low=0.0), "steps": Array("f8", (1,), low=0.0)}
    return check_state({"point": vector, "mean": vector, **bounds}, arrays)
