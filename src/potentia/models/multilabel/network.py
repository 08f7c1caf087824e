"""Directed networks of labels: learned label by label, searched over labellings; their orders and options."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np

from ...base.resources import iterate_items, map_items, thread_count
from ...base.types import (
    Bools,
    ConvergenceWarning,
    Floats,
    InfeasibleError,
    Ints,
    PotentiaError,
    check_choice,
    shown,
    warn_caller,
    whole_numbers,
)
from ...kernels import search as kernel
from ...kernels.search import NetworkTerms, Rules
from ...learn.backends.connection import current
from ...metrics import exact_match, f_scores, hamming_loss
from .base import FitTask, Solved
from .constraints import Constraint, forced, make_rules
from .hinge import HingeSolver, LabelRows, SignColumns

#: Rows searched as one piece of work: few enough that hard rows spread over threads.
_CHUNK = 64
#: The score of a label that constraints leave no choice.
_CERTAIN = 1e6


class LabelSearch(NamedTuple):
    """Labellings found for n rows, or the k best of each.

    labels (n, K) or (n, k, K): in training's values, or as signs. loss (n) or (n, k), ascending: hinge sums, infinite
    where there are fewer than k. states (n): partial labellings visited. optimal (n): no labelling has less loss, for
    certain.
    """

    labels: np.ndarray
    loss: Floats
    states: Ints
    optimal: Bools


class DirectedNetwork(NamedTuple):
    """Weights of all labels: base scores are `matrix @ coef.T + bias`; `order`, `links` and `rules` number by place."""

    coef: Floats
    bias: Floats
    order: Ints
    links: NetworkTerms
    rules: Rules

    def base(self, matrix: Any) -> Floats:
        """Scores (n, K) without other labels' part, in label order."""
        return np.asarray(matrix @ self.coef.T) + self.bias

    def search(
        self,
        base: Floats,
        bound: float | Floats,
        budget: int,
        k: int = 1,
        clamp: Floats | None = None,
        kind: int = kernel.HINGE,
    ) -> LabelSearch:
        """The k best labellings of each row by branch and bound, as signs (n, k, K).

        clamp (n, K): signs that labels must have, 0 if free. kind: of the losses of labels.
        """
        n, K = base.shape
        signs, loss = np.ones((n, k, K)), np.empty((n, k))
        states, optimal = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.bool_)
        outputs = signs, loss, states, optimal
        held = np.empty((0, K)) if clamp is None else self._placed(clamp)
        limits = np.full(n, bound, dtype=float), budget, kind
        call = partial(kernel.branch_and_bound, self.links, self.rules, self._placed(base), held)
        self._over_chunks(lambda a, b: call(a, b, *limits, *outputs), n)
        if np.isinf(loss[:, 0]).any():
            raise InfeasibleError(
                f"no labelling of row {int(np.isinf(loss[:, 0]).argmax())} satisfies all constraints, or none was "
                f"found within {budget} states."
            )
        return LabelSearch(self._unplaced(signs), loss, states, optimal)

    def losses(self, base: Floats, signs: Floats, kind: int = kernel.HINGE) -> Floats:
        """Losses (n) of labellings, with constraints or without: those of a search that is held to them."""
        free = self._replace(rules=make_rules((), self.order))
        return free.search(base, np.inf, base.shape[1], 1, signs, kind).loss[:, 0]

    def margins(self, base: Floats, budget: int) -> Floats:
        """How much more a row's least loss is with label i at -1 than at +1, (n, K), by K + 1 searches per row."""
        optimum = self.search(base, np.inf, budget)
        placed, best, other = self._placed(base), self._placed(optimum.labels[:, 0]), np.empty(base.shape)
        call = partial(kernel.other_losses, self.links, self.rules, placed)
        self._over_chunks(lambda a, b: call(a, b, max(budget, base.shape[1]), best, other), len(base), 8)
        # a tie keeps the sign of the labelling found; a search cut short may have missed a better one; a label that no
        # labelling within the constraints has otherwise is certain
        more = np.clip(other - optimum.loss, np.finfo(float).tiny, _CERTAIN)
        return self._unplaced(best * more)

    def couplings(self) -> Floats:
        """(K, K) in label order: the weight of label j in the score of label i."""
        by_label = np.zeros(self.links.coupling.shape)
        by_label[np.ix_(self.order, self.order)] = self.links.coupling
        return by_label

    @staticmethod
    def _over_chunks(function: Callable[[int, int], Any], n: int, chunk: int = _CHUNK) -> None:
        """function(first row, end) over chunks of rows, in parallel."""
        map_items(lambda a: function(a, min(a + chunk, n)), range(0, n, chunk), thread_count(None))

    def _placed(self, values: Floats) -> Floats:
        """Values (n, K) by label as values by place in the order."""
        return np.ascontiguousarray(values[:, self.order])

    def _unplaced(self, values: Floats) -> Floats:
        """Values by place as values by label."""
        return values[..., np.argsort(self.order)]


#: States visited by a projection at most.
_PROJECTION = 10_000_000


def project(scores: Floats, rules: Rules, clamp: Floats | None = None) -> Floats:
    """The signs (n, K) within constraints of the largest sum of signs times scores (n, K); labels by number."""
    signs = np.where(scores > 0, 1.0, -1.0)
    if not len(rules.size):
        return signs
    K = scores.shape[1]
    network = DirectedNetwork(np.zeros((K, 0)), np.zeros(K), np.arange(K), pair_terms(np.zeros((K, K))), rules)
    found: Floats = network.search(scores, np.inf, _PROJECTION, 1, clamp, kernel.EXCESS).labels[:, 0]
    return found


class LabelDependence(NamedTuple):
    """How a label's score depends on other labels.

    parents: of each label; None for all labels before it. interactions: maximum number of parents that are multiplied
    in a feature; 0 for labels that do not see each other. label_scale: factor of labels as features; it only matters
    to the regularisation. n_orders: orders compared by the rule "learned". constraints: on labels, which are numbered
    as the signs' columns; what they force is not learned.
    """

    parents: list[set[int]] | None = None
    interactions: int = 1
    label_scale: float = 1.0
    n_orders: int = 1
    constraints: tuple[Constraint, ...] = ()

    def arrange(self, wish: Ints) -> Ints:
        """An order with parents first that follows `wish` where it can."""
        return wish if self.parents is None else topological(self.parents, wish)


#: Labels that do not see each other.
APART = LabelDependence(interactions=0)


def learn_networks(
    features: LabelRows,
    signs: Floats,
    solvers: Sequence[HingeSolver],
    order: Ints,
    structure: LabelDependence,
    solved: Solved,
) -> list[DirectedNetwork]:
    """A network per solver, of falling alpha: label by label, each solution started from the one before.

    A label's problem has the labels before it as further features [LMSBN Eq. 6].
    """
    placed, place = np.ascontiguousarray(signs[:, order]), np.argsort(order)
    parents, width, sizes = structure.parents, features.width, range(1, structure.interactions + 1)
    terms = []  # the labels whose product is a feature, for every feature of every label: singles first
    for i, k in enumerate(order):
        places = range(i) if parents is None else sorted(int(place[j]) for j in parents[k])
        terms.append([c for size in sizes for c in combinations(places, size)])
    rules = make_rules(structure.constraints, order)
    if len(rules.size):
        weight = np.ones(signs.shape) if features.weight is None else features.weight.copy()
        weight[:, order] *= ~forced(rules, placed)
        features = features.weighted(weight)
    # where every label's features are all labels before it, the labels share their columns
    earlier = SignColumns(placed, structure.label_scale) if structure[:2] == (None, 1) else None
    solve = partial(_solve_label, features, solvers, placed, order, terms, structure.label_scale, earlier)
    numbers, connection, stage = range(len(order)), current(), solved.begin(len(order))
    solves = [partial(solve, i) for i in numbers] if connection is None else connection.later(solve, numbers)
    threads = thread_count(None) if connection is None else 1
    shapes = [(len(solvers), width + len(term) + 2) for term in terms]
    paths = list(iterate_items(lambda i: solved.take(f"{stage}/{i}", shapes[i], solves[i]), numbers, threads))
    networks = []
    for s, solver in enumerate(solvers):
        solutions = [path[s] for path in paths]
        missed = sum(not solution[-1] for solution in solutions)
        if missed:
            warn_caller(
                f"{missed} of {len(solutions)} labels did not reach tol = {solver.tol:g} in {solver.passes} passes; "
                "raise passes or alpha, or scale the features.",
                ConvergenceWarning,
            )
        coef, bias = np.stack([v[:width] for v in solutions])[place], np.array([v[-2] for v in solutions])
        links = _links(terms, [v[width:-2] for v in solutions])
        networks.append(DirectedNetwork(coef, bias[place], order, links, rules))
    return networks


def product_columns(signs: Floats, terms: Sequence[tuple[int, ...]]) -> Floats:
    """Columns (n, terms) of products of signs."""
    columns = np.empty((len(signs), len(terms)))
    for t, members in enumerate(terms):
        np.prod(signs[:, list(members)], axis=1, out=columns[:, t])
    return columns


def _solve_label(
    features: LabelRows,
    solvers: Sequence[HingeSolver],
    placed: Floats,
    order: Ints,
    terms: Sequence[Any],
    label_scale: float,
    earlier: SignColumns | None,
    i: int,
) -> Floats:
    """The solutions of the label at place i; `earlier` where its features are all labels before it."""
    y = np.ascontiguousarray(placed[:, i])
    columns = SignColumns(product_columns(placed, terms[i]), label_scale) if earlier is None else earlier
    return features.here().solve(solvers, columns, len(terms[i]), y, int(order[i]))


def _links(terms: list[list[tuple[int, ...]]], weights: list[Floats]) -> NetworkTerms:
    """Weights of single labels as a matrix, those of products as lists."""
    coupling = np.zeros((len(terms), len(terms)))
    products = [[f for f in features if len(f) > 1] for features in terms]
    for i, (features, own) in enumerate(zip(terms, products, strict=True)):
        singles = [f[0] for f in features[: len(features) - len(own)]]
        coupling[i, singles] = weights[i][: len(singles)]
    weight = [w[len(w) - len(own) :] for w, own in zip(weights, products, strict=True)]
    flat = [f for own in products for f in own]
    term_ptr, member_ptr = (np.cumsum([0, *map(len, parts)], dtype=np.int64) for parts in (products, flat))
    members = np.array([j for f in flat for j in f], dtype=np.int64)
    return NetworkTerms(coupling, term_ptr, np.concatenate([*weight, np.zeros(0)]), member_ptr, members)


def pair_terms(coupling: Floats) -> NetworkTerms:
    """The terms of a network without products of labels."""
    none = np.zeros(0, dtype=np.int64)
    return NetworkTerms(coupling, np.zeros(len(coupling) + 1, np.int64), np.zeros(0), np.zeros(1, np.int64), none)


#: A network's parents: "all" earlier labels, or the parents of each label (a mapping may leave labels out).
Parents = Literal["all"] | Sequence[Sequence[int]] | Mapping[int, Sequence[int]]


def parent_sets(parents: Parents, n_labels: int) -> list[set[int]] | None:
    """Parents of each label, or None for all earlier labels; refuses unknown labels and cycles."""
    if isinstance(parents, str):
        check_choice("parents", parents, ("all",), "the parents of each label")
        return None
    if isinstance(parents, Mapping):
        entries = [parents.get(k, ()) for k in range(n_labels)]
        _check_labels(whole_numbers(list(parents), "parents"), n_labels, "parents")
    else:
        if not isinstance(parents, Sequence | np.ndarray):
            raise PotentiaError(f"parents must be 'all' or the parents of each label, not {shown(parents)}.")
        entries = [*parents]
        if len(entries) != n_labels:
            raise PotentiaError(f"parents has {len(entries)} entries for {n_labels} labels.")
    sets = []
    for k, entry in enumerate(entries):
        values = whole_numbers(list(entry) if isinstance(entry, Iterable) else [entry], f"parents of label {k}")
        _check_labels(values, n_labels, f"parents of label {k}")
        sets.append(set(values.tolist()))
    topological(sets, np.arange(n_labels))
    return sets


def topological(sets: list[set[int]], wish: Ints) -> Ints:
    """An order with parents first that follows `wish` where it can: always the first label of it that is free."""
    order: list[int] = []
    left = [int(k) for k in wish]
    while left:
        free = next((k for k in left if sets[k].issubset(order)), None)
        if free is None:
            raise PotentiaError(f"parents form a cycle among the labels {sorted(left)}.")
        order.append(free)
        left.remove(free)
    return np.array(order, dtype=np.int64)


def check_order(order: Any, n_labels: int, sets: list[set[int]] | None = None) -> Ints:
    """A user's order as numbers; refuses one that does not hold every label once with its parents first."""
    numbers = whole_numbers(order, "order")
    if numbers.shape != (n_labels,) or not np.array_equal(np.sort(numbers), np.arange(n_labels)):
        raise PotentiaError(f"order must hold every label 0..{n_labels - 1} once.")
    if sets is not None:
        place = np.argsort(numbers)
        for k, parents in enumerate(sets):
            late = [j for j in sorted(parents) if place[j] > place[k]]
            if late:
                raise PotentiaError(f"order has label {k} before its parent {late[0]}.")
    return numbers


def among(varying: Ints, order: Ints) -> Ints:
    """The order of the labels that vary, numbered among themselves."""
    return np.searchsorted(varying, order[np.isin(order, varying)])


def restrict(sets: list[set[int]] | None, varying: Ints) -> list[set[int]] | None:
    """The parents of the labels that vary, numbered among themselves."""
    if sets is None:
        return None
    place = {int(k): p for p, k in enumerate(varying)}
    return [{place[j] for j in sets[k] if j in place} for k in varying]


def _check_labels(values: Ints, n_labels: int, name: str) -> None:
    """Refuse numbers that are not of labels."""
    if values.size and not (values.min() >= 0 and values.max() < n_labels):
        raise PotentiaError(f"{name} must name labels 0..{n_labels - 1}.")


#: Tolerance of fits that only rank labels.
_LOOSE_ORDER = 0.3


def label_order(
    rule: str | tuple[int, ...],
    features: LabelRows,
    signs: Floats,
    solver: HingeSolver,
    structure: LabelDependence,
    solved: Solved,
) -> Ints:
    """The order of the labels, as numbered or by a rule of `LMSBN`.

    "f-score": by descending F-score of independent classifiers on held-out halves (classifiers that fit their training
    rows all have F-score 1 there); ties keep the labels' numbers. Costs about as much as one loose independent fit.
    """
    if not isinstance(rule, str):
        return np.array(rule, dtype=np.int64)
    if rule == "learned":
        return by_validation(features, signs, solver, structure, solved)
    wish: Ints = np.arange(signs.shape[1])
    if rule == "f-score" and len(wish) > 1:
        loose = replace(solver, tol=max(solver.tol, _LOOSE_ORDER))
        (scores,) = held_out_scores(features, signs, [loose], splits(len(signs), 2, solver.seed), solved)
        wish = np.argsort(-f_scores(signs > 0, scores > 0), kind="stable").astype(np.int64)
    return structure.arrange(wish)


def held_out_scores(
    features: LabelRows,
    signs: Floats,
    solvers: Sequence[HingeSolver],
    folds: Iterable[tuple[Ints, Ints]],
    solved: Solved,
) -> Floats:
    """Scores (solvers, n, V) of every row by independent classifiers of the rows that its fold does not hold out."""
    scores, labels = np.empty((len(solvers), *signs.shape)), np.arange(signs.shape[1])
    for train, test in folds:
        part, matrix = features.split(train, test)
        rows = np.ascontiguousarray(signs[train])
        for s, network in enumerate(learn_networks(part, rows, solvers, labels, APART, solved)):
            scores[s, test] = network.base(matrix)
    return scores


def guessed(task: FitTask, features: LabelRows, solver: HingeSolver, rules: Rules) -> Floats:
    """The signs (n, V), those of missing labels by independent classifiers of other rows, within constraints."""
    solver = replace(solver, tol=max(solver.tol, _LOOSE_ORDER))
    (scores,) = held_out_scores(features, task.signs, [solver], splits(len(task.signs), 3, solver.seed), task.solved)
    clamp = np.where(task.known, task.signs, 0.0)
    return np.ascontiguousarray(np.where(task.known, task.signs, project(scores, rules, clamp)))


def by_validation(
    features: LabelRows, signs: Floats, solver: HingeSolver, structure: LabelDependence, solved: Solved
) -> Ints:
    """Of `n_orders` orders (by F-score, by number, random ones) that of the least loss on a held-out quarter."""
    rng, labels = np.random.default_rng(solver.seed), np.arange(signs.shape[1])
    train, test = next(splits(len(signs), 4, solver.seed))
    (part, matrix), rows = features.split(train, test), np.ascontiguousarray(signs[train])
    best, least = labels, np.inf
    # the fit on all rows will warn of it
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        for number in range(structure.n_orders):
            if number < len(ORDER_RULES):
                order = label_order(ORDER_RULES[number], part, rows, solver, structure, solved)
            else:
                order = structure.arrange(rng.permutation(len(labels)))
            (network,) = learn_networks(part, rows, [solver], order, structure, solved)
            loss = float(np.mean(network.losses(network.base(matrix), signs[test])))
            if loss < least:
                best, least = order, loss
    return best


def splits(n: int, folds: int, seed: int) -> Iterator[tuple[Ints, Ints]]:
    """Training and held-out rows of each of min(folds, n) parts of a random order."""
    order = np.random.default_rng(seed).permutation(n)
    for fold in range(min(folds, n)):
        test = np.zeros(n, dtype=bool)
        test[order[fold :: min(folds, n)]] = True
        yield np.flatnonzero(~test), np.flatnonzero(test)


#: Stands for an option that cross-validation chooses.
CV = Literal["cv"]

#: Values of alpha that are tried, in units of the mean squared length of a row of features and its constant 1.
ALPHAS = (3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)
#: Values of gamma that are tried, in units of the median rule's.
WIDTHS = (0.5, 1.5, 4.5)
#: Orders and scales of labels that are tried.
ORDER_RULES = ("f-score", "index")
LABEL_SCALES = (1.0, 0.25)
#: Tolerance and passes of fits that only compare options, and states visited per row.
_LOOSE, _PASSES, _BUDGET = 1e-2, 100, 10_000


class Options(NamedTuple):
    """Options that cross-validation chooses; order: a rule, or the labels that vary in order."""

    alpha: float
    gamma: float
    order: str | tuple[int, ...]
    label_scale: float


def choose(
    grid: Mapping[str, Sequence[Any]],
    features: Callable[[float], LabelRows],
    signs: Floats,
    solver: HingeSolver,
    structure: LabelDependence,
    folds: int,
    solved: Solved,
) -> tuple[Options, list[dict[str, Any]]]:
    """The options of the best exact match on held-out rows, ties going to the lower Hamming loss; and all results.

    grid: values of each option, alphas falling. features(gamma): the training rows. A single candidate, or too few rows
    for every fold to have two, is not measured: then the middle ones are taken.
    """
    alphas, gammas, orders, scales = (grid[name] for name in Options._fields)
    if len(alphas) == len(gammas) == len(orders) == len(scales) == 1 or len(signs) < 2 * folds:
        return Options(alphas[len(alphas) // 2], gammas[len(gammas) // 2], orders[0], scales[0]), []
    solver = replace(solver, tol=max(solver.tol, _LOOSE), passes=min(solver.passes, _PASSES))
    solvers = [replace(solver, alpha=alpha) for alpha in alphas]
    sums: dict[Options, Floats] = {}
    # the fit on all rows will warn of it
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        for gamma in gammas:
            rows = features(gamma)
            for train, test in splits(len(signs), folds, solver.seed):
                part, matrix = rows.split(train, test)
                fitted, truth = np.ascontiguousarray(signs[train]), signs[test] > 0
                for rule in orders:
                    order = label_order(rule, part, fitted, solvers[len(solvers) // 2], structure, solved)
                    for scale in scales:
                        scaled = structure._replace(label_scale=scale)
                        networks = learn_networks(part, fitted, solvers, order, scaled, solved)
                        for alpha, network in zip(alphas, networks, strict=True):
                            best = network.search(network.base(matrix), np.inf, _BUDGET).labels[:, 0] > 0
                            measures = np.array([exact_match(truth, best), hamming_loss(truth, best)])
                            options = Options(alpha, gamma, rule, scale)
                            sums[options] = sums.get(options, np.zeros(2)) + measures / folds
    results = [o._asdict() | {"exact_match": s[0], "hamming_loss": s[1]} for o, s in sums.items()]
    return max(sums, key=lambda o: (round(sums[o][0], 9), -sums[o][1])), results


def alpha_path(features: LabelRows, factors: Sequence[float] = ALPHAS) -> list[float]:
    """Falling values of alpha to try."""
    return [factor * (1.0 + features.mean_square) for factor in factors]
