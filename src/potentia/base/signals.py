"""Signals of the command line: Ctrl-C and SIGTERM end a command with one line and its exit code, never a traceback."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_NAMES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
#: Seconds in which further signals are ignored: wrappers often send the same one twice.
_PATIENCE = 2.0


class Stopped(KeyboardInterrupt):
    """A signal that asks the command to stop; whatever cleans up after Ctrl-C does so after SIGTERM, too."""

    def __init__(self, number: int) -> None:
        super().__init__(_NAMES[signal.Signals(number)])
        self.number = number


def is_command() -> bool:
    """Whether this process is the `potentia` command itself, by its console script or by `python -m potentia`.

    The processes that it starts have its arguments, but are not.
    """
    multiprocessing = sys.modules.get("multiprocessing.process")  # which a process started by it has imported
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        return False
    script = os.path.basename(sys.argv[0] if sys.argv else "").removesuffix(".exe")
    return script == "potentia" or sys.orig_argv[1:3] == ["-m", "potentia"]


def exit_at_once() -> None:
    """End the process on a signal with one line: for times with nothing to clean up, such as imports."""
    for number in _wanted():
        signal.signal(number, _leave)


def _wanted() -> list[signal.Signals]:
    """The signals that whoever started the process does not want ignored."""
    return [number for number in _NAMES if signal.getsignal(number) is not signal.SIG_IGN]


def _leave(number: int, _frame: FrameType | None) -> None:
    """End the process at once with one line."""
    os.write(2, f"potentia: {_NAMES[signal.Signals(number)]}\n".encode())
    os._exit(128 + number)


@contextmanager
def stopping(received: list[int]) -> Iterator[None]:
    """Raise `Stopped` on the first signal and note its number; others are ignored for two seconds, then end all."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first: list[float] = []

    def handle(number: int, frame: FrameType | None) -> None:
        """Raise at the first signal, later where LLVM would lose the exception; a late second one ends the process."""
        if not first and _loses_exceptions(frame):
            _send_later(number)
        elif not first:
            first.append(time.monotonic())
            received[:] = [number]
            raise Stopped(number)
        elif time.monotonic() - first[0] > _PATIENCE:
            _leave(number, frame)

    def unraisable(problem: Any) -> None:
        """Send a signal again whose exception was lost in code that cannot raise."""
        if isinstance(problem.exc_value, Stopped):
            first.clear()
            _send_later(problem.exc_value.number)
        else:
            hook(problem)

    before = {number: signal.signal(number, handle) for number in _wanted()}
    hook, sys.unraisablehook = sys.unraisablehook, unraisable
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def postponing() -> Iterator[None]:
    """Let signals wait until the end; threads and processes started inside are spared Ctrl-C, which all would get."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # whoever starts it unblocks Ctrl-C afterwards
    received: list[int] = []
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in _wanted()}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if received:
            signal.raise_signal(received[0])


def _loses_exceptions(frame: FrameType | None) -> bool:
    """Whether code that LLVM calls back runs: exceptions there are printed and lost, and compilation fails of it."""
    while frame is not None:
        if "llvmlite" in frame.f_code.co_filename or frame.f_code.co_name.startswith("_object_"):
            return True
        frame = frame.f_back
    return False


def _send_later(number: int) -> None:
    """Send the signal to this process again after a moment."""
    again = threading.Timer(0.02, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()
