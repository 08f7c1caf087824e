"""
Larger than memory, and a cluster
=================================

Examples are written to files, from which a fit reads one part after another; on a cluster, workers keep the parts. The
results are the same.
"""

import tempfile

import matplotlib.pyplot as plt
import numpy as np

import potentia as pt


def model():
    """The model that is fitted three times."""
    return pt.CRF({"node": pt.Linear(), "edge": pt.Linear()})


# %%
# All in memory, from files, and by two workers. All three have the same parts, so the weights have the
# same bits. Workers import the script, so what starts them stands below
# ``if __name__ == "__main__":``.
if __name__ == "__main__":
    test = pt.datasets.denoising(2, (24, 24), seed=1)
    train = list(pt.datasets.denoising(8, (24, 24), seed=0))
    fitted = {"in memory": model().fit(pt.parts(train, part_entries=10_000))}
    with tempfile.TemporaryDirectory() as folder:
        pt.write_parts(train, folder, part_entries=10_000)
        fitted["from files"] = model().fit(pt.parts(folder))
        with pt.cluster("local", workers=2):
            fitted["on a cluster"] = model().fit(pt.parts(folder))
    first = fitted["in memory"].potentials_["node"].coef_
    for name, crf in fitted.items():
        same = np.array_equal(crf.potentials_["node"].coef_, first)
        print(f"{name}: {crf.score(test):.1%} right, the same weights: {same}")

# %%
# The objective of each step: the three curves are one.
if __name__ == "__main__":
    plt.figure(figsize=(5, 2.6), layout="constrained")
    for k, (name, crf) in enumerate(fitted.items()):
        rows = [row for row in crf.history_ if "objective" in row]
        plt.plot([row["iteration"] for row in rows], [row["objective"] for row in rows], label=name, lw=6 - 2.5 * k)
    plt.xlabel("step")
    plt.ylabel("objective")
    plt.legend()
    plt.show()
