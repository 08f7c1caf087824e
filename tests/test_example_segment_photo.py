"""The photograph of the README, at a sixth of its size."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("skimage")


@pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")
def test_pairs_learn_from_scribbles(tmp_path, monkeypatch, capsys):
    path = Path(__file__).parent.parent / "examples" / "segment_photo.py"
    spec = importlib.util.spec_from_file_location("segment_photo", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    monkeypatch.setattr(example, "FACTOR", 6)
    errors = example.main(["--out", str(tmp_path / "figure.png")])
    assert errors["CRF"] < 0.5 * min(errors["linear pixels"], errors["boosted pixels"])
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert "CRF: " in capsys.readouterr().out
