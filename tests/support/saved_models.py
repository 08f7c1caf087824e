"""Small fitted models of several classes, saved, and the rows they were fitted to."""

import numpy as np

import potentia as pt
from own_data import make_table


def examples(n=3):
    """Triangles that share a variable: features of variables, pairs and triples, two states each."""
    rng = np.random.default_rng(7)
    graph = pt.Graph(
        n_states=[2] * 5,
        regions={
            "node": [[i] for i in range(5)],
            "edge": [[0, 1], [1, 2], [0, 2], [2, 3], [3, 4], [2, 4]],
            "triple": [[0, 1, 2], [2, 3, 4]],
        },
    )
    found = []
    for _ in range(n):
        labels = rng.integers(0, 2, 5)
        node = np.column_stack([labels + rng.normal(size=5), rng.normal(size=5)])
        scope = graph.scopes["edge"]
        edge = (labels[scope[:, 0]] == labels[scope[:, 1]])[:, None] + rng.normal(size=(6, 1))
        features = {"node": node, "edge": edge, "triple": rng.normal(size=(2, 1))}
        found.append(pt.Example(graph, features, labels))
    return found


def rows():
    """X (30, 3) and three labels that depend on it and on each other."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(30, 3))
    a = X[:, 0] + 0.3 * rng.normal(size=30) > 0
    b = X[:, 1] + np.where(a, 0.8, -0.8) + 0.3 * rng.normal(size=30) > 0
    return X, np.column_stack([a, b, a ^ (X[:, 2] > 0)]).astype(int)


def make(folder):
    """Fit and save every model."""
    from potentia.app import sequences, tables

    potentials = {
        "node": pt.Linear(ridge=0.1),
        "edge": pt.Boosting(rounds=2, more_rounds=1, min_leaf=0.2, max_leaves=3),
        "triple": pt.MLP(hidden=2, epochs=2, seed=1),
    }
    learner = pt.IteratedLogistic(epsilon=0.2, iterations=2, sweeps=5)
    pt.CRF(potentials, learner).fit(examples()).save(folder / "crf")
    risk = pt.MarginalRisk(pt.gradients.losses.SmoothedError(alpha=20), pt.TRW(iterations=5, tol=0), iterations=3)
    pt.CRF({k: pt.Linear() for k in ("node", "edge", "triple")}, risk, pt.Smoothed(epsilon=0.5)).fit(examples()).save(
        folder / "crf-risk"
    )
    X, Y = rows()
    pt.LMSBN(0.02, interactions=2, label_scale=0.5).fit(X, Y).save(folder / "lmsbn")
    pt.LMBM(0.02, cliques=3, kernel="rbf").fit(X, Y).save(folder / "lmbm")
    pt.multilabel.IndependentClassifiers(0.02).fit(X, Y).save(folder / "independent")
    (folder / "train.tsv").write_text("the\tD\ncat\tN\n\na\tD\n")
    make_table(folder / "train.csv", n=20)
    sequences.train(folder / "train.tsv", iterations=3)[0].save(folder / "sequences")
    tables.train(folder / "train.csv", ["a", "b", "c"])[0].save(folder / "table")
    for name in ("train.tsv", "train.csv"):
        (folder / name).unlink()
