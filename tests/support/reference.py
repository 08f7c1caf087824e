"""The slow specification: what every method must compute, written plainly, without kernels or inference code.

A model is (graph, theta, observed) as users pass them. `region_tables` turns it into a list of scopes and a
list of tables: the regions kind by kind in the graph's order, then a zero table for each variable without a
single-variable region. All else works on those two lists. Plain twins of the engines are in `twins`.
"""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
from scipy.optimize import linprog
from scipy.special import logsumexp, softmax


def region_tables(graph, theta, observed=None):
    """Scopes (tuples) and score tables of every region; observed variables forbid their other states."""
    scopes, tables = [], []
    for kind, rows in graph.scopes.items():
        for r, row in enumerate(rows):
            shape = tuple(int(graph.n_states[i]) for i in row)
            given = theta.get(kind)
            if given is None:
                table = np.zeros(shape)
            elif hasattr(given, "weight"):  # a table times one weight, or one per region
                table = np.broadcast_to(given.weight, len(rows))[r] * given.base_table(shape[0])
            elif np.ndim(given[0]) == len(row):
                table = np.array(given[r], dtype=float)
            else:  # one table shared by the whole kind
                table = np.array(given, dtype=float)
            scopes.append(tuple(int(i) for i in row))
            tables.append(table.reshape(shape))
    for i in range(graph.n_variables):
        if (i,) not in scopes:
            scopes.append((i,))
            tables.append(np.zeros(graph.n_states[i]))
    for i, state in (observed or {}).items():
        table = tables[scopes.index((i,))]
        table[np.arange(len(table)) != state] = -np.inf
    return scopes, tables


def by_kind(graph, tables):
    """Tables of the explicit regions in the layout of `Result.marginals`."""
    result, start = {}, 0
    for kind, rows in graph.scopes.items():
        part = tables[start : start + len(rows)]
        start += len(rows)
        same = len({t.shape for t in part}) == 1
        result[kind] = np.array(part) if same else (part if part else np.zeros(0))
    return result


def pad_singles(graph, scopes, tables):
    """Tables of the single-variable regions as (n_variables, max states), zero beyond a variable's states."""
    padded = np.zeros((graph.n_variables, int(graph.n_states.max())))
    for scope, table in zip(scopes, tables, strict=True):
        if len(scope) == 1:
            padded[scope[0], : len(table)] = table
    return padded


def labellings(graph):
    """Every labelling, (n_labellings, n_variables)."""
    return np.array(list(product(*(range(int(s)) for s in graph.n_states))))


def label_scores(graph, theta, observed=None):
    """F(y) of every labelling, in the order of `labellings`."""
    every = labellings(graph)
    scopes, tables = region_tables(graph, theta, observed)
    total = np.zeros(len(every))
    for scope, table in zip(scopes, tables, strict=True):
        total += table[tuple(every[:, scope].T)]
    return total


def log_partition(graph, theta, observed=None):
    """log Z = log sum_y exp F(y)."""
    return float(logsumexp(label_scores(graph, theta, observed)))


def all_marginals(graph, theta, observed=None):
    """Scopes and exact marginal tables of every region, implicit singles last."""
    every = labellings(graph)
    p = softmax(label_scores(graph, theta, observed))
    scopes, tables = region_tables(graph, theta, observed)
    mu = [np.zeros(t.shape) for t in tables]
    for scope, table in zip(scopes, mu, strict=True):
        np.add.at(table, tuple(every[:, scope].T), p)
    return scopes, mu


def marginals(graph, theta, observed=None):
    """Exact marginals per kind, laid out like `Result.marginals`."""
    return by_kind(graph, all_marginals(graph, theta, observed)[1])


def variable_marginals(graph, theta, observed=None):
    """Exact marginals of the variables, (n_variables, max states)."""
    return pad_singles(graph, *all_marginals(graph, theta, observed))


def max_score(graph, theta, observed=None):
    """The best score of a labelling, -inf where all are forbidden."""
    return float(label_scores(graph, theta, observed).max())


def map_labellings(graph, theta, observed=None, tol=0.0):
    """All labellings whose score is within `tol` of the best."""
    scores = label_scores(graph, theta, observed)
    return labellings(graph)[scores >= scores.max() - tol]


def links(scopes, rule):
    """(parent, child) pairs of region numbers by rule: "containment", "star" or "maximal"."""
    sets = [frozenset(s) for s in scopes]
    every = [(p, c) for p in range(len(sets)) for c in range(len(sets)) if sets[c] < sets[p]]
    if rule == "star":
        return [(p, c) for p, c in every if len(sets[c]) == 1]
    if rule == "maximal":
        inside = {c for _, c in every}
        return [(p, c) for p, c in every if p not in inside]
    return every


def reduce_table(table, scope, inner, function):
    """Apply `function(table, axis=...)` over the variables outside `inner`; axes in the order of `inner`."""
    outside = tuple(k for k, i in enumerate(scope) if i not in inner)
    left = [i for i in scope if i in inner]
    return np.transpose(function(table, axis=outside), [left.index(i) for i in inner])


def expand(values, scope, inner):
    """A table over `inner` as one that broadcasts against a table over `scope`."""
    ordered = np.transpose(values, [inner.index(i) for i in scope if i in inner])
    sizes = iter(ordered.shape)
    return ordered.reshape([next(sizes) if i in inner else 1 for i in scope])


def local_polytope_value(graph, theta, observed=None):
    """max theta . mu over tables that agree on every containment; -inf where none exist."""
    scopes, tables = region_tables(graph, theta, observed)
    start = np.cumsum([0] + [t.size for t in tables])
    index = [np.arange(a, b).reshape(t.shape) for a, b, t in zip(start, start[1:], tables, strict=False)]
    rows, right = [], []
    for p, c in links(scopes, "containment"):
        for state in np.ndindex(tables[c].shape):
            row = np.zeros(start[-1])
            at = tuple(state[scopes[c].index(i)] if i in scopes[c] else slice(None) for i in scopes[p])
            row[index[p][at].ravel()] = 1
            row[index[c][state]] = -1
            rows.append(row)
            right.append(0.0)
    for r, scope in enumerate(scopes):
        if len(scope) == 1:
            rows.append(np.isin(np.arange(start[-1]), index[r]).astype(float))
            right.append(1.0)
    cost = np.concatenate([t.ravel() for t in tables])
    bounds = [(0, 1 if np.isfinite(v) else 0) for v in cost]
    found = linprog(-np.where(np.isfinite(cost), cost, 0), A_eq=np.array(rows), b_eq=right, bounds=bounds)
    return -found.fun if found.status == 0 else -np.inf


def entropy(table):
    """H(mu), with 0 log 0 = 0."""
    p = table[table > 0]
    return -float(np.sum(p * np.log(p)))


def primal(tables, mu, counting):
    """theta . mu + sum_alpha c_alpha H(mu_alpha), with 0 * -inf = 0."""
    energy = sum(float(np.sum(t[m > 0] * m[m > 0])) for t, m in zip(tables, mu, strict=True))
    return energy + sum(c * entropy(m) for c, m in zip(counting, mu, strict=True))


def textbook(graph, theta, rho, observed=None, iterations=5000, tol=1e-13, damping=0.0):
    """Tree-reweighted messages on pairs [Wainwright, Jaakkola and Willsky 2005]; rho = 1 is loopy BP.

    m_e(x_j) = log sum_{x_i} exp(theta_e / rho_e + theta_i + sum_f rho_f m_f(x_i) - (1 - rho_e) m_e(x_i)),
    the sum over the other pairs f that hold i.

    Returns the marginals of all regions (singles and pairs, in order) and whether a fixed point was met.
    """
    scopes, tables = region_tables(graph, theta, observed)
    pairs = [r for r, s in enumerate(scopes) if len(s) == 2]
    weight = dict(zip(pairs, np.broadcast_to(rho, len(pairs)), strict=True))
    message = {(e, i): np.zeros(graph.n_states[i]) for e in pairs for i in scopes[e]}
    change = np.inf
    for _ in range(iterations):
        change = 0.0
        for e in pairs:
            for source, target in (scopes[e], scopes[e][::-1]):
                inside = expand(_without(scopes, tables, weight, message, e, source), scopes[e], (source,))
                new = reduce_table(tables[e] / weight[e] + inside, scopes[e], (target,), logsumexp)
                new = new - new.max()
                if damping:
                    new = (1 - damping) * new + damping * message[e, target]
                change = max(change, float(np.abs(np.exp(new) - np.exp(message[e, target])).max()))
                message[e, target] = new
        if change < tol:
            break
    mu = []
    for r, scope in enumerate(scopes):
        ends = [expand(_without(scopes, tables, weight, message, r, i), scope, (i,)) for i in scope]
        mu.append(softmax(tables[r] / weight[r] + sum(ends) if r in weight else ends[0]))
    return mu, change < tol


def _without(scopes, tables, weight, message, e, i):
    """theta_i plus all weighted messages into i, with a whole message along pair e taken away."""
    total = tables[scopes.index((i,))].copy()
    for f in weight:
        if i in scopes[f] and f != e:
            total += weight[f] * message[f, i]
    if e in weight and weight[e] != 1:
        dead = np.isneginf(message[e, i])
        total[~dead] -= (1 - weight[e]) * message[e, i][~dead]
        total[dead] = -np.inf
    return total


def in_forest_polytope(n, edges, rho, tol=1e-9):
    """Whether sum of rho inside S <= |S| - 1 for every vertex set S of two or more [Edmonds 1971]."""
    for size in range(2, n + 1):
        for inside in map(set, combinations(range(n), size)):
            if sum(w for (i, j), w in zip(edges, rho, strict=True) if i in inside and j in inside) > size - 1 + tol:
                return False
    return bool(np.all(np.asarray(rho) >= -tol))


def differences(function, x, step=1e-6):
    """Central finite differences of a scalar function of an array; zero at entries that are -inf."""
    x = np.array(x, dtype=float)
    slope = np.zeros(x.shape)
    for at in np.ndindex(x.shape):
        if np.isfinite(x[at]):
            up, down = x.copy(), x.copy()
            up[at] += step
            down[at] -= step
            slope[at] = (function(up) - function(down)) / (2 * step)
    return slope
