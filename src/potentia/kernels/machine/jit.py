"""Compilation of kernels: `njit`, the folder that keeps them, the seconds it takes, and what is said about it.

`internals` compiles with less work and keeps the result better, but it is made of Numba's private classes. Where these
are not what it expects, and with POTENTIA_PLAIN=1, kernels are compiled by the public `numba.njit(cache=True)`, which
takes longer to start; `simd` and `team` then take their plain twins, too. With NUMBA_DISABLE_JIT=1 these run as Python.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import llvmlite
import numba
from numba.core import event

_SOURCES = Path(__file__).resolve().parents[1]
_STAMP = "sources.sha256"
#: Seconds of compilation without a word about it.
_PATIENCE = 2.0


def digest(sources: Path) -> str:
    """Digest of all sources in a folder and those below it.

    Numba keeps what it compiled until the function's own file changes, but compiled code holds that of the functions
    it calls, too: after an update of some files it would mix old code with new.
    """
    sources_hash = hashlib.sha256()
    for source in sorted(sources.rglob("*.py")):
        sources_hash.update(source.relative_to(sources).as_posix().encode() + source.read_bytes())
    return sources_hash.hexdigest()


def usable(folder: Path, current: str) -> bool:
    """Whether a folder can hold compiled kernels of the sources with this digest; drops those of other sources.

    A folder that cannot be written will do if it holds kernels of these sources, as in an image made by
    `potentia warmup`.
    """
    stamp = folder / _STAMP
    try:
        if stamp.exists() and stamp.read_text() == current:
            return True
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        for old in folder.rglob("*.nb?"):
            old.unlink(missing_ok=True)
        stamp.write_text(current)
    except OSError:
        return False
    return True


def _folders() -> Iterator[Path]:
    """Where compiled kernels may be kept, as Numba chooses: NUMBA_CACHE_DIR, beside the sources, the user's cache."""
    name = f"potentia_{hashlib.sha256(str(_SOURCES).encode()).hexdigest()[:16]}"
    if numba.config.CACHE_DIR:
        yield Path(numba.config.CACHE_DIR).absolute() / name
    yield _SOURCES / "__pycache__"
    user = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if user.is_absolute():  # else there is no home folder
        yield user / "numba" / name


def _choose_folder() -> Path | None:
    """The first folder for compiled kernels that can be written; None with a warning if there is none."""
    for folder in _folders():
        if usable(folder, DIGEST):
            return folder
    warnings.warn(
        f"no folder for compiled kernels can be written ({', '.join(map(str, _folders()))}), so that every process "
        "compiles them again; set NUMBA_CACHE_DIR to a folder that can",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


DIGEST = digest(_SOURCES)
FOLDER = _choose_folder()


def njit(*, allocates: bool = False, inner: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` with a cache on disk, and with less to compile.

    Functions whose names begin with _, and those declared `inner`, are called by other kernels only: they are compiled
    as parts of those, not separately as well, which would double their cost, and are not kept in the cache. Only
    functions declared with `allocates` may make arrays, or receive them from functions they call; the others do
    without reference counts, a good part of the code of functions that mostly index the arrays they are given.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        """The function compiled with our linkage, or by Numba's public compiler on the plain path."""
        hidden = inner or function.__name__.startswith("_")
        if _internals is not None:
            return _internals.njit(hidden=hidden, allocates=allocates, **options)(function)
        return _plain(function, hidden, options)

    return decorate


def _plain(function: Callable[..., Any], hidden: bool, options: dict[str, Any]) -> Any:
    """The function compiled by Numba's public means, in a folder that is cleared when sources change."""
    if hidden or FOLDER is None:
        return numba.njit(**options)(function)
    chosen, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(FOLDER / "plain")
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder can be written
        return numba.njit(**options)(function)
    finally:
        numba.config.CACHE_DIR = chosen


def _fitting_internals() -> ModuleType | None:
    """`internals`, if this Numba has what it needs; a Numba that has been tried is remembered beside the kernels."""
    if os.environ.get("POTENTIA_PLAIN") == "1" or numba.config.DISABLE_JIT:
        return None
    tried = f"{DIGEST} numba {numba.__version__}, llvmlite {llvmlite.__version__}, Python {sys.version}"
    record = None if FOLDER is None else FOLDER / "internals.txt"
    try:
        from . import internals

        if record is None or not record.exists() or record.read_text() != tried:
            internals.probe()
    except Exception as error:  # private parts of another Numba can fail in any way
        if os.environ.get("POTENTIA_VERBOSE") == "1":
            reason = f"{type(error).__name__}: {error}"
            print(f"potentia: kernels are compiled by Numba's public means ({reason})", file=sys.stderr)
        return None
    try:
        if record is not None:
            record.write_text(tried)
    except OSError:  # read-only: it is tried again next time
        pass
    return internals


class _Compilation(event.Listener):  # type: ignore[misc]
    """Counts the seconds in which kernels are compiled, and says once that this takes a while.

    It does so after two seconds, at once with POTENTIA_VERBOSE=1, never with 0.
    """

    def __init__(self) -> None:
        self.silent = False
        self._seconds, self._begun, self._depth = 0.0, 0.0, 0
        self._timer = threading.Timer(0.0, self._say)

    # Numba holds its lock from a start to the end: no two threads come here at the same time
    def on_start(self, event: event.Event) -> None:
        """Note when compilation begins; say so if it takes long."""
        if not _is_kernel(event):
            return
        if self._depth == 0:
            self._begun = time.monotonic()
            patience = {"0": math.inf, "1": 0.0}.get(os.environ.get("POTENTIA_VERBOSE", ""), _PATIENCE)
            if self._seconds >= patience:
                self._say()
            elif patience < math.inf and not self.silent:
                self._timer = threading.Timer(patience - self._seconds, self._say)
                self._timer.daemon = True
                self._timer.start()
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        """Add the seconds of the outermost compilation."""
        if not _is_kernel(event):
            return
        if self._depth == 1:
            self._timer.cancel()
            self._seconds += time.monotonic() - self._begun
        self._depth -= 1

    def _say(self) -> None:
        """Say once that kernels are compiled."""
        if not self.silent and sys.stderr is not None:
            print("potentia: compiling kernels (once) ...", file=sys.stderr, flush=True)
        self.silent = True

    def seconds(self) -> float:
        """Seconds spent on compiling so far, those under way included."""
        under_way = time.monotonic() - self._begun if self._depth else 0.0
        return self._seconds + under_way


def _is_kernel(event: event.Event) -> bool:
    """Whether an event of Numba's is about one of our kernels."""
    return str(event.data["dispatcher"].py_func.__module__).startswith("potentia.kernels.")


def silence() -> None:
    """Never say that kernels are compiled."""
    _compilation.silent = True


def compilation_seconds() -> float:
    """How long this process has compiled kernels so far."""
    return _compilation.seconds()


_compilation = _Compilation()
event.register("numba:compile", _compilation)
_internals = _fitting_internals()
#: Whether all that touches the insides of Numba and LLVM is left out.
PLAIN = _internals is None
