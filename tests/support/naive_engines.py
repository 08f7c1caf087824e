"""Plain twins of the inference engines: the star update over any regions, and mean field; slow, no kernel."""

from __future__ import annotations

import numpy as np

from reference import entropy, expand, pad_singles, reduce_table, region_tables


def smooth_max(values, c, axis=None):
    """c log sum exp(values / c), its limit max at c = 0; -inf entries take no part, also for c < 0."""
    if c == 0:
        return np.max(values, axis=axis)
    return c * np.logaddexp.reduce(np.where(np.isneginf(values), -np.inf, values / c), axis=axis)


def softmax(values):
    """exp(values), normalised over all entries."""
    return np.exp(values - np.logaddexp.reduce(values, axis=None))


def support(scopes, tables, pairs):
    """Tables with -inf also where a linked region forbids it: no local marginals have mass there."""
    tables = [t.copy() for t in tables]
    while True:
        before = sum(int(np.isneginf(t).sum()) for t in tables)
        for p, c in pairs:
            alive = reduce_table(np.isfinite(tables[p]), scopes[p], scopes[c], np.any)
            tables[c][~alive] = -np.inf
            tables[p] = np.where(expand(np.isfinite(tables[c]), scopes[p], scopes[c]), tables[p], -np.inf)
        if sum(int(np.isneginf(t).sum()) for t in tables) == before:
            return tables


class Star:
    """The star update over any regions, links and counting numbers [MATH section 3], one region at a time.

    m_p(y_c) = c_p log sum exp((b_p without lam_p(y_c)) / c_p);  Q = theta_c + sum_children lam + sum_p m_p
    lam_p(y_c) = w_p Q - m_p;  w_p = c_p / C,  C = c_c + sum_p c_p  (all c = 0: w = 1 / (1 + n_parents))
    """

    def __init__(self, scopes, tables, pairs, counting):
        self.scopes, self.pairs, self.c = scopes, pairs, counting
        self.tables = support(scopes, tables, pairs)
        self.lam = {(p, c): np.zeros(self.tables[c].shape) for p, c in pairs}
        self.parents = {r: [p for p, c in pairs if c == r] for r in range(len(scopes))}
        self.children = {r: [c for p, c in pairs if p == r] for r in range(len(scopes))}

    def belief(self, r, without=None):
        """b_r = theta_r + sum_children lam_r(child) - sum_parents lam_parent(r), leaving out one child."""
        total = self.tables[r].copy()
        for c in self.children[r]:
            if c != without:
                total += expand(self.lam[r, c], self.scopes[r], self.scopes[c])
        for p in self.parents[r]:
            total -= self.lam[p, r]
        return total

    def gathered(self, r):
        """m of every parent of r, and Q."""
        inward = {}
        for p in self.parents[r]:
            inward[p] = reduce_table(
                self.belief(p, without=r), self.scopes[p], self.scopes[r],
                lambda t, axis, c=self.c[p]: smooth_max(t, c, axis),
            )  # fmt: skip
        own = self.tables[r].copy()
        for c in self.children[r]:
            own += expand(self.lam[r, c], self.scopes[r], self.scopes[c])
        return inward, own + sum(inward.values())

    def update(self, r):
        """Set the messages of all parents of r so that they agree on r."""
        inward, q = self.gathered(r)
        total = self.c[r] + sum(self.c[p] for p in self.parents[r])
        alive = np.isfinite(q)
        for p, m in inward.items():
            w = self.c[p] / total if total else 1 / (1 + len(inward))
            new = np.zeros(q.shape)
            new[alive] = w * q[alive] - m[alive]
            new[alive] -= new[alive].mean()
            self.lam[p, r] = new

    def marginals(self):
        """softmax(Q / C) of every region; a region without parents has Q = b and C = c."""
        result = []
        for r in range(len(self.scopes)):
            total = self.c[r] + sum(self.c[p] for p in self.parents[r])
            result.append(softmax(self.gathered(r)[1] / total))
        return result

    def dual(self):
        """sum_alpha c_alpha log sum exp(b_alpha / c_alpha)."""
        return sum(float(smooth_max(self.belief(r), self.c[r])) for r in range(len(self.scopes)))

    def run(self, iterations=2000, tol=1e-13):
        """Update every region that has parents, largest first, until the marginals stand still."""
        order = sorted((r for r in self.parents if self.parents[r]), key=lambda r: -len(self.scopes[r]))
        before = self.marginals()
        for _ in range(iterations):
            for r in order:
                self.update(r)
            after = self.marginals()
            change = max(float(np.abs(a - b).max()) for a, b in zip(after, before, strict=True))
            before = after
            if change < tol:
                break
        return before


class AlgorithmThree:
    """Reweighted message passing as [MBL-tpami Algorithm 3] writes it: messages m_c(x_i), all one at the start.

    m_c(x_i) ~ sum over the rest of exp(theta_c / rho_c) prod_{j in c, not i} v_j(x_j) / m_c(x_j)
    v_j(x_j) = exp(theta_j) prod_d m_d(x_j)^rho_d
    """

    def __init__(self, scopes, tables, rho):
        self.theta = {s[0]: t for s, t in zip(scopes, tables, strict=True) if len(s) == 1}
        self.cliques = [(s, t) for s, t in zip(scopes, tables, strict=True) if len(s) > 1]
        self.rho = rho
        self.m = {(c, i): np.ones(len(self.theta[i])) for c, (s, _) in enumerate(self.cliques) for i in s}

    def variable(self, i):
        """exp(theta_i) prod_d m_d(x_i)^rho_d."""
        total = np.exp(self.theta[i] - self.theta[i].max())
        for c, (scope, _) in enumerate(self.cliques):
            if i in scope:
                total = total * self.m[c, i] ** self.rho[c]
        return total / total.sum()

    def clique(self, c, without=None):
        """exp(theta_c / rho_c) prod_j exp(theta_j) prod_d m_d(x_j)^rho_d / m_c(x_j), leaving out one variable."""
        scope, table = self.cliques[c]
        total = np.exp((table - table.max()) / self.rho[c])
        for j in scope:
            if j != without:
                total = total * expand(self.variable(j) / self.m[c, j], scope, (j,))
        return total / total.sum()

    def refreshed(self, i):
        """New messages into a variable from all its cliques."""
        new = {}
        for c, (scope, _) in enumerate(self.cliques):
            if i in scope:
                message = reduce_table(self.clique(c, without=i), scope, (i,), np.sum)
                new[c, i] = message / message.sum()
        return new

    def run(self, orders):
        """Iterations: the variables that receive their messages, in order."""
        for order in orders:
            for i in order:
                self.m |= self.refreshed(i)

    def refresh(self):
        """All messages once more, from those there are."""
        self.m |= {key: m for i in self.theta for key, m in self.refreshed(i).items()}


def mean_field(graph, theta, observed=None, start=None, iterations=2000, tol=1e-13):
    """Plain coordinate ascent, variables in order; returns (n_variables, max states) and E[F] + H <= log Z.

    log q_i(x) = sum over regions that hold i of E_{q of the others}[theta] + const, with 0 * -inf = 0.
    """
    scopes, tables = region_tables(graph, theta, observed)
    start = [np.ones(int(s)) / s for s in graph.n_states] if start is None else start
    q = [np.array(p, dtype=float) for p in start]

    def expected(r, keep=None):
        product_of = np.ones(tables[r].shape)
        for i in scopes[r]:
            if i != keep:
                product_of = product_of * expand(q[i], scopes[r], (i,))
        weighted = np.zeros(tables[r].shape)
        weighted[product_of > 0] = product_of[product_of > 0] * tables[r][product_of > 0]
        return reduce_table(weighted, scopes[r], () if keep is None else (keep,), np.sum)

    for _ in range(iterations):
        change = 0.0
        for i in range(graph.n_variables):
            new = softmax(sum(expected(r, i) for r, s in enumerate(scopes) if i in s))
            change = max(change, float(np.abs(new - q[i]).max()))
            q[i] = new
        if change < tol:
            break
    value = sum(float(expected(r)) for r in range(len(scopes))) + sum(entropy(p) for p in q)
    return pad_singles(graph, [(i,) for i in range(len(q))], q), value
