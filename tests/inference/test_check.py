"""Every method on random small models against enumeration: what `potentia check` runs, in small form."""

import json

import numpy as np
import pytest

import potentia as pt
import reference
from potentia.cli import main
from potentia.commands import check


def test_no_method_is_wrong_on_random_models():
    assert check.check(60, 7) == []


def test_large_messages_that_move_are_not_called_converged():
    """Loopy BP on scores of 1e3, sequential: marginals and value stand still for three iterations, messages do not."""
    rng = np.random.default_rng([1, 1887])
    model = check.random_model(rng)
    assert [fault for method in check.methods(rng) for fault in check.faults(model, method)] == []


def test_enumeration_agrees_with_the_reference():
    for number in range(40):
        try:
            model = check.random_model(np.random.default_rng([3, number]))
        except pt.InfeasibleError:
            continue
        truth = reference.label_scores(model.graph, model.theta, model.observed)
        np.testing.assert_allclose(model.scores.ravel(), truth)
        if truth.max() > -np.inf:
            right = reference.variable_marginals(model.graph, model.theta, model.observed)
            np.testing.assert_allclose(model.marginals(), right, atol=1e-12)


class Liar(pt.Exact):
    """Claims half a unit too much."""

    def run(self, scores, start):
        from dataclasses import replace

        result = super().run(scores, start)
        return replace(result, value=result.value + 0.5, variable_marginals=1.1 * result.variable_marginals)


def test_a_wrong_method_is_found():
    model = check.random_model(np.random.default_rng([0, 1]))
    assert model.max_score > -np.inf
    assert len(list(check.faults(model, Liar()))) == 2


def test_the_command_prints_what_it_checked(capsys):
    assert main(["check", "--models", "3", "--seed", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"models": 3, "seed": 5, "faults": []}


def test_the_command_fails_where_a_method_is_wrong(capsys, monkeypatch):
    monkeypatch.setattr(check, "methods", lambda rng: [Liar()])
    assert main(["check", "--models", "3"]) == 2
    assert "inference was wrong" in capsys.readouterr().err


@pytest.mark.parametrize("bad", ["0", "x"])
def test_the_number_of_models_is_checked(bad):
    with pytest.raises(SystemExit):
        main(["check", "--models", bad])
