"""Fits of multi-label estimators that show their progress and can be taken up again."""

from __future__ import annotations

import os
from typing import Any, Self

from scipy import sparse
from sklearn.utils import check_random_state

from .._digest import digest_of, stable_repr
from .._options import check_flag
from .._progress import Bar
from .._types import Floats
from ..io.checkpoint import Checkpoint
from .base import MultiLabelClassifier
from .fit_progress import FitProgress
from .weights import check_class_weight


class ResumableClassifier(MultiLabelClassifier):
    """Base of estimators that keep what a fit has found so far."""

    random_state: Any
    _solved: FitProgress | None = None

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        progress: bool = False,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    ) -> Self:
        """Learn from rows X (n, d) and their labels y (n, K) or (n,).

        Args:
            progress: show a progress bar.
            checkpoint: a file that keeps what is found every few seconds and at Ctrl-C; if it exists, the fit resumes
                from there. One of other data or options, an integer `random_state` among them, is refused.
        """
        return self._resume(X, y, None, progress, checkpoint)

    def _resume(self, X: Any, y: Any, sample_weight: Any, progress: bool, checkpoint: Any) -> Self:
        check_flag("progress", progress)
        with Bar(progress) as bar:
            self._solved = solved = FitProgress(bar, checkpoint)
            try:
                return self._learn(X, y, sample_weight)
            except KeyboardInterrupt:
                solved.write()
                raise
            finally:
                solved.close()
                del self._solved

    def _seed(self, X: Any, signs: Floats, weight: Floats) -> int:
        """The seed of a fit to rows, signs and weights, whose checkpoint is opened if it has one."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if self._solved is not None:
            self._solved.open(lambda: self._mark(X, signs, weight, seed))
        return seed

    def _mark(self, X: Any, signs: Floats, weight: Floats, seed: int) -> str:
        """What a checkpoint of this fit is known by."""
        options = {k: v for k, v in self.get_params(deep=False).items() if k != "random_state"}
        rows = (X.data, X.indices, X.indptr) if sparse.issparse(X) else (X,)
        return digest_of([stable_repr((type(self).__name__, options, seed)), *rows, signs, weight])


class WeightedClassifier(ResumableClassifier):
    """Base of estimators whose rows and labels' values may have weights; a subclass has the option `class_weight`."""

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        progress: bool = False,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    ) -> Self:
        """Learn from rows X (n, d), their labels y (n, K) or (n,), and weights (n) of the rows' losses.

        Args:
            sample_weight: numbers of at least 0; only their ratios matter, and a row of weight 0 is left out.
            progress, checkpoint: as of other estimators: a progress bar, and a file from which a fit resumes.
        """
        return self._resume(X, y, sample_weight, progress, checkpoint)

    def _check_options(self) -> None:
        super()._check_options()
        check_class_weight(self.class_weight)
