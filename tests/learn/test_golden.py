"""Small fits give what they gave before: a change that should change nothing has changed nothing."""

import json

import pytest

from golden import GOLDEN, STORED, difference, run


@pytest.mark.parametrize("name", GOLDEN)
def test_fits_give_the_stored_objectives_and_predictions(name):
    objective, predicted = difference(run(name), json.loads(STORED.read_text())[name])
    assert objective < 1e-7
    assert predicted < 1e-5
