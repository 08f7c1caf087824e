"""How much memory a fit takes beside its examples, before it begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .._available import check_memory
from ..data.example import Example
from ..potentials.base import Potential
from .examples import table_entries
from .part import ENTRY_BYTES, LAYOUT_BYTES
from .shards import SHARD_ENTRIES

#: Vectors of all parameters that an optimiser holds: ten pairs of L-BFGS, gradients and candidates.
_VECTORS = 25


def fit_bytes(potentials: Mapping[str, Potential], examples: Sequence[Example]) -> float:
    """About how many bytes a fit takes: messages, biases and scores, layouts, parameters and their gradients."""
    entries, variables = 0, {}
    parameters: dict[str, int] = {}
    for example in examples:
        graph, own = example.graph, table_entries(example.graph, example)
        entries += own
        # equal graphs share layouts, shard by shard
        variables[graph.digest] = graph.n_variables * max(1, SHARD_ENTRIES // max(own, 1))
        for kind, x in example.features.items():
            if kind in potentials and potentials[kind].differentiable and len(graph.scopes.get(kind, ())):
                size = x.shape[1] * int(np.prod(graph.table_shapes(kind)[0]))
                parameters[kind] = max(size, parameters.get(kind, 0))
    laid_out = min(sum(variables.values()), sum(example.graph.n_variables for example in examples))
    return float(ENTRY_BYTES * entries + LAYOUT_BYTES * laid_out + 8 * _VECTORS * sum(parameters.values()))


def check_fit(potentials: Mapping[str, Potential], examples: Sequence[Example]) -> None:
    """Refuse a fit for which there is not enough memory."""
    check_memory(
        fit_bytes(potentials, examples),
        f"this fit of {len(examples)} examples",
        "write them with pt.write_parts and fit pt.parts(folder)",
    )
