"""`AttributeModel`: what chains and segments have in common: weights of attributes of tokens, their fit and file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import numpy as np

from ..base.backend import releasing
from ..base.params import Params
from ..base.progress import Bar
from ..base.resources import one_blas_thread, thread_count
from ..base.saving import Registered, build, decode, digest_of, encode, read_file, reading, write_file
from ..base.schema import Array, Count, Items, Kind, Named, Number, Schema, Section, check
from ..base.types import (
    Ints,
    PotentiaError,
    check_choice,
    check_count,
    check_flag,
    check_function,
    check_number,
    check_type,
)  # fmt: skip
from ..features.attributes import AttributeIndex, PackedNames, pack_names
from ..features.schemes import SCHEMES
from ..learn.base import Callback, State, run, steps_made
from ..learn.chain import AttributeLabels, ChainWeights
from ..learn.chain_data import ChainData, pruned
from ..learn.chain_fit import ChainFit
from ..learn.checkpoint import Checkpoint

#: What every such file holds.
ATTRIBUTES: Schema = {
    "params": Kind((dict,)),
    "history": Items(Section({"iteration": Count(), "objective": Number(finite=False)})),
    "columns": Named(Items(Count(), "two")),
    "names": Array("u1", ("B",), low=0, below=256),
    "name_ptr": Array("i8", ("A+1",), ends="B"),
    "feature_ptr": Array("i8", ("A+1",), ends="K"),
    "state": Array("f8", ("S",)),
    "offsets": Named(Number(), optional=True),
    "column_offsets": Array("f8", ("D",), optional=True),
}


@dataclass(eq=False, repr=False)
class Penalised(Registered, Params):
    """Options of fits that minimise c1 |w|_1 + c2 |w|^2 - log-likelihood; see `ChainCRF`."""

    c1: float = 0.0
    c2: float = 1.0
    max_iterations: int = 100
    _: KW_ONLY
    delta: float = 1e-5
    scheme: str | None = None
    threads: int | None = None


class AttributeModel(Penalised):
    """A model with weights of attributes.

    Attributes:
        weights_, index_: of attributes by number, and the numbers by name.
        history_, n_iter_, converged_: how the fit went.
    """

    #: What files call the model, and what they hold.
    kind: ClassVar[str]
    saved: ClassVar[Schema]
    #: Options that do not change what a fit computes.
    free_options: ClassVar[tuple[str, ...]] = ("max_iterations", "threads")

    weights_: ChainWeights
    index_: AttributeIndex
    history_: list[dict[str, Any]]
    n_iter_: int
    converged_: bool

    # -- fitting -------------------------------------------------------------------------------------------

    def _train(
        self,
        read: Callable[[bool], ChainData],
        begin: Callable[[ChainData], ChainFit],
        callback: Callback | None,
        progress: bool,
        checkpoint: str | os.PathLike[str] | Checkpoint | None,
        validation: Any = None,
    ) -> ChainData:
        """Fit the data, which `read(with digests)` reads, from the state that `begin` gives; keep what was learned."""
        check_type("checkpoint", checkpoint, str, os.PathLike, Checkpoint, optional=True)
        check_function("callback", callback)
        check_flag("progress", progress)
        with Bar(True) if progress else nullcontext() as bar, one_blas_thread(), releasing():
            data = read(isinstance(checkpoint, str | os.PathLike))
            if isinstance(checkpoint, str | os.PathLike):
                # of options and data: the checkpoint of a fit with others is refused
                options = {k: v for k, v in self.get_params().items() if k not in self.free_options}
                checkpoint = Checkpoint(checkpoint, digest_of([repr(options), *data.digests]))
            fit = begin(data)
            evaluate = self._evaluation(fit, data, validation)
            state, self.converged_ = run(
                fit, None, {}, tracked=evaluate is not None, evaluate=evaluate, callback=callback,
                checkpoint=checkpoint, bar=bar, statistics=data.parts.statistics,
            )  # fmt: skip
        vector, history = fit.vector(state), [dict(row) for row in state.history]
        del evaluate, state  # whose vectors may be most of the memory
        weights = fit.named(vector)
        del fit, vector
        # attributes without a weight are dropped
        self.weights_, self.index_ = pruned(weights, data.index)
        self._remember(history)
        return data

    def _evaluation(
        self, fit: ChainFit, data: ChainData, validation: Any
    ) -> Callable[[State], Mapping[str, Any]] | None:
        """What the history is to tell of a state besides the objective."""
        return None

    def _remember(self, history: list[dict[str, Any]]) -> None:
        self.history_, self.n_iter_ = history, steps_made(history)

    # -- weights by name -----------------------------------------------------------------------------------

    def _named(self, features: AttributeLabels) -> Iterator[tuple[str, int]]:
        """The name of the attribute, and the number of the label, of each feature."""
        names = list(self.index_.numbers)
        return zip((names[k] for k in features.owner.tolist()), features.label.tolist(), strict=True)

    # -- saving --------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file: JSON and arrays, no code."""
        write_file(path, self.kind, *self.state())

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fitted model as JSON and arrays."""
        self._check_fitted()
        index, weights = self.index_, self.weights_
        content = {
            "params": {name: encode(value, name) for name, value in self.get_params().items()},
            "history": self.history_,
            "columns": {name: list(ends) for name, ends in index.columns.items()},
            "offsets": index.offsets,
        }
        arrays = pack_names(index.numbers) | {
            "feature_ptr": weights.features.ptr, "feature_label": weights.features.label, "state": weights.state,
            "dense": weights.dense,
        }  # fmt: skip
        return content, arrays | ({"column_offsets": index.column_offsets} if index.column_offsets.size else {})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The model that `save` wrote; predictions are identical."""
        with reading(path):
            return cls.from_state(*read_file(path, cls.kind))

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Mapping[str, Any]) -> Self:
        """The model that `state` described."""
        raise NotImplementedError

    @classmethod
    def _read(cls, content: Mapping[str, Any], arrays: Mapping[str, Any], **sizes: int) -> tuple[Self, dict[str, Any]]:
        """The model without its weights, and what the file holds, checked."""
        found = check(cls.saved, {**content, **arrays}, cls.kind, sizes)
        model: Self = build(cls, {name: decode(value) for name, value in found["params"].items()})
        model._check()
        columns = {name: tuple(ends) for name, ends in found["columns"].items()}
        of_columns = () if found["column_offsets"] is None else found["column_offsets"]
        model.index_ = AttributeIndex(PackedNames(found), columns, found["offsets"], of_columns)
        model._remember(found["history"])
        return model, found

    # -- checks --------------------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "weights_")

    def __sklearn_tags__(self) -> Any:
        """scikit-learn's estimator tags; only scikit-learn calls this, so it is imported here."""
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=True))

    def _check_fitted(self) -> None:
        """Refuse a model that was never fitted."""
        if not hasattr(self, "weights_"):
            raise PotentiaError(f"this {self.kind} is not fitted: call fit first.")

    def _check(self) -> None:
        """Refuse bad options."""
        for name in ("c1", "c2", "delta"):
            check_number(name, getattr(self, name))
        check_count("max_iterations", self.max_iterations)
        check_choice("scheme", self.scheme, SCHEMES, "None")
        thread_count(self.threads)


def is_consistent(found: Mapping[str, Any]) -> bool:
    """Whether features ascend, dense columns are those of the weights, each once, and labels differ."""
    ends = sorted(map(tuple, found["columns"].values()))
    edges = [0, *(end for _, end in ends)]
    joined = all(first == before and end > first for (first, end), before in zip(ends, edges, strict=False))
    ascending = ascends(found["feature_ptr"], found["feature_label"])
    distinct = len(set(found["labels"])) == len(found["labels"]) > 0
    return ascending and joined and edges[-1] == len(found["dense"]) and distinct


def ascends(ptr: Ints, label: Any) -> bool:
    """Whether labels ascend within each row of a sparse matrix."""
    inner = np.ones(len(label), dtype=bool)
    inner[ptr[:-1][ptr[:-1] < len(label)]] = False
    return bool(np.all(np.diff(label.astype(np.int64))[inner[1:]] > 0))
