"""The scripts in examples/, in small form."""

import importlib.util
import runpy
from pathlib import Path

import pytest
from matplotlib import pyplot

import potentia as pt

pytestmark = [pytest.mark.docs, pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")]


def load_example(name):
    path = Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GALLERY = sorted((Path(__file__).parents[2] / "examples" / "gallery").glob("plot_*.py"))


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_the_gallery_runs(path, capsys):
    pyplot.switch_backend("agg")
    assert len(path.read_text().splitlines()) < 60
    runpy.run_path(str(path), run_name="__main__")  # what starts workers is guarded by it
    pyplot.close("all")
    assert capsys.readouterr().out


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


def test_documents_are_labelled_better_together(capsys):
    measures = load_example("label_documents").main(200, 150)
    assert measures["network"]["exact_match"] > measures["independent"]["exact_match"] - 0.02
    assert measures["network"]["exact_match"] > 0.5
    out = capsys.readouterr().out
    assert "certainly the most probable labelling" in out
    assert out.count("least certain") == 3


def test_pairs_learn_from_scribbles(tmp_path, monkeypatch, capsys):
    pytest.importorskip("skimage")
    example = load_example("segment_photo")
    monkeypatch.setattr(example, "FACTOR", 6)
    errors = example.main(["--out", str(tmp_path / "figure.png")])
    assert errors["CRF"] < 0.5 * min(errors["linear pixels"], errors["boosted pixels"])
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert "CRF: " in capsys.readouterr().out
