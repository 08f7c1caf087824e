"""Cross-fitted potentials of single variables: what a CRF's pairs are trained on if trees or such score its variables.

On the variables that it was fitted to, a boosted classifier looks nearly perfect, and pairs would learn that it needs
no help. So pairs are trained on log-probabilities by copies that did not see a variable's label.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import log_softmax

from ..base.types import Floats, Ints
from ..features.example import Example
from ..potentials.base import Potential

#: Folds of the variables; fits of a fold at most, and by how much of itself the unseen loss must fall for another one.
_FOLDS, _STAGES, _ENOUGH = 4, 5, 1e-3
#: Log-probabilities are at least this.
_LEAST = np.log(1e-4)


class CrossFitted:
    """A potential fitted to all labelled variables of a kind, and copies of it that miss a fold each.

    Attributes:
        final: the potential fitted to all, as often as pays for the copies.
        unseen: log-probabilities (n_regions, n_states) of each example by copies that did not see them.
    """

    def __init__(self, make: Callable[[], Potential], examples: Sequence[Example], kind: str) -> None:
        own = [_labelled(example, kind) for example in examples]
        x = _stacked([example.features[kind] for example in examples])
        labels, weights = (np.concatenate([part[k] for part in own]) for k in (0, 1))
        folds = _folds([len(part[0]) for part in own], labels)
        n_states = int(examples[0].graph.table_shapes(kind)[0, 0])
        known = (labels >= 0) & (weights > 0)
        rows = {"y": labels, "weight": None if np.all(weights[known] == 1.0) else weights}
        copies = [(fold, known & (folds != fold), known & (folds == fold)) for fold in np.unique(folds)]
        fitted, stages = _fit_copies(make, x, rows, copies, n_states)
        scores = np.zeros((len(labels), n_states))
        for (fold, _, _), function in zip(copies, fitted, strict=True):
            scores[folds == fold] = function.scores(x[folds == fold])
        self.final = make()
        for _ in range(stages):
            self.final.fit(x[known], **_chosen(rows, known), n_outputs=n_states)
        cuts = np.cumsum([len(part[0]) for part in own])[:-1]
        self.unseen = np.split(log_probabilities(scores), cuts)


def log_probabilities(scores: Floats) -> Floats:
    """Log-probabilities of scores (n, n_states), not below a limit."""
    return np.maximum(log_softmax(scores, axis=1), _LEAST)


def _fit_copies(
    make: Callable[[], Potential], x: Any, rows: dict[str, Any], copies: Sequence[Any], n_states: int
) -> tuple[list[Potential], int]:
    """Copies fitted until the loss of what they did not see falls no more, and how many fits that took."""
    fitted: list[Potential] = [make() for _ in copies]
    best, before = fitted, np.inf
    for stage in range(1, _STAGES + 1):
        loss = 0.0
        for function, (_, seen, unseen) in zip(fitted, copies, strict=True):
            function.fit(x[seen], **_chosen(rows, seen), n_outputs=n_states)
            if unseen.any():
                loss += function.loss(x[unseen], **_chosen(rows, unseen))
        if stage > 1 and not loss < (1 - _ENOUGH) * before:
            return best, stage - 1
        best, before = copy.deepcopy(fitted), loss
    return best, _STAGES


def _chosen(rows: dict[str, Any], where: np.ndarray) -> dict[str, Any]:
    return {name: None if values is None else values[where] for name, values in rows.items()}


def _labelled(example: Example, kind: str) -> tuple[Ints, Floats]:
    """Labels, -1 where unknown, and weights of the variables of a kind."""
    variables = example.graph.scopes[kind][:, 0]
    return example.all_labels[variables], example.all_weights[variables]


def _folds(sizes: Sequence[int], labels: Ints) -> Ints:
    """The fold of every variable: whole examples, or of few examples stretches with as many labels each."""
    if len(sizes) >= _FOLDS:
        order = np.random.default_rng(0).permutation(np.arange(len(sizes)) % _FOLDS)
        return np.repeat(order, sizes)
    known = np.cumsum(labels >= 0)
    return np.minimum(_FOLDS * np.maximum(known - 1, 0) // max(1, int(known[-1])), _FOLDS - 1)


def _stacked(features: Sequence[Any]) -> Any:
    if any(hasattr(part, "tocsr") for part in features):
        return sparse.csr_array(sparse.vstack(features))
    return np.concatenate(features)
