"""How a study begins on the page: its result in one sentence, and one image by all methods side by side."""

from __future__ import annotations

from collections.abc import Sequence

from .._html import Markup, tag
from .image_panels import Original, data_uri, panels_of, with_images
from .rows import Row
from .runs import names

#: Measures of which the first that rows have is the result, and whether less is better.
_MEASURES = {
    "test_error": True, "validation_error": True, "error": True, "exact_match": False, "hamming_loss": True,
    "mean_iou": False, "span_f1": False, "accuracy": False,
}  # fmt: skip
#: Keys of cells that say what a run is measured on: results of different ones are not compared.
_DATA = ("set", "data", "noise", "part", "labels", "fold")
#: Methods in a strip, and groups in a sentence, at most.
_MOST = 8


def result_sentence(rows: Sequence[Row]) -> str:
    """The best result and the range of the others, for each data set; empty if rows have no known measure.

    Of a user's own runs, the evaluations count, if there are any.
    """
    rows = [row for row in rows if row["cell"].get("command") == "evaluate"] or rows
    key = _measure(rows)
    if key is None:
        return ""
    apart = next((k for k in _DATA if len({str(row["cell"].get(k)) for row in rows}) > 1), None)
    groups: dict[str, list[tuple[float, str]]] = {}
    for name, row in zip(names(rows), rows, strict=True):
        if _known(row, key):
            groups.setdefault("" if apart is None else f"{row['cell'].get(apart)}", []).append(
                (row[key], name)
            )
    best = "lowest" if _MEASURES[key] else "highest"
    found = [_best(group, _MEASURES[key], where) for where, group in list(groups.items())[:_MOST]]
    more = f"; and {len(groups) - _MOST} more" if len(groups) > _MOST else ""
    if len(rows) == 1:
        data = rows[0]["cell"].get("data")
        return f"The {_text(key)}{f' on {data}' if data else ''} is {rows[0][key]:.4f}."
    return f"The {best} {_text(key)} is {'; '.join(found)}{more}."


def _best(group: Sequence[tuple[float, str]], less: bool, where: str) -> str:
    (value, name), *others = sorted(group, reverse=not less)
    place = f" on {where}" if where else ""
    if not others or where:
        return f"{value:.4f}{place} ({name})"
    (first, _), (last, _) = others[0], others[-1]
    range_ = f"{first:.4f}" if len(others) == 1 else f"{first:.4f} to {last:.4f}"
    return f"{value:.4f} ({name}); {len(others)} other run{'s' * (len(others) > 1)}: {range_}"


def _measure(rows: Sequence[Row]) -> str | None:
    return next((key for key in _MEASURES if any(_known(row, key) for row in rows)), None)


def _known(row: Row, key: str) -> bool:
    return isinstance(row.get(key), int | float)


def _text(key: str) -> str:
    return key.replace("_", " ").replace("iou", "IoU").replace("f1", "F1")


def image_strip(rows: Sequence[Row], originals: Sequence[Sequence[Original]]) -> Markup | None:
    """The first kept image: what was seen, the truth, and the prediction of every method (the best, if many)."""
    kept = with_images(rows)
    key, labels = _measure(rows), names(rows)
    if key is not None and len(kept) > _MOST:
        known = [k for k in kept if _known(rows[k], key)]
        kept = sorted(known, key=lambda k: rows[k][key], reverse=not _MEASURES[key])[:_MOST]
    figures: list[Markup] = []
    for k in kept:
        seen = originals[k][0] if originals and originals[k] else None
        panels, text = panels_of(rows[k]["pictures"][0], seen)
        if not figures:
            figures += [_figure(panels[name], name) for name in ("input", "truth") if name in panels]
        if "prediction" in panels:
            figures.append(_figure(panels["prediction"], labels[k], text))
    return tag("div", *figures, class_="strip") if len(figures) > 1 else None


def _figure(colours: object, name: str, text: str = "") -> Markup:
    alt = f"{name}: {text}" if text else name
    caption = tag("figcaption", name, *([tag("span", text)] if text else []))
    return tag("figure", tag("img", src=data_uri(colours), alt=alt), caption)  # type: ignore[arg-type]
