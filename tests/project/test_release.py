"""What a release says of itself agrees: version, changelog, citation, and what `make release` tries."""

import ast
import re
from pathlib import Path

import potentia as pt

ROOT = Path(__file__).parents[2]


def test_changelog_and_citation_name_the_version():
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[1] == pt.__version__
    assert re.search(r"^version: (\S+)", (ROOT / "CITATION.cff").read_text(), flags=re.M)[1] == pt.__version__


def test_the_changelog_counts_the_gallery():
    programs = list((ROOT / "examples" / "gallery").glob("plot_*.py"))
    assert f"a gallery of {len(programs)} short programs" in (ROOT / "CHANGELOG.md").read_text()


def test_release_builds_checks_and_tries_but_uploads_nothing():
    rule = re.search(r"^release:.*?(?=^\S)", (ROOT / "Makefile").read_text(), flags=re.M | re.S)[0]
    steps = [line.strip() for line in rule.splitlines()[1:] if line.strip()]
    assert any("-m build" in step for step in steps)
    assert any("twine check --strict" in step for step in steps)
    assert any("tests/release/smoke.py" in step for step in steps)
    assert not [step for step in steps if "upload" in step and not step.startswith("@echo")]


def test_what_is_tried_imports_only_what_the_wheel_needs():
    tree = ast.parse((ROOT / "tests" / "release" / "smoke.py").read_text())
    names = {n.name for node in ast.walk(tree) if isinstance(node, ast.Import) for n in node.names}
    assert names <= {"subprocess", "sys", "numpy", "potentia"}
