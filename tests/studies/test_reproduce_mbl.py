"""Marginal-based learning's experiments in their quick form, and what their parts promise."""

import json

import numpy as np
import pytest

from data_sets import needs
from potentia.app.cli import main
from potentia.app.report.rows import key_of, read_rows
from potentia.inference.exact import Exact
from potentia_studies import berkeley, misspecification, perturbation
from potentia_studies.marginal_sets import BACKGROUNDS, HORSES
from potentia_studies.row_images import pack, unpack
from potentia_studies.studies import STUDIES

FIGURES = {
    "misspecification": {"errors.png", "marginals.png"},
    "perturbation": {"perturbation.png"},
    "denoising-berkeley": {"marginals.png"},
    "horses": {"marginals.png"},
    "backgrounds": {"marginals.png"},
    "fitting-speed": {"fitting_speed.png"},
    "horses-network": set(),
}
NEEDED = {
    "denoising-berkeley": "bsds_denoise",
    "horses": "weizmann_horses",
    "backgrounds": "stanford_background",
    "fitting-speed": "stanford_background",
    "horses-network": "weizmann_horses",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs(part) if (part := NEEDED.get(name)) else ()) for name in FIGURES]
)
def test_quick_form_gives_rows_tables_and_figures_and_resumes(name, tmp_path, capsys):
    if name == "horses-network":
        pytest.importorskip("torch")
    assert main(["reproduce", name, "--quick", "--out", str(tmp_path)]) == 0
    assert "┃" in capsys.readouterr().out
    out = tmp_path / f"{name}-quick"
    assert {p.name for p in out.iterdir()} == {"rows.jsonl"} | FIGURES[name]
    rows = read_rows(out / "rows.jsonl")
    for row in rows:
        assert row["versions"]["numpy"]
        assert row["cell"]["study"] == name
        if "history" in row:
            assert row["history"][-1]["objective"] <= row["history"][0]["objective"]
            assert 0 <= row["test_error"] <= 1
    before = (out / "rows.jsonl").read_bytes()
    assert main(["reproduce", name, "--quick", "--out", str(tmp_path), "--json"]) == 0
    assert (out / "rows.jsonl").read_bytes() == before
    assert len(json.loads(capsys.readouterr().out)["rows"]) == len(rows)


def test_full_tables_have_a_cell_for_every_printed_error():
    printed = {(loss, n) for loss in berkeley.PAPER for n in berkeley.NOISE}
    assert {(c["loss"], c["noise"]) for c in berkeley.STUDY.cells} == printed
    for images in (HORSES, BACKGROUNDS):
        found = images.cells
        assert len(found) == len(set(found))
        printed = {(*key, rounds) for key, line in images.paper.items() for rounds in line}
        assert printed == {key for key in found if key[1] != "trw_raster"}
        assert {key[:2] for key in found} <= set(images.paper), "every cell has a place in the table"
    every = STUDIES["backgrounds"].all_cells(quick=False, full=True)
    assert len(every) == 5 * len(BACKGROUNDS.cells)
    assert len({key_of(c) for c in every}) == len(every)


def test_experiments_are_known_by_name():
    assert set(FIGURES) <= set(STUDIES)


def test_packed_images_come_back_rounded():
    marginals = np.random.default_rng(0).random((7, 5, 3))
    assert np.abs(unpack(pack(marginals)) - marginals).max() < 1 / 60


def test_shifted_chains_know_the_joint_models_conditionals():
    """Without a shift the family of chains over x holds p(x | y) itself, whatever links y to y."""
    length = 5
    theta = misspecification.random_scores(length, np.random.default_rng(3))
    y = np.array([[0, 1, 1, 0, 1]])
    given = {length + i: int(s) for i, s in enumerate(y[0])}
    joint = Exact().infer(misspecification.joint_model(length), theta, observed=given)
    example = misspecification.chains(np.zeros_like(y), y)
    tied = theta["edge"][2 * (length - 1) :]
    table = np.concatenate([theta["node"][:length] + tied[:, :, s] for s in (0, 1)])
    node, edge = example.features["node"] @ table, theta["edge"][: length - 1]
    chain = Exact().infer(example.graph, {"node": node, "edge": edge})
    np.testing.assert_allclose(chain.variable_marginals, joint.variable_marginals[:length], atol=1e-12)


def test_two_sided_perturbation_with_the_papers_multiplier_is_accurate():
    cell = {"seed": 1, "strength": 0.5, "inference": "trw"}
    errors = perturbation.gradient_errors(cell, 0)
    one = perturbation.MULTIPLIERS.index(1.0)
    assert errors[1, one] < 1e-7 < errors[0, one]
