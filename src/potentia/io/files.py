"""One file that holds JSON and arrays: a zip archive, written whole or not at all, read without executing anything."""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .._types import PotentiaError
from .._version import __version__

#: Raised when the layout of files changes; a file of a higher schema is refused.
SCHEMA = 1
_HEAD = "potentia.json"


def write_file(
    path: str | os.PathLike[str], kind: str, content: Mapping[str, Any], arrays: Mapping[str, Any]
) -> None:
    """Write `content` (JSON) and named arrays; the file appears complete or not at all."""
    target = Path(path)
    head = {
        "schema": SCHEMA,
        "kind": kind,
        "version": __version__,
        "content": content,
        "arrays": list(arrays),
    }
    text = json.dumps(head, default=_plain)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise PotentiaError(f"{target} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as raw, zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(_HEAD, text)
            for number, value in enumerate(arrays.values()):
                buffer = io.BytesIO()
                np.lib.format.write_array(buffer, np.asarray(value), allow_pickle=False)
                archive.writestr(f"{number}.npy", buffer.getvalue())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_file(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Content and arrays of a file written by `write_file`; refuses damage, other kinds and newer schemas."""
    source = Path(path)
    if not source.is_file():
        raise PotentiaError(f"{source} does not exist or is not a file")
    try:
        with zipfile.ZipFile(source) as archive:
            head = json.loads(archive.read(_HEAD))
            _check_head(source, head, kind)
            arrays = {
                name: np.lib.format.read_array(io.BytesIO(archive.read(f"{number}.npy")), allow_pickle=False)
                for number, name in enumerate(head["arrays"])
            }
            return head["content"], arrays
    except PotentiaError:
        raise
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError, OSError) as error:
        raise PotentiaError(f"{source} is damaged or not a potentia file ({error})") from None


def _check_head(source: Path, head: Any, kind: str) -> None:
    if not isinstance(head, dict) or not isinstance(head.get("schema"), int):
        raise PotentiaError(f"{source} is not a potentia file")
    if head["schema"] > SCHEMA:
        raise PotentiaError(
            f"{source} was written by potentia {head.get('version')} with schema {head['schema']}; "
            f"this version reads up to schema {SCHEMA}"
        )
    if head["kind"] != kind:
        raise PotentiaError(f"{source} holds a {head['kind']}, not a {kind}")


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise PotentiaError(
        f"a {type(value).__name__} cannot be saved; give plain numbers, strings, lists and dicts"
    )
