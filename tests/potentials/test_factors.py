"""Structured factors as constraints on labellings: which are allowed, and what they score."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import potentia as pt

FACTORS = {
    "at most one": (pt.factors.AtMostOne(), lambda y: y.sum() <= 1),
    "exactly one": (pt.factors.ExactlyOne(), lambda y: y.sum() == 1),
    "or": (pt.factors.Or(), lambda y: y.sum() >= 1),
    "and": (pt.factors.And(), lambda y: y.all()),
    "implies": (pt.factors.Implies(), lambda y: not y[0] or y[1:].any()),
    "parity": (pt.factors.Parity(), lambda y: y.sum() % 2 == 0),
    "odd": (pt.factors.Parity(odd=True), lambda y: y.sum() % 2 == 1),
    "same": (pt.factors.PnPotts(), lambda y: len(set(y.tolist())) == 1),
    "different": (pt.factors.AllDifferent(), lambda y: len(set(y.tolist())) == len(y)),
    "at most two": (pt.factors.Cardinality([0, 0, 0, -np.inf]), lambda y: y.sum() <= 2),
    "off": (pt.factors.ExactlyOne(on=0), lambda y: (y == 0).sum() == 1),
}


@pytest.mark.parametrize("name", FACTORS)
@pytest.mark.parametrize("n", [2, 3, 5])
def test_allowed_labellings_are_those_of_the_definition(name, n):
    factor, allowed = FACTORS[name]
    labels = np.array(list(itertools.product([0, 1], repeat=n)))
    assert factor.allows(labels).tolist() == [bool(allowed(y)) for y in labels]


def test_a_finite_weight_is_the_cost_of_a_violation():
    factor = pt.factors.AtMostOne("a", "b", "c", weight=2.5)
    assert factor.names == ("a", "b", "c")
    assert factor.score([[0, 1, 0], [1, 1, 0]]).tolist() == [0.0, -2.5]


def test_the_last_score_of_a_cardinality_is_that_of_so_many_or_more():
    factor = pt.factors.Cardinality([1.0, 2.0, -1.0])
    assert factor.score([[0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]]).tolist() == [1.0, 2.0, -1.0, -1.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pt.factors.AtMostOne("a", "a"), "twice"),
        (lambda: pt.factors.Implies("a"), "at least 2 names"),
        (lambda: pt.factors.And(on=2).score([1, 1]), "binary"),
        (lambda: pt.factors.Cardinality().score([1, 1]), "give its scores"),
        (lambda: pt.factors.Cardinality([np.nan]).score([1, 1]), "only -inf"),
        (lambda: pt.factors.AtMostOne("a", "b").score([0, 1, 1]), "must have 2 variables"),
        (lambda: pt.factors.AtMostOne().score([0, -1]), "complete"),
        (lambda: pt.factors.AtMostOne(weight="x").score([0, 1]), "weight"),
    ],
)
def test_errors_say_what_is_expected(make, message):
    with pytest.raises(pt.PotentiaError, match=message):
        make()
