"""`Distributed`: parts in the worker processes of a Dask cluster, one task per worker and round."""

from __future__ import annotations

import itertools
import os
import pickle
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from ...base.backend import Backend, Recipe, tree_cover, tree_join
from ...base.progress import note
from ...base.types import PotentiaError
from . import worker
from .connection import Connection
from .worker import Call, Logged

#: Bytes of logged calls beyond which the parts' state is saved, where there is a place for it.
MAX_LOG_BYTES = 1 << 28
#: How often parts may be sent to other workers in one round.
_MAX_MOVES = 20
#: Seconds between two looks for workers that were added.
LOOK_EVERY = 10.0


class Distributed(Backend):
    """Parts that live in worker processes, where calls are sent to them.

    Every call that changes parts is logged. Where a worker is gone, its parts are built elsewhere and the log is
    repeated for them, which gives the same bits, since results depend on nothing else.
    """

    def __init__(self, connection: Connection, recipes: Sequence[Recipe]) -> None:
        self.connection, self.recipes = connection, list(recipes)
        self.fit = secrets.token_hex(8)
        self._numbers = list(range(len(self.recipes)))
        self._home: dict[int, str] = {}
        self._log: list[tuple[str, Logged]] = []
        self._version, self._serial = 0, 0
        self._saved: str | None = None
        self._saving: str | None = None
        self._rounds, self._bytes, self._moved = 0, 0, 0
        self._seconds, self._work_seconds = 0.0, 0.0
        self._workers: set[str] = set()
        self._looked = time.monotonic()
        connection.opened.add(self.fit)

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        return len(self._numbers)

    def keep(self, numbers: Sequence[int]) -> None:
        """Let go of all parts but these."""
        self._numbers = [self._numbers[number] for number in numbers]

    def each(
        self,
        method: str,
        *args: Any,
        own: Sequence[Any] | None = None,
        changes: bool = False,
        since: str | None = None,
    ) -> list[Any]:
        """The method's result for every part, in part order."""
        last = [k for k, (name, _) in enumerate(self._log) if name == since][-1:]
        for k in last:
            # nothing after that call is left of the parts' state, so it need not be repeated
            del self._log[k + 1 :]
        items = None if own is None else [self.connection.dumps(item) for item in own]
        found = self._round(method, args, items, changes, single=True, logged=not last)
        return [found[at, at + 1] for at in range(self.n_parts)]

    def at(self, number: int, method: str, *args: Any) -> Any:
        """The method's result for one part."""
        return self._round(method, args, None, False, single=True, logged=False, places=[number])[
            number, number + 1
        ]

    def total(self, method: str, *args: Any, changes: bool = False) -> Any:
        """The sum of the method's results; workers send sums of their parts."""
        found = self._round(method, args, None, changes, single=False, logged=True)
        return tree_join(found, 0, self.n_parts)

    def statistics(self) -> dict[str, Any]:
        """Rounds, workers, bytes through the client and seconds since the last call.

        "work_seconds" are those in which the slowest worker of each round worked: the rest of "round_seconds" is what
        the rounds add.
        """
        found = {
            "rounds": self._rounds,
            "workers": len(self._workers),
            "round_bytes": self._bytes,
            "round_seconds": self._seconds,
            "work_seconds": self._work_seconds,
            "moved_parts": self._moved,
        }
        self._rounds, self._bytes, self._moved = 0, 0, 0
        self._seconds, self._work_seconds = 0.0, 0.0
        self._workers = set()
        return found

    def close(self) -> None:
        """Let go of the parts on all workers."""
        self.connection.release(self.fit)
        self._home, self._log = {}, []
        if self._saved is not None:
            shutil.rmtree(os.path.dirname(self._saved), ignore_errors=True)

    # -- a round ---------------------------------------------------------------------------------------------

    def _round(
        self,
        method: str,
        args: Sequence[Any],
        own: Sequence[bytes] | None,
        changes: bool,
        *,
        single: bool,
        logged: bool,
        places: Sequence[int] | None = None,
    ) -> dict[tuple[int, int], Any]:
        """Results of ranges of parts: of each part, or as large as the tree and the workers allow."""
        begun = time.perf_counter()
        self._serial += 1
        payload = self.connection.dumps((method, tuple(args)))
        mine = None if own is None else dict(zip(self._numbers, own, strict=True))
        found: dict[tuple[int, int], Any] = {}
        waiting = list(range(self.n_parts)) if places is None else list(places)
        note(f"round {self._rounds + 1}")
        givers = self._make_room() if places is None else {}
        for _ in range(_MAX_MOVES):
            waiting = self._send(payload, mine, changes, single, waiting, found, givers)
            givers = {}
            if not waiting:
                break
        else:
            raise PotentiaError(
                f"parts could not be placed on the workers of {self.connection.address}, which keep leaving; look at "
                "their logs."
            )
        if changes:
            self._version += 1
            if logged:
                self._log.append((method, Logged(payload, mine)))
                self._shorten_log()
        self._rounds += 1
        self._seconds += time.perf_counter() - begun
        return found

    def _shorten_log(self) -> None:
        """Let the workers save the parts' state once the log is long, if there is a place for it."""
        store = self.connection.store
        size = sum(entry.n_bytes for _, entry in self._log)
        if store is None or size <= MAX_LOG_BYTES or self._saving is not None:
            return
        before = self._saved
        self._saving = os.path.join(store, f"potentia-{self.fit}", f"{self._version}")
        try:
            self._round("", (), None, False, single=True, logged=False)
            self._saved, self._log = self._saving, []
        finally:
            self._saving = None
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)

    def _send(
        self,
        payload: bytes,
        own: dict[int, bytes] | None,
        changes: bool,
        single: bool,
        places: Sequence[int],
        found: dict[tuple[int, int], Any],
        givers: dict[int, str],
    ) -> list[int]:
        """Send a round's calls for the parts at these places; the places whose parts were not where they should be."""
        fresh = self._settle(places)
        calls = []
        for home, chosen in self._by_home(places):
            ranges = [(at, at + 1) for at in chosen] if single else self._ranges(chosen)
            groups = [[self._numbers[at] for at in range(*pair)] for pair in ranges]
            missing = [self._numbers[at] for at in chosen if at in fresh]
            replayed = [number for number in missing if number not in givers]
            call = Call(
                self.fit,
                groups,
                self._serial,
                self._version,
                changes,
                None if own is None else {self._numbers[at]: own[self._numbers[at]] for at in chosen},
                worker.fingerprint(),
                {number: self.connection.dumps(self.recipes[number]) for number in missing},
                [entry.of(replayed) for _, entry in self._log] if replayed else (),
                self._saved,
                self._saving,
            )
            calls.append((home, chosen, ranges, call))
        answers = self.connection.run([(home, call) for home, _, _, call in calls], payload, givers)
        self._work_seconds += max((answer.seconds for answer in answers), default=0.0)
        again = []
        for (_, chosen, ranges, call), answer in zip(calls, answers, strict=True):
            self._bytes += len(payload) + call.n_bytes + len(answer.results)
            self._workers.add(answer.worker)
            if answer.missing:
                again += chosen
                for number in (*answer.missing, *call.recipes):
                    self._home.pop(number, None)
                continue
            self._home |= {self._numbers[at]: answer.worker for at in chosen}
            found |= dict(zip(ranges, pickle.loads(answer.results), strict=True))
        return again

    def _settle(self, places: Sequence[int]) -> set[int]:
        """Give parts without a worker one, evenly and next to each other; their places."""
        homeless = [at for at in places if self._numbers[at] not in self._home]
        if not homeless:
            return set()
        workers = self.connection.workers()
        load = dict.fromkeys(workers, 0)
        for home in self._home.values():
            if home in load:
                load[home] += 1
        self._moved += len(homeless) if self._home or self._version else 0
        for home, chosen in zip(workers, _shares(homeless, [load[w] for w in workers]), strict=True):
            self._home |= {self._numbers[at]: home for at in chosen}
        return set(homeless)

    def _make_room(self) -> dict[int, str]:
        """Take parts from the workers that have most, for those that were added; which worker had each of them."""
        if not self._home or time.monotonic() < self._looked + LOOK_EVERY:
            return {}
        self._looked = time.monotonic()
        workers = self.connection.workers()
        homes = {number: self._home[number] for number in self._numbers if number in self._home}
        idle = [worker for worker in workers if worker not in homes.values()]
        wanted = len(self.connection.usable(idle)) * (len(homes) // len(workers)) if idle else 0
        givers: dict[int, str] = {}
        for _ in range(wanted):
            counts = Counter(homes.values())
            giver = max(counts, key=lambda home: (counts[home], home))
            number = max(number for number, home in homes.items() if home == giver)
            givers[number] = homes.pop(number)
            del self._home[number]
        return givers

    def _by_home(self, places: Sequence[int]) -> Iterator[tuple[str, list[int]]]:
        homes: dict[str, list[int]] = {}
        for at in places:
            homes.setdefault(self._home[self._numbers[at]], []).append(at)
        return iter(homes.items())

    def _ranges(self, chosen: Sequence[int]) -> list[tuple[int, int]]:
        """The fewest ranges of the tree that make up some places."""
        ends = [k for k in range(1, len(chosen)) if chosen[k] != chosen[k - 1] + 1]
        runs = [(chosen[a], chosen[b - 1] + 1) for a, b in pairwise([0, *ends, len(chosen)])]
        return list(itertools.chain(*(tree_cover(0, self.n_parts, *run) for run in runs)))


def _shares(places: Sequence[int], load: Sequence[int]) -> list[list[int]]:
    """Consecutive places for each worker, so that all have about as many parts, those they have counted."""
    counts = list(load)
    for _ in places:
        counts[counts.index(min(counts))] += 1
    found, first = [], 0
    for before, after in zip(load, counts, strict=True):
        found.append(list(places[first : first + after - before]))
        first += after - before
    return found
