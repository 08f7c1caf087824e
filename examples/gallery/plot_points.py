"""
A point cloud: spatial points
=============================

Points in space without an order: each is joined to its nearest neighbours, and neighbours tend to have the same label.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.spatial import cKDTree

import potentia as pt

# %%
# Two scans of a floor with a pole: positions, and a noisy intensity per point.
rng = np.random.default_rng(0)


def scan(n=600):
    """Positions (n, 3), features, edges to the five nearest points, labels."""
    pole = np.arange(n) < n // 3
    place = (
        np.where(pole[:, None], [0.2, 0.2, 1.0], [1.0, 1.0, 0.05]) * rng.uniform(-1, 1, (n, 3))
        + [0, 0, 0.5] * pole[:, None]
    )
    features = pole[:, None] + 1.2 * rng.normal(size=(n, 1))
    neighbours = cKDTree(place).query(place, 6)[1]
    edges = np.unique(np.sort(np.stack([np.repeat(np.arange(n), 5), neighbours[:, 1:].ravel()], 1), axis=1), axis=0)
    return place, features, edges, np.where(pole, "pole", "floor")


_, X, edges, y = scan()
place, X_new, edges_new, truth = scan()
for name, options in (("points alone", (np.empty((0, 2), int),) * 2), ("with neighbours", (edges, edges_new))):
    model = pt.NodeClassifier("linear", neighbours=False).fit(X, options[0], y)
    found = np.asarray(model.predict(X_new, options[1]))
    print(f"{name}: {np.mean(found == truth):.0%} of a new scan right")

# %%
axes = plt.figure(figsize=(5, 4)).add_subplot(projection="3d")
axes.scatter(*place.T, c=found == "pole", s=6, cmap="coolwarm")
plt.show()
