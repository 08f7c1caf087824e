"""The parts of the page about label maps: scores of classes, the confusion matrix, and calibration."""

from __future__ import annotations

from collections.abc import Sequence

from .._curves import Line
from .._html import Markup, tag
from .charts import chart, make_axis
from .runs import StudyResults
from .tables import Column, Shaded, Table, html_table, scrolled, shaded_table

#: Scores of a class that are shown, and their headings.
_SCORES = {
    "recall": "recall",
    "precision": "precision",
    "f1": "F1",
    "iou": "IoU",
    "boundary_f1": "boundary F1",
}


def class_tables(study: StudyResults) -> list[Markup]:
    """Scores of every class, a table per run that has them."""
    found = []
    for name, row in study.runs:
        classes = row.get("class_scores")
        if classes:
            columns = [Column("class", "class"), Column("pixels", "pixels", str)]
            columns += [Column(text, key, _share) for key, text in _SCORES.items() if key in classes[0]]
            table = Table(f"Classes, {name}", columns, classes)
            found.append(scrolled(html_table(table), f"classes, {name}"))
    return found


def confusion_tables(study: StudyResults) -> list[Markup]:
    """Pixels by true and predicted class, coloured by their share of the true class."""
    found = []
    for name, row in study.runs:
        if row.get("confusion") and row.get("class_scores"):
            labels = [line["class"] for line in row["class_scores"]]
            cells = [_confusion_line(k, counts) for k, counts in enumerate(row["confusion"])]
            table = shaded_table(name, labels, cells, corner="truth")
            found.append(scrolled(table, f"confusion matrix, {name}"))
    note = "Pixels of a row's class that were predicted as a column's class, as a share of the row."
    return [tag("p", note), *found] if found else []


def _confusion_line(k: int, counts: Sequence[int]) -> list[Shaded]:
    """What pixels of class k were predicted as."""
    shares = [count / max(sum(counts), 1) for count in counts]
    return [
        Shaded(f"{share:.3f}", j == k, share, f"{count} pixels")
        for j, (share, count) in enumerate(zip(shares, counts, strict=True))
    ]


def calibration_charts(study: StudyResults) -> list[Markup]:
    """Accuracy against confidence, a chart per run that has a reliability curve."""
    figures = []
    for name, row in study.runs:
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
