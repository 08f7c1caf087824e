"""
Atoms of molecules
==================

Graphs of different sizes with features of nodes and of edges: atoms and bonds. The label of an atom, here whether it
reacts, depends on its neighbours' labels. Training takes a list of graphs; prediction takes new ones.
"""

import matplotlib.pyplot as plt
import numpy as np

import potentia as pt

# %%
# Made-up molecules: chains of atoms with branches. A reaction spreads over double bonds.
rng = np.random.default_rng(0)


def molecule():
    """Features of atoms, bonds, features of bonds, and which atoms react."""
    n = int(rng.integers(8, 16))
    bonds = np.array([(int(rng.integers(max(0, i - 3), i)), i) for i in range(1, n)])
    double = rng.random(n - 1) < 0.5
    reacts = np.zeros(n, dtype=int)
    reacts[0] = rng.integers(2)
    for (a, b), strong in zip(bonds, double, strict=True):
        reacts[b] = reacts[a] if strong or rng.random() < 0.6 else 1 - reacts[a]
    return reacts[:, None] + rng.normal(size=(n, 2)), bonds, double[:, None].astype(float), reacts


made = [molecule() for _ in range(120)]
X, bonds, kinds, y = ([m[k] for m in made] for k in range(4))

# %%
# The same atoms with and without their bonds.
for name, edges, of_edges in (("atoms alone", [np.empty((0, 2), int)] * 120, None), ("with bonds", bonds, kinds)):
    options = {} if of_edges is None else {"edge_features": of_edges[:80]}
    model = pt.NodeClassifier("linear", neighbours=False).fit(X[:80], edges[:80], y[:80], **options)
    options = {} if of_edges is None else {"edge_features": of_edges[80:]}
    found = model.predict(X[80:], edges[80:], **options)
    print(f"{name}: {np.mean(np.concatenate(found) == np.concatenate(y[80:])):.0%} of the atoms of new molecules right")
    reacts = list(model.classes_).index(1)
    sure = [p[:, reacts] for p in model.predict_proba(X[80:], edges[80:], **options)]

# %%
# Two of the new molecules, yellow where an atom is likely to react, beside the truth.
figure, axes = plt.subplots(1, 4, figsize=(9, 3.2), layout="constrained")
for k, row in enumerate((axes[:2], axes[2:])):
    drawn = pt.Graph.from_edges(len(y[80 + k]), bonds[80 + k], n_states=2)
    for axis, title, p in zip(row, ("probability", "truth"), (sure[k], y[80 + k]), strict=True):
        pt.plot.graph(drawn, p, ax=axis)
        axis.set_title(title)
        axis.get_legend().remove()
plt.show()
