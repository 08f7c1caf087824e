"""The demo in a tiny form: what it learns, writes and prints."""

import functools
import json
import shlex

import pytest

from cli_examples import cli_examples
from potentia.app import demo
from potentia.app.cli import main
from potentia.app.report.rows import read_rows

TINY = demo.DemoSize(images=2, side=16, iterations=3, rounds=4, digits=200)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    said = []
    rows, path = demo.run(out, size=TINY, say=said.append)
    return out, rows, path, said


def test_rows_have_what_the_page_needs(made):
    out, rows, path, said = made
    assert rows["denoising"] == read_rows(out / "denoising" / "rows.jsonl")
    for row in rows["denoising"]:
        assert 0 <= row["test_error"] <= 1
        assert row["history"][-1]["objective"] <= row["history"][0]["objective"]
        assert len(row["pictures"]) == 2
        assert list(row["pictures"][0]["panels"]) == ["input", "truth", "prediction", "errors", "uncertainty"]
    assert "not comparable" in rows["denoising"][0]["data"]
    assert path == out / "report.html"
    results = [text for text in said if "test error" in text]
    assert results[0].startswith("learner iterated, node linear, edge zero: test error"), "the fastest model first"
    assert len(results) == len(rows["denoising"])


def test_labels_that_depend_are_better_predicted_together(made):
    match = {row["cell"]["system"]: row["exact_match"] for row in made[1]["multilabel"]}
    assert match["LMSBN"] > match["independent"]
    assert match["LMSBN, RBF kernel"] > max(match["LMSBN"], match["independent, RBF kernel"])


def test_the_page_shows_both_studies(made):
    page = made[2].read_text()
    for words in ("denoising", "multilabel", "Learning curves", "Learned functions", "Images", "closed loop"):
        assert words in page
    assert len(page) < 3_000_000


def test_examples_in_help_work_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "run", functools.partial(demo.run, size=TINY))
    for command in ("demo", "report"):
        (example,) = cli_examples()[command]
        assert main(shlex.split(example)[1:]) == 0
    printed = capsys.readouterr()
    assert "test error" in printed.out
    assert "demo/report.html" in printed.out
    assert "node mlp, edge mlp: test error" in printed.err


def test_json_is_one_object_and_a_second_run_replaces_the_first(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "MODELS", demo.MODELS[:1])
    monkeypatch.setattr(demo, "run", functools.partial(demo.run, size=TINY))
    for seed in ("0", "1"):
        assert main(["demo", "--out", str(tmp_path), "--seed", seed, "--json"]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["rows"]["denoising"][0]["test_error"] != second["rows"]["denoising"][0]["test_error"]
    assert "history" not in first["rows"]["denoising"][0]
    assert {row["cell"]["seed"] for row in read_rows(tmp_path / "denoising" / "rows.jsonl")} == {1}
