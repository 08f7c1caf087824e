"""Sets of rows with several yes-or-no labels each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .loaders import FilePath, check_choice, data_folder, read_arrays

#: The sets, by name.
MULTILABEL_SETS = (
    "scene", "yeast", "emotions", "enron", "medical", "bibtex", "birds", "corel5k", "delicious", "tmc2007_500",
    "rcv1_subset1_top944", "cal500",
)  # fmt: skip

#: Sets that come without training and test parts.
_WHOLE = ("cal500",)

_PARTS = ("X_train", "Y_train", "X_test", "Y_test")

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
    """A multi-label set by name, with its standard split; cal500 has none, and a third of it, drawn, is for testing.

    Column 0 of the test labels of rcv1_subset1_top944 is not known and all zero: leave it out of a test score.
    """
    check_choice("name", name, MULTILABEL_SETS)
    path = data_folder(folder) / "multilabel" / f"{name}.npz"
    found = _drawn(path) if name in _WHOLE else read_arrays(path, _PARTS)
    rows = [_rows(found[part]) for part in ("X_train", "X_test")]
    labels = [found[part].astype(np.int64) for part in ("Y_train", "Y_test")]
    if name in _NAMELESS:
        names = [[str(k) for k in range(width)] for width in (labels[0].shape[1], rows[0].shape[1])]
    else:
        names = [[str(n) for n in v] for v in read_arrays(path, ("label_names", "feature_names")).values()]
    return MultiLabelData(rows[0], labels[0], rows[1], labels[1], names[0], names[1])


def _drawn(path: Path) -> dict[str, np.ndarray]:
    """Two thirds of the rows for training, the rest for testing; always the same."""
    whole = read_arrays(path, ("X", "Y"))
    order = np.random.default_rng(0).permutation(len(whole["X"]))
    cut = 2 * len(order) // 3
    parts = {"train": order[:cut], "test": order[cut:]}
    return {f"{what}_{part}": whole[what][rows] for part, rows in parts.items() for what in ("X", "Y")}


def _rows(X: np.ndarray) -> Any:
    from scipy import sparse

    return sparse.csr_array(X.astype(float)) if X.dtype == np.uint8 else X.astype(float)
