"""Sphinx configuration; `make docs` builds the site with warnings as errors."""

from potentia import __version__

project = "potentia"
author = "the potentia developers"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"potentia {release}"
html_static_path = ["_static"]
html_css_files = ["phone.css"]
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
nitpicky = False


def plain_text(app, what, name, obj, options, lines):
    """Docstrings are plain text with formulas: |w|^2 and stars mean themselves."""
    lines[:] = [line.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*") for line in lines]


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", plain_text, priority=100)
