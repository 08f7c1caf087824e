"""What rows of any study have in common: names of runs, measures, and facts of the study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .image_panels import Original
from .rows import Row
from .tables import Column, Table

#: Keys of a cell that say where it belongs, not what it is.
_PLACE = ("study", "quick")
#: Keys of a cell whose values need no name: "evaluate", not "command evaluate".
_PLAIN = ("command", "data")
#: Keys of a row that are no measures.
_OTHER = ("cell", "data", "seconds", "learner", "versions", "curves", "pictures", "image_errors")
#: Headings of measures whose keys do not read well.
_HEADINGS = {
    "settled": "converged", "hamming_loss": "Hamming loss", "f_micro": "F1 (micro)", "f_macro": "F1 (macro)",
    "f_samples": "F1 (samples)", "n_images": "images", "cross_fitted_accuracy": "cross-fitted accuracy",
    "mean_iou": "mean IoU", "mean_f1": "mean F1", "mean_boundary_f1": "mean boundary F1", "span_f1": "span F1",
}  # fmt: skip
_LONG = 40
#: A value that more than this share of runs have is left out of their names.
_MOST = 0.7


class StudyResults(NamedTuple):
    """Rows of one study: its name, its identifier on the page, its rows, tables beside that of all runs, and what the
    images of each row show.
    """

    name: str
    anchor: str
    rows: Sequence[Row]
    tables: Sequence[Table] = ()
    originals: Sequence[Sequence[Original]] = ()

    @property
    def runs(self) -> list[tuple[str, Row]]:
        """Every run's name and row."""
        return list(zip(names(self.rows), self.rows, strict=True))


def varying(rows: Sequence[Row]) -> list[str]:
    """Keys of cells that tell runs apart, those that have a usual value last."""
    keys = dict.fromkeys(key for row in rows for key in row["cell"] if key not in _PLACE)
    found = [key for key in keys if len({str(row["cell"].get(key)) for row in rows}) > 1]
    return sorted(found, key=lambda key: _usual(key, rows) is not None)


def _usual(key: str, rows: Sequence[Row]) -> str | None:
    """The value that most runs have, if there is one."""
    value, count = Counter(str(row["cell"].get(key)) for row in rows).most_common(1)[0]
    return value if count > _MOST * len(rows) else None


def names(rows: Sequence[Row]) -> list[str]:
    """A name per run: what varies, without what most of the runs share."""
    keys = varying(rows) or [key for key in rows[0]["cell"] if key not in _PLACE]
    usual = {key: _usual(key, rows) for key in keys}
    found = []
    for row in rows:
        parts = [(key, str(row["cell"][key])) for key in keys if key in row["cell"]]
        named = [_named(key, value) for key, value in parts if value != usual[key]]
        found.append(", ".join(named or [_named(key, value) for key, value in parts]))
    return found


def _named(key: str, value: str) -> str:
    return value if key in _PLAIN else f"{key} {value}"


def runs_table(title: str, rows: Sequence[Row]) -> Table:
    """All runs: what varies, every measure, and the time."""
    keys = varying(rows) or [key for key in rows[0]["cell"] if key not in _PLACE]
    named = {key for row in rows for key in row["cell"]}
    measures = [
        key
        for key in dict.fromkeys(k for row in rows for k in row)
        if key not in named and _is_measure(key, rows)
    ]
    columns = [Column(_heading(key), key, _show([row["cell"].get(key) for row in rows])) for key in keys]
    columns += [Column(_heading(key), key, _show([row.get(key) for row in rows])) for key in measures]
    columns.append(Column("seconds", "seconds", "{:.1f}".format))
    return Table(title, columns, [row | row["cell"] for row in rows])


def study_facts(rows: Sequence[Row]) -> dict[str, str]:
    """Run facts: data, settings common to all runs, seeds, time, convergence, versions."""
    facts = {"runs": str(len(rows))}
    data = dict.fromkeys(str(row["data"]) for row in rows if row.get("data"))
    if data:
        facts["data"] = "; ".join(data)
    different = varying(rows)
    common = {k: v for k, v in rows[0]["cell"].items() if k not in (*_PLACE, "seed", *different)}
    if common and len(rows) > 1:
        facts["common to all runs"] = ", ".join(f"{key} {value}" for key, value in common.items())
    if any(row["cell"].get("quick") for row in rows):
        facts["size"] = "a quick version, smaller than the paper's"
    seeds = sorted({row["cell"]["seed"] for row in rows if "seed" in row["cell"]})
    if seeds:
        facts["seed" if len(seeds) == 1 else "seeds"] = ", ".join(map(str, seeds))
    facts["time"] = f"{duration(sum(row.get('seconds', 0.0) for row in rows))} in all"
    facts |= _convergence(rows)
    for versions in dict.fromkeys(tuple(row.get("versions", {}).items()) for row in rows):
        text = ", ".join(f"{name} {number}" for name, number in versions)
        facts["versions"] = f"{facts['versions']}; {text}" if "versions" in facts else text
    return facts


def _convergence(rows: Sequence[Row]) -> dict[str, str]:
    known = [
        (name, row["settled"])
        for name, row in zip(names(rows), rows, strict=True)
        if row.get("settled") is not None
    ]
    fixed = sum("iterations" in row and "settled" in row and row["settled"] is None for row in rows)
    parts = []
    if known:
        open_ = [name for name, settled in known if not settled]
        stopped = f" (not {'; '.join(open_)})" if open_ else ""
        parts.append(f"{len(known) - len(open_)} of {len(known)} runs with a tolerance converged{stopped}")
    if fixed:
        parts.append(f"{fixed} ran a fixed number of iterations")
    return {"convergence": "; ".join(parts)} if parts else {}


def duration(seconds: float) -> str:
    """A time in words."""
    if seconds < 120:
        return f"{seconds:.1f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def number(value: Any) -> str:
    """A number with four digits; whole numbers in full, yes and no, options as name = value."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {number(v)}" for key, v in value.items())
    return str(value)


def _is_measure(key: str, rows: Sequence[Row]) -> bool:
    """Numbers, flags and options, and short texts that vary."""
    if key in _OTHER:
        return False
    values = [row[key] for row in rows if row.get(key) is not None]
    if key.endswith("_errors"):
        return True
    if not values or any(isinstance(value, list) for value in values):
        return False
    if any(isinstance(v, str) for v in values):
        return len(set(map(str, values))) > 1 and max(len(str(v)) for v in values) <= _LONG
    inner = [value for v in values if isinstance(v, Mapping) for value in v.values()]
    return not any(isinstance(value, Mapping | list) for value in inner)


def _show(values: Sequence[Any]) -> Callable[[Any], str] | None:
    known = [value for value in values if value is not None]
    if values and all(isinstance(v, float) and (v == 0 or 1e-3 <= abs(v) < 10) for v in known):
        return "{:.4f}".format  # four decimals say enough of all of them
    if any(isinstance(v, list) for v in known):
        return lambda several: ", ".join(f"{v:.4f}" for v in several)
    return number if any(isinstance(v, int | float | Mapping) for v in known) else None


def _heading(key: str) -> str:
    return _HEADINGS.get(key) or key.replace("_", " ")
