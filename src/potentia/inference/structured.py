"""Structured factors for methods that read tables: chains of auxiliary variables; and rounding to a labelling."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from ..base.types import Ints, WidthError
from ..graph.cotangents import own_tables
from ..graph.regions import structured_regions
from ..graph.scores import Scores, score_labels
from ..graph.structure import Graph
from ..graph.structured import Structure
from ..kernels import outcome_search
from .base import Result

R = TypeVar("R", bound=Result)
#: Entries of a table that replaces a structured factor, and of all tables of auxiliary variables, at most.
_WRITTEN, _MOST = 2**10, 2**24
_RULES = {
    "count": outcome_search.COUNT,
    "parity": outcome_search.PARITY,
    "same": outcome_search.SAME,
    "different": outcome_search.DIFFERENT,
}


class Expansion:
    """A model of tables equal to one with structured factors.

    Small factors become tables. Others become chains: an auxiliary variable is the sum of the elements so far, and a
    table of it, the next variable and the next sum says what they add up to. The last one has the scores.

    Attributes:
        given: the scores with structured factors. scores: those of tables, of which the first variables are the same.
    """

    def __init__(self, given: Scores) -> None:
        graph = given.graph
        self.given, self._n = given, graph.n_variables
        self._states = graph.n_states.tolist()
        scopes: dict[str, Any] = {kind: graph.scopes[kind] for kind in graph.kinds if kind not in graph.structures}
        theta: dict[str, Any] = {kind: _tables(given, kind) for kind in scopes}
        self._entries = 0
        #: Per auxiliary variable the structure it belongs to and the variable and sum before it, for `extend`.
        self._steps: list[tuple[Ints, int, int]] = []
        for kind, own in graph.structures.items():
            if len(graph.scopes[kind]):
                self._add(kind, own, scopes, theta)
        expanded = Graph(self._states, scopes)
        self.scores = Scores(expanded, theta)
        width = given.singles.shape[1]
        self.scores.singles[: self._n] = -np.inf
        self.scores.singles[: self._n, :width] = given.singles

    def _add(self, kind: str, own: Structure, scopes: dict[str, Any], theta: dict[str, Any]) -> None:
        graph = self.given.graph
        scope, states = graph.scopes[kind], graph.most_states(kind)
        values, offset = self.given.kind(kind)
        n, n_outcomes = scope.shape[1], own.n_outcomes(scope.shape[1], states)
        small = math.prod(graph.n_states[scope].max(axis=0).tolist()) <= _WRITTEN
        symbols = own.symbols(n, states)
        sums, outcome = own.all_sums(n, states)
        chain: tuple[list[Any], list[Any]] = ([], [])
        last: tuple[list[Any], list[Any]] = ([], [])
        for row, at in zip(scope.tolist(), offset.tolist(), strict=True):
            score = values[at : at + n_outcomes]
            shape = tuple(graph.n_states[row].tolist())
            if small:
                last[0].append(row)
                last[1].append(score[own.configurations(shape, states)])
                continue
            before, element = row[0], symbols[0, : shape[0]]
            for t in range(1, n - 1):
                reached = len(outcome) if own.rule != "count" else min(t + 2, n_outcomes)
                self._entries += len(element) * shape[t] * reached
                if self._entries > _MOST:
                    raise WidthError(
                        f"theta[{kind!r}] has structured factors of {n} variables, which tables of auxiliary variables "
                        f"would take more than {_MOST} entries to write out."
                    )
                after = sums[element[:, None], symbols[t, : shape[t]]]
                chain[0].append([before, row[t], len(self._states)])
                chain[1].append(np.where(after[:, :, None] == np.arange(reached), 0.0, -np.inf))
                self._steps.append((after, before, row[t]))
                before, element = len(self._states), np.arange(reached)
                self._states.append(reached)
            end = sums[element[:, None], symbols[n - 1, : shape[-1]]]
            last[0].append([before, row[-1]])
            last[1].append(score[outcome[end]])
        for name, (rows, tables) in {f"{kind}:sums": chain, kind: last}.items():
            if rows:
                scopes[name] = rows
                same = len({table.shape for table in tables}) == 1
                theta[name] = np.array(tables) if same else tables

    def extend(self, labels: Ints) -> Ints:
        """Labels with those of the auxiliary variables."""
        every = np.concatenate([labels, np.zeros(len(self._steps), dtype=np.int64)])
        for k, (after, before, variable) in enumerate(self._steps):
            every[self._n + k] = after[every[before], every[variable]]
        return every

    def fold(self, inner: R) -> R:
        """A result on the tables as one of the structured factors: marginals of outcomes in place of tables."""
        given, n = self.given, self._n
        graph, width = given.graph, given.singles.shape[1]
        marginals = {kind: inner.marginals[kind] for kind in graph.kinds if kind not in graph.structures}
        for kind in graph.structures:
            scope = graph.scopes[kind]
            table = np.zeros((len(scope), graph.structures[kind].n_outcomes(scope.shape[1], graph.most_states(kind))))
            if len(scope):
                own = inner.marginals[kind]
                for row, part, outcome in zip(table, own, self._last_outcomes(kind), strict=True):
                    np.add.at(row, outcome, part)
            marginals[kind] = table
        return replace(
            inner, graph=graph, scores=given, marginals={kind: marginals[kind] for kind in graph.kinds},
            variable_marginals=inner.variable_marginals[:n, :width], messages=None, memo={},
            best=lambda _: structured_labelling(given, [inner.argmax()[:n]]),
        )  # fmt: skip

    def _last_outcomes(self, kind: str) -> list[Ints]:
        """The outcome of every entry of each table with the scores of a kind."""
        graph = self.given.graph
        own, scope, states = graph.structures[kind], graph.scopes[kind], graph.most_states(kind)
        shapes = self.scores.graph.table_shapes(kind).tolist()
        if len(shapes[0]) == scope.shape[1]:
            return [own.configurations(tuple(shape), states) for shape in shapes]
        sums, outcome = own.all_sums(scope.shape[1], states)
        symbols = own.symbols(scope.shape[1], states)[-1]
        return [outcome[sums[np.arange(height)[:, None], symbols[:width]]] for height, width in shapes]


def _tables(scores: Scores, kind: str) -> Any:
    """A kind's scores as theta takes them."""
    return scores.graph.shape_tables(kind, own_tables(scores, kind)) if len(scores.graph.scopes[kind]) else None


# -- rounding


def structured_labelling(scores: Scores, starts: list[Ints]) -> Ints:
    """The best of local searches; forbidden outcomes cost more, the further they are from allowed ones."""
    model, _ = outcome_model(scores)
    best, top = starts[0], -math.inf
    for start in starts:
        labels = np.array(start, dtype=np.int64)
        outcome_search.climb(model, labels)
        score = score_labels(scores, labels)
        if score > top or top == -math.inf:
            best, top = labels, score
    return best


def outcome_model(scores: Scores) -> tuple[outcome_search.OutcomeModel, float]:
    """Scores for searches and samples, and a change of the score to what is forbidden: those to all else are above."""
    graph, regions = scores.graph, scores.regions
    theta, at = scores.flat(structured=True)
    penalty = 10.0 * (1.0 + scores.largest()) * (1.0 + len(regions.size))
    structured = structured_regions(graph)
    of = np.where(structured, np.cumsum(structured) - 1, -1)
    n_factors = int(structured.sum())
    most = max([1, *(graph.table_shapes(kind).max(initial=1) for kind in graph.structures)])
    states = scores.singles.shape[1]
    variable, code, owner, rule = [], [], [], np.zeros(n_factors, dtype=np.int64)
    score, excess = np.full((n_factors, most), np.inf), np.zeros(n_factors)
    for kind in graph.clique_kinds:  # in the order of regions
        own, scope = graph.structures.get(kind), graph.scopes[kind]
        if own is None:
            continue
        factors = of[graph.region_slices[kind]]
        values, offset = scores.kind(kind)
        n_outcomes = int(graph.table_shapes(kind)[0, 0])
        own_scores = values[offset[:, None] + np.arange(n_outcomes)]
        forbidden = np.isneginf(own_scores)
        soft = np.where(forbidden, -penalty, own_scores)
        excess[factors] = np.where(forbidden[:, -1], penalty, 0.0)
        if own.rule == "count":
            places = np.arange(n_outcomes)
            for row, gone in zip(soft, forbidden, strict=True):
                if gone.any() and not gone.all():
                    row[gone] = -penalty * np.abs(places[gone][:, None] - places[~gone]).min(axis=1)
        score[factors, :n_outcomes], rule[factors] = soft, _RULES[own.rule]
        symbols = own.symbols(scope.shape[1], states)
        symbols = (
            np.minimum(symbols, 1)
            if own.rule in ("count", "parity")
            else np.tile(np.arange(states), (scope.shape[1], 1))
        )
        variable.append(scope.ravel())
        code.append(np.tile(symbols, (len(scope), 1)))
        owner.append(np.repeat(factors, scope.shape[1]))
    every, owners = np.concatenate(variable), np.concatenate(owner)
    model = outcome_search.OutcomeModel(
        regions, np.maximum(theta, -penalty), at, of,
        np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=n_factors))]), every,
        np.ascontiguousarray(np.concatenate(code)),
        np.concatenate([[0], np.cumsum(np.bincount(every, minlength=graph.n_variables))]),
        np.argsort(every, kind="stable"), owners, rule, score, excess,
        np.zeros((n_factors, max(states, 2)), dtype=np.int64),
    )  # fmt: skip
    return model, -0.5 * penalty
