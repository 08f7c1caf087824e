"""What runs in the worker processes of a cluster: parts and their states, held between calls.

A call names the states it reads; a worker that lacks one says so, and is sent how to build the part and the calls that
made that state. Calls are functions of their arguments, the part and that state alone, so a state that is made again is
the one that was lost.
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

from ...base import __version__
from ...base.backend import tree_total
from ...base.files import new_folder, replacing
from ...base.resources import one_blas_thread, using_threads
from ...base.types import PotentiaError

#: glibc's options M_MMAP_THRESHOLD and M_TRIM_THRESHOLD with the largest values that it takes by itself.
_MALLOC_OPTIONS = {-3: 32 << 20, -1: 64 << 20}
#: Share of a worker's memory that parts may take: Dask pauses a worker at 80 %.
_MAX_SHARE = 0.6


class Making(NamedTuple):
    """A call that made new states of parts: function and arguments, and arguments of parts' own, all pickled."""

    payload: bytes
    own: Mapping[int, bytes] | None

    @property
    def n_bytes(self) -> int:
        """Bytes of the pickled function and arguments."""
        return len(self.payload) + sum(map(len, (self.own or {}).values()))

    def of(self, numbers: Sequence[int]) -> Making:
        """The call with the arguments of some parts only."""
        own = None if self.own is None else {number: self.own[number] for number in numbers}
        return Making(self.payload, own)


@dataclass(frozen=True)
class Call:
    """What a worker is to do in one round.

    Attributes:
        fit: the data set.
        groups: numbers of parts; results are added up within each group.
        read: number of the states that are read; None for empty ones.
        made: number that the new states get.
        alive: numbers of the states that anyone still has; others are let go of.
        own: an argument of each part's own, pickled, which comes first.
        fingerprint: of the client's installation.
        recipes: how to build parts that are not here, or whose state is not, pickled.
        chain: the calls that made the states that are read, from empty or saved ones.
        saved: the folder of the saved states that the chain begins with, if it does.
    """

    fit: str
    groups: Sequence[Sequence[int]]
    read: int | None
    made: int
    alive: frozenset[int]
    own: Mapping[int, bytes] | None
    fingerprint: str
    recipes: Mapping[int, bytes] = field(default_factory=dict)
    chain: Sequence[Making] = ()
    saved: str | None = None

    @property
    def n_bytes(self) -> int:
        """About how many bytes are sent with it."""
        sizes = [len(item) for items in (self.recipes, self.own or {}) for item in items.values()]
        return sum(sizes) + sum(making.n_bytes for making in self.chain)


class Answer(NamedTuple):
    """Results of the groups, pickled; or the parts that are not here.

    `seconds` is the time it took; `changed`: whether any state is not the one that was read.
    """

    results: bytes
    missing: tuple[int, ...]
    worker: str
    seconds: float
    changed: bool = False


@dataclass
class _Held:
    """A part, and its states by their numbers."""

    part: Any
    size: int
    states: dict[int, Any] = field(default_factory=dict)


_parts: dict[tuple[str, int], _Held] = {}
#: One call at a time: a call uses all threads that the worker has.
_turn = threading.RLock()


def run(call: Call, payload: bytes, states: Mapping[int, bytes | None]) -> Answer:
    """Do a round's work on this worker's parts; `states` of parts that other workers have given up."""
    return _run(call, payload, states, *_worker())


async def run_directly(call: Call, payload: bytes, dask_worker: Any) -> Answer | None:
    """`run` outside of Dask's tasks, for parts that are here; None if it fails, which a task would tell."""
    import asyncio

    # not on the event loop, whose heartbeats the scheduler waits for
    threads, loop = dask_worker.executors["default"], asyncio.get_running_loop()
    with suppress(Exception):
        return await loop.run_in_executor(threads, _run, call, payload, {}, *_described(dask_worker))
    return None


def _run(
    call: Call, payload: bytes, states: Mapping[int, bytes | None], address: str, threads: int, limit: int
) -> Answer:
    """Build missing parts, apply the function to all parts of the call, and sum its results by group."""
    begun = time.perf_counter()
    _keep_freed_memory()
    check_fingerprint(fingerprint(), call.fingerprint, address)
    with _turn, one_blas_thread(), using_threads(threads):
        numbers = [number for group in call.groups for number in group]
        _let_go(call)
        lost = {n for n in numbers if n not in call.recipes or states.get(n, b"") is None}
        missing = tuple(n for n in numbers if n in lost and not _is_here(call, n))
        if missing:
            return Answer(b"", missing, address, time.perf_counter() - begun)
        for number in numbers:
            if not _is_here(call, number):
                _build(call, number, states.get(number), address, limit)
        function, args = pickle.loads(payload)
        changed: set[int] = set()
        results = [_sum(call, group, function, args, changed) for group in call.groups]
        sent = pickle.dumps(results, protocol=5)
        return Answer(sent, (), address, time.perf_counter() - begun, bool(changed))


def _sum(call: Call, group: Sequence[int], function: Any, args: Sequence[Any], changed: set[int]) -> Any:
    """The sum of a function's results over parts; new states are kept, and the parts that have one noted."""

    def value(number: int) -> Any:
        """The function's result for one part, whose new state is kept."""
        held = _parts[call.fit, number]
        before = {} if call.read is None else held.states[call.read]
        first = () if call.own is None else (pickle.loads(call.own[number]),)
        held.states[call.made], result = function(held.part, before, *first, *args)
        if held.states[call.made] is not before:
            changed.add(number)
        return result

    return tree_total(map(value, group))


def _let_go(call: Call) -> None:
    """Forget states that nobody can ask for any more."""
    for (fit, _), held in _parts.items():
        if fit == call.fit:
            for number in held.states.keys() - call.alive - {call.made}:
                del held.states[number]


def _is_here(call: Call, number: int) -> bool:
    """Whether this worker has the part and the state that the call reads."""
    held = _parts.get((call.fit, number))
    return held is not None and (call.read is None or call.read in held.states)


def save_state(part: Any, state: Any, number: int, folder: str) -> tuple[Any, None]:
    """Write a part's state, for a worker of the same fit that builds the part again."""
    new_folder(folder)
    with replacing(Path(folder) / f"{number}") as file:
        file.write(pickled(state))
    return state, None


def pickled(value: Any) -> bytes:
    """A value pickled, functions that cannot be imported by value."""
    import cloudpickle

    found: bytes = cloudpickle.dumps(value, protocol=5)
    return found


def give_up(fit: str, number: int, read: int | None, alive: frozenset[int]) -> bytes | None:
    """The states of a part that another worker will hold; None if the one to be read is not here."""
    with _turn:
        held = _parts.get((fit, number))
        if held is None or (read is not None and read not in held.states):
            return None
        sent = pickled({key: state for key, state in held.states.items() if key in alive})
        release([fit], [number])
        return sent


def _build(call: Call, number: int, states: bytes | None, address: str, limit: int) -> None:
    """Build a part unless it is here, and take up its states, or make the one that is read again."""
    held = _parts.get((call.fit, number)) or _built(call, number, address, limit)
    if states is not None:
        held.states |= pickle.loads(states)
    if call.read is None or call.read in held.states:
        return
    state: Any = {}
    if call.saved is not None:
        state = pickle.loads((Path(call.saved) / f"{number}").read_bytes())
    for making in call.chain:
        function, args = pickle.loads(making.payload)
        first = () if making.own is None else (pickle.loads(making.own[number]),)
        state, _ = function(held.part, state, *first, *args)
    held.states[call.read] = state


def _built(call: Call, number: int, address: str, limit: int) -> _Held:
    """The part that its recipe builds, if it fits in memory; errors name the part and the worker."""
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
    held = _parts[call.fit, number] = _Held(part, size)
    return held


def _check_memory(size: int, where: str, limit: int) -> None:
    """Refuse a part that needs more than its share of the worker's memory beside the others."""
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
    counts: dict[str, int] = {}
    for fit, _ in list(_parts):
        counts[fit] = counts.get(fit, 0) + 1
    return counts


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
        f"potentia {__version__} (sources {sources.hexdigest()}), numpy {numpy.__version__}, numba {numba.__version__}"
    )


def check_fingerprint(installed: str, wanted: str, address: str) -> None:
    """Refuse a worker with other versions than the client's."""
    if installed != wanted:
        raise PotentiaError(
            f"worker {address} has {installed}, but the client has {wanted}; install the same versions on all machines "
            "and restart that worker."
        )
