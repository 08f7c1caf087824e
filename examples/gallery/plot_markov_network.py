"""
A Markov network: specify, query, sample
========================================

The sprinkler example of Bayesian networks and Markov random fields (MRF): it rains or the sprinkler is on, and either
makes the grass wet. Tables of probabilities are factors; their logarithms are scores.
"""

import matplotlib.pyplot as plt
import numpy as np

import potentia as pt

# %%
# Variables 0 cloudy, 1 sprinkler, 2 rain, 3 wet grass; state 1 means yes. A probability of 0 is a score of -inf.
cloudy = [0.5, 0.5]
sprinkler = [[0.5, 0.5], [0.9, 0.1]]
rain = [[0.8, 0.2], [0.2, 0.8]]
wet = [[[1.0, 0.0], [0.1, 0.9]], [[0.1, 0.9], [0.01, 0.99]]]
with np.errstate(divide="ignore"):
    factors = [
        (scope, np.log(table))
        for scope, table in (([0], cloudy), ([0, 1], sprinkler), ([0, 2], rain), ([1, 2, 3], wet))
    ]
graph, theta = pt.Graph.from_factors(factors)
print(graph)

# %%
# Query: the probability of rain, and of rain given that the grass is wet (evidence).
for evidence in (None, {3: 1}, {3: 1, 1: 1}):
    result = pt.Exact().infer(graph, theta, observed=evidence)
    print(evidence, "rain:", result.variable_marginals[2].round(4), "log Z:", round(float(result.value), 4))

# %%
# The most probable state of everything, with a proof, and samples given the evidence.
best = pt.MAP().infer(graph, theta, observed={3: 1})
print(best.argmax(), best.bound)
samples = pt.Exact().sample(graph, theta, 2000, seed=0, observed={3: 1})
print("rain in samples:", samples[:, 2].mean().round(2))

# %%
# Approximate methods have the same interface, and say what their value is.
said = {}
for method in (pt.LoopyBP(), pt.TRW(), pt.MeanField(), pt.Gibbs(seed=0)):
    result = method.infer(graph, theta, observed={3: 1})
    print(f"{type(method).__name__:10} {result.variable_marginals[2, 1]:.4f} {result.value:8.4f} {result.bound}")
    said[type(method).__name__] = result.variable_marginals[2, 1]

# %%
# The network given wet grass, yellow where "yes" is certain, dark where unlikely; what the methods say about rain.
figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
exact = pt.Exact().infer(graph, theta, observed={3: 1})
pt.plot.graph(graph, exact.variable_marginals[:, 1], ax=axes[0])
axes[0].set_title("0 cloudy, 1 sprinkler, 2 rain, 3 wet")
axes[1].barh(list(said), list(said.values()), color="lightsteelblue")
axes[1].axvline(exact.variable_marginals[2, 1], color="black", label="exact")
axes[1].set_xlabel("P(rain | wet grass)")
axes[1].legend(loc="lower right")
plt.show()
