"""Tokens in columns: from a CoNLL file to a pipeline that labels the tokens of other sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .._digest import digest_of
from .._schema import FLAG, TEXT, Count, Items, Schema
from .._types import PotentiaError
from ..data.sequences import conll
from ..estimators import CRF
from ..features.spans import span_scores, span_table
from ..features.tokens import Sentence, TokenFeatures
from ..inference.exact import Exact
from ..learn.risk import MarginalRisk
from ..potentials.constant import Constant
from ..potentials.linear import Linear
from .outputs import check_target, write_text
from .pipeline import Pipeline
from .training import Run, fit

#: Tokens beyond which an indicator must occur twice.
_MANY = 10_000


@dataclass(repr=False)
class SequencePipeline(Pipeline):
    """A chain CRF over the tokens of sentences, with indicators of words, other columns and spelling as features."""

    model: CRF
    features: TokenFeatures

    form: ClassVar[str] = "sequences"
    saved: ClassVar[Schema] = {
        "window": Count(most=1000),
        "min_count": Count(least=1),
        "spelling": FLAG,
        "labels": Items(TEXT),
        "columns": Count(least=2),
        "indicators": Items(TEXT),
    }

    def settings(self) -> dict[str, Any]:
        """Labels, columns, and every indicator in order."""
        f = self.features
        return {
            "window": f.window,
            "min_count": f.min_count,
            "spelling": f.spelling,
            "labels": f.classes_,
            "columns": f.n_columns_,
            "indicators": list(f.index_),
        }

    @classmethod
    def restore(cls, settings: Mapping[str, Any], content: Any, arrays: Any) -> SequencePipeline:
        """The pipeline that `settings` and the model's state describe."""
        features = TokenFeatures(*(settings[name] for name in ("window", "min_count", "spelling")))
        features.classes_, features.n_columns_ = list(settings["labels"]), settings["columns"]
        features.index_ = {name: k for k, name in enumerate(settings["indicators"])}
        return cls(CRF.from_state(content, arrays), features)

    def facts(self) -> dict[str, Any]:
        """Labels, the number of indicators, and the model."""
        f = self.features
        return {"labels": ", ".join(f.classes_), "indicators": len(f.index_), **super().facts()}

    def predict(self, sentences: Sequence[Sentence]) -> list[list[str]]:
        """A label per token of each sentence; sentences have the training file's columns, with or without labels."""
        labelled = len(sentences[0]) == self.features.n_columns_
        found = self.model.predict(self.features.transform(sentences, labelled=labelled))
        names = np.array(self.features.classes_, dtype=object)
        return [names[states].tolist() for states in found]

    # -- files ---------------------------------------------------------------------------------------------

    def predict_files(self, source: Path, out: Path, **_: Any) -> dict[str, Any]:
        """The file's columns and the predicted label last, separated by tabs."""
        check_target(out, source)
        sentences = self._read(source, labelled=False)
        found = self.predict(sentences)
        blocks = [
            "".join("\t".join(token) + "\n" for token in zip(*columns, labels, strict=True))
            for columns, labels in zip(sentences, found, strict=True)
        ]
        write_text(out, "\n".join(blocks))
        return {"sentences": len(sentences), "tokens": sum(map(len, found)), "written": [str(out)]}

    def evaluate_files(self, source: Path, *, count_unknown: bool = False, **_: Any) -> dict[str, Any]:
        """Share of tokens right and, where labels are spans (B-, I-), precision, recall and F1 of whole spans by type.

        Labels that training did not have are refused, or with `count_unknown` are just wrong.
        """
        sentences = self._read(source, labelled=True)
        truth = [list(sentence[-1]) for sentence in sentences]
        known = set(self.features.classes_)
        strange = next((label for labels in truth for label in labels if label not in known), None)
        if strange is not None and not count_unknown:
            raise PotentiaError(
                f"{source}: the label {strange!r} did not occur in training; --count-unknown counts it as wrong."
            )
        found = self.predict(sentences)
        pairs = [(a, b) for x, y in zip(truth, found, strict=True) for a, b in zip(x, y, strict=True)]
        scores: dict[str, Any] = {"sentences": len(truth), "tokens": len(pairs)}
        scores["accuracy"] = sum(a == b for a, b in pairs) / len(pairs)
        if any(label[:2] in ("B-", "I-", "E-", "S-") for label in known):
            scores |= {f"span_{name}": value for name, value in span_scores(truth, found).items()}
            scores["spans"] = span_table(truth, found)
        return scores

    def _read(self, source: Path, labelled: bool) -> list[list[list[str]]]:
        """The sentences of a file, whose last column may be left out where labels are not needed."""
        sentences, wanted = conll(source), self.features.n_columns_
        has = len(sentences[0])
        if has != wanted and (labelled or has != wanted - 1):
            other = "" if labelled else f" or, without labels, {wanted - 1}"
            raise PotentiaError(f"{source} has {has} columns, but the model was trained on {wanted}{other}.")
        return sentences


def train(
    source: Path, *, iterations: int | None = None, run: Run | None = None
) -> tuple[SequencePipeline, dict[str, Any]]:
    """A pipeline fitted to the sentences of a file by maximum likelihood, and facts of the fit.

    The file has a token per line, words first and labels last, and a blank line between sentences.
    """
    run = run or Run()
    sentences = conll(source)
    own, held = ([sentences[i] for i in part] for part in run.split(len(sentences)))
    tokens = sum(len(sentence[0]) for sentence in own)
    try:
        # what occurs once among many tokens is mostly noise, and the larger part of a large model
        features = TokenFeatures(min_count=2 if tokens > _MANY else 1, spelling=True).fit(own)
    except PotentiaError as error:
        raise PotentiaError(f"{source}: {error}") from None
    if len(features.classes_) < 2:
        raise PotentiaError(
            f"{source}: the last column, which holds the labels, has only one value, {features.classes_[0]!r}."
        )
    # the penalty |w|^2 of a whole file, as usual for chunkers; the learner's is relative to a token
    learner = MarginalRisk(
        "likelihood",
        Exact(),
        ridge=2.0 / tokens,
        iterations=100 if iterations is None else iterations,
        start="zero",
        track_error=run.validation is not None,
        seed=run.seed,
    )
    model = CRF({"node": Linear(), "edge": Constant()}, learner)
    known = [label in features.classes_ for sentence in held for label in sentence[-1]]
    checked = features.transform(held) if any(known) else []
    facts = fit(model, features.transform(own), checked, digest_of(_texts(sentences)), run)
    if known:  # labels that training did not have cannot be right
        facts["validation_accuracy"] = facts.get("validation_accuracy", 0.0) * sum(known) / len(known)
    counts = {"sentences": len(sentences), "tokens": tokens + len(known), "labels": features.classes_}
    return SequencePipeline(model, features), counts | facts


def _texts(sentences: Sequence[Sentence]) -> list[str]:
    return ["\n".join("\t".join(column) for column in sentence) for sentence in sentences]
