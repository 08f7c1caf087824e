"""`ChainCRF`: a linear-chain CRF over feature dictionaries, with the interface of sklearn-crfsuite."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, asdict, dataclass
from functools import partial
from itertools import chain, pairwise
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np

from ..base.backend import releasing
from ..base.progress import Bar
from ..base.resources import one_blas_thread, thread_count
from ..base.saving import Registered, build, digest_of, read_file, reading, write_file
from ..base.schema import TEXT, Array, Choice, Count, Either, Items, Kind, Named, Number, Rule, Schema, Section, check
from ..base.types import (
    Floats,
    Ints,
    PotentiaError,
    check_choice,
    check_count,
    check_flag,
    check_function,
    check_number,
    check_type,
    warn_caller,
)
from ..features.attributes import (
    MAX_LABELS,
    AttributeIndex,
    Label,
    check_label_type,
    check_lengths,
    check_sequences,
    pack_names,
    unpack_names,
)
from ..features.example import Parts, Sequences, Source
from ..features.schemes import SCHEMES
from ..features.template import DIALECTS, Template
from ..kernels.attributes import TokenAttributes
from ..learn.backends.connection import current, iterate_anywhere
from ..learn.base import Callback, run, steps_made
from ..learn.chain import (
    AttributeLabels,
    ChainFit,
    ChainLayout,
    ChainTables,
    ChainWeights,
    best_labels,
    k_best_labels,
    likeliest_labels,
    marginals,
    scheme_constraints,
)
from ..learn.chain_data import (
    OF_LABELS,
    OF_PAIRS,
    ChainData,
    HeldSequences,
    chain_sources,
    cut_lengths,
    pruned,
    transferred,
)
from ..learn.checkpoint import Checkpoint
from ..potentials.base import Params
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

#: A token's features by name, or their names.
Token = Mapping[str, Any] | Sequence[str]

#: If the squares of a number sum to less than this share of c2, the penalty reduces its weights to about 1 %.
_FAINT = 0.1
_DECODERS = ("map", "mpm")
#: Most labels with features of pairs, whose numbers have 16 bits.
_MAX_PAIR_LABELS = 255
#: Options that do not change what a fit computes.
_FREE_OPTIONS = ("max_iterations", "threads", "decode")


class LabelPath(NamedTuple):
    """A labelling of one sequence and log p of it."""

    labels: list[Any]
    log_probability: float


@dataclass(eq=False, repr=False)
class ChainCRF(Registered, Params):
    r"""A linear-chain conditional random field over sparse features, as CRFsuite trains it.

    Minimises :math:`-\log p(y \mid x) + c_1 |w|_1 + c_2 |w|^2` over one weight per attribute and label and per pair of
    neighbouring labels. `X` is a list of sequences, each a list of tokens, each a dictionary: texts ({"word": "The"} is
    the attribute "word:The"), numbers and booleans ({"is_title": True}), nested dictionaries, lists and sets as
    python-crfsuite takes them; an array of numbers, such as {"embedding": vector}, is a block of dense features. `y`
    is a list of lists of labels; None is an unknown label, over which the likelihood is summed.

    Args:
        c1: coefficient of the absolute weights; most weights become exactly zero, which makes models small.
        c2: coefficient of the squared weights, of the whole data, not per token.
        max_iterations: limit of steps (L-BFGS, or OWL-QN with c1 > 0).
        min_freq: features that occur less often are left out.
        all_possible_states: also give weights to pairs of attribute and label that never occur.
        all_possible_transitions: also give weights to pairs of labels that never occur; otherwise their weight is zero.
        delta: stop when the objective falls by less than this share of itself in ten steps (0: run all).
        scheme: "BIO", "BIOES" or "IOB1": sequences of labels that violate the scheme get probability zero.
            It may be changed after `fit`.
        decode: "map" predicts the best whole sequence (Viterbi), "mpm" the best label of each token; with a scheme, the
            allowed labels that are right for as many tokens as possible, in expectation.
        threads: None for all cores (or POTENTIA_THREADS).
        template: a `pt.features.Template` by which tokens are rows of columns; its lines "b" and "*" make features of
            pairs of labels, and without a line "b" there are no transitions.
        pair_attributes: names of features that also get a weight for each pair of neighbouring labels that occurs
            with them (each pair of labels with `all_possible_transitions`).

    After `fit`: `classes_` (labels in order), `history_` (one dict per iteration), `n_iter_`, `converged_`,
    `state_features_` and `transition_features_` (weights by name), `offsets_`. Results do not depend on the number of
    threads.

    A number far from zero compared with how it varies, such as a year or a time stamp, is centred: its weights multiply
    its difference from the offset in `offsets_`, and a new attribute, "year is present", says which tokens have it.
    Otherwise the penalty would hide how it varies. CRFsuite does not centre; other attributes are as in CRFsuite.
    """

    c1: float = 0.0
    c2: float = 1.0
    max_iterations: int = 100
    _: KW_ONLY
    min_freq: float = 0.0
    all_possible_states: bool = False
    all_possible_transitions: bool = False
    delta: float = 1e-5
    scheme: str | None = None
    decode: Literal["map", "mpm"] = "map"
    threads: int | None = None
    template: Template | None = None
    pair_attributes: Sequence[str] = ()

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
        "pair_feature_label": Array("u2", ("M",), low=0, below=_MAX_PAIR_LABELS**2),
        "state": Array("f8", ("S",)),
        "pairs": Array("f8", ("L", "L")),
        "dense": Array("f8", ("D", "L")),
        "offsets": Named(Number(), optional=True),
        "column_offsets": Array("f8", ("D",), optional=True),
        "layout": Rule(lambda found: _is_consistent(found), "of features and columns is inconsistent"),
    }

    # -- fitting -------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Iterable[Iterable[Token]] | Parts,
        y: Sequence[Sequence[Label | None]] | None = None,
        *,
        sample_weight: Any = None,
        callback: Callback | None = None,
        progress: bool = False,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        warm_start: bool = False,
    ) -> Self:
        """Train on sequences; X may be a generator, which is read once.

        Args:
            X: sequences; or `pt.parts` of functions that return a pair (X, y) each, which need not fit in memory.
            y: labels of the sequences; None with parts.
            sample_weight: weight of each sequence.
            callback: called after every iteration with the history; returning True stops.
            progress: show a progress bar.
            checkpoint: a file that holds the state after every iteration; if it exists, training resumes from it. A
                checkpoint of other options or data is refused.
            warm_start: start from the weights of an earlier fit, by the names of attributes and labels. Attributes that
                these sequences do not have get no weights, which gives a warning.

        A fit that fails leaves the model as it was before.
        """
        self._check()
        check_type("checkpoint", checkpoint, str, os.PathLike, Checkpoint, optional=True)
        check_function("callback", callback)
        check_flag("progress", progress)
        check_flag("warm_start", warm_start)
        sources, resident = chain_sources(X, y, sample_weight)
        marked = isinstance(checkpoint, str | os.PathLike)
        with Bar(True) if progress else nullcontext() as bar, one_blas_thread(), releasing():
            data = ChainData(sources, resident, marked, self.template)
            if data.faintest is not None and data.faintest[1] < _FAINT * self.c2:
                warn_caller(
                    f"the numbers of {data.faintest[0]!r} are so small that the penalty c2 = {self.c2:g} leaves hardly "
                    "any weight to them: scale them, or lower c2.",
                    UserWarning,
                )
            if isinstance(checkpoint, str | os.PathLike):
                # of options and data: the checkpoint of a fit with others is refused
                options = {k: v for k, v in self.get_params().items() if k not in _FREE_OPTIONS}
                checkpoint = Checkpoint(checkpoint, digest_of([repr(options), *data.digests]))
            fit = self._begin(data, warm_start and hasattr(self, "weights_"))
            state, self.converged_ = run(
                fit, None, {}, callback=callback, checkpoint=checkpoint, bar=bar, statistics=data.parts.statistics
            )  # fmt: skip
        # attributes without a weight are dropped
        self.weights_, self.index_ = pruned(fit.weights(state), data.index)
        self.classes_, self.history_ = data.classes, [dict(row) for row in state.history]
        self.n_iter_ = steps_made(self.history_)
        self.__dict__.pop("_tables_scheme", None)
        return self

    def _begin(self, data: ChainData, warm: bool) -> ChainFit:
        """The fit before its first step, with weights of zero or, if `warm`, those of the fit before."""
        allowed, n = scheme_constraints(data.classes, self.scheme), len(data.classes)
        scope = self._scope(data.index)
        if np.any(scope & OF_PAIRS) and n > _MAX_PAIR_LABELS:
            raise PotentiaError(f"features of pairs need at most {_MAX_PAIR_LABELS} labels, but y has {n}.")
        free = self.min_freq <= 0
        all_states, all_pairs = self.all_possible_states and free, self.all_possible_transitions and free
        sought = scope & ~np.uint8(OF_LABELS * all_states | OF_PAIRS * all_pairs)
        states, features, pair_features, pairs = data.number(allowed, self.scheme, sought, self.min_freq)
        if all_states:
            features = AttributeLabels.full(scope & OF_LABELS > 0, n)
        if all_pairs:
            pair_features = AttributeLabels.full(scope & OF_PAIRS > 0, n * n)
        seen = np.ones_like(pairs, dtype=bool) if self.all_possible_transitions else pairs > 0
        if self.template is not None and self.template.constant is None:
            seen[:] = False
        fit = ChainFit(
            data.parts, states, features, pair_features, seen & (pairs >= self.min_freq) & allowed.transitions,
            data.n_dense, c1=self.c1, c2=self.c2, delta=self.delta, max_iterations=self.max_iterations,
            threads=self.threads,
        )  # fmt: skip
        if warm:
            _warn_of_dropped(self.index_, data.index)
            first, before = fit.weights(fit.init()), (self.weights_, self.index_, self.classes_)
            fit.start_from(transferred(*before, first, data.index, data.classes))
        return fit

    def _scope(self, index: AttributeIndex) -> Any:
        """Of each attribute, whether it has features of labels, of pairs of labels, or both."""
        if self.template is not None:
            of_letter = {"u": OF_LABELS, "b": OF_PAIRS, "*": OF_LABELS | OF_PAIRS}
            constant, letters = self.template.constant, (name[0].lower() for name in index.numbers)
            scope = np.fromiter(map(of_letter.__getitem__, letters), np.uint8, len(index.numbers))
            if constant is not None and constant in index.numbers:  # whose pairs are the transitions
                scope[index.numbers[constant]] &= OF_LABELS
            return scope
        scope = np.full(len(index.numbers), OF_LABELS, dtype=np.uint8)
        if self.pair_attributes:
            keys = set(self.pair_attributes)
            chosen = (name in keys or name.partition(":")[0] in keys for name in index.numbers)
            scope[np.fromiter(chosen, bool, len(scope))] |= OF_PAIRS
        return scope

    # -- predicting ----------------------------------------------------------------------------------------

    def predict(self, X: Iterable[Iterable[Token]] | Parts) -> list[list[Any]]:
        """A list of labels per sequence, by `decode`; the sequences may be `pt.parts`, as in `fit`, with y None."""
        return list(chain.from_iterable(self._by_part(X, self._predict)))

    def _by_part(self, X: Iterable[Iterable[Token]] | Parts, method: Callable[[Sequences], Any]) -> Iterable[Any]:
        """What a method gives for each part of the sequences, on the cluster if there is one; else they are one."""
        self._check_fitted()
        check_choice("decode", self.decode, _DECODERS)
        if not isinstance(X, Parts) and current() is None:
            return [method(Sequences(X))]
        sources = X.sources if isinstance(X, Parts) else _held(X)
        return iterate_anywhere(partial(_apply, method), sources)

    def _predict(self, given: Sequences) -> list[list[Any]]:
        """Labels of sequences, by `decode`."""
        tables, tokens, dense = self._encoded(given)
        threads, names = thread_count(self.threads), self.classes_
        if self.decode == "mpm":
            mu, _ = marginals(tables, tokens, dense, threads, given.first)
            numbers = likeliest_labels(tokens.sequence_ptr, mu, tables.allowed)
        else:
            numbers = best_labels(tables, tokens, dense, threads, given.first)
        return _split([names[k] for k in numbers.tolist()], tokens)

    def predict_single(self, xseq: Iterable[Token]) -> list[Any]:
        """The labels of one sequence."""
        return self.predict([xseq])[0]

    def predict_marginals(self, X: Iterable[Iterable[Token]] | Parts) -> list[list[dict[Any, float]]]:
        """The probability of every label of every token, as dictionaries; the sequences may be `pt.parts`."""
        return list(chain.from_iterable(self._by_part(X, self._predict_marginals)))

    def _predict_marginals(self, given: Sequences) -> list[list[dict[Any, float]]]:
        """Marginals of every token as {label: probability}."""
        tables, tokens, dense = self._encoded(given)
        rows = marginals(tables, tokens, dense, thread_count(self.threads), given.first)[0].tolist()
        return _split([dict(zip(self.classes_, row, strict=True)) for row in rows], tokens)

    def predict_marginals_single(self, xseq: Iterable[Token]) -> list[dict[Any, float]]:
        """The probability of every label of every token of one sequence."""
        return self.predict_marginals([xseq])[0]

    def k_best(self, X: Iterable[Iterable[Token]], k: int) -> list[list[LabelPath]]:
        """The k most likely labellings of each sequence, best first; fewer where a sequence has fewer."""
        check_count("k", k, 1)
        self._check_fitted()
        return [
            [LabelPath([self.classes_[y] for y in path], log_p) for path, log_p in paths]
            for paths in k_best_labels(*self._encoded(Sequences(X)), k, thread_count(self.threads))
        ]

    def score(self, X: Iterable[Iterable[Token]] | Parts, y: Sequence[Sequence[Label | None]] | None = None) -> float:
        """Share of known labels that are predicted correctly; y is None for `pt.parts`, which bring their labels."""
        if isinstance(X, Parts):
            counts = self._by_part(X, self._count)
        else:
            counts = [_compare(self.predict(X), [] if y is None else y, self.classes_)]
        right, known = map(sum, zip(*counts, strict=True))
        if not known:
            raise PotentiaError("y has no label to compare with.")
        return right / known

    def _count(self, given: Sequences) -> tuple[int, int]:
        """How many tokens of sequences are predicted right, and how many there are."""
        return _compare(self._predict(given), [] if given.y is None else given.y, self.classes_)

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
        if self.__dict__.get("_tables_scheme", ()) != self.scheme:
            w = self.weights_
            layout = ChainLayout.of(w.features, w.pair_features, len(self.classes_), len(w.dense))
            vector = layout.join(w.state, w.pairs, w.dense)
            self._tables = ChainTables.of(layout, vector, scheme_constraints(self.classes_, self.scheme))
            self._tables_scheme = self.scheme
        return self._tables, self._tables.layout.renumbered(tokens), dense

    # -- saving --------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file: JSON and arrays, no code."""
        write_file(path, "ChainCRF", *self.state())

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fitted model as JSON and arrays."""
        self._check_fitted()
        content = {
            "params": self.get_params() | {"template": None, "pair_attributes": list(self.pair_attributes)},
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
        pair_attributes = found["params"].get("pair_attributes", ())
        changed = {"template": template, "pair_attributes": tuple(pair_attributes)}
        model: Self = build(cls, found["params"] | changed)
        model._check()
        scheme_constraints(found["labels"], model.scheme)
        names = unpack_names(found)
        if len(set(names)) != len(names):
            raise PotentiaError("the saved ChainCRF is damaged: two attributes have the same name.")
        columns = {name: tuple(ends) for name, ends in found["columns"].items()}
        column_offsets = () if found["column_offsets"] is None else found["column_offsets"]
        numbers = {name: k for k, name in enumerate(names)}
        model.index_ = AttributeIndex(numbers, columns, found["offsets"], column_offsets, template)
        features = AttributeLabels(found["feature_ptr"], found["feature_label"])
        pair_features = AttributeLabels(found["pair_feature_ptr"], found["pair_feature_label"])
        model.weights_ = ChainWeights(features, pair_features, found["state"], found["pairs"], found["dense"])
        model.classes_, model.history_ = found["labels"], found["history"]
        model.n_iter_ = steps_made(model.history_)
        return model

    # -- files of other tools ------------------------------------------------------------------------------

    @classmethod
    def from_crfsuite(cls, path: str | os.PathLike[str]) -> Self:
        """A model that CRFsuite, python-crfsuite or sklearn-crfsuite trained."""
        return cls._of_stored(read_crfsuite(path))

    @classmethod
    def from_wapiti(cls, path: str | os.PathLike[str]) -> Self:
        """A CRF that Wapiti trained; `predict` takes rows of columns, without the label, to which it applies the
        model's patterns.
        """
        return cls._of_stored(read_wapiti(path))

    @classmethod
    def from_crfpp(cls, path: str | os.PathLike[str]) -> Self:
        """A model of CRF++ in the text form that ``crf_learn -t`` writes; `predict` takes rows of columns."""
        return cls._of_stored(read_crfpp(path))

    @classmethod
    def _of_stored(cls, stored: StoredChain) -> Self:
        """A fitted model with the weights of another tool's file."""
        model = cls(template=stored.template)
        numbers = {name: k for k, name in enumerate(stored.names)}
        model.index_ = AttributeIndex(numbers, template=stored.template)
        of_labels, of_pairs = (
            AttributeLabels(rows.ptr, rows.code.astype(np.uint16)) for rows in (stored.state, stored.pair_state)
        )
        if len(of_pairs.label) and len(stored.labels) > _MAX_PAIR_LABELS:
            raise PotentiaError(
                f"features of pairs need at most {_MAX_PAIR_LABELS} labels, but this model has {len(stored.labels)}."
            )
        state = np.concatenate([stored.state.weight, stored.pair_state.weight])
        dense = np.zeros((0, len(stored.labels)))
        model.weights_ = ChainWeights(of_labels, of_pairs, state, stored.pairs, dense)
        model.classes_, model.history_, model.n_iter_, model.converged_ = list(stored.labels), [], 0, True
        return model

    def to_crfsuite(self, path: str | os.PathLike[str]) -> None:
        """Write the model as CRFsuite does, whose taggers can then use it."""
        stored = self._stored("CRFsuite")
        if len(stored.pair_state.weight) or self.template is not None or self.scheme is not None:
            raise PotentiaError("CRFsuite has no features of pairs, templates or schemes, which this model has.")
        write_bytes(path, crfsuite_bytes(stored))

    def to_wapiti(self, path: str | os.PathLike[str]) -> None:
        """Write a model with a template as Wapiti does."""
        if self.scheme is not None:
            raise PotentiaError("Wapiti has no schemes, but this model has one.")
        write_bytes(path, wapiti_bytes(self._stored("Wapiti")))

    def _stored(self, tool: str) -> StoredChain:
        """The fitted weights as another tool's file has them; refuses what that tool cannot represent."""
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
        """Refuse bad options."""
        for name in ("c1", "c2", "min_freq", "delta"):
            check_number(name, getattr(self, name))
        check_count("max_iterations", self.max_iterations)
        for name in ("all_possible_states", "all_possible_transitions"):
            check_flag(name, getattr(self, name))
        check_choice("decode", self.decode, _DECODERS)
        check_type("template", self.template, Template, optional=True)
        if isinstance(self.pair_attributes, str) or not all(isinstance(key, str) for key in self.pair_attributes):
            raise PotentiaError("pair_attributes must be a list of names of features.")
        if self.scheme is not None:
            check_choice("scheme", self.scheme, SCHEMES, "None")
        thread_count(self.threads)


def _warn_of_dropped(before: AttributeIndex, now: AttributeIndex) -> None:
    """Warn of attributes that an earlier fit gave weights and that the new sequences do not have."""
    dropped = [name for name in before.numbers if name not in now.numbers]
    if dropped:
        warn_caller(
            f"warm_start drops {len(dropped)} of the {len(before.numbers)} attributes of the earlier fit, such as "
            f"{dropped[0]!r:.60}, which X does not have: fit on all sequences together to keep them.",
            UserWarning,
        )


def _held(X: Iterable[Any]) -> list[Source]:
    """Sequences in memory, cut into parts."""
    check_sequences(X)
    kept = [list(sequence) if isinstance(sequence, Iterator) else sequence for sequence in X]
    cuts = cut_lengths([len(sequence) if hasattr(sequence, "__len__") else 1 for sequence in kept])
    return [HeldSequences(Sequences(kept[a:b], first=a)) for a, b in cuts]


def _apply(method: Callable[[Sequences], Any], source: Source) -> Any:
    """What a method of a model gives for a part, wherever it is read."""
    return method(source.sequences())


def _compare(
    found: Sequence[Sequence[Any]], y: Sequence[Sequence[Label | None]], classes: Sequence[Label]
) -> tuple[int, int]:
    """How many labels are right, and how many are known."""
    check_label_type(y, classes)
    check_lengths(y, [len(row) for row in found])
    pairs = [(a, b) for p, q in zip(found, y, strict=True) for a, b in zip(p, q, strict=True) if b is not None]
    return sum(a == b for a, b in pairs), len(pairs)


def _split(values: list[Any], tokens: TokenAttributes) -> list[list[Any]]:
    """What belongs to each sequence."""
    return [values[a:b] for a, b in pairwise(tokens.sequence_ptr.tolist())]


def _is_consistent(found: Mapping[str, Any]) -> bool:
    """Whether labels ascend within each attribute, and columns are those of the dense weights, each once."""
    labels, of_labels, of_pairs = found["labels"], found["feature_label"], found["pair_feature_label"]
    ascending = all(
        _ascends(found[ptr], label) for ptr, label in (("feature_ptr", of_labels), ("pair_feature_ptr", of_pairs))
    )
    in_range = not len(of_pairs) or (len(labels) <= _MAX_PAIR_LABELS and of_pairs.max() < len(labels) ** 2)
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
