"""The README's examples run as printed; the first says what it promises, the second has smaller images."""

import re
from functools import partial
from pathlib import Path

import pytest

import potentia as pt

README = Path(__file__).parents[2] / "README.md"
pytestmark = pytest.mark.docs


def test_the_ten_line_example_runs(capsys):
    first = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)[0]
    assert len(first.strip().splitlines()) <= 12
    names = {}
    exec(first, names)
    result = names["result"]
    assert result.bound == "upper"
    assert result.converged
    assert names["labels"].shape == (100, 100)
    assert str(result.value) in capsys.readouterr().out


def test_the_training_example_runs(tmp_path, monkeypatch, capsys):
    first, second = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    small = partial(pt.datasets.denoising, size=(16, 16))
    monkeypatch.setattr(pt.datasets, "denoising", lambda n, seed: small(2, seed=seed))
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(first.splitlines()[0] + "\n" + second, names)
    assert [len(labels) for labels in names["labels"]] == [256, 256]
    assert "objective" in capsys.readouterr().out
