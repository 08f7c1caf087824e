"""Numba functions on flat arrays: no classes with behaviour, no validation."""

from __future__ import annotations

import hashlib
from pathlib import Path


def forget_stale(folder: Path) -> None:
    """Delete compiled kernels if any source in the folder has changed since they were compiled.

    Numba keeps what it compiled until the function's own file changes, but it holds code of the functions it calls,
    too: after an update of some files it would mix old code with new.
    """
    sources = hashlib.sha256()
    for source in sorted(folder.glob("*.py")):
        sources.update(source.name.encode() + source.read_bytes())
    compiled = folder / "__pycache__"
    stamp = compiled / "sources.sha256"
    try:
        if stamp.exists() and stamp.read_text() == sources.hexdigest():
            return
        for old in compiled.glob("*.nb?"):
            old.unlink(missing_ok=True)
        compiled.mkdir(exist_ok=True)
        stamp.write_text(sources.hexdigest())
    except OSError:  # a folder that is not ours to write holds nothing compiled either
        return


forget_stale(Path(__file__).parent)
