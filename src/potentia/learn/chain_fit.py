"""Fits of chains over attributes: from encoded tokens and labels to weights, one step of L-BFGS or OWL-QN at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .._optimise import LBFGS, OWLQN
from .._types import Bools, Floats
from ..features.attributes import EncodedTokens
from ..kernels import attributes as kernels
from .chain_layout import ChainLayout, Constraints, Features, observed_features
from .chain_objective import ChainObjective, Chains
from .learner import Fit, SavedFit

#: Vector pairs that the optimiser remembers, as many as CRFsuite.
_MEMORY = 6
#: Share of the curvature at zero weights that is left, on the whole, near the minimum.
_CURVATURE_SHARE = 0.1


class ChainWeights(NamedTuple):
    """Learned weights: `state` of each feature of `features`, `pairs` (L, L), `dense` (D, L)."""

    features: Features
    state: Floats
    pairs: Floats
    dense: Floats

    def pruned(self) -> tuple[ChainWeights, Bools]:
        """Without features of weight zero, and which attributes are left."""
        kept = self.state != 0.0
        owner = np.repeat(np.arange(len(self.features.ptr) - 1), np.diff(self.features.ptr))
        count = np.bincount(owner[kept], minlength=len(self.features.ptr) - 1)
        ptr = np.concatenate([[0], np.cumsum(count[count > 0])])
        features = Features(ptr, self.features.label[kept])
        return ChainWeights(features, self.state[kept], self.pairs, self.dense), count > 0


class ChainOptions(NamedTuple):
    """What is minimised, and where it ends; see `ChainCRF`."""

    c1: float
    c2: float
    max_iterations: int
    delta: float
    min_freq: float
    all_possible_states: bool
    all_possible_transitions: bool
    threads: int


class ChainFit(Fit):
    """Minimises c1 |w|_1 + c2 |w|^2 - log-likelihood; an iteration is a step of the optimiser."""

    limit_name: ClassVar[str] = "max_iterations"

    def __init__(
        self,
        encoded: EncodedTokens,
        labels: Any,
        weight: Floats,
        n_attributes: int,
        allowed: Constraints,
        options: ChainOptions,
    ) -> None:
        self.limit, self.tol = options.max_iterations, options.delta
        n_labels, n_dense = len(allowed.start), encoded.dense.shape[1]
        tokens = kernels.Tokens(*encoded[:4])
        features = observed_features(tokens, labels, n_attributes, n_labels, options.all_possible_states)
        pairs = _observed_pairs(encoded.sequence_ptr, labels, n_labels)
        if options.min_freq > 0:
            features = _frequent(tokens, labels, features, n_labels, options.min_freq)
        known = np.ones_like(pairs, dtype=bool) if options.all_possible_transitions else pairs > 0
        known &= (pairs >= options.min_freq) & allowed.transitions
        self.features, self.layout = features, ChainLayout.of(features, n_labels, n_dense)
        chains = Chains(in_layout(tokens, self.layout), encoded.dense)
        self.objective = ChainObjective(
            chains, labels, weight, self.layout, allowed, self.layout.free(known), options.c2, options.threads
        )
        diagonal = 2.0 * options.c2 + _CURVATURE_SHARE * self.objective.curvature()
        #: Weights are divided by the root of their curvature, which makes steps of L-BFGS count from the first on.
        self.scale = np.where(diagonal > 0.0, 1.0 / np.sqrt(np.maximum(diagonal, 1e-300)), 1.0)
        start = np.zeros(self.layout.size)
        self.search: LBFGS = (
            OWLQN(self._scaled, start, options.c1 * self.scale, _MEMORY)
            if options.c1 > 0
            else LBFGS(self._scaled, start, _MEMORY)
        )

    def _scaled(self, point: Floats) -> tuple[float, Floats]:
        """The objective as a function of scaled weights."""
        value, gradient = self.objective(point * self.scale)
        gradient *= self.scale
        return value, gradient

    def start_from(self, weights: ChainWeights) -> None:
        """Begin at these weights, whose features are this fit's."""
        self.search.point = self.layout.join(weights.state, weights.pairs, weights.dense) / self.scale

    def step(self, history: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """A step of the optimiser."""
        return {"objective": self.search.value} if self.search.step() else None

    def arrays(self) -> dict[str, Floats]:
        """The optimiser's state."""
        return self.search.state()

    def restore(self, saved: SavedFit) -> None:
        """Take back the optimiser's state."""
        self.search.restore(saved.arrays)

    @property
    def weights(self) -> ChainWeights:
        """Where the fit stands."""
        state, pairs, dense = self.layout.split(self.search.point * self.scale)
        return ChainWeights(self.features, state[self.layout.place], pairs.copy(), dense.copy())


def in_layout(tokens: kernels.Tokens, layout: ChainLayout) -> kernels.Tokens:
    """Tokens with attributes numbered as the layout says; the one after its last goes. Spends the tokens given."""
    item_ptr = np.zeros_like(tokens.item_ptr)
    left = kernels.renumber(tokens, np.append(layout.number, -1), item_ptr)
    value = tokens.value[:left] if tokens.value.size else tokens.value
    return kernels.Tokens(tokens.sequence_ptr, item_ptr, tokens.attribute[:left], value)


def _observed_pairs(sequence_ptr: Any, labels: Any, n_labels: int) -> Floats:
    """How often each label is followed by each."""
    follows = np.ones(max(len(labels) - 1, 0), dtype=bool)
    inner = sequence_ptr[1:-1]
    follows[inner[(inner > 0) & (inner < len(labels))] - 1] = False
    before, after = labels[:-1], labels[1:]
    both = follows & (before >= 0) & (after >= 0)
    counts = np.bincount(before[both] * n_labels + after[both], minlength=n_labels**2)
    return counts.reshape(n_labels, n_labels).astype(np.float64)


def _frequent(
    tokens: kernels.Tokens, labels: Any, features: Features, n_labels: int, least: float
) -> Features:
    """The features whose values sum to at least this much."""
    owner = np.repeat(np.arange(len(features.ptr) - 1), np.diff(features.ptr))
    code = owner * n_labels + features.label
    item_label = np.repeat(labels, np.diff(tokens.item_ptr))
    seen = np.flatnonzero(item_label >= 0)
    at = np.searchsorted(code, tokens.attribute[seen].astype(np.int64) * n_labels + item_label[seen])
    value = tokens.value[seen] if tokens.value.size else None
    kept = np.bincount(at, value, minlength=len(code)) >= least
    count = np.bincount(owner[kept], minlength=len(features.ptr) - 1)
    return Features(np.concatenate([[0], np.cumsum(count)]), features.label[kept])
