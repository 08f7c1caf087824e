"""`Anytime`, `MAP` and marginal MAP on generated problems of the families of the UAI competitions, within short limits.

Looks for crashes, bounds that contradict each other or exact values, limits of time that are not kept, and answers
worse than those of simpler methods. Values of one problem are compared with those of all its other runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.spatial import Delaunay

import potentia as pt
from potentia.base.types import Floats, InfeasibleError, Ints, WidthError
from potentia.graph.scores import Scores, score_labels
from potentia.inference.decode import search
from potentia.inference.elimination import log_partition

Rng = np.random.Generator
Factors = list[tuple[list[int], Floats]]


class Problem(NamedTuple):
    """Factors, states and evidence of a generated problem."""

    factors: Factors
    n_states: Ints
    observed: dict[int, int]


def _log(table: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log(table)


def _singles(rng: Rng, n_states: Ints, scale: float) -> Factors:
    return [([v], scale * rng.standard_normal(s)) for v, s in enumerate(n_states)]


def grid(rng: Rng, side: int, coupling: float, wrap: bool = False) -> Problem:
    """Two states; couplings and fields are normal."""
    number = np.arange(side * side).reshape(side, side)
    right = np.roll(number, -1, axis=1), np.roll(number, -1, axis=0)
    pairs = [(a, b) for turned in right for a, b in zip(number.ravel(), turned.ravel(), strict=True)]
    if not wrap:
        pairs = [(a, b) for a, b in pairs if b > a]
    n_states = np.full(side * side, 2)
    factors = _singles(rng, n_states, coupling / 2)
    for a, b in pairs:
        w = coupling * rng.standard_normal()
        factors.append(([int(a), int(b)], np.array([[w, -w], [-w, w]])))
    return Problem(factors, n_states, {})


def diagnosis(rng: Rng, diseases: int, findings: int, seen: int) -> Problem:
    """Noisy-OR of diseases, with chains of intermediate ORs so that tables have three variables; some findings seen."""
    n_states = [2] * diseases
    factors: Factors = [([d], _log(np.array([1 - p, p]))) for d, p in enumerate(rng.uniform(0.001, 0.05, diseases))]
    ends = []
    for _ in range(findings):
        causes = rng.choice(diseases, int(rng.integers(2, min(9, diseases))), replace=False)
        before = -1
        leak = rng.uniform(0.0, 0.02)
        for cause in causes.tolist():
            here = len(n_states)
            n_states.append(2)
            q = rng.uniform(0.1, 0.9)
            table = np.zeros((2, 2, 2))  # before, cause, here
            table[1, :, 1] = 1.0
            table[0, 0] = [1 - leak, leak] if before < 0 else [1.0, 0.0]
            table[0, 1] = [1 - q, q]
            factors.append(([cause, here], _log(table[0])) if before < 0 else ([before, cause, here], _log(table)))
            before = here
        ends.append(before)
    shown = rng.choice(ends, seen, replace=False)
    return Problem(factors, np.array(n_states), {int(v): int(rng.random() < 0.4) for v in shown})


def pedigree(rng: Rng, people: int, loci: int, alleles: int) -> Problem:
    """Alleles of both parents at every locus, selected by meiosis variables that recombine; unordered pairs seen."""
    n_states: list[int] = []
    factors: Factors = []

    def new(states: int) -> int:
        n_states.append(states)
        return len(n_states) - 1

    founders = max(2, people // 3)
    parents = [
        (-1, -1) if k < founders else tuple(int(p) for p in rng.choice(k, 2, replace=False)) for k in range(people)
    ]
    frequency = [rng.dirichlet(np.full(alleles, 3.0)) for _ in range(loci)]
    gene = np.zeros((people, loci, 2), dtype=int)
    truth = np.zeros((people, loci, 2), dtype=int)
    for person in range(people):
        before = [-1, -1]
        chosen = [0, 0]
        for locus in range(loci):
            for side in range(2):
                gene[person, locus, side] = here = new(alleles)
                parent = parents[person][side]
                if parent < 0:
                    factors.append(([here], _log(frequency[locus])))
                    truth[person, locus, side] = rng.choice(alleles, p=frequency[locus])
                    continue
                selector = new(2)
                if locus == 0:
                    chosen[side] = int(rng.integers(2))
                    factors.append(([selector], _log(np.array([0.5, 0.5]))))
                else:
                    chosen[side] ^= int(rng.random() < 0.1)
                    factors.append(([before[side], selector], _log(np.array([[0.9, 0.1], [0.1, 0.9]]))))
                before[side] = selector
                truth[person, locus, side] = truth[parent, locus, chosen[side]]
                table = np.zeros((2, alleles, alleles, alleles))
                a, b = np.indices((alleles, alleles))
                table[0, a, b, a], table[1, a, b, b] = 1.0, 1.0
                factors.append(([selector, *gene[parent, locus].tolist(), here], _log(table)))
    for person in range(people):
        if rng.random() < 0.6:
            for locus in range(loci):
                a, b = truth[person, locus]
                table = np.zeros((alleles, alleles))
                table[a, b] = table[b, a] = 1.0
                factors.append((gene[person, locus].tolist(), _log(table)))
    return Problem(factors, np.array(n_states), {})


def segmentation(rng: Rng, n: int, states: int, strength: float) -> Problem:
    """Superpixels: a planar graph, blocky scores of one's own and contrast-weighted Potts pairs."""
    places = rng.uniform(0, 1, (n, 2))
    triangles = Delaunay(places).simplices
    pairs = {tuple(sorted((int(t[i]), int(t[j])))) for t in triangles for i, j in ((0, 1), (1, 2), (0, 2))}
    centres = rng.uniform(0, 1, (states, 2))
    truth = ((places[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    unary = rng.standard_normal((n, states)) + np.eye(states)[truth]
    factors: Factors = [([v], unary[v]) for v in range(n)]
    for a, b in sorted(pairs):
        factors.append(([a, b], strength * rng.uniform(0, 1) * np.eye(states)))
    return Problem(factors, np.full(n, states), {})


def detection(rng: Rng, n: int, most: int, density: float) -> Problem:
    """Object hypotheses of mixed state counts with dense pairs of random and repulsive tables."""
    n_states = rng.integers(2, most + 1, n)
    factors = _singles(rng, n_states, 1.5)
    for a in range(n):
        for b in range(a):
            if rng.random() < density:
                table = 0.7 * rng.standard_normal((n_states[b], n_states[a]))
                table[rng.random(table.shape) < 0.1] -= 4.0
                factors.append(([b, a], table))
    return Problem(factors, n_states, {})


def dbn(rng: Rng, width: int, slices: int, parents: int) -> Problem:
    """Binary variables with tables given some of the slice before, and noisy observations of some."""
    factors: Factors = [([v], _log(rng.dirichlet([1.0, 1.0]))) for v in range(width)]
    wiring = [sorted(rng.choice(width, parents, replace=False).tolist()) for _ in range(width)]
    tables = [rng.beta(0.4, 0.4, (2,) * parents) for _ in range(width)]
    for t in range(1, slices):
        for v in range(width):
            p = np.clip(tables[v], 0.01, 0.99)
            scope = [*((t - 1) * width + u for u in wiring[v]), t * width + v]
            factors.append((scope, _log(np.stack([1 - p, p], axis=-1))))
    n = width * slices
    observed = {int(v): int(rng.integers(2)) for v in rng.choice(n, n // 6, replace=False)}
    return Problem(factors, np.full(n, 2), observed)


def protein(rng: Rng, n: int, most: int) -> Problem:
    """Side chains: rotamers of mixed counts up to `most`, pairs of near residues, with clashes."""
    places = np.cumsum(rng.standard_normal((n, 3)), axis=0)
    n_states = np.minimum(most, rng.choice([2, 3, 9, 18, 27, 36, 81], n))
    factors = _singles(rng, n_states, 2.0)
    for a in range(n):
        for b in range(a):
            if np.linalg.norm(places[a] - places[b]) < 2.2:
                table = -np.abs(rng.standard_normal((n_states[b], n_states[a])))
                table[rng.random(table.shape) < 0.08] -= rng.uniform(5, 50)
                factors.append(([b, a], table))
    return Problem(factors, n_states, {})


def wcsp(rng: Rng, n: int, states: int, density: float, hard: float) -> Problem:
    """Weighted constraints of two and three variables around a planted labelling that violates no hard one."""
    planted = rng.integers(0, states, n)
    factors: Factors = [([v], -rng.integers(0, 6, states).astype(float)) for v in range(n)]
    for _ in range(int(density * n)):
        scope = sorted(rng.choice(n, 3 if states <= 6 and rng.random() < 0.3 else 2, replace=False).tolist())
        table = -rng.integers(0, 12, (states,) * len(scope)) * (rng.random((states,) * len(scope)) < 0.5) * 1.0
        table[rng.random(table.shape) < hard] = -np.inf
        table[tuple(planted[scope])] = max(table[tuple(planted[scope])], -8.0)
        factors.append((scope, table))
    return Problem(factors, np.full(n, states), {})


def colouring(rng: Rng, n: int, states: int, density: float) -> Problem:
    """Proper colourings of a random graph with a planted one (counting problems of constraints)."""
    planted = rng.integers(0, states, n)
    pairs = {tuple(sorted(rng.choice(n, 2, replace=False).tolist())) for _ in range(int(density * n))}
    factors: Factors = [([0], np.zeros(states))]
    for a, b in sorted(pairs):
        if planted[a] != planted[b]:
            factors.append(([a, b], _log(1.0 - np.eye(states))))
    return Problem(factors, np.full(n, states), {})


def codes(rng: Rng, n: int, noise: float) -> Problem:
    """Parity checks of four bits each, and noisy bits."""
    factors: Factors = [([v], 2.0 * (np.array([0.5, -0.5]) + noise * rng.standard_normal(2))) for v in range(n)]
    even = _log(1.0 - np.indices((2,) * 4).sum(axis=0) % 2)
    for _ in range(n // 2):
        factors.append((sorted(rng.choice(n, 4, replace=False).tolist()), even))
    return Problem(factors, np.full(n, 2), {})


def rules(rng: Rng, n: int, clauses: int) -> Problem:
    """Weighted clauses of three literals, as grounded from rules."""
    factors: Factors = [([v], np.array([0.0, rng.normal(0, 0.3)])) for v in range(n)]
    for _ in range(clauses):
        centre = int(rng.integers(n))
        scope = sorted({(centre + int(o)) % n for o in (0, *rng.integers(1, 12, 2))})
        table = np.zeros((2,) * len(scope))
        table[tuple(rng.integers(0, 2, len(scope)))] = -rng.exponential(1.5)
        factors.append((scope, table))
    return Problem(factors, np.full(n, 2), {})


FAMILIES: dict[str, tuple[Callable[..., Problem], tuple[Any, ...]]] = {
    "grid20-soft": (grid, (20, 0.5)), "grid20-hard": (grid, (20, 5.0)), "grid20-wrap": (grid, (20, 1.0, True)),
    "grid30-mid": (grid, (30, 1.0)), "grid40-hard": (grid, (40, 5.0, True)), "grid60-mid": (grid, (60, 1.5)),
    "grid80-soft": (grid, (80, 0.3)), "grid80-hard": (grid, (80, 5.0, True)),
    "diagnosis-small": (diagnosis, (40, 30, 15)), "diagnosis-mid": (diagnosis, (80, 80, 40)),
    "diagnosis-large": (diagnosis, (150, 120, 90)), "diagnosis-dense": (diagnosis, (30, 120, 80)),
    "pedigree-small": (pedigree, (15, 3, 3)), "pedigree-mid": (pedigree, (30, 6, 4)),
    "pedigree-large": (pedigree, (60, 10, 3)), "pedigree-alleles": (pedigree, (20, 4, 7)),
    "segmentation2": (segmentation, (220, 2, 1.5)), "segmentation21": (segmentation, (220, 21, 1.5)),
    "segmentation-hard": (segmentation, (400, 7, 4.0)), "segmentation-large": (segmentation, (1200, 21, 2.0)),
    "detection-small": (detection, (20, 11, 1.0)), "detection21": (detection, (40, 21, 1.0)),
    "detection-sparse": (detection, (60, 21, 0.12)), "detection-large": (detection, (90, 15, 0.5)),
    "dbn-narrow": (dbn, (8, 30, 2)), "dbn-mid": (dbn, (16, 20, 3)), "dbn-wide": (dbn, (40, 12, 3)),
    "protein-small": (protein, (20, 81)), "protein-mid": (protein, (60, 81)), "protein-large": (protein, (200, 36)),
    "wcsp-soft": (wcsp, (60, 8, 3.0, 0.0)), "wcsp-hard": (wcsp, (60, 8, 3.0, 0.3)),
    "wcsp-ternary": (wcsp, (100, 4, 2.5, 0.2)), "wcsp-wide": (wcsp, (40, 40, 3.0, 0.1)),
    "wcsp-large": (wcsp, (500, 4, 2.0, 0.15)), "wcsp-tight": (wcsp, (80, 5, 4.0, 0.45)),
    "colouring-mid": (colouring, (80, 4, 2.2)), "colouring-large": (colouring, (200, 3, 2.0)),
    "codes-mid": (codes, (60, 0.5)), "codes-large": (codes, (200, 0.8)),
    "rules-mid": (rules, (150, 400)), "rules-large": (rules, (800, 2500)),
    "spins-dense": (detection, (80, 2, 1.0)),
}  # fmt: skip


def generate(name: str, seed: int) -> tuple[pt.Graph, Any, dict[int, int]]:
    """Graph, scores and evidence of a problem."""
    make, options = FAMILIES[name]
    problem = make(np.random.default_rng([seed, list(FAMILIES).index(name)]), *options)
    graph, theta = pt.Graph.from_factors(problem.factors, n_states=problem.n_states)
    return graph, theta, problem.observed


class Runs:
    """All runs of one problem, and what is wrong with them."""

    def __init__(self, name: str, seed: int, seconds: float) -> None:
        self.name, self.seconds, self.faults = name, seconds, list[str]()
        self.graph, self.theta, self.observed = generate(name, seed)
        self.scores = Scores(self.graph, self.theta, self.observed)
        self.facts: dict[str, Any] = {}

    def call(self, part: str, method: Any) -> Any:
        """The result of a method, or None if it failed; its time must be near the limit."""
        cpu, wall = time.process_time(), time.monotonic()
        try:
            result = method.infer(self.graph, self.theta, observed=self.observed)
        except InfeasibleError as refused:
            self.facts[part] = f"infeasible: {refused}"
            return None
        except Exception:  # what is looked for
            self.faults.append(f"{part} failed: {traceback.format_exc(limit=-3)}")
            return None
        spent = {"cpu": time.process_time() - cpu, "wall": time.monotonic() - wall, "own": result.cpu_seconds}
        self.facts[part] = {key: round(value, 2) for key, value in spent.items()}
        if result.cpu_seconds > 1.25 * self.seconds + 0.5:
            self.faults.append(f"{part} took {result.cpu_seconds:.1f} s of {self.seconds:g}")
        return result

    def sums(self) -> None:
        """log Z: bounds against each other, the exact value and plain belief propagation, and marginals."""
        exact = self._exact_value()
        found = [self.call(f"anytime{k}", pt.Anytime(None, self.seconds, 4.0, threads=1, seed=k)) for k in range(2)]
        found = [result for result in found if result is not None]
        slack = 1e-9 * (1 + abs(exact or 0.0)) + self.scores.rounding()
        values = [exact, *(result.value for result in found if result.bound == "exact")]
        known = next((value for value in values if value is not None), None)
        for number, result in enumerate(found):
            low, high = result.certain
            others = [other.certain for other in found]
            if max(low, *(o[0] for o in others)) > min(high, *(o[1] for o in others)) + slack:
                self.faults.append(f"certain bounds of log Z contradict each other: {others}")
            if known is not None and not low - slack <= known <= high + slack:
                self.faults.append(f"log Z = {known} outside the certain {result.certain}")
            if known is not None and not result.lower - slack <= known <= result.upper + slack:
                self.faults.append(f"log Z = {known} outside the likely ({result.lower}, {result.upper})")
            if known is not None and result.bound == "exact" and abs(result.value - known) > slack:
                self.faults.append(f"exact log Z {result.value} instead of {known}")
            sums = result.variable_marginals.sum(axis=1)
            if not np.allclose(sums, 1.0, atol=1e-6) or result.variable_marginals.min() < -1e-9:
                self.faults.append(f"marginals are none: sums {sums.min()} to {sums.max()}")
            self.facts[f"log_z{number}"] = [
                round(float(x), 4) for x in (result.lower, result.value, result.upper, *result.certain)
            ] + [result.bound, result.found_by, result.marginals_by]
        plain = pt.LoopyBP(iterations=300, threads=1).run(self.scores, None)
        self.facts["bp"] = [round(float(plain.value), 4), plain.converged]
        if known is not None and found:
            self.facts["log_z_error"] = abs(found[0].value - known), abs(plain.value - known)
            if abs(found[0].value - known) > max(0.1, 2 * abs(plain.value - known)):
                self.faults.append(f"log Z off by {found[0].value - known:.3g}, plain BP by {plain.value - known:.3g}")
        ends = [result for result in found if result.bound == "exact" and result.converged]
        if ends:
            errors = [
                float(np.abs(result.variable_marginals - ends[0].variable_marginals).sum(axis=1).mean())
                for result in (found[-1], plain)
            ]
            self.facts["marginal_error"] = errors

    def _exact_value(self) -> float | None:
        try:
            return log_partition(self.scores, 2**25)
        except (WidthError, InfeasibleError):
            return None

    def labellings(self) -> None:
        """The best labelling: with and without toulbar2, local search, and the same seed again."""
        limit = {"cpu_limit": self.seconds, "threads": 1}
        found = {
            "alone": self.call("alone", pt.MAP(**limit, exact_search=False)),
            "both": self.call("both", pt.MAP(**limit)),
            "again": self.call("again", pt.MAP(**limit, exact_search=False)),
        }
        starts = [self.scores.singles.argmax(axis=1)]
        beliefs = pt.LoopyBP(iterations=100, threads=1).run(self.scores, None).variable_marginals
        if np.all(np.isfinite(beliefs)):
            starts.append(beliefs.argmax(axis=1))
        simple = max(score_labels(self.scores, search(self.scores, [start])) for start in starts)
        done = {name: result for name, result in found.items() if result is not None}
        best = max([simple, *(result.score(result.argmax()) for result in done.values())])
        for name, result in done.items():
            score = result.score(result.argmax())
            slack = 1e-8 * (1 + abs(score)) + self.scores.rounding()
            self.facts[f"map-{name}"] = [
                round(score, 4), round(result.value, 4), result.bound, result.found_by, result.bound_by,
                round(best - score, 4),
            ]  # fmt: skip
            if result.value < best - slack:
                self.faults.append(f"{name}: bound {result.value} below a score {best}")
            if score < simple - slack:
                self.faults.append(f"{name}: score {score} below {simple} of local search")
            if result.bound == "exact" and score < best - slack:
                self.faults.append(f"{name}: proven {score}, but there is {best}")
        first, second = done.get("alone"), done.get("again")
        if first is not None and second is not None and first.bound == second.bound == "exact":
            values = first.score(first.argmax()), second.score(second.argmax())
            if not np.isclose(*values, rtol=1e-9):
                self.faults.append(f"two runs of one seed give {values}")

    def queries(self) -> None:
        """Marginal MAP: the bound against scores, of two queries."""
        rng = np.random.default_rng(0)
        n = self.graph.n_variables
        for share in (0.2, 0.6):
            query = np.sort(rng.choice(n, max(1, int(share * n)), replace=False))
            method = pt.MAP(query=query, cpu_limit=self.seconds, threads=1, exact_search=False)
            result = self.call(f"query{share}", method)
            if result is None:
                continue
            begun = time.process_time()
            labels = result.argmax()
            score = result.score(labels)
            self.facts[f"mmap{share}"] = [
                round(score, 4), round(result.value, 4), result.bound, result.score_bound, result.found_by,
                result.bound_by, round(time.process_time() - begun, 2),
            ]  # fmt: skip
            slack = 1e-8 * (1 + abs(score)) + self.scores.rounding()
            if score > result.value + slack:
                self.faults.append(f"marginal MAP scores {score} above its bound {result.value}")
            if result.score_bound == "exact":
                joint = pt.MAP(cpu_limit=1.0, threads=1, exact_search=False).run(self.scores, None).argmax()
                simple = result.score(np.where(labels >= 0, joint, -1))
                if score < simple - slack:
                    self.faults.append(f"marginal MAP scores {score}, the joint labelling {simple}")


def check(names: list[str], seed: int, seconds: float, parts: list[str]) -> Iterator[dict[str, Any]]:
    """The facts and faults of every problem."""
    for name in names:
        runs = Runs(name, seed, seconds)
        for part in parts:
            getattr(runs, part)()
        yield {"problem": name, "seed": seed, **runs.facts, "faults": runs.faults}


def main() -> int:
    """Print or store the rows; 1 if there is a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--parts", nargs="*", default=["sums", "labellings", "queries"])
    parser.add_argument("--rows", type=Path)
    parser.add_argument("names", nargs="*")
    chosen = parser.parse_args()
    faults = 0
    for row in check(chosen.names or list(FAMILIES), chosen.seed, chosen.seconds, chosen.parts):
        faults += len(row["faults"])
        if chosen.rows is not None:
            with chosen.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
        print(row["problem"], *row["faults"] or ["ok"], sep="\n  ", flush=True)
    print(f"{faults} failures")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
