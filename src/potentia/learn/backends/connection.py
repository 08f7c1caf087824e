"""`cluster`: the context in which work on parts goes to a Dask cluster, and the connection to it."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING, Any

from ...base.backend import CLUSTER, Backend
from ...base.signals import postponing
from ...base.types import PotentiaError, check_count
from . import worker
from .worker import Answer, Call

if TYPE_CHECKING:
    import asyncio

#: Larger messages are sent beside the scheduler's.
_LARGE = 1 << 20
#: Seconds to wait for a first worker, and for one where all are gone.
_PATIENCE = 60.0
#: Seconds after which a call that no worker has is sent again; it is looked for twice.
STRANDED_AFTER = 5.0
#: How often a call is sent in one round.
_MAX_SENT = 20
#: Seconds after which calls are tasks again: a scheduler without tasks may think that nothing goes on.
_TASKS_EVERY = 5.0
#: Seconds between two looks whether the workers that were called directly are still there.
_LOOK_EVERY = 0.5


def current() -> Connection | None:
    """The cluster to work on, if any."""
    connection: Connection | None = CLUSTER.get()
    return connection


@contextlib.contextmanager
def cluster(
    target: Any = "local",
    *,
    workers: int | None = None,
    threads: int = 1,
    memory_limit: str | int | None = "auto",
    store: str | os.PathLike[str] | None = None,
) -> Iterator[Connection]:
    """Inside this context `fit`, `predict` and `score` run on a Dask cluster (`pip install potentia[dask]`).

    Args:
        target: a scheduler's address such as "tcp://host:8786", a `dask.distributed.Client`, or "local" for processes
            on this machine, which end with the context.
        workers: number of processes of "local"; as many as there are cores by default.
        threads: threads of each process of "local". Elsewhere a worker uses as many as `dask worker --nthreads` says:
            start one process per machine.
        memory_limit: of each process of "local", as `dask.distributed.LocalCluster` takes it.
        store: a folder that all workers see, where they save the state of their parts once the log of calls, which the
            client keeps in case a worker dies, exceeds 256 MiB; None to keep the log however long it is. These files
            are pickles, which can run code when they are read: nobody else may write to the folder.

    Example:
        >>> import potentia as pt
        >>> with pt.cluster("local", workers=2):  # doctest: +SKIP
        ...     crf = pt.CRF({"node": pt.Linear(), "edge": pt.Linear()}).fit(pt.datasets.denoising(8, seed=0))
    """
    if CLUSTER.get() is not None:
        raise PotentiaError("pt.cluster cannot be used inside another pt.cluster.")
    with contextlib.ExitStack() as stack:
        folder = None if store is None else os.path.abspath(store)
        connection = Connection(_client(target, workers, threads, memory_limit, stack), folder)
        stack.callback(connection.release)
        connection.check()
        token = CLUSTER.set(connection)
        stack.callback(CLUSTER.reset, token)
        yield connection


def _client(target: Any, workers: int | None, threads: int, memory_limit: Any, stack: Any) -> Any:
    """The Dask client of a cluster, an address or "local"; what was started here is closed by `stack`."""
    try:
        from distributed import Client, LocalCluster, Security
    except ImportError:
        raise PotentiaError("pt.cluster needs Dask: pip install potentia[dask].") from None
    if isinstance(target, Client):
        return target
    if not isinstance(target, str):
        raise PotentiaError(
            f"cluster must be 'local', a scheduler's address or a dask Client, not a {type(target).__name__}."
        )
    if target != "local":
        # a client that is half made is closed whenever it is collected, which may be while Dask makes the next one
        if target.startswith("tls://") and Security().get_connection_args("client")["ssl_context"] is None:
            raise PotentiaError(
                f"{target} cannot be reached without certificates: name them as docs/tls.md says, or pass a Client."
            )
        try:
            return stack.enter_context(Client(target, timeout=20))
        except (OSError, ValueError) as error:
            raise PotentiaError(
                f"no scheduler answers at {target} ({error}); start one with `dask scheduler`."
            ) from None
    check_count("threads", threads, 1)
    check_count("workers", workers, 1, optional=True)
    with postponing():  # a cluster that is half made cannot be closed
        made = LocalCluster(
            n_workers=workers or max(1, (os.cpu_count() or 1) // threads),
            threads_per_worker=threads,
            memory_limit=memory_limit,
            processes=True,
            # of this machine only, and any free port: there may be other clusters
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,  # what goes wrong is raised here
        )
        stack.enter_context(made)
        return stack.enter_context(Client(made))


def iterate_anywhere(function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
    """function(item) for every item, in order: by the workers of the cluster, if there is one."""
    connection = current()
    if connection is None:
        return map(function, items)
    return (result() for result in connection.later(function, items))


def map_anywhere(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """function(item) of all items, computed by workers of the cluster or here, as a list."""
    return list(iterate_anywhere(function, items))


class Connection:
    """A client of a cluster, and what potentia asks of it."""

    def __init__(self, client: Any, store: str | None = None) -> None:
        self.client, self.store = client, store
        self.opened: set[str] = set()
        self._refused: set[str] = set()
        self._tasks_at = -math.inf
        self.address: str = client.scheduler.address if client.scheduler is not None else "the scheduler"

    # -- workers ---------------------------------------------------------------------------------------------

    def workers(self) -> list[str]:
        """Addresses of the workers there are, at least one, without those with other versions that came later."""
        with self._reached():
            addresses = self._wait_for_workers()
        return sorted(set(addresses) - self._refused or addresses)

    def usable(self, added: Sequence[str]) -> list[str]:
        """Those of some new workers that have the client's versions; the others are left alone."""
        with self._reached():
            installed = self.client.run(worker.fingerprint, workers=list(added), on_error="return")
        right = [address for address, version in installed.items() if version == worker.fingerprint()]
        self._refused |= set(added) - set(right)
        return right

    def _wait_for_workers(self) -> list[str]:
        """Addresses of the workers, of which there must be one soon."""
        last = time.monotonic() + _PATIENCE
        while True:
            addresses = list(self.client.scheduler_info(n_workers=-1)["workers"])
            if addresses:
                return addresses
            if time.monotonic() > last:
                raise PotentiaError(f"the cluster {self.address} has no workers; start some with `dask worker`.")
            time.sleep(0.1)

    def check(self) -> None:
        """Refuse workers with other versions than the client's."""
        self.workers()
        with self._reached():
            installed = self.client.run(worker.fingerprint, on_error="return")
        for address, version in sorted(installed.items()):
            if isinstance(version, ModuleNotFoundError):
                raise PotentiaError(f"worker {address} has no {version.name}; install potentia there and restart it.")
            if isinstance(version, OSError):
                continue  # it is leaving; one that stays is asked again with its first work
            if isinstance(version, Exception):
                raise PotentiaError(f"worker {address} cannot run potentia ({version}).") from version
            worker.check_fingerprint(version, worker.fingerprint(), address)

    # -- work ------------------------------------------------------------------------------------------------

    def backend(self, recipes: Sequence[Any]) -> Backend:
        """Parts in the workers' processes, by what builds them."""
        from .distributed import Distributed

        return Distributed(self, recipes)

    def run(self, calls: Sequence[tuple[str, Call]], payload: bytes, givers: Mapping[int, str]) -> list[Answer]:
        """The answers to calls, each sent to a worker; another takes it where that one is gone.

        givers: of parts that move, the workers that have their state, which they send to the new ones.
        """
        with self._reached():
            found: list[Answer | None] = [None] * len(calls)
            if self._is_direct(calls, payload):
                found = self.client.sync(self._run_directly, calls, payload)
            rest = [call for call, answer in zip(calls, found, strict=True) if answer is None]
            answers = iter(self._run_tasks(rest, payload, givers) if rest else ())
            return [next(answers) if answer is None else answer for answer in found]

    def _is_direct(self, calls: Sequence[tuple[str, Call]], payload: bytes) -> bool:
        """Whether to call the workers directly, which takes a few milliseconds less than tasks.

        Parts are built by tasks, for which Dask finds another worker where one is gone. Large messages are sent with
        tasks, too.
        """
        size = len(payload) + max(call.n_bytes for _, call in calls)
        builds = any(call.recipes for _, call in calls)
        late = time.monotonic() > self._tasks_at + _TASKS_EVERY
        return not (builds or late) and size <= _LARGE and self._is_connected()

    async def _run_directly(self, calls: Sequence[tuple[str, Call]], payload: bytes) -> list[Answer | None]:
        """The answers of the workers, None of those that fail or are gone."""
        import asyncio

        waits = [
            asyncio.ensure_future(
                self.client.run(worker.run_directly, call, payload, workers=[home], on_error="return")
            )
            for home, call in calls
        ]
        try:
            while not all(wait.done() for wait in waits):
                await asyncio.wait(waits, timeout=_LOOK_EVERY)
                await self._give_up_on_lost([home for home, _ in calls], waits)
        finally:
            for wait in waits:
                wait.cancel()
            replies = await asyncio.gather(*waits, return_exceptions=True)
        answers = [
            reply.get(home) if isinstance(reply, dict) else None
            for reply, (home, _) in zip(replies, calls, strict=True)
        ]
        return [answer if isinstance(answer, Answer) else None for answer in answers]

    async def _give_up_on_lost(self, homes: Sequence[str], waits: Sequence[asyncio.Future[Any]]) -> None:
        """Cancel calls of workers that are gone: the scheduler would try to reach them for long."""
        if all(wait.done() for wait in waits):
            return
        there = await self.client.nthreads()
        for home, wait in zip(homes, waits, strict=True):
            if home not in there:
                wait.cancel()

    def _run_tasks(self, calls: Sequence[tuple[str, Call]], payload: bytes, givers: Mapping[int, str]) -> list[Answer]:
        """The answers to calls as tasks of Dask."""
        self._tasks_at = time.monotonic()
        sent = self._sent(payload)
        states: list[dict[int, Any]] = [
            {
                number: self._submit(givers[number], worker.give_up, call.fit, number, call.read, call.alive)
                for number in call.recipes
                if number in givers
            }
            for _, call in calls
        ]
        futures = [
            self._submit(home, worker.run, self._sent(call, call.n_bytes), sent, own)
            for (home, call), own in zip(calls, states, strict=True)
        ]
        for _ in range(_MAX_SENT):
            lost = self._wait(futures, states)
            if not lost:
                break
            # what was sent beside the calls may be lost, too
            sent = self._sent(payload)
            for k in lost:
                home, call = calls[k]
                # a state that does not come counts as lost
                states[k] = dict.fromkeys(states[k])
                futures[k] = self._submit(home, worker.run, self._sent(call, call.n_bytes), sent, states[k])
        return list(self._gather(futures))

    def _submit(self, home: str, function: Callable[..., Any], *args: Any) -> Any:
        """A task for this worker, or for any other if it is gone."""
        # a strict restriction would wait for ever where that worker is gone
        return self.client.submit(function, *args, workers=[home], allow_other_workers=True, pure=False)

    def later(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Callable[[], Any]]:
        """function(item) for every item by whichever workers are free; each waits until it is called for."""
        with self._reached():
            text = worker.pickled(function)
            code = self._sent(text)
            futures = [self._apply(code, item) for item in items]
        return [partial(self._result, future, text, item) for future, item in zip(futures, items, strict=True)]

    def _apply(self, code: Any, item: Any) -> Any:
        """A task that applies pickled code to an item on any worker."""
        sent = self._sent(worker.pickled(item))
        return self.client.submit(worker.apply, code, sent, worker.fingerprint(), pure=False)

    def everywhere(self, function: Callable[[], Any]) -> None:
        """Call a function on every worker; those that cannot be reached are left out."""
        with contextlib.suppress(Exception):
            self.client.run(function, on_error="ignore")

    def _result(self, future: Any, code: bytes, item: Any) -> Any:
        """The task's result; it is submitted again where the worker that had its input has died."""
        with self._reached():
            for _ in range(_MAX_SENT):
                try:
                    return pickle.loads(self._gather([future])[0])
                except CancelledError:
                    # the worker that had what was sent has died
                    if not self._is_connected():
                        raise
                    future = self._apply(self._sent(code), item)
            return pickle.loads(self._gather([future])[0])

    def _is_connected(self) -> bool:
        """Whether the scheduler can still be reached."""
        return bool(self.client.status == "running")

    def _sent(self, value: Any, size: int | None = None) -> Any:
        """The value, or a future of it where it is large."""
        if (len(value) if size is None else size) <= _LARGE:
            return value
        for _ in range(_MAX_SENT):
            try:
                return self.client.scatter(value, hash=False)
            except OSError:
                # the worker that was to have it has just died
                if not self._is_connected():
                    raise
                time.sleep(0.1)
                self._wait_for_workers()
        return self.client.scatter(value, hash=False)

    def _wait(self, futures: Sequence[Any], needed: Sequence[Mapping[int, Any]]) -> list[int]:
        """Wait until all calls are done, or some will never be: the numbers of those.

        Where all workers are gone when a call is sent, Dask keeps it for the worker that it was meant for, even when
        others come: then no worker has it, or the states that it needs. Where the worker dies that has what was sent
        beside a call, Dask cancels the call.
        """
        from distributed import TimeoutError as NotYetError
        from distributed import wait

        before: set[int] = set()
        while True:
            try:
                wait(futures, timeout=STRANDED_AFTER)
                return []
            except CancelledError:
                if not self._is_connected():
                    raise
                return [k for k, future in enumerate(futures) if future.status == "cancelled"]
            except NotYetError:
                self._wait_for_workers()
            taken = {key for keys in self.client.processing().values() for key in keys}
            now = {
                k
                for k, (future, states) in enumerate(zip(futures, needed, strict=True))
                if future.status == "pending"
                and not taken & {future.key, *(own.key for own in states.values() if own is not None)}
            }
            if now & before:
                return sorted(now & before)
            before = now

    def _gather(self, futures: Sequence[Any]) -> list[Any]:
        """Results of tasks; raises what a task raised, and waits for workers where all are gone."""
        from distributed import TimeoutError as NotYetError
        from distributed import wait

        while True:
            try:
                wait(futures, timeout=_PATIENCE)
                break
            except NotYetError:
                self._wait_for_workers()
        for future in futures:
            if future.status == "error":
                raise _TaskError(future.exception())
        found: list[Any] = self.client.gather(futures)
        return found

    def release(self, *fits: str) -> None:
        """Let go of the parts of data sets on all workers, those of all that were opened by default."""
        chosen = list(fits or self.opened)
        self.opened -= set(chosen)
        # a connection that is lost has nothing to let go of
        with contextlib.suppress(Exception):
            if chosen:
                self.client.run(worker.release, chosen, on_error="ignore")

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        """Errors of the connection as one sentence each."""
        from distributed import KilledWorker

        try:
            yield
        except _TaskError as failed:
            error = failed.error
            if isinstance(error, KilledWorker):
                raise PotentiaError(
                    f"workers of {self.address} died repeatedly on one task, the last one {_address(error)}, "
                    "usually because they run out of memory; cut smaller parts or give workers more memory."
                ) from None
            raise error from None
        except PotentiaError:
            raise
        except Exception as error:
            # a client whose scheduler is gone raises plain exceptions, too
            of_dask = isinstance(error, CancelledError | OSError) or not self._is_connected()
            if not (of_dask or type(error).__module__.startswith("distributed")):
                raise
            raise PotentiaError(
                f"the connection to the scheduler at {self.address} was lost ({type(error).__name__}); run again, with "
                "`checkpoint=` to resume, on any cluster or without one."
            ) from None


class _TaskError(Exception):
    """What a task raised on its worker."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def _address(error: Any) -> str:
    """Address of the worker that a task was on last."""
    return str(getattr(error.last_worker, "address", error.last_worker))
