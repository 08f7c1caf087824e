"""
A 3D volume
===========

A stack of slices is labelled as a whole: every voxel is a variable, with six neighbours.
"""

import matplotlib.pyplot as plt
import numpy as np

import potentia as pt

# %%
# Noisy volumes with a bright ball.
rng = np.random.default_rng(0)
shape = (10, 24, 24)


def volume():
    """A volume and its labels."""
    z, y, x = np.indices(shape)
    centre = rng.uniform([4, 8, 8], [6, 16, 16])
    labels = (2 * (z - centre[0])) ** 2 + (y - centre[1]) ** 2 + (x - centre[2]) ** 2 < 60
    return labels + 1.2 * rng.normal(size=shape), labels.astype(int)


graph = pt.Graph.grid(shape, n_states=2)
ones = np.ones((len(graph.scopes["edge"]), 1))
made = [volume() for _ in range(3)]
examples = [pt.Example(graph, {"node": v.reshape(-1, 1), "edge": ones}, labels.ravel()) for v, labels in made]

# %%
# Voxels alone, and with their neighbours.
for name, edge in (("voxels alone", pt.Zero()), ("with neighbours", pt.Potts())):
    crf = pt.CRF({"node": pt.Linear(), "edge": edge}).fit(examples[:2])
    found = crf.predict(examples[2:])[0].reshape(shape)
    print(f"{name}: {np.mean(found == made[2][1]):.1%} of the voxels of a new volume right")

# %%
figure, axes = plt.subplots(1, 3, figsize=(8, 3), layout="constrained")
for axis, (title, shown) in zip(axes, {"slice": made[2][0], "labels": found, "truth": made[2][1]}.items(), strict=True):
    axis.imshow(shown[5], cmap="gray")
    axis.set_title(title)
    axis.axis("off")
plt.show()
