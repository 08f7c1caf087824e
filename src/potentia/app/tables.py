"""Rows with several labels: from a table to a pipeline that predicts the labels of other rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from scipy import sparse

from ..base.files import naming
from ..base.saving import digest_of
from ..base.schema import FLAG, TEXT, Choice, Items, Number, Rule, Schema, Section
from ..base.types import Floats, Ints, PotentiaError, warn_caller
from ..learn.backends.connection import current, map_anywhere
from ..metrics import all_measures
from ..models.multilabel import LMBM, LMSBN, IndependentClassifiers, LabelNetwork
from ..models.multilabel.hinge import RemoteRows, forget_rows
from .pipeline import Pipeline, check_target, seen_by_workers
from .table_files import (
    STYLES,
    Feature,
    Label,
    Table,
    is_row_number,
    learn_feature,
    learn_labels,
    read_table,
    tags_of,
    write_table,
)
from .training import Run

TableModel = LabelNetwork | LMSBN | LMBM | IndependentClassifiers
MODELS: dict[str, type[TableModel]] = {
    "network": LabelNetwork,
    "lmsbn": LMSBN,
    "lmbm": LMBM,
    "independent": IndependentClassifiers,
}


def make_model(name: str, seed: int, **options: Any) -> TableModel:
    """A model with the options given; those not given that it can choose by cross-validation, it chooses."""
    kind = MODELS[name]
    known = {"units" if kind is LabelNetwork else "kernel", *kind().get_params()}
    if kind is LabelNetwork and "kernel" in options:
        options["units"] = [options.pop("kernel")]
    for option in options:
        if option not in known:
            raise PotentiaError(f"--{option} cannot be combined with --model {name}.")
    if options.get("kernel") == "linear":
        options["kernel"] = None
    defaults: dict[str, Any] = {} if kind is LabelNetwork else {"gamma": "median"}
    if kind is LMSBN:
        defaults = {"gamma": "cv", "order": "cv"}
    return kind(**{"random_state": seed, **defaults, **options})


#: What is predicted by target, and whether labellings are compared as wholes if the target is "exact".
_PREDICTS = {
    ("exact", True): "the most probable combination of labels",
    ("exact", False): "each label that is more probable than not (combinations were not predicted better)",
    ("hamming", True): "each label that is more probable than not",
    ("f1", True): "each label whose probability exceeds its threshold for F1",
}


def chosen(model: Any, labels: Sequence[str]) -> dict[str, Any]:
    """What cross-validation has chosen and measured, to be shown; labels: their names in the table."""
    if isinstance(model, LabelNetwork):
        named = dict(zip(model.label_names_, labels, strict=True))
        return {
            "classifiers": [*model.units_, *(["forest"] if model.n_trees else [])],
            "weight_of_similar_rows": model.power_,
            "predicts": _PREDICTS[model.target, model.target != "exact" or model.whole_],
            **_held_out(model),
            "strongest_dependences": [
                f"{named[label]} is {'more' if change > 0 else 'less'} likely with {named[other]}"
                for label, other, change in model.dependences()[:_SHOWN]
            ],
        }
    results = getattr(model, "cv_results_", [])
    searched = ("alpha", "gamma", "order", "label_scale")
    names = [name for name in searched if len({result[name] for result in results}) > 1]
    if not names:
        return {}
    best = max(results, key=lambda result: (result["exact_match"], -result["hamming_loss"]))
    return {**{f"chosen_{name}": best[name] for name in names}, "cross_validated_exact_match": best["exact_match"]}


def _held_out(model: LabelNetwork) -> dict[str, Any]:
    """Measures on rows that were held out in training, beside those of each label predicted on its own."""
    facts = {}
    for name in ("exact_match", "hamming_loss", "f_macro") if model.held_out_ else ():
        for who, suffix in {"joint": "", "alone": "_of_labels_alone"}.items():
            value, low, high = model.held_out_[who][name]
            facts[f"held_out_{name}{suffix}"] = f"{value:.3f} ({low:.3f} to {high:.3f})"
    return facts


def useful_columns(model: Any, X: Any, y: Ints, features: Sequence[Feature], seed: int) -> dict[str, list[str]]:
    """The columns whose permutation raises each label's log-loss most, by label; of the first `_RANKED` rows."""
    some = np.random.default_rng(seed).permutation(len(y))[:_RANKED]
    X, y = X[some].toarray() if sparse.issparse(X) else X[some], y[some]
    order = np.random.default_rng(seed).permutation(len(y))

    def losses(rows: Floats) -> Floats:
        p = np.clip(model.predict_proba(rows).reshape(len(rows), -1)[:, -y.shape[1] :], 1e-3, 1.0 - 1e-3)
        return -np.log(np.select([y > 0, y == 0], [p, 1.0 - p], 1.0)).mean(axis=0)

    first, start, rises = losses(X), 0, []
    for feature in features:
        own, start = slice(start, start + feature.width), start + feature.width
        turned = X.copy()
        turned[:, own] = X[order, own]
        rises.append(losses(turned) - first)
    ranked = np.argsort(-np.array(rises), axis=0)[:3]
    return {
        name: [features[j].name for j in ranked[:, k] if rises[j][k] > _RISE]
        for k, name in enumerate(model.label_names_)
    }


T = TypeVar("T")

#: Dependences that are shown, rows that columns are ranked on, columns at most, and a rise of log-loss that counts.
_SHOWN, _RANKED, _MOST_COLUMNS, _RISE = 8, 200, 40, 1e-3
#: Rows that are predicted at once. Cuts never depend on the number of workers.
PIECE_ROWS = 1 << 16
#: Texts in a column that go without a word.
_FEW = 20


@dataclass(repr=False)
class TablePipeline(Pipeline):
    """A multi-label model over the columns of a table.

    Attributes:
        model: the classifier.
        learner: its name, of `MODELS`.
        features: how columns become features, in order.
        labels: the label columns, in order.
    """

    model: Any
    learner: str
    features: list[Feature]
    labels: list[Label]

    form: ClassVar[str] = "table"
    saved: ClassVar[Schema] = {
        "learner": Choice(tuple(MODELS)),
        "features": Items(Section({
            "name": TEXT, "mean": Number(), "scale": Number(), "texts": Items(TEXT, nullable=True), "missing": FLAG,
            "style": Choice(STYLES),
        })),
        "labels": Items(Section({
            "name": TEXT, "values": Items(TEXT), "texts": Items(TEXT), "column": TEXT, "separator": TEXT,
        })),
        "columns": Rule(lambda found: (
            all(feature["scale"] > 0 for feature in found["features"])
            and all(1 <= len(label["values"]) <= 2 and len(label["texts"]) == len(label["values"])
                    for label in found["labels"])
        ), "are inconsistent"),
    }  # fmt: skip

    def settings(self) -> dict[str, Any]:
        """Columns and what they hold."""
        return {
            "learner": self.learner,
            "features": [asdict(feature) for feature in self.features],
            "labels": [asdict(label) for label in self.labels],
        }

    @classmethod
    def restore(cls, settings: Mapping[str, Any], content: Any, arrays: Any) -> TablePipeline:
        """The pipeline that `settings` and the model's state describe."""
        model = MODELS[settings["learner"]].from_state(content, arrays)
        features = [Feature(**feature) for feature in settings["features"]]
        width = sum(feature.width for feature in features)
        labels = [Label(**label) for label in settings["labels"]]
        if (model.n_features_in_, model.n_labels_) != (width, len(labels)):
            raise PotentiaError("the saved pipeline is damaged: its columns are not those of its model.")
        return cls(model, settings["learner"], features, labels)

    def facts(self) -> dict[str, Any]:
        """Labels, the number of feature columns, and the model."""
        names = ", ".join(label.name for label in self.labels)
        return {"labels": names, "feature columns": len(self.features), **super().facts()}

    def matrix(self, table: Table) -> Any:
        """Features (n, d) of a table's rows; sparse where there is text."""
        _require(table, [feature.name for feature in self.features])
        parts = [feature.matrix(table[feature.name]) for feature in self.features]
        return sparse.hstack(parts, "csr") if any(map(sparse.issparse, parts)) else np.hstack(parts)

    def truth(self, table: Table) -> Ints:
        """Labels (n, K) of a table's rows, 1 where present, -1 where missing."""
        _require(table, [label.source for label in self.labels])
        for column in dict.fromkeys(label.column for label in self.labels if label.separator):
            of_column = [label for label in self.labels if label.column == column]
            known = {label.texts[-1] for label in of_column}
            strange = {tag for cell in table[column] for tag in tags_of(cell, of_column[0].separator)} - known
            if strange:
                warn_caller(f"column {column!r} has tags that training had not, such as {min(strange)!r}.", UserWarning)
        return np.stack([label.encode(table[label.source]) for label in self.labels], axis=1)

    def predict(self, table: Table) -> dict[str, list[str]]:
        """The label columns of a table's rows, in the values that training had; tags as lists of them."""
        columns: dict[str, list[str]] = {}
        decoded = self._by_label(table, "predict", Label.decode)
        for label in self.labels:
            cells = decoded[label.name]
            if label.source in columns:
                pairs = zip(columns[label.source], cells, strict=True)
                cells = [label.separator.join(filter(None, pair)) for pair in pairs]
            columns[label.source] = cells
        return columns

    def predict_proba(self, table: Table) -> dict[str, list[float]]:
        """The probability that each label is present, by label and row."""
        return self._by_label(table, "predict_proba")

    def decision_function(self, table: Table) -> dict[str, list[float]]:
        """The score of each label by row; above zero speaks for its presence."""
        return self._by_label(table, "decision_function")

    def _by_label(
        self, table: Table, method: str, values: Callable[[Label, Any], list[Any]] = lambda _, x: x.tolist()
    ) -> dict[str, list[Any]]:
        """What a method of the model gives for each label, by its name."""
        if _n_rows(table) == 0:
            return {label.name: [] for label in self.labels}
        predicted = getattr(self.model, method)(self.matrix(table))
        return {label.name: values(label, predicted[:, k]) for k, label in enumerate(self.labels)}

    # -- files ---------------------------------------------------------------------------------------------

    def predict_files(
        self,
        source: Path,
        out: Path,
        *,
        id: Sequence[str] = (),
        probabilities: bool = False,
        scores: bool = False,
        progress: bool = False,
    ) -> dict[str, Any]:
        """The predicted label columns of a table, row by row, as CSV or Parquet by the name of `out`.

        id: columns that are copied before them. probabilities, scores: further columns after them, per label; where a
        label's values are texts, their names say of which one.
        """
        check_target(out, source)
        wanted = partial(self._columns, seen_by_workers(source), id, probabilities, scores)
        pieces, known = zip(*self._by_rows(source, wanted), strict=True)
        for feature, seen in zip(self.features, zip(*known, strict=True), strict=True):
            if False in seen and True not in seen:
                warn_caller(
                    f"training had none of the values of column {feature.name!r}, so it counts as missing in all rows.",
                    UserWarning,
                )
        columns = {name: [cell for piece in pieces for cell in piece[name]] for name in pieces[0]}
        write_table(out, columns)
        return {"rows": len(columns[self.labels[0].source]), "written": [str(out)]}

    def _columns(
        self, source: Path, id: Sequence[str], probabilities: bool, scores: bool, rows: slice
    ) -> tuple[dict[str, Sequence[Any]], list[bool | None]]:
        """What is written of some rows of a table, and of which columns training had any text."""
        table = _rows_of(source, rows)
        with naming(source):
            _require(table, id)
            columns: dict[str, Sequence[Any]] = {name: [cell or "" for cell in table[name]] for name in id}
            columns |= self.predict(table)
            shown = {label.name: label.shown for label in self.labels}
            if probabilities:
                columns |= {f"{shown[name]}_probability": p for name, p in self.predict_proba(table).items()}
            if scores:
                columns |= {f"{shown[name]}_score": s for name, s in self.decision_function(table).items()}
        return columns, [feature.knows(table[feature.name]) for feature in self.features]

    def evaluate_files(self, source: Path, *, progress: bool = False) -> dict[str, Any]:
        """The five measures of multi-label prediction."""
        pieces = self._by_rows(source, partial(self._compared, seen_by_workers(source)))
        truth, predicted = (np.concatenate(part) for part in zip(*pieces, strict=True))
        return {"rows": len(truth), **_measures(truth, predicted)}

    def _compared(self, source: Path, rows: slice) -> tuple[Ints, Ints]:
        """True and predicted labels of some rows."""
        table = _rows_of(source, rows)
        with naming(source):
            return self.truth(table), self.model.predict(self.matrix(table))

    def _by_rows(self, source: Path, function: Callable[[slice], T]) -> list[T]:
        """function(rows) for pieces of a table; on a cluster its workers read it."""
        try:
            n = map_anywhere(_count_rows, [seen_by_workers(source)])[0]
            pieces = [slice(a, min(a + PIECE_ROWS, n)) for a in range(0, n, PIECE_ROWS)]
            return map_anywhere(function, pieces)
        finally:
            _forget_all()


def _measures(truth: Ints, predicted: Ints) -> dict[str, float]:
    """All measures of labels (n, K) as far as they are known."""
    return all_measures(np.where(truth < 0, predicted, truth), predicted)


def train(
    source: Path,
    labels: Sequence[str],
    *,
    ignore: Sequence[str] = (),
    categorical: Sequence[str] = (),
    text: Sequence[str] = (),
    model: str = "network",
    run: Run | None = None,
    **options: Any,
) -> tuple[TablePipeline, dict[str, Any]]:
    """A pipeline fitted to a table, and facts of the fit.

    labels: the label columns, of two values each; of texts a word such as "yes" counts as present, else the rarer one.
    ignore: columns that are no features, besides a column "id", "index" or without a name that numbers the rows.
    categorical: columns whose numbers are codes of categories. text: columns of words. model: of `MODELS`. options:
    `alpha`, `kernel`, `order` and `target`, where the model has them; without them cross-validation chooses.
    """
    run = run or Run()
    X: Any
    spec = TableSpec(source, tuple(labels), tuple(ignore), tuple(categorical), tuple(text), run.validation, run.seed)
    estimator = make_model(model, run.seed, **options)
    if current() is None:
        table, X = spec.read()
    else:
        spec = replace(spec, source=seen_by_workers(source))
        table = map_anywhere(TableSpec.describe, [spec])[0]
        X = RemoteRows(replace(spec, key=table.digest), table.shape)
    for message in table.messages:
        run.say(message)
    own, held = run.split(len(table.y))
    names = [label.name for label in table.labels]
    rows = X[own]
    if isinstance(rows, RemoteRows) and (model == "lmbm" or options.get("kernel") == "rbf"):
        rows = rows.ask(copy)  # which cannot be learned by label, or are part of the model
    try:
        with naming(source), run.resumable([table.digest, repr(estimator)]) as checkpoint:
            estimator.fit(rows, table.y[own], progress=run.progress, checkpoint=checkpoint)
        facts = {
            "rows": len(table.y), "features": X.shape[1], "labels": names, **chosen(estimator, names),
        }  # fmt: skip
        local = isinstance(estimator, LabelNetwork) and not isinstance(X, RemoteRows)
        if local and len(table.features) <= _MOST_COLUMNS:
            part = held if len(held) else own
            columns = useful_columns(estimator, X[part], table.y[part], table.features, run.seed)
            named = zip(names, columns.values(), strict=True)
            facts["most_useful_columns"] = [f"{label}: {', '.join(best)}" for label, best in named if best]
        for name, part in {"training": own, "validation": held}.items():
            if len(part):
                rows = X[part]
                y = rows.ask(estimator.predict) if isinstance(X, RemoteRows) else estimator.predict(rows)
                facts |= {f"{name}_{key}": value for key, value in _measures(table.y[part], y).items()}
    finally:
        _forget_all()
    return TablePipeline(estimator, model, table.features, table.labels), facts


class Described(NamedTuple):
    """What training needs of a table beside its features: columns, labels (n, K), and what to tell the user."""

    features: list[Feature]
    labels: list[Label]
    y: Ints
    shape: tuple[int, int]
    digest: str
    messages: list[str]


@dataclass(frozen=True)
class TableSpec:
    """A table and what its columns are; features are learned from the rows that are not held out.

    key: the digest of the table that was described, where others read it again.
    """

    source: Path
    labels: tuple[str, ...]
    ignore: tuple[str, ...]
    categorical: tuple[str, ...]
    text: tuple[str, ...]
    validation: float | None
    seed: int
    key: str = ""

    def describe(self) -> Described:
        """What training needs beside the features."""
        return self.read()[0]

    def rows(self) -> Any:
        """The features (n, d), for workers; the table must be the one that was described."""
        table, X = self.read()
        if table.digest != self.key:
            raise PotentiaError(f"{self.source} is not the same for all workers, or has changed.")
        return X

    def read(self) -> tuple[Described, Any]:
        """Read the table; its description and the features (n, d) of all rows."""
        table, messages = read_table(self.source), []
        with naming(self.source):
            _require(table, [*self.labels, *self.ignore, *self.categorical, *self.text])
            names = [name for name in table if name not in {*self.labels, *self.ignore}]
            numbering = [n for n in names if n not in self.categorical and is_row_number(n, table[n])]
            names = [name for name in names if name not in numbering]
            messages += [f"column {name!r} numbers the rows and is left out." for name in numbering]
            own = Run(validation=self.validation, seed=self.seed).split(len(table[self.labels[0]]))[0]
            rows = {name: [table[name][i] for i in own] for name in names}
            empty = [name for name in names if not any(cell is not None for cell in rows[name])]
            messages += [f"column {name!r} has no values and is left out." for name in empty]
            names = [name for name in names if name not in empty]
            if not names:
                raise PotentiaError("no column is left that could be a feature.")
            features = [
                Feature(name, style="text") if name in self.text
                else learn_feature(name, rows[name], name in self.categorical)
                for name in names
            ]  # fmt: skip
            for feature in features:
                texts = len(feature.texts or ())
                if texts > max(_FEW, len(own) // 2):
                    messages.append(
                        f"column {feature.name!r} has {texts} different texts in {len(own)} rows, and each becomes a "
                        f"feature; --ignore {feature.name} leaves it out, --text {feature.name} reads its words, and "
                        "numbers need a decimal point"
                    )
            if len(own) == 1:
                messages.append("there is only one row to train on, so every prediction repeats its labels.")
            labels = [label for name in self.labels for label in learn_labels(name, table[name])]
            for column in dict.fromkeys(label.column for label in labels if label.separator):
                tags = [label.texts[-1] for label in labels if label.column == column]
                shown = ", ".join(map(repr, tags[:3])) + (", ..." if len(tags) > 3 else "")
                messages.append(f"column {column!r} has lists of tags: {len(tags)} labels, {shown}.")
            for feature in features:
                if feature.style in ("ymd", "dmy", "mdy"):
                    messages.append(f"column {feature.name!r} has dates, which count as days.")
            for label in labels:
                if len(label.texts) == 2 and label.shown != label.name:
                    absent = repr(label.texts[0]) if label.texts[0] else "a blank cell"
                    counted = f"{label.texts[1]!r} counts as present, {absent} as absent"
                    messages.append(f"label {label.name!r}: {counted}.")
            for label in labels:
                if len(label.texts) == 1 < len(own):
                    only = f"has only the value {label.texts[0]!r}, which is always predicted"
                    messages.append(f"label {label.name!r} {only}.")
            pipeline = TablePipeline(None, "", features, labels)
            X, y = pipeline.matrix(table), pipeline.truth(table)
            for label, unknown in zip(labels, np.sum(y < 0, axis=0), strict=True):
                if unknown:
                    messages.append(f"label {label.name!r} has {unknown} blank cells, which count as missing.")
        arrays = (X.data, X.indices, X.indptr, y) if sparse.issparse(X) else (X, y)
        digest = digest_of([*(array.tobytes() for array in arrays), *names, *self.labels])
        return Described(features, labels, y, X.shape, digest, messages), X


@lru_cache(maxsize=1)
def _table(source: Path, state: tuple[int, int] | None) -> Table:
    """The table read last; read again once the file has changed (`state`)."""
    return read_table(source)


def _rows_of(source: Path, rows: slice) -> Table:
    """Some rows of a table; the process keeps the one that it read last."""
    state = source.stat() if source.is_file() else None
    table = _table(source, None if state is None else (state.st_mtime_ns, state.st_size))
    return {name: column[rows] for name, column in table.items()}


def _count_rows(source: Path) -> int:
    """Number of rows of a table file."""
    return _n_rows(_rows_of(source, slice(None)))


def _forget() -> None:
    """Let go of what was read."""
    _table.cache_clear()
    forget_rows()


def _forget_all() -> None:
    """Let go of what was read, here and by the workers."""
    _forget()
    connection = current()
    if connection is not None:
        connection.everywhere(_forget)


def _n_rows(table: Table) -> int:
    """How many rows a table has; refuses what is no table."""
    if not isinstance(table, Mapping):
        raise PotentiaError("a table is a dictionary of columns by name, each a list with a text per row.")
    counts = {len(column) for column in table.values()}
    if len(counts) > 1:
        raise PotentiaError(f"the table's columns have different lengths, {min(counts)} to {max(counts)}.")
    return counts.pop() if counts else 0


def _require(table: Table, names: Sequence[str]) -> None:
    """Refuse names that are no columns."""
    lacking = [name for name in names if name not in table]
    if lacking:
        quoted = next((name for name in table if "," in name and lacking[0] in name), None)
        hint = f" (names with commas need quotes: --labels '\"{quoted}\"')" if quoted else ""
        raise PotentiaError(f"there is no column {lacking[0]!r}; there are {', '.join(map(repr, table))}{hint}.")
