"""
Several labels per row: missing labels and a hierarchy
======================================================

Documents have topics that depend on each other: "football" only with its parent "sport" (hierarchical labels). Some
labels are not known.
"""

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
