"""What runs in the worker processes of a cluster: parts held between calls, in their versions.

State lives here as {(fit, part): part at a version}. A call names the version it needs; a worker that lacks it says so,
and is sent how to build the part and the log of calls that changed it. Calls are functions of their arguments and that
state alone, so a part built again is the part that was lost.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pickle
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ...base.backend import tree_total
from ...base.files import new_folder, replacing
from ...base.threads import one_blas_thread, using_threads
from ...base.types import PotentiaError
from ...base.version import __version__

#: glibc's options M_MMAP_THRESHOLD and M_TRIM_THRESHOLD with the largest values that it takes by itself.
_MALLOC_OPTIONS = {-3: 32 << 20, -1: 64 << 20}
#: Share of a worker's memory that parts may take: Dask pauses a worker at 80 %.
_MAX_SHARE = 0.6


class Logged(NamedTuple):
    """A call that changed parts: method and arguments, and arguments of parts' own, all pickled."""

    payload: bytes
    own: Mapping[int, bytes] | None

    @property
    def n_bytes(self) -> int:
        """How long it is."""
        return len(self.payload) + sum(map(len, (self.own or {}).values()))

    def of(self, numbers: Sequence[int]) -> Logged:
        """What some parts need of it."""
        own = None if self.own is None else {number: self.own[number] for number in numbers}
        return Logged(self.payload, own)


@dataclass(frozen=True)
class Call:
    """What a worker is to do in one round.

    Attributes:
        fit: the data set.
        groups: numbers of parts; results are added up within each group.
        serial: number of the round; a repeated call gets the stored answer.
        version: of the parts before the call.
        changes: whether the call changes the parts.
        own: an argument of each part's own, pickled, which comes first.
        fingerprint: of the client's installation.
        recipes: how to build parts that are not here, pickled.
        log: what has changed the parts since they were saved, or at all, for those that are built.
        saved: the folder where the parts' state was saved, if it was.
        save: a folder to save the parts' state in, instead of calling a method.
    """

    fit: str
    groups: Sequence[Sequence[int]]
    serial: int
    version: int
    changes: bool
    own: Mapping[int, bytes] | None
    fingerprint: str
    recipes: Mapping[int, bytes] = field(default_factory=dict)
    log: Sequence[Logged] = ()
    saved: str | None = None
    save: str | None = None

    @property
    def n_bytes(self) -> int:
        """About how long it is when it is sent."""
        sizes = [len(item) for items in (self.recipes, self.own or {}) for item in items.values()]
        return sum(sizes) + sum(entry.n_bytes for entry in self.log)


class Answer(NamedTuple):
    """Results of the groups, pickled; or the parts that are not here. `seconds` is the time it took."""

    results: bytes
    missing: tuple[int, ...]
    worker: str
    seconds: float


@dataclass
class _Held:
    part: Any
    name: str
    version: int
    size: int
    serial: int = -1
    answer: Any = None


_parts: dict[tuple[str, int], _Held] = {}
#: One call at a time: a call uses all threads that the worker has.
_turn = threading.RLock()


def run(call: Call, payload: bytes, states: Mapping[int, bytes | None]) -> Answer:
    """Do a round's work on this worker's parts; `states` of parts that other workers have given up."""
    return _run(call, payload, states, *_worker())


async def run_directly(call: Call, payload: bytes, dask_worker: Any) -> Answer | None:
    """The same outside of Dask's tasks, for parts that are here; None if it fails, which a task would tell."""
    import asyncio

    # not on the event loop, whose heartbeats the scheduler waits for
    threads, loop = dask_worker.executors["default"], asyncio.get_running_loop()
    with suppress(Exception):
        return await loop.run_in_executor(threads, _run, call, payload, {}, *_described(dask_worker))
    return None


def _run(
    call: Call, payload: bytes, states: Mapping[int, bytes | None], address: str, threads: int, limit: int
) -> Answer:
    begun = time.perf_counter()
    _keep_freed_memory()
    check_fingerprint(fingerprint(), call.fingerprint, address)
    with _turn, one_blas_thread(), using_threads(threads):
        numbers = [number for group in call.groups for number in group]
        lost = {n for n in numbers if n not in call.recipes or states.get(n, b"") is None}
        missing = tuple(n for n in numbers if n in lost and not _is_current(call, n))
        if missing:
            return Answer(b"", missing, address, time.perf_counter() - begun)
        for number in numbers:
            if not _is_current(call, number):
                _build(call, number, states.get(number), address, limit)
        method, args = pickle.loads(payload)
        results = [_sum(call, group, method, args) for group in call.groups]
        return Answer(pickle.dumps(results, protocol=5), (), address, time.perf_counter() - begun)


def _sum(call: Call, group: Sequence[int], method: str, args: Sequence[Any]) -> Any:
    return tree_total(lambda at: _answer(call, group[at], method, args), 0, len(group))


def _is_current(call: Call, number: int) -> bool:
    held = _parts.get((call.fit, number))
    return held is not None and (held.version == call.version or held.serial == call.serial)


def _answer(call: Call, number: int, method: str, args: Sequence[Any]) -> Any:
    held = _parts[call.fit, number]
    if held.serial == call.serial:
        # a total overwrites what it adds up
        return pickle.loads(held.answer)
    if call.save is not None:
        return _save(held.part, Path(call.save) / f"{number}")
    first = () if call.own is None else (pickle.loads(call.own[number]),)
    found = getattr(held.part, method)(*first, *args)
    if call.changes:
        held.version, held.serial, held.answer = (
            call.version + 1,
            call.serial,
            pickle.dumps(found, protocol=5),
        )
    return found


def _save(part: Any, path: Path) -> None:
    """Write a part's state, for a worker of the same fit that builds the part again."""
    new_folder(path.parent)
    with replacing(path) as file:
        pickle.dump(part.suspend(), file, protocol=5)


def give_up(fit: str, number: int, version: int) -> bytes | None:
    """The state of a part that another worker will hold; None if it is not here."""
    with _turn:
        held = _parts.get((fit, number))
        if held is None or held.version != version:
            return None
        found = pickle.dumps(held.part.suspend(), protocol=5)
        release([fit], [number])
        return found


def _build(call: Call, number: int, state: bytes | None, address: str, limit: int) -> None:
    """Build a part and take up its state, or repeat what has changed it."""
    _parts.pop((call.fit, number), None)
    recipe = pickle.loads(call.recipes[number])
    where = f"part {number} ({recipe.name}) on worker {address}"
    _check_memory(recipe.n_bytes() or 0, where, limit)
    try:
        part = recipe.build()
    except PotentiaError as error:
        raise type(error)(f"{str(error).removesuffix('.')} (part {number}, worker {address}).") from None
    except MemoryError:
        raise PotentiaError(
            f"{where} does not fit in memory; cut smaller parts or add workers with more memory."
        ) from None
    size = part.n_bytes()
    _check_memory(size, where, limit)
    held = _parts[call.fit, number] = _Held(part, recipe.name, 0, size)
    if state is not None:
        part.resume(*pickle.loads(state))
    elif call.saved is not None:
        with (Path(call.saved) / f"{number}").open("rb") as file:
            part.resume(*pickle.load(file))
    for entry in call.log if state is None else ():
        method, args = pickle.loads(entry.payload)
        first = () if entry.own is None else (pickle.loads(entry.own[number]),)
        getattr(part, method)(*first, *args)
    held.version = call.version


def _check_memory(size: int, where: str, limit: int) -> None:
    held = sum(other.size for other in _parts.values())
    if limit and held + size > _MAX_SHARE * limit:
        raise PotentiaError(
            f"{where} needs about {size / 2**20:.0f} MiB beside {held / 2**20:.0f} MiB of other parts, more than 60 % "
            f"of the worker's {limit / 2**20:.0f} MiB; add workers, give them more memory or cut smaller parts."
        )


def release(fits: Sequence[str], numbers: Sequence[int] | None = None) -> None:
    """Let go of the parts of data sets, all or those with these numbers."""
    with _turn:
        for key in [key for key in _parts if key[0] in fits and (numbers is None or key[1] in numbers)]:
            vars(_parts.pop(key).part).clear()  # what it holds may refer to it


def held_parts() -> dict[str, int]:
    """How many parts of each data set are here."""
    found: dict[str, int] = {}
    for fit, _ in list(_parts):
        found[fit] = found.get(fit, 0) + 1
    return found


def apply(function: bytes, item: bytes, wanted: str) -> bytes:
    """A function of one item, both pickled, for a client whose fingerprint is `wanted`."""
    _keep_freed_memory()
    address, threads, _ = _worker()
    check_fingerprint(fingerprint(), wanted, address)
    with _turn, one_blas_thread(), using_threads(threads):
        return pickle.dumps(pickle.loads(function)(pickle.loads(item)), protocol=5)


@lru_cache(maxsize=1)
def _keep_freed_memory() -> None:
    """Let malloc use memory again, as it does by default.

    Dask sets MALLOC_TRIM_THRESHOLD_ for its workers, so that every array above 128 KiB is fresh memory of the system:
    to touch its pages takes up to six times as long as the work on them.
    """
    if "MALLOC_TRIM_THRESHOLD_" in os.environ:
        with suppress(OSError, AttributeError):  # another system's malloc
            libc = ctypes.CDLL(None)
            for option, value in _MALLOC_OPTIONS.items():
                libc.mallopt(option, value)


def _worker() -> tuple[str, int, int]:
    """Address, number of threads and memory limit of the worker that runs this task."""
    from distributed import get_worker

    return _described(get_worker())


def _described(worker: Any) -> tuple[str, int, int]:
    """Address, number of threads and memory limit of a worker (0 for none)."""
    return worker.address, int(worker.state.nthreads), int(worker.memory_manager.memory_limit or 0)


@lru_cache(maxsize=1)
def fingerprint() -> str:
    """Versions of what decides the bits of results, and a digest of potentia's sources."""
    import numba
    import numpy

    sources = hashlib.blake2b(digest_size=8)
    root = Path(__file__).parents[2]
    for path in sorted(root.rglob("*.py")):
        sources.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return (
        f"potentia {__version__} (sources {sources.hexdigest()}), numpy {numpy.__version__}, "
        f"numba {numba.__version__}"
    )


def check_fingerprint(own: str, wanted: str, address: str) -> None:
    """Refuse a worker with other versions than the client's."""
    if own != wanted:
        raise PotentiaError(
            f"worker {address} has {own}, but the client has {wanted}; install the same versions on all machines and "
            "restart that worker."
        )
