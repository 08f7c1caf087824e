"""The parts of a study on the report page: tables, learning curves, learned functions, pictures, run facts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._html import Markup, tag
from .charts import Axis, Line, chart, make_axis
from .pictures import Original, viewer_data
from .runs import Row, names, runs_table, study_facts
from .tables import Table, html_table

#: What a learning curve shows of the history where it is there: key, name, colour, dashed.
_ERRORS = (("validation_error", "test", 0, False), ("train_error", "training", 1, True))


class Study(NamedTuple):
    """Rows of one study: its name, its identifier on the page, its rows, tables beside that of all runs, and what the
    pictures of each row show.
    """

    name: str
    anchor: str
    rows: Sequence[Row]
    tables: Sequence[Table] = ()
    originals: Sequence[Sequence[Original]] = ()


def study_section(study: Study) -> Markup:
    """Everything the rows allow, under one heading."""
    parts = [("Results", tables), ("Learning curves", curves), ("Learned functions", functions),
             ("Label couplings", couplings), ("Pictures", pictures), ("Run facts", facts)]  # fmt: skip
    found = []
    for title, make in parts:
        content = make(study)
        if content:
            head = tag("h3", title, id=f"{study.anchor}--{title.lower().replace(' ', '-')}")
            found.append(tag("section", head, *content))
    heading = tag("h2", study.name, id=study.anchor)
    return tag("section", heading, *found, class_="study", aria_labelledby=study.anchor)


def tables(study: Study) -> list[Markup]:
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


def curves(study: Study) -> list[Markup]:
    """A chart per run on common axes: errors if tracked, else the objective."""
    named = [
        (name, row["history"])
        for name, row in zip(names(study.rows), study.rows, strict=True)
        if row.get("history")
    ]
    tracked = [(name, [h for h in history if "train_error" in h]) for name, history in named]
    with_errors = [(name, history) for name, history in tracked if history]
    rest = [(name, history) for name, history in named if not any("train_error" in h for h in history)]
    found = []
    if with_errors:
        lines = [(name, _error_lines(history)) for name, history in with_errors]
        found += [_legend([(text, colour, dashed) for _, text, colour, dashed in _ERRORS])]
        found += [_charts(lines, "iteration", "error", shared=True)]
    if rest:
        objective = [(name, [_line(h, "objective", "objective", 2, False)]) for name, h in rest]
        found += [tag("p", "Objective of runs whose errors were not tracked:")] if with_errors else []
        found += [_charts(objective, "iteration", "objective", shared=False)]
    return found


def _error_lines(history: Sequence[Row]) -> list[Line]:
    return [_line(history, *how) for how in _ERRORS if how[0] in history[0]]


def _line(history: Sequence[Row], key: str, text: str, colour: int, dashed: bool) -> Line:
    points = [h for h in history if key in h]
    return Line(text, [h["iteration"] for h in points], [h[key] for h in points], colour, dashed)


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


def _legend(entries: Sequence[tuple[str, int, bool]]) -> Markup:
    items = [
        tag("li", text, class_=f"c{colour}{' dashed' if dashed else ''}") for text, colour, dashed in entries
    ]
    return tag("ul", *items, class_="legend", aria_label="legend")


def functions(study: Study) -> list[Markup]:
    """Scores as functions of the one feature they see, a chart per run and kind; only differences matter."""
    found = []
    for name, row in zip(names(study.rows), study.rows, strict=True):
        for kind, curve in row.get("curves", {}).items():
            f = np.array(curve["f"])
            f = f - f.mean(axis=1, keepdims=True)
            if not np.any(f):
                continue
            lines = [
                Line(text, curve["x"], f[:, k].tolist(), k)
                for k, text in enumerate(_configurations(f.shape[1], kind))
            ]
            x, y = make_axis(curve["x"]), make_axis(f.ravel().tolist())
            text = "; ".join(f"{line.name} from {line.y[0]:.3g} to {line.y[-1]:.3g}" for line in lines)
            title = f"{kind} scores, {name}"
            drawn = chart(lines, x, y, "feature", "score", title, text)
            legend = _legend([(line.name, line.colour, False) for line in lines])
            found.append(tag("figure", tag("figcaption", title), drawn, legend))
    return [tag("div", *found, class_="charts")] if found else []


def _configurations(n: int, kind: str) -> list[str]:
    """Names of a table's entries: states, or pairs of them."""
    side = round(n**0.5)
    if kind == "edge" and side * side == n:
        return [f"y = {a}{b}" for a in range(side) for b in range(side)]
    return [f"y = {k}" for k in range(n)]


def couplings(study: Study) -> list[Markup]:
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


def pictures(study: Study) -> list[Markup]:
    """A viewer that steps through images and methods; its data is JSON that the page's script reads."""
    kept = [k for k, row in enumerate(study.rows) if row.get("pictures")]
    methods, own = names(study.rows), [study.rows[k]["pictures"] for k in kept]
    seen = [study.originals[k] if study.originals else () for k in kept]
    data = viewer_data(own, [methods[k] for k in kept], seen) if kept else None
    if data is None:
        return []
    text = json.dumps(data).replace("<", "\\u003c")
    script = Markup(f'<script type="application/json">{text}</script>')
    empty = tag("p", "The pictures need JavaScript.", class_="status", role="status", aria_live="polite")
    return [tag("div", script, empty, class_="viewer", data_label=f"Pictures of {study.name}")]


def facts(study: Study) -> list[Markup]:
    """Versions, seeds, time, convergence."""
    pairs: Mapping[str, Any] = study_facts(study.rows)
    return [tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs.items()))]
