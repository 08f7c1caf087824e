"""The study of sequences in its quick form, and its tables."""

import pytest

from data_sets import needs
from potentia.app.cli import main
from potentia.app.report.rows import read_rows
from potentia_studies.studies import STUDIES


@needs("sequences")
@pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")
def test_quick_sequences_give_scores_of_the_command(tmp_path, capsys):
    assert main(["reproduce", "sequences", "--quick", "--out", str(tmp_path)]) == 0
    assert "F1" in capsys.readouterr().out
    (row,) = read_rows(tmp_path / "sequences-quick" / "rows.jsonl")
    assert row["scheme"] == "BIO"
    assert row["accuracy"] > 0.9
    assert 0 <= row["span_f1"] <= 1


def test_tables_have_times_beside_crfsuite():
    cells = STUDIES["sequences"].all_cells(quick=False)
    numbers = dict.fromkeys(("seconds", "predict_seconds", "seconds_ratio", "predict_seconds_ratio"), 2.0)
    row = {"memory_ratio": 1.1, "crfsuite_seconds": 4.0, "crfsuite_predict_seconds": 4.0}
    rows = [{"cell": cell, **numbers, **row} for cell in cells if cell["part"] == "speed"]
    scores, speeds = STUDIES["sequences"].tables(rows)
    assert not scores.lines
    assert [line["data"] for line in speeds.lines] == ["CoNLL-2000", "WNUT-17", "131 labels"]
