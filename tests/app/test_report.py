"""The report page, as text and in a real browser."""

import io
import json
import os
import re
from importlib.resources import files

import numpy as np
import pytest

from browser import CHROMIUM, Page
from potentia.app.cli import main
from potentia.app.plot import Line
from potentia.app.report.figures import chart, kept_image, make_axis, png, viewer_data
from potentia.app.report.page import report, result_sentence
from potentia.app.report.rows import names, runs_table, shown, study_facts
from potentia.base.types import PotentiaError
from potentia_studies.ilr_sets import DENOISING_TEST
from potentia_studies.row_images import PALETTE, data_uri, kept, pack, panels_of
from potentia_studies.studies import STUDIES

VERSIONS = {"numpy": "2.0", "python": "3.12"}


def _row(node, edge, error, k=0, **more):
    history = [{"iteration": i, "train_error": 0.5 / i, "validation_error": 0.6 / i} for i in range(1, 6)]
    x = np.linspace(0, 1, 11)
    curve = {"x": x.tolist(), "f": np.stack([x, -x], axis=1).tolist()}
    return {
        "cell": {"study": "toy", "node": node, "edge": edge, "seed": 0},
        "test_error": error,
        "history": history,
        "curves": {"node": curve},
        "pictures": [_kept_image(f"image {i}", k + i) for i in range(2)],
        "seconds": 1.5,
        "versions": VERSIONS,
        **more,
    }


def _kept_image(name, seed):
    rng = np.random.default_rng(seed)
    noise, truth = rng.random((8, 9)), rng.integers(0, 2, (8, 9))
    found = np.where(np.arange(72).reshape(8, 9) < seed, 1 - truth, truth)
    seen = np.repeat((255 * noise[..., None]).astype(np.uint8), 3, axis=2)
    maps = {"input": seen, "truth": truth, "prediction": found, "uncertainty": noise}
    return kept_image({"name": name, "colours": np.array([[0, 0, 0], [250, 230, 60]]), **maps})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two studies: one with everything, one with a number and a name that must be escaped."""
    out = tmp_path_factory.mktemp("results")
    toy = [
        _row("linear", "linear", 0.0756, 0, settled=True, iterations=7),
        _row("boosting", "boosting", 0.0143, 3, settled=False, iterations=20),
        _row("mlp", "mlp", 0.101, 5, iterations=20),
    ]
    odd = [{"cell": {"system": "<script>alert(1)</script>"}, "score": 0.5, "seconds": 0.1, "versions": VERSIONS}]
    odd.append(
        {"cell": {"system": "network"}, "labels": ["a", "b"], "couplings": [[0.0, 1.5], [-2.0, 0.0]], "seconds": 0.1}
    )
    for name, rows in (("toy", toy), ("odd", odd)):
        (out / name).mkdir()
        (out / name / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return out


@pytest.fixture(scope="module")
def page_file(folder):
    return report(folder)


# -- as text -----------------------------------------------------------------------------------------------


def test_the_page_is_one_file_that_asks_for_nothing(page_file):
    text = page_file.read_text()
    assert not re.findall(r"(?:src|href)=[\"']?(?!#|data:)[^\"' >]+", text)
    assert "@import" not in text
    assert "url(" not in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    assert '<html lang="en">' in text
    assert 'name="viewport"' in text


def test_runs_are_named_by_what_tells_them_apart(folder):
    rows = [json.loads(line) for line in (folder / "toy" / "rows.jsonl").read_text().splitlines()]
    assert names(rows) == ["node linear, edge linear", "node boosting, edge boosting", "node mlp, edge mlp"]
    usual = [{"cell": {"mode": "joint", "k": k}} for k in range(4)] + [{"cell": {"mode": "piecewise", "k": 4}}]
    assert names(usual) == ["k 0", "k 1", "k 2", "k 3", "k 4, mode piecewise"]
    assert names(rows[:1]) == ["node linear, edge linear, seed 0"]
    _, columns, lines = runs_table("All", rows)
    steps = next(c for c in columns if c.heading == "iterations")
    assert [shown(steps, line) for line in lines] == ["7", "20", "20"]
    facts = study_facts(rows)
    assert facts["seed"] == "0"
    assert facts["versions"] == "numpy 2.0, python 3.12"
    assert "1 of 2 runs with a tolerance converged (not node boosting" in facts["convergence"]
    assert "node boosting" in facts["convergence"]


def test_studies_of_the_papers_show_their_tables(tmp_path, capsys):
    cell = STUDIES["denoising"].all_cells(quick=False)[0]
    row = {"cell": cell, "test_error": 0.0071, "train_error": 0.006, "iterations": 25, "seconds": 60.0}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "sub" / "page.html"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    text = (tmp_path / "sub" / "page.html").read_text()
    assert found["bytes"] == len(text.encode())
    paper = DENOISING_TEST[4][4]
    assert f'0.0071 <span class="paper">/ {paper:.3f}</span>' in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no rows.jsonl"),
        ('{"a": 1}\n{"b": 2}\n', "line 1 is not a result row"),
        ("x\n{}\n", "line 1 is not JSON"),
        ('{"cell": {}, "seconds": null}\n', "cannot be shown"),
        ('{"cell": {}, "history": [{"objective": 1.0}]}\n', "cannot be shown (KeyError: 'iteration')"),
        ('{"cell": {}, "pictures": [{"panels": {"input": 1}}]}\n', "cannot be shown"),
        ('{"cell": {"seed": 0}}\n\n{"cell": {"seed": null}}\n', "cannot be shown"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_bad_folders_are_one_sentence(content, words, tmp_path, capsys):
    if content is not None:
        (tmp_path / "rows.jsonl").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["report", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "not a folder" in capsys.readouterr().err
    with pytest.raises(PotentiaError):
        report(tmp_path)


@pytest.mark.parametrize("colours", [2, 1000])
def test_images_are_png_that_others_read(colours):
    from matplotlib.image import imread

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (colours, 3), dtype=np.uint8)[rng.integers(0, colours, (30, 41))]
    read = imread(io.BytesIO(png(pixels)))[..., :3]
    assert np.array_equal(np.rint(read * 255), pixels)
    assert len(data_uri(np.zeros((1000, 700, 3)))) < 1000


def test_every_form_of_image_is_understood():
    image = _kept_image("x", 3)
    assert list(image["panels"]) == ["input", "truth", "prediction", "errors", "uncertainty"]
    assert image["text"] == "3 of 72 pixels wrong (4.17%)"
    panels, _ = panels_of("0110")
    assert np.array_equal(panels["prediction"], PALETTE[[[0, 1], [1, 0]]])
    panels, _ = panels_of(pack(np.eye(3)[None]))
    assert np.allclose(panels["marginals"], PALETTE[None, :3], atol=0.02)
    seen = np.full((2, 3), 0.5), np.array([[0, 1, 1], [-1, 0, 0]])
    panels, text = panels_of("011010", seen)
    assert list(panels) == ["input", "truth", "prediction"]
    assert panels["prediction"].shape == (2, 3, 3)
    assert text == "1 of 5 pixels wrong (20.00%)", "unknown classes do not count"
    assert np.array_equal(np.unique(panels["truth"][0], axis=0), np.unique(PALETTE[:2], axis=0))
    assert not panels_of("01101")[0], "not a square"
    assert viewer_data([[kept("011010", seen)]], ["of known size"])["shown"][0][0]["panels"]
    data = viewer_data([[_kept_image("x", 1)], [_kept_image("x", 1)]], ["a", "b"])
    assert len(data["sources"]) == 5, "what repeats is kept once"


def test_rows_of_a_papers_study_are_shown_beside_what_was_seen(tmp_path):
    cell = {"study": "denoising", "quick": True, "node": "linear", "edge": "zero"}
    row = {"cell": cell, "test_error": 0.5, "seconds": 1.0, "pictures": ["01" * 800] * 3, "versions": VERSIONS}
    (tmp_path / "denoising").mkdir()
    (tmp_path / "denoising" / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["report", str(tmp_path)]) == 0
    data = re.search(r'<script type="application/json">(.*?)</script>', (tmp_path / "report.html").read_text())
    assert list(json.loads(data[1])["shown"][0][0]["panels"]) == ["input", "truth", "prediction"]


@pytest.mark.parametrize(
    ("low", "high", "log"),
    [(0.27, 0.4, True), (1.61e5, 1.64e5, True), (-47.0, 47.0, False), (1.0, 134.0, False), (3e-7, 4e-7, True)],
)
def test_every_axis_has_ticks_that_can_be_told_apart(low, high, log):
    axis = make_axis([low, high], log=log)
    assert 3 <= len(axis.ticks) <= 8
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", chart([], make_axis([0.0, 1.0]), axis, "", "", "", ""))
    shown = [float(text.replace(",", "")) for text in texts[: len(axis.ticks)]]
    assert shown == pytest.approx(axis.ticks, rel=1e-9, abs=1e-12)
    assert all("e+" not in text for text in texts)


def test_a_single_point_is_a_dot():
    drawn = chart([Line("one", [1.0], [0.3])], make_axis([1.0]), make_axis([0.3]), "", "", "", "")
    assert re.search(r'd="M[\d.]+ [\d.]+h0"', drawn)


def test_cells_are_shown_as_they_are_and_only_measures_beside_them():
    rows = [
        {
            "cell": {"inference": name, "labels": k, "seed": 0},
            "inference": f"TRW({name!r})",
            "labels": ["a", "b"],
            "curves": {},
            "test_errors": [0.25, 0.125],
            "search_seconds": 3.5e-7,
            "iterations": 40 + k,
        }
        for k, name in enumerate(("trw", "trw_raster"))
    ]
    _, columns, lines = runs_table("All", rows)
    headings = [column.heading for column in columns]
    assert headings == ["inference", "labels", "test errors", "search seconds", "iterations", "seconds"]
    assert [shown(column, lines[1]) for column in columns] == [
        "trw_raster", "1", "0.2500, 0.1250", "3.5e-07", "41", "–"
    ]  # fmt: skip
    assert "convergence" not in study_facts(rows)
    fixed = study_facts([row | {"settled": None} for row in rows])
    assert fixed["convergence"] == "2 ran a fixed number of iterations"


def test_sections_have_identifiers_of_their_own(tmp_path):
    for name in ("a-b", "a b", "main", "é", "ü"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.jsonl").write_text('{"cell": {"k": 1}, "error": 0.5}\n')
    text = report(tmp_path).read_text()
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    regions = re.findall(r'role="region"[^>]*aria-label="([^"]*)"', text)
    assert len(set(regions)) == 5
    assert re.findall(r'href="#(study-[^"]*)"', text) == [
        "study-a-b", "study-a-b-2", "study-main", "study-other", "study-other-2"
    ]  # fmt: skip


def test_the_page_is_written_to_files_only(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text('{"cell": {"k": 1}, "error": 0.5}\n')
    (tmp_path / "real.html").write_text("old")
    (tmp_path / "link.html").symlink_to("real.html")
    os.mkfifo(tmp_path / "pipe")
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "link.html")]) == 0
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").read_text().startswith("<!doctype html>")
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    for name, words in (("pipe", "it is no regular file"), ("", "it is a folder")):
        assert main(["report", str(tmp_path), "--out", str(tmp_path / name)]) == 2
        assert words in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "pipe").is_fifo()


def test_axes_are_round_and_logarithmic_only_above_zero():
    axis = make_axis([0.0071, 0.49], log=True)
    assert axis.log
    assert set(axis.ticks) <= {0.01, 0.02, 0.05, 0.1, 0.2, 0.5}
    assert axis.share(0.0071) > 0
    assert not make_axis([0.0, 1.0], log=True).log
    assert make_axis([0.0, 1.0]).ticks == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert make_axis([2.0, 2.0]).share(2.0) == 0.5
    assert make_axis([]).ticks


def test_a_study_leads_with_its_result_and_its_images(page_file):
    text = page_file.read_text()
    toy = text[text.index('id="study-toy"') :]
    lead, strip, results = (toy.index(words) for words in ('class="lead"', 'class="strip"', ">Results<"))
    assert lead < strip < results < toy.index(">Run facts<")
    assert "The lowest test error is 0.0143 (node boosting, edge boosting)" in toy
    figures = toy[strip:results].count("<figure>")
    assert figures == 2 + 3, "input, truth, and one per method"


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([{"cell": {"k": 1}, "test_error": 0.25}], "The test error is 0.2500."),
        (
            [{"cell": {"k": k}, "exact_match": k / 10} for k in (1, 2, 3)],
            "The highest exact match is 0.3000 (k 3); 2 other runs: 0.2000 to 0.1000.",
        ),
        (
            [
                {"cell": {"set": s, "k": k}, "test_error": e}
                for s, k, e in (("a", 1, 0.1), ("b", 1, 0.3), ("b", 2, 0.2))
            ],
            "The lowest test error is 0.1000 on a (set a, k 1); 0.2000 on b (set b, k 2).",
        ),
        ([{"cell": {"k": 1}, "objective": 3.0}], ""),
        (
            [
                {"cell": {"command": "train", "run": 1, "data": "photos"}, "accuracy": 0.9},
                {"cell": {"command": "evaluate", "run": 2, "data": "photos"}, "accuracy": 0.8, "mean_iou": 0.7},
            ],
            "Mean IoU on data (photos): 0.7000.",
        ),
    ],
    ids=["one run", "several runs", "several sets", "no measure", "own runs"],
)
def test_the_result_is_one_sentence(rows, sentence):
    assert result_sentence(rows) == sentence


def test_colours_have_contrast_in_both_schemes():
    style = files("potentia.app.report").joinpath("page.css").read_text()
    light, dark = (
        dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", part))
        for part in style.split("@media (prefers-color-scheme: dark)")
    )
    assert set(light) == set(dark)
    for scheme in (light, dark):
        for back in ("back", "panel"):
            for name in ("text", "muted", "link"):
                assert _contrast(scheme[name], scheme[back]) >= 4.5, (name, back)
            for k in range(8):
                assert _contrast(scheme[f"c{k}"], scheme[back]) >= 3.0, (k, back)


def _contrast(one, other):
    """As in the Web Content Accessibility Guidelines."""

    def luminance(colour):
        c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


# -- in a browser ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here (Debian: apt-get install chromium)")
    pytest.importorskip("websocket", reason="websocket-client is not installed")
    tab = Page(tmp_path_factory.mktemp("profile"))
    yield tab
    tab.close()


@pytest.fixture
def fresh(chromium, page_file):
    chromium.look(1200, 900)
    chromium.goto(page_file.as_uri())
    return chromium


TOY = "document.querySelectorAll('#study-toy ~ section"
COLUMN = f"[...{TOY} table.sortable tbody tr')].map(r => r.cells[0].textContent)"
SORTS = f"[...{TOY} thead th')].map(h => h.getAttribute('aria-sort'))"


def test_it_loads_without_complaints_and_without_network(fresh):
    assert fresh.evaluate("document.querySelectorAll('main h2').length") == 2
    assert fresh.evaluate("document.querySelectorAll('svg.chart').length") == 6
    assert fresh.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0 && i.alt)")
    assert fresh.evaluate("[...document.querySelectorAll('button')].every(b => b.ariaLabel || b.textContent)")
    for landmark in ("header", "nav[aria-label]", "main", "[role=status]"):
        assert fresh.evaluate(f"document.querySelector('{landmark}') !== null"), landmark
    assert fresh.complaints == []
    assert {address.split(":")[0] for address in fresh.requests} == {"file", "data"}


def test_tables_sort_by_click_and_by_key(fresh):
    assert fresh.evaluate(COLUMN) == ["linear", "boosting", "mlp"]
    button = "#study-toy ~ section thead th:nth-child(3) button"
    assert fresh.evaluate(f"document.querySelector('{button}').textContent") == "test error"
    fresh.click(button)
    assert fresh.evaluate(COLUMN) == ["boosting", "linear", "mlp"]
    assert fresh.evaluate(SORTS)[2] == "ascending"
    fresh.evaluate(f"document.querySelector('{button}').focus()")
    fresh.press("Enter")
    assert fresh.evaluate(COLUMN) == ["mlp", "linear", "boosting"]
    assert fresh.evaluate(SORTS).count("descending") == 1
    assert "test error, descending" in fresh.evaluate("document.querySelector('.status-sort').textContent")
    fresh.click("#study-toy ~ section thead th:nth-child(4) button")
    assert fresh.evaluate(COLUMN)[-1] == "mlp", "a missing value is last"
    fresh.click("#study-toy ~ section thead th:nth-child(4) button")
    assert fresh.evaluate(COLUMN)[-1] == "mlp"


def test_images_step_by_click_and_by_key(fresh):
    status = "document.querySelector('.viewer .status').textContent"
    pixels = "document.querySelector('.viewer figure:last-child img').src"
    first, before = fresh.evaluate(status), fresh.evaluate(pixels)
    assert first == "Image 1 (image 0): node linear, edge linear: 0 of 72 pixels wrong (0.00%)"
    assert fresh.evaluate("document.querySelectorAll('.viewer img').length") == 5
    fresh.click(".viewer button[aria-label='next image']")
    assert fresh.evaluate(status).startswith("Image 2 (image 1): node linear")
    assert fresh.evaluate(pixels) != before
    fresh.click(".viewer button[aria-label='next method']")
    assert "node boosting, edge boosting: 4 of 72" in fresh.evaluate(status)
    assert fresh.evaluate("document.activeElement.ariaLabel") == "next method", "the focus stays"
    fresh.press("ArrowLeft")
    assert fresh.evaluate(status).startswith("Image 1 (image 0): node boosting")
    fresh.press("ArrowUp")
    assert fresh.evaluate(status) == first
    fresh.press("ArrowUp")
    assert "node mlp" in fresh.evaluate(status), "stepping goes round"
    assert fresh.evaluate("document.querySelector('.viewer .status').ariaLive") == "polite"
    assert "by node mlp" in fresh.evaluate("document.querySelector('.viewer figure:last-child img').alt")


def test_everything_is_reached_by_the_tab_key(fresh):
    seen = set()
    for _ in range(40):
        fresh.press("Tab")
        seen.add(fresh.evaluate("document.activeElement.ariaLabel || document.activeElement.textContent"))
    assert {"Skip to the results", "toy", "test error", "next image", "next method", "toy: All runs"} <= seen


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390], ids=["desk", "phone"])
def test_it_fits_phones_and_follows_the_colour_scheme(fresh, width, dark, tmp_path):
    from matplotlib.image import imread

    fresh.look(width, 800, dark=dark, phone=width < 500)
    assert fresh.evaluate("document.documentElement.scrollWidth <= innerWidth")
    fresh.screenshot(tmp_path / "page.png")
    pixels = imread(tmp_path / "page.png")[..., :3]
    assert pixels.shape[0] > 800
    assert (np.median(pixels) < 0.2) == dark
    assert pixels.std() > 0.05
