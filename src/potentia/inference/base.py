"""The interface of inference methods: the `infer` call and the result record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from ..base.figures import draw_marginals
from ..base.html import facts_table
from ..base.saving import Registered
from ..base.types import ArrayLike, Floats, Ints, PotentiaError, enough_memory, entropies
from ..graph.cotangents import Tables, add_cliques, add_singles, flat_marginals, zero_tables
from ..graph.scores import Scores, check_labels, score_labels
from ..graph.structure import Graph

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .engine import Engine, Entropy, Outcome, Readout


@dataclass(frozen=True, eq=False)
class Result:
    """Marginals and value of an inference method on one graph.

    Attributes:
        graph: the graph inferred on.
        marginals: (pseudo)marginals per kind, in the layout of the scores: (n_regions, *states) or a list.
        variable_marginals: marginal of every variable, (n_variables, max states), zero beyond its states.
        value: the method's objective at the end.
        bound: how `value` relates to its target: "exact", "upper", "lower" or "estimate".
        target: the quantity that `value` bounds or estimates: "log_partition" (log Z) or "max_score" (the best
            labelling's score).
        iterations: iterations run (each message or variable once per iteration).
        residual: largest change of a variable's marginal in the last iteration.
        converged: whether `residual` met the tolerance.
        oscillating: whether messages oscillated and were damped from then on.
        diverged: whether messages grew without limit, so that value and marginals mean nothing.
        messages: opaque state for a warm start: pass the whole result as `start=`.
        scores, best, upper_of: the scores, and what `argmax` and `upper_bound` compute.
        memo: cache of what was computed from the result.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> graph = pt.Graph.grid((2, 2), n_states=2)
        >>> result = pt.TRW().infer(graph, {"node": [[0, 1]] * 4, "edge": np.eye(2)})
        >>> result.bound, result.target, result.converged
        ('upper', 'log_partition', True)
        >>> result.mpm().tolist(), result.argmax().tolist()
        ([1, 1, 1, 1], [1, 1, 1, 1])
        >>> result.score([1, 1, 1, 1])
        8.0
    """

    graph: Graph
    marginals: Mapping[str, Floats | list[Floats]]
    variable_marginals: Floats
    value: float
    bound: str
    target: str
    iterations: int
    residual: float
    converged: bool
    scores: Scores = field(repr=False)
    best: Callable[[Result], Ints] = field(repr=False)
    messages: Any = field(default=None, repr=False)
    oscillating: bool = False
    diverged: bool = False
    upper_of: Callable[[Result], float] | None = field(default=None, repr=False)
    memo: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, scores: Scores, outcome: Outcome, read: Readout, **facts: Any) -> Result:
        """The result of iterations from how they ended and what was read out; facts: `bound`, `best` and so on."""
        return cls(
            graph=scores.graph, scores=scores, marginals=read.marginals, variable_marginals=read.singles,
            value=read.value, messages=read.messages, **outcome._asdict() | facts,
        )  # fmt: skip

    @classmethod
    def of_regions(cls, scores: Scores, flat: Floats, **facts: Any) -> Result:
        """The result of marginals of all regions, one after another in the `Regions` numbering."""
        singles = all_singles(scores, flat, np.cumsum(scores.regions.size) - scores.regions.size)
        marginals = marginals_by_kind(scores, flat)
        return cls(graph=scores.graph, scores=scores, marginals=marginals, variable_marginals=singles, **facts)

    @property
    def log_partition(self) -> float:
        """`value` if its target is log Z; an error otherwise."""
        if self.target != "log_partition":
            raise PotentiaError("this result's value bounds the best score, not log Z; read `value`.")
        return self.value

    def upper_bound(self) -> float:
        """An upper bound on log Z that holds whether or not messages have converged.

        For `TRW` it is an average over explicit forests, with one exact inference for each. Other methods raise an
        error.
        """
        if "upper_bound" not in self.memo:
            if self.target == "log_partition" and self.bound in ("exact", "upper"):
                self.memo["upper_bound"] = self.value
            elif self.upper_of is not None:
                self.memo["upper_bound"] = self.upper_of(self)
            else:
                raise PotentiaError("this method gives no upper bound on log Z; use TRW.")
        bound: float = self.memo["upper_bound"]
        return bound

    def mpm(self) -> Ints:
        """The most likely state of every variable by its own marginal (maximum posterior marginal)."""
        return self.variable_marginals.argmax(axis=1)

    def entropy(self) -> Floats:
        """Entropy of every variable's marginal (n_variables,), in nats: 0 where certain."""
        return entropies(self.variable_marginals)

    def plot(self, shape: Sequence[int] | None = None, state: int = 1, ax: Axes | None = None) -> Axes:
        """Draw the marginals of all variables; `shape` (h, w) draws P(state) as an image. See `pt.plot.marginals`."""
        return draw_marginals(self.variable_marginals, shape, state, ax)

    def argmax(self) -> Ints:
        """The best labelling found: exact for `Exact` and on forests, otherwise rounding followed by local search."""
        if "argmax" not in self.memo:
            self.memo["argmax"] = self.best(self)
        labels: Ints = self.memo["argmax"]
        return labels.copy()

    @property
    def feasible(self) -> bool:
        """Whether `argmax()` is an allowed labelling; False if none was found."""
        return self.score(self.argmax()) > -np.inf

    def score(self, labels: ArrayLike) -> float:
        """F(y), the score of a complete labelling (-inf where forbidden, also by `observed`)."""
        y = check_labels(self.graph, labels)
        if np.any(y < 0):
            raise PotentiaError("score needs a complete labelling; labels hold -1.")
        return score_labels(self.scores, y)

    @property
    def gap(self) -> float:
        """Upper bound on the best score minus the score of `argmax()`; 0 certifies the labelling as optimal."""
        if self.target != "max_score" or self.bound not in ("upper", "exact"):
            raise PotentiaError("only a result whose value bounds the best score from above has a gap.")
        gap = self.value - self.score(self.argmax())
        if gap >= 0.0:
            return gap
        return 0.0 if gap > -1e-9 * abs(self.value) - self.scores.rounding() else gap

    def __repr__(self) -> str:
        state = "converged" if self.converged else "diverged" if self.diverged else "not converged"
        if self.oscillating:
            state = f"oscillating, {state}"
        # a repr searches for no labelling, but says what a search has found
        missed = ", no feasible labelling found" if "argmax" in self.memo and not self.feasible else ""
        return (
            f"Result({self.target} {self.value:.6g} ({self.bound}), {state} after {self.iterations} iterations, "
            f"residual {self.residual:.2g}{missed})"
        )

    def _repr_html_(self) -> str:
        """The result's value, bound and convergence as a table, for notebooks."""
        bounds = {"exact": "exact", "upper": "an upper bound", "lower": "a lower bound", "estimate": "an estimate"}
        facts = {
            "graph": repr(self.graph),
            self.target.replace("_", " "): f"{self.value:.6g}, {bounds[self.bound]}",
            "converged": "yes" if self.converged else "no, diverged" if self.diverged else "no",
            "iterations": self.iterations,
            "residual": f"{self.residual:.2g}",
        }
        if self.oscillating:
            facts["messages"] = "oscillating, damped"
        if "argmax" in self.memo:
            facts["feasible labelling"] = "found" if self.feasible else "none found"
        return facts_table("Result", facts)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, and what was found until then: `infer` returns it, a loop over many problems ends with it."""

    def __init__(self, result: Result) -> None:
        super().__init__("interrupted")
        self.result = result


class Expectations(NamedTuple):
    """A method's value and its gradient by the scores: marginals, summed over regions that share a table.

    `result` is there where the method made a whole one.
    """

    value: float
    tables: Tables
    bound: str
    target: str
    result: Result | None = None


class Inference(Registered, ABC):
    """A method that turns scores into marginals; subclasses hold its options and implement `run`.

    What a method can do is declared by the class attributes below; a custom method is a dataclass of its options.

    Example:
        >>> import potentia as pt
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Sharp(pt.extend.Inference):
        ...     epsilon: float = 0.05
        ...     def run(self, scores, start):
        ...         return pt.Smoothed(self.epsilon).run(scores, None)
        >>> Sharp().infer(pt.Graph.grid((1, 1), n_states=2), {"node": [[0, 1]], "edge": None}).mpm().tolist()
        [1]
    """

    #: Several threads may run it at once and gain by it, so that examples are shared out over threads.
    threaded: ClassVar[bool] = False
    #: It iterates until its option `tol` is met, and `start` saves iterations.
    iterative: ClassVar[bool] = False
    #: Its marginals may be fractional points of a relaxation rather than those of a distribution or labelling.
    relaxed: ClassVar[bool] = False
    #: Its value, marginals and best labelling are exact.
    exact: ClassVar[bool] = False
    #: Threads to use, None for all cores (or POTENTIA_THREADS); an option of those methods that split one graph.
    threads: int | None = None

    #: Takes `pt.DenseGaussian` terms.
    dense_pairs: ClassVar[bool] = False
    #: Whether marginals are smooth functions of the scores, so that they can be differentiated.
    smooth: ClassVar[bool] = True

    def on_one_thread(self) -> Self:
        """This method for a caller that shares examples out over threads."""
        return self

    def infer(
        self,
        graph: Graph,
        theta: Mapping[str, ArrayLike],
        observed: ArrayLike | None = None,
        start: Result | None = None,
    ) -> Result:
        """Marginals and value for the scores `theta`.

        Args:
            graph: the graph.
            theta: scores per kind, see `Graph`; -inf forbids.
            observed: variables to clamp: {variable: state} or an array of states with -1 where free.
            start: an earlier result of the same method on the same graph to continue from.

        After Ctrl-C methods with a time limit return the best so far, with `interrupted` set.
        """
        if start is not None and not isinstance(start, Result):
            raise PotentiaError(f"start must be an earlier Result, not a {type(start).__name__}.")
        if start is not None and graph.with_structures(start.graph.structures) is not start.graph:
            raise PotentiaError("start belongs to another graph.")
        try:
            with enough_memory("inference"):
                return self.run(Scores(graph, theta, observed, own=True, dense=self.dense_pairs), start)
        except Interrupted as stop:
            return stop.result

    @abstractmethod
    def run(self, scores: Scores, start: Result | None) -> Result:
        """Inference on validated scores."""

    def engine(self, scores: Scores, start: Result | None = None) -> Engine | None:
        """The messages that `solve` iterates, for gradients through iterations; None if the method has none."""
        return None

    #: solve(engine, tape=None, cliques=True): iterate an engine of `engine` and read out, `cliques` as in
    #: `Engine.read`; the `tape` records what gradients through the iterations need. Only of methods with an engine.
    solve: Callable[..., Result]

    def maximise(self, scores: Scores) -> Ints:
        """The best labelling found, (n_variables,), without marginals."""
        return self.run(scores, None).argmax()

    def counting_numbers(self, graph: Graph) -> Floats | None:
        """Counting numbers of all regions whose entropy this method maximises, a copy; None if not defined."""
        entropy = self.entropy_on(graph)
        return None if entropy is None else entropy.counting.copy()

    def entropy_on(self, graph: Graph) -> Entropy | None:
        """The entropy this method maximises together with the scores; None if its marginals solve no such problem."""
        return None

    def expectations(self, scores: Scores, start: Result | None = None) -> Expectations:
        """The value and its gradient; `start` as in `infer`."""
        result = self.run(scores, start)
        tables = zero_tables(scores)
        add_marginals(scores, result, 1.0, tables)
        return Expectations(result.value, tables, result.bound, result.target, result)


def add_marginals(scores: Scores, result: Result, weight: float, tables: Tables) -> None:
    """Add a weight times a result's marginals to tables in the layout of `scores`, which may share tables."""
    add_singles(scores, weight * result.variable_marginals, tables)
    for kind in scores.graph.clique_kinds:
        add_cliques(scores, kind, weight * flat_marginals(result.marginals[kind]), tables)


@dataclass(frozen=True, eq=False)
class TablesByKind(Mapping[str, Floats | list[Floats]]):
    """Tables of a graph's regions per kind, each made by `make(kind)` on first access."""

    graph: Graph
    make: Callable[[str], Floats | list[Floats]] = field(repr=False)
    _made: dict[str, Floats | list[Floats]] = field(default_factory=dict, init=False, repr=False)

    def __getitem__(self, kind: str) -> Floats | list[Floats]:
        if kind not in self._made:
            self._made[kind] = self.make(kind)
        return self._made[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self.graph.kinds)

    def __len__(self) -> int:
        return len(self.graph.kinds)


def single_tables(graph: Graph, kind: str, singles: Floats) -> Floats | list[Floats]:
    """Marginals of a single-variable (or empty) kind from those of all variables, (n, states)."""
    scope = graph.scopes[kind]
    if len(scope) == 0:
        return np.zeros((0,) * (scope.shape[1] + 1))
    one = graph.shared_shape(kind)
    if one is not None:
        return singles[scope[:, 0], : one[0]]
    return [singles[i, : graph.n_states[i]] for i in scope[:, 0]]


def all_singles(scores: Scores, flat: Floats, start: Ints) -> Floats:
    """Marginals of all variables, (n, states), zero beyond a variable's states; of region r from flat[start[r]] on."""
    singles = np.zeros_like(scores.singles)
    mask = np.arange(singles.shape[1]) < scores.graph.n_states[:, None]
    column = np.broadcast_to(np.arange(singles.shape[1]), mask.shape)[mask]
    singles[mask] = flat[np.repeat(start[scores.regions.single], scores.graph.n_states) + column]
    return singles


def marginals_by_kind(scores: Scores, flat: Floats) -> dict[str, Floats | list[Floats]]:
    """Marginals per kind from those of all regions, one after another in the `Regions` numbering."""
    graph, start = scores.graph, np.concatenate([[0], np.cumsum(scores.regions.size)])
    rows = {kind: graph.region_slices[kind] for kind in graph.kinds}
    return {kind: graph.shape_tables(kind, flat[start[r.start] : start[r.stop]].copy()) for kind, r in rows.items()}
