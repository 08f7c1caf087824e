"""The command line as a user meets it."""

import json
import shlex

import numpy as np
import pytest

import potentia as pt
from cli_examples import cli_examples
from potentia.app.cli import main
from potentia_studies.bench import calls, gradients, sweeps, timing

CHAIN = "MARKOV\n3\n2 2 2\n3\n1 0\n2 0 1\n2 1 2\n2\n1.0 2.0\n4\n1 2 3 4\n4\n2 1 1 2\n"


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "chain.uai"
    path.write_text(CHAIN)
    return path


def test_infer_prints_json_with_exact_answers(model, capsys):
    assert main(["infer", str(model), "--method", "trw", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # sum over y of psi_0 psi_01 psi_12, each state of variable 2 adding 2 + 1
    assert found["value"] == pytest.approx(np.log(3 * (1 * (1 + 2) + 2 * (3 + 4))))
    assert found["bound"] == "exact"
    assert found["labels"] == [1, 1, 1]
    assert np.allclose(np.sum(found["marginals"], axis=1), 1)


@pytest.mark.parametrize(
    "method", ["exact", "loopy_bp", "kikuchi", "smoothed", "mean_field", "linear_program", "gibbs"]
)
def test_every_method_runs_and_shows_a_table(model, method, capsys):
    assert main(["infer", str(model), "--method", method]) == 0
    assert method in capsys.readouterr().out


def test_evidence_and_result_files(model, tmp_path, capsys):
    evidence = tmp_path / "chain.uai.evid"
    evidence.write_text("1 0 0\n")
    assert main(["infer", str(model), "--evidence", str(evidence), "--out", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["value"] == pytest.approx(np.log(9))
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["chain.uai.MAP", "chain.uai.MAR", "chain.uai.PR"]
    written = pt.uai.read_result(tmp_path / "out" / "chain.uai.PR")
    assert written.log10_partition == pytest.approx(np.log10(9))


def test_tasks_of_the_competition_write_its_files(model, tmp_path, capsys):
    query = tmp_path / "query"
    query.write_text("2 0 2\n")
    for task, more in (("pr", []), ("mar", []), ("map", []), ("mmap", ["--query", str(query)])):
        out = tmp_path / task
        arguments = ["infer", str(model), "--task", task, "--seconds", "5", "--out", str(out), "--json", *more]
        assert main(arguments) == 0
        facts = json.loads(capsys.readouterr().out)
        assert [p.name for p in out.iterdir()] == facts["files"] == [f"chain.uai.{task.upper()}"]
    assert pt.uai.read_result(tmp_path / "pr" / "chain.uai.PR").log10_partition == pytest.approx(np.log10(51))
    written = pt.uai.read_result(tmp_path / "mmap" / "chain.uai.MMAP")
    assert written.query.tolist() == [0, 2]
    # given the best states of variables 0 and 2, the sum over variable 1: 2 (3 + 4) times the larger of 2 and 1
    assert facts["labels"][1] == -1
    assert facts["bound"] == "exact"
    assert facts["best_score"] == pytest.approx(facts["value"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["infer", "{model}", "--task", "mmap"], "--query"),
        (["infer", "{model}", "--task", "pr", "--method", "trw"], "--task pr"),
        (["infer", "nowhere.uai"], "nowhere.uai"),
        (["infer", "{bad}"], "broken.uai"),
        (["infer", "{model}", "--method", "exact", "--damping", "0.5"], "--damping"),
        (["infer", "{model}", "--method", "trw", "--damping", "2"], "damping"),
        (["infer", "{model}", "--evidence", "{bad}"], "broken.uai"),
        (["infer", "{model}", "--method", "trw", "--iterations", "-3"], "iterations"),
    ],
)
def test_bad_input_is_one_sentence_without_traceback(arguments, words, model, tmp_path, capsys):
    bad = tmp_path / "broken.uai"
    bad.write_text(CHAIN[:30])
    assert main([a.format(bad=bad, model=model) for a in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("potentia: ")
    assert words in error
    assert error.count("\n") == 1


def test_bench_quick_prints_ratios(tmp_path, monkeypatch, capsys):
    def once(works, budget):
        return timing.best_times(works, 0.0)

    # calls are timed once each, since how long they take is not what is tested
    for module in (calls, gradients, sweeps):
        monkeypatch.setattr(module, "best_times", once)
    monkeypatch.setattr(sweeps, "best_time", lambda work, budget: once([work], budget)[0])
    (example,) = cli_examples()["bench"]
    assert main([*shlex.split(example)[1:], "--out", str(tmp_path / "rows.jsonl")]) == 0
    out = capsys.readouterr().out
    assert "ns / message" in out
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    # sequences are timed where the data folder is
    assert {r["part"] for r in rows} - {"sequence"} == {
        "machine", "sweep", "calls", "gradient", "boosting", "start",
    }  # fmt: skip
    assert all(r["ns_per_message"] > 0 for r in rows if r["part"] == "sweep")
