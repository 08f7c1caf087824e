"""The interface of sklearn-crfsuite: `CRF` and `metrics`.

``import potentia.compat.sklearn_crfsuite as sklearn_crfsuite`` replaces ``import sklearn_crfsuite``. The algorithms
"ap", "pa" and "arow" are not available; "rprop" is new. See `potentia.compat.pycrfsuite` for the rest.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator

from ...base.types import PotentiaError
from ...models.chain_crf import ChainCRF
from ...models.chain_files import crfsuite_bytes, write_bytes
from .. import pycrfsuite
from . import metrics

__all__ = ["CRF", "metrics"]

#: The name that each argument of the constructor has in a trainer.
_OPTIONS = {
    "min_freq": "feature.minfreq", "all_possible_states": "feature.possible_states",
    "all_possible_transitions": "feature.possible_transitions", "c1": "c1", "c2": "c2",
    "max_iterations": "max_iterations", "num_memories": "num_memories", "epsilon": "epsilon", "period": "period",
    "delta": "delta", "linesearch": "linesearch", "max_linesearch": "max_linesearch",
    "calibration_eta": "calibration.eta", "calibration_rate": "calibration.rate",
    "calibration_samples": "calibration.samples", "calibration_candidates": "calibration.candidates",
    "calibration_max_trials": "calibration.max_trials",
}  # fmt: skip


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
            write_bytes(crf._temporary, crf._bytes())
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
        known = trainer.params()
        for name, option in _OPTIONS.items():
            value = getattr(self, name)
            if value is not None and option in known:
                trainer.set(option, value)
        for group, (items, labels) in enumerate(((X, y), ((), ()) if X_dev is None else (X_dev, y_dev))):
            for xseq, yseq in zip(items, labels, strict=True):
                trainer.append(xseq, yseq, group)
        holdout = -1 if X_dev is None else 1
        self._chain, _ = trainer.train_chain(holdout, self.stop_window or 0, self.stop_epsilon)
        self.training_log_, self._temporary = trainer.logparser, None
        if self.model_filename is not None:
            write_bytes(self.model_filename, self._bytes())
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

    @property
    def classes_(self) -> list[str] | None:
        """The labels."""
        chain = self._known()
        return None if chain is None else [str(label) for label in chain.classes_]

    @property
    def size_(self) -> int | None:
        """Bytes of the model's file."""
        return None if self._known() is None else len(self._bytes())

    @property
    def attributes_(self) -> list[str] | None:
        """The names of attributes with weights."""
        chain = self._known()
        return None if chain is None else list(chain.index_.numbers)

    @property
    def num_attributes_(self) -> int | None:
        """How many there are."""
        names = self.attributes_
        return None if names is None else len(names)

    @property
    def state_features_(self) -> dict[tuple[str, Any], float] | None:
        """Weights by attribute and label."""
        chain = self._known()
        return None if chain is None else chain.state_features_

    @property
    def transition_features_(self) -> dict[tuple[Any, Any], float] | None:
        """Weights by label and next label."""
        chain = self._known()
        return None if chain is None else chain.transition_features_

    def _known(self) -> ChainCRF | None:
        if self._chain is None and self.model_filename is not None:
            self._chain = ChainCRF.from_crfsuite(self.model_filename)
        return self._chain

    def _fitted(self) -> ChainCRF:
        chain = self._known()
        if chain is None:
            raise PotentiaError("this CRF is not fitted: call fit first, or give model_filename.")
        return chain

    def _bytes(self) -> bytes:
        return crfsuite_bytes(self._fitted().stored("CRFsuite"))

    def __sklearn_is_fitted__(self) -> bool:
        return self._chain is not None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_temporary": None}


def _items(xseq: Any) -> Any:
    """A sequence that `ChainCRF` takes."""
    return xseq if isinstance(xseq, list | pycrfsuite.ItemSequence) else list(xseq)
