"""
Scribbles: labels from a few strokes
====================================

Draw a few strokes of each class on one image; every pixel gets a label and a probability. The most uncertain place is
where the next stroke helps most. ``potentia annotate photos`` does this in the browser.
"""

import matplotlib.pyplot as plt
import numpy as np

import potentia as pt

# %%
# A noisy leaf, and strokes: -1 is not labelled, 0 the ground, 1 the leaf.
rng = np.random.default_rng(0)
y, x = np.mgrid[-1:1:70j, -1.4:1.4:98j]
leaf = np.abs(y) < 0.5 * np.cos(1.3 * x)
ground = [0.6, 0.5, 0.4] + (y[..., None] > 0.55) * [-0.19, 0.09, -0.05]  # moss at the bottom
image = np.where(leaf[..., None], [0.3, 0.65, 0.3], ground) + 0.1 * rng.normal(size=(70, 98, 3))
image = (255 * image.clip(0, 1)).astype(np.uint8)
strokes = np.full(leaf.shape, -1)
strokes[34:36, 30:70] = 1
strokes[4:6, 10:90] = 0

# %%
# A second stroke at the bottom continues from the first result.
first = pt.segment(image, strokes)
strokes[64:66, 10:90] = 0
second = pt.segment(image, strokes, warm_start=first)
for name, result in (("two strokes", first), ("three strokes", second)):
    print(f"{name}: {np.mean(result.labels == leaf):.1%} of the pixels right")

# %%
drawn = image.copy()
drawn[strokes == 0], drawn[strokes == 1] = [30, 80, 220], [250, 200, 0]
panels = {"strokes": drawn, "labels": second.labels, "probability": second.probabilities[..., 1]}
figure, axes = plt.subplots(1, 3, figsize=(9, 2.4), layout="constrained")
for axis, (title, shown) in zip(axes, panels.items(), strict=True):
    axis.imshow(shown, cmap="gray")
    axis.set_title(title)
    axis.axis("off")
plt.show()
