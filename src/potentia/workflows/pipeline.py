"""`Pipeline`: a model with everything around it that prediction from files needs, in one file."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from .._html import facts_table
from .._schema import TEXT, Items, Schema, check
from .._types import PotentiaError
from ..io.files import read_file, reading, write_file

#: What a file holds beside the model and its settings.
_SAVED: Schema = {"trained_on": Items(TEXT, optional=True)}


class Pipeline(ABC):
    """A fitted model, and how raw data become its features and its labels what the data call them.

    A file of a pipeline is the model's own JSON and arrays together with `settings`; see `save` and `load_pipeline`.
    """

    #: The name of its `Form`, which is also the command line's option for the data.
    form: ClassVar[str]
    #: What `settings` holds, checked on loading; settings that are not named here are not checked.
    saved: ClassVar[Schema] = {}
    model: Any
    #: Digests of the files that it was trained on, where known.
    trained_on: Sequence[str] = ()

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Everything but the model, as JSON."""

    @classmethod
    @abstractmethod
    def restore(cls, settings: Mapping[str, Any], content: Any, arrays: Any) -> Pipeline:
        """The pipeline of these settings, around the model whose state is (content, arrays)."""

    @abstractmethod
    def predict_files(self, source: Path, out: Path, **options: Any) -> dict[str, Any]:
        """Predict the data in `source` and write what was found to `out`, all of it or nothing; facts to show."""

    @abstractmethod
    def evaluate_files(self, source: Path, **options: Any) -> dict[str, Any]:
        """How well the labels in `source` are predicted, as facts to show."""

    def facts(self) -> dict[str, Any]:
        """A summary in one line."""
        return {"model": repr(self.model)}

    def __repr__(self) -> str:
        summary = "; ".join(f"{name}: {value}" for name, value in self.facts().items())
        return f"{type(self).__name__}({summary})"

    def _repr_html_(self) -> str:
        return facts_table(type(self).__name__, self.facts())

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Everything fitted, as JSON and arrays."""
        content, arrays = self.model.state()
        return content, arrays

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file, whole or not at all."""
        content, arrays = self.state()
        whole = {"form": self.form, "settings": self.settings(), "model": content}
        write_file(path, "pipeline", whole | {"trained_on": list(self.trained_on)}, arrays)


def load_pipeline(path: str | os.PathLike[str]) -> Pipeline:
    """The pipeline that `save` wrote; predictions are identical, and nothing in the file is executed."""
    from .form import all_forms  # which names pipelines

    with reading(path):
        content, arrays = read_file(path, "pipeline")
        name, forms = content["form"], all_forms()
        if name not in forms:
            raise PotentiaError(f"the form of data {name!r} is not known; import the module that defines it.")
        kind = forms[name].pipeline()
        settings = {**content["settings"], **check(kind.saved, content["settings"], "pipeline")}
        found = kind.restore(settings, content["model"], arrays)
        found.trained_on = check(_SAVED, content, "pipeline")["trained_on"] or ()
        return found


def file_digests(source: Path) -> list[str]:
    """A digest of the bytes of a file, or of each file of a folder."""
    paths = sorted(source.iterdir()) if source.is_dir() else [source]
    found = []
    for path in paths:
        if path.is_file():
            with path.open("rb") as raw:
                found.append(hashlib.file_digest(raw, partial(hashlib.blake2b, digest_size=16)).hexdigest())
    return found
