"""The parts of the page about label maps: scores of classes, the confusion matrix, and calibration."""

from __future__ import annotations

from collections.abc import Sequence

from .._curves import Line
from .._html import Markup, tag
from .charts import chart, make_axis
from .rows import Row
from .tables import Column, Table, html_table

#: Scores of a class that are shown, and their headings.
_SCORES = {
    "recall": "recall",
    "precision": "precision",
    "f1": "F1",
    "iou": "IoU",
    "boundary_f1": "boundary F1",
}


def class_tables(names: Sequence[str], rows: Sequence[Row]) -> list[Markup]:
    """Scores of every class, a table per run that has them."""
    found = []
    for name, row in zip(names, rows, strict=True):
        classes = row.get("class_scores")
        if classes:
            columns = [Column("class", "class"), Column("pixels", "pixels", str)]
            columns += [Column(text, key, _share) for key, text in _SCORES.items() if key in classes[0]]
            found.append(
                _scrolled(html_table(Table(f"Classes, {name}", columns, classes)), f"classes, {name}")
            )
    return found


def confusion_tables(names: Sequence[str], rows: Sequence[Row]) -> list[Markup]:
    """Pixels by true and predicted class, coloured by their share of the true class."""
    found = []
    for name, row in zip(names, rows, strict=True):
        if row.get("confusion") and row.get("class_scores"):
            labels = [line["class"] for line in row["class_scores"]]
            found.append(_scrolled(_confusion(name, row["confusion"], labels), f"confusion matrix, {name}"))
    note = "Pixels of a row's class that were predicted as a column's class, as a share of the row."
    return [tag("p", note), *found] if found else []


def _confusion(name: str, counts: Sequence[Sequence[int]], labels: Sequence[str]) -> Markup:
    lines = []
    for k, (label, line) in enumerate(zip(labels, counts, strict=True)):
        total = max(sum(line), 1)
        cells = [
            tag(
                "td",
                f"{count / total:.3f}",
                class_="plus" if j == k else "minus",
                style=f"--share: {count / total * 60:.0f}%",
                title=f"{count} pixels",
            )
            for j, count in enumerate(line)
        ]
        lines.append(tag("tr", tag("th", label, scope="row"), *cells))
    head = tag("tr", tag("td", "truth"), *(tag("th", label, scope="col") for label in labels))
    caption = tag("caption", tag("span", name))
    return tag("table", caption, tag("thead", head), tag("tbody", *lines), class_="matrix")


def calibration_charts(names: Sequence[str], rows: Sequence[Row]) -> list[Markup]:
    """Accuracy against confidence, a chart per run that has a reliability curve."""
    figures = []
    for name, row in zip(names, rows, strict=True):
        curve = row.get("reliability")
        if curve:
            x, y = ([point[key] for point in curve] for key in ("confidence", "accuracy"))
            lines = [Line("right", x, y, 0), Line("calibrated", [0.0, 1.0], [0.0, 1.0], 1, True)]
            error = row.get("calibration_error")
            text = "" if error is None else f"expected calibration error {error:.4f}"
            axis = make_axis([0.0, 1.0])
            drawn = chart(lines, axis, axis, "confidence", "accuracy", f"Calibration, {name}", text)
            figures.append(tag("figure", tag("figcaption", f"{name}: {text}"), drawn))
    note = "How often predictions of some confidence are right; the dashed line is perfect calibration."
    return [tag("p", note), tag("div", *figures, class_="charts")] if figures else []


def _share(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.4f}"


def _scrolled(table: Markup, label: str) -> Markup:
    return tag("div", table, class_="scroll", role="region", tabindex="0", aria_label=label)
