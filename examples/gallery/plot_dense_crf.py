"""
A dense CRF whose weights are learned
=====================================

In a dense CRF every two pixels are a pair, with a weight that falls with the distance of their positions and colours.
The weight and the widths are usually set by hand; here they are learned from three masks.
"""

import matplotlib.pyplot as plt
import numpy as np

import potentia as pt

# %%
# Images of two colours, and the noisy probabilities that some classifier gives for every pixel.
rng = np.random.default_rng(0)
size = (24, 32)
graph = pt.Graph([2] * (size[0] * size[1]), {"node": np.arange(size[0] * size[1])[:, None]})


def sample():
    """An image, the classifier's probabilities, the truth."""
    y, x = np.mgrid[: size[0], : size[1]]
    truth = np.hypot(y - rng.uniform(9, 15), 0.7 * (x - rng.uniform(12, 20))) < 7
    image = 100 + 50 * truth[..., None] + rng.normal(0, 15, (*size, 3))
    p = np.clip(0.5 + 0.15 * np.where(truth, 1, -1) + 0.25 * rng.normal(size=size), 0.05, 0.95)
    return image.clip(0, 255).astype(np.uint8), np.stack([1 - p, p], axis=2), truth.astype(int)


def example(image, p, truth):
    """A variable per pixel; positions and colours are the features of all pairs."""
    near = pt.features.bilateral(image, sd_position=10, sd_colour=20)
    return pt.Example(graph, {"node": np.log(p).reshape(-1, 2), "dense": near}, truth.ravel())


samples = [sample() for _ in range(5)]
examples = [example(*s) for s in samples]

# %%
learner = pt.MarginalRisk(inference=pt.MeanField(iterations=5, tol=0))
crf = pt.CRF({"node": pt.Temperature(), "dense": pt.DenseGaussian()}, learner).fit(examples[:3])
dense = crf.potentials_["dense"]
print("weight", np.round(dense.weight_, 2), "factors of the widths", np.round(dense.widths_, 2))
labels = crf.predict(examples[4:])[0].reshape(size)
image, p, truth = samples[4]
print(f"classifier: {np.mean(p.argmax(axis=2) == truth):.1%}, with the dense CRF: {np.mean(labels == truth):.1%} right")

# %%
panels = {"image": image, "classifier": p[..., 1], "dense CRF": labels, "truth": truth}
figure, axes = plt.subplots(1, 4, figsize=(9, 2.1), layout="constrained")
for axis, (title, shown) in zip(axes, panels.items(), strict=True):
    axis.imshow(shown, cmap="gray")
    axis.set_title(title)
    axis.axis("off")
plt.show()
