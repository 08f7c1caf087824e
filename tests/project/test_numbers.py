"""Numbers in the text of README and documentation: measurements come from stored rows, limits from the code."""

import re
from pathlib import Path

import pytest

import potentia as pt
from potentia.app import image_pipeline, pixels, sequences, tables
from potentia.base.files import DEFAULT_LIMIT
from potentia.base.saving import _ALIGNED
from potentia.gradients.losses import LOSSES
from potentia.graph.tables import _FEW
from potentia.inference import forest, tree_weights
from potentia.inference.map import moves, task
from potentia.learn import chain_data, data, part
from potentia.learn.backends import distributed, worker
from potentia_studies import values
from potentia_studies.document import fill

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts)]

MADE = re.compile(r"<!-- (?:rows|bench|headline|competition|value): .*?<!-- end -->", re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`]*`|\$[^$]*\$", re.DOTALL)
#: A cell of a table written by hand that is nothing but a measurement.
MEASURED = re.compile(r"\d*\.\d+|\d[\d,]*(\.\d+)? ?×")
#: A number with a unit of time, memory or speed, or one that looks like an error or a score.
QUANTITY = re.compile(
    r"\d ?(?:ns|us|µs|ms|s|seconds?|minutes?|hours?|[kMGT]i?B|bytes|%|million|times (?:as|the|faster|slower))(?!\w)"
    r"|(?<![\w.])0?\.\d{3,}(?![\w.])"
)

MIB = 2**20
#: Bytes of a variable of a binary grid with two edges: table entries, and features as in `benchmarks/cluster.py`.
MESSAGES, FEATURES = part.ENTRY_BYTES * (2 + 2 * 4), 4 * (20 + 2 * 8)
LARGE = 1e9 * (MESSAGES + FEATURES)

#: By page, phrases with a number that is set in the code, not measured.
LIMITS = {
    "features.md": [f"with {len(LOSSES)} losses"],
    "architecture.md": [
        f"about {data.PART_ENTRIES // 10**6} million table entries",
        f"span less than {forest._SAFE_RANGE:.0f}",
    ],
    "choosing.md": [
        f"in up to {tree_weights._STEPS} steps",
        f"up to {pt.IteratedLogistic().limit_for('direct')} steps",
        f"up to {pt.IteratedLogistic().limit_for('alternating')} iterations",
        f"below {forest._SAFE_RANGE:.0f} counting numbers",
        f"about {part.ENTRY_BYTES} bytes per table entry and {part.LAYOUT_BYTES} bytes per variable",
    ],
    # the competition's own limits, and what it printed
    "competition.md": [
        "gave every solver 20 seconds, one core and 8 GB",
        "a limit of 20 s of CPU time and of 8 GB",
        "elimination solves within 16 GB",
    ],
    "densecrf.md": [f"Up to {_FEW} variables"],
    "extending.md": [f"about {data.PART_ENTRIES // 10**6} million table entries"],
    "files.md": [f"multiples of {_ALIGNED} bytes", f"up to {DEFAULT_LIMIT // MIB} MiB"],
    "map.md": [
        f"at least {100 * moves._REGULAR:.0f} %",
        f"a relative {task._ROUNDING:.0e}".replace("e-0", "e-"),
    ],
    "own-data.md": [
        "averaged over {:.0f} and {:.0f} pixels".format(*pixels._SCALES),
        f"overlap by {image_pipeline._OVERLAP[2]} pixels a side",
    ],
    "reproduction.md": [
        "reduced to 20 % of their sides",
        "least 1 % of the drawn rows",
        "out of 3.5 million",
        "with perturbation at 0.001",
        "The band is that of 99 % of all splits",
    ],
    "scaling.md": [
        f"about {data.PART_ENTRIES // 10**6} million table entries",
        f"about {part.ENTRY_BYTES} bytes per table entry",
        f"layouts {part.LAYOUT_BYTES} bytes per variable",
        f"an optimiser {8 * data._VECTORS} bytes per parameter",
        "the limit to 16 GB",  # of `POTENTIA_MEMORY=16`
        f"into parts of {chain_data.PART_TOKENS:,} tokens",
        f"A file above {sequences.SPAN_BYTES // MIB} MiB",
        f"in pieces of {tables.PIECE_ROWS:,}",
        f"the log exceeds {distributed.MAX_LOG_BYTES // MIB} MiB",
        f"above {100 * worker._MAX_SHARE:.0f} % of its memory limit",
        f"takes {FEATURES / 1e3:.2f} kB of features and about {MESSAGES / 1e3:.2f} kB of messages",
        f"about {part.LAYOUT_BYTES / 1e3:.1f} kB per variable of one shard",
        f"keeps up to {worker._MALLOC_OPTIONS[-1] // MIB} MiB",
        f"{LARGE / 1e12:.2f} TB of features and messages",
        f"{values._MACHINES} machines",
        f"with {LARGE / 1e9 / values._MACHINES:.0f} GB of parts each",
        f"on {values._CORES}",
    ],
}  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_measurements_in_sentences_are_made_from_rows(page):
    """What remains without parts made from rows, code and known limits has no quantity and no score."""
    text = MADE.sub("made", page.read_text())
    flat = " ".join(text.split())
    for phrase in LIMITS.get(page.name, ()):
        assert phrase in flat, f"{page.name} does not say {phrase!r}, which is what the code does."
        flat = flat.replace(phrase, "limit")
    cells = [cell.strip() for line in text.splitlines() if line.startswith("|") for cell in line.split("|")]
    assert not [cell for cell in cells if MEASURED.fullmatch(cell)]
    found = list(QUANTITY.finditer(CODE.sub("code", flat)))
    assert not found, [m.string[max(0, m.start() - 60) : m.end()] for m in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_numbers_made_from_rows_never_begin_a_line(page):
    """A comment at the beginning of a line ends the paragraph."""
    assert not re.search(r"^<!-- value:", page.read_text(), flags=re.M)


def test_a_number_changed_by_hand_is_found():
    text = (ROOT / "README.md").read_text()
    assert fill(text, ROOT) == text
    changed = re.sub(r"(<!-- value: demo -->)\d+", r"\g<1>7", text)
    assert changed != text
    assert fill(changed, ROOT) == text


def test_every_named_value_is_used():
    used = set(re.findall(r"<!-- value: (.*?) -->", "".join(page.read_text() for page in PAGES)))
    assert set(values.VALUES) <= used
