"""
Superpixels
===========

Large images have fewer regions of similar colour than pixels. Each region is a variable, and regions that touch are
pairs, so that training takes a fraction of the time.
"""

import matplotlib.pyplot as plt
import numpy as np
from skimage.segmentation import mark_boundaries

import potentia as pt
from potentia.features import superpixel_example

# %%
# Images of a tilted roof before the sky, both patchy.
rng = np.random.default_rng(0)


def sample():
    """An image and the labels of its pixels."""
    row, column = np.mgrid[:90, :120]
    roof = (row > 30 + rng.uniform(-0.3, 0.3) * (column - 60) + rng.uniform(0, 20)).astype(int)
    colours = np.array([[0.5, 0.55, 0.6], [0.6, 0.55, 0.5]])[roof]
    patches = np.kron(rng.normal(0, 0.06, (9, 12, 3)), np.ones((10, 10, 1)))
    return np.clip(colours + patches + 0.05 * rng.normal(size=colours.shape), 0, 1), roof


images = [sample() for _ in range(6)]
made = [superpixel_example(image, mask, n_states=2, n_segments=150, compactness=20.0) for image, mask in images]
examples, segments = zip(*made, strict=True)
print(images[0][1].size, "pixels,", examples[0].graph)

# %%
# Regions alone, and with their neighbours; a map of labels has the label of each pixel's region.
for name, pairs in (("regions alone", pt.Zero()), ("with neighbours", pt.Linear())):
    crf = pt.CRF({"node": pt.Linear(), "edge": pairs}).fit(examples[:5])
    labels = crf.predict(examples[5:])[0][segments[5]]
    print(f"{name}: {np.mean(labels == images[5][1]):.1%} of the pixels of a new image right")

# %%
panels = {"image and regions": mark_boundaries(images[5][0], segments[5]), "labels": labels, "truth": images[5][1]}
figure, axes = plt.subplots(1, 3, figsize=(9, 2.5), layout="constrained")
for axis, (title, shown) in zip(axes, panels.items(), strict=True):
    axis.imshow(shown, cmap="gray")
    axis.set_title(title)
    axis.axis("off")
plt.show()
