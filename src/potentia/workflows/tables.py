"""Rows with several labels: from a CSV or Parquet file to a pipeline that fills in the label columns of other rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .._digest import digest_of
from .._schema import TEXT, Choice, Items, Kind, Number, Record, Rule, Schema
from .._types import Floats, Ints, PotentiaError
from ..metrics import all_measures
from .columns import Feature, Label, learn_feature, learn_label
from .outputs import check_target
from .pipeline import Pipeline
from .table_files import Table, read_table, write_table
from .table_models import MODELS, chosen, make_model
from .training import Run

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
        "features": Items(
            Record(
                {
                    "name": TEXT,
                    "mean": Number(),
                    "scale": Number(),
                    "texts": Items(TEXT, optional=True),
                    "missing": Kind((bool,), optional=True),
                }
            )
        ),
        "labels": Items(Record({"name": TEXT, "values": Items(TEXT), "texts": Items(TEXT)})),
        "columns": Rule(
            lambda found: (
                all(feature["scale"] > 0 for feature in found["features"])
                and all(
                    1 <= len(label["values"]) <= 2 and len(label["texts"]) in (0, len(label["values"]))
                    for label in found["labels"]
                )
            ),
            "are inconsistent",
        ),
    }

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
        if (model.n_features_in_, model.n_labels_) != (width, len(settings["labels"])):
            raise PotentiaError("the saved pipeline is damaged: its columns are not those of its model.")
        labels = [Label(**label) for label in settings["labels"]]
        return cls(model, settings["learner"], features, labels)

    def facts(self) -> dict[str, Any]:
        """Labels, the number of feature columns, and the model."""
        names = ", ".join(label.name for label in self.labels)
        return {"labels": names, "feature columns": len(self.features), **super().facts()}

    def matrix(self, table: Table) -> Floats:
        """Features (n, d) of a table's rows."""
        _require(table, [feature.name for feature in self.features])
        return np.hstack([feature.matrix(table[feature.name]) for feature in self.features])

    def truth(self, table: Table) -> Ints:
        """Labels (n, K) of a table's rows, 1 where present."""
        _require(table, [label.name for label in self.labels])
        return np.stack([label.encode(table[label.name]) for label in self.labels], axis=1)

    def predict(self, table: Table) -> dict[str, list[str]]:
        """The label columns of a table's rows, in the values that training had."""
        if _n_rows(table) == 0:
            return {label.name: [] for label in self.labels}
        found = self.model.predict(self.matrix(table))
        return {label.name: label.decode(found[:, k]) for k, label in enumerate(self.labels)}

    def predict_proba(self, table: Table) -> dict[str, list[float]]:
        """The probability that each label is present, by label and row."""
        return self._numbers(table, "predict_proba")

    def decision_function(self, table: Table) -> dict[str, list[float]]:
        """The score of each label by row; above zero speaks for its presence."""
        return self._numbers(table, "decision_function")

    def _numbers(self, table: Table, method: str) -> dict[str, list[float]]:
        if _n_rows(table) == 0:
            return {label.name: [] for label in self.labels}
        found = getattr(self.model, method)(self.matrix(table))
        return {label.name: found[:, k].tolist() for k, label in enumerate(self.labels)}

    # -- files ---------------------------------------------------------------------------------------------

    def predict_files(
        self,
        source: Path,
        out: Path,
        *,
        id: Sequence[str] = (),
        probabilities: bool = False,
        scores: bool = False,
        **_: Any,
    ) -> dict[str, Any]:
        """The predicted label columns of a table, row by row, as CSV or Parquet by the name of `out`.

        id: columns that are copied before them. probabilities, scores: further columns after them, per label.
        """
        check_target(out, source)
        table = read_table(source)
        with _named(source):
            _require(table, id)
            columns: dict[str, Sequence[Any]] = {
                name: ["" if c is None else c for c in table[name]] for name in id
            }
            columns |= self.predict(table)
            if probabilities:
                columns |= {f"{name}_probability": p for name, p in self.predict_proba(table).items()}
            if scores:
                columns |= {f"{name}_score": s for name, s in self.decision_function(table).items()}
        write_table(out, columns)
        return {"rows": len(columns[self.labels[0].name]), "written": [str(out)]}

    def evaluate_files(self, source: Path, **_: Any) -> dict[str, Any]:
        """The five measures of multi-label prediction."""
        table = read_table(source)
        with _named(source):
            truth, found = self.truth(table), self.model.predict(self.matrix(table))
        return {"rows": len(truth), **all_measures(truth, found)}


def train(
    source: Path,
    labels: Sequence[str],
    *,
    ignore: Sequence[str] = (),
    categorical: Sequence[str] = (),
    model: str = "network",
    run: Run | None = None,
    **options: Any,
) -> tuple[TablePipeline, dict[str, Any]]:
    """A pipeline fitted to a table, and facts of the fit.

    labels: the label columns, of two values each. ignore: columns that are no features. categorical: columns whose
    numbers are codes of categories. model: of `MODELS`. options: `alpha`, `kernel`, `order` and `loss`, where the model
    has them; without them cross-validation chooses.
    """
    run = run or Run()
    estimator = make_model(model, run.seed, **options)
    table = read_table(source)
    with _named(source):
        _require(table, [*labels, *ignore, *categorical])
        names = [name for name in table if name not in {*labels, *ignore}]
        if not names:
            raise PotentiaError("no column is left that could be a feature.")
        own, held = run.split(len(table[labels[0]]))
        rows = {name: [column[i] for i in own] for name, column in table.items()}
        features = [learn_feature(name, rows[name], name in categorical) for name in names]
        for feature in features:
            texts = len(feature.texts or ())
            if texts > max(_FEW, len(own) // 2):
                run.say(
                    f"column {feature.name!r} has {texts} different texts in {len(own)} rows, and each becomes a "
                    f"feature; --ignore {feature.name} leaves it out, and numbers need a decimal point"
                )
        pipeline = TablePipeline(estimator, model, features, [learn_label(n, table[n]) for n in labels])
        X, y = pipeline.matrix(table), pipeline.truth(table)
    digest = digest_of([X.tobytes(), y.tobytes(), *names, *labels])
    with _named(source), run.resumable([digest, repr(estimator)]) as checkpoint:
        estimator.fit(X[own], y[own], progress=run.progress, checkpoint=checkpoint)
    facts = {"rows": len(y), "features": X.shape[1], "labels": list(labels), **chosen(estimator)}
    facts |= _measured("training", y[own], estimator.predict(X[own]))
    if len(held):
        facts |= _measured("validation", y[held], estimator.predict(X[held]))
    return pipeline, facts


def _measured(part: str, truth: Ints, found: Ints) -> dict[str, float]:
    return {f"{part}_{name}": value for name, value in all_measures(truth, found).items()}


def _n_rows(table: Table) -> int:
    """How many rows a table has; refuses what is no table."""
    if not isinstance(table, Mapping):
        raise PotentiaError("a table is a dictionary of columns by name, each a list with a text per row.")
    counts = {len(column) for column in table.values()}
    if len(counts) > 1:
        raise PotentiaError(f"the table's columns have different lengths, {min(counts)} to {max(counts)}.")
    return counts.pop() if counts else 0


def _require(table: Table, names: Sequence[str]) -> None:
    lacking = [name for name in names if name not in table]
    if lacking:
        raise PotentiaError(f"there is no column {lacking[0]!r}; there are {', '.join(map(repr, table))}.")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Puts the file's name before sentences about its columns."""
    try:
        yield
    except PotentiaError as error:
        raise PotentiaError(f"{path}: {error}") from None
