"""The example that tags a corpus, in small form."""

import importlib.util
from pathlib import Path

import pytest

import potentia as pt

pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")


def load_example(name):
    path = Path(__file__).parent.parent / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tag_corpus_runs_and_tags(tmp_path, capsys):
    scores = load_example("tag_corpus").main(["--folder", str(tmp_path), "--iterations", "30"])
    assert scores["f1"] > 0.95
    shown = capsys.readouterr().out
    assert "LOC: precision" in shown
    assert "least sure of:" in shown
    tagged = pt.datasets.conll(tmp_path / "tagged.tsv")
    truth = pt.datasets.conll(tmp_path / "corpus_test.tsv")
    assert [s[0] for s in tagged] == [s[0] for s in truth]
    assert tagged[0][1] == truth[0][1]
