"""Memory of training chains grows with the weights and with what tokens have, never with tokens times labels."""

import tracemalloc

import pytest

from potentia_studies.bench.chain_memory import fit_chain, fit_risk, make_corpus

pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Work arrays of several threads add up to a peak that depends on which of them happen to run at once."""
    monkeypatch.setenv("POTENTIA_THREADS", "1")


def peak(fit, *arguments):
    """Most bytes that a fit has at once."""
    tracemalloc.start()
    try:
        model = fit(*arguments)
        return tracemalloc.get_traced_memory()[1], model
    finally:
        tracemalloc.stop()


def test_a_chain_keeps_nothing_per_token_and_label():
    labels, few, more = 120, 200, 1000
    fit_chain(make_corpus(5, labels, 600), 1)  # compiles
    small, _ = peak(fit_chain, make_corpus(few, labels, 600), 4)
    large, _ = peak(fit_chain, make_corpus(more, labels, 600), 4)
    tokens = 10 * (more - few)
    # indices, labels and features that more tokens add; one number per token and label would be 8 * labels = 960
    assert (large - small) / tokens < 600


@pytest.mark.parametrize("n_parts", [3, 12])
def test_gradients_of_parts_are_summed_as_they_come(n_parts, monkeypatch):
    corpus = make_corpus(240, 40, 3000)
    monkeypatch.setattr("potentia.learn.data.PART_ENTRIES", 240 * 10 * 40 // n_parts)
    fit_risk(make_corpus(5, 40, 600), 1)
    most, model = peak(fit_risk, corpus, 4)
    parameters = 8 * sum(p.n_parameters for p in model.potentials_.values())
    # pairs of the optimiser (8), what a step works with, and at most log2(parts) sums under way
    assert most < 34 * parameters
