"""What theory gives for label networks: Eq. 2, Remarks 3, 5 and 6, Theorems 4 and 9 of [LMSBN]."""

from __future__ import annotations

from itertools import product
from math import ceil, comb
from typing import Any, NamedTuple

import numpy as np

from potentia import LMBM, LMSBN
from potentia.base.types import Floats, PotentiaError, check_count, check_type, real_numbers
from potentia.kernels.search import LOGISTIC
from potentia.models.multilabel.lmsbn import UNLIMITED
from potentia.models.multilabel.network import DirectedNetwork

#: The least b with log(1 + exp(-z)) <= [1 - z]_+ + b for all z; the paper's log(e + 1 / e) is larger.
_HINGE_GAP = float(np.log1p(np.exp(-1.0)))


class ErrorBound(NamedTuple):
    """Mean loss of true labellings, the bound mean / threshold on the share of rows predicted wrong, that share.

    threshold: labellings other than the predicted one have at least this loss; without one, 0, the bound is infinite.
    """

    mean_loss: float
    bound: float
    error: float
    threshold: float


class LikelihoodBound(NamedTuple):
    """Per row: minus the log-likelihood of the labelling in the sigmoid network, and its bound by hinge losses."""

    log_loss: Floats
    bound: Floats


class SearchBound(NamedTuple):
    """Per bound S: the least share of rows with certain optima by theory, the share observed, and states at most.

    guaranteed: max(0, 1 - mean loss / S). certain: rows whose search below S ended with a labelling found. states: a
    search below S visits at most this many partial labellings. visited: the most that one did.
    """

    bounds: Floats
    guaranteed: Floats
    certain: Floats
    states: list[int]
    visited: list[int]


def error_bound(model: LMSBN | LMBM, X: Any, y: Any) -> ErrorBound:
    r"""Theorem 4: the probability of a wrong prediction is at most E[loss of the truth] / threshold.

    The threshold of an LMSBN is 1 (Remark 6); that of an LMBM falls with its couplings (Remark 5):
    :math:`\min_i [1 - \sum_{C \ni i} |v_C|]_+` over labels i and cliques C. The bound holds for the means over the
    given rows, which estimate the expectations if the model was not trained on these rows. Predictions are exact
    here, whatever the model's options: those of an LMBM by branch and bound, which refuses rows that it cannot prove.
    """
    check_type("model", model, LMSBN, LMBM)
    losses = model.labelling_loss(X, y)
    best = model.search(X, np.inf, UNLIMITED) if isinstance(model, LMSBN) else model.search(X, "branch")
    if not np.all(best.optimal):
        raise PotentiaError(
            f"the labellings of {np.sum(~best.optimal)} rows are not proven optimal; fit with a larger eta0."
        )
    truth = np.asarray(y.toarray() if hasattr(y, "toarray") else y).reshape(len(losses), -1)
    wrong = np.any(best.labels.reshape(len(losses), -1) != truth, axis=1)
    mean, threshold = float(np.mean(losses)), _threshold(model)
    return ErrorBound(mean, mean / threshold if threshold else np.inf, float(np.mean(wrong)), threshold)


def _threshold(model: LMSBN | LMBM) -> float:
    """A lower bound on the loss of every labelling but the predicted one.

    Let y and the prediction differ in label i, and let A be the part of z_i that is the same for both: z_i is A + B for
    y and A - B for the prediction. If B < 0, y loses [1 - A - B]_+ > [1 - A]_+ in label i; else y loses no less than
    the prediction, which loses [1 - A + B]_+ >= [1 - A]_+. As y_i x turns, A holds cliques only.
    """
    if isinstance(model, LMSBN):
        return 1.0
    total = np.zeros(model.n_labels_)
    for clique, weight in zip(model.cliques_, model.clique_weights_, strict=True):
        total[list(clique)] += abs(weight)
    return float(max(0.0, 1.0 - total.max(initial=0.0)))


def likelihood_bound(model: LMSBN, X: Any, y: Any) -> LikelihoodBound:
    r"""Remark 3: the log-loss of the sigmoid network is at most the hinge sum plus a constant per label.

    .. math:: \sum_i \log(1 + \exp(-z_i)) \le \sum_i [1 - z_i]_+ + K b

    with K labels and :math:`b = \log(1 + 1 / e)`, the least constant for which it holds. Labels that are constant in
    training are left out of both sums and of K.
    """
    check_type("model", model, LMSBN)
    log_loss = model.log_loss(X, y)
    return LikelihoodBound(log_loss, model.labelling_loss(X, y) + _HINGE_GAP * len(model.order_))


def search_bound(model: LMSBN, X: Any, y: Any, bounds: Any) -> SearchBound:
    r"""Theorem 9: a search for labellings of loss below S finds the optimum with a probability that grows with S.

    The probability is at least :math:`1 - E[\text{loss}] / S`, and the search visits :math:`O(K^S)` states.
    """
    check_type("model", model, LMSBN)
    S = real_numbers(bounds, "bounds").ravel()
    if S.size == 0 or not np.all(S >= 1):
        raise PotentiaError("bounds must be numbers of at least 1.")
    mean = float(np.mean(model.labelling_loss(X, y)))
    searches = [model.search(X, bound=s) for s in S]
    K = len(model.order_)
    return SearchBound(
        S,
        np.maximum(0.0, 1.0 - mean / S),
        np.array([np.mean(s.optimal) for s in searches]),
        [states_below(K, s) for s in S],
        [int(s.states.max()) for s in searches],
    )


def states_below(n_labels: int, bound: float) -> int:
    """Partial labellings of K labels that a search below S can visit: those with fewer than S second branches.

    A second branch costs at least 1, so one of loss below S has at most ceil(S) - 1 of them: the sum over depths d =
    1..K and i < S of C(d, i).
    """
    most = n_labels if np.isinf(bound) else min(n_labels, ceil(bound) - 1)
    return sum(comb(d, i) for d in range(1, n_labels + 1) for i in range(min(d, most) + 1))


class Probabilities(NamedTuple):
    """P(label is the larger of its values) (n, K): exact, or means over `samples` draws with their standard errors."""

    values: Floats
    exact: bool
    samples: int
    error: Floats


def label_probabilities(
    model: LMSBN, X: Any, samples: int = 1000, exact_up_to: int = 12, random_state: int = 0
) -> Probabilities:
    r"""Probabilities of labels in the sigmoid network :math:`\prod_i 1 / (1 + \exp(-z_i))` [LMSBN Eq. 2].

    Exact for up to `exact_up_to` labels, by enumeration of all labellings of each row; otherwise means over
    `samples` ancestral samples of each label's probability given the sampled labels before it.
    """
    check_type("model", model, LMSBN)
    check_count("samples", samples, 1)
    check_count("exact_up_to", exact_up_to)
    check_count("random_state", random_state)
    if model.constraints is not None:
        raise PotentiaError("label_probabilities does not know constraints: use predict_proba.")
    base = model._base(model._checked(X))
    samples = 0 if base.shape[1] <= exact_up_to else samples
    values, error = (
        sampled_marginals(model.network_, base, samples, random_state)
        if samples
        else enumerated_marginals(model.network_, base)
    )
    p = model._coding.beside_constant(values, model._coding.probabilities)
    errors = model._coding.beside_constant(error, np.zeros(model.n_labels_))
    return Probabilities(p, samples == 0, samples, errors)


def enumerated_marginals(network: DirectedNetwork, base: Floats) -> tuple[Floats, Floats]:
    """P(y_i = +1) (n, K) by the sum over all labellings, and errors of 0."""
    values = np.zeros(base.shape)
    for signs in product((-1.0, 1.0), repeat=base.shape[1]):
        chance = np.exp(-network.losses(base, np.broadcast_to(signs, base.shape), LOGISTIC))
        values += chance[:, None] * (np.array(signs) > 0)
    return values, np.zeros(base.shape)


def sampled_marginals(network: DirectedNetwork, base: Floats, samples: int, seed: int) -> tuple[Floats, Floats]:
    """Means of P(y_i = +1 | the sampled labels before i) (n, K), and their standard errors."""
    links, rng = network.links, np.random.default_rng(seed)
    y, values, error = np.zeros((len(base), samples, base.shape[1])), np.empty(base.shape), np.empty(base.shape)
    for place, label in enumerate(network.order):
        z = base[:, label, None] + y @ links.coupling[place]
        for t in range(links.term_ptr[place], links.term_ptr[place + 1]):
            z += links.weight[t] * y[..., links.members[links.member_ptr[t] : links.member_ptr[t + 1]]].prod(axis=-1)
        up = 1.0 / (1.0 + np.exp(-np.clip(z, -700, 700)))
        values[:, label], error[:, label] = up.mean(axis=1), up.std(axis=1) / np.sqrt(samples)
        y[..., place] = np.where(rng.random(up.shape) < up, 1.0, -1.0)
    return values, error
