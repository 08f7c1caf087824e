"""The multi-label studies in their quick form: rows, resuming, tables and figures."""

import json
from dataclasses import replace

import numpy as np
import pytest

import potentia as pt
from data_sets import needs
from potentia.app.cli import main
from potentia.app.report.rows import grid, read_rows
from potentia.models.multilabel.network import splits
from potentia_studies import multilabel_tables, search_speed, systems
from potentia_studies.studies import STUDIES


@needs("multilabel")
def test_quick_scene_gives_rows_tables_and_figures_and_resumes(tmp_path, capsys):
    assert main(["reproduce", "scene", "--quick", "--out", str(tmp_path)]) == 0
    assert "mean ± spread" in capsys.readouterr().out
    out = tmp_path / "scene-quick"
    assert {p.name for p in out.iterdir()} == {"rows.jsonl", "scene.png"}
    rows = read_rows(out / "rows.jsonl")
    assert [r["cell"] for r in rows] == STUDIES["scene"].all_cells(quick=True)
    for row in rows:
        assert 0 < row["exact_match"] <= 1
        assert row["cross_validated_exact_match"] > 0
        assert row["versions"]["scikit-learn"]
    assert main(["reproduce", "scene", "--quick", "--out", str(tmp_path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == len(rows)


@needs("multilabel")
@pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")
def test_quick_tables_have_ranks_over_sets(tmp_path, capsys):
    assert main(["reproduce", "multilabel-tables", "--quick", "--out", str(tmp_path)]) == 0
    assert "mean rank" in capsys.readouterr().out
    rows = read_rows(tmp_path / "multilabel-tables-quick" / "rows.jsonl")
    study = STUDIES["multilabel-tables"]
    assert [r["cell"] for r in rows] == study.all_cells(quick=True)
    assert all(0 < r["exact_match"] <= 1 and r["labels"] == multilabel_tables.QUICK_LABELS for r in rows)
    exact, hamming, f_macro = study.tables(rows)
    for table, better in ((exact, max), (hamming, min), (f_macro, max)):
        systems = {line["system"]: line for line in table.lines}
        firsts = [better(line[name] for line in table.lines) for name in ("emotions", "medical")]
        for line in systems.values():
            wins = [line[name] == first for name, first in zip(("emotions", "medical"), firsts, strict=True)]
            assert (float(line["rank"]) == 1.0) <= all(wins)


def test_every_system_of_the_tables_is_fitted_and_predicts():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    Y = (X[:, :3] + 0.3 * rng.normal(size=(60, 3)) > 0).astype(int)
    Y[:, 2] = 1  # a label that never varies
    for name in multilabel_tables.SYSTEMS:
        if name in ("LightGBM", "boosted network"):
            pytest.importorskip("lightgbm")
        system = multilabel_tables.make_system(name, 0.1)
        options = {key: values[-1] for key, values in system.grid.items()}
        model = systems.fitted(system, options, 0, X, Y)
        assert pt.metrics.exact_match(Y, model.predict(X)) > 0.5, name


@pytest.mark.parametrize("system", [multilabel_tables.OURS, "LightGBM"])
def test_made_tables_have_labels_that_are_learned(system):
    if system == "LightGBM":
        pytest.importorskip("lightgbm")
    row = multilabel_tables.grow(400, 40, 6, 0.3, system)
    assert row["hamming_loss"] < 0.1
    assert row["fit_cpu_seconds"] > 0
    name = next(iter(multilabel_tables.LARGE))
    *_, table = multilabel_tables.tables([{"cell": {"set": name, "system": system}, **row}])
    assert table.lines[0]["peak_mib"] > 10


@needs("multilabel")
def test_sets_and_missing_labels_have_rows_and_tables():
    cell = {"quick": True, "seed": 0, "set": "emotions", "part": 0}
    data = multilabel_tables.load_set(True, "emotions")
    names = (multilabel_tables.MISSING, multilabel_tables.FORESTS, multilabel_tables.SETS)
    rows = [{"cell": cell | {"system": name}, **multilabel_tables.run(cell | {"system": name}, data)} for name in names]
    assert min(rows[0]["exact_match"], rows[1]["exact_match"]) > 0.1
    for level, found in rows[2]["levels"].items():
        assert float(level) - 0.05 < min(found["labels"], found["whole"])
        assert found["labels_below"] + found["labels_above"] < 0.2
        assert 0.5 < found["labels_size"] <= 2
        assert 1 <= found["whole_size"] <= 16
    titles = [table.title for table in multilabel_tables.tables(rows)]
    assert titles[-3:] == [
        "Exact match, 30 % of the training labels removed at random",
        "Sets of single labels",
        "Sets of whole labellings",
    ]


@needs("multilabel")
def test_quick_search_speed_agrees_with_the_theorem(tmp_path, capsys):
    assert main(["reproduce", "search-speed", "--quick", "--out", str(tmp_path)]) == 0
    assert "Theorem 9" in capsys.readouterr().out
    out = tmp_path / "search-speed-quick"
    assert {p.name for p in out.iterdir()} == {"rows.jsonl", "search_speed.png"}
    rows = read_rows(out / "rows.jsonl")
    for row in rows:
        if row["cell"]["part"] == "time":
            assert row["lp_below"]
            assert row["states_largest"] < 2 ** (row["cell"]["labels"] + 1)
        if row["cell"]["part"] == "bound":
            for certain, cut, guaranteed in zip(row["certain"], row["cut_short"], row["guaranteed"], strict=True):
                assert certain + cut >= guaranteed
    assert rows[-1]["certain"] == 1.0


def test_directed_relaxation_bounds_the_search_and_is_exact_without_couplings():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(60, 3)), (rng.random((60, 4)) < 0.4).astype(int)
    network = pt.LMSBN(1e-2).fit(X, Y).network_
    base = network.base(X[:8])
    value = search_speed.DirectedRelaxation(network.couplings()).solve(base, np.zeros(base.shape))[1]
    assert np.all(value <= network.search(base, np.inf, 10**9).loss[:, 0] + 1e-7)
    none = search_speed.DirectedRelaxation(np.zeros((4, 4))).solve(base, np.zeros(base.shape))[1]
    assert np.allclose(none, np.maximum(0, 1 - np.abs(base)).sum(axis=1), atol=1e-7)


@needs("multilabel")
def test_options_are_those_of_the_best_held_out_exact_match():
    data = systems.load("scene", quick=True)
    linear, X, Y = systems.SYSTEMS["BCl"], data.X_train, data.Y_train
    system = replace(linear, grid={**linear.grid, "alpha": linear.grid["alpha"][::4]}, folds=2)
    options, score = systems.choose(system, X, Y, 0)
    found = []
    for candidate in grid(**system.grid):
        right = [
            pt.metrics.exact_match(
                data.Y_train[test],
                pt.multilabel.IndependentClassifiers(**candidate)
                .fit(data.X_train[train], data.Y_train[train])
                .predict(data.X_train[test]),
            )
            for train, test in splits(len(data.Y_train), system.folds, 0)
        ]
        found.append(np.mean(right))
    assert score == pytest.approx(max(found))
    assert options == grid(**system.grid)[int(np.argmax(found))]


def test_systems_of_scene_have_the_same_number_of_candidates_and_folds():
    found = {name: (s.candidates, s.folds) for name, s in systems.SYSTEMS.items()}
    assert set(found.values()) == {(36, 5)}


def test_options_of_the_search_are_left_out_of_the_choice():
    tolerances = []

    def make(**options):
        tolerances.append(options["tol"])
        return pt.multilabel.IndependentClassifiers(**options)

    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    Y = (X[:, :2] > 0).astype(int)
    system = systems.System("", make, {"alpha": (1e-3, 1e-2)}, folds=2, search={"tol": 0.1})
    options, _ = systems.choose(system, X, Y, 0)
    assert set(options) == {"alpha"}
    assert tolerances == [0.1] * 4


def test_full_studies_have_all_systems_and_sizes():
    names = {c["system"] for c in STUDIES["scene"].cells if c["set"] == "scene"}
    assert {"BCl", "BCk", "SSVMhmm", "SSVMfull", "LMSBNlo", "LMSBNlf", "LMSBNkf", "LMBM"} <= names
    sizes = {c["rows"] for c in STUDIES["search-speed"].cells if c["part"] == "bound"}
    assert sizes == {0, 10, 100, 1000, 3000}
