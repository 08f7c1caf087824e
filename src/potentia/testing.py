"""A test any potential must pass, the library's own and yours: `check_potential(YourClass)`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .base.types import Floats, PotentiaError
from .potentials.base import Differentiable, Potential
from .potentials.inputs import Inputs
from .potentials.problem import OnDemand

Factory = Callable[[], Potential]


@dataclass(frozen=True)
class _Rows:
    """A small problem: x (n, d) or inputs of n regions, y (n,) in 0..K-1, bias (n, K), weight (n,)."""

    x: Any
    y: Any
    bias: Floats
    weight: Floats

    @property
    def n_outputs(self) -> int:
        """Number of configurations."""
        return self.bias.shape[1]

    def on(self, potential: Potential) -> Potential:
        """The potential fitted to these rows."""
        return potential.fit(self.x, self.y, self.bias, self.weight)

    def objective(self, potential: Potential) -> float:
        """The penalised loss of a fitted potential on these rows."""
        return potential.loss(self.x, self.y, self.bias, self.weight) + potential.penalty()


def check_potential(
    factory: Factory,
    n_rows: int = 240,
    seed: int = 0,
    inputs: Sequence[Any] | None = None,
    n_outputs: int = 3,
    *,
    starts_at_zero: bool = True,
    weights_are_copies: bool = True,
    precision: float = 1e-9,
) -> None:
    """Raise AssertionError, with a sentence, at the first thing this potential does not keep to.

    `factory` makes an unfitted potential: a class, or a function without arguments. Small settings (few
    rounds, few passes) make the check quick. `n_outputs` is the number of configurations of a row.

    Not every potential keeps to these: it starts as the zero function; a row of weight 2 gives the same function as the
    row twice; scores of a row do not depend on other rows, up to a relative `precision`.

    One with `unit = "example"` is given matrices (n_regions, 2) of examples of different sizes as inputs, unless
    `inputs` are other arrays of about `n_rows` regions in all; an image (channels, height, width) has height * width.
    """
    rows = _rows(n_rows, seed, n_outputs)
    if factory().unit == "example":
        rows = _by_example(rows, inputs)
    if starts_at_zero:
        scores = factory().start(rows.x, rows.n_outputs).scores(rows.x)
        assert not scores.any(), "A potential must start as the zero function."
    for check in (
        _check_clone,
        _check_never_worse,
        _check_bias,
        _check_weights,
        _check_soft_targets,
        _check_seed,
        _check_saving,
        _check_refusals,
    ):
        check(factory, rows)
    if weights_are_copies:
        _check_copies(factory, rows)
    _check_pieces(factory, rows, precision)
    if isinstance(factory(), Differentiable):
        _check_derivatives(factory, rows, precision)


def _rows(n: int, seed: int, n_outputs: int) -> _Rows:
    """A random problem that suits the potential's kind of input."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2)) * [1.0, 30.0] + [0.0, 100.0]
    truth = np.stack([x[:, 0], np.abs(x[:, 0]), 0.03 * (x[:, 1] - 100)], axis=1)
    truth = truth[:, np.arange(n_outputs) % 3]
    y = (2 * truth + rng.gumbel(size=(n, n_outputs))).argmax(1)
    return _Rows(x, y, rng.normal(size=(n, n_outputs)), rng.integers(1, 4, n).astype(float))


def _by_example(rows: _Rows, arrays: Sequence[Any] | None) -> _Rows:
    """These rows as regions of several examples, or as many of them as the given arrays have regions."""
    if arrays is None:
        n = len(rows.y)
        arrays = np.split(rows.x, [n // 2, n // 2 + n // 3])
    sizes = [len(array) if array.ndim < 3 else int(np.prod(array.shape[1:])) for array in arrays]
    take = np.arange(sum(sizes)) % len(rows.y)
    return _Rows(Inputs(arrays, sizes), rows.y[take], rows.bias[take], rows.weight[take])


def _saturated(rows: _Rows, height: float) -> _Rows:
    """A bias of 0 for the label and `height` for everything else, as margins over small temperatures give."""
    bias = np.full(rows.bias.shape, height)
    bias[np.arange(len(rows.y)), rows.y] = 0.0
    return replace(rows, bias=bias)


def _same(a: Floats, b: Floats, tol: float) -> bool:
    """Equal up to a constant per row, which no loss sees."""
    a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    return bool(np.abs(a - b).max() <= tol * (1 + np.abs(a).max()))


def _check_clone(factory: Factory, rows: _Rows) -> None:
    """Clones have equal options and nothing learned."""
    from sklearn.base import clone

    fitted = rows.on(factory())
    copied = clone(fitted)
    assert not copied.is_fitted, "A clone must be unfitted; __init__ may only store its arguments."
    assert repr(copied.get_params()) == repr(fitted.get_params()), "A clone must have the same parameters."
    assert np.array_equal(rows.on(copied).scores(rows.x), fitted.scores(rows.x)), "A clone must fit alike."


def _check_never_worse(factory: Factory, rows: _Rows) -> None:
    """Further fits never raise the penalised loss."""
    potential = factory().start(rows.x, rows.n_outputs)
    rng = np.random.default_rng(1)
    problems = [rows, rows, *(_saturated(rows, height) for height in (10.0, 10.0, 50.0)), rows]
    for problem in problems:
        shaken = replace(problem, bias=problem.bias + rng.normal(size=problem.bias.shape))
        before = shaken.objective(potential)
        after = shaken.objective(shaken.on(potential))
        assert after <= before * (1 + 1e-12), f"A fit raised the penalised loss from {before} to {after}."
        assert np.isfinite(potential.scores(rows.x)).all(), "Scores must stay finite."
        assert abs(potential.objective_ - after) <= 1e-9 * (1 + after), "objective_ must be the loss reached."


def _check_bias(factory: Factory, rows: _Rows) -> None:
    """Biases may be made on demand, and constants in them change nothing."""
    with_bias = rows.on(factory())
    try:
        on_demand = OnDemand(rows.bias.shape, lambda some: rows.bias[some].copy())
        lazily = factory().fit(rows.x, rows.y, on_demand, rows.weight).scores(rows.x)
    except TypeError as error:
        raise AssertionError(f"A bias may only be sliced, it need not be an array ({error}).") from None
    assert np.array_equal(lazily, with_bias.scores(rows.x)), "A bias made on demand must act as the array."
    lifted = replace(rows, bias=rows.bias + np.arange(len(rows.y))[:, None] % 7)
    assert _same(lifted.on(factory()).scores(rows.x), with_bias.scores(rows.x), 1e-3), (
        "A bias that is constant within rows must change nothing."
    )
    against = _saturated(rows, 5.0)
    without = replace(against, bias=np.zeros_like(rows.bias)).on(factory())
    gain = against.objective(without) - against.objective(against.on(factory()))
    assert gain >= 0, "A fit that sees the bias must do better on the biased loss than one that does not."


def _check_weights(factory: Factory, rows: _Rows) -> None:
    """A row of weight 0 is as if absent."""
    weight = rows.weight.copy()
    weight[::3] = 0.0
    absent = replace(rows, weight=weight).on(factory()).scores(rows.x)
    keep = weight > 0
    part = _Rows(rows.x[keep], rows.y[keep], rows.bias[keep], weight[keep])
    assert np.array_equal(absent, part.on(factory()).scores(rows.x)), "A row of weight 0 must be as if absent."


def _check_copies(factory: Factory, rows: _Rows) -> None:
    """A row of weight 2 is as the row twice."""
    many = np.repeat(np.arange(len(rows.y)), rows.weight.astype(int))
    copies = _Rows(rows.x[many], rows.y[many], rows.bias[many], np.ones(len(many)))
    assert _same(copies.on(factory()).scores(rows.x), rows.on(factory()).scores(rows.x), 1e-3), (
        "A row of weight 2 must be as the row twice (or pass weights_are_copies=False)."
    )


def _check_soft_targets(factory: Factory, rows: _Rows) -> None:
    """Distributions that are one-hot act as labels."""
    hard = rows.on(factory()).scores(rows.x)
    soft = replace(rows, y=np.eye(rows.n_outputs)[rows.y]).on(factory()).scores(rows.x)
    assert _same(hard, soft, 1e-6), "Target distributions that are certain must act as labels."
    blurred = replace(rows, y=0.8 * np.eye(rows.n_outputs)[rows.y] + 0.2 / rows.n_outputs)
    potential = factory().start(rows.x, rows.n_outputs)
    before = blurred.objective(potential)
    assert blurred.objective(blurred.on(potential)) <= before, "A fit on soft targets raised the loss."


def _check_seed(factory: Factory, rows: _Rows) -> None:
    """Equal seeds give equal functions."""
    first, second = factory(), factory()
    for _ in range(2):
        a, b = rows.on(first).scores(rows.x), rows.on(second).scores(rows.x)
        assert np.array_equal(a, b), "Equal potentials fitted alike must be equal: take randomness from a seed."


def _check_saving(factory: Factory, rows: _Rows) -> None:
    """A saved function is exactly the same."""
    potential = rows.on(factory())
    meta, arrays = potential.state()
    loaded = Potential.from_state(json.loads(json.dumps(meta)), {k: v.copy() for k, v in arrays.items()})
    same = np.array_equal(loaded.scores(rows.x), potential.scores(rows.x))
    assert same, "Saving and loading must give identical scores."
    again = np.array_equal(rows.on(loaded).scores(rows.x), rows.on(potential).scores(rows.x))
    assert again, "A loaded potential must continue fitting as the saved one would."


def _check_pieces(factory: Factory, rows: _Rows, tol: float) -> None:
    """Scores do not depend on how rows are cut into pieces."""
    potential = rows.on(factory())
    whole = potential.scores(rows.x)
    assert whole.shape == rows.bias.shape, f"Scores must have shape (N, K), got {whole.shape}."
    assert whole.dtype == np.float64, f"Scores must be float64, got {whole.dtype}."
    parts = np.concatenate([potential.scores(rows.x[:7]), potential.scores(rows.x[7:])])
    assert np.allclose(whole, parts, rtol=tol, atol=tol), "A row's scores must not depend on other rows."
    out = np.empty_like(whole)
    assert potential.scores(rows.x, out=out) is out, "scores must return the array given as out."
    assert np.array_equal(out, whole), "scores must fill the array given as out."


def _check_refusals(factory: Factory, rows: _Rows) -> None:
    """Bad rows and options are refused with a `PotentiaError`."""
    x, y, bias, weight = rows.x, rows.y, rows.bias, rows.weight
    bad_bias = bias.copy()
    bad_bias[2, 0] = np.inf
    fitted = rows.on(factory())
    cases: dict[str, Callable[[], Any]] = {
        "values of x that are not finite": lambda: factory().fit(_spoilt(x), y, bias),
        "a vector for x": lambda: factory().fit(np.zeros(len(y)), y, bias),
        "labels out of range": lambda: factory().fit(x, y + 1, bias),
        "negative labels": lambda: factory().fit(x, y - 1, bias),
        "fewer labels than rows": lambda: factory().fit(x, y[:-1]),
        "no rows": lambda: factory().fit(x[:0], y[:0]),
        "fewer rows than labels": lambda: factory().fit(x[:-1], y),
        "a bias of another shape": lambda: factory().fit(x, y, bias[:, :-1]),
        "an infinite bias": lambda: factory().fit(x, y, bad_bias),
        "negative weights": lambda: factory().fit(x, y, bias, -weight),
        "weights that are all zero": lambda: factory().fit(x, y, bias, 0 * weight),
        "scores before fit": lambda: factory().scores(x),
    }
    if not isinstance(x, Inputs):
        cases["another number of features"] = lambda: fitted.scores(x[:, :1])
    for name, attempt in cases.items():
        try:
            attempt()
        except PotentiaError:
            continue
        raise AssertionError(f"{name} must be refused with a PotentiaError.")


def _spoilt(x: Any) -> Any:
    """x with a value that is not finite."""
    if isinstance(x, Inputs):
        return Inputs([_spoilt(x.arrays[0]), *x.arrays[1:]], x.sizes)
    bad = x.astype(np.float64)
    bad.flat[-1] = np.nan
    return bad


def _check_derivatives(factory: Factory, rows: _Rows, precision: float) -> None:
    """`vjp` is the derivative of scores by `parameters`."""
    potential = factory().start(rows.x, rows.n_outputs)
    assert isinstance(potential, Differentiable)
    rng = np.random.default_rng(2)
    point = potential.parameters + 0.3 * rng.normal(size=potential.n_parameters)
    d_scores, way = rng.normal(size=rows.bias.shape), rng.normal(size=potential.n_parameters)

    def value(step: float) -> float:
        """A scalar function of the scores at a vector of parameters."""
        potential.parameters = point + step * way
        return float((potential.scores(rows.x) * d_scores).sum()) + potential.penalty()

    step = max(1e-5, precision**0.5)
    slope = (value(step) - value(-step)) / (2 * step)
    potential.parameters = point
    exact = precision < 1e-8
    back = potential.parameters
    assert np.array_equal(back, point) if exact else np.allclose(back, point, rtol=precision), (
        "parameters must read back as they were set."
    )
    gradient = float((potential.vjp(rows.x, d_scores) + potential.penalty_and_gradient()[1]) @ way)
    assert abs(gradient - slope) <= 10 * max(1e-6, precision**0.5) * (1 + abs(slope)), (
        f"vjp and penalty say {gradient}, differences say {slope}."
    )
