"""The papers' studies in their quick form: rows, resuming, tables and figures."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cli_examples import cli_examples
from potentia.app.cli import main
from potentia.app.report.rows import key_of, read_rows, run_cells
from potentia_studies.commands import NAMES
from potentia_studies.document import fill, pages
from potentia_studies.document import main as document
from potentia_studies.headlines import RESULTS as RESULTS_OF_README
from potentia_studies.headlines import results
from potentia_studies.ilr import CLASSES, MANY, is_plain, make_potential
from potentia_studies.ilr_sets import SETS
from potentia_studies.studies import STUDIES

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "studies" / "results"


def test_quick_denoising_gives_rows_tables_and_figures_and_resumes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (example,) = cli_examples()["reproduce"]
    assert main(shlex.split(example)[1:]) == 0
    text = capsys.readouterr().out
    assert "ours / paper" in text
    out = tmp_path / "results" / "denoising-quick"
    assert {p.name for p in out.iterdir()} == {
        "rows.jsonl", "learning_curves.png", "potentials.png", "predictions.png", "epsilon.png"
    }  # fmt: skip
    rows = read_rows(out / "rows.jsonl")
    assert len(rows) == len(STUDIES["denoising"].all_cells(quick=True))
    for row in rows:
        assert 0 <= row["test_error"] <= 1
        assert row["versions"]["numpy"]
        assert row["history"][-1]["objective"] <= row["history"][0]["objective"]
    before = (out / "rows.jsonl").read_bytes()
    assert main(["reproduce", "denoising", "--quick", "--out", "results", "--json"]) == 0
    assert (out / "rows.jsonl").read_bytes() == before
    assert len(json.loads(capsys.readouterr().out)["rows"]) == len(rows)


def test_full_tables_have_all_cells_with_the_papers_errors():
    for own in SETS:
        table = [c for c in STUDIES[own.name].all_cells(quick=False) if is_plain(c)]
        assert sorted((c["node"], c["edge"]) for c in table) == sorted((a, b) for a in CLASSES for b in CLASSES)
        for errors in (own.paper_train, own.paper_test):
            assert [len(line) for line in errors] == [5] * 5


def test_boosted_pairs_are_shown_by_the_rows_their_trees_see():
    own = [c for c in STUDIES["backgrounds-ilr"].all_cells(quick=False) if c["node"] == "boosting"]
    errors = {"linear": 0.3, "boosting": 0.4}
    rows = [
        {"cell": c, "test_error": 0.25 if "drawn" in c else errors[c["edge"]], "train_error": 0.1,
         "iterations": 25, "seconds": 1.0, "history": [{"objective": 7.0}]}
        for c in own if c["edge"] in errors
    ]  # fmt: skip
    square, *_, (_, _, lines) = STUDIES["backgrounds-ilr"].tables(rows)
    assert [line["test_error"] for line in lines] == [0.3, 0.4, 0.25]
    assert lines[2]["pairs"] == "boosted, 100,000 rows a tree"
    assert square[2][3]["boosting"].startswith("0.4000")
    drawn = [make_potential("boosting", kind, own[-1], 1).subsample for kind in ("node", "edge")]
    assert drawn == [10_000, MANY]


def test_finished_cells_survive_a_crash(tmp_path):
    done = []

    def run(cell):
        if cell["k"] == 2:
            raise RuntimeError("power cut")
        done.append(cell["k"])
        return {"test_error": 0.5}

    with pytest.raises(RuntimeError):
        run_cells([{"k": k} for k in range(4)], run, tmp_path)
    path = tmp_path / "rows.jsonl"
    path.write_text(path.read_text() + '{"cell": {"k": 2}, "test_er')
    rows = run_cells([{"k": k} for k in (0, 1, 3)], run, tmp_path)
    assert done == [0, 1, 3]
    assert [r["cell"]["k"] for r in rows] == [0, 1, 3]
    assert len(read_rows(path)) == 3


@pytest.mark.parametrize("name", sorted(path.name for path in RESULTS.iterdir() if path.name in NAMES))
def test_stored_rows_are_of_cells_that_a_run_would_skip(name):
    known = {key_of(cell) for cell in STUDIES[name].all_cells(quick=False, full=True)}
    stored = [key_of(row["cell"]) for row in read_rows(RESULTS / name / "rows.jsonl")]
    assert stored
    assert set(stored) <= known
    assert len(set(stored)) == len(stored)


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_earlier_runs_are_known_as_done(name, tmp_path):
    """Every cell of a full run has its row among the results."""

    def run(cell, data):
        raise AssertionError(f"{cell} would run again")

    shutil.copytree(RESULTS / name, tmp_path / name)
    before = (tmp_path / name / "rows.jsonl").read_bytes()
    study = replace(STUDIES[name], run=run, figures={}, load=lambda *_: None)
    study.reproduce(False, tmp_path / name)
    assert (tmp_path / name / "rows.jsonl").read_bytes() == before


def test_pages_show_the_tables_of_stored_rows():
    found = pages(ROOT)
    assert {p.name for p in found} >= {"README.md", "reproduction.md", "benchmarks.md", "torch.md"}
    for page in found:
        assert fill(page.read_text(), ROOT) == page.read_text(), f"{page}: run `make tables`"


def test_commands_of_headlines_are_studies_and_their_entries_exist():
    for headline in RESULTS_OF_README:
        assert headline.study in NAMES
    (table,) = results(ROOT)
    assert all(line["ours"] not in ("", "–") for line in table.lines)


def test_studies_are_those_that_the_command_line_names():
    assert tuple(STUDIES) == NAMES


def test_unknown_study_is_one_sentence(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", "nothing", "--out", str(tmp_path)])
    assert stopped.value.code == 2
    assert "unknown value 'nothing', did you mean denoising?" in capsys.readouterr().err


def test_pages_take_their_tables_from_rows(tmp_path, monkeypatch):
    cell = STUDIES["horses-ilr"].all_cells(quick=False)[0]
    row = {"cell": cell, "test_error": 0.12345, "train_error": 0.1, "iterations": 25, "seconds": 60.0}
    out = tmp_path / "studies" / "results" / "horses-ilr"
    run_cells([cell], lambda _: {k: v for k, v in row.items() if k != "cell"}, out)
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    monkeypatch.chdir(tmp_path)
    old = "<!-- rows: horses-ilr -->\nold\n<!-- end -->"
    page.write_text(f"before\n{old}\nbetween\n<!-- rows: denoising -->\nkept\n<!-- end -->\n")
    document([])
    text = page.read_text()
    assert text.startswith("before\n")
    assert "between" in text
    assert "old" not in text
    assert "| mlp | – | – | – | – | 0.1235 / 0.081 |" in text
    assert "kept" in text, "an experiment without rows keeps its part"
    document(["docs/page.md"])
    assert page.read_text() == text
