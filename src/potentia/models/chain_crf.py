"""`ChainCRF`: a linear-chain CRF over feature dictionaries, with the interface of sklearn-crfsuite."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from ..base.backend import releasing
from ..base.resources import one_blas_thread, thread_count
from ..base.types import (
    Floats,
    Ints,
    PotentiaError,
    check_choice,
    check_flag,
    check_number,
    check_type,
    real_number,
    warn_caller,
)
from ..features.attributes import AttributeIndex, Label, check_lengths
from ..features.parts import Parts
from ..features.template import Template
from ..learn.base import Callback, State
from ..learn.chain import (
    MAX_PAIR_LABELS,
    AttributeLabels,
    ChainTables,
    ChainWeights,
    EncodedSequences,
    best_labels,
    per_sequence,
    scheme_constraints,
)  # fmt: skip
from ..learn.chain_data import OF_LABELS, OF_PAIRS, ChainData, Renumbering, chain_sources
from ..learn.chain_fit import ChainFit, Solver
from ..learn.checkpoint import Checkpoint
from .chain_predict import DECODERS, ChainPredictor, Token

#: If the squares of a number sum to less than this share of c2, the penalty reduces its weights to about 1 %.
_FAINT = 0.1


@dataclass(eq=False, repr=False)
class ChainCRF(ChainPredictor):
    r"""A linear-chain conditional random field over sparse features, as CRFsuite trains it.

    Minimises :math:`-\log p(y \mid x) + c_1 |w|_1 + c_2 |w|^2` over one weight per attribute and label and per pair of
    neighbouring labels. `X` is a list of sequences, each a list of tokens, each a dictionary: texts ({"word": "The"} is
    the attribute "word:The"), numbers and booleans ({"is_title": True}), nested dictionaries, lists and sets as
    python-crfsuite takes them; an array of numbers, such as {"embedding": vector}, is a block of dense features. A
    sequence may also be an array (tokens, columns). `y` is a list of lists of labels; None is an unknown label, over
    which the likelihood is summed, and a set, tuple or list says which labels are possible.

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
        class_weight: of each label, or "balanced" (inversely proportional to how often it occurs); others weigh 1.
            A labelling counts as many times as likely in training as the weights of the labels it gets wrong
            multiply to [softmax-margin, Gimpel and Smith 2010], so that errors at labels of large weight become rare.
        constraints: pairs of labels that must not follow each other, such as ("I-PER", "B-LOC"); None in the first
            place stands for the begin of a sequence, in the second for its end. They hold in training and prediction
            and may be changed after `fit`.

    After `fit`: `classes_` (labels in order), `history_` (one dict per iteration), `n_iter_`, `converged_`,
    `state_features_` and `transition_features_` (weights by name), `offsets_`. Results do not depend on the number of
    threads.

    A number far from zero compared with how it varies, such as a year or a time stamp, is centred: its weights multiply
    its difference from the offset in `offsets_`, and a new attribute, "year is present", says which tokens have it.
    Otherwise the penalty would hide how it varies. CRFsuite does not centre; other attributes are as in CRFsuite.

    Example:
        >>> import potentia as pt
        >>> X = [[{"word": "Ann"}, {"word": "saw"}, {"word": "Oslo"}], [{"word": "Oslo"}, {"word": "slept"}]]
        >>> y = [["PERSON", "O", "PLACE"], ["PLACE", "O"]]
        >>> model = pt.ChainCRF(c2=0.1).fit(X, y)
        >>> model.predict([[{"word": "Ann"}, {"word": "slept"}]])
        [['PERSON', 'O']]
        >>> [max(token, key=token.get) for token in model.predict_marginals(X)[0]]
        ['PERSON', 'O', 'PLACE']
    """

    _: KW_ONLY
    min_freq: float = 0.0
    all_possible_states: bool = False
    all_possible_transitions: bool = False
    decode: Literal["map", "mpm"] = "map"
    template: Template | None = None
    pair_attributes: Sequence[str] = ()
    class_weight: Mapping[Label, float] | str | None = None
    constraints: Sequence[tuple[Label | None, Label | None]] = ()

    #: How to minimise, and whether numbers far from zero are centred.
    _solver: ClassVar[Solver] = Solver()
    _centred: ClassVar[bool] = True

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
        validation: tuple[Iterable[Iterable[Token]], Sequence[Sequence[Label | None]]] | None = None,
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
                these sequences do not have keep their weights.
            validation: sequences and labels (X, y) that do not train; after every iteration the shares of wrong labels
                and of sequences with wrong labels, "validation_error" and "validation_sequence_error" in the history.

        A fit that fails leaves the model as it was before.
        """
        self._check()
        check_flag("warm_start", warm_start)

        def read(marked: bool) -> ChainData:
            return ChainData(*chain_sources(X, y, sample_weight), marked, self.template, self._centred)

        def begin(data: ChainData) -> ChainFit:
            if data.faintest is not None and data.faintest[1] < _FAINT * self.c2:
                warn_caller(
                    f"the numbers of {data.faintest[0]!r} are so small that the penalty c2 = {self.c2:g} leaves hardly "
                    "any weight to them: scale them, or lower c2.",
                    UserWarning,
                )
            return self._begin(data, warm_start and hasattr(self, "weights_"), self._solver)

        self.classes_ = self._train(read, begin, callback, progress, checkpoint, validation).classes
        self._squares = None
        self.__dict__.pop("_tables_scheme", None)
        return self

    def partial_fit(
        self,
        X: Iterable[Iterable[Token]],
        y: Sequence[Sequence[Label | None]],
        classes: Sequence[Label] | None = None,
        *,
        sample_weight: Any = None,
    ) -> Self:
        """One pass of stochastic gradient steps [AdaGrad, Duchi et al. 2011] over these sequences.

        Attributes and labels that were not met before get weights, others keep theirs. The penalties count by the
        share of these sequences among all that `partial_fit` was given. `classes`: labels that may come later.
        """
        self._check()
        known = hasattr(self, "weights_")
        with one_blas_thread(), releasing():
            data = ChainData(*chain_sources(X, y, sample_weight), template=self.template, centred=False)
            data.remember(AttributeIndex(), classes or ())
            n = len(y)
            self._n_seen = n + (self._n_seen if known else 0)
            fit = self._begin(data, known, Solver("l2sgd", seed=self._n_seen), n / self._n_seen)
            squares, first = self._squares, fit.init()
            if known:
                before = self.weights_ if squares is None else squares
                if squares is None:  # of a fit or a file: steps as long as if there had been some
                    before = ChainWeights(*before[:2], *(np.ones_like(part) for part in before[2:]))
                moves = Renumbering.of(self.index_, self.classes_, data.index, data.classes)
                moved = moves.transferred(before, self.index_, fit.weights(first), data.index)
                first = replace(first, arrays={**first.arrays, "squares": fit.layout.join(*moved[2:])})
            state = fit.step(None, first)
        self.weights_, self.index_, self.classes_ = fit.weights(state), data.index, data.classes
        self._squares = fit.named(state.arrays["squares"])
        history = self.history_ if known else []
        before_row = history[-1]["iteration"] if history else 0
        self._remember([*history, {**state.history[-1], "iteration": before_row + 1}])
        self.converged_ = False
        self.__dict__.pop("_tables_scheme", None)
        return self

    def _begin(self, data: ChainData, warm: bool, solver: Solver, share: float = 1.0) -> ChainFit:
        """The fit before its first step, with weights of zero or, if `warm`, those of the fit before.

        share: of the penalties, which counts.
        """
        costs, n_new = self._costs(data), len(data.index)
        if warm:
            data.remember(self.index_, self.classes_)
            costs = np.append(costs, np.zeros(len(data.classes) - len(costs))) if costs is not None else None
        allowed, n = scheme_constraints(data.classes, self.scheme, self.constraints), len(data.classes)
        scope = self._scope(data.index)
        if np.any(scope & OF_PAIRS) and n > MAX_PAIR_LABELS:
            raise PotentiaError(f"features of pairs need at most {MAX_PAIR_LABELS} labels, but y has {n}.")
        free = self.min_freq <= 0
        all_states, all_pairs = self.all_possible_states and free, self.all_possible_transitions and free
        sought = scope & ~np.uint8(OF_LABELS * all_states | OF_PAIRS * all_pairs)
        states, features, pair_features, pairs = data.number(allowed, self.scheme, sought, self.min_freq, costs)
        if all_states:
            features = AttributeLabels.full(scope & OF_LABELS > 0, n)
        if all_pairs:
            pair_features = AttributeLabels.full(scope & OF_PAIRS > 0, n * n)
        seen = np.ones_like(pairs, dtype=bool) if self.all_possible_transitions else pairs > 0
        if self.template is not None and self.template.constant is None:
            seen[:] = False
        seen &= pairs >= self.min_freq
        if warm:
            moves = Renumbering.of(self.index_, self.classes_, data.index, data.classes)
            features = moves.joined(features, self.weights_.features, moves.label, n)
            pair_features = moves.joined(pair_features, self.weights_.pair_features, moves.pair, n * n)
            seen[np.ix_(moves.label, moves.label)] |= self.weights_.pairs != 0.0
        frozen = np.concatenate([features.owner, pair_features.owner]) >= n_new if warm else None
        fit = ChainFit(
            data.parts, states, features, pair_features, seen & allowed.transitions, data.n_dense,
            c1=self.c1 * share, c2=self.c2 * share, delta=self.delta, max_iterations=self.max_iterations,
            threads=self.threads, solver=solver, frozen=frozen,
        )  # fmt: skip
        if warm:
            fit.start_from(moves.transferred(self.weights_, self.index_, fit.weights(fit.init()), data.index))
        return fit

    def _costs(self, data: ChainData) -> Floats | None:
        """The logarithm of the weight of each label."""
        if self.class_weight is None:
            return None
        if isinstance(self.class_weight, str):
            counts = data.label_counts()
            return np.log(counts.sum() / np.maximum(counts, 1.0) / max(1, np.count_nonzero(counts)))
        strange = [label for label in self.class_weight if label not in data.classes]
        if strange:
            raise PotentiaError(f"class_weight names {strange[0]!r:.40}, which is not a label in y.")
        return np.log([float(self.class_weight.get(label, 1.0)) for label in data.classes])

    def _evaluation(
        self, fit: ChainFit, data: ChainData, validation: tuple[Any, Any] | None
    ) -> Callable[[State], Mapping[str, Any]] | None:
        """What the history is to tell of a state besides the objective."""
        if validation is None:
            return None
        X, y = validation
        labels_of, ptr = self._labels_of(fit, data, X)
        check_lengths(y, np.diff(ptr).tolist())
        number = {label: k for k, label in enumerate(data.classes)} | {None: -1}
        truth = np.array([number.get(label, -2) for row in y for label in row], dtype=np.int64)

        def errors(state: State) -> dict[str, float]:
            wrong = (labels_of(state) != truth) & (truth != -1)
            of_sequence = per_sequence(wrong, ptr) > 0
            return {
                "validation_error": float(wrong.sum() / max(1, np.count_nonzero(truth != -1))),
                "validation_sequence_error": float(of_sequence.mean()) if len(of_sequence) else 0.0,
            }

        return errors

    def _labels_of(self, fit: ChainFit, data: ChainData, X: Any) -> tuple[Callable[[State], Any], Ints]:
        """A function from a state of a fit to numbers of the labels that it predicts, and where sequences begin."""
        tokens, dense = data.index.encode(X)
        tokens = fit.layout.renumbered(tokens)
        allowed = scheme_constraints(data.classes, self.scheme, self.constraints)

        def labels_of(state: State) -> Any:
            tables = ChainTables.of(fit.layout, fit.vector(state), allowed)
            return best_labels(EncodedSequences(tables, tokens, dense), thread_count(self.threads))

        return labels_of, tokens.sequence_ptr

    def _scope(self, index: AttributeIndex) -> Any:
        """Of each attribute, whether it has features of labels, of pairs of labels, or both."""
        if self.template is not None:
            of_letter = {"u": OF_LABELS, "b": OF_PAIRS, "*": OF_LABELS | OF_PAIRS}
            constant, letters = self.template.constant, (name[0].lower() for name in index.numbers)
            scope = np.fromiter(map(of_letter.__getitem__, letters), np.uint8, len(index.numbers))
            if constant is not None and constant in index.numbers:  # whose pairs are the transitions
                scope[index.numbers[constant]] &= OF_LABELS
            return scope
        scope = np.full(len(index), OF_LABELS, dtype=np.uint8)
        if self.pair_attributes:
            keys = set(self.pair_attributes)
            chosen = (name in keys or name.partition(":")[0] in keys for name in index.numbers)
            scope[np.fromiter(chosen, bool, len(scope))] |= OF_PAIRS
        return scope

    # -- checks --------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Refuse bad options."""
        super()._check()
        check_number("min_freq", self.min_freq)
        for name in ("all_possible_states", "all_possible_transitions"):
            check_flag(name, getattr(self, name))
        check_choice("decode", self.decode, DECODERS)
        check_type("template", self.template, Template, optional=True)
        if isinstance(self.pair_attributes, str) or not all(isinstance(key, str) for key in self.pair_attributes):
            raise PotentiaError("pair_attributes must be a list of names of features.")
        if isinstance(self.class_weight, str):
            check_choice("class_weight", self.class_weight, ("balanced",), "a dictionary or None")
        elif self.class_weight is not None:
            for label, weight in self.class_weight.items():
                if not real_number(weight, f"class_weight[{label!r:.40}]") > 0:
                    raise PotentiaError(f"class_weight[{label!r:.40}] must be above 0, not {weight}.")
        if isinstance(self.constraints, str) or any(
            not isinstance(pair, list | tuple)
            or len(pair) != 2
            or pair[0] is pair[1] is None
            or not all(label is None or isinstance(label, str | int) for label in pair)
            for pair in self.constraints
        ):
            raise PotentiaError("constraints must be a list of pairs of labels, of which one may be None.")
