"""What is written is there whole or not at all, whoever else writes, and whatever lies in the way."""

import itertools
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys

import pytest

import potentia as pt
from potentia.app.cli import main
from potentia.app.image_files import image_files
from potentia.app.pipeline import Staging
from potentia.app.report.rows import read_rows, run_cells
from potentia.app.table_files import read_table, write_table
from potentia.base.files import hidden_name, read_text, remove_leftovers, replacing


def write_uai_model(path):
    pt.uai.write(path, pt.Graph.chain(2, n_states=2), {})


def write_uai_labels(path):
    pt.uai.write_result(path, pt.Exact().infer(pt.Graph.chain(2, n_states=2), {}), "MAP")


def write_rows(out, first):
    run_cells([{"n": n} for n in range(first, first + 20)], lambda cell: {"square": cell["n"] ** 2}, out)


def test_runs_on_one_folder_lose_no_rows(tmp_path):
    context = multiprocessing.get_context("spawn")
    runs = [context.Process(target=write_rows, args=(tmp_path, first)) for first in (0, 10, 20)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
        assert run.exitcode == 0
    found = {row["cell"]["n"]: row["square"] for row in read_rows(tmp_path / "rows.jsonl")}
    assert found == {n: n**2 for n in range(40)}
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_rows_follow_no_planted_link(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    out = tmp_path / "out"
    out.mkdir()
    for name in ("rows.tmp", ".rows.jsonl", "rows.jsonl.tmp"):
        (out / name).symlink_to(victim)
    write_rows(out, 0)
    assert victim.read_text() == "precious"
    assert len(read_rows(out / "rows.jsonl")) == 20


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1, 2]", "line 1 is not a result row"),
        ('{"cell": 3}', "line 1 is not a result row"),
        ("1" * 5000, "line 1 is not JSON"),
        ("[" * 100_000, "line 1 is not JSON"),
        ('{"cell": {}', "line 1 is not JSON"),
    ],
)
def test_lines_that_are_no_rows_get_one_sentence(tmp_path, line, message):
    (tmp_path / "rows.jsonl").write_text(line + '\n{"cell": {}}\n')
    with pytest.raises(pt.PotentiaError, match=message):
        read_rows(tmp_path / "rows.jsonl")


def test_rows_that_are_a_pipe_or_a_loop_of_links_do_not_hang(tmp_path, capsys):
    os.mkfifo(tmp_path / "rows.jsonl")
    with pytest.raises(pt.PotentiaError, match="is not a file"):
        read_rows(tmp_path / "rows.jsonl")
    loop = tmp_path / "loop"
    loop.mkdir()
    (loop / "rows.jsonl").symlink_to(loop / "rows.jsonl")
    (loop / "again").symlink_to(loop)
    assert main(["report", str(loop)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


KILLED = """
import sys, time
from pathlib import Path
from potentia.app.image_files import image_files
from potentia.app.pipeline import Staging
with Staging(Path(sys.argv[1])) as staging:
    staging.file("a").write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


def test_a_killed_run_leaves_a_hidden_folder_that_the_next_one_removes(tmp_path):
    out = tmp_path / "out"
    runs = [
        subprocess.Popen([sys.executable, "-c", KILLED, str(out)], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for run in runs:
        assert run.stdout.readline() == "writing\n"
    runs[0].send_signal(signal.SIGKILL)
    runs[0].wait()
    assert not out.exists()
    assert len(list(tmp_path.iterdir())) == 2
    with Staging(out) as staging:
        staging.file("b").write_text("whole")
    assert sorted(path.name for path in out.iterdir()) == ["b"]
    assert len(list(tmp_path.iterdir())) == 2  # the output, and the folder of the run that still writes
    runs[1].send_signal(signal.SIGKILL)
    runs[1].wait()
    for run in runs:
        run.stdout.close()
    remove_leftovers(out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_another_process_may_write_some_of_the_files(tmp_path):
    out = tmp_path / "out"
    with Staging(out) as staging:
        pickle.loads(pickle.dumps(staging)).file("labels", "a").write_text("whole")
    assert (out / "labels" / "a").read_text() == "whole"


def test_an_error_leaves_the_folder_as_it_was(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").write_text("kept")

    def fail():
        with Staging(out) as staging:
            staging.file("new").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [path.name for path in out.iterdir()] == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_only_abandoned_leftovers_are_removed(tmp_path):
    target = tmp_path / "model"
    abandoned = hidden_name(target)
    abandoned.write_bytes(b"half")
    other = tmp_path / ".model.notes"
    other.write_text("the user's own")
    with replacing(target) as raw:
        raw.write(b"whole")
        remove_leftovers(target)
    assert target.read_bytes() == b"whole"
    assert not abandoned.exists()
    assert other.exists()


def test_infer_writes_all_files_or_none(tmp_path, capsys):
    model = tmp_path / "m.uai"
    model.write_text("MARKOV\n2\n2 2\n1\n2 0 1\n4\n 1 2 3 4\n")
    out = tmp_path / "deep" / "out"
    assert main(["infer", str(model), "--out", str(out), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert sorted(files) == sorted(path.name for path in out.iterdir())
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    assert main(["infer", str(model), "--out", str(blocked)]) == 2
    assert blocked.read_text() == "a file"


def test_a_second_run_leaves_nothing_of_the_first_beside_its_own_files(tmp_path):
    model, out = tmp_path / "m.uai", tmp_path / "out"
    model.write_text("MARKOV\n2\n2 2\n1\n2 0 1\n4\n 1 2 3 4\n")
    assert main(["infer", str(model), "--out", str(out)]) == 0
    (out / "m.uai.notes").write_text("the user's own")
    (out / "other.uai.MAR").write_text("of another model")
    assert main(["infer", str(model), "--task", "map", "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["m.uai.MAP", "m.uai.notes", "other.uai.MAR"]


def test_what_is_in_the_way_is_found_before_anything_moves(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "a").write_text("old")

    def write():
        with Staging(tmp_path) as staging:
            staging.file("a").write_text("new")
            staging.file("b").write_text("new")

    with pytest.raises(pt.PotentiaError, match="b is in the way"):
        write()
    assert (tmp_path / "a").read_text() == "old"


@pytest.mark.parametrize("write", [write_uai_model, write_uai_labels], ids=["model", "result"])
def test_uai_files_follow_links_and_replace_no_pipe_or_device(tmp_path, write):
    real, link, pipe = tmp_path / "real", tmp_path / "link", tmp_path / "pipe"
    real.write_text("old")
    link.symlink_to(real)
    write(link)
    assert link.is_symlink()
    assert real.read_text() != "old"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, tmp_path / "nowhere" / "file"):
        with pytest.raises(pt.PotentiaError, match=f"{path.name} cannot be written"):
            write(path)
    assert pipe.is_fifo()


def test_files_reach_the_disk_before_they_take_their_place(tmp_path, monkeypatch):
    order = []
    for name in ("fsync", "replace"):
        own = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, own=own, **k: (order.append(name), own(*a, **k))[1])
    write_uai_model(tmp_path / "model")
    with Staging(tmp_path) as staging:
        staging.file("a").write_text("whole")
    assert order[0] == "fsync"
    assert all(before == "fsync" for before, this in itertools.pairwise(order) if this == "replace")


def test_cells_that_a_spreadsheet_would_run_are_written_as_text(tmp_path):
    path = tmp_path / "t.csv"
    write_table(path, {"id": ["=1+2", "-1.5", "@x", "plain"], "=f": ["+7", "-x", "1", ""]})
    assert read_table(path) == {"id": ["'=1+2", "-1.5", "'@x", "plain"], "'=f": ["+7", "'-x", "1", None]}


@pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")
def test_half_written_checkpoints_are_removed_on_resuming(tmp_path):
    path = tmp_path / "c"
    hidden_name(path).write_bytes(b"half a checkpoint")
    hidden_name(tmp_path / "c.00112233.00000").write_bytes(b"half a part")
    learner = pt.IteratedLogistic(iterations=2, track_error=False)
    crf = pt.CRF({"node": pt.Linear(), "edge": pt.Linear()}, learner)
    crf.fit(pt.datasets.denoising(1, (8, 8), seed=0), checkpoint=path)
    assert path.exists()
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith(".")]


def test_pipes_among_the_data_get_one_sentence(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(pt.PotentiaError, match="pipe is a pipe; write its content to a file"):
        read_text(tmp_path / "pipe", "utf-8")
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(pt.PotentiaError, match=r"a\.png is no regular file"):
        image_files(tmp_path)
