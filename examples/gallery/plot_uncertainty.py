"""
Uncertainty: calibration and conformal sets
===========================================

Marginals are probabilities. `calibrate` on held-out examples turns them into sets of labels that hold the truth as
often as you ask for (conformal prediction).
"""

import matplotlib.pyplot as plt
import numpy as np

import potentia as pt

# %%
# Noisy sequences; some to train, some to calibrate, some to test.
rng = np.random.default_rng(0)


def chain():
    """A chain with three states that change rarely."""
    y = np.repeat(rng.integers(0, 3, 8), 5)
    graph = pt.Graph.chain(40, n_states=3)
    return pt.Example(graph, {"node": np.eye(3)[y] + 0.9 * rng.normal(size=(40, 3)), "edge": np.ones((39, 1))}, y)


train, held_out, test = ([chain() for _ in range(n)] for n in (20, 40, 40))
crf = pt.CRF({"node": pt.Linear(), "edge": pt.Potts()}).fit(train)

# %%
# How often the most probable state is right, among variables of which the model is about equally sure.
sure = np.concatenate([mu.max(axis=1) for mu in crf.predict_marginals(test)])
right = np.concatenate([found == e.labels for found, e in zip(crf.predict(test), test, strict=True)])
curve = []
for low, high in ((0.4, 0.6), (0.6, 0.8), (0.8, 0.95), (0.95, 1.01)):
    among = (sure >= low) & (sure < high)
    print(f"sure by {sure[among].mean():.2f}: right {right[among].mean():.2f} of {among.sum()}")
    curve.append((sure[among].mean(), right[among].mean()))

# %%
# Sets of states with 95 % coverage.
crf.calibrate(held_out)
sets = crf.predict_set(test, coverage=0.95)
holds = np.mean([s[np.arange(40), e.labels].mean() for s, e in zip(sets, test, strict=True)])
print(f"sets hold the truth: {holds:.3f}, states per set: {np.mean([s.sum(axis=1).mean() for s in sets]):.2f}")

# %%
# Calibration, and one chain with its sets: a set has several states where the readings are ambiguous.
figure, axes = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained", width_ratios=[1, 2.5])
axes[0].plot(*zip(*curve, strict=True), "o-")
axes[0].axline((0, 0), slope=1, color="grey", lw=0.8)
axes[0].set(xlabel="probability", ylabel="share that is right", xlim=(0.4, 1), ylim=(0.4, 1))
axes[1].imshow(sets[0].T, cmap="Blues", aspect="auto", vmax=2)
axes[1].plot(test[0].labels, "r.", label="truth")
axes[1].set(xlabel="position in the chain", yticks=range(3), ylabel="state", title="sets of states (blue)")
axes[1].legend(loc="upper right")
plt.show()
