"""The papers' studies in their quick form: rows, resuming, tables and figures."""

import json
import shlex

import pytest

from cli_examples import cli_examples
from potentia.cli import main
from potentia.experiments.document import main as document
from potentia.experiments.ilr import CLASSES, MANY, STUDIES, cells, is_plain, make_potential
from potentia.experiments.reproduce import tables
from potentia.experiments.rows import read_rows, run_cells


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
    assert len(rows) == len(cells(STUDIES["denoising"], quick=True))
    for row in rows:
        assert 0 <= row["test_error"] <= 1
        assert row["versions"]["numpy"]
        assert row["history"][-1]["objective"] <= row["history"][0]["objective"]
    before = (out / "rows.jsonl").read_bytes()
    assert main(["reproduce", "denoising", "--quick", "--out", "results", "--json"]) == 0
    assert (out / "rows.jsonl").read_bytes() == before
    assert len(json.loads(capsys.readouterr().out)["rows"]) == len(rows)


def test_full_tables_have_all_cells_with_the_papers_errors():
    for study in STUDIES.values():
        table = [c for c in cells(study, quick=False) if is_plain(c)]
        assert sorted((c["node"], c["edge"]) for c in table) == sorted(
            (a, b) for a in CLASSES for b in CLASSES
        )
        for errors in (study.paper_train, study.paper_test):
            assert [len(line) for line in errors] == [5] * 5


def test_boosted_pairs_are_shown_by_the_rows_their_trees_see():
    own = [c for c in cells(STUDIES["backgrounds-ilr"], quick=False) if c["node"] == "boosting"]
    errors = {"linear": 0.3, "boosting": 0.4}
    rows = [
        {"cell": c, "test_error": 0.25 if "drawn" in c else errors[c["edge"]], "train_error": 0.1,
         "iterations": 25, "seconds": 1.0, "history": [{"objective": 7.0}]}
        for c in own if c["edge"] in errors
    ]  # fmt: skip
    square, *_, (_, _, lines) = tables("backgrounds-ilr", rows)
    assert [line["test"] for line in lines] == [0.3, 0.4, 0.25]
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


def test_unknown_study_is_one_sentence(tmp_path, capsys):
    assert main(["reproduce", "nothing", "--out", str(tmp_path)]) == 2
    assert "there are denoising" in capsys.readouterr().err


def test_pages_take_their_tables_from_rows(tmp_path):
    cell = cells(STUDIES["horses-ilr"], quick=False)[0]
    row = {"cell": cell, "test_error": 0.12345, "train_error": 0.1, "iterations": 25, "seconds": 60.0}
    run_cells([cell], lambda _: {k: v for k, v in row.items() if k != "cell"}, tmp_path / "horses-ilr")
    page = tmp_path / "page.md"
    old = "<!-- rows: horses-ilr -->\nold\n<!-- end -->"
    page.write_text(f"before\n{old}\nbetween\n<!-- rows: denoising -->\nkept\n<!-- end -->\n")
    document([str(tmp_path), str(page)])
    text = page.read_text()
    assert text.startswith("before\n")
    assert "between" in text
    assert "old" not in text
    assert "| mlp | – | – | – | – | 0.1235 / 0.081 |" in text
    assert "kept" in text, "an experiment without rows keeps its part"
    document([str(tmp_path), str(page)])
    assert page.read_text() == text
