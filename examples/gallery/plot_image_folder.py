"""
A folder of images
==================

Two folders, one of images and one of masks with the same names, become a model that labels every pixel of new images.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

import potentia as pt

# %%
# Six noisy images of cells, drawn here: 255 in a mask is a cell, 0 is not. Your folders take the place of these.
rng = np.random.default_rng(0)
folder = Path(tempfile.mkdtemp())
rows, columns = np.mgrid[:56, :72]
for name in ("photos", "masks", "new", "truth"):
    (folder / name).mkdir()
for k in range(6):
    centres, radii = rng.uniform([8, 8], [48, 64], (5, 2)), rng.uniform(4, 9, 5)
    distances = (rows - centres[:, 0, None, None]) ** 2 + (columns - centres[:, 1, None, None]) ** 2
    cell = (distances < radii[:, None, None] ** 2).any(axis=0)
    image = np.clip(90 + 50 * cell + rng.normal(0, 45, cell.shape), 0, 255).astype(np.uint8)
    Image.fromarray(image).save(folder / ("photos" if k < 5 else "new") / f"{k}.png")
    Image.fromarray((255 * cell).astype(np.uint8)).save(folder / ("masks" if k < 5 else "truth") / f"{k}.png")

# %%
# Training and prediction read the folders. ``potentia train --images photos --masks masks --out model`` does the same.
model = pt.ImageSegmenter(node="linear").fit(folder / "photos", folder / "masks")
labels = model.predict(folder / "new")[0]
truth = np.asarray(Image.open(folder / "truth" / "5.png"))
print(f"{np.mean(labels == truth):.1%} of the pixels of a new image right")
model.save(folder / "cells.potentia")

# %%
probability = model.predict_proba(folder / "new")[0][..., 1]
panels = {"new image": image, "labels": labels, "probability of a cell": probability, "truth": truth}
figure, axes = plt.subplots(1, 4, figsize=(9, 2.2), layout="constrained")
for axis, (title, shown) in zip(axes, panels.items(), strict=True):
    axis.imshow(shown, cmap="gray")
    axis.set_title(title)
    axis.axis("off")
plt.show()
