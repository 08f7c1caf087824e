"""The parts of a study on the report page: tables, learning curves, learned functions, images, run facts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._curves import Line, history_lines, score_lines
from .._html import Markup, tag
from .charts import Axis, chart, make_axis
from .image_panels import viewer_data, with_images
from .label_maps import calibration_charts, class_tables, confusion_tables
from .lead import image_strip, result_sentence
from .runs import StudyResults, names, runs_table, study_facts
from .tables import Shaded, html_table, scrolled, shaded_table


def study_section(study: StudyResults) -> Markup:
    """Everything the rows allow, under one heading."""
    parts = [("Results", tables), ("Images", images), ("Classes", class_tables), ("Confusion", confusion_tables),
             ("Calibration", calibration_charts), ("Learning curves", curves), ("Learned functions", functions),
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
    return [scrolled(html_table(t), f"{study.name}: {t.title}") for t in own]


def curves(study: StudyResults) -> list[Markup]:
    """A chart per run on common axes: errors if tracked, else the objective."""
    named = [run for run in study.runs if run[1].get("history")]
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
    for name, row in study.runs:
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
    for name, row in study.runs:
        if "couplings" in row:
            weights = np.array(row["couplings"])
            largest = max(float(np.abs(weights).max()), 1e-12)
            cells = [
                [Shaded(f"{w:.2f}" if w else "", w > 0, abs(w) / largest) for w in line] for line in weights
            ]
            found.append(scrolled(shaded_table(name, row["labels"], cells), f"label couplings, {name}"))
    note = "Weight of a column's label (present +1, absent −1) in the score of a row's label."
    return [tag("p", note), *found] if found else []


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
