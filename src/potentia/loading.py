"""`load`: any saved model, by what its file says it is."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from ._types import PotentiaError
from .estimators import CRF
from .io.files import file_kind
from .workflows.pipeline import load_pipeline

#: Modules of the multi-label models that can be saved; imported when needed, since they bring scikit-learn along.
_MULTILABEL = {"LMBM": "lmbm", "LMSBN": "lmsbn", "IndependentClassifiers": "baselines"}


def load(path: str | os.PathLike[str]) -> Any:
    """A model written by its `save`: a `CRF`, `LMSBN`, `LMBM`, `IndependentClassifiers`, or a pipeline of the command
    line's `train`; predictions are identical.
    """
    kind = file_kind(path)
    if kind == "CRF":
        return CRF.load(path)
    if kind == "pipeline":
        return load_pipeline(path)
    if kind not in _MULTILABEL:
        raise PotentiaError(f"{os.fspath(path)} holds a {kind}, which is not a model")
    module = import_module(f".multilabel.{_MULTILABEL[kind]}", __package__)
    return getattr(module, kind).load(path)
