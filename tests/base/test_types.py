"""The public face as type checkers and completion see it."""

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import potentia as pt
from potentia.gradients.entry import GRADIENTS, GradientName
from potentia.gradients.losses import LOSSES, LossName

RIGHT = """
import numpy as np
import potentia as pt

graph = pt.Graph.grid((3, 3), n_states=2)
result: pt.Result = pt.TRW(schedule="sequential").infer(graph, {"node": np.zeros((9, 2))})
pt.loss_and_gradient("univariate_logistic", pt.TRW(), graph, {}, [], "implicit")
pt.LMSBN(order="f-score", kernel="rbf", gamma="scale")
pt.features.hog(np.zeros((3, 3)))
model = pt.load("file")
if isinstance(model, pt.CRF):
    model.predict([])
"""
WRONG = [
    "pt.Lienar()",
    "pt.load('file').none_such",
    "pt.TRW(schedule='colored')",
    "pt.MeanField(schedule='residual')",
    "pt.LinearProgram(method='simplex')",
    "pt.extend.MessagePassing(links='stars')",
    "pt.LMBM(decode='nearest')",
    "pt.LMSBN(order='alphabet')",
    "pt.LMSBN(kernel='round')",
    "pt.MaxMargin(solver='newton')",
    "pt.loss_and_gradient('hinge', pt.TRW(), graph, {}, [])",
    "pt.loss_and_gradient('likelihood', pt.TRW(), graph, {}, [], 'magic')",
]


def test_mypy_accepts_what_is_right_and_finds_what_is_wrong(tmp_path):
    source = Path(pt.__file__).parents[1]
    (tmp_path / "user.py").write_text(RIGHT + "".join(f"{line}\n" for line in WRONG))
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary", "user.py"]
    config = [f"--cache-dir={tmp_path / 'cache'}", "--no-pretty", "--config-file="]
    environment = {"MYPYPATH": str(source), "PATH": "", "HOME": str(tmp_path)}
    found = subprocess.run(
        command[:3] + config + command[3:], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert not found.stderr
    first = RIGHT.count("\n") + 1
    lines = sorted({int(line.split(":")[1]) for line in found.stdout.splitlines() if ": error:" in line})
    assert lines == list(range(first, first + len(WRONG))), found.stdout


def test_only_public_names_are_listed():
    assert dir(pt) == sorted(pt.__all__)
    for name in pt.__all__:
        assert getattr(pt, name) is not None
    with pytest.raises(AttributeError, match="Lienar"):
        pt.Lienar  # noqa: B018


def test_choices_in_types_are_the_choices():
    assert set(get_args(LossName)) == set(LOSSES)
    assert set(get_args(GradientName)) == set(GRADIENTS)
