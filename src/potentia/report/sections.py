"""The parts of a study on the report page: tables, learning curves, learned functions, images, run facts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._curves import Line, history_lines, score_lines
from .._html import Markup, tag
from .charts import Axis, chart, make_axis
from .image_panels import Original, viewer_data, with_images
from .label_maps import calibration_charts, class_tables, confusion_tables
from .lead import image_strip, result_sentence
from .rows import Row
from .runs import names, runs_table, study_facts
from .tables import Table, html_table


class StudyResults(NamedTuple):
    """Rows of one study: its name, its identifier on the page, its rows, tables beside that of all runs, and what the
    images of each row show.
    """

    name: str
    anchor: str
    rows: Sequence[Row]
    tables: Sequence[Table] = ()
    originals: Sequence[Sequence[Original]] = ()


def study_section(study: StudyResults) -> Markup:
    """Everything the rows allow, under one heading."""
    parts = [("Results", tables), ("Images", images), ("Classes", classes), ("Confusion", confusion),
             ("Calibration", calibration), ("Learning curves", curves), ("Learned functions", functions),
             ("Label couplings", couplings), ("Run facts", facts)]  # fmt: skip
    found = lead(study)
    for title, make in parts:
        content = make(study)
        if content:
            head = tag("h3", title, id=f"{study.anchor}--{title.lower().replace(' ', '-')}")
            found.append(tag("section", head, *content))
    heading = tag("h2", study.name, id=study.anchor)
    return tag("section", heading, *found, class_="study", aria_labelledby=study.anchor)


def lead(study: StudyResults) -> list[Markup]:
    """The result in one sentence, and one image by all methods side by side."""
    sentence, strip = result_sentence(study.rows), image_strip(study.rows, study.originals)
    return ([tag("p", sentence, class_="lead")] if sentence else []) + ([strip] if strip else [])


def tables(study: StudyResults) -> list[Markup]:
    """The study's own tables, then all runs."""
    own = [*study.tables, runs_table("All runs", study.rows)]
    return [
        tag(
            "div",
            html_table(t),
            class_="scroll",
            role="region",
            tabindex="0",
            aria_label=f"{study.name}: {t.title}",
        )
        for t in own
    ]


def curves(study: StudyResults) -> list[Markup]:
    """A chart per run on common axes: errors if tracked, else the objective."""
    named = [run for run in zip(names(study.rows), study.rows, strict=True) if run[1].get("history")]
    lines = [(name, history_lines(row["history"])) for name, row in named]
    errors = [run for run in lines if run[1]]
    objectives = [
        (name, history_lines(row["history"], objective=True))
        for (name, row), (_, tracked) in zip(named, lines, strict=True)
        if not tracked
    ]
    legend = _legend(list({line.name: line for _, tracked in errors for line in tracked}.values()))
    found = [legend, _charts(errors, "iteration", "error", shared=True)] if errors else []
    if objectives:
        found += [tag("p", "Objective of runs whose errors were not tracked:")] if errors else []
        found += [_charts(objectives, "iteration", "objective", shared=False)]
    return found


def _charts(runs: Sequence[tuple[str, Sequence[Line]]], x_name: str, y_name: str, shared: bool) -> Markup:
    """Charts side by side, with common axes if shared."""
    common = _axes([line for _, lines in runs for line in lines]) if shared else None
    figures = []
    for name, lines in runs:
        x, y = common or _axes(lines)
        ends = [f"{line.name} {line.y[0]:.4g} at first, {line.y[-1]:.4g} in the end" for line in lines]
        drawn = chart(lines, x, y, x_name, y_name, name, "; ".join(ends))
        figures.append(tag("figure", tag("figcaption", name), drawn))
    return tag("div", *figures, class_="charts")


def _axes(lines: Sequence[Line]) -> tuple[Axis, Axis]:
    x, y = ([v for line in lines for v in getattr(line, axis)] for axis in ("x", "y"))
    return make_axis(x), make_axis(y, log=True)


def _legend(lines: Sequence[Line]) -> Markup:
    items = [
        tag("li", line.name, class_=f"c{line.colour}{' dashed' if line.dashed else ''}") for line in lines
    ]
    return tag("ul", *items, class_="legend", aria_label="legend")


def functions(study: StudyResults) -> list[Markup]:
    """Scores as functions of the one feature they see, a chart per run and kind."""
    found = []
    for name, row in zip(names(study.rows), study.rows, strict=True):
        for kind, curve in row.get("curves", {}).items():
            lines = score_lines(curve["x"], curve["f"], kind)
            values = [v for line in lines for v in line.y]
            if not any(values):
                continue
            text = "; ".join(f"{line.name} from {line.y[0]:.3g} to {line.y[-1]:.3g}" for line in lines)
            title = f"{kind} scores, {name}"
            axes = make_axis(curve["x"]), make_axis(values)
            drawn = chart(lines, *axes, "feature", "score", title, text)
            found.append(tag("figure", tag("figcaption", title), drawn, _legend(lines)))
    return [tag("div", *found, class_="charts")] if found else []


def couplings(study: StudyResults) -> list[Markup]:
    """Weights of labels in each other's scores, a coloured table per run."""
    found = []
    for name, row in zip(names(study.rows), study.rows, strict=True):
        if "couplings" in row:
            table = _matrix(name, np.array(row["couplings"]), row["labels"])
            label = f"label couplings, {name}"
            found.append(tag("div", table, class_="scroll", role="region", tabindex="0", aria_label=label))
    note = "Weight of a column's label (present +1, absent −1) in the score of a row's label."
    return [tag("p", note), *found] if found else []


def _matrix(name: str, weights: np.ndarray, labels: Sequence[str]) -> Markup:
    largest = max(float(np.abs(weights).max()), 1e-12)
    lines = []
    for label, line in zip(labels, weights, strict=True):
        cells = [
            tag("td", f"{w:.2f}" if w else "", class_="plus" if w > 0 else "minus",
                style=f"--share: {abs(w) / largest * 60:.0f}%")
            for w in line
        ]  # fmt: skip
        lines.append(tag("tr", tag("th", label, scope="row"), *cells))
    head = tag("tr", tag("td"), *(tag("th", label, scope="col") for label in labels))
    return tag(
        "table", tag("caption", tag("span", name)), tag("thead", head), tag("tbody", *lines), class_="matrix"
    )


def classes(study: StudyResults) -> list[Markup]:
    """Scores of classes."""
    return class_tables(names(study.rows), study.rows)


def confusion(study: StudyResults) -> list[Markup]:
    """Confusion matrices."""
    return confusion_tables(names(study.rows), study.rows)


def calibration(study: StudyResults) -> list[Markup]:
    """Reliability curves."""
    return calibration_charts(names(study.rows), study.rows)


def images(study: StudyResults) -> list[Markup]:
    """A viewer that steps through images and methods; its data is JSON that the page's script reads."""
    kept = with_images(study.rows)
    methods, own = names(study.rows), [study.rows[k]["pictures"] for k in kept]
    seen = [study.originals[k] if study.originals else () for k in kept]
    data = viewer_data(own, [methods[k] for k in kept], seen) if kept else None
    if data is None:
        return []
    text = json.dumps(data).replace("<", "\\u003c")
    script = Markup(f'<script type="application/json">{text}</script>')
    empty = tag("p", "The images need JavaScript.", class_="status", role="status", aria_live="polite")
    return [tag("div", script, empty, class_="viewer", data_label=f"Images of {study.name}")]


def facts(study: StudyResults) -> list[Markup]:
    """Versions, seeds, time, convergence."""
    pairs: Mapping[str, Any] = study_facts(study.rows)
    return [tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs.items()))]
