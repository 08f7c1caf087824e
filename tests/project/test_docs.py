"""Every Python example of the documentation runs as printed, page by page, in an empty folder."""

import ast
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import potentia as pt
from own_data import make_images
from potentia import ConvergenceWarning

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(p for p in DOCS.rglob("*.md") if "```python" in p.read_text() and "_build" not in p.parts)

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
    if page.stem == "index":
        make_images(tmp_path)  # photos and masks
    names = {"__name__": "example"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # examples are cut short
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S):
            exec(compile(block, str(page), "exec"), names)
    assert "nan" not in capsys.readouterr().out


def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "recipes" / "image.html").exists()
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
