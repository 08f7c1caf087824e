"""Threads and memory that this process may use."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from .types import Floats, PotentiaError, shown

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
    """POTENTIA_MEMORY as a number of bytes."""
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
    """An uninitialised array of float64 or float32; see `borrow`."""
    if np.dtype(dtype) == np.float64:
        return borrow(shape)
    n = math.prod(shape)
    halves = borrow((-(-n // 2),)).view(dtype)
    return halves[:n].reshape(shape)


def borrow_zeros(shape: Sequence[int]) -> Floats:
    """A float64 array of zeros; see `borrow`."""
    array = borrow(shape)
    array.fill(0.0)
    return array


def _take(n: int) -> Floats:
    """A store of at least n numbers: an idle one of up to twice the size, or a new one."""
    with _lock:
        while _returned:
            _idle.append(_returned.popleft())
        while sum(kept.size for kept in _idle) > _IDLE:
            _idle.pop(0)
        fitting = [k for k, store in enumerate(_idle) if n <= store.size <= 2 * n]
        if fitting:
            return _idle.pop(min(fitting, key=lambda k: _idle[k].size))
    check_memory(8.0 * n, f"a table of {n} numbers", "use fewer variables or states, or several smaller graphs")
    return np.empty(n)


S = TypeVar("S")
T = TypeVar("T")


#: What `using_threads` has set.
_chosen: ContextVar[int | None] = ContextVar("potentia_threads", default=None)


@contextmanager
def using_threads(threads: int) -> Iterator[None]:
    """The number of threads wherever None is given, in this thread: how learners pass theirs on to potentials."""
    token = _chosen.set(threads)
    try:
        yield
    finally:
        _chosen.reset(token)


def thread_count(threads: int | None) -> int:
    """`threads`, or where None that of `using_threads`, POTENTIA_THREADS, or the cores this process may use."""
    chosen = threads if threads is not None else _chosen.get()
    given: int | str | None = chosen if chosen is not None else os.environ.get("POTENTIA_THREADS")
    if given is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not str(given).isdecimal() or int(given) < 1:
        raise PotentiaError(f"threads (or POTENTIA_THREADS) must be a positive whole number, not {shown(given)}.")
    return int(given)


#: Marks the pools' own threads, which must not wait for the pool they belong to.
_local = threading.local()


def _mark_thread() -> None:
    """Note in a new thread that it belongs to a pool."""
    _local.pooled = True


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    """The pool of this many threads, which lives as long as the process."""
    return ThreadPoolExecutor(threads, thread_name_prefix="potentia", initializer=_mark_thread)


#: Held while a team works: its threads wait for each other, so none of them may be kept waiting for another team's.
_team = threading.RLock()


@lru_cache(maxsize=1)
def _team_pool() -> ThreadPoolExecutor:
    """The pool of teams, which has a thread for every item, so that no item waits for another's thread."""
    return ThreadPoolExecutor(2**16, thread_name_prefix="potentia-team", initializer=_mark_thread)


def _forget() -> None:
    """A forked child inherits pools but none of their threads, and locks that nobody will release."""
    global _team
    _pool.cache_clear()
    _team_pool.cache_clear()
    _team = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@lru_cache(maxsize=1)
def _libraries(_with_scipy: bool) -> Any:
    """Controller of the BLAS libraries that are loaded by now."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[Any]:
    """Keep NumPy's linear algebra on one thread: it is called from our own, and theirs would fight for the cores."""
    # SciPy brings a second library, which may be loaded later than NumPy's
    with_scipy = not sys.modules.keys().isdisjoint(("scipy.linalg", "scipy.special"))
    context: AbstractContextManager[Any] = _libraries(with_scipy).limit(limits=1, user_api="blas")
    return context


def pooled() -> bool:
    """Whether this thread belongs to a pool, whose other threads are busy, too."""
    return getattr(_local, "pooled", False)


#: Pieces of a range that threads never share, so that sums over pieces do not depend on the number of threads.
PIECES = 64


def piece_of(n: int) -> list[int]:
    """Number of the piece, 0 .. PIECES - 1, that each of n consecutive items belongs to."""
    return [k * PIECES // n for k in range(n)]


def cut_ranges(start: int, stop: int, threads: int) -> list[tuple[int, int]]:
    """start..stop in as many consecutive ranges, some of them empty, which are cut between pieces only."""
    n = stop - start
    cuts = [start - (-n * (PIECES * k // threads) // PIECES) for k in range(threads + 1)]
    return list(pairwise(cuts))


def map_ranges(function: Callable[[int, int], T], start: int, stop: int, threads: int) -> list[T]:
    """function(a, b) over `threads` consecutive ranges that make up start..stop, in parallel."""
    n = stop - start
    if threads == 1 or n < 2 or pooled():
        return [function(start, stop)] if n else []
    ranges = [(a, b) for a, b in cut_ranges(start, stop, threads) if a < b]
    # the calling thread takes the first range itself: one hand-over less
    waiting = [_pool(threads).submit(function, a, b) for a, b in ranges[1:]]
    first = function(*ranges[0])
    return [first, *(w.result() for w in waiting)]


def map_items(function: Callable[[S], T], items: Sequence[S], threads: int) -> list[T]:
    """function(item) for every item, in parallel; results in the order of the items."""
    return list(iterate_items(function, items, threads))


def iterate_items(function: Callable[[S], T], items: Sequence[S], threads: int) -> Iterator[T]:
    """function(item) one by one, in parallel: results are made as they are asked for, so that they do not pile up."""
    if threads == 1 or len(items) < 2 or pooled():
        return map(function, items)
    return _pool(threads).map(function, items)


class _Crowding:
    """Whether other programs need the cores: threads that wait for each other then lose more than they gain.

    The time in which a thread used no processor it had no core, or it slept because another had none.
    """

    #: Share of its time that a team may lose so, and seconds without teams after that, at first and at most.
    LOST, PAUSE, LONGEST = 0.2, 0.25, 30.0

    def __init__(self) -> None:
        self.until = -math.inf
        self._pause = self.PAUSE
        # elsewhere processor time of threads is too coarse
        self._known = time.get_clock_info("thread_time").resolution <= 1e-6

    def judge(self, took: Sequence[float], worked: Sequence[float]) -> None:
        """Learn from the seconds that threads of a team took, and from their processor time."""
        if self._known and sum(worked) < (1.0 - self.LOST) * sum(took):
            self.until = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, self.LONGEST)
        else:
            self._pause = self.PAUSE


_crowding = _Crowding()


def teams_pay() -> bool:
    """Whether a team may be formed: by no thread of a pool, and not while other programs need the cores."""
    return not pooled() and time.monotonic() >= _crowding.until


def run_team(function: Callable[[S], T], items: Sequence[S], release: Callable[[], None]) -> list[T]:
    """function(item) for every item at the same time, one thread each, so that they may wait for each other.

    release: called if a thread fails, so that the others stop waiting for it.
    """
    took, worked = [0.0] * len(items), [0.0] * len(items)

    def guarded(k: int) -> T:
        """function(items[k]); notes its times, and releases the other threads if it fails."""
        begun, used = time.perf_counter(), time.thread_time()
        try:
            return function(items[k])
        except BaseException:
            release()
            raise
        finally:
            took[k], worked[k] = time.perf_counter() - begun, time.thread_time() - used

    if len(items) == 1:
        return [function(items[0])]
    with _team:
        try:
            waiting = [_team_pool().submit(guarded, k) for k in range(1, len(items))]
            found = [guarded(0), *(w.result() for w in waiting)]
        except BaseException:
            release()
            raise
        _crowding.judge(took, worked)
    return found
