"""Tokens in columns: from a CoNLL file to a pipeline that labels the tokens of other sentences."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from .._digest import digest_of
from .._schema import FLAG, TEXT, Count, Items, Named, Schema
from .._types import PotentiaError
from ..chain_crf import ChainCRF
from ..data.sequences import DOCUMENT_START, conll
from ..estimators import CRF
from ..features.gazetteers import Gazetteer
from ..features.schemes import find_scheme
from ..features.spans import span_scores, span_table
from ..features.tokens import Sentence, TokenFeatures
from ..potentials.linear import Linear
from .outputs import check_target, write_text
from .pipeline import Pipeline
from .training import Run

#: Limit of steps, and the share of the objective by which ten of them must lower it: more changes no label.
_ITERATIONS, _DELTA = 200, 1e-3
#: An attribute that every token has.
_BIAS = "bias"
#: Tokens up to which the share of training labels predicted right is measured.
_MEASURED_TOKENS = 10_000


@dataclass(repr=False)
class SequencePipeline(Pipeline):
    """A chain CRF over the tokens of sentences, with indicators of words, other columns and spelling as features.

    Attributes:
        model: the fitted chain.
        features: makes the indicators.
        n_columns: columns of the training file, the label among them.
    """

    model: ChainCRF
    features: TokenFeatures
    n_columns: int

    form: ClassVar[str] = "sequences"
    saved: ClassVar[Schema] = {
        "window": Count(most=1000),
        "spelling": FLAG,
        "columns": Count(least=2),
        "gazetteers": Named(Items(TEXT), optional=True),
        # of files of version 0.1
        "labels": Items(TEXT, optional=True),
        "indicators": Items(TEXT, optional=True),
    }

    def settings(self) -> dict[str, Any]:
        """How indicators are made, and the number of columns."""
        f = self.features
        phrases = {name: gazetteer.phrases for name, gazetteer in f.gazetteers.items()}
        return {"window": f.window, "spelling": f.spelling, "columns": self.n_columns, "gazetteers": phrases}

    @classmethod
    def restore(cls, settings: Mapping[str, Any], content: Any, arrays: Any) -> SequencePipeline:
        """The pipeline that `settings` and the model's state describe."""
        gazetteers = {name: Gazetteer(own) for name, own in (settings["gazetteers"] or {}).items()}
        features = TokenFeatures(settings["window"], 1, settings["spelling"], gazetteers)
        if settings["indicators"] is None:
            return cls(ChainCRF.from_state(content, arrays), features, settings["columns"])
        model = _chain_of(CRF.from_state(content, arrays), settings["labels"] or [], settings["indicators"])
        return cls(model, features, settings["columns"])

    def facts(self) -> dict[str, Any]:
        """Labels, the number of indicators, and the model."""
        labels = ", ".join(map(str, self.model.classes_))
        return {"labels": labels, "indicators": len(self.model.index_.numbers), **super().facts()}

    def predict(self, sentences: Sequence[Sentence], decode: str | None = None) -> list[list[str]]:
        """A label per token of each sentence; sentences have the training file's columns, with or without labels.

        decode: "map" for the best whole sequence, "mpm" for the best label of each token; None for the model's own.
        """
        model = self.model if decode is None else copy.copy(self.model).set_params(decode=decode)
        return model.predict(self._attributes(sentences))

    def predict_marginals(self, sentences: Sequence[Sentence]) -> list[list[dict[str, float]]]:
        """The probability of every label of every token."""
        return self.model.predict_marginals(self._attributes(sentences))

    def _attributes(self, sentences: Sequence[Sentence]) -> Iterator[Iterator[list[str]]]:
        """The names of every token's indicators."""
        for number, sentence in enumerate(sentences):
            _check_sentence(number, sentence, self.n_columns)
            yield attributes(self.features, sentence[: self.n_columns - 1])

    # -- files ---------------------------------------------------------------------------------------------

    def predict_files(
        self, source: Path, out: Path, *, decode: str | None = None, encoding: str | None = None, **_: Any
    ) -> dict[str, Any]:
        """The file's columns and the predicted label last, separated by tabs."""
        check_target(out, source)
        sentences = self._read(source, encoding, labelled=False)
        found = self.predict(sentences, decode)
        for sentence, labels in zip(sentences, found, strict=True):
            if sentence[0] == [DOCUMENT_START] and "O" in self.model.classes_:
                labels[:] = ["O"]
        blocks = [
            "".join("\t".join(token) + "\n" for token in zip(*columns, labels, strict=True))
            for columns, labels in zip(sentences, found, strict=True)
        ]
        write_text(out, "\n".join(blocks))
        return {"sentences": len(sentences), "tokens": sum(map(len, found)), "written": [str(out)]}

    def evaluate_files(
        self,
        source: Path,
        *,
        decode: str | None = None,
        encoding: str | None = None,
        count_unknown: bool = False,
        **_: Any,
    ) -> dict[str, Any]:
        """Share of tokens right and, where labels are spans (B-, I-), precision, recall and F1 of whole spans by type.

        Labels that training did not have are refused, or with `count_unknown` are just wrong.
        """
        sentences = self._read(source, encoding, labelled=True)
        truth = [list(sentence[-1]) for sentence in sentences]
        known = set(self.model.classes_)
        strange = next((label for labels in truth for label in labels if label not in known), None)
        if strange is not None and not count_unknown:
            raise PotentiaError(
                f"{source}: the label {strange!r} did not occur in training; --count-unknown counts it as wrong."
            )
        found = self.predict(sentences, decode)
        counts = {"sentences": len(truth), "tokens": sum(map(len, truth))}
        return counts | _scores(truth, found, self.model.classes_)

    def _read(self, source: Path, encoding: str | None, labelled: bool) -> list[list[list[str]]]:
        """The sentences of a file, whose last column may be left out where labels are not needed."""
        sentences, wanted = conll(source, encoding=encoding, documents=not labelled), self.n_columns
        has = len(sentences[0])
        if has != wanted and (labelled or has != wanted - 1):
            other = "" if labelled else f" or, without labels, {wanted - 1}"
            raise PotentiaError(f"{source} has {has} columns, but the model was trained on {wanted}{other}.")
        return sentences


def attributes(features: TokenFeatures, inputs: Sentence) -> Iterator[list[str]]:
    """The names of every token's indicators, and one that all have."""
    return ([*names, _BIAS] for names in features.names(inputs))


def train(
    source: Path,
    *,
    iterations: int | None = None,
    c1: float = 0.1,
    c2: float = 0.1,
    scheme: str | None = None,
    gazetteers: Sequence[Path] = (),
    encoding: str | None = None,
    run: Run | None = None,
) -> tuple[SequencePipeline, dict[str, Any]]:
    """A pipeline fitted to the sentences of a file by maximum likelihood, and facts of the fit.

    The file has a token per line, words first and labels last, and a blank line between sentences. scheme: "BIO",
    "BIOES", "IOB1" or "none"; None for the one that the labels keep to, if any.
    """
    run = run or Run()
    features = TokenFeatures(
        spelling=True, gazetteers={path.stem: Gazetteer.read(path) for path in gazetteers}
    )
    sentences = conll(source, encoding=encoding)
    own, held = ([sentences[i] for i in part] for part in run.split(len(sentences)))
    labels = [sentence[-1] for sentence in own]
    _check_labels(source, own, labels)
    known = find_scheme(labels) if scheme is None else None if scheme == "none" else scheme
    model = ChainCRF(c1, c2, _ITERATIONS if iterations is None else iterations, delta=_DELTA, scheme=known)
    pipeline = SequencePipeline(model, features, len(sentences[0]))
    options = {k: v for k, v in model.get_params().items() if k != "max_iterations"}
    marks = [
        digest_of(_texts(sentences)),
        repr(options),
        repr(sorted(pipeline.settings()["gazetteers"].items())),
    ]
    with run.resumable(marks) as checkpoint:
        try:
            model.fit(pipeline._attributes(own), labels, progress=run.progress, checkpoint=checkpoint)
        except PotentiaError as error:
            raise PotentiaError(f"{source}: {error}") from None
    tokens = sum(len(sentence[0]) for sentence in sentences)
    facts: dict[str, Any] = {
        "sentences": len(sentences),
        "tokens": tokens,
        "labels": model.classes_,
        "scheme": known,
    }
    facts |= {"iterations": model.n_iter_, "objective": model.history_[-1]["objective"]}
    measured = {"training": own if tokens <= _MEASURED_TOKENS else [], "validation": held}
    for name, some in measured.items():
        if some:
            found = _scores([s[-1] for s in some], pipeline.predict(some), model.classes_)
            facts |= {f"{name}_{key}": found[key] for key in ("accuracy", "span_f1") if key in found}
    return pipeline, facts


def _scores(
    truth: Sequence[Sequence[str]], found: Sequence[Sequence[str]], classes: Iterable[Any]
) -> dict[str, Any]:
    """Share of tokens right, and scores of spans if the labels have such."""
    pairs = [(a, b) for x, y in zip(truth, found, strict=True) for a, b in zip(x, y, strict=True)]
    scores: dict[str, Any] = {"accuracy": sum(a == b for a, b in pairs) / len(pairs)}
    if any(str(label)[:2] in ("B-", "I-", "E-", "S-") for label in classes):
        scores |= {f"span_{name}": value for name, value in span_scores(truth, found).items()}
        scores["spans"] = span_table(truth, found)
    return scores


def _check_labels(source: Path, own: Sequence[Sentence], labels: Sequence[Sequence[str]]) -> None:
    """Refuse a file that there is nothing to learn from."""
    if len(own[0]) < 2:
        raise PotentiaError(f"{source}: sentences need at least two columns: words, and labels last.")
    values = {label for row in labels for label in row}
    if len(values) < 2:
        raise PotentiaError(
            f"{source}: the last column, which holds the labels, has only one value, {values.pop()!r}."
        )
    if all(len(row) == 1 for row in labels):
        raise PotentiaError(f"{source}: no two words to train on are neighbours: each stands alone.")


def _check_sentence(number: int, sentence: Sentence, n_columns: int) -> None:
    """Refuse what is no list of columns of one length."""
    if isinstance(sentence, str) or any(isinstance(column, str) for column in sentence):
        raise PotentiaError(
            f"sentence {number} must be a list of columns, each with a text per token, such as [['The', 'dog']]."
        )
    if len(sentence) not in (n_columns - 1, n_columns):
        raise PotentiaError(
            f"sentence {number} has {len(sentence)} columns, but the model was trained on {n_columns} or, without "
            f"labels, {n_columns - 1}."
        )
    lengths = {len(column) for column in sentence}
    if len(lengths) > 1:
        raise PotentiaError(f"the columns of sentence {number} have {sorted(lengths)} tokens.")


def _chain_of(crf: CRF, labels: Sequence[str], indicators: Sequence[str]) -> ChainCRF:
    """The chain that a CRF of version 0.1 is, with the same marginals."""
    node, n = cast(Linear, crf.potentials_["node"]), len(labels)
    names = [name.encode() for name in (*indicators, _BIAS)]
    state = crf.scales_["node"] * np.vstack([node.coef_, node.intercept_])
    pairs = crf.scales_["edge"] * crf.potentials_["edge"].scores(np.zeros((1, 0))).reshape(n, n)
    content = {
        "params": {**ChainCRF().get_params(), "decode": crf.decode or "mpm"},
        "labels": list(labels),
        "history": crf.history_,
        "columns": {},
    }
    arrays = {
        "names": np.frombuffer(b"".join(names), dtype=np.uint8),
        "name_ptr": np.cumsum([0, *map(len, names)]),
        "feature_ptr": n * np.arange(len(names) + 1),
        "feature_label": np.tile(np.arange(n, dtype=np.uint16), len(names)),
        "state": state.ravel(),
        "pairs": pairs,
        "dense": np.zeros((0, n)),
    }
    return ChainCRF.from_state(content, arrays)


def _texts(sentences: Sequence[Sentence]) -> list[str]:
    return ["\n".join("\t".join(column) for column in sentence) for sentence in sentences]
