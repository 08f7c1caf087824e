"""Text files, plain or compressed, of which no more is unpacked than a limit allows."""

from __future__ import annotations

import gzip
import lzma
import os
import zlib
from pathlib import Path

from ._available import check_memory
from ._options import check_count
from ._types import PotentiaError

#: Bytes that a compressed text may have unpacked, unless POTENTIA_READ_LIMIT or an option says otherwise.
DEFAULT_LIMIT = 2**28
#: Bytes of a short string and its place in a list.
_PIECE_BYTES = 64


def read_text(
    path: str | os.PathLike[str],
    encoding: str,
    limit: int | None = None,
    span: tuple[int, int] | None = None,
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
        if span is None:
            check_memory(2 * source.stat().st_size, f"{source}, a text,", "cut it into several files")
        if span is not None:
            data = read_span(source, *span)
        else:
            data = source.read_bytes() if source.suffix not in (".gz", ".xz") else _unpack(source, limit)
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
    check_memory(
        _PIECE_BYTES * pieces,
        f"{os.fspath(path)}, a text of up to {pieces} entries,",
        "cut it into several files",
    )


def read_span(source: Path, first: int, end: int) -> bytes:
    """Bytes first .. end - 1 of a file."""
    with source.open("rb") as file:
        file.seek(first)
        return file.read(end - first)


def _unpack(source: Path, limit: int | None) -> bytes:
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
    given = os.environ.get("POTENTIA_READ_LIMIT")
    if given is None:
        return DEFAULT_LIMIT
    if not (given.isascii() and given.isdigit() and int(given[:19]) > 0):
        raise PotentiaError(f"POTENTIA_READ_LIMIT must be a whole number above 0, not {given[:40]!r}.")
    return int(given[:19])
