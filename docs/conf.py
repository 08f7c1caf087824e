"""Sphinx configuration; `make docs` builds the site with warnings as errors."""

import inspect
import logging
import os
import re
from functools import cache
from pathlib import Path

from docutils import nodes
from sphinx.ext import autosummary

from potentia import __version__

logging.getLogger("potentia").setLevel(logging.WARNING)  # Sphinx would print how fits of the gallery progress
os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "error")
autosummary.WELL_KNOWN_ABBREVIATIONS += ("Eq.", "sec.")  # which end no sentence
project = "potentia"
author = copyright = "the potentia developers"
release = version = __version__
extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx.ext.mathjax",
    "sphinx_copybutton", "sphinx_gallery.gen_gallery",
]  # fmt: skip
# Links to the references of other libraries, whose inventories come from the network: `make docs INVENTORIES=1`.
if os.environ.get("INVENTORIES"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None), "numpy": ("https://numpy.org/doc/stable", None),
        "scipy": ("https://docs.scipy.org/doc/scipy", None), "sklearn": ("https://scikit-learn.org/stable", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
        "networkx": ("https://networkx.org/documentation/stable", None),
    }  # fmt: skip
# MathJax from `make mathjax`, so that pages show formulas without a network; without it, browsers fetch it.
if (Path(__file__).parent / "_static/mathjax/tex-chtml.js").exists():
    mathjax_path = "mathjax/tex-chtml.js"
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"potentia {release}"
html_static_path = ["_static"]
html_css_files = ["phone.css"]
html_js_files = ["tables.js"]
exclude_patterns = ["_build"]
# the gallery's programs run when the site is built, but not with -D plot_gallery=0
sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery", "gallery_dirs": "gallery", "filename_pattern": "plot_",
    "download_all_examples": False, "show_signature": False, "min_reported_time": 1e6, "write_computation_times": False,
    "within_subsection_order": "FileNameSortKey",
}  # fmt: skip
templates_path = ["_templates"]
copybutton_exclude = ".linenos, .gp, .go"
# names in docstrings are code; attributes are a compact list, as parameters are
default_role = "code"
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
nitpicky = False

FIT = "fit, predict, predict_proba, score"
FORMAT = "read, write"
CHAIN = "fit, predict, predict_marginals, k_best, score, save, load"
#: Members on the reference pages of classes (others show their options only) and of modules.
SHOWN = {
    "Graph": "", "Example": "", "Result": "", "extend.Union": "", "app.segment.Segmentation": "",
    "CRF": "fit, predict, predict_marginals, calibrate, predict_set, infer, score, theta, save, load",
    "ChainCRF": f"{CHAIN}, partial_fit, predict_pairs, predict_spans, log_probability, calibrate, predict_set, "
    "predict_span_sets, from_crfsuite, from_wapiti, from_crfpp, to_crfsuite, to_wapiti",
    "SegmentCRF": CHAIN, "SequenceLabeller": FIT, "NodeClassifier": FIT, "ImageSegmenter": f"{FIT}, save",
    "LMSBN": "fit, predict, calibrate, predict_set, search, labelling_loss, log_loss", "LMBM": "fit, predict, search",
    "LabelNetwork": "fit, predict, predict_proba, search, calibrate, predict_set",
    "multilabel.IndependentClassifiers": FIT.replace(", score", ""),
    "extend.Inference": "infer", "extend.Potential": "fit, scores, start", "DenseGaussian": "with_weight",
    **dict.fromkeys(["TRW", "LoopyBP", "Smoothed", "Kikuchi", "MeanField", "LinearProgram", "MAP", "Anytime"], "infer"),
    "Exact": "infer, sample, k_best", "Gibbs": "infer, sample",
    "features": "", "features.datasets": "", "metrics": "", "gradients": "", "gradients.losses": "",
    "compat.sklearn_crfsuite.metrics": "", "conformal": "split_threshold, missed_shares, risk_threshold",
    "app.plot": "history, marginals, labels, potentials, graph", "compat.sklearn_crfsuite": "CRF",
    "compat.pycrfsuite": "Trainer, Tagger, ItemSequence",
    "potentials.factors": "AtMostOne, ExactlyOne, Or, And, Implies, Parity, Cardinality, PnPotts, AllDifferent",
    "uai": "read, write, read_evidence, read_query, read_result, write_result, UaiResult",
    **dict.fromkeys([f"graph.formats.{name}" for name in ("wcsp", "cfn", "bif", "fg")], FORMAT),
}  # fmt: skip
autosummary_context = {"shown": {f"potentia.{name}": members for name, members in SHOWN.items()}}


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


def inherited_options(app, what, name, obj, options, lines):
    """A class page also describes the options whose text stands with a base class, and calls options parameters."""
    if what != "class" or not name.startswith("potentia."):
        return
    try:
        options = inspect.signature(obj).parameters
        missing = [p for p in options if not re.search(rf"\b{p}\b", "\n".join(lines))]
    except ValueError:
        return
    # paragraphs such as "rho: clique appearance probabilities ..." become a list of parameters
    paragraphs = "\n".join(lines).split("\n\n")
    about = [p for p in paragraphs if re.match(rf"({'|'.join(options)}): ", p)] if options else []
    if about and not any(line in ("Args:", "Attributes:") for line in lines):
        place = paragraphs.index(about[0])
        listed = "\n".join("    " + p.replace("\n", "\n        ") for p in about)
        paragraphs = [p for p in paragraphs if p not in about]
        paragraphs.insert(place, "Args:\n" + listed)
        lines[:] = "\n\n".join(paragraphs).split("\n")
    for base in obj.__mro__[1:]:
        text = inspect.cleandoc(vars(base).get("__doc__") or "")
        if base.__module__.startswith("potentia.") and any(re.search(rf"\b{p}\b", text) for p in missing):
            place = next((k for k, line in enumerate(lines) if line.startswith("Example:")), len(lines))
            lines[place:place] = ["", *re.split(r"\n(?=Example:)", text)[0].split("\n"), ""]
            missing = [p for p in missing if not re.search(rf"\b{p}\b", text)]
    for k, line in enumerate(lines[:-1]):
        if line == "Attributes:" and re.match(r"\W*(\w*)", lines[k + 1])[1] in options:
            lines[k] = "Args:"


DOCS = Path(__file__).parent


@cache
def texts():
    """{page: text} of the pages and programs that a class's page may refer to, the most practical first."""
    programs = {f"gallery/{p.stem}": p.read_text() for p in sorted(DOCS.glob("../examples/gallery/plot_*.py"))}
    pages = [*sorted(DOCS.glob("recipes/*.md")), *sorted(DOCS.glob("*.md"))]
    left_out = {"api", "index", "reproduction", "competition", "features", "roadmap", "project"}
    return programs | {
        p.relative_to(DOCS).with_suffix("").as_posix(): p.read_text() for p in pages if p.stem not in left_out
    }


def see_also(app, what, name, obj, options, lines):
    """A class page ends with the other names of its section of `api.md`, and the pages that use the class."""
    if what not in ("class", "exception") or not name.startswith("potentia."):
        return
    sections = re.split(r"^## ", (DOCS / "api.md").read_text(), flags=re.M)
    groups = (re.findall(r"~(potentia\.[\w.]+)", section) for section in sections)
    same = next((group for group in groups if name in group), [])
    others = [f":py:obj:`~{other}`" for other in same if other != name]
    used = [page for page, text in texts().items() if re.search(rf"\bpt\.(\w+\.)*{name.rsplit('.')[-1]}\b", text)]
    if others:
        lines += ["", f"See also: {', '.join(others)}."]
    if used:
        lines += ["", f"Used in: {', '.join(f':doc:`/{page}`' for page in used[:6])}."]


def skip_member(app, what, name, obj, skip, options):
    """Only the members that `SHOWN` lists, and nothing that scikit-learn adds to every estimator."""
    listed = getattr(options, "members", None) or options.get("members")
    left_out = isinstance(listed, (list, set, tuple)) and name not in listed
    return True if left_out or re.fullmatch("set_.*_request|get_metadata_routing", name) else None


def link_names(app, doctree, page):
    """Make `pt.TRW` and the like in prose links to their reference pages."""
    objects = app.env.get_domain("py").objects
    for node in list(doctree.findall(nodes.literal)):
        name = "potentia." + node.astext().removeprefix("pt.").split("(")[0]
        place = objects.get(name)
        if not node.astext().startswith("pt.") or place is None or isinstance(node.parent, nodes.reference):
            continue
        uri = app.builder.get_relative_uri(page, place.docname) + "#" + place.node_id
        node.replace_self(nodes.reference("", "", node.deepcopy(), internal=True, refuri=uri))


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", inherited_options, priority=50)
    app.connect("autodoc-process-docstring", see_also, priority=900)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("doctree-resolved", link_names)
    app.connect("autodoc-process-docstring", plain_text, priority=100)
