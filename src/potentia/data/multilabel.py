"""Sets of rows with several yes-or-no labels each."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .loaders import FilePath, check_choice, data_folder, read_arrays

#: Sets that come as training and test rows, by name.
MULTILABEL_SETS = (
    "scene", "yeast", "emotions", "enron", "medical", "bibtex", "birds", "corel5k", "delicious", "tmc2007_500",
    "rcv1_subset1_top944",
)  # fmt: skip

#: Sets whose labels and features have no names but their numbers.
_NAMELESS = ("rcv1_subset1_top944",)


class MultiLabelData(NamedTuple):
    """Rows X (n, d), CSR where features are 0 or 1 and dense otherwise, and labels Y (n, K) of 0 and 1."""

    X_train: Any
    Y_train: np.ndarray
    X_test: Any
    Y_test: np.ndarray
    label_names: list[str]
    feature_names: list[str]


def multilabel(name: str, folder: FilePath | None = None) -> MultiLabelData:
    """A multi-label set by name, with its standard split.

    Column 0 of the test labels of rcv1_subset1_top944 is not known and all zero: leave it out of a test score.
    """
    check_choice("name", name, MULTILABEL_SETS)
    path = data_folder(folder) / "multilabel" / f"{name}.npz"
    found = read_arrays(path, ("X_train", "Y_train", "X_test", "Y_test"))
    rows = [_rows(found[part]) for part in ("X_train", "X_test")]
    labels = [found[part].astype(np.int64) for part in ("Y_train", "Y_test")]
    if name in _NAMELESS:
        names = [[str(k) for k in range(width)] for width in (labels[0].shape[1], rows[0].shape[1])]
    else:
        names = [[str(n) for n in v] for v in read_arrays(path, ("label_names", "feature_names")).values()]
    return MultiLabelData(rows[0], labels[0], rows[1], labels[1], names[0], names[1])


def _rows(X: np.ndarray) -> Any:
    from scipy import sparse

    return sparse.csr_array(X.astype(float)) if X.dtype == np.uint8 else X.astype(float)
