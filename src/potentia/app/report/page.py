"""How a study begins on the page: its result in one sentence, and one image by all methods side by side."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import count
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from ...base import __version__
from ...base.files import regular, replacing
from ...base.html import Markup, tag
from ...base.types import PotentiaError
from ..plot import Line, history_lines, score_lines
from .figures import Axis, chart, make_axis, panels_of, viewer_data, with_images
from .rows import (
    Column,
    Row,
    StudyResults,
    Table,
    html_table,
    names,
    read_rows,
    runs_table,
    scrolled,
    shaded_table,
    shown,
    study_facts,
)

#: Measures of which the first that rows have is the result, and whether less is better.
_MEASURES = {
    "test_error": True, "validation_error": True, "error": True, "exact_match": False, "hamming_loss": True,
    "mean_iou": False, "span_f1": False, "accuracy": False,
}  # fmt: skip
#: Keys of cells that say what a run is measured on: results of different ones are not compared.
_DATA = ("set", "data", "noise", "part", "labels", "fold")
#: Commands on a user's own data, whose runs have separate tables.
_COMMANDS = {"train": "Training", "evaluate": "Evaluation"}
#: Runs that a table with a line per measure has, at most.
_MOST_TURNED = 4
#: Methods in a strip, and groups in a sentence, at most.
_MOST = 8


def result_sentence(rows: Sequence[Row]) -> str:
    """The best result and the range of the others, for each data set; empty if rows have no known measure.

    Of a user's own runs, every evaluation is told, and whether its data were those of training.
    """
    if all("command" in row["cell"] for row in rows):
        return _own_sentence(rows)
    key = _measure(rows)
    if key is None:
        return ""
    apart = next((k for k in _DATA if len({str(row["cell"].get(k)) for row in rows}) > 1), None)
    groups: dict[str, list[tuple[float, str]]] = {}
    for name, row in zip(names(rows), rows, strict=True):
        if _known(row, key):
            groups.setdefault("" if apart is None else f"{row['cell'].get(apart)}", []).append((row[key], name))
    best = "lowest" if _MEASURES[key] else "highest"
    text = _plainly(key)
    sentences = [_best(group, _MEASURES[key], where) for where, group in list(groups.items())[:_MOST]]
    more = f"; and {len(groups) - _MOST} more" if len(groups) > _MOST else ""
    if len(rows) == 1:
        data = rows[0]["cell"].get("data")
        return f"The {text}{f' on {data}' if data else ''} is {rows[0][key]:.4f}."
    return f"The {best} {text} is {'; '.join(sentences)}{more}."


def _plainly(key: str) -> str:
    return key.replace("_", " ").replace("iou", "IoU").replace("f1", "F1")


def _own_sentence(rows: Sequence[Row]) -> str:
    """What evaluations of a user's own model found, those on held-out data first."""
    measured = [row for row in rows if row["cell"]["command"] == "evaluate" and _measure([row])]
    newest = list({str(row["cell"].get("data")): row for row in measured}.values())
    ordered = sorted(newest, key=lambda row: row.get("training_share") or 0.0)
    sentences = []
    for row in ordered[:_MOST]:
        key, share = _measure([row]) or "", row.get("training_share")
        percent = 100.0 * row[key]
        rounded = f"{percent:.1f} %" if percent >= 0.05 or not percent else f"{percent:.1g} %"
        value = rounded if _MEASURES[key] else f"{row[key]:.4f}"
        what = "images" if "n_images" in row else "data"
        kind = f"{what} of which {share:.0%} were trained on" if share else f"held-out {what}"
        where = {None: what, 1: f"the training {what}"}.get(share, kind)
        told = f" ({row['cell'].get('data')})" if len(ordered) > 1 or share != 1 else ""
        name = _plainly(key)
        sentences.append(f"{name[0].upper()}{name[1:]} on {where}{told}: {value}.")
    if ordered and all((row.get("training_share") or 0.0) == 1 for row in ordered):
        sentences.append(f"No held-out {what} were given.")
    if not ordered:
        accuracies = [row["validation_accuracy"] for row in rows if _known(row, "validation_accuracy")]
        missing = "The model is not evaluated yet: run `potentia evaluate` and this command again."
        sentences.append(f"Accuracy on the held-out part: {accuracies[-1]:.4f}." if accuracies else missing)
    return " ".join(sentences)


def _best(group: Sequence[tuple[float, str]], less: bool, where: str) -> str:
    """The best value and the run that has it, with the range of the other runs."""
    (value, name), *others = sorted(group, reverse=not less)
    place = f" on {where}" if where else ""
    if not others or where:
        return f"{value:.4f}{place} ({name})"
    (first, _), (last, _) = others[0], others[-1]
    range_ = f"{first:.4f}" if len(others) == 1 else f"{first:.4f} to {last:.4f}"
    return f"{value:.4f} ({name}); {len(others)} other run{'s' * (len(others) > 1)}: {range_}"


def _measure(rows: Sequence[Row]) -> str | None:
    """The first of the measures that any row has."""
    return next((key for key in _MEASURES if any(_known(row, key) for row in rows)), None)


def _known(row: Row, key: str) -> bool:
    """Whether a row has a number of this name."""
    return isinstance(row.get(key), int | float)


def image_strip(rows: Sequence[Row]) -> Markup | None:
    """The first kept image: what was seen, the truth, and the prediction of every method (the best, if many)."""
    kept = with_images(rows)
    key, labels = _measure(rows), names(rows)
    if key is not None and len(kept) > _MOST:
        known = [k for k in kept if _known(rows[k], key)]
        kept = sorted(known, key=lambda k: rows[k][key], reverse=not _MEASURES[key])[:_MOST]
    figures: list[Markup] = []
    for k in kept:
        image = rows[k]["pictures"][0]
        panels = panels_of(image)
        if not figures:
            figures += [_figure(panels[name], name) for name in ("input", "truth") if name in panels]
        if "prediction" in panels:
            figures.append(_figure(panels["prediction"], labels[k], str(image.get("text", ""))))
    return tag("div", *figures, class_="strip") if len(figures) > 1 else None


def _figure(source: str, name: str, text: str = "") -> Markup:
    """An image with its caption, as HTML."""
    alt = f"{name}: {text}" if text else name
    caption = tag("figcaption", name, *([tag("span", text)] if text else []))
    return tag("figure", tag("img", src=source, alt=alt), caption)


#: Scores of a class that are shown, and their headings.
_SCORES = {
    "recall": "recall", "precision": "precision", "f1": "F1", "iou": "IoU", "boundary_f1": "boundary F1"
}  # fmt: skip


def class_tables(study: StudyResults) -> Iterator[Markup]:
    """Scores of every class, a table per run that has them."""
    for name, row in study.runs:
        classes = row.get("class_scores")
        if classes:
            columns = [Column("class", "class"), Column("pixels", "pixels", str)]
            columns += [Column(text, key, _share) for key, text in _SCORES.items() if key in classes[0]]
            table = Table(f"Classes, {name}", columns, classes)
            yield scrolled(html_table(table), f"classes, {name}")


def confusion_tables(study: StudyResults) -> Iterator[Markup]:
    """Pixels by true and predicted class, coloured by their share of the true class."""
    for name, row in study.runs:
        if row.get("confusion") and row.get("class_scores"):
            labels = [line["class"] for line in row["class_scores"]]
            cells = [
                [
                    (f"{count / max(sum(counts), 1):.3f}", j == k, count / max(sum(counts), 1), f"{count} pixels")
                    for j, count in enumerate(counts)
                ]
                for k, counts in enumerate(row["confusion"])
            ]  # fmt: skip
            table = shaded_table(name, labels, cells, corner="truth")
            yield scrolled(table, f"confusion matrix, {name}")


def calibration_charts(study: StudyResults) -> Iterator[Markup]:
    """Accuracy against confidence, a chart per run that has a reliability curve."""
    for name, row in study.runs:
        curve = row.get("reliability")
        if curve:
            x, y = ([point[key] for point in curve] for key in ("confidence", "accuracy"))
            lines = [Line("right", x, y, 0), Line("calibrated", [0.0, 1.0], [0.0, 1.0], 1, True)]
            error = row.get("calibration_error")
            text = "" if error is None else f"expected calibration error {error:.4f}"
            axis = make_axis([0.0, 1.0])
            drawn = chart(lines, axis, axis, "confidence", "accuracy", f"Calibration, {name}", text)
            yield tag("figure", tag("figcaption", f"{name}: {text}"), drawn)


def _share(value: float | None) -> str:
    """A share with four decimals; a dash if it is not known."""
    return "–" if value is None or value != value else f"{value:.4f}"


def model_card(study: StudyResults) -> Iterator[Markup]:
    """What was trained, with which options, and what was decided and why."""
    for _name, row in study.runs:
        card = row.get("card")
        if card:
            pairs = {"trained on": row["cell"].get("data"), **card["facts"]}
            pairs["options"] = ", ".join(f"{k} {v}" for k, v in card["options"].items()) or "none: the defaults"
            yield _pairs(pairs)
            if card["decisions"]:
                yield tag("ul", *(tag("li", text) for text in card["decisions"]))


def _pairs(pairs: Mapping[str, Any]) -> Markup:
    """Names with their values, as HTML."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs.items()))


#: What is said above some sections.
_NOTES = {
    "Confusion": "Pixels of a row's class that were predicted as a column's class, as a share of the row.",
    "Calibration": "How often predictions of some confidence are right; the dashed line is perfect calibration.",
    "Label couplings": "Weight of a column's label (present +1, absent −1) in the score of a row's label.",
}


def study_section(study: StudyResults) -> Markup:
    """Everything the rows allow, under one heading."""
    parts = [("Results", tables), ("Model card", model_card), ("Images", images), ("Classes", class_tables),
             ("Confusion", confusion_tables),
             ("Calibration", calibration_charts), ("Learning curves", curves), ("Learned functions", functions),
             ("Label couplings", couplings), ("Run facts", facts)]  # fmt: skip
    sentence, strip = result_sentence(study.rows), image_strip(study.rows)
    sections = ([tag("p", sentence, class_="lead")] if sentence else []) + ([strip] if strip else [])
    for title, make in parts:
        content = list(make(study))
        if content:
            head = [tag("h3", title, id=f"{study.anchor}--{title.lower().replace(' ', '-')}")]
            head += [tag("p", _NOTES[title])] if title in _NOTES else []
            charts = title in ("Calibration", "Learned functions")
            sections.append(tag("section", *head, *([tag("div", *content, class_="charts")] if charts else content)))
    heading = tag("h2", study.name, id=study.anchor)
    return tag("section", heading, *sections, class_="study", aria_labelledby=study.anchor)


def tables(study: StudyResults) -> list[Markup]:
    """The study's own tables, then all runs."""
    commands: dict[Any, list[Row]] = {row["cell"].get("command"): [] for row in study.rows}
    for row in study.rows:
        commands[row["cell"].get("command")].append(row)
    apart = len(commands) > 1 and commands.keys() <= _COMMANDS.keys()
    runs = [_turned(runs_table(_COMMANDS[name], part)) for name, part in commands.items()] if apart else []
    own = [*study.tables, *(runs or [runs_table("All runs", study.rows)])]
    return [scrolled(html_table(t), f"{study.name}: {t.title}") for t in own]


def _turned(table: Table) -> Table:
    """A table of few runs with a line per measure, which fits a narrow page; others as they are."""
    if len(table.lines) > _MOST_TURNED:
        return table
    columns = [Column(f"run {line['run']}", str(k), str) for k, line in enumerate(table.lines)]
    lines = [
        {"measure": column.heading} | {str(k): shown(column, line) for k, line in enumerate(table.lines)}
        for column in table.columns
        if column.key not in ("command", "run")
    ]
    return Table(table.title, [Column("measure", "measure"), *columns], lines)


def curves(study: StudyResults) -> list[Markup]:
    """A chart per run on common axes: errors if tracked, else the objective."""
    histories = [(name, row["history"]) for name, row in study.runs if row.get("history")]
    errors = [(name, lines) for name, rows in histories if (lines := history_lines(rows))]
    objectives = [(name, history_lines(rows, objective=True)) for name, rows in histories if not history_lines(rows)]
    legend = _legend(list({line.name: line for _, tracked in errors for line in tracked}.values()))
    charts = [legend, _charts(errors, "iteration", "error", shared=True)] if errors else []
    if objectives:
        charts += [tag("p", "Objective of runs whose errors were not tracked:")] if errors else []
        charts += [_charts(objectives, "iteration", "objective", shared=False)]
    return charts


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
    """Axes that hold all lines, y logarithmic."""
    x, y = ([v for line in lines for v in getattr(line, axis)] for axis in ("x", "y"))
    return make_axis(x), make_axis(y, log=True)


def _legend(lines: Sequence[Line]) -> Markup:
    """The names of lines with their colours, as HTML."""
    items = [tag("li", line.name, class_=f"c{line.colour}{' dashed' if line.dashed else ''}") for line in lines]
    return tag("ul", *items, class_="legend", aria_label="legend")


def functions(study: StudyResults) -> Iterator[Markup]:
    """Scores as functions of the one feature they see, a chart per run and kind."""
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
            yield tag("figure", tag("figcaption", title), drawn, _legend(lines))


def couplings(study: StudyResults) -> Iterator[Markup]:
    """Weights of labels in each other's scores, a coloured table per run."""
    for name, row in study.runs:
        if "couplings" in row:
            weights = np.array(row["couplings"])
            largest = max(float(np.abs(weights).max()), 1e-12)
            cells = [[(f"{w:.2f}" if w else "", w > 0, abs(w) / largest, None) for w in line] for line in weights]
            yield scrolled(shaded_table(name, row["labels"], cells), f"label couplings, {name}")


def images(study: StudyResults) -> Iterator[Markup]:
    """A viewer that steps through images and methods; its data is JSON that the page's script reads."""
    kept = with_images(study.rows)
    methods, own = names(study.rows), [study.rows[k]["pictures"] for k in kept]
    if not kept:
        return
    text = json.dumps(viewer_data(own, [methods[k] for k in kept])).replace("<", "\\u003c")
    script = Markup(f'<script type="application/json">{text}</script>')
    empty = tag("p", "The images need JavaScript.", class_="status", role="status", aria_live="polite")
    yield tag("div", script, empty, class_="viewer", data_label=f"Images of {study.name}")


def facts(study: StudyResults) -> list[Markup]:
    """Versions, seeds, time, convergence."""
    return [_pairs(study_facts(study.rows))]


#: Tables of a study beside that of all its runs, by its name and rows.
Tables = Callable[[str, Sequence[Row]], Sequence[Table]]

#: A row with its images as `kept_image` makes them, from its study's name and the row as it is on disk.
Complete = Callable[[str, Row], Row]


def report(
    folder: Path,
    out: Path | None = None,
    tables: Tables = lambda name, rows: (),
    complete: Complete = lambda name, row: row,
) -> Path:
    """Write the page of all rows.jsonl files under a folder; returns its path (default: report.html in the folder)."""
    if not folder.is_dir():
        raise PotentiaError(f"{folder} is not a folder.")
    path = regular(out or folder / "report.html")
    studies = find_studies(folder, tables, complete)
    if not studies:
        raise PotentiaError(f"{folder} holds no rows.jsonl with rows: run `potentia demo` or `potentia reproduce`.")
    path.parent.mkdir(parents=True, exist_ok=True)
    text = page(studies, _title(folder))
    with replacing(path) as raw:
        raw.write(text.encode())
    return path


def find_studies(folder: Path, tables: Tables, complete: Complete) -> list[StudyResults]:
    """A study per file of rows, named by its folder."""
    studies: list[StudyResults] = []
    for path in sorted(folder.rglob("rows.jsonl")):
        rows = read_rows(path)
        if rows:
            place = path.parent.relative_to(folder).as_posix()
            name = _title(folder) if place == "." else place
            study = str(rows[0]["cell"].get("study", name))
            anchor = _anchor(name, {other.anchor for other in studies})
            studies.append(StudyResults(name, anchor, [complete(study, row) for row in rows], tables(study, rows)))
    return studies


def _title(folder: Path) -> str:
    """The folder's name; the runs of a model are named as the model."""
    return folder.resolve().name.removesuffix(".runs")


def _anchor(name: str, taken: Collection[str]) -> str:
    """A study's name as an identifier in HTML that no other study has."""
    plain = "study-" + (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "other")
    numbered = (f"{plain}-{k}" for k in count(2))
    return plain if plain not in taken else next(anchor for anchor in numbered if anchor not in taken)


def page(studies: Sequence[StudyResults], title: str) -> str:
    """The whole page as text."""
    entries = [tag("li", tag("a", study.name, href=f"#{study.anchor}")) for study in studies]
    here = files(__package__)
    return Template(here.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=tag("title", f"{title} – potentia report"),
        heading=tag("h1", f"Results: {title}"),
        version=__version__,
        style=here.joinpath("page.css").read_text(encoding="utf-8"),
        script=here.joinpath("page.js").read_text(encoding="utf-8"),
        contents=tag("ul", *entries),
        studies=Markup("\n".join(_section(study) for study in studies)),
    )


def _section(study: StudyResults) -> Markup:
    """A study's part of the page; one sentence where its rows hold something else than results."""
    try:
        return study_section(study)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise PotentiaError(f"the rows of {study.name} cannot be shown ({type(error).__name__}: {error}).") from None
