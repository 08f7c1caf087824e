"""The interface of sklearn-crfsuite: `CRF`, `metrics` and `scorers`.

``import potentia.compat.sklearn_crfsuite as sklearn_crfsuite`` replaces ``import sklearn_crfsuite``. The algorithms
"ap", "pa" and "arow" are not available; "rprop" is new. See `potentia.compat.pycrfsuite` for the rest.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator

from ...base.types import PotentiaError
from ...models.chain_crf import ChainCRF
from ...models.chain_files import crfsuite_bytes, write_bytes
from .. import pycrfsuite
from . import metrics, scorers

__all__ = ["CRF", "metrics", "scorers"]

#: The arguments of the constructor with other names than the options of a trainer.
_NAMES = {
    "feature.minfreq": "min_freq", "feature.possible_states": "all_possible_states",
    "feature.possible_transitions": "all_possible_transitions",
}  # fmt: skip


def _of_chain(value: Callable[[ChainCRF], Any], doc: str) -> Any:
    """A property that is None before training."""
    return property(lambda crf: None if crf._known() is None else value(crf._known()), doc=doc)


class ModelFile:
    """The file of a model: the one that was named, or a temporary one, written when its `name` is asked for."""

    def __init__(self, crf: CRF) -> None:
        self._crf = crf

    @property
    def name(self) -> str | None:
        """Where the file is; None before training."""
        crf = self._crf
        if crf.model_filename is not None or crf._chain is None:
            return crf.model_filename
        if crf._temporary is None:
            folder = tempfile.mkdtemp(prefix="potentia-")
            weakref.finalize(crf, shutil.rmtree, folder, ignore_errors=True)
            crf._temporary = os.path.join(folder, "model.crfsuite")
            write_bytes(crf._temporary, _model_bytes(crf._fitted()))
        return crf._temporary


class CRF(BaseEstimator):
    """A linear-chain CRF with the arguments and attributes of sklearn-crfsuite's; None is the algorithm's default.

    Args:
        algorithm: "lbfgs" (the default), "l2sgd" or "rprop".
        min_freq, all_possible_states, all_possible_transitions, c1, c2, max_iterations, delta: see `pt.ChainCRF`.
        num_memories, epsilon, period, max_linesearch: of the optimiser.
        linesearch: accepted, without effect, as are those of the calibration.
        pa_type, c, error_sensitive, averaging, variance, gamma: of algorithms that are not available.
        verbose: print the log of the training.
        model_filename: where the model is written; an existing file is read without training.
        keep_tempfiles, trainer_cls: a trainer class whose methods `on_...` report the training.
        stop_window, stop_epsilon: stop when the share of wrong labels, of X_dev if there is one, differed by less than
            `stop_epsilon` in the last `stop_window` iterations, as Wapiti does.
    """

    def __init__(
        self,
        algorithm: str | None = None,
        min_freq: float | None = None,
        all_possible_states: bool | None = None,
        all_possible_transitions: bool | None = None,
        c1: float | None = None,
        c2: float | None = None,
        max_iterations: int | None = None,
        num_memories: int | None = None,
        epsilon: float | None = None,
        period: int | None = None,
        delta: float | None = None,
        linesearch: str | None = None,
        max_linesearch: int | None = None,
        calibration_eta: float | None = None,
        calibration_rate: float | None = None,
        calibration_samples: int | None = None,
        calibration_candidates: int | None = None,
        calibration_max_trials: int | None = None,
        pa_type: int | None = None,
        c: float | None = None,
        error_sensitive: bool | None = None,
        averaging: bool | None = None,
        variance: float | None = None,
        gamma: float | None = None,
        verbose: bool = False,
        model_filename: str | None = None,
        keep_tempfiles: bool = False,
        trainer_cls: type[pycrfsuite.Trainer] | None = None,
        stop_window: int | None = None,
        stop_epsilon: float = 2e-4,
    ) -> None:
        for name, value in {k: v for k, v in locals().items() if k not in ("self", "__class__")}.items():
            setattr(self, name, value)
        self.modelfile = ModelFile(self)
        self.training_log_: pycrfsuite.TrainingLog | None = None
        self._chain: ChainCRF | None = None
        self._temporary: str | None = None

    def fit(self, X: Sequence[Any], y: Sequence[Sequence[str]], X_dev: Any = None, y_dev: Any = None) -> Self:
        """Train; X_dev and y_dev are evaluated after every iteration."""
        if (X_dev is None) != (y_dev is None):
            raise PotentiaError("give both X_dev and y_dev, or neither.")
        kind = self.trainer_cls or pycrfsuite.Trainer
        trainer = kind(self.algorithm or "lbfgs", verbose=self.verbose)
        for option in trainer.params():
            value = getattr(self, _NAMES.get(option, option.replace(".", "_")))
            if value is not None:
                trainer.set(option, value)
        for group, (items, labels) in enumerate(((X, y), ((), ()) if X_dev is None else (X_dev, y_dev))):
            for xseq, yseq in zip(items, labels, strict=True):
                trainer.append(xseq, yseq, group)
        holdout = -1 if X_dev is None else 1
        self._chain, _ = trainer.train_chain(holdout, self.stop_window or 0, self.stop_epsilon)
        self.training_log_, self._temporary = trainer.logparser, None
        if self.model_filename is not None:
            write_bytes(self.model_filename, _model_bytes(self._fitted()))
        return self

    def predict(self, X: Sequence[Any]) -> Any:
        """An array of lists of labels; (sequences, tokens) if all sequences have as many tokens."""
        return np.array(self._fitted().predict([*map(_items, X)]), dtype=object)

    def predict_single(self, xseq: Sequence[Any]) -> list[str]:
        """The labels of a sequence."""
        return self._fitted().predict_single(_items(xseq))

    def predict_marginals(self, X: Sequence[Any]) -> Any:
        """An array of lists of dictionaries: the probability of every label of every token."""
        return np.array(self._fitted().predict_marginals([*map(_items, X)]), dtype=object)

    def predict_marginals_single(self, xseq: Sequence[Any]) -> list[dict[Any, float]]:
        """The probability of every label of every token of a sequence."""
        return self._fitted().predict_marginals_single(_items(xseq))

    def score(self, X: Sequence[Any], y: Sequence[Sequence[str]]) -> float:
        """The share of right labels."""
        return metrics.flat_accuracy_score(y, self._fitted().predict([*map(_items, X)]))

    @property
    def tagger_(self) -> pycrfsuite.Tagger | None:
        """A tagger of the model; None before training."""
        chain = self._known()
        if chain is None:
            return None
        tagger = pycrfsuite.Tagger()
        tagger.use(chain, self.size_ or 0)
        return tagger

    classes_ = _of_chain(lambda chain: [str(label) for label in chain.classes_], "The labels.")
    size_ = _of_chain(lambda chain: len(_model_bytes(chain)), "Bytes of the model's file.")
    attributes_ = _of_chain(lambda chain: list(chain.index_.numbers), "The names of attributes with weights.")
    num_attributes_ = _of_chain(lambda chain: len(chain.index_.numbers), "How many there are.")
    state_features_ = _of_chain(lambda chain: chain.state_features_, "Weights by attribute and label.")
    transition_features_ = _of_chain(lambda chain: chain.transition_features_, "Weights by label and next label.")

    def _known(self) -> ChainCRF | None:
        if self._chain is None and self.model_filename is not None:
            self._chain = ChainCRF.from_crfsuite(self.model_filename)
        return self._chain

    def _fitted(self) -> ChainCRF:
        chain = self._known()
        if chain is None:
            raise PotentiaError("this CRF is not fitted: call fit first, or give model_filename.")
        return chain

    def __sklearn_is_fitted__(self) -> bool:
        return self._chain is not None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_temporary": None}


def _model_bytes(chain: ChainCRF) -> bytes:
    """The content of a model's file."""
    return crfsuite_bytes(chain.stored("CRFsuite"))


def _items(xseq: Any) -> Any:
    """A sequence that `ChainCRF` takes."""
    return xseq if isinstance(xseq, list | pycrfsuite.ItemSequence) else list(xseq)
