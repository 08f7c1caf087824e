"""Memory that the machine has left, and refusing work that needs more."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from .types import Floats, PotentiaError

_GROUPS = Path("/sys/fs/cgroup")


#: Bytes that are not worth a look at what is left, unless POTENTIA_MEMORY is set.
_UNCHECKED = 1 << 26


def check_memory(needed: float, what: str, remedy: str) -> None:
    """Refuse work that needs more bytes than there are, or than POTENTIA_MEMORY allows (in GB; "inf" for no check)."""
    if needed < _UNCHECKED and "POTENTIA_MEMORY" not in os.environ:
        return
    there = available_memory()
    if needed > there:
        raise PotentiaError(
            f"{what} needs about {needed / 1e9:.1f} GB of memory, but {there / 1e9:.1f} GB are available; {remedy}, or "
            "set POTENTIA_MEMORY to the GB that it may take (inf for no check)."
        )


def available_memory() -> float:
    """Bytes that this process may take in addition, or what POTENTIA_MEMORY says; infinite where nothing tells."""
    given = os.environ.get("POTENTIA_MEMORY")
    if given is not None:
        return _given_bytes(given)
    return min(_of_machine(), _of_group(), _of_process())


def _given_bytes(given: str) -> float:
    try:
        number = float(given)
    except ValueError:
        number = -1.0
    if not number > 0:
        raise PotentiaError(f"POTENTIA_MEMORY must be a number of GB above 0, not {given[:40]!r}.")
    return number * 1e9


def _of_machine() -> float:
    """What Linux says is available without swapping."""
    found = _numbers(Path("/proc/meminfo"))
    return found["MemAvailable:"] * 1024 if "MemAvailable:" in found else math.inf


def _of_group() -> float:
    """What the control group (of a container, or a service) has left; pages of files can be dropped."""
    try:
        group = Path("/proc/self/cgroup").read_text().splitlines()[-1].rpartition(":")[2]
        folder = _GROUPS / group.lstrip("/")
        most = float((folder / "memory.max").read_text())  # "max" where there is no limit
        used = float((folder / "memory.current").read_text())
    except (OSError, ValueError, IndexError):
        return math.inf
    return most - used + _numbers(folder / "memory.stat").get("inactive_file", 0.0)


def _of_process() -> float:
    """What `ulimit -v` leaves."""
    try:
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError, ValueError):
        return math.inf
    return math.inf if most < 0 else most - used


def _numbers(path: Path) -> dict[str, float]:
    """Names and numbers of a file's lines."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: float(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


#: Arrays below this many entries are left to the allocator.
_SMALL = 2**16
#: Entries of a cache line, at which arrays begin: vectors of eight then touch one line, not two.
_LINE = 8
#: Idle memory kept, in entries (512 MiB).
_IDLE = 2**26

_lock = threading.Lock()
_idle: list[Floats] = []
#: Where the end of an array's use leaves its memory; that may happen anywhere, so it takes no lock.
_returned: deque[Floats] = deque()


def borrow(shape: Sequence[int]) -> Floats:
    """An uninitialised float64 array; its memory comes back by itself once neither it nor a view of it is in use."""
    n = math.prod(shape)
    if n < _SMALL:
        return np.empty(shape)
    # a base that is no array: views of views then lead back to this very object, whose end is the end of their use
    store = _take(n + _LINE)
    skipped = -store.ctypes.data % (8 * _LINE)
    array = np.frombuffer(store.data, dtype=np.float64, count=n, offset=skipped)
    weakref.finalize(array, _returned.append, store).atexit = False
    return array.reshape(shape)


def borrow_like(shape: Sequence[int], dtype: DTypeLike) -> Floats:
    """The same of float64 or float32."""
    if np.dtype(dtype) == np.float64:
        return borrow(shape)
    n = math.prod(shape)
    halves = borrow((-(-n // 2),)).view(dtype)
    return halves[:n].reshape(shape)


def borrow_zeros(shape: Sequence[int]) -> Floats:
    """The same, zero."""
    array = borrow(shape)
    array.fill(0.0)
    return array


def _take(n: int) -> Floats:
    with _lock:
        while _returned:
            _idle.append(_returned.popleft())
        while sum(kept.size for kept in _idle) > _IDLE:
            _idle.pop(0)
        fitting = [k for k, store in enumerate(_idle) if n <= store.size <= 2 * n]
        if fitting:
            return _idle.pop(min(fitting, key=lambda k: _idle[k].size))
    check_memory(
        8.0 * n, f"a table of {n} numbers", "use fewer variables or states, or several smaller graphs"
    )
    return np.empty(n)
