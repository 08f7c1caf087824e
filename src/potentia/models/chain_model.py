"""`ChainModel`: a fitted chain over feature dictionaries, its weights by name, its file and those of other tools."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from ..base.params import Params
from ..base.saving import Registered, build, read_file, reading, write_file
from ..base.schema import TEXT, Array, Choice, Count, Either, Items, Kind, Named, Number, Rule, Schema, Section, check
from ..base.types import Floats, Ints, PotentiaError
from ..conformal import THRESHOLDS
from ..features.attributes import MAX_LABELS, AttributeIndex, Label, PackedNames, pack_names
from ..features.parts import Sequences
from ..features.template import DIALECTS, Template
from ..kernels.attributes import TokenAttributes
from ..learn.base import steps_made
from ..learn.chain import AttributeLabels, ChainLayout, ChainTables, ChainWeights, scheme_constraints
from .chain_files import (
    SparseWeights,
    StoredChain,
    crfsuite_bytes,
    read_crfpp,
    read_crfsuite,
    read_wapiti,
    wapiti_bytes,
    write_bytes,
)

#: Most labels with features of pairs, whose numbers have 16 bits.
MAX_PAIR_LABELS = 255


class ChainCalibration(NamedTuple):
    """Held-out sequences, those with spans, and (2, thresholds) the sums of what sets of labels and of spans miss."""

    n: int
    n_spanned: int
    missed: Floats


class ChainModel(Registered, Params):
    """What a fit of `ChainCRF` leaves behind, and how it is written and read.

    Attributes:
        weights_, index_: of attributes by number, and the numbers by name.
        classes_: labels in order. history_, n_iter_, converged_: how the fit went.
    """

    scheme: str | None
    threads: int | None
    template: Template | None
    pair_attributes: Sequence[str]
    class_weight: Mapping[Label, float] | str | None
    constraints: Sequence[tuple[Label | None, Label | None]]
    weights_: ChainWeights
    index_: AttributeIndex
    classes_: list[Label]
    history_: list[dict[str, Any]]
    n_iter_: int
    converged_: bool
    calibration_: ChainCalibration | None = None
    #: Of `partial_fit`: sums of squared gradients, and sequences given to it so far.
    _squares: ChainWeights | None = None
    _n_seen: int = 0

    saved: ClassVar[Schema] = {
        "params": Kind((dict,)),
        "template": Section({"text": TEXT, "dialect": Choice(DIALECTS)}, optional=True),
        "labels": Items(Either(TEXT, Kind((int,))), "L"),
        "history": Items(Section({"iteration": Count(), "objective": Number(finite=False)})),
        "columns": Named(Items(Count(), "two")),
        "names": Array("u1", ("B",), low=0, below=256),
        "name_ptr": Array("i8", ("A+1",), ends="B"),
        "feature_ptr": Array("i8", ("A+1",), ends="K"),
        "feature_label": Array("u2", ("K",), low=0, below="L"),
        "pair_feature_ptr": Array("i8", ("A+1",), ends="M"),
        "pair_feature_label": Array("u2", ("M",), low=0, below=MAX_PAIR_LABELS**2),
        "state": Array("f8", ("S",)),
        "pairs": Array("f8", ("L", "L")),
        "dense": Array("f8", ("D", "L")),
        "offsets": Named(Number(), optional=True),
        "column_offsets": Array("f8", ("D",), optional=True),
        "calibration": Section({"n_sequences": Count(), "n_spanned": Count()}, optional=True),
        "missed": Array("f8", ("two", "thresholds"), low=0.0, optional=True),
        "layout": Rule(lambda found: _is_consistent(found), "of features and columns is inconsistent"),
    }

    lists: ClassVar[Schema] = {"pairs": Items(Items(Kind((str, int, float, type(None))), "two"))}

    # -- weights by name -----------------------------------------------------------------------------------

    @property
    def state_features_(self) -> dict[tuple[str, Any], float]:
        """Weights by attribute and label."""
        self._check_fitted()
        features = self.weights_.features
        count = np.diff(features.ptr).tolist()
        names = [name for name, n in zip(self.index_.numbers, count, strict=True) for _ in range(n)]
        keys = zip(names, (self.classes_[k] for k in features.label.tolist()), strict=True)
        return dict(zip(keys, self.weights_.state.tolist(), strict=False))

    @property
    def pair_features_(self) -> dict[tuple[str, Any, Any], float]:
        """Weights by attribute and pair of neighbouring labels."""
        self._check_fitted()
        features, labels = self.weights_.pair_features, self.classes_
        count = np.diff(features.ptr).tolist()
        names = [name for name, n in zip(self.index_.numbers, count, strict=True) for _ in range(n)]
        pairs = (divmod(k, len(labels)) for k in features.label.tolist())
        weights = self.weights_.state[len(self.weights_.features.label) :].tolist()
        return {(name, labels[a], labels[b]): w for name, (a, b), w in zip(names, pairs, weights, strict=True)}

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

    def _encoded(self, given: Sequences) -> tuple[ChainTables, TokenAttributes, Any]:
        """The weights as tables, and the sequences' attributes, numbered as these are, and dense columns."""
        tokens, dense = self.index_.encode(given.X, given.first)
        if self.__dict__.get("_tables_scheme", ()) != (rules := (self.scheme, *map(tuple, self.constraints))):
            w = self.weights_
            layout = ChainLayout.of(w.features, w.pair_features, len(self.classes_), len(w.dense))
            vector = layout.join(w.state, w.pairs, w.dense)
            self._tables = ChainTables.of(
                layout, vector, scheme_constraints(self.classes_, self.scheme, self.constraints)
            )
            self._tables_scheme = rules
        return self._tables, self._tables.layout.renumbered(tokens), dense

    # -- saving --------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file: JSON and arrays, no code."""
        write_file(path, "ChainCRF", *self.state())

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fitted model as JSON and arrays."""
        self._check_fitted()
        weight = self.class_weight
        changed = {
            "template": None,
            "pair_attributes": list(self.pair_attributes),
            "class_weight": [*map(list, weight.items())] if isinstance(weight, Mapping) else weight,
            "constraints": [*map(list, self.constraints)],
        }
        content = {
            "params": self.get_params() | changed,
            "template": None if self.template is None else asdict(self.template),
            "labels": self.classes_,
            "history": self.history_,
            "columns": {name: list(ends) for name, ends in self.index_.columns.items()},
        }
        weights = self.weights_
        arrays = pack_names(self.index_.numbers) | {
            "feature_ptr": weights.features.ptr,
            "feature_label": weights.features.label,
            "pair_feature_ptr": weights.pair_features.ptr,
            "pair_feature_label": weights.pair_features.label,
            "state": weights.state,
            "pairs": weights.pairs,
            "dense": weights.dense,
        }
        if self.calibration_ is not None:
            content["calibration"] = {"n_sequences": self.calibration_.n, "n_spanned": self.calibration_.n_spanned}
            arrays["missed"] = self.calibration_.missed
        if self.index_.is_centred:
            content["offsets"] = self.index_.offsets
        if self.index_.column_offsets.size:
            arrays["column_offsets"] = self.index_.column_offsets
        return content, arrays

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The model that `save` wrote; predictions are identical."""
        with reading(path):
            return cls.from_state(*read_file(path, "ChainCRF"))

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Mapping[str, Any]) -> Self:
        """The model that `state` described."""
        found = check(cls.saved, {**content, **arrays}, "ChainCRF")
        template = None if found["template"] is None else Template(**found["template"])
        params = found["params"]
        changed: dict[str, Any] = {"template": template, "pair_attributes": tuple(params.get("pair_attributes", ()))}
        if isinstance(weight := params.get("class_weight"), list):
            check(cls.lists, {"pairs": weight}, "ChainCRF")
            changed["class_weight"] = dict(weight)
        check(cls.lists, {"pairs": params.get("constraints", [])}, "ChainCRF")
        changed["constraints"] = tuple(map(tuple, params.get("constraints", [])))
        model: Self = build(cls, params | changed)
        model._check()
        scheme_constraints(found["labels"], model.scheme, model.constraints)
        columns = {name: tuple(ends) for name, ends in found["columns"].items()}
        column_offsets = () if found["column_offsets"] is None else found["column_offsets"]
        model.index_ = AttributeIndex(PackedNames(found), columns, found["offsets"], column_offsets, template)
        features = AttributeLabels(found["feature_ptr"], found["feature_label"])
        pair_features = AttributeLabels(found["pair_feature_ptr"], found["pair_feature_label"])
        model.weights_ = ChainWeights(features, pair_features, found["state"], found["pairs"], found["dense"])
        model.classes_, model.history_ = found["labels"], found["history"]
        model.n_iter_ = steps_made(model.history_)
        if found["calibration"] is not None and found["missed"] is not None:
            counts, missed = found["calibration"], found["missed"]
            if missed.shape != (2, len(THRESHOLDS)):
                raise PotentiaError("the saved ChainCRF is damaged: its calibration has the wrong size.")
            model.calibration_ = ChainCalibration(counts["n_sequences"], counts["n_spanned"], missed)
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
        model: Self = build(cls, {"template": stored.template})
        numbers = {name: k for k, name in enumerate(stored.names)}
        model.index_ = AttributeIndex(numbers, template=stored.template)
        of_labels, of_pairs = (
            AttributeLabels(rows.ptr, rows.code.astype(np.uint16)) for rows in (stored.state, stored.pair_state)
        )
        if len(of_pairs.label) and len(stored.labels) > MAX_PAIR_LABELS:
            raise PotentiaError(
                f"features of pairs need at most {MAX_PAIR_LABELS} labels, but this model has {len(stored.labels)}."
            )
        state = np.concatenate([stored.state.weight, stored.pair_state.weight])
        dense = np.zeros((0, len(stored.labels)))
        model.weights_ = ChainWeights(of_labels, of_pairs, state, stored.pairs, dense)
        model.classes_, model.history_, model.n_iter_, model.converged_ = list(stored.labels), [], 0, True
        return model

    def to_crfsuite(self, path: str | os.PathLike[str]) -> None:
        """Write the model as CRFsuite does, whose taggers can then use it."""
        stored = self.stored("CRFsuite")
        if len(stored.pair_state.weight) or self.template is not None or self.scheme is not None or self.constraints:
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
        weights, first = self.weights_, len(self.weights_.features.label)
        of_labels, of_pairs = (
            SparseWeights(features.ptr, features.label.astype(np.int64), weight)
            for features, weight in (
                (weights.features, weights.state[:first]),
                (weights.pair_features, weights.state[first:]),
            )
        )
        names = list(self.index_.numbers)
        return StoredChain(labels, names, of_labels, of_pairs, weights.pairs, self.template)

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
            raise PotentiaError("this ChainCRF is not fitted: call fit first.")

    def _check(self) -> None:
        """Refuse options that cannot be used."""


def _is_consistent(found: Mapping[str, Any]) -> bool:
    """Whether labels ascend within each attribute, and columns are those of the dense weights, each once."""
    labels, of_labels, of_pairs = found["labels"], found["feature_label"], found["pair_feature_label"]
    ascending = all(
        _ascends(found[ptr], label) for ptr, label in (("feature_ptr", of_labels), ("pair_feature_ptr", of_pairs))
    )
    in_range = not len(of_pairs) or (len(labels) <= MAX_PAIR_LABELS and of_pairs.max() < len(labels) ** 2)
    ends = sorted(map(tuple, found["columns"].values()))
    edges = [0, *(end for _, end in ends)]
    joined = all(first == before and end > first for (first, end), before in zip(ends, edges, strict=False))
    distinct = len(set(labels)) == len(labels) and 0 < len(labels) <= MAX_LABELS
    whole = len(found["state"]) == len(of_labels) + len(of_pairs) and edges[-1] == len(found["dense"])
    return ascending and in_range and joined and whole and distinct


def _ascends(ptr: Ints, label: Any) -> bool:
    """Whether labels ascend within each row of a sparse matrix."""
    inner = np.ones(len(label), dtype=bool)
    inner[ptr[:-1][ptr[:-1] < len(label)]] = False
    return bool(np.all(np.diff(label.astype(np.int64))[inner[1:]] > 0)) if len(label) else True
