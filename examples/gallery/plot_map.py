"""
The best labelling, with a proof
================================

The labelling of highest score (MAP) is a hard problem on a graph with loops. `pt.MAP` finds a good one, and an upper
bound on the score of all others: where both meet, the labelling is proven to be the best.
"""

import matplotlib.pyplot as plt
import numpy as np

import potentia as pt

# %%
# A garden of 10 by 15 beds and four plants. Each bed suits some plants more than others, some plants do well side by
# side, and no two neighbouring beds may have the same plant: -inf forbids it.
rng = np.random.default_rng(0)
graph = pt.Graph.grid((10, 15), n_states=4)
beside = 0.5 * rng.normal(size=(4, 4))
beside = np.where(np.eye(4, dtype=bool), -np.inf, beside + beside.T)
theta = {"node": rng.normal(size=(150, 4)), "edge": beside}

# %%
# The best plant of each bed alone is not allowed. Belief propagation followed by a local search is; the proof says how
# far it is from the best.
alone = theta["node"].argmax(axis=1)
rounded = pt.LoopyBP().infer(graph, theta)
best = pt.MAP(time_limit=10).infer(graph, theta)
print("each bed alone:", rounded.score(alone))
print(f"LoopyBP, rounded: {rounded.score(rounded.argmax()):.3f}")
print(f"MAP: {best.score(best.argmax()):.3f}; no labelling exceeds {best.value:.3f} ({best.bound})")

# %%
# Other good labellings that differ from the best one.
ranking = pt.MAP(time_limit=2).diverse(graph, theta, k=3)
for labels, score in zip(ranking.labels, ranking.scores, strict=True):
    print(f"score {score:.3f}, differs from the best in {np.sum(labels != best.argmax())} beds")

# %%
panels = {"each bed alone": alone, "the best garden": best.argmax(), "another good one": ranking.labels[1]}
figure, axes = plt.subplots(1, 3, figsize=(9, 2.4), layout="constrained")
for axis, (title, colours) in zip(axes, panels.items(), strict=True):
    axis.imshow(colours.reshape(10, 15), cmap="Set2")
    axis.set_title(title)
    axis.axis("off")
plt.show()
