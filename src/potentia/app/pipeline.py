"""`Pipeline`: a model with everything around it that prediction from files needs, in one file."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Self

from ..base.files import hidden_name, leftovers, locked_folder, regular, remove_leftovers, replacing, sync, unwritable
from ..base.html import facts_table
from ..base.saving import find_class, read_any, read_file, reading, write_file
from ..base.schema import TEXT, Choice, Items, Kind, Schema, check
from ..base.types import PotentiaError, check_type
from ..learn.backends.connection import current

if TYPE_CHECKING:
    from ..models.chain_crf import ChainCRF
    from ..models.crf import CRF
    from ..models.labelled import LabelEstimator
    from ..models.multilabel.base import MultiLabelClassifier
    from ..models.segment_crf import SegmentCRF

#: The class of pipelines of each form of data, and its module.
_PIPELINES = {
    "images": (".image_pipeline", "ImagePipeline"),
    "table": (".tables", "TablePipeline"),
    "sequences": (".sequences", "SequencePipeline"),
}
#: Models that are no multi-label estimators, by their public names.
_MODELS = ("CRF", "ChainCRF", "NodeClassifier", "SegmentCRF", "SequenceLabeller")
#: What a file holds beside arrays; models check their part.
_SAVED: Schema = {
    "form": Choice(tuple(_PIPELINES)),
    "settings": Kind((dict,)),
    "model": Kind((dict,)),
    "trained_on": Items(TEXT),
}


class Pipeline(ABC):
    """A fitted model, and how raw data become its features and its labels what the data call them.

    A file of a pipeline is the model's own JSON and arrays together with `settings`; see `save` and `load_pipeline`.
    """

    #: The form of data, which is also the command line's option for them.
    form: ClassVar[str]
    #: What `settings` holds, checked on loading.
    saved: ClassVar[Schema]
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
    def predict_files(self, source: Path, out: Path, *, progress: bool = False) -> dict[str, Any]:
        """Predict the data in `source` and write what was found to `out`, all of it or nothing; facts to show."""

    @abstractmethod
    def evaluate_files(self, source: Path, *, progress: bool = False) -> dict[str, Any]:
        """How well the labels in `source` are predicted, as facts to show."""

    def detail_tables(self, facts: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """Takes out of an evaluation's facts what is better shown as tables: lines by title, cells by heading."""
        return {}

    def facts(self) -> dict[str, Any]:
        """A summary in one line."""
        return {"model": repr(self.model)}

    def __repr__(self) -> str:
        summary = "; ".join(f"{name}: {value}" for name, value in self.facts().items())
        return f"{type(self).__name__}({summary})"

    def _repr_html_(self) -> str:
        """Facts of the pipeline as a table, for notebooks."""
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


def load(
    path: str | os.PathLike[str],
) -> CRF | ChainCRF | SegmentCRF | LabelEstimator | MultiLabelClassifier | Pipeline:
    """A model written by its `save`: a `CRF`, a chain, a multi-label estimator, or a pipeline of `potentia train`.

    Predictions are identical to those of the model saved. Nothing in the file is executed; a custom class must be
    imported before.

    Example:
        >>> import potentia as pt
        >>> import tempfile, pathlib
        >>> X, y = [[{"word": "Ann"}, {"word": "saw"}]], [["PERSON", "O"]]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "model"
        ...     pt.ChainCRF().fit(X, y).save(path)
        ...     model = pt.load(path)
        >>> model.predict(X)
        [['PERSON', 'O']]
    """
    check_type("path", path, str, os.PathLike)
    with reading(path):
        kind, content, arrays = read_any(path)
        if kind == "pipeline":
            return _restored(content, arrays)
        model: CRF | ChainCRF | SegmentCRF | LabelEstimator | MultiLabelClassifier
        model = _model_class(kind).from_state(content, arrays)
        return model


def _model_class(kind: str) -> Any:
    """The class of a model, imported here because each brings large libraries along."""
    if kind in _MODELS:
        return getattr(import_module("potentia"), kind)
    from ..models.multilabel.base import MultiLabelClassifier

    return find_class(kind, MultiLabelClassifier)


def load_pipeline(path: str | os.PathLike[str]) -> Pipeline:
    """The pipeline that `save` wrote."""
    with reading(path):
        return _restored(*read_file(path, "pipeline"))


def _restored(content: Any, arrays: Any) -> Pipeline:
    """The pipeline that a file describes."""
    whole = check(_SAVED, content, "pipeline")
    module, name = _PIPELINES[whole["form"]]
    kind: type[Pipeline] = getattr(import_module(module, __package__), name)
    pipeline = kind.restore(check(kind.saved, whole["settings"], "pipeline"), whole["model"], arrays)
    pipeline.trained_on = whole["trained_on"]
    return pipeline


def file_digests(source: Path) -> list[str]:
    """A digest of the bytes of a file, or of each file of a folder, or of its subfolders if it has none itself."""
    paths = sorted(source.iterdir()) if source.is_dir() else [source]
    if not any(path.is_file() for path in paths):
        paths = sorted(source.rglob("*"))
    digests = []
    for path in paths:
        if path.is_file():
            with path.open("rb") as raw:
                digests.append(hashlib.file_digest(raw, partial(hashlib.blake2b, digest_size=16)).hexdigest())
    return digests


#: What a hidden folder has: the new files, and once these are complete the names of files that they replace.
_FILES, _MANIFEST = "files", "stale.json"


class Staging:
    """A folder's new files: written to a hidden folder beside it, and moved into it once all are there.

    An error, also a full disk, leaves the folder as it was. A killed process leaves its hidden folder. If the files in
    it are complete, the next process that writes to the folder moves what is left of them; otherwise it removes them.

    stale: of files in the folder, as paths from it, those that this run replaces although it may not write them.
    """

    def __init__(self, folder: Path, stale: re.Pattern[str] | None = None) -> None:
        self.folder, self._stale = folder, stale

    def __enter__(self) -> Self:
        if self.folder.exists() and not self.folder.is_dir():
            raise PotentiaError(f"{self.folder} is a file, not a folder.")
        try:
            self._finish_others()
            remove_leftovers(self.folder)
            # absolute, since workers of a cluster may be in another folder
            self._hidden = hidden_name(self.folder.absolute())
            self._hidden.mkdir(mode=0o700)
            (self._hidden / _FILES).mkdir()
            self._lock = ExitStack()
            self._lock.enter_context(locked_folder(self._hidden))
        except OSError as error:
            raise unwritable(self.folder, error) from None
        return self

    def __getstate__(self) -> dict[str, Path]:
        # a worker of a cluster writes files; the lock stays with the process that has it
        return {"folder": self.folder, "_hidden": self._hidden}

    def file(self, *parts: str) -> Path:
        """Where to write a file of the folder, or of a subfolder."""
        path = self._hidden.joinpath(_FILES, *parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._move()
        except OSError as failure:
            raise unwritable(self.folder, failure) from None
        finally:
            self._lock.close()
            shutil.rmtree(self._hidden, ignore_errors=True)
        if isinstance(error, OSError):
            raise unwritable(self.folder, error) from None

    def _move(self) -> None:
        """Move the new files to their folder, all or none; a manifest lets a killed move be finished later."""
        new = self._hidden / _FILES
        for path in (*new.rglob("*"), new):
            sync(path)
        if not self.folder.exists():
            new.rename(self.folder)
        else:
            self._finish_others()
            with locked_folder(self.folder):
                stale = self._replaced(new)
                with replacing(self._hidden / _MANIFEST) as raw:
                    raw.write(json.dumps(stale).encode())
                _finish(self._hidden, self.folder)
        sync(self.folder.absolute().parent)

    def _replaced(self, new: Path) -> list[str]:
        """The folder's files that the new ones replace without having their names; refuses what is in the way."""
        names = [path.relative_to(new).as_posix() for path in new.rglob("*")]
        for name in names:
            if (self.folder / name).exists() and (self.folder / name).is_dir() != (new / name).is_dir():
                raise PotentiaError(f"{self.folder / name} is in the way; move it elsewhere.")
        if self._stale is None:
            return []
        relative = [path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*")]
        return [name for name in relative if self._stale.fullmatch(name) and name not in names]

    def _finish_others(self) -> None:
        """Move what killed processes wrote and did not finish to move; one that still moves is waited for."""
        if not self.folder.is_dir():
            return
        with locked_folder(self.folder):
            for hidden in leftovers(self.folder):
                if (hidden / _MANIFEST).is_file():
                    _finish(hidden, self.folder)
                    shutil.rmtree(hidden, ignore_errors=True)


def _finish(hidden: Path, folder: Path) -> None:
    """Move complete files into the folder and remove those that they replace; may be done again after half of it."""
    for name in json.loads((hidden / _MANIFEST).read_text()):
        (folder / name).unlink(missing_ok=True)
        if "/" in name:
            with suppress(OSError):  # other files are in it
                (folder / name).parent.rmdir()
    for path in sorted((hidden / _FILES).rglob("*")):  # folders before what is in them
        target = folder / path.relative_to(hidden / _FILES)
        if path.is_dir():
            target.mkdir(exist_ok=True)
        else:
            path.replace(target)
    moved = (path for path in (hidden / _FILES).rglob("*") if path.is_dir())
    for path in (folder, *(folder / path.relative_to(hidden / _FILES) for path in moved)):
        sync(path)


def write_text(path: Path, text: str) -> None:
    """A text file in UTF-8, whole or not at all, compressed where its name ends in .gz."""
    with write_stream(path) as raw:
        raw.write(text.encode())


@contextmanager
def write_stream(path: Path) -> Iterator[BinaryIO | gzip.GzipFile]:
    """A file to write bytes to, whole or not at all, compressed where its name ends in .gz."""
    with replacing(path) as raw:
        if path.suffix != ".gz":
            yield raw
            return
        with gzip.open(raw, "wb") as packed:
            yield packed


def check_target(path: Path, source: Path | None = None) -> None:
    """Refuse a file that could not be written in the end, or that is the data itself, before any work."""
    if source is not None and path.exists() and source.exists() and path.samefile(source):
        raise PotentiaError(f"{path} is the data itself; --out needs another name.")
    if path.is_dir():
        raise PotentiaError(f"{path} is a folder; --out needs the name of a file.")
    regular(path)
    if not path.absolute().parent.is_dir():
        raise PotentiaError(f"{path} cannot be written: there is no folder {path.absolute().parent}.")
    if not os.access(path.absolute().parent, os.W_OK):
        raise PotentiaError(f"{path} cannot be written: its folder is write-protected.")


def seen_by_workers(path: Path) -> Path:
    """The path; absolute on a cluster, whose workers may be in another folder."""
    return path if current() is None else path.absolute()
