"""Where compiled kernels are kept: a folder that can be written, or holds those of these very sources."""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numba

_SOURCES = Path(__file__).resolve().parents[1]
_STAMP = "sources.sha256"


def digest(sources: Path) -> str:
    """Digest of all sources in a folder and those below it.

    Numba keeps what it compiled until the function's own file changes, but compiled code holds that of the functions
    it calls, too: after an update of some files it would mix old code with new.
    """
    found = hashlib.sha256()
    for source in sorted(sources.rglob("*.py")):
        found.update(source.relative_to(sources).as_posix().encode() + source.read_bytes())
    return found.hexdigest()


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
    own = f"potentia_{hashlib.sha256(str(_SOURCES).encode()).hexdigest()[:16]}"
    if numba.config.CACHE_DIR:
        yield Path(numba.config.CACHE_DIR).absolute() / own
    yield _SOURCES / "__pycache__"
    user = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if user.is_absolute():  # else there is no home folder
        yield user / "numba" / own


def _choose_folder() -> Path | None:
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
