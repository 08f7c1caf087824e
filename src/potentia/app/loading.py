"""`load`: any saved model, by what its file says it is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..base.saving import file_kind, find_class, reading
from ..models.crf import CRF
from .pipeline import Pipeline, load_pipeline

if TYPE_CHECKING:
    from ..models.chain_crf import ChainCRF
    from ..models.multilabel.base import MultiLabelClassifier

    Model = CRF | ChainCRF | MultiLabelClassifier | Pipeline


def load(path: str | os.PathLike[str]) -> Model:
    """A model written by its `save`: a `CRF`, `ChainCRF` or multi-label estimator, or a pipeline of `potentia train`.

    Predictions are identical to those of the model saved. Nothing in the file is executed; a custom class must be
    imported before.
    """
    kind = file_kind(path)
    if kind == "pipeline":
        return load_pipeline(path)
    with reading(path):
        model: Model = _class_of(kind).load(path)
        return model


def _class_of(kind: str) -> type[Any]:
    if kind == "CRF":
        return CRF
    # imported here, because these bring scikit-learn along
    if kind == "ChainCRF":
        from ..models.chain_crf import ChainCRF

        return ChainCRF
    from ..models.multilabel.base import MultiLabelClassifier

    return find_class(kind, MultiLabelClassifier)
