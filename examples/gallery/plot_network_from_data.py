"""
A Markov network from data
==========================

A table of observations, a graph of which variables depend on each other: the parameters are fitted by maximum
likelihood, and the network answers queries about variables that were not observed.
"""

import matplotlib.pyplot as plt
import numpy as np

import potentia as pt

# %%
# A survey: does a person smoke, have stress, cough, sleep well. The data are drawn from a known network.
names = ["stress", "smokes", "coughs", "sleeps"]
pairs = {"stress-smokes": [0, 1], "smokes-coughs": [1, 2], "stress-sleeps": [0, 3], "coughs-sleeps": [2, 3]}
graph = pt.Graph([2] * 4, {name: [[k]] for k, name in enumerate(names)} | {name: [p] for name, p in pairs.items()})
agree = np.array([[0.5, -0.5], [-0.5, 0.5]])
signs = dict(zip(pairs, [1.0, 1.6, -1.2, -0.8], strict=True))
truth = {"stress": np.array([0.0, -0.5])} | {name: sign * agree for name, sign in signs.items()}
table = pt.Exact().sample(graph, truth, 1000, seed=0)

# %%
# A ``pt.Constant`` is a table without features: one for each variable and pair.
learner = pt.MarginalRisk("likelihood", pt.Exact())
network = pt.CRF({kind: pt.Constant() for kind in graph.kinds}, learner)
network.fit([pt.Example(graph, labels=row) for row in table])
fitted = network.theta(pt.Example(graph))
exact, found = (pt.Exact().infer(graph, theta) for theta in (truth, fitted))

# %%
# What the network says of a person who coughs, beside the network that made the data.
for given in ({}, {2: 1}, {2: 1, 3: 0}):
    values = [pt.Exact().infer(graph, t, observed=given).variable_marginals[1, 1] for t in (fitted, truth)]
    said = ", ".join(f"{names[k]}={v}" for k, v in given.items()) or "nothing"
    print(f"P(smokes | {said}) = {values[0]:.3f}, in truth {values[1]:.3f}")

# %%
joint = [(r.marginals[name][0].ravel(), name) for r in (exact, found) for name in pairs]
plt.figure(figsize=(4, 4), layout="constrained")
for (true, name), (learned, _) in zip(joint[:4], joint[4:], strict=True):
    plt.plot(true, learned, "o", label=name)
plt.axline((0, 0), slope=1, color="grey", lw=0.8)
plt.xlabel("probability in truth")
plt.ylabel("learned")
plt.legend()
plt.show()
