"""How the tests share the cores: libraries with threads of their own, and the order of the files; signals."""

import os
import signal

# Workers of pytest-xdist already use all cores. Threads that spin while they wait for each other, as those of OpenMP
# and OpenBLAS do, then take most of the time from the thread that they wait for.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# What a process writes must not depend on whether its kernels were compiled before.
os.environ.setdefault("POTENTIA_VERBOSE", "0")

#: Files that come first. Long ones, so that no worker is left alone with one of them at the end; the first two workers
#: begin with files that compile different kernels, which would be compiled twice if both met them at the same time.
FIRST = [
    "test_message_passing",
    "test_reproduce_multilabel",
    "test_lmsbn",
    "test_lmbm",
    "test_label_network",
    "test_multilabel_baselines",
    "test_ssvm",
    "test_start",
    "test_cluster",
    "test_gradients",
    "test_cli",
    "test_docs",
    "test_parts",
    "test_network",
    "test_reproduce",
    "test_reproduce_mbl",
    "test_elimination",
    "test_potentials_protocol",
    "test_out_of_core",
    "test_iterated",
    "test_cli_train",
    "test_torch",
    "test_max_margin",
    "test_image_command",
    "test_types",
    "test_campaign",
    "test_fuzz_files",
    "test_map",
    "test_options",
    "test_workflows",
    "test_weighted",
    "test_decode",
]


def pytest_configure(config):
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # so a shell starts commands in the background; tests send it to processes of theirs, which would ignore it, too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # pytest-xdist would order files by their numbers of tests
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    rank = {name: k for k, name in enumerate(FIRST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(FIRST)))
