"""Warnings point at the user's line, whichever way it takes through the package."""

import warnings
from pathlib import Path

import numpy as np
import pytest

import potentia as pt
from sample_images import noisy

# too large for Newton steps, which would converge
X = np.random.default_rng(0).normal(size=(1100, 1100))
Y = (X[:, :2] + np.random.default_rng(1).normal(size=(1100, 2)) > 0).astype(int)
CRF = {"node": pt.Linear(), "edge": pt.Linear()}
CUT_OFF = {
    "iterated": lambda: pt.CRF(CRF, pt.IteratedLogistic(iterations=2)).fit(noisy()),
    "risk": lambda: pt.CRF(CRF, pt.MarginalRisk(iterations=2)).fit(noisy()),
    "lmsbn": lambda: pt.LMSBN(1e-3, order="index", passes=1).fit(X, Y),
    "lmsbn, learned order": lambda: pt.LMSBN(1e-3, passes=1).fit(X, Y),
    "independent": lambda: pt.IndependentClassifiers(1e-3, passes=1).fit(X, Y),
    "renamed option": lambda: pt.IteratedLogistic(rest=1e-3),
    "renamed value": lambda: pt.TRW(schedule="greedy"),
}


@pytest.mark.parametrize("name", CUT_OFF)
def test_a_warning_points_at_the_callers_line(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CUT_OFF[name]()
    assert caught
    assert {Path(w.filename).name for w in caught} == {Path(__file__).name}
    assert all(str(w.message).endswith(".") for w in caught)
