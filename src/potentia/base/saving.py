"""Classes that files name: registered by subclassing, described as JSON with their options, and rebuilt from it.

A file never names a module to import or a function to call: only classes that the running program has already defined.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import re
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from . import __version__
from .files import naming, replacing
from .types import PotentiaError, check_type, enough_memory

_CLASSES: dict[str, type[Registered]] = {}
#: The library's own classes without a public name at the top, and their modules.
_LATE = {"Network": "potentia.models.torch"} | dict.fromkeys(
    ["AllDifferent", "And", "AtMostOne", "Cardinality", "ExactlyOne", "Implies", "Or", "Parity", "PnPotts"],
    "potentia.potentials.factors",
)
#: Keys of JSON objects that encode something other than a dictionary.
_MARKS = ({"class", "options"}, {"mapping"}, {"function"})


class Registered:
    """Base of every class that files may name: potentials, losses, gradients, inference, learners and models.

    A subclass is known from its definition on. Its options are what `get_params` returns, or the fields of a dataclass,
    and its constructor takes them as keywords.

    Example:
        >>> import potentia as pt
        >>> issubclass(pt.TRW, pt.extend.Registered), issubclass(pt.Linear, pt.extend.Registered)
        (True, True)
    """

    @classmethod
    def decode_option(cls, name: str, value: Any) -> Any:
        """An option of a file as the constructor takes it."""
        return value

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _CLASSES[saved_name(cls)] = cls


@dataclass(frozen=True)
class SavedFunction:
    """Stands for a function among the options of a saved object, of which a file holds the name only."""

    name: str

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Refuse, because the function is not in the file."""
        raise PotentiaError(f"the function {self.name} is not in the file that named it: set that option again first.")


def saved_name(cls: type) -> str:
    """The library's own classes by name, so that files survive a move; others with their module."""
    own = cls.__module__.startswith("potentia.")
    return cls.__name__ if own else f"{cls.__module__}.{cls.__qualname__}"


def find_class(name: Any, base: type) -> type[Any]:
    """The registered subclass of `base` that a file names."""
    if isinstance(name, str) and name not in _CLASSES:
        _import_own(name)
    found = _CLASSES.get(name) if isinstance(name, str) else None
    if found is not None and issubclass(found, base) and not inspect.isabstract(found):
        return found
    if isinstance(name, str) and "." in name:
        raise PotentiaError(f"the file names the class {name}, which is unknown: import its module first.")
    raise PotentiaError(f"the file names the class {name!r}, which is not a {base.__name__} of this version.")


def _import_own(name: str) -> None:
    """Import the library's own class of this name, if there is one: most are imported at first use."""
    package = import_module(__package__.partition(".")[0])
    if name in _LATE:
        import_module(_LATE[name])
    elif name in package.__all__:
        getattr(package, name)


def to_json(thing: Registered | None) -> dict[str, Any] | None:
    """{"class": name, "options": {...}}, options being plain values, lists, dictionaries and further such objects.

    Arrays and tuples become lists. A function is recorded by its name only, see `SavedFunction`; anything else is
    refused.
    """
    if thing is None:
        return None
    name = type(thing).__name__
    if not isinstance(thing, Registered):
        raise PotentiaError(
            f"an object of class {name} cannot be saved: derive its class from a base class of potentia."
        )
    return {
        "class": saved_name(type(thing)),
        "options": {key: encode(value, f"{key} of {name}") for key, value in _options(thing).items()},
    }


def from_json(content: Any, base: type) -> Any:
    """The object of a subclass of `base` that `to_json` described."""
    if content is None:
        return None
    if not isinstance(content, dict) or set(content) != {"class", "options"}:
        raise PotentiaError(f"the file describes no {base.__name__} where one is expected.")
    if not isinstance(content["options"], dict):
        raise PotentiaError(f"the file holds no options of {content['class']!r}.")
    return build(find_class(content["class"], base), {key: decode(value) for key, value in content["options"].items()})


def build(cls: type[Any], options: Mapping[str, Any]) -> Any:
    """An object of a class with the options of a file."""
    arguments = {name: cls.decode_option(name, value) for name, value in options.items()}
    try:
        inspect.signature(cls).bind(**arguments)
        return cls(**arguments)
    except TypeError as error:
        raise PotentiaError(f"the file has options that {cls.__name__} does not take: {error}.") from None


def _options(thing: Registered) -> dict[str, Any]:
    """The options of an object, which its constructor must take."""
    options = {}
    if hasattr(thing, "get_params"):
        options = thing.get_params(deep=False)
    elif is_dataclass(thing):
        options = {field.name: getattr(thing, field.name) for field in fields(thing) if field.init}
    try:
        inspect.signature(type(thing)).bind(**options)
        if vars(thing) and not options:
            raise TypeError("it tells no options")
    except TypeError as error:
        raise PotentiaError(
            f"a {type(thing).__name__} cannot be saved: make it a dataclass or define get_params ({error})."
        ) from None
    return options


def encode(value: Any, name: str) -> Any:
    """An option's value as JSON; `name` is how errors call it."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Registered):
        return to_json(value)
    if isinstance(value, list | tuple | range):
        return [encode(item, name) for item in value]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value) and set(value) not in _MARKS:
            return {key: encode(item, name) for key, item in value.items()}
        return {"mapping": [[encode(key, name), encode(item, name)] for key, item in value.items()]}
    if isinstance(value, SavedFunction):
        return {"function": value.name}
    if callable(value):
        known = value if hasattr(value, "__qualname__") else type(value)
        return {"function": f"{known.__module__}.{known.__qualname__}"}
    raise PotentiaError(f"{name} of type {type(value).__name__} cannot be saved.")


def decode(value: Any) -> Any:
    """The value that `encode` wrote."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"class", "options"}:
        return from_json(value, Registered)
    if set(value) == {"mapping"}:
        return {decode(key): decode(item) for key, item in value["mapping"]}
    if set(value) == {"function"}:
        return SavedFunction(str(value["function"]))
    return {key: decode(item) for key, item in value.items()}


def digest_of(parts: Iterable[str | bytes | np.ndarray[Any, Any]]) -> str:
    """A digest of texts, bytes and arrays."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        head: bytes = b""
        data: Any = part.encode() if isinstance(part, str) else part
        if isinstance(data, np.ndarray):
            head = f"{data.dtype} {data.shape} ".encode()
            data = np.ascontiguousarray(data).data.cast("B") if data.size else b""
        digest.update(head + len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def stable_repr(value: Any) -> str:
    """How a value prints; objects that print as their address are known by their class or name."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


#: Raised when the layout of files changes; a file of a higher schema is refused.
SCHEMA = 1
_HEAD = "potentia.json"
#: Where an array's numbers begin in the file is a multiple of this, since NumPy's header is.
_ALIGNED = 64
#: Arrays of at least this many bytes need the format's long sizes.
_LARGE = 1 << 31
#: Bytes read at a time.
_PIECE = 1 << 20


def write_file(path: str | os.PathLike[str], kind: str, content: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write `content` (JSON) and named arrays; the file appears complete or not at all."""
    head = {"schema": SCHEMA, "kind": kind, "version": __version__, "content": content, "arrays": list(arrays)}
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
    with _opened(path) as (head, _):
        return str(head["kind"])


def read_content(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """The content of a file without its arrays."""
    with _opened(path, kind) as (head, _):
        content: dict[str, Any] = head["content"]
        return content


def read_file(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Content and arrays of a file written by `write_file`; refuses damage, other kinds and newer schemas."""
    return read_any(path, kind)[1:]


def read_any(
    path: str | os.PathLike[str], kind: str | None = None
) -> tuple[str, dict[str, Any], dict[str, np.ndarray]]:
    """What kind of thing a file holds, its content and its arrays; `kind` is what it must be, None for anything."""
    with _opened(path, kind) as (head, archive):
        arrays = {name: _array(archive, f"{k}.npy", name) for k, name in enumerate(head["arrays"])}
        return str(head["kind"]), head["content"], arrays


@contextmanager
def _opened(path: str | os.PathLike[str], kind: str | None = None) -> Iterator[tuple[dict[str, Any], zipfile.ZipFile]]:
    """The head of a file, checked, and its archive.

    A file that would need more memory than it has bytes is refused: entries are written uncompressed and apart.
    """
    check_type("path", path, str, os.PathLike)
    source = Path(path)
    if not source.is_file():
        raise PotentiaError(f"{source} does not exist or is not a file.")
    with reading(source), zipfile.ZipFile(source) as archive:
        entries = archive.infolist()
        _distinct((entry.filename, entry) for entry in entries)
        stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
        if not stored or sum(entry.file_size for entry in entries) > source.stat().st_size:
            raise PotentiaError(f"{source} is compressed or damaged: its entries claim more bytes than the file has.")
        head = json.loads(archive.read(_HEAD), object_pairs_hook=_distinct)
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
        yield head, archive


def _array(archive: zipfile.ZipFile, entry: str, name: str) -> np.ndarray:
    """An array in NumPy's format; refuses objects, and a shape that does not fit the bytes before allocating it."""
    with archive.open(entry) as file:
        short = np.lib.format.read_magic(file) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if short else np.lib.format.read_array_header_2_0
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


def _distinct(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Values by name; refuses a name that occurs twice, of which readers would take one or the other."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise PotentiaError(f"the file is damaged: it holds {name[:40]!r} twice.")
        values[name] = value
    return values


def _plain(value: Any) -> Any:
    """NumPy values and ranges as plain lists and numbers, for JSON."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, range):
        return list(value)
    raise PotentiaError(f"a {type(value).__name__} cannot be saved; give plain numbers, strings, lists and dicts.")
