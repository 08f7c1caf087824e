"""
Nodes of a social network
=========================

Friends tend to like the same team. Some persons' teams are known; `pt.NodeClassifier` predicts those of all others
from their features and from their friends, for whom nothing needs to be known.
"""

import matplotlib.pyplot as plt
import numpy as np

import potentia as pt

# %%
# Two groups of 60 persons; most friendships are within a group, and a person's one feature says little.
rng = np.random.default_rng(0)
team = np.arange(120) % 2
pairs = rng.integers(0, 120, (900, 2))
keep = (pairs[:, 0] < pairs[:, 1]) & ((team[pairs[:, 0]] == team[pairs[:, 1]]) | (rng.random(900) < 0.15))
edges = np.unique(pairs[keep], axis=0)
features = team[:, None] + 2 * rng.normal(size=(120, 1))
known = [("red", "blue")[k] if rng.random() < 0.25 else None for k in team]

# %%
# With and without the friendships.
truth = np.array(["red", "blue"])[team]
hidden = np.array([label is None for label in known])
for name, given in (("alone", np.empty((0, 2), int)), ("with friends", edges)):
    model = pt.NodeClassifier("linear").fit(features, given, known)
    print(f"{name}: {np.mean(model.predict()[hidden] == truth[hidden]):.0%} of the unknown persons right")

# %%
# How sure the model is of each person: blue, red, or pale. Black rings mark the persons whose team was known.
blue = model.predict_proba()[:, list(model.classes_).index("blue")]
graph = pt.Graph.from_edges(120, edges, n_states=2)
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for axis, (title, shown) in zip(axes, {"probability of blue": blue, "truth": team}.items(), strict=True):
    pt.plot.graph(graph, shown, ax=axis)
    axis.set_title(title)
    for dots in axis.collections[1:]:
        dots.set_cmap("coolwarm_r")
        dots.set_sizes([40])
        dots.set_edgecolor(np.where(hidden, "none", "black"))
plt.show()
