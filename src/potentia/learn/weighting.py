"""Examples whose variables are weighted by their labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._types import real_numbers
from ..adjoint.gradient import class_factors
from ..data.example import Example


def class_weighted(examples: Sequence[Example], class_weight: Sequence[float] | None) -> Sequence[Example]:
    """The examples with every variable's weight multiplied by that of its label.

    They may have fewer states than there are class weights, as part of a data set.
    """
    if class_weight is None:
        return examples
    states = max((int(e.graph.n_states.max()) for e in examples), default=1)
    table = class_factors(class_weight, max(states, real_numbers(class_weight, "class_weight").size))
    weighted = []
    for e in examples:
        own = np.ones(e.graph.n_variables) if e.weights is None else e.weights
        factor = 1.0 if e.labels is None else np.where(e.labels >= 0, table[np.maximum(e.labels, 0)], 1.0)
        weighted.append(Example(e.graph, e.features, e.labels, own * factor, e.name, e.inputs))
    return weighted
