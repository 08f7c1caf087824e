"""The example of labelled documents, in small form."""

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "label_documents.py"


def test_documents_are_labelled_better_together(capsys):
    measures = runpy.run_path(str(EXAMPLE))["main"](200, 150)
    assert measures["network"]["exact_match"] > measures["independent"]["exact_match"] - 0.02
    assert measures["network"]["exact_match"] > 0.5
    out = capsys.readouterr().out
    assert "certainly the most probable labelling" in out
    assert out.count("least certain") == 3
