"""`ChainModel`: a fitted chain over feature dictionaries, its weights by name, its file and those of other tools."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from ..base.schema import TEXT, Array, Count, Either, Items, Kind, Rule, Schema, Section
from ..base.types import Floats, PotentiaError
from ..conformal import THRESHOLDS
from ..features.attributes import MAX_LABELS, AttributeIndex, Label
from ..features.parts import Sequences
from ..features.template import Template
from ..learn.chain import (
    MAX_PAIR_LABELS,
    AttributeLabels,
    ChainLayout,
    ChainTables,
    ChainWeights,
    EncodedSequences,
    scheme_constraints,
)  # fmt: skip
from .attribute_model import ATTRIBUTES, AttributeModel, ascends, is_consistent
from .chain_files import StoredChain, crfsuite_bytes, read_crfpp, read_crfsuite, read_wapiti, wapiti_bytes, write_bytes


class ChainCalibration(NamedTuple):
    """Held-out sequences, those with spans, and (2, thresholds) the sums of what sets of labels and of spans miss."""

    n: int
    n_spanned: int
    missed: Floats


class ChainModel(AttributeModel):
    """What a fit of `ChainCRF` leaves behind, and how it is written and read; `classes_`: labels in order."""

    kind: ClassVar[str] = "ChainCRF"
    free_options: ClassVar[tuple[str, ...]] = ("max_iterations", "threads", "decode")

    template: Template | None
    constraints: Sequence[tuple[Label | None, Label | None]]
    classes_: list[Label]
    calibration_: ChainCalibration | None = None
    #: Of `partial_fit`: sums of squared gradients, and sequences given to it so far.
    _squares: ChainWeights | None = None
    _n_seen: int = 0

    saved: ClassVar[Schema] = {
        "labels": Items(Either(TEXT, Kind((int,))), "L"),
        "dense": Array("f8", ("D", "L")),
        **ATTRIBUTES,
        "feature_label": Array("u2", ("K",), low=0, below="L"),
        "pair_feature_ptr": Array("i8", ("A+1",), ends="M"),
        "pair_feature_label": Array("u2", ("M",), low=0, below=MAX_PAIR_LABELS**2),
        "pairs": Array("f8", ("L", "L")),
        "calibration": Section({"n_sequences": Count(), "n_spanned": Count()}, optional=True),
        "missed": Array("f8", (2, "thresholds"), low=0.0, optional=True),
        "layout": Rule(lambda found: _is_consistent(found), "of features and columns is inconsistent"),
    }

    # -- weights by name -----------------------------------------------------------------------------------

    @property
    def state_features_(self) -> dict[tuple[str, Any], float]:
        """Weights by attribute and label."""
        self._check_fitted()
        features = self._named(self.weights_.features)
        return {
            (name, self.classes_[k]): w for (name, k), w in zip(features, self.weights_.state.tolist(), strict=False)
        }

    @property
    def pair_features_(self) -> dict[tuple[str, Any, Any], float]:
        """Weights by attribute and pair of neighbouring labels."""
        self._check_fitted()
        features, labels = self._named(self.weights_.pair_features), self.classes_
        weights = self.weights_.state[len(self.weights_.features.label) :].tolist()
        pairs = ((name, *divmod(k, len(labels))) for name, k in features)
        return {(name, labels[a], labels[b]): w for (name, a, b), w in zip(pairs, weights, strict=True)}

    @property
    def offsets_(self) -> dict[str, float | Floats]:
        """What is subtracted, in tokens that have them, from numbers far from zero: by attribute, or array by array."""
        self._check_fitted()
        index, found = self.index_, dict[str, float | Floats](self.index_.offsets)
        for name, (first, end) in index.columns.items() if index.column_offsets.size else ():
            if index.column_offsets[first:end].any():
                found[name] = index.column_offsets[first:end].copy()
        return found

    @property
    def transition_features_(self) -> dict[tuple[Any, Any], float]:
        """Weights of neighbouring labels that are not zero."""
        self._check_fitted()
        pairs, names = self.weights_.pairs, self.classes_
        return {(names[a], names[b]): float(pairs[a, b]) for a, b in np.argwhere(pairs).tolist()}

    def _encoded(self, given: Sequences) -> EncodedSequences:
        """The weights as tables, and the sequences numbered as these are."""
        tokens, dense = self.index_.encode(given.X, given.first)
        if self.__dict__.get("_tables_scheme", ()) != (rules := (self.scheme, *map(tuple, self.constraints))):
            w = self.weights_
            layout = ChainLayout.of(w.features, w.pair_features, len(self.classes_), len(w.dense))
            vector = layout.join(w.state, w.pairs, w.dense)
            self._tables = ChainTables.of(
                layout, vector, scheme_constraints(self.classes_, self.scheme, self.constraints)
            )
            self._tables_scheme = rules
        return EncodedSequences(self._tables, self._tables.layout.renumbered(tokens), dense, given.first)

    # -- saving --------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fitted model as JSON and arrays."""
        content, arrays = super().state()
        content["labels"] = self.classes_
        arrays |= {
            "pair_feature_ptr": self.weights_.pair_features.ptr, "pairs": self.weights_.pairs,
            "pair_feature_label": self.weights_.pair_features.label,
        }  # fmt: skip
        if self.calibration_ is not None:
            content["calibration"] = {"n_sequences": self.calibration_.n, "n_spanned": self.calibration_.n_spanned}
            arrays["missed"] = self.calibration_.missed
        return content, arrays

    @classmethod
    def decode_option(cls, name: str, value: Any) -> Any:
        """Lists of a file as tuples."""
        if name == "constraints":
            return tuple(map(tuple, value))
        return tuple(value) if name == "pair_attributes" else value

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Mapping[str, Any]) -> Self:
        """The model that `state` described."""
        model, found = cls._read(content, arrays, thresholds=len(THRESHOLDS))
        scheme_constraints(found["labels"], model.scheme, model.constraints)
        model.index_.template = model.template
        features = AttributeLabels(found["feature_ptr"], found["feature_label"])
        pair_features = AttributeLabels(found["pair_feature_ptr"], found["pair_feature_label"])
        model.weights_ = ChainWeights(features, pair_features, found["state"], found["pairs"], found["dense"])
        model.classes_ = found["labels"]
        if found["calibration"] is not None and found["missed"] is not None:
            counts = found["calibration"]
            model.calibration_ = ChainCalibration(counts["n_sequences"], counts["n_spanned"], found["missed"])
        return model

    # -- files of other tools ------------------------------------------------------------------------------

    @classmethod
    def from_crfsuite(cls, path: str | os.PathLike[str]) -> Self:
        """A model that CRFsuite, python-crfsuite or sklearn-crfsuite trained."""
        return cls.of_stored(read_crfsuite(path))

    @classmethod
    def from_wapiti(cls, path: str | os.PathLike[str]) -> Self:
        """A CRF that Wapiti trained; `predict` takes rows of columns, without the label, to which it applies the
        model's patterns.
        """
        return cls.of_stored(read_wapiti(path))

    @classmethod
    def from_crfpp(cls, path: str | os.PathLike[str]) -> Self:
        """A model of CRF++ in the text form that ``crf_learn -t`` writes; `predict` takes rows of columns."""
        return cls.of_stored(read_crfpp(path))

    @classmethod
    def of_stored(cls, stored: StoredChain) -> Self:
        """The model that a file of another tool holds."""
        model = cls()
        model.template, model.classes_, model.weights_ = stored.template, [*stored.labels], stored.weights
        numbers = {name: k for k, name in enumerate(stored.names)}
        model.index_ = AttributeIndex(numbers, template=stored.template)
        model._remember([])
        model.converged_ = True
        return model

    def to_crfsuite(self, path: str | os.PathLike[str]) -> None:
        """Write the model as CRFsuite does, whose taggers can then use it."""
        stored = self.stored("CRFsuite")
        if len(stored.weights.pair_features.label) or self.template or self.scheme or self.constraints:
            raise PotentiaError(
                "CRFsuite has no features of pairs, templates, schemes or constraints, which this model has."
            )
        write_bytes(path, crfsuite_bytes(stored))

    def to_wapiti(self, path: str | os.PathLike[str]) -> None:
        """Write a model with a template as Wapiti does."""
        if self.scheme is not None or self.constraints:
            raise PotentiaError("Wapiti has no schemes or constraints, but this model has.")
        write_bytes(path, wapiti_bytes(self.stored("Wapiti")))

    def stored(self, tool: str) -> StoredChain:
        """What a file of another tool holds of the model."""
        self._check_fitted()
        if self.index_.columns or self.index_.is_centred:
            raise PotentiaError(f"{tool} has no arrays or centred numbers among its features, but this model has.")
        labels = [label for label in self.classes_ if isinstance(label, str)]
        if len(labels) < len(self.classes_):
            raise PotentiaError(f"labels must be texts in a file of {tool}.")
        return StoredChain(labels, list(self.index_.numbers), self.weights_, self.template)


def _is_consistent(found: Mapping[str, Any]) -> bool:
    """As others, and labels ascend within each attribute's pairs."""
    n, of_pairs = len(found["labels"]), found["pair_feature_label"]
    in_range = not len(of_pairs) or (n <= MAX_PAIR_LABELS and of_pairs.max() < n**2)
    whole = len(found["state"]) == len(found["feature_label"]) + len(of_pairs)
    return (
        is_consistent(found) and ascends(found["pair_feature_ptr"], of_pairs) and in_range and whole and n <= MAX_LABELS
    )
