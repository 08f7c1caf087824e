"""Fits of multi-label estimators that show their progress and can be taken up again."""

from __future__ import annotations

import os
from typing import Any, Self

from scipy import sparse
from sklearn.utils import check_random_state

from .._digest import digest_of, stable_repr
from .._progress import Bar
from .._types import Floats
from ..io.checkpoint import Checkpoint
from .base import MultiLabelClassifier
from .fit_progress import FitProgress


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
            checkpoint: a file that keeps what is found every few seconds and at Ctrl-C; if it exists, the fit goes on
                from there. One of other data or options, an integer `random_state` among them, is refused.
        """
        with Bar(progress) as bar:
            self._solved = solved = FitProgress(bar, checkpoint)
            try:
                return super().fit(X, y)
            except KeyboardInterrupt:
                solved.write()
                raise
            finally:
                del self._solved

    def _seed(self, X: Any, signs: Floats) -> int:
        """The seed of a fit to X and signs, whose checkpoint is opened if it has one."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if self._solved is not None:
            self._solved.open(lambda: self._mark(X, signs, seed))
        return seed

    def _mark(self, X: Any, signs: Floats, seed: int) -> str:
        """What a checkpoint of this fit is known by."""
        options = {k: v for k, v in self.get_params(deep=False).items() if k != "random_state"}
        rows = (X.data, X.indices, X.indptr) if sparse.issparse(X) else (X,)
        return digest_of([stable_repr((type(self).__name__, options, seed)), *rows, signs])
