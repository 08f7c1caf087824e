"""sklearn-crfsuite's `CRF`, with its names, positions and defaults, and `metrics`, over chains of potentia."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from sklearn.base import BaseEstimator

from ..pycrfsuite import Tagger, TrainLog, check_algorithm, make_chain, prepared, quiet
from . import metrics
from .metrics import flatten

__all__ = ["CRF", "metrics"]

#: CRFsuite's names of this class's options, where they differ.
_NAMES = {
    "min_freq": "feature.minfreq", "all_possible_states": "feature.possible_states",
    "all_possible_transitions": "feature.possible_transitions", "calibration_eta": "calibration.eta",
    "calibration_rate": "calibration.rate", "calibration_samples": "calibration.samples",
    "calibration_candidates": "calibration.candidates", "calibration_max_trials": "calibration.max_trials",
}  # fmt: skip
_SHARED = (
    "min_freq",
    "all_possible_states",
    "all_possible_transitions",
    "c2",
    "max_iterations",
    "period",
    "delta",
)
_OPTIONS = {
    "lbfgs": (*_SHARED, "c1", "num_memories", "epsilon"),
    "l2sgd": (*_SHARED, "calibration_eta"),
}


class CRF(BaseEstimator):
    """A linear-chain CRF with the options of sklearn-crfsuite; None is CRFsuite's default.

    Options that no algorithm here has an effect for are taken and kept: line search, calibration, those of "ap", "pa"
    and "arow", `keep_tempfiles` and `trainer_cls`. `model_filename` is where the model is written in CRFsuite's form.

    After `fit`: `classes_`, `tagger_`, `attributes_`, `num_attributes_`, `size_`, `state_features_`,
    `transition_features_`, `training_log_`, `chain_` (the fitted `potentia.ChainCRF`).
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
        calibration_samples: float | None = None,
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
        keep_tempfiles: bool | None = False,
        trainer_cls: Any = None,
    ) -> None:
        for name, value in locals().items():
            if name not in ("self", "__class__"):
                setattr(self, name, value)

    def fit(self, X: Iterable[Any], y: Any, X_dev: Any = None, y_dev: Any = None) -> Self:
        """Train on sequences of dictionaries (or of lists of names) and their labels.

        X_dev, y_dev: sequences whose share of right labels is printed after every iteration if `verbose`.
        """
        if (X_dev is None) != (y_dev is None):
            raise ValueError("Pass both X_dev and y_dev, or none of them")
        algorithm = check_algorithm("lbfgs" if self.algorithm is None else self.algorithm)
        chosen = {name: getattr(self, name) for name in _OPTIONS[algorithm]}
        params = {_NAMES.get(name, name): value for name, value in chosen.items() if value is not None}
        chain, log = make_chain(algorithm, params), TrainLog()

        def report(history: list[dict[str, Any]]) -> None:
            row = history[-1]
            log.iterations.append(
                {"num": row["iteration"], "loss": row["objective"], "time": row.get("seconds")}
            )
            if self.verbose:
                print(f"Iter {row['iteration']:<3} loss={row['objective']:.2f}")

        with quiet():
            chain.fit([prepared(x) for x in X], [list(labels) for labels in y], callback=report)
        if X_dev is not None:
            log.holdout_accuracy = chain.score(
                [prepared(x) for x in X_dev], [list(labels) for labels in y_dev]
            )
            if self.verbose:
                print(f"Accuracy on X_dev: {log.holdout_accuracy:.4f}")
        self.chain_, self.training_log_ = chain, log
        if self.model_filename is not None:
            chain.to_crfsuite(self.model_filename)
        return self

    def predict(self, X: Iterable[Any]) -> list[list[str]]:
        """The best labels of each sequence."""
        return self._fitted().predict([prepared(x) for x in X])

    def predict_single(self, xseq: Iterable[Any]) -> list[str]:
        """The best labels of one sequence."""
        return self.predict([xseq])[0]

    def predict_marginals(self, X: Iterable[Any]) -> list[list[dict[str, float]]]:
        """The probabilities of all labels of every token, as dictionaries."""
        return self._fitted().predict_marginals([prepared(x) for x in X])

    def predict_marginals_single(self, xseq: Iterable[Any]) -> list[dict[str, float]]:
        """The probabilities of all labels of every token of one sequence."""
        return self.predict_marginals([xseq])[0]

    def score(self, X: Iterable[Any], y: Any) -> float:
        """Share of right labels."""
        right = [a == b for a, b in zip(flatten(self.predict(X)), flatten(y), strict=True)]
        return sum(right) / len(right)

    @property
    def classes_(self) -> list[str]:
        """The labels."""
        return [str(label) for label in self._fitted().classes_]

    @property
    def tagger_(self) -> Tagger:
        """A tagger of python-crfsuite's kind."""
        tagger = Tagger()
        tagger.model = self._fitted()
        return tagger

    @property
    def attributes_(self) -> list[str]:
        """Names of the attributes."""
        return list(self._fitted().index_.numbers)

    @property
    def num_attributes_(self) -> int:
        """Number of attributes."""
        return len(self._fitted().index_.numbers)

    @property
    def size_(self) -> int:
        """Bytes of the model in CRFsuite's form."""
        if self.model_filename is not None and Path(self.model_filename).is_file():
            return Path(self.model_filename).stat().st_size
        return len(self._fitted().crfsuite_bytes())

    @property
    def state_features_(self) -> dict[tuple[str, Any], float]:
        """Weights by attribute and label."""
        return self._fitted().state_features_

    @property
    def transition_features_(self) -> dict[tuple[Any, Any], float]:
        """Weights by label and the next label."""
        return self._fitted().transition_features_

    def _fitted(self) -> Any:
        if not hasattr(self, "chain_"):
            from ...models.chain_crf import ChainCRF

            if self.model_filename is None or not Path(self.model_filename).is_file():
                raise ValueError("this CRF is not fitted: call fit first")
            self.chain_ = ChainCRF.from_crfsuite(self.model_filename)
        return self.chain_


def _unused(labels: Sequence[str]) -> None:
    """Nothing."""
