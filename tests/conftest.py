"""How the tests share the cores, which of them are slow, and in which order files run; signals."""

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

# Workers of pytest-xdist already use all cores. Threads that spin while they wait for each other, as those of OpenMP
# and OpenBLAS do, then take most of the time from the thread that they wait for.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# What a process writes must not depend on whether its kernels were compiled before.
os.environ.setdefault("POTENTIA_VERBOSE", "0")

TESTS = Path(__file__).parent
#: Processor seconds by test, those of a tenth of a second and more; `make durations` writes it.
STORED = TESTS / "durations.json"
#: Tests that take longer than this are marked `slow`.
SLOW = 0.6

_measured = {}


def pytest_addoption(parser):
    parser.addoption("--store-durations", action="store_true", help=f"write {STORED.name}")


def pytest_configure(config):
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # so a shell starts commands in the background; tests send it to processes of theirs, which would ignore it, too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # pytest-xdist would order files by their numbers of tests
    config.option.loadscopereorder = False


def name_of(item):
    return item.nodeid.removeprefix("tests/")


def pytest_collection_modifyitems(items):
    """Mark slow tests and run long files first, so that no worker is left alone with one of them at the end."""
    seconds = json.loads(STORED.read_text())
    files = Counter()
    for item in items:
        taken = seconds.get(name_of(item), 0.0)
        files[item.path] += taken
        if taken > SLOW:
            item.add_marker("slow")
        if "chromium" in item.fixturenames:
            item.add_marker("browser")
    items.sort(key=lambda item: -files[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    before = sum(os.times()[:4])
    item.user_properties.append(("begun", before))
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "teardown":
        begun = dict(item.user_properties)["begun"]
        # processor time, with that of processes that have ended: it hardly depends on how busy the machine is
        report.user_properties.append(("seconds", round(sum(os.times()[:4]) - begun, 1)))
    return report


def pytest_runtest_logreport(report):
    if report.when == "teardown":
        _measured[report.nodeid.removeprefix("tests/")] = dict(report.user_properties)["seconds"]


def pytest_sessionfinish(session):
    if session.config.getoption("--store-durations") and not hasattr(session.config, "workerinput"):
        long = {name: seconds for name, seconds in sorted(_measured.items()) if seconds >= 0.1}
        STORED.write_text(json.dumps(long, indent=0) + "\n")
