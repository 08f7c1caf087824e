"""Phrases that read as translated stay out of pages, messages, help texts, docstrings and comments."""

import ast
import inspect
import io
import pydoc
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: What not to write: what to write instead.
BANNED = {
    r"\bpictures?\b": "image, figure or plot",
    r"\banew\b|\bafresh\b": "again; rebuilt, restarted, rewritten",
    r"there and back": "forward-backward, to the CPU and back",
    r"\b(go|goes|going|went) on (from|when|after)\b": "resume, continue",
    r"\bof (one's|your|its|their|his) own\b|\bone's own\b": "custom, separate",
    r"hang together": "consistent",
    r"\b(options|state|settings) of now\b": "the current options",
    r"\bso many\b": "this many, `n`",
    r"\b(upper|lower) bounds? of\b": "bound on",
    r"\b(is|are) wanted\b|\bwants to know\b": "needed, requested",
    r"\bnone such\b": "not defined",
    r"\bNone where\b": "None if",
    r"\bin the long run\b|\breferee\b": "asymptotically; an independent check",
    r"\bstrangers\b": "modules that never import each other",
    r"\bneeds convergence and no memory\b": "requires converged inference; stores no messages",
    r"one indicator per text": "one-hot encoded",
    r"\bWhat there is\b|^#+ Seeing\b|^#+ Ten lines\b": "Features, Visualisation, in ten lines",
    r"\bat hand\b|\bin one go\b|\bby and by\b": "available, in memory; at once; gradually",
    r"\bmessages rest\b": "message passing stops",
}
ERRORS = {"PotentiaError", "InfeasibleError", "WidthError"}
PAGES = [p for p in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")) if "_build" not in p.parts]
#: Words of saved rows and of file formats, not prose.
KEYS = {'"pictures"'}


def _prose(path):
    """(line number, text) of comments and strings of a module, or of every line of a page."""
    text = path.read_text()
    if path.suffix != ".py":
        yield from enumerate((re.sub(r"`[^`]*`", "`code`", line) for line in text.splitlines()), 1)
        return
    kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds and token.string not in KEYS:
            for k, line in enumerate(token.string.splitlines()):
                yield token.start[0] + k, line


def _found(paths):
    rules = [(re.compile(pattern, re.I), instead) for pattern, instead in BANNED.items()]
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:90]!r}; write: {instead}"
        for path in paths
        for number, line in _prose(path)
        for rule, instead in rules
        if rule.search(line)
    ]


def test_pages_are_plain_technical_english():
    assert not _found(PAGES)


ASCII_FORMULA = re.compile(
    r"\b(?:sum|prod|min|max|argmin|argmax)_[a-zA-Z]{1,2}\b|\w\^[\w{(]|\b(?:sqrt|exp|O)\([-A-Za-z]|\blog sum exp\b"
    r"|\bsum over \w+ of\b|(?<![\w`/.])[A-Za-z]_[a-z\d]\b|\|\w\||\blog\("
)


def _formulas(name, text, typeset):
    """Where a text has a formula outside what is typeset or code."""
    text = re.sub(typeset, lambda m: "\n" * m[0].count("\n"), text, flags=re.S)
    lines = enumerate(text.splitlines(), 1)
    return [f"{name}:{number}: {line}" for number, line in lines if ASCII_FORMULA.search(line)]


def test_formulas_on_pages_are_typeset():
    typeset = r"```.*?```|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]*\$"
    pages = (p for p in PAGES if p.parts[-2] != ROOT.name)
    assert not [line for p in pages for line in _formulas(p.name, p.read_text(), typeset)]


def _public_docstrings():
    """(name, docstring) of what the reference page shows."""
    listed = re.findall(r"potentia\.([\w.]+)", (ROOT / "docs" / "api.md").read_text())
    for name in dict.fromkeys(listed):
        shown = pydoc.locate(f"potentia.{name}")
        yield name, inspect.getdoc(shown) or ""
        if inspect.isclass(shown):
            for member, value in vars(shown).items():
                function = getattr(value, "__func__", getattr(value, "fget", getattr(value, "func", value)))
                if not member.startswith("_") and inspect.isroutine(function):
                    yield f"{name}.{member}", inspect.getdoc(function) or ""


def test_formulas_in_the_reference_are_typeset():
    pytest.importorskip("torch")
    typeset = r":math:`[^`]*`|``.*?``|`[^`]*`|\.\. math::.*?(?=\n\S|\Z)"
    found = list(_public_docstrings())
    assert len(found) > 200
    assert not [line for name, text in found for line in _formulas(name, text, typeset)]


@pytest.mark.parametrize("folder", ["src", "examples", "studies"])
def test_docstrings_messages_and_comments_are_plain_technical_english(folder):
    modules = sorted((ROOT / folder).rglob("*.py"))
    assert not _found(modules)


def test_error_messages_end_with_a_full_stop():
    open_ended = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") in ERRORS and node.args):
                continue
            given = node.args[0]
            last = given.values[-1] if isinstance(given, ast.JoinedStr) else given
            if isinstance(last, ast.Constant) and not str(last.value).endswith("."):
                open_ended.append(f"{path.name}:{node.lineno}: {last.value}")
    assert not open_ended


def test_the_rules_find_what_they_ban():
    phrases = ["made anew", "of one's own", "there and back", "upper bound of log Z", "goes on from", "pictures"]
    for phrase in phrases:
        assert any(re.search(pattern, phrase, re.I) for pattern in BANNED), phrase
