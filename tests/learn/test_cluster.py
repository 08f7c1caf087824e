"""Dask clusters: the bits of one process on any number of workers, whoever dies; one sentence for what cannot work.

The tests share one scheduler, whose workers grow from one to three: they run in the order in which they stand.
"""

import contextlib
import contextvars
import gzip
import itertools
import json
import logging
import multiprocessing.forkserver
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

import potentia as pt
from learners import LEARNERS, digest, hidden
from potentia import Boosting, Example, Linear
from potentia.base.saving import digest_of
from potentia.learn.backends import distributed, worker
from potentia.learn.backends.connection import Connection
from potentia.learn.backends.distributed import Distributed, _shares
from sample_images import noisy

dask = pytest.importorskip("dask")
dask_distributed = pytest.importorskip("distributed")
psutil = pytest.importorskip("psutil")  # a dependency of distributed

# fits are cut short; sockets of processes that were killed are closed late
pytestmark = [
    pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.cluster,
]

TWO_IMAGES = 2 * (48 * 2 + 82 * 4)
NAMES = [name for name in LEARNERS if name != "margin"]


@pytest.fixture(scope="module")
def processes():
    """A local cluster of one worker process; workers are added with `scale`."""
    options = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    with (
        forked_workers(),
        dask_distributed.LocalCluster(n_workers=1, processes=True, scheduler_port=0, **options) as cluster,
    ):
        yield cluster


@contextlib.contextmanager
def forked_workers():
    """Make new worker processes forks of one that has loaded the kernels, where the system can."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        multiprocessing.set_forkserver_preload(["cluster_worker"])
        multiprocessing.forkserver.ensure_running()
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        yield


@pytest.fixture(scope="module")
def client(processes):
    with dask_distributed.Client(processes) as found:
        yield found


def grow(processes, client, n):
    """At least n workers, further ones if those that were killed are still missing."""

    def running():
        there = client.scheduler_info(n_workers=-1)["workers"].values()
        return sum(worker["status"] == "running" for worker in there)

    if (there := running()) < n:
        processes.scale(len(processes.worker_spec) + n - there)
    last = time.monotonic() + 90
    # Dask's own `wait_for_workers` puts the scheduler's list of workers in place of the cluster's: if the message that
    # a killed one is gone arrives after that, the cluster raises a KeyError when it is closed
    while running() < n:
        assert time.monotonic() < last, f"there are no {n} workers after 90 seconds"
        time.sleep(0.1)


class Straight(dict):
    """By name the fits in this process, with one and with two threads, made when they are asked for."""

    def __missing__(self, name):
        self[name] = contextvars.Context().run(fitted_here, name)  # outside of any cluster
        return self[name]


def fitted_here(name):
    case = LEARNERS[name]
    held = pt.parts(case.examples(), part_entries=TWO_IMAGES)
    threaded = [option for option in ("threads",) if option in vars(case.learner)]
    one, two = (case.crf(**dict.fromkeys(threaded, n)).fit(held) for n in (1, 2))
    assert digest(one) == digest(two)
    return one


@pytest.fixture(scope="module")
def straight():
    return Straight()


def check_same(crf, other, n_workers=None):
    assert digest(crf) == digest(other)
    for row, mine in zip(other.history_, crf.history_, strict=True):
        assert {k: v for k, v in row.items() if k != "seconds"}.items() <= mine.items()
        assert mine["rounds"] > 0
        assert n_workers is None or mine["workers"] == n_workers


def fitted(name, data=None, **options):
    case = LEARNERS[name]
    held = pt.parts(case.examples(), part_entries=TWO_IMAGES) if data is None else data
    return case.crf().fit(held, **options)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_any_number_of_processes_gives_the_bits_of_one(n, straight, processes, client):
    grow(processes, client, n)
    with pt.cluster(client):
        for name in NAMES:
            crf = fitted(name)
            check_same(crf, straight[name], n)
            examples = LEARNERS[name].examples()
            assert crf.score(examples) == straight[name].score(examples)
        for a, b in zip(crf.predict_marginals(examples), straight[name].predict_marginals(examples), strict=True):
            np.testing.assert_array_equal(a, b)
    assert all(not held for held in client.run(worker.held_parts).values())


def chains():
    """Sequences in parts that workers make, one of them without labels, one with dense features; some far from zero."""

    def part(number):
        rng = np.random.default_rng(number)
        X, y = [], []
        for length in rng.integers(1, 7, 6):
            words = rng.integers(0, 12 + number, length)
            X.append([{"w": f"{w}", "size": float(w % 3), f"only {number}": True} for w in words])
            y.append([None if w == 4 or number == 3 else "OBI"[w % 3] for w in words])
            if number == 2:
                X[-1] = [{**token, "v": rng.normal([0.0, 0.0, 1e6])} for token in X[-1]]
            for token, w in zip(X[-1], words, strict=True):
                token |= {"year": 2000.0 + w} if w % 2 else {}
        return X, y

    return pt.parts([partial(part, number) for number in range(5)])


CHAINS = [
    pt.ChainCRF(0.0, 0.3, 12, delta=0.0, all_possible_transitions=True),
    pt.ChainCRF(0.2, 0.1, 12, delta=0.0, min_freq=2.0, threads=1),
]


def chain_digest(model):
    content, arrays = model.state()
    objectives = [row["objective"].hex() for row in model.history_]
    return digest_of([repr((content["labels"], content["columns"], objectives)), *arrays.values()])


@pytest.fixture(scope="module")
def chains_here():
    """Digests of fits in this process: out of core, with all parts in memory, and as a list cut at the same places."""
    found, given = [], chains()
    for model in CHAINS:
        lists = [source.sequences() for source in given.sources]
        X, y = ([row for part in lists for row in part[k]] for k in (0, 1))
        cuts = list(itertools.pairwise([0, *itertools.accumulate(len(part.X) for part in lists)]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("potentia.learn.chain_data.cut_lengths", lambda _, cuts=cuts: cuts)
            listed = pt.ChainCRF(**model.get_params()).fit(iter(X), y)
        held = pt.ChainCRF(**model.get_params()).fit(pt.parts([s.function for s in given.sources], resident=5))
        own = pt.ChainCRF(**model.get_params()).fit(given)
        assert chain_digest(own) == chain_digest(held) == chain_digest(listed)
        assert own.predict(given) == listed.predict(X)
        assert own.score(given) == listed.score(X, y)
        found.append(chain_digest(own))
    return found


@pytest.mark.parametrize("n", [1, 2, 3])
def test_chains_have_the_bits_of_one_process(n, chains_here, processes, client):
    grow(processes, client, n)
    with pt.cluster(client):
        for model, wanted in zip(CHAINS, chains_here, strict=True):
            assert chain_digest(model.fit(chains())) == wanted
            assert model.history_[-1]["rounds"] > 0
            assert set(model.offsets_) == {"year", "v"}
            X, y = chains().sources[0].sequences()[:2]
            assert model.predict(chains())[: len(X)] == model.predict(X)
            assert model.score(X, y) > 0.5
    assert all(not held for held in client.run(worker.held_parts).values())


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("at", [3, 9, 14, 25])
def test_chains_survive_the_loss_of_a_worker(at, number, chains_here, processes, client):
    """While names are gathered, while moments and features are, and in mid-fit."""
    grow(processes, client, 2)
    with pt.cluster(client), killing(client, at) as killed:
        assert chain_digest(CHAINS[number].fit(chains())) == chains_here[number]
    assert killed


@contextlib.contextmanager
def killing(client, at, everyone=False):
    """Kill a worker that has parts, or all, when round number `at` begins; the process ids of those killed."""
    original, killed = Distributed._round, []

    def round_with_a_murder(self, *args, **options):
        if self._serial == at and not killed and self._home:
            # a worker that an earlier test retired may still be listed
            pids = client.run(os.getpid, on_error="ignore")
            victims = sorted(pids) if everyone else sorted(set(self._home.values()) & set(pids))[:1]
            for victim in victims:
                killed.append(pids[victim])
                os.kill(pids[victim], signal.SIGKILL)
        return original(self, *args, **options)

    Distributed._round = round_with_a_murder
    try:
        yield killed
    finally:
        Distributed._round = original


#: Rounds near the beginning, in the middle and near the end of every fit.
KILLS = {
    "alternating": (2, 40, 80),
    "direct": (3, 10, 17),
    "mixed": (4, 30, 60),
    "drawn": (3, 8, 28),
    "mlp": (3, 8, 36),
    "soft": (2, 25, 85),
    "risk": (3, 6, 25),
    "em": (3, 7, 25),
    "warm": (3, 9, 22),
    "batches": (3, 8, 26),
    "stages": (3, 7, 35),
    "planes": (3, 6, 11),
}


@pytest.mark.parametrize(("name", "at"), [(name, at) for name in NAMES for at in KILLS[name]])
def test_a_worker_that_is_killed_changes_nothing(name, at, straight, processes, client):
    grow(processes, client, 2)
    with pt.cluster(client), killing(client, at) as killed:
        crf = fitted(name)
    assert killed
    assert sum(row["moved_parts"] for row in crf.history_) > 0 or at < 5
    check_same(crf, straight[name])


def test_calls_are_sent_again_where_all_workers_die(straight, processes, client, monkeypatch):
    """Dask keeps a call for the worker that it was meant for if there is no other when it is sent."""
    monkeypatch.setattr("potentia.learn.backends.connection.STRANDED_AFTER", 1.0)
    with pt.cluster(client), killing(client, 12, everyone=True) as killed:
        crf = fitted("direct")
    assert killed
    check_same(crf, straight["direct"])


def test_what_was_sent_is_sent_again_where_the_worker_that_has_it_dies(chains_here, processes, client, monkeypatch):
    """Large messages wait on a worker; Dask cancels the calls that need them if it dies."""
    original, killed = Connection._sent, []

    def sent_to_a_victim(self, *args):
        found = original(self, *args)
        if not killed and isinstance(found, dask_distributed.Future):
            (victim, *_), *_ = client.who_has([found]).values()
            killed.extend(client.run(os.getpid, workers=[victim]).values())
            os.kill(killed[0], signal.SIGKILL)
        return found

    monkeypatch.setattr("potentia.learn.backends.connection._LARGE", 100)
    model, given = pt.ChainCRF(**CHAINS[1].get_params()), chains()
    for work in (lambda: chain_digest(model.fit(given)) == chains_here[1], lambda: model.score(given) > 0.5):
        grow(processes, client, 2)
        killed.clear()
        with pt.cluster(client), monkeypatch.context() as patch:
            patch.setattr(Connection, "_sent", sent_to_a_victim)
            assert work()
        assert killed


def test_parts_built_from_saved_state_change_nothing(straight, processes, client, monkeypatch, tmp_path):
    """The log is cut after every few calls, and every part is built again in every other round."""
    grow(processes, client, 2)
    monkeypatch.setattr(distributed, "MAX_LOG_BYTES", 1_000)
    original, saved = Distributed._round, set()

    def forgetful(self, *args, **options):
        saved.update(path for folder in tmp_path.iterdir() for path in folder.iterdir())
        if self._serial % 7 == 6:
            client.run(worker.release, [self.fit])
        return original(self, *args, **options)

    monkeypatch.setattr(Distributed, "_round", forgetful)
    with pt.cluster(client, store=tmp_path):
        for name in ("direct", "soft", "warm"):
            check_same(fitted(name), straight[name])
    assert len(saved) > 4
    assert not list(tmp_path.iterdir())


def test_files_loaders_delayed_objects_and_bags_are_read_by_the_workers(tmp_path, processes, client):
    bag = pytest.importorskip("dask.bag")
    examples = [
        Example(
            e.graph,
            {"node": sparse.csr_array(e.features["node"]), "edge": e.features["edge"].astype(np.float32)},
            e.labels,
        )
        for e in hidden(noisy(6, (6, 8)))
    ]
    potentials, learner, _ = LEARNERS["alternating"]
    paths = pt.write_parts(examples, tmp_path, part_entries=TWO_IMAGES)
    straight = pt.CRF(potentials, learner).fit(pt.parts(tmp_path))
    delayed = dask.delayed(pt.parts([paths[2]]).sources[0].load, pure=False)()
    mixed = pt.parts([paths[0], lambda: next(iter(pt.parts([paths[1]]))), delayed])
    assert digest(pt.CRF(potentials, learner).fit(mixed)) == digest(straight)
    bagged = pt.parts(bag.from_sequence(examples, partition_size=2))
    grow(processes, client, 2)
    with pt.cluster(client):
        for data in (mixed, bagged):
            crf = pt.CRF(potentials, learner).fit(data)
            assert digest(crf) == digest(straight)


def test_a_checkpoint_of_a_cluster_resumes_anywhere(tmp_path, processes, client, straight):
    grow(processes, client, 2)
    for name in ("direct", "soft"):
        path = tmp_path / name
        with pt.cluster(client):
            fitted(name, checkpoint=path, callback=lambda history: len(history) == 1)
        fitted(name, checkpoint=path, callback=lambda history: len(history) == 2)
        with pt.cluster(client):
            resumed = fitted(name, checkpoint=path)
        assert digest(resumed) == digest(straight[name])


def wide(n, columns=60):
    """Examples whose features are most of their bytes."""
    rng = np.random.default_rng(0)
    graph = pt.Graph.chain(40, n_states=2)
    return [Example(graph, {"node": rng.normal(size=(40, columns))}, rng.integers(2, size=40)) for _ in range(n)]


def test_features_do_not_pass_through_the_client_whose_memory_does_not_grow(processes, client):
    grow(processes, client, 2)
    learner = pt.IteratedLogistic(iterations=1, sweeps=2, solver="alternating", track_error=False)
    potentials = {"node": Linear(max_iter=5, ridge=1.0), "edge": pt.Constant(max_iter=5)}
    sent, peaks = [], []
    for n in (20, 400):
        parts = pt.parts([lambda n=n, k=k: wide(n)[k::4] for k in range(4)])
        with pt.cluster(client):
            tracemalloc.start()
            crf = pt.CRF(potentials, learner).fit(parts)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert crf.history_[-1]["rounds"] < 60
        sent.append(sum(row["round_bytes"] for row in crf.history_))
    features = 400 * 40 * 60 * 8
    assert sent[1] < features / 4
    assert abs(sent[1] - sent[0]) < features / 10
    assert peaks[1] < peaks[0] + features / 10


def test_what_cannot_work_gets_one_sentence(processes, client):
    grow(processes, client, 2)
    potentials, learner, _ = LEARNERS["alternating"]
    crf = pt.CRF(potentials, learner)

    def fails():
        raise OSError("no such disk")

    def large():
        graph = pt.Graph.chain(2, n_states=2)
        return [Example(graph, {"node": np.zeros((2, 3)), "edge": np.zeros((1, 2))}, [0, 1])]

    with pt.cluster(client):
        with pytest.raises(pt.PotentiaError, match=r"raised OSError: no such disk; .* \(part 1, worker tcp://"):
            crf.fit(pt.parts([lambda: noisy(1, (6, 8)), fails]))
        with pytest.raises(pt.PotentiaError, match="take solver='one_slack'"):
            pt.CRF(potentials, pt.MaxMargin()).fit(noisy(2))
        everything = {"node": Boosting(subsample=None, rounds=2), "edge": Linear()}
        with pytest.raises(pt.PotentiaError, match="subsample=None"):
            pt.CRF(everything, replace(learner, solver="alternating")).fit(noisy(2))
        with pytest.raises(pt.PotentiaError, match="inside another"), pt.cluster(client):
            pass
        client.run(set_limit, 1000)
        with pytest.raises(pt.PotentiaError, match=r"part \d .*large.* on worker tcp://.* needs about .* MiB"):
            crf.fit(pt.parts([large]))
        client.run(set_limit, 0)
        # the cluster is as it was
        assert all(not held for held in client.run(worker.held_parts).values())
        crf.fit(pt.parts([large]))
    other = sorted(client.scheduler_info()["workers"])[0]
    client.run(set_version, "potentia 0.0", workers=[other])
    with (
        pytest.raises(pt.PotentiaError, match=rf"worker {other} has potentia 0\.0, but the client has .*restart"),
        pt.cluster(client),
    ):
        pass
    client.run(set_version, None, workers=[other])
    with pytest.raises(pt.PotentiaError, match="not a int"), pt.cluster(3):
        pass


def set_limit(n_bytes):
    from potentia.learn.backends import worker as module

    original = getattr(module, "_real_worker", module._worker)
    module._real_worker = original
    module._worker = (lambda: (*original()[:2], n_bytes)) if n_bytes else original


def set_version(text):
    from potentia.learn.backends import worker as module

    original = getattr(module, "_real_fingerprint", module.fingerprint)
    module._real_fingerprint = original
    module.fingerprint = original if text is None else (lambda: text)


def test_label_networks_are_learned_and_decoded_by_the_workers(processes, client, monkeypatch):
    grow(processes, client, 2)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 5))
    y = (x @ rng.normal(size=(5, 4)) + rng.normal(size=(80, 4)) > 0).astype(int)
    models = [
        pt.LMSBN(alpha=0.1),
        pt.LMSBN(alpha=0.1, interactions=2),
        pt.LMBM(alpha=0.1),
        pt.LMBM(alpha=0.1, decode="lp"),
    ]
    straight = [model.fit(x, y).predict(x) for model in models]
    with pt.cluster(client):
        for model, wanted in zip(models, straight, strict=True):
            np.testing.assert_array_equal(model.fit(x, y).predict(x), wanted)
    original, killed, waiting = Connection.later, [], []

    def later_with_a_murder(self, *args):
        found = original(self, *args)
        if waiting and waiting.pop():
            pids = sorted(client.run(os.getpid).values())
            killed.append(pids[0])
            os.kill(pids[0], signal.SIGKILL)
        return found

    monkeypatch.setattr(Connection, "later", later_with_a_murder)
    for number in (0, 2):
        grow(processes, client, 2)
        waiting.append(True)
        with pt.cluster(client):
            np.testing.assert_array_equal(models[number].fit(x, y).predict(x), straight[number])
    assert len(killed) == 2


def test_shares_even_out():
    assert _shares([0, 1, 2, 3, 4], [0, 0]) == [[0, 1, 2], [3, 4]]
    assert _shares([4, 7], [2, 0, 1]) == [[], [4, 7], []]
    assert _shares([], [1, 1]) == [[], []]


def test_commands_give_the_same_files_on_a_cluster(processes, client, tmp_path, monkeypatch, capsys):
    pytest.importorskip("PIL.Image")
    from own_data import make_images
    from potentia.app.cli import main

    grow(processes, client, 2)
    make_images(tmp_path)
    monkeypatch.chdir(tmp_path)
    found = []
    for where in ([], ["--cluster", processes.scheduler_address]):
        out = f"out{len(where)}"
        options = ["--masks", "masks", "--node", "linear", "--edge", "linear", "--iterations", "2"]
        commands = [
            ["train", "--images", "photos", "--out", f"{out}.model", *options],
            ["predict", f"{out}.model", "--images", "photos", "--out", out],
            ["evaluate", f"{out}.model", "--images", "photos", "--masks", "masks"],
        ]
        shown = []
        for command in commands:
            assert main([*command, *where, "--json"]) == 0, capsys.readouterr().err
            shown.append(capsys.readouterr().out)
        assert ('"workers"' in shown[0]) == bool(where)
        assert main(["report", f"{out}.model", "--out", f"{out}.html"]) == 0
        capsys.readouterr()
        page = (tmp_path / f"{out}.html").read_text()
        for word in ("workers", "bytes per round", "seconds per round"):
            assert (word in page) == bool(where)
        labels = {path.name: path.read_bytes() for path in sorted((tmp_path / out / "labels").iterdir())}
        found.append((labels, shown[2]))
    assert found[0] == found[1]
    assert found[0][0]


def test_commands_read_sequences_on_the_workers(processes, client, tmp_path, monkeypatch, capsys):
    from own_data import make_sequences
    from potentia.app import sequences
    from potentia.app.cli import main

    grow(processes, client, 2)
    (tmp_path / "corpus").mkdir()
    make_sequences(tmp_path / "corpus" / "a.tsv", 20)
    make_sequences(tmp_path / "corpus" / "b.tsv", 4)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sequences, "SPAN_BYTES", 300)
    assert len(list(itertools.chain(*sequences.spans_by_file(Path("corpus"), None).values()))) > 4
    found = []
    for where in ([], ["--cluster", processes.scheduler_address]):
        out = f"out{len(where)}"
        commands = [
            ["train", "--sequences", "corpus", "--validation", "0.2", "--out", f"{out}.model"],
            ["predict", f"{out}.model", "--sequences", "corpus", "--out", out],
            ["predict", f"{out}.model", "--sequences", "corpus/a.tsv", "--out", f"{out}.tsv.gz"],
            ["evaluate", f"{out}.model", "--sequences", "corpus"],
        ]
        shown = []
        for command in commands:
            assert main([*command, *where, "--json"]) == 0, capsys.readouterr().err
            shown.append(json.loads(capsys.readouterr().out))
        assert ("workers" in shown[0]) == bool(where)
        labels = [(tmp_path / out / name).read_text() for name in ("a.tsv", "b.tsv")]
        assert labels[0] == gzip.decompress((tmp_path / f"{out}.tsv.gz").read_bytes()).decode()
        found.append((chain_digest(pt.load(f"{out}.model").model), labels, shown[3], shown[0]["validation_span_f1"]))
    assert found[0] == found[1]
    assert [line.rpartition("\t")[0] for line in labels[0].split("\n")] == (
        (tmp_path / "corpus" / "a.tsv").read_text().split("\n")
    )
    (tmp_path / "corpus" / "b.tsv").write_text("word\n")
    assert main(["train", "--sequences", "corpus", "--out", "y", *where]) == 2
    assert "b.tsv has 1 columns, but" in capsys.readouterr().err


def test_commands_read_tables_on_the_workers(processes, client, tmp_path, monkeypatch, capsys):
    """The command never opens them: it gets labels, and the rows that it needs, from workers."""
    from own_data import make_table
    from potentia.app import tables
    from potentia.app.cli import main

    grow(processes, client, 2)
    make_table(tmp_path / "data.csv")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "PIECE_ROWS", 16)
    kinds = {
        "lmsbn": ["--alpha", "0.1"],
        "independent": ["--alpha", "0.1", "--kernel", "rbf"],
        "lmbm": ["--alpha", "0.1"],
        "network": [],
    }
    found = {model: [] for model in kinds}
    for where in ([], ["--cluster", processes.scheduler_address]):
        if where:
            monkeypatch.setattr(tables, "read_table", None)  # of this process
        for model, results in found.items():
            options = ["--labels", "a,b,c", "--validation", "0.2", "--out", model, *kinds[model]]
            options += [] if model == "network" else ["--model", model]  # the default
            commands = [
                ["train", "--table", "data.csv", *options],
                ["predict", model, "--table", "data.csv", "--out", "found.csv", "--id", "colour", "--scores"],
                ["evaluate", model, "--table", "data.csv"],
            ]
            shown = []
            for command in commands:
                assert main([*command, *where, "--json"]) == 0, capsys.readouterr().err
                shown.append(json.loads(capsys.readouterr().out))
            del shown[0]["seconds"]
            # which columns matter is found from the features
            assert (shown[0].pop("most_useful_columns", None) is None) == bool(where or model != "network")
            _, arrays = pt.load(model).model.state()
            results.append((shown, digest_of(arrays.values()), (tmp_path / "found.csv").read_text()))
    for first, second in found.values():
        assert first == second


def test_a_lost_scheduler_gets_one_sentence_and_the_checkpoint_resumes_without_a_cluster(tmp_path, straight):
    options = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    path = tmp_path / "state"
    with (
        dask_distributed.LocalCluster(n_workers=1, processes=False, **options) as cluster,
        dask_distributed.Client(cluster) as client,
    ):

        def lose(history):
            if len(history) == 2:
                cluster.close()

        with (
            pytest.raises(pt.PotentiaError, match=r"connection to the scheduler at .* was lost .*`checkpoint=`"),
            pt.cluster(client),
        ):
            fitted("direct", checkpoint=path, callback=lose)
    assert digest(fitted("direct", checkpoint=path)) == digest(straight["direct"])


def test_a_local_cluster_leaves_no_process_behind():
    with pt.cluster("local", workers=1) as connection:
        (pid,) = connection.client.run(os.getpid).values()
        assert pid != os.getpid()
        os.kill(pid, 0)
        assert LEARNERS["direct"].crf().fit(noisy(1, (6, 8))).history_[-1]["workers"] == 1
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert "rounds" not in LEARNERS["direct"].crf().fit(noisy(1, (6, 8))).history_[-1]


@pytest.mark.parametrize(("name", "lost"), [("direct", False), ("soft", True)])
def test_workers_that_are_added_get_parts_in_mid_fit(name, lost, straight, processes, client, monkeypatch):
    """Their state comes from the workers that had them; where that is lost, the log is repeated."""
    grow(processes, client, 2)
    first, second, *_ = sorted(client.scheduler_info(n_workers=-1)["workers"])
    unseen = {second}
    original = Distributed._make_room

    def make_room(self):
        givers = original(self)
        if givers and lost:
            client.run(worker.release, [self.fit])
        return givers

    monkeypatch.setattr(distributed, "LOOK_EVERY", 0.0)
    monkeypatch.setattr(Distributed, "_make_room", make_room)
    monkeypatch.setattr(Connection, "workers", lambda self: sorted({first, second} - unseen))
    with pt.cluster(client):
        crf = fitted(name, callback=lambda history: unseen.clear())
    check_same(crf, straight[name])
    assert [row["workers"] for row in crf.history_][::2] == [1, 2]
    assert crf.history_[1]["moved_parts"] > 0


FAULTS = """
import resource
import numpy as np
from potentia.learn.backends.worker import _keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        np.ones(2**17)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

fresh = faults()
_keep_freed_memory()
faults()
print(fresh, faults())
"""


def test_workers_use_freed_memory_again():
    """Dask's setting makes every large array fresh memory, whose pages are slow to touch."""
    found = subprocess.run(
        [sys.executable, "-c", FAULTS],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MALLOC_TRIM_THRESHOLD_": "65536"},
        capture_output=True,
        text=True,
        check=True,
    )
    fresh, kept = map(int, found.stdout.split())
    assert kept < fresh / 10


INTERRUPTED = """
import potentia as pt
from sample_images import noisy

if __name__ == "__main__":
    try:
        with pt.cluster("local", workers=2):
            learner = pt.IteratedLogistic(iterations=100_000, sweeps=2, tol=0.0)
            crf = pt.CRF({"node": pt.Linear(), "edge": pt.Linear()}, learner)
            crf.fit(noisy(2), callback=lambda history: print(len(history), flush=True))
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_ctrl_c_reaches_the_client_only(tmp_path):
    """A terminal sends it to all processes of a command."""
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED)
    with subprocess.Popen(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as command:
        try:
            assert command.stdout.readline() == "1\n"
            os.killpg(command.pid, signal.SIGINT)
            out, errors = command.communicate(timeout=60)
        finally:
            command.kill()
    assert (out.split("\n")[-2], errors, command.returncode) == ("interrupted", "", 0)


# -- who can reach a cluster -------------------------------------------------------------------------------------


def listening():
    """Addresses on which this process and its children listen."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    sockets = [own for process in processes for own in process.net_connections("inet")]
    return {own.laddr for own in sockets if own.status == psutil.CONN_LISTEN}


def test_a_local_cluster_listens_on_this_machine_only():
    before = listening()  # clusters of other tests
    with pt.cluster("local", workers=1):
        new = listening() - before
    assert new
    assert {address.ip for address in new} <= {"127.0.0.1", "::1"}


def test_the_commands_for_tls_work(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "tls.md").read_text()
    certificates, cluster, client = re.findall(r"```bash\n(.*?)```", page, flags=re.S)
    subprocess.run(["bash", "-ec", certificates], cwd=tmp_path, check=True, capture_output=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    given = cluster.replace("--port 8786", f"--host 127.0.0.1 --port {port}").replace("127.0.0.1:8787", "127.0.0.1:0")
    lines = given.replace("scheduler:8786", f"127.0.0.1:{port}").splitlines()
    monkeypatch.chdir(tmp_path)
    with contextlib.ExitStack() as stack:
        for line in lines:
            command = [sys.executable, "-m", *line.replace("--nthreads 16", "--nthreads 1").split()]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        with pytest.raises(pt.PotentiaError, match="cannot be reached without certificates"):
            stack.enter_context(pt.cluster(f"tls://127.0.0.1:{port}"))
        settings = re.findall(r"export DASK_(\w+)=(\S+)", client)
        with dask.config.set({name.lower().replace("__", "."): value for name, value in settings}):
            stack.enter_context(pt.cluster(f"tls://127.0.0.1:{port}"))
            crf = pt.CRF({"node": Linear(), "edge": Linear()}, pt.IteratedLogistic(iterations=2))
            crf.fit(pt.datasets.denoising(2, (6, 6), seed=0))
            stack.close()
    assert crf.history_
