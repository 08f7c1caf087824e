"""One file that holds JSON and arrays: a zip archive, written whole or not at all, read without executing anything."""

from __future__ import annotations

import json
import math
import os
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .._available import enough_memory
from .._files import naming, replacing
from .._options import check_type
from .._types import PotentiaError
from .._version import __version__

#: Raised when the layout of files changes; a file of a higher schema is refused.
SCHEMA = 1
_HEAD = "potentia.json"
#: Where an array's numbers begin in the file is a multiple of this, since NumPy's header is.
_ALIGNED = 64
#: Arrays of at least this many bytes need the format's long sizes.
_LARGE = 1 << 31
#: Bytes read at a time.
_PIECE = 1 << 20


def write_file(
    path: str | os.PathLike[str], kind: str, content: Mapping[str, Any], arrays: Mapping[str, Any]
) -> None:
    """Write `content` (JSON) and named arrays; the file appears complete or not at all."""
    head = {
        "schema": SCHEMA,
        "kind": kind,
        "version": __version__,
        "content": content,
        "arrays": list(arrays),
    }
    text = json.dumps(head, default=_plain)
    with replacing(path) as raw, zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_HEAD, text)
        for number, value in enumerate(arrays.values()):
            array = np.asarray(value)
            large = array.nbytes >= _LARGE
            entry = _aligned(f"{number}.npy", raw.tell(), large)
            with archive.open(entry, "w", force_zip64=large) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def _aligned(name: str, offset: int, large: bool) -> zipfile.ZipInfo:
    """An entry that begins at an offset of the file, whose data begin at a multiple of _ALIGNED."""
    entry = zipfile.ZipInfo(name)
    entry.external_attr = 0o600 << 16
    head = offset + 30 + len(name) + (20 if large else 0)
    filling = -(head + 4) % _ALIGNED
    entry.extra = struct.pack("<HH", 0x7470, filling) + bytes(filling)
    return entry


def write_arrays(path: str | os.PathLike[str], arrays: Sequence[Any]) -> None:
    """Write arrays to a file that `numpy.load` reads, named by their numbers; it appears complete or not at all."""
    with replacing(path) as raw:
        np.savez(raw, **{f"{number}": array for number, array in enumerate(arrays)})


def file_kind(path: str | os.PathLike[str]) -> str:
    """What kind of thing a file holds: the `kind` given to `write_file`."""
    return str(_read(path, None)[2])


def read_content(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """The content of a file without its arrays."""
    content, _, found = _read(path, None)
    if found != kind:
        raise PotentiaError(f"{path} holds a {found}, not a {kind}.")
    return content


def read_file(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Content and arrays of a file written by `write_file`; refuses damage, other kinds and newer schemas."""
    return _read(path, kind)[:2]


def _read(
    path: str | os.PathLike[str], kind: str | None
) -> tuple[dict[str, Any], dict[str, np.ndarray], str]:
    """Content, arrays and kind; with kind None any kind, and no arrays."""
    check_type("path", path, str, os.PathLike)
    source = Path(path)
    if not source.is_file():
        raise PotentiaError(f"{source} does not exist or is not a file.")
    with reading(source), zipfile.ZipFile(source) as archive:
        _check_sizes(source, archive)
        head = json.loads(archive.read(_HEAD), object_pairs_hook=_distinct)
        _check_head(source, head, kind)
        arrays = {
            name: _array(archive, f"{number}.npy", name)
            for number, name in enumerate(head["arrays"] if kind is not None else ())
        }
        return head["content"], arrays, head["kind"]


def _check_sizes(source: Path, archive: zipfile.ZipFile) -> None:
    """Refuse a file that would need more memory than it has bytes: entries are written uncompressed and apart."""
    entries = archive.infolist()
    _distinct((entry.filename, entry) for entry in entries)
    stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
    if not stored or sum(entry.file_size for entry in entries) > source.stat().st_size:
        raise PotentiaError(
            f"{source} is compressed or damaged: its entries claim more bytes than the file has."
        )


def _array(archive: zipfile.ZipFile, entry: str, name: str) -> np.ndarray:
    """An array in NumPy's format; refuses objects, and a shape that does not fit the bytes before allocating it."""
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(file)
        size = archive.getinfo(entry).file_size - file.tell()
        if dtype.hasobject or not dtype.itemsize or dtype.itemsize * math.prod(shape) != size:
            raise PotentiaError(f"the array {name} has {size} bytes, not those of {shape} of type {dtype}.")
        data = np.empty(size, dtype=np.uint8)
        for first in range(0, size, _PIECE):
            piece = file.read(min(_PIECE, size - first))
            data[first : first + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
        file.read(1)  # the check sum is looked at where the entry ends
    return data.view(dtype).reshape(shape, order="F" if fortran else "C")


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Names the file in errors, and says that it is damaged where what is done with its content fails.

    Any exception counts: what a file holds is checked before it is used, so what is left is what no check foresaw.
    """
    try:
        with naming(path), enough_memory("reading it"):
            yield
    except PotentiaError:
        raise
    except Exception as error:
        raise PotentiaError(f"{path} is damaged or not a potentia file ({first_line(error)}).") from None


def first_line(error: Exception) -> str:
    """What an error says, without explanations on further lines."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _check_head(source: Path, head: Any, kind: str | None) -> None:
    if not isinstance(head, dict) or not isinstance(head.get("schema"), int):
        raise PotentiaError(f"{source} is not a potentia file.")
    if head["schema"] > SCHEMA:
        raise PotentiaError(
            f"{source} was written by potentia {head.get('version')} with schema {head['schema']}; "
            f"this version reads up to schema {SCHEMA}."
        )
    if kind is not None and head["kind"] != kind:
        raise PotentiaError(f"{source} holds a {head['kind']}, not a {kind}.")
    _distinct((name, None) for name in head["arrays"])


def _distinct(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Values by name; refuses a name that occurs twice, of which readers would take one or the other."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise PotentiaError(f"the file is damaged: it holds {name[:40]!r} twice.")
        found[name] = value
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, range):
        return list(value)
    raise PotentiaError(
        f"a {type(value).__name__} cannot be saved; give plain numbers, strings, lists and dicts."
    )
