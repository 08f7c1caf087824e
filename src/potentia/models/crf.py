"""`CRF`: fit / predict around potentials and a learner."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self, cast

import numpy as np

from ..base.backend import CLUSTER, Local, releasing
from ..base.files import naming, new_folder
from ..base.html import facts_table
from ..base.params import Params
from ..base.progress import Bar
from ..base.resources import one_blas_thread, thread_count, using_threads
from ..base.saving import Registered, find_class, from_json, read_file, reading, to_json, write_file
from ..base.schema import Choice, Count, Items, Kind, Named, Number, Rule, Schema, Section, check
from ..base.types import (
    ArrayLike,
    Bools,
    PotentiaError,
    check_choice,
    check_flag,
    check_function,
    check_type,
    length,
    prefixed,
    shown,
    warn_caller,
)
from ..conformal import THRESHOLDS, check_coverage, missed_shares, risk_threshold
from ..features.example import Example
from ..features.parts import Examples, Parts
from ..inference.base import Inference, Result
from ..inference.mean_field import MeanField
from ..inference.messages import TRW
from ..learn.base import Callback, Learner, State, fit_digest, run, summary_line
from ..learn.checkpoint import Checkpoint
from ..learn.data import Dataset, Predictor, check_fit, count_correct, list_examples, predict, predict_to, shard_scores
from ..learn.iterated import IteratedLogistic
from ..learn.part import Part, dense_kinds, observed
from ..learn.risk import MarginalRisk
from ..potentials import Temperature
from ..potentials.base import Potential
from .cross_fit import CrossFitted, log_probabilities

DECODES = ("mpm", "map")
#: Known labels of each example, or whether the examples' own are observed.
Observed = Sequence[ArrayLike | None] | bool
#: What a CRF is made of.
_NAMES = ("potentials", "learner", "inference", "decode")
_SUCH = {
    "learner": 'a Learner, such as pt.IteratedLogistic(), or "accuracy", "margin", "joint" or the name of a learner',
    "inference": "an Inference, such as pt.TRW()",
}
#: Learners by what they are good for, "accuracy" being the default; and those that a name alone makes.
GOALS = {"accuracy": "accuracy", "margin": "MaxMargin", "joint": "IteratedLogistic"}
_LEARNERS = ("IteratedLogistic", "MarginalRisk", "MaxMargin")
#: Labelled variables that cross-fitting needs at least.
_LEAST_CROSS_FITTED = 40


@dataclass(eq=False, repr=False)
class CRF(Params, Registered):
    """A conditional random field: potentials turn features into scores, inference turns those into labels.

    Args:
        potentials: one per kind of region; they are templates, the fitted copies are in `potentials_`.
        learner: how to train them: a learner, its name, or what matters: "accuracy" (None means this) of single
            variables, "margin" of the best labelling (`MaxMargin`), or "joint", any potentials in one objective
            (`IteratedLogistic`). For accuracy it is `MarginalRisk` through ten iterations of TRW where all potentials
            have gradients. Trees and such on single variables are fitted first, and the others to their out-of-fold
            predictions; where pairs have no gradients either, it is `IteratedLogistic`.
        inference: what predictions use; None for what the learner trained for. It may be changed after `fit`.
        decode: "mpm" (the best state of each variable's marginal) or "map" (the best labelling found); None for what
            the learner trains for, "map" with `MaxMargin` and "mpm" otherwise.

    After `fit`: `potentials_`, `history_` (one dict per iteration, or that of the start, as iteration 0, if nothing
    could be gained), `converged_` (whether the fit ended before its limit of iterations, and not because a line search
    failed), `scales_` (factors between `f` and theta, per kind), `shapes_` (of the tables of each kind) and
    `inference_`. Works with scikit-learn's `clone` and cross-validation over lists of examples.

    Example:
        >>> import potentia as pt
        >>> train, test = pt.datasets.denoising(2, (16, 16), seed=0), pt.datasets.denoising(1, (16, 16), seed=1)
        >>> crf = pt.CRF({"node": pt.Linear(), "edge": pt.Linear()}).fit(train)
        >>> crf.predict(test)[0].shape, crf.predict_marginals(test)[0].shape
        ((256,), (256, 2))
    """

    saved: ClassVar[Schema] = {
        "potentials": Kind((dict,)),
        "decode": Choice(DECODES, nullable=True),
        "scales": Named(Number()),
        "shapes": Named(Items(Count(least=1))),
        "history": Items(Section({"iteration": Count(), "objective": Number(finite=False)})),
        "trained_inference": Kind((dict,)),
        "calibrated": Count(optional=True),
        "missed": Items(Number(), "thresholds", optional=True),
        "sets": Rule(lambda saved: (saved["missed"] is None) == (not saved["calibrated"]), "are incomplete"),
    }

    potentials: Mapping[str, Potential]
    learner: Learner | str | None = None
    inference: Inference | None = None
    decode: str | None = None

    # -- fitting -------------------------------------------------------------------------------------------

    def fit(
        self,
        examples: Examples,
        y: None = None,
        *,
        validation: Examples | None = None,
        callback: Callback | None = None,
        progress: bool = False,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        warm_start: bool = False,
    ) -> Self:
        """Train on examples with labels, a list or `pt.parts`.

        Args:
            validation: examples whose error is tracked beside the training error.
            callback: called after every iteration with the history; returning True stops.
            progress: show a progress bar.
            checkpoint: a file that holds the state after every iteration; if it exists, training resumes from it. A
                checkpoint of other options or examples is refused.
            warm_start: start from the potentials of an earlier fit if their class is the same.

        A fit that fails leaves the model as it was before.
        """
        self._check()
        check_type("checkpoint", checkpoint, str, os.PathLike, Checkpoint, optional=True)
        check_function("callback", callback)
        check_flag("progress", progress)
        check_flag("warm_start", warm_start)
        examples = list_examples(examples)
        validation = None if validation is None else list_examples(validation)
        crossed = self._cross_fitted_kinds(examples)
        if crossed and not warm_start:
            options = {"callback": callback, "progress": progress, "checkpoint": checkpoint}
            return self._cross_fit(crossed, cast(list[Example], examples), validation, options)
        learner, kinds = self._learner(), list(self.potentials)
        learner.check(self.potentials)
        fitted = getattr(self, "potentials_", {}) if warm_start else {}
        potentials = {kind: _begun(p, fitted.get(kind)) for kind, p in self.potentials.items()}
        if isinstance(checkpoint, str | os.PathLike):
            checkpoint = Checkpoint(checkpoint, fit_digest(learner, self.potentials, examples))
        scales, trained = learner.scales(kinds), learner.predictor(kinds)
        decode = self.decode or learner.decode
        if not isinstance(examples, Parts) and CLUSTER.get() is None:
            check_fit(potentials, examples)
        bar, threads = Bar(True) if progress else None, using_threads(thread_count(learner.threads))
        with releasing(), nullcontext() if bar is None else bar, one_blas_thread(), threads:
            data = learner.gather(examples, potentials)
            shapes = {kind: data.shapes[kind] for kind in kinds}
            _warn_of_no_features(self.potentials, data)
            built: dict[str, Dataset] = {}

            def errors(state: State) -> dict[str, float]:
                """Errors of a state; the examples' parts are built once, and the fit's own are used."""
                predictor = Predictor(state.potentials, scales, self.inference or trained, decode)
                found = {}
                for name, some in (("train_error", examples), ("validation_error", validation)):
                    if some is data.examples and data.untouched:
                        found[name] = 1.0 - _score(data, predictor, state.parts)
                    elif some is not None:
                        built[name] = built.get(name) or _gathered(some, state.potentials, shapes)
                        found[name] = 1.0 - _score(built[name], predictor)
                return found

            track = learner.track_error
            state, converged = run(
                learner,
                data,
                potentials,
                tracked=validation is not None or data.parts.n_parts == 1 if track is None else track,
                evaluate=errors,
                callback=callback,
                checkpoint=checkpoint,
                bar=bar,
                statistics=data.parts.statistics,
            )
            self.potentials_ = dict(learner.finish(data, state))
            vars(self).pop("calibration_", None)
        self.history_, self.converged_ = [dict(row) for row in state.history], converged
        self.scales_, self.shapes_, self.trained_inference_ = scales, shapes, trained
        return self

    def _learner(self) -> Learner:
        """The learner, also where it is given by a name, or chosen by what the potentials can do."""
        if isinstance(self.learner, Learner):
            return self.learner
        if self.learner not in (None, "accuracy"):
            learner: Learner = find_class(GOALS.get(self.learner, self.learner), Learner)()
            return learner
        smooth = [
            p.shared or (p.differentiable and getattr(p, "full_precision", True)) for p in self.potentials.values()
        ]
        dense = dense_kinds(self.potentials)
        inference: Inference = MeanField(iterations=10, tol=0.0) if dense else TRW(iterations=10)
        return MarginalRisk(inference=inference) if all(smooth) else IteratedLogistic()

    def _cross_fitted_kinds(self, examples: Examples) -> list[str]:
        """The kinds of single variables that no gradient trains, if one trains all the others."""
        if self.learner not in (None, "accuracy") or isinstance(examples, Parts) or CLUSTER.get() is not None:
            return []
        kinds = [kind for kind, p in self.potentials.items() if not (p.differentiable or p.shared)]
        graphs = [example.graph for example in examples]
        single = all(graph.scopes[kind].shape[1] == 1 for graph in graphs for kind in kinds if kind in graph.scopes)
        given = all(kind in example.features for example in examples for kind in kinds)
        pairs = bool(dense_kinds(self.potentials)) or any(graph.clique_kinds for graph in graphs)
        labelled = sum(int(observed(example).sum()) for example in examples)
        return kinds if kinds and single and given and pairs and labelled >= _LEAST_CROSS_FITTED else []

    def _cross_fit(self, kinds: list[str], examples: list[Example], validation: Any, options: dict[str, Any]) -> Self:
        """Fit the potentials of `kinds` first, and then one weight of each and the others; see `CrossFitted`."""
        found = {kind: CrossFitted(partial(_unfitted, self.potentials[kind]), examples, kind) for kind in kinds}
        seen = [
            example.with_features({kind: found[kind].unseen[number] for kind in kinds})
            for number, example in enumerate(examples)
        ]
        if validation is not None:
            validation = [
                example.with_features(
                    {kind: log_probabilities(found[kind].final.scores(example.features[kind])) for kind in kinds}
                )
                for part in (validation if isinstance(validation, Parts) else [validation])
                for example in part
            ]
        inner = CRF({**self.potentials, **dict.fromkeys(kinds, Temperature())}, None, self.inference, self.decode)
        inner.fit(seen, validation=validation, **options)
        for kind, own in found.items():
            inner.see_through(kind, own.final)
        self.potentials_, self.scales_ = inner.potentials_, inner.scales_
        self.history_, self.converged_, self.shapes_ = inner.history_, inner.converged_, inner.shapes_
        self.trained_inference_ = inner.trained_inference_
        return self

    def see_through(self, kind: str, function: Potential) -> None:
        """Put a fitted function, whose log-probabilities were a kind's features, in place of the kind's Temperature."""
        weight = float(cast(Temperature, self.potentials_[kind]).weight_[0])
        self.potentials = {**self.potentials, kind: _unfitted(function)}
        self.potentials_, self.scales_ = {**self.potentials_, kind: function}, {**self.scales_, kind: weight}

    # -- predicting ----------------------------------------------------------------------------------------

    def predict(
        self, examples: Examples, *, observed: Observed = False, out: str | os.PathLike[str] | None = None
    ) -> list[Any]:
        """A label array per example, by `decode`.

        Args:
            observed: known labels of each example, (n_variables,) with -1 where unknown, or None; the others are
                predicted given these. True takes the labels that the examples have.
            out: a folder for one file per part, readable by `numpy.load`, with an array per example; the files are
                returned. On a cluster the workers write them.
        """
        self._check()
        return self._over(examples, None, out, observed)

    def predict_marginals(
        self, examples: Examples, *, observed: Observed = False, out: str | os.PathLike[str] | None = None
    ) -> list[Any]:
        """Marginals of every variable per example, (n_variables, max states); options are as in `predict`."""
        self._check()
        return self._over(examples, "marginals", out, observed)

    def calibrate(self, examples: Examples) -> Self:
        """Keep what `predict_set` needs of labelled examples, which must not have been used in `fit`.

        Replaces what was kept before. Unobserved variables are left out, and examples without observed ones.
        """
        given = list_examples(examples)
        losses, n = np.zeros(len(THRESHOLDS)), 0
        for part in given if isinstance(given, Parts) else [given]:
            for example, marginals in zip(part, self.predict_marginals(part), strict=True):
                labels, known = example.all_labels, np.flatnonzero(example.all_labels >= 0)
                if known.size:
                    losses += missed_shares(1.0 - marginals[known, labels[known]])
                    n += 1
        if n == 0:
            raise PotentiaError("calibrate needs examples with observed labels.")
        self.calibration_ = losses, n
        return self

    def predict_set(self, examples: Examples, coverage: float = 0.9) -> list[Bools]:
        """Which states are in the set of each variable, (n_variables, max states) per example, after `calibrate`.

        A set holds the states of large enough marginals. The threshold is that of conformal risk control
        [Angelopoulos et al. 2022]: the expected share of an example's variables whose sets miss the true state is at
        most 1 - coverage, if the examples of `calibrate` and these are exchangeable, on average over both. (Variables
        of one example depend on each other, so that nothing is guaranteed for each of them.)
        """
        check_coverage(coverage)
        if not hasattr(self, "calibration_"):
            raise PotentiaError("call calibrate with examples that were not used in fit first.")
        top = risk_threshold(*self.calibration_, coverage)
        return [1.0 - marginals <= top for marginals in self.predict_marginals(examples)]

    @property
    def inference_(self) -> Inference:
        """What predictions use: `inference`, or without it what the learner trained for."""
        trained: Inference = self.trained_inference_
        return self.inference or trained

    def infer(self, example: Example) -> Result:
        """The whole inference result of one example."""
        self._check()
        part = self._part(example)
        return self.inference_.run(shard_scores(part, part.shards[0], self._predictor(), {}), None)

    def score(self, examples: Examples, y: None = None) -> float:
        """Share of labelled variables that are predicted correctly, weighted by the variables' weights if given."""
        self._check()
        with releasing():
            return _score(self._gathered(examples), self._predictor())

    def theta(self, example: Example) -> dict[str, Any]:
        """The scores of an example's regions, per kind: those of `potentials_` times `scales_`.

        They are log-scores whatever the learner, so that any inference method can read them, and
        `inference_.infer(example.graph, theta)` has the marginals of `infer(example)`.
        """
        part = self._part(example)
        theta: dict[str, Any] = {}
        for kind, shape in part.shapes.items():
            potential = self.potentials_[kind]
            if kind in part.dense:
                theta[kind] = part.theta(kind, part.shards[0], potential, potential.theta_values(part.features[kind]))
                continue
            scores = potential.scores(part.features[kind], trusted=True) * self.scales_[kind]
            structured = kind in part.structures
            theta[kind] = potential.as_theta(scores, shape, False) if structured else scores.reshape(-1, *shape)
        return theta

    def _part(self, example: Example) -> Part:
        """One example as a part."""
        part: Part = cast(Local, self._gathered([example], here=True).parts).parts[0]
        return part

    def _predictor(self, decode: str | None = None) -> Predictor:
        """What turns parts into predictions with the fitted potentials."""
        decode = decode or self.decode or self._learner().decode
        return Predictor(self.potentials_, self.scales_, self.inference_, decode)

    def _gathered(self, examples: Examples, here: bool = False) -> Dataset:
        """The examples in parts, checked against the fitted potentials."""
        if not hasattr(self, "potentials_"):
            raise PotentiaError("this CRF is not fitted: call fit first.")
        return _gathered(list_examples(examples), self.potentials_, self.shapes_, here)

    def _over(
        self, examples: Examples, decode: str | None, out: str | os.PathLike[str] | None, observed: Observed
    ) -> list[Any]:
        """Labels or marginals of each example, or the files that they were written to."""
        clamp = observed is not False
        if clamp and observed is not True:
            examples = _observing(list_examples(examples), observed)
        with releasing():
            parts, predictor = self._gathered(examples).parts, self._predictor(decode)._replace(clamp=clamp)
            if out is None:
                by_part = parts.map(predict, None, predictor)[1]
                return [values for part in by_part for values in part]
            folder = new_folder(out)
            paths = [folder / f"predictions-{number:05d}.npz" for number in range(parts.n_parts)]
            parts.map(predict_to, None, predictor, own=[str(path) for path in paths])
            return paths

    # -- saving --------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file: JSON and arrays, no code.

        A function among the learner's options (`delta`) is saved by its name only: set it again to train further.
        """
        write_file(path, "CRF", *self.state())

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fitted model as JSON and arrays."""
        if not hasattr(self, "potentials_"):
            raise PotentiaError("only a fitted CRF can be saved: call fit first.")
        metas: dict[str, Any] = {}
        arrays: dict[str, Any] = {}
        for kind, potential in self.potentials_.items():
            metas[kind], own = potential.state()
            arrays |= {f"{kind}/{name}": value for name, value in own.items()}
        content: dict[str, Any] = {
            "potentials": metas,
            "learner": self.learner if isinstance(self.learner, str) else to_json(self.learner),
            "inference": to_json(self.inference),
            "trained_inference": to_json(self.trained_inference_),
            "decode": self.decode,
            "scales": self.scales_,
            "shapes": self.shapes_,
            "history": self.history_,
        }
        if hasattr(self, "calibration_"):
            content |= {"missed": self.calibration_[0].tolist(), "calibrated": self.calibration_[1]}
        return content, arrays

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CRF:
        """The model that `save` wrote; predictions are identical."""
        with reading(path):
            return cls.from_state(*read_file(path, "CRF"))

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Mapping[str, Any]) -> CRF:
        """The model that `state` described."""
        found = check(cls.saved, content, "CRF", {"thresholds": len(THRESHOLDS)})
        fitted = {}
        for kind, meta in content["potentials"].items():
            fitted[kind] = Potential.from_state(meta, prefixed(arrays, f"{kind}/"))
            size = math.prod(found["shapes"][kind]) if kind in found["shapes"] else None
            if size != getattr(fitted[kind], "n_outputs_", None) or kind not in found["scales"]:
                raise PotentiaError(f"the saved CRF is damaged: its potential of {kind!r} does not fit its tables.")
        templates = {kind: _unfitted(p) for kind, p in fitted.items()}
        model = cls(
            templates, _read_learner(content["learner"]), from_json(content["inference"], Inference), found["decode"]
        )
        model.potentials_, model.scales_, model.history_ = fitted, found["scales"], found["history"]
        if found["missed"] is not None:
            model.calibration_ = np.array(found["missed"]), found["calibrated"]
        model.trained_inference_ = from_json(found["trained_inference"], Inference)
        model.shapes_ = {kind: tuple(shape) for kind, shape in found["shapes"].items()}
        return model

    # -- showing -------------------------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Constructor arguments; with `deep` also those of potentials (node__ridge) and learner (learner__epsilon)."""
        found = super().get_params(deep)
        for kind, potential in self.potentials.items() if deep else ():
            found[kind] = potential
            found |= {f"{kind}__{name}": value for name, value in potential.get_params().items()}
        return found

    def set_params(self, **params: Any) -> Self:
        """Set constructor arguments, potentials by kind, or their options: node__ridge, learner__epsilon."""
        for key, value in params.items():
            outer, _, inner = key.partition("__")
            if outer in self.potentials and inner:
                self.potentials[outer].set_params(**{inner: value})
            elif outer in self.potentials:
                self.potentials = {**self.potentials, outer: value}
            else:
                if outer == "learner" and inner:
                    self.learner = self._learner()
                super().set_params(**{key: value})
        return self

    def __sklearn_clone__(self) -> Self:
        """An unfitted copy."""
        copied = copy.copy(self)
        for name in [name for name in vars(copied) if name.endswith("_")]:
            delattr(copied, name)
        copied.potentials = {kind: _unfitted(p) for kind, p in self.potentials.items()}
        copied.learner, copied.inference = copy.deepcopy(self.learner), copy.deepcopy(self.inference)
        return copied

    def __repr__(self) -> str:
        inside = ", ".join(f"{kind!r}: {potential!r}" for kind, potential in self.potentials.items())
        given = [f"{name}={getattr(self, name)!r}" for name in _NAMES[1:] if getattr(self, name) is not None]
        return f"CRF({', '.join([f'{{{inside}}}', *given])})"

    def _check(self) -> None:
        """Refuse wrong types of constructor arguments."""
        if not isinstance(self.potentials, Mapping) or not self.potentials:
            raise PotentiaError("potentials must map each kind to a potential.")
        for kind, potential in self.potentials.items():
            if not isinstance(potential, Potential):
                raise PotentiaError(f"the potential of kind {kind!r} is {_described(potential)}, not a Potential.")
            if not isinstance(kind, str):
                raise PotentiaError(f"a kind of potentials is named by a text, not {shown(kind)}.")
            if kind in _NAMES or "__" in kind:
                raise PotentiaError(f"a kind cannot be called {kind!r}: parameters of the CRF have such names.")
        for name, given, wanted in (("learner", self.learner, Learner), ("inference", self.inference, Inference)):
            if name == "learner" and isinstance(given, str) and given in (*GOALS, *_LEARNERS):
                continue
            if given is not None and not isinstance(given, wanted):
                raise PotentiaError(f"{name} must be {_SUCH[name]}, not {_described(given)}.")
        if self.decode is not None:
            check_choice("decode", self.decode, DECODES)

    def _repr_html_(self) -> str:
        """The model's parts and how its training ended as a table, for notebooks."""
        facts: dict[str, Any] = {f"{kind} potential": repr(p) for kind, p in self.potentials.items()}
        facts["learner"] = repr(self._learner())
        if hasattr(self, "history_"):
            facts["predicts with"] = repr(self.inference_)
            facts["trained"] = summary_line(self.history_[-1]) if self.history_ else "no iterations"
        return facts_table("CRF" if hasattr(self, "history_") else "CRF, not fitted", facts)


def _gathered(
    examples: Examples, potentials: Mapping[str, Potential], shapes: Mapping[str, tuple[int, ...]], here: bool = False
) -> Dataset:
    """The examples in parts, checked against potentials fitted on tables of these shapes."""
    data = Dataset.of(examples, potentials, here=here)
    for kind, shape in data.shapes.items():
        if shape != shapes.get(kind, shape):
            raise PotentiaError(
                f"regions of kind {kind!r} have tables of shape {shape}, but this CRF was fitted on tables of "
                f"shape {shapes[kind]}."
            )
        potentials[kind].check_features(data.n_features[kind])
    return data


def _read_learner(content: Any) -> Learner | str | None:
    """The learner of a file."""
    if isinstance(content, str):
        check_choice("the learner in the file", content, (*GOALS, *_LEARNERS))
        return content
    learner: Learner | None = from_json(content, Learner)
    return learner


def _observing(examples: Examples, observed: Any) -> list[Example]:
    """The examples with the given labels, for predictions that are conditioned on them."""
    if isinstance(examples, Parts):
        raise PotentiaError("examples in parts have their own labels: give observed=True.")
    if (given := length(observed)) != len(examples):
        found = f"one {type(observed).__name__}" if given is None else str(given)
        raise PotentiaError(f"observed must have an array of labels for each of {len(examples)} examples, not {found}.")
    relabelled = []
    for number, (example, labels) in enumerate(zip(examples, observed, strict=True)):
        with naming(f"observed[{number}]"):
            relabelled.append(example.with_labels(labels))
    return relabelled


def _score(data: Dataset, predictor: Predictor, states: Any = None) -> float:
    """The share of labelled variables that are predicted correctly."""
    right, total = data.parts.total(count_correct, states, predictor)[1]
    if total == 0:
        raise PotentiaError("no variable of these examples has a label and a positive weight.")
    return float(right / total)


def _warn_of_no_features(potentials: Mapping[str, Potential], data: Dataset) -> None:
    """Warn of functions of features that are given none."""
    for kind, potential in potentials.items():
        if potential.unit == "example" or potential.shared or potential.by_weight:
            continue
        if not data.n_features[kind]:
            warn_caller(
                f"no example has features of kind {kind!r}, so that {type(potential).__name__} learns the same scores "
                "for all its regions; give features, or pt.Constant() if that is intended.",
                UserWarning,
            )


def _begun(template: Potential, fitted: Potential | None) -> Potential:
    """Where a fit of this potential starts: an earlier fit with the current options, or an unfitted copy."""
    fresh = _unfitted(template)
    if type(fitted) is not type(template):
        return fresh
    resumed = copy.deepcopy(fitted).set_params(**fresh.get_params(deep=False))
    resumed.check_options()
    return resumed


def _described(given: object) -> str:
    """A wrong argument, for a message."""
    if isinstance(given, type):
        return f"the class {given.__name__} (write {given.__name__}())"
    return repr(given) if isinstance(given, str) else f"a {type(given).__name__}"


def _unfitted(potential: Potential) -> Potential:
    """An unfitted copy."""
    return type(potential)(**copy.deepcopy(potential.get_params(deep=False)))
