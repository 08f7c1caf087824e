"""Sphinx configuration; `make docs` builds the site with warnings as errors."""

import re

from potentia import __version__

project = "potentia"
author = copyright = "the potentia developers"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"potentia {release}"
html_static_path = ["_static"]
html_css_files = ["phone.css"]
html_js_files = ["tables.js"]
exclude_patterns = ["_build"]
# names in docstrings are code; attributes are a compact list, as parameters are
default_role = "code"
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
nitpicky = False


MATH_ROLE = re.compile(r"(:math:`[^`]*`)")


def plain_text(app, what, name, obj, options, lines):
    """Docstrings are plain text, in which bars and stars mean themselves, except for formulas, examples and code."""
    formula = example = False
    for number, line in enumerate(lines):
        # a directive and the indented lines below it
        formula = line.lstrip().startswith(".. math::") or (formula and (not line or line[0] == " "))
        # a prompt and the lines up to the next empty one
        example = line.lstrip().startswith(">>>") or (example and bool(line))
        if not (formula or example):
            parts = MATH_ROLE.split(line)
            lines[number] = "".join(part if k % 2 else _escaped(part) for k, part in enumerate(parts))


def _escaped(text):
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*")


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", plain_text, priority=100)
