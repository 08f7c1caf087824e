"""`Distributed`: parts in the worker processes of a Dask cluster, one task per worker and round."""

from __future__ import annotations

import itertools
import os
import pickle
import secrets
import shutil
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from ...base.backend import Backend, PartFunction, tree_cover, tree_join
from ...base.progress import note
from ...base.types import PotentiaError
from . import worker
from .connection import Connection
from .worker import Call, Making

#: Bytes of calls that made a state beyond which it is saved, where there is a place for it.
MAX_LOG_BYTES = 1 << 28
#: How often parts may be sent to other workers in one round.
_MAX_MOVES = 20
#: Seconds between two looks for workers that were added.
LOOK_EVERY = 10.0
#: What is added up between two rows of a history.
_TALLY = {"rounds": 0, "workers": 0, "round_bytes": 0, "round_seconds": 0.0, "work_seconds": 0.0, "moved_parts": 0}


class ClusterStates:
    """States of all parts on the workers, by their number: those that they were made from, and the call that did it.

    To make them again where a worker is gone is to follow these back to empty or saved ones, and to repeat the calls.
    """

    def __init__(self, number: int, before: ClusterStates | None, making: Making) -> None:
        self.number, self.before, self.making = number, before, making
        self.n_bytes: int = making.n_bytes + (0 if before is None else before.n_bytes)
        self.saved: str | None = None

    def save(self, folder: str) -> None:
        """Note that these were saved: what made them is not needed any more."""
        self.saved, self.before, self.n_bytes = folder, None, 0
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)


def chain_of(states: ClusterStates | None, numbers: Sequence[int]) -> tuple[str | None, list[Making]]:
    """How to make some parts' states again: the folder of saved states they follow from, if any, and later calls."""
    chain: list[Making] = []
    while states is not None and states.saved is None:
        chain.append(states.making.of(numbers))
        states = states.before
    return None if states is None else states.saved, chain[::-1]


class Distributed(Backend):
    """Parts that live in worker processes, where calls are sent to them.

    Where a worker is gone, its parts are built elsewhere and the calls that made their states are repeated, which
    gives the same bits, since results depend on nothing else.
    """

    def __init__(self, connection: Connection, recipes: Sequence[Any]) -> None:
        self.connection, self.recipes = connection, list(recipes)
        self.fit = secrets.token_hex(8)
        self._numbers = list(range(len(self.recipes)))
        self._home: dict[int, str] = {}
        self._alive: weakref.WeakSet[ClusterStates] = weakref.WeakSet()
        self._serial = 0
        self._tally, self._workers = dict(_TALLY), set[str]()
        self._looked = time.monotonic()
        connection.opened.add(self.fit)

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        return len(self._numbers)

    def keep(self, numbers: Sequence[int]) -> None:
        """Let go of all parts but these."""
        self._numbers = [self._numbers[number] for number in numbers]

    def map(
        self, function: PartFunction, states: Any, *args: Any, own: Sequence[Any] | None = None
    ) -> tuple[Any, list[Any]]:
        """The new states, and the results in part order."""
        items = None if own is None else [worker.pickled(item) for item in own]
        new, sums = self._round(function, states, args, items, single=True)
        return new, [sums[at, at + 1] for at in range(self.n_parts)]

    def total(self, function: PartFunction, states: Any, *args: Any) -> tuple[Any, Any]:
        """The new states, and the sum of the results; workers send sums of their parts."""
        new, sums = self._round(function, states, args, None, single=False)
        return new, tree_join(sums, 0, self.n_parts)

    def at(self, number: int, function: PartFunction, states: Any, *args: Any) -> Any:
        """The result for one part."""
        return self._round(function, states, args, None, single=True, places=[number])[1][number, number + 1]

    def statistics(self) -> dict[str, Any]:
        """Rounds, workers, bytes through the client and seconds since the last call.

        "work_seconds" are those in which the slowest worker of each round worked: the rest of "round_seconds" is what
        the rounds add.
        """
        found = {**self._tally, "workers": len(self._workers)}
        self._tally, self._workers = dict(_TALLY), set()
        return found

    def close(self) -> None:
        """Let go of the parts on all workers."""
        self.connection.release(self.fit)
        self._home = {}
        if self.connection.store is not None:
            shutil.rmtree(self._folder(), ignore_errors=True)

    def _folder(self) -> str:
        """The folder in which this fit's states are saved."""
        return os.path.join(self.connection.store or "", f"potentia-{self.fit}")

    # -- a round ---------------------------------------------------------------------------------------------

    def _round(
        self,
        function: PartFunction,
        states: ClusterStates | None,
        args: Sequence[Any],
        own: Sequence[bytes] | None,
        *,
        single: bool,
        places: Sequence[int] | None = None,
    ) -> tuple[ClusterStates | None, dict[tuple[int, int], Any]]:
        """New states, and results of ranges of parts: of each part, or as large as the tree and the workers allow."""
        begun = time.perf_counter()
        self._serial += 1
        mine = None if own is None else dict(zip(self._numbers, own, strict=True))
        making = Making(worker.pickled((function, tuple(args))), mine)
        found: dict[tuple[int, int], Any] = {}
        waiting = list(range(self.n_parts)) if places is None else list(places)
        note(f"round {self._tally['rounds'] + 1}")
        givers = self._make_room() if places is None else {}
        changed = False
        for _ in range(_MAX_MOVES):
            waiting, new = self._send(making, states, single, waiting, found, givers)
            changed, givers = changed or new, {}
            if not waiting:
                break
        else:
            raise PotentiaError(
                f"parts could not be placed on the workers of {self.connection.address}, which keep leaving; look at "
                "their logs."
            )
        self._tally["rounds"] += 1
        self._tally["round_seconds"] += time.perf_counter() - begun
        if places is None and changed:
            states = ClusterStates(self._serial, states, making)
            self._alive.add(states)
            self._save(states)
        return states, found

    def _save(self, states: ClusterStates) -> None:
        """Let the workers save states that many bytes of calls have made, if there is a place for it."""
        if self.connection.store is None or states.n_bytes <= MAX_LOG_BYTES:
            return
        folder = os.path.join(self._folder(), f"{states.number}")
        own = [worker.pickled(number) for number in self._numbers]
        self._round(worker.save_state, states, (folder,), own, single=True)
        states.save(folder)

    def _send(
        self,
        making: Making,
        states: ClusterStates | None,
        single: bool,
        places: Sequence[int],
        found: dict[tuple[int, int], Any],
        givers: dict[int, str],
    ) -> tuple[list[int], bool]:
        """Send a round's calls for the parts at these places; those whose parts or states were not where they should
        be, and whether any state changed.
        """
        fresh = self._settle(places)
        alive = frozenset(states.number for states in self._alive)
        calls = []
        for home, chosen in self._by_home(places):
            ranges = [(at, at + 1) for at in chosen] if single else self._ranges(chosen)
            groups = [[self._numbers[at] for at in range(*pair)] for pair in ranges]
            missing = [self._numbers[at] for at in chosen if at in fresh]
            replayed = [number for number in missing if number not in givers]
            saved, chain = chain_of(states, replayed) if replayed else (None, [])
            call = Call(
                self.fit,
                groups,
                None if states is None else states.number,
                self._serial,
                alive,
                making.of([self._numbers[at] for at in chosen]).own,
                worker.fingerprint(),
                {number: worker.pickled(self.recipes[number]) for number in missing},
                chain,
                saved,
            )
            calls.append((home, chosen, ranges, call))
        answers = self.connection.run([(home, call) for home, _, _, call in calls], making.payload, givers)
        self._tally["work_seconds"] += max((answer.seconds for answer in answers), default=0.0)
        again = []
        for (_, chosen, ranges, call), answer in zip(calls, answers, strict=True):
            self._tally["round_bytes"] += len(making.payload) + call.n_bytes + len(answer.results)
            self._workers.add(answer.worker)
            if answer.missing:
                again += chosen
                for number in (*answer.missing, *call.recipes):
                    self._home.pop(number, None)
                continue
            self._home |= {self._numbers[at]: answer.worker for at in chosen}
            found |= dict(zip(ranges, pickle.loads(answer.results), strict=True))
        return again, any(answer.changed for answer in answers)

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
        self._tally["moved_parts"] += len(homeless) if self._home or self._serial > 1 else 0
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
        """Workers with the places of their parts."""
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
    shares, first = [], 0
    for before, after in zip(load, counts, strict=True):
        shares.append(list(places[first : first + after - before]))
        first += after - before
    return shares
