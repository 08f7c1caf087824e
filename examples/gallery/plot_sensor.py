"""
Time series: readings of a sensor
=================================

A machine is idle or busy for some minutes at a time; each reading of its sensors is noisy. A conditional random field
on the chain of readings learns what each state looks like and how rarely the state changes, as a hidden Markov model
(HMM) would, but trained for the labels.
"""

import matplotlib.pyplot as plt
import numpy as np

import potentia as pt

# %%
# Six series of 80 readings with known states, and a new one.
rng = np.random.default_rng(0)
states = [np.repeat(rng.integers(0, 2, 8), 10) for _ in range(7)]
readings = [state[:, None] + rng.normal(size=(80, 2)) for state in states]
labels = [np.array(["idle", "busy"])[state].tolist() for state in states]

model = pt.SequenceLabeller("linear").fit(readings[:6], labels[:6])
found = model.predict(readings[6:])[0]
busy = model.predict_proba(readings[6:])[0][:, list(model.classes_).index("busy")]
right = np.mean([a == b for a, b in zip(found, labels[6], strict=True)])
print(f"right: {right:.0%} of the new readings")

# %%
# The probability of "busy" after each reading, with the true state shaded.
plt.figure(figsize=(8, 2.5), layout="constrained")
plt.fill_between(range(80), states[6], step="mid", alpha=0.2, label="busy (truth)")
plt.plot(readings[6][:, 0], ".", color="grey", label="a sensor")
plt.plot(busy, label="probability of busy")
plt.legend(ncols=3)
plt.show()
