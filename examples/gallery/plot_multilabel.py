"""
Several labels per row: missing labels and a hierarchy
======================================================

Documents have topics that depend on each other: "football" only with its parent "sport" (hierarchical labels). Some
labels are not known.
"""

import matplotlib.pyplot as plt
import numpy as np

import potentia as pt

# %%
# Rows with three labels: sport, football, politics; a tenth of the known labels is deleted (NaN).
rng = np.random.default_rng(0)
X = rng.normal(size=(300, 6))
sport = X[:, 0] + 0.5 * rng.normal(size=300) > 0
football = sport & (X[:, 1] + 0.5 * rng.normal(size=300) > 0)
politics = (X[:, 2] - sport + 0.5 * rng.normal(size=300)) > 0
Y = np.column_stack([sport, football, politics]).astype(float)
seen = np.where(rng.random(Y.shape) < 0.1, np.nan, Y)

# %%
# One classifier per label, and labels predicted together, with the constraint that label 1 needs label 0.
alone = pt.multilabel.IndependentClassifiers(0.01).fit(X[:200], seen[:200])
together = pt.LabelNetwork(["linear"], constraints={1: 0}).fit(X[:200], seen[:200])
for name, model in (("alone", alone), ("together", together)):
    found = model.predict(X[200:])
    broken = np.mean((found[:, 1] == 1) & (found[:, 0] == 0))
    print(f"{name}: {pt.metrics.exact_match(Y[200:], found):.2f} of the rows right, {broken:.2f} violate the hierarchy")
print(together.predict_proba(X[200:203]).round(2))

# %%
# Among the rows predicted to be about football: how probable each classifier calls sport, which it implies.
figure, axes = plt.subplots(1, 2, figsize=(8, 2.6), layout="constrained", sharey=True)
for axis, (name, model) in zip(axes, {"alone": alone, "together": together}.items(), strict=True):
    p = model.predict_proba(X[200:])
    axis.scatter(p[:, 0], p[:, 1], c=Y[200:, 1], cmap="coolwarm", s=12)
    axis.axline((0, 0), slope=1, color="grey", lw=0.8)
    axis.set(title=f"{name} (red: football)", xlabel="P(sport)", xlim=(0, 1), ylim=(0, 1))
axes[0].set_ylabel("P(football)")
plt.show()
