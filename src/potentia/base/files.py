"""Files that appear whole or not at all, and locks of files and folders."""

from __future__ import annotations

import gzip
import lzma
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO

from .resources import check_memory
from .types import PotentiaError, check_count, printable

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new file to write to, which takes the place of the one that a path names once it is whole, links followed.

    An error leaves nothing of it and names the file. What is written is on the disk before it takes that place, so that
    a power failure leaves the old file or the new one.
    """
    target = regular(path)
    hidden = hidden_name(target)
    try:
        with hidden.open("xb") as raw, locked(raw.fileno()):
            yield raw
            raw.flush()
            os.fsync(raw.fileno())
            hidden.replace(target)
        sync(target.absolute().parent)
    except OSError as error:
        raise unwritable(target, error) from None
    finally:
        with suppress(OSError):
            hidden.unlink()


def sync(path: Path) -> None:
    """Wait until the disk has a file, or a folder's list of files where the system can do that."""
    with suppress(OSError) if path.is_dir() else nullcontext():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Puts a file's name before sentences that do not name it."""
    try:
        yield
    except PotentiaError as error:
        if printable(os.fspath(path)) in str(error):
            raise
        raise PotentiaError(f"{os.fspath(path)}: {error}") from None


def unwritable(path: Path, error: OSError) -> PotentiaError:
    """The sentence about a file or folder that cannot be written."""
    return PotentiaError(f"{path} cannot be written: {error.strerror or error}.")


def new_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, absolute, made if it is not there."""
    target = Path(path).absolute()
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PotentiaError(f"{target} cannot be created: {error.strerror or error}.") from None
    return target


def hidden_name(target: Path) -> Path:
    """A name beside a file or folder for what is to take its place."""
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}")


@contextmanager
def locked(descriptor: int) -> Iterator[None]:
    """An open file or folder that no other process may lock, waiting for one that has; ends with the process."""
    if fcntl is None:
        yield
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextmanager
def only_user(path: Path) -> Iterator[None]:
    """A file that no other process or thread may use meanwhile: a second one gets a sentence at once.

    What is locked is a hidden file beside it, since the file itself is replaced when it is written. The lock ends with
    the process, however that ends; the hidden file that a killed one leaves is taken over by the next.
    """
    if fcntl is None:
        yield
        return
    target = regular(path)
    hidden = target.with_name(f".{target.name}.lock")
    try:
        descriptor = _locked_file(hidden)
    except OSError as error:
        raise unwritable(target, error) from None
    if descriptor is None:
        raise PotentiaError(f"{path} is in use by another fit; wait until that has ended, or name another file.")
    try:
        yield
    finally:
        hidden.unlink(missing_ok=True)  # before the lock ends, so that it is nobody else's
        os.close(descriptor)


def _locked_file(path: Path) -> int | None:
    """A descriptor of a new or left file, which is locked; None if somebody else has locked it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:  # a file system without locks
            return descriptor
        # its last user may have deleted it between the two calls
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False)):
                return descriptor
        os.close(descriptor)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """A folder that no other process may lock meanwhile."""
    if fcntl is None:  # where files cannot be locked, folders cannot be opened, either
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with locked(descriptor):
            yield
    finally:
        os.close(descriptor)


def leftovers(target: Path) -> list[Path]:
    """What killed processes left beside a file or folder they were to write; a living one has locked its own."""
    target = target.absolute()
    pattern = re.compile(rf"\.{re.escape(target.name)}\..*[0-9a-f]{{8}}")
    if fcntl is None or not target.parent.is_dir():
        return []
    return [
        Path(entry.path) for entry in os.scandir(target.parent) if pattern.fullmatch(entry.name) and _abandoned(entry)
    ]


def remove_leftovers(target: Path) -> None:
    """Delete what killed processes left beside a file or folder they were to write."""
    for path in leftovers(target):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _abandoned(entry: os.DirEntry[str]) -> bool:
    """Whether a file or folder is this user's, and no process has it locked."""
    if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
        return False
    try:
        descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():  # in a shared folder anybody can add files
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def regular(path: str | os.PathLike[str]) -> Path:
    """The file that a path names, links followed; refuses what is there and is no file, such as a device."""
    target = Path(path)
    target = target.resolve() if target.is_symlink() else target
    if target.exists() and not target.is_file():
        what = "a folder" if target.is_dir() else "no regular file"
        raise PotentiaError(f"{path} cannot be written: it is {what}.")
    return target


#: Bytes that a compressed text may have unpacked, unless POTENTIA_READ_LIMIT or an option says otherwise.
DEFAULT_LIMIT = 2**28
#: Bytes of a short string and its place in a list.
_PIECE_BYTES = 64


def read_text(
    path: str | os.PathLike[str], encoding: str, limit: int | None = None, span: tuple[int, int] | None = None
) -> str:
    """The text of a file; names that end in `.gz` or `.xz` are unpacked, up to `limit` bytes.

    With the encoding "utf-8-sig" a file that begins with the mark of UTF-16 is read as such. limit: None for
    POTENTIA_READ_LIMIT, or 256 MiB. A few kilobytes could otherwise unpack to all memory there is. span: first byte and
    end of the part to read, of a file that is not compressed.
    """
    source = Path(path)
    if source.is_fifo():  # reading waits until somebody writes
        raise PotentiaError(f"{source} is a pipe; write its content to a file.")
    try:
        if span is not None:
            data = read_span(source, *span)
        else:
            check_memory(2 * source.stat().st_size, f"{source}, a text,", "cut it into several files")
            data = _unpack(source, limit) if source.suffix in (".gz", ".xz") else source.read_bytes()
        marked = encoding == "utf-8-sig" and data[:2] in (b"\xff\xfe", b"\xfe\xff")
        return data.decode("utf-16" if marked else encoding)
    except UnicodeError:
        kind = {"ascii": "ASCII", "utf-8": "UTF-8", "utf-8-sig": "UTF-8"}.get(encoding, encoding)
        raise PotentiaError(f"{source}: the text is not {kind}.") from None
    except LookupError:
        raise PotentiaError(f"the encoding {encoding!r} is not known; utf-8 and latin-1 are.") from None
    except FileNotFoundError:
        raise PotentiaError(f"{source}: there is no such file.") from None
    except OSError as error:
        raise PotentiaError(f"{source}: the file cannot be read ({error.strerror or error}).") from None


def check_pieces(path: str | os.PathLike[str], text: str, separators: str) -> None:
    """Refuse a text that, cut into strings at these characters, does not fit in memory."""
    pieces = 1 + min(sum(map(text.count, separators)), len(text))
    what = f"{os.fspath(path)}, a text of up to {pieces} entries,"
    check_memory(_PIECE_BYTES * pieces, what, "cut it into several files")


def read_span(source: Path, first: int, end: int) -> bytes:
    """Bytes first .. end - 1 of a file."""
    with source.open("rb") as file:
        file.seek(first)
        return file.read(end - first)


def _unpack(source: Path, limit: int | None) -> bytes:
    """The bytes of a gzip or xz file; refuses more than `limit` of them."""
    most = _limit() if limit is None else limit
    check_count("limit", most, 1)
    kind, opened = ("xz", lzma.open) if source.suffix == ".xz" else ("gzip", gzip.open)
    try:
        with opened(source, "rb") as file:
            data = file.read(most + 1)
    except (lzma.LZMAError, EOFError, zlib.error, gzip.BadGzipFile):
        raise PotentiaError(f"{source}: the file cannot be read: it is not a complete {kind} file.") from None
    if len(data) > most:
        raise PotentiaError(
            f"{source} unpacks to more than {most} bytes; pass a larger limit or set POTENTIA_READ_LIMIT."
        )
    return data


def _limit() -> int:
    """The largest size of unpacked files: POTENTIA_READ_LIMIT, or the default."""
    given = os.environ.get("POTENTIA_READ_LIMIT")
    if given is None:
        return DEFAULT_LIMIT
    if not (given.isascii() and given.isdigit() and int(given[:19]) > 0):
        raise PotentiaError(f"POTENTIA_READ_LIMIT must be a whole number above 0, not {given[:40]!r}.")
    return int(given[:19])
