"""Small fits whose results are stored: what a change of the code that should change nothing has changed.

`python tests/support/golden.py` fits them and prints by how much each objective and each prediction differ from those
in golden.json, and whether the bits of the parameters are the stored ones; `--store` writes the file. Bits depend on
the processor and on the versions of libraries; `tests/learn/test_golden.py` compares objectives and predictions.
"""

import argparse
import hashlib
import json
import sys
import warnings
from pathlib import Path

import numpy as np

import potentia as pt
from learners import DATA, LEARNERS, LINEAR, ilr
from sample_images import noisy

STORED = Path(__file__).with_name("golden.json")


def fit_crf(crf, examples):
    crf.fit(examples)
    arrays = [array for p in crf.potentials_.values() for _, array in sorted(p.state()[1].items())]
    marginals = np.concatenate([m.ravel() for m in crf.predict_marginals(examples)])
    return crf.history_[-1]["objective"], marginals, arrays


def fit_learner(name):
    case = LEARNERS[name]
    return fit_crf(case.crf(), case.examples())


def fit_parts():
    """Hidden labels and weights together, cut into parts."""
    examples = DATA["hidden"](DATA["weighted"](noisy(5, (6, 8))))
    return fit_crf(pt.CRF(LINEAR, ilr(solver="alternating")), pt.parts(examples, part_entries=1))


def fit_single():
    return fit_crf(pt.CRF(LINEAR, ilr(solver="direct", iterations=4)), DATA["single"](noisy(4)))


def fit_converged(learner):
    return fit_crf(pt.CRF(LINEAR, learner), noisy(4))


def fit_potts():
    potentials = {"node": pt.Linear(), "edge": pt.Potts()}
    return fit_crf(pt.CRF(potentials, pt.MarginalRisk(iterations=8, tol=0.0)), noisy(4))


def fit_chain():
    rng = np.random.default_rng(0)
    words = [[f"w{k}" for k in rng.integers(40, size=8)] for _ in range(30)]
    X = [[{"word": word, "last": word[-1], "size": float(len(word))} for word in row] for row in words]
    y = [[None if word == "w3" else f"{int(word[1:]) % 5}" for word in row] for row in words]
    model = pt.ChainCRF(c1=0.01, c2=0.05, max_iterations=15, delta=0.0).fit(X, y)
    marginals = [token[label] for row in model.predict_marginals(X) for token in row for label in sorted(token)]
    return (
        model.history_[-1]["objective"],
        np.array(marginals),
        [array for _, array in sorted(model.state()[1].items())],
    )


def fit_labels(model):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 6))
    Y = (X @ rng.normal(size=(6, 5)) + rng.normal(size=(120, 5)) > 0).astype(int)
    model.fit(X, Y)
    predicted = np.asarray(model.predict(X), dtype=float)
    return float(predicted.sum()), predicted.ravel(), [array for _, array in sorted(model.state()[1].items())]


GOLDEN = {
    **{name: (lambda name=name: fit_learner(name)) for name in LEARNERS},
    "parts": fit_parts,
    "float32": fit_single,
    "potts": fit_potts,
    "converged ilr": lambda: fit_converged(pt.IteratedLogistic(tol=1e-10, message_tol=0.0, iterations=400)),
    "converged risk": lambda: fit_converged(pt.MarginalRisk("pseudolikelihood", tol=1e-10, iterations=400)),
    "chain": fit_chain,
    "lmsbn": lambda: fit_labels(pt.LMSBN(1e-3)),
    "lmbm": lambda: fit_labels(pt.LMBM(1e-3)),
    "label network": lambda: fit_labels(pt.LabelNetwork(random_state=0)),
}


def run(name):
    """Objective, some predictions, and the digest of all parameters of a fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pt.ConvergenceWarning)
        objective, predicted, arrays = GOLDEN[name]()
    bits = hashlib.sha256()
    for array in arrays:
        bits.update(np.ascontiguousarray(array).tobytes())
    step = max(1, predicted.size // 12)
    return {"objective": objective, "predicted": predicted[::step].tolist(), "bits": bits.hexdigest()[:16]}


def difference(one, other):
    """Of objectives relative to their size, of predictions the largest."""
    relative = abs(one["objective"] - other["objective"]) / max(abs(other["objective"]), 1e-300)
    return relative, float(np.abs(np.subtract(one["predicted"], other["predicted"])).max())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", action="store_true")
    store = parser.parse_args().store
    stored = {} if store else json.loads(STORED.read_text())
    found = {name: run(name) for name in GOLDEN}
    if store:
        STORED.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    for name, result in found.items():
        objective, predicted = difference(result, stored[name])
        same = "same bits" if result["bits"] == stored[name]["bits"] else "OTHER BITS"
        print(f"{name:<16} {same}  objective {objective:.1e}  predictions {predicted:.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
