"""Taking up a checkpoint, and knowing which fit it belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .._digest import digest_of, stable_repr
from .._types import PotentiaError
from ..data.example import Example
from ..potentials.base import Potential

#: Options that a resumed fit may change.
_FREE = ("iterations", "threads", "track_error")


def take_up(potentials: Mapping[str, Potential], saved: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Make the potentials those of a checkpoint's state; the history so far."""
    if set(saved["potentials"]) != set(potentials):
        raise PotentiaError(f"the checkpoint has potentials for {sorted(saved['potentials'])}")
    for kind, (meta, arrays) in saved["potentials"].items():
        loaded = Potential.from_state(meta, arrays)
        if type(loaded) is not type(potentials[kind]):
            own, other = type(potentials[kind]).__name__, type(loaded).__name__
            raise PotentiaError(f"the checkpoint's potential of kind {kind!r} is a {other}, not a {own}")
        potentials[kind].reset().__dict__.update(loaded._fitted())
    return list(saved["history"])


def mark_of(learner: Any, potentials: Mapping[str, Potential], examples: Sequence[Example]) -> str:
    """A digest of options and examples: a fit with another one cannot be taken up."""
    options = {name: value for name, value in vars(learner).items() if name not in _FREE}
    return digest_of([stable_repr((type(learner).__name__, options, dict(potentials))), *_arrays(examples)])


def _arrays(examples: Sequence[Example]) -> Iterator[Any]:
    for example in examples:
        graph = example.graph
        yield from (graph.n_states, *graph.scopes.values(), repr((graph.kinds, list(example.features))))
        for features in example.features.values():
            sparse = not isinstance(features, np.ndarray)
            yield from (features.data, features.indices, features.indptr) if sparse else (features,)
        yield from (values for values in (example.labels, example.weights) if values is not None)
