"""Warnings point at the user's line, whichever way it takes through the package, and print on one line."""

import warnings
from pathlib import Path

import numpy as np
import pytest

import potentia as pt
from potentia.app.cli import main
from potentia.app.report.rows import Column, shown
from potentia.app.table_files import read_table
from potentia.base.types import warn_caller
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
    "independent": lambda: pt.multilabel.IndependentClassifiers(1e-3, passes=1).fit(X, Y),
}


@pytest.mark.parametrize("name", CUT_OFF)
def test_a_warning_points_at_the_callers_line(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CUT_OFF[name]()
    assert caught
    assert {Path(w.filename).name for w in caught} == {Path(__file__).name}
    assert all(str(w.message).endswith(".") for w in caught)


# -- names that files hold ---------------------------------------------------------------------------------------

NASTY = "a\x1b[31m\nb\u202e"
SHOWN = r"a\x1b[31m\nb\u202e"


def test_names_of_files_and_columns_are_escaped_in_messages(tmp_path, capsys):
    path = tmp_path / f"{NASTY}.csv"
    path.write_text(f'"{NASTY}","{NASTY}"\n1,2\n')
    with pytest.raises(pt.PotentiaError) as caught:
        read_table(path)
    assert str(caught.value).isprintable()
    assert f"{SHOWN}.csv has two columns" in str(caught.value)
    assert main(["infer", str(tmp_path / NASTY)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert SHOWN in err
    assert err.rstrip("\n").isprintable()


def test_names_are_escaped_in_warnings_and_tables():
    with pytest.warns(UserWarning, match="is empty") as caught:
        warn_caller(f"the column {NASTY} is empty", UserWarning)
    assert str(caught[0].message) == f"the column {SHOWN} is empty"
    assert shown(Column("k", "k"), {"k": NASTY}) == SHOWN
