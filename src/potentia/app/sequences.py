"""Tokens in columns: from a CoNLL file to a pipeline that labels the tokens of other sentences."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from ..base.files import naming
from ..base.saving import digest_of
from ..base.schema import FLAG, TEXT, Count, Items, Named, Schema
from ..base.types import Ints, PotentiaError, is_number, warn_caller
from ..features.parts import Loaded, Parts
from ..features.schemes import SCHEMES, TagCounts, count_tags, scheme_breaks
from ..features.tokens import (
    DOCUMENT_START,
    Clusters,
    Gazetteer,
    Sentence,
    TokenFeatures,
    TokenSpan,
    no_tokens,
    token_spans,
)
from ..learn.backends.connection import iterate_anywhere, map_anywhere
from ..models.chain_crf import ChainCRF
from .pipeline import Pipeline, Staging, check_target, seen_by_workers, write_stream

if TYPE_CHECKING:
    from .training import Run

#: Limit of steps, and the share of the objective by which ten of them must lower it: more changes no label.
_ITERATIONS, _DELTA = 200, 1e-3
#: Bytes that the attributes of a byte of text take, about.
_BYTES_PER_BYTE = 16
#: An attribute that every token has.
_BIAS = "bias"
#: Tokens up to which the share of training labels predicted right is measured.
_MEASURED_TOKENS = 10_000

#: Bytes of a file that are read as one part, up to the next sentence. Cuts never depend on the number of workers.
SPAN_BYTES = 1 << 22

#: Share of sentences that may break a scheme for the user to be told, and what breaks it most often.
_ALMOST = 0.25
_BROKEN = {
    "BIO": "an I- that continues no span of its type",
    "BIOES": "a span without its B-, E- or S-",
    "IOB1": "a B- that follows no span of its type",
}

#: A column of numbers has at least this many different ones, and this share of its numbers are different.
_MANY_NUMBERS, _DIFFERENT = 20, 0.2

#: A span and the numbers of the sentences wanted of it; None for all.
Chosen = tuple[TokenSpan, Ints | None]


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
        "gazetteers": Named(Items(TEXT)),
        "clusters": Named(Named(TEXT)),
    }

    def settings(self) -> dict[str, Any]:
        """How indicators are made, and the number of columns."""
        f = self.features
        phrases = {name: gazetteer.phrases for name, gazetteer in f.gazetteers.items()}
        codes = {name: clusters.codes for name, clusters in f.clusters.items()}
        own = {"window": f.window, "spelling": f.spelling, "columns": self.n_columns}
        return own | {"gazetteers": phrases, "clusters": codes}

    @classmethod
    def restore(cls, settings: Mapping[str, Any], content: Any, arrays: Any) -> SequencePipeline:
        """The pipeline that `settings` and the model's state describe."""
        gazetteers = {name: Gazetteer(phrases) for name, phrases in settings["gazetteers"].items()}
        clusters = {name: Clusters(codes) for name, codes in settings["clusters"].items()}
        features = TokenFeatures(settings["window"], 1, settings["spelling"], gazetteers, clusters)
        return cls(ChainCRF.from_state(content, arrays), features, settings["columns"])

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
        """The names of every token's indicators, and one that all have."""
        for number, sentence in enumerate(sentences):
            _check_sentence(number, sentence, self.n_columns)
            names = self.features.names(sentence[: self.n_columns - 1])
            yield ([*token, _BIAS] for token in names)

    # -- files ---------------------------------------------------------------------------------------------

    def predict_files(
        self, source: Path, out: Path, *, decode: str | None = None, encoding: str | None = None, progress: bool = False
    ) -> dict[str, Any]:
        """The columns of a file and the predicted label last, separated by tabs; `out` is a folder if `source` is."""
        files = spans_by_file(source, encoding)
        self._warn_of_unknown(next(iter(files.values()))[0])
        label_numbers = iterate_anywhere(partial(_label_numbers, self, decode), list(chain(*files.values())))
        if source.is_dir():
            if out.exists() and out.samefile(source):
                raise PotentiaError(f"{out} is the data itself; --out needs another name.")
            with Staging(out) as staging:
                counts = [
                    self._write(staging.file(path.name), path, spans, label_numbers) for path, spans in files.items()
                ]
            written = [str(out / path.name) for path in files]
        else:
            check_target(out, source)
            counts = [self._write(out, path, spans, label_numbers) for path, spans in files.items()]
            written = [str(out)]
        sentences, tokens = map(sum, zip(*counts, strict=True))
        return {"sentences": sentences, "tokens": tokens, "written": written}

    def _warn_of_unknown(self, span: TokenSpan) -> None:
        """Warn of columns none of whose values has a weight, such as labels where a column of features is missing."""
        sentences = self.read(span, labelled=False) if self.n_columns > 2 else []
        for column in range(1, self.n_columns - 1):
            values = {value for sentence in sentences for value in sentence[column]}
            if values and not any(f"{column}[0]={value}" in self.model.index_.numbers for value in values):
                warn_caller(
                    f"the model knows none of the values of column {column + 1} of {span.path}; columns must be those "
                    "of the training file, with or without the label.",
                    UserWarning,
                )

    def _write(
        self, out: Path, path: Path, spans: Sequence[TokenSpan], label_numbers: Iterator[Any]
    ) -> tuple[int, int]:
        """Write a file with labels, whose numbers come span by span; numbers of sentences and tokens."""
        n_sentences = n_tokens = 0
        with write_stream(out) as raw:
            for span in spans:
                numbers = iter(next(label_numbers).tolist())
                for sentence in span.sentences(documents=True):
                    labels = [str(self.model.classes_[k]) for k in islice(numbers, len(sentence[0]))]
                    if sentence[0] == [DOCUMENT_START] and "O" in self.model.classes_:
                        labels = ["O"]
                    lines = "".join("\t".join(token) + "\n" for token in zip(*sentence, labels, strict=True))
                    raw.write(("\n" + lines if n_sentences else lines).encode())
                    n_sentences, n_tokens = n_sentences + 1, n_tokens + len(labels)
            if not n_sentences:
                raise no_tokens(path)
        return n_sentences, n_tokens

    def evaluate_files(
        self,
        source: Path,
        *,
        decode: str | None = None,
        encoding: str | None = None,
        count_unknown: bool = False,
        progress: bool = False,
    ) -> dict[str, Any]:
        """Share of tokens right and, where labels are spans (B-, I-), precision, recall and F1 of whole spans by type.

        Labels that training did not have are refused, or with `count_unknown` are just wrong.
        """
        files = spans_by_file(source, encoding)
        items = [(span, None) for spans in files.values() for span in spans]
        judged = list(iterate_anywhere(partial(_judge, self, decode, count_unknown), items))
        with_tokens = {item[0].path for item, counts in zip(items, judged, strict=True) if counts.sentences}
        for path in files:
            if path not in with_tokens:
                raise no_tokens(path)
        counts = reduce(TagCounts.plus, judged)
        return {"sentences": counts.sentences, "tokens": counts.tokens} | _scores(counts, self.model.classes_)

    def detail_tables(self, facts: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """Scores per type of span."""
        return {"spans": facts.pop("spans")} if "spans" in facts else {}

    def read(self, span: TokenSpan, labelled: bool) -> list[list[list[str]]]:
        """The sentences of a span, whose last column may be left out where labels are not needed."""
        sentences, wanted = span.sentences(documents=not labelled, labelled=labelled), self.n_columns
        has = len(sentences[0]) if sentences else wanted
        if has != wanted and (labelled or has != wanted - 1):
            other = "" if labelled else f" or, without labels, {wanted - 1}"
            raise PotentiaError(f"{span.path} has {has} columns, but the model was trained on {wanted}{other}.")
        return sentences


def _label_numbers(pipeline: SequencePipeline, decode: str | None, span: TokenSpan) -> Any:
    """Numbers of the predicted labels of a span's tokens."""
    predicted = pipeline.predict(pipeline.read(span, labelled=False), decode)
    place = {label: k for k, label in enumerate(pipeline.model.classes_)}
    return np.fromiter((place[label] for labels in predicted for label in labels), dtype=np.uint16)


def _scores(counts: TagCounts, classes: Iterable[Any]) -> dict[str, Any]:
    """Share of tokens right, and scores of spans if the labels have such."""
    scores: dict[str, Any] = {"accuracy": counts.right_tokens / counts.tokens}
    if any(str(label)[:2] in ("B-", "I-", "E-", "S-") for label in classes):
        scores |= {f"span_{name}": value for name, value in counts.span_scores().items()}
        scores["spans"] = counts.span_table()
    return scores


def _judge(pipeline: SequencePipeline, decode: str | None, count_unknown: bool, item: Chosen) -> TagCounts:
    """Compare the predictions of sentences with their labels."""
    sentences = choose(pipeline.read(item[0], labelled=True), item[1])
    truth = [sentence[-1] for sentence in sentences]
    known = set(pipeline.model.classes_)
    strange = next((label for labels in truth for label in labels if label not in known), None)
    if strange is not None and not count_unknown:
        raise PotentiaError(
            f"{item[0].path}: the label {strange!r} did not occur in training; --count-unknown counts it as wrong."
        )
    return count_tags(truth, pipeline.predict(sentences, decode))


def train(
    source: Path,
    *,
    iterations: int | None = None,
    c1: float = 0.1,
    c2: float = 0.1,
    scheme: str | None = None,
    gazetteers: Sequence[Path] = (),
    clusters: Sequence[Path] = (),
    encoding: str | None = None,
    run: Run | None = None,
) -> tuple[SequencePipeline, dict[str, Any]]:
    """A pipeline fitted to the sentences of a file, or of a folder of files, by maximum likelihood; facts of the fit.

    A file has a token per line, words first and labels last, and a blank line between sentences. scheme: "BIO",
    "BIOES", "IOB1" or "none"; None for the one that the labels keep to, if any.
    """
    from .training import Run, cluster_facts

    run = run or Run()
    features = TokenFeatures(
        spelling=True,
        gazetteers={path.stem: Gazetteer.read(path) for path in gazetteers},
        clusters={path.stem: Clusters.read(path) for path in clusters},
    )
    spans = list(chain(*spans_by_file(source, encoding).values()))
    span_facts = map_anywhere(look, [(span, None) for span in spans])
    n_columns = check_columns(source, spans, span_facts)
    own, held = split(run, spans, [facts.sentences for facts in span_facts])
    chosen = span_facts if run.validation is None else map_anywhere(look, own)
    check_labels(source, chosen)
    known, hint = find_scheme(chosen) if scheme is None else (None if scheme == "none" else scheme, None)
    for message in [*doubtful(span_facts), *([] if hint is None else [hint])]:
        run.say(message)
    model = ChainCRF(c1, c2, _ITERATIONS if iterations is None else iterations, delta=_DELTA, scheme=known)
    pipeline = SequencePipeline(model, features, n_columns)
    options = {k: v for k, v in model.get_params().items() if k != "max_iterations"}
    lists_used = sorted(pipeline.settings()["gazetteers"].items())
    lists_used += [(name, sorted(own.codes.items())) for name, own in sorted(features.clusters.items())]
    marks = [*(facts.digest for facts in span_facts), repr(options), repr(lists_used)]
    with run.resumable(marks) as checkpoint, naming(source):
        sources = [_source(pipeline, item) for item in own]
        model.fit(Parts(sources, len(sources)), progress=run.progress, checkpoint=checkpoint)
    facts = {
        "sentences": sum(part.sentences for part in span_facts),
        "tokens": sum(part.tokens for part in span_facts),
        "labels": model.classes_,
        "scheme": known,
        "iterations": model.n_iter_,
        "objective": model.history_[-1]["objective"],
        **cluster_facts(model.history_),
    }
    measured = {"training": own if facts["tokens"] <= _MEASURED_TOKENS else [], "validation": held}
    for name, items in measured.items():
        if items:
            counts = reduce(TagCounts.plus, map_anywhere(partial(_judge, pipeline, None, True), items))
            scores = _scores(counts, model.classes_)
            facts |= {f"{name}_{key}": scores[key] for key in ("accuracy", "span_f1") if key in scores}
    return pipeline, facts


def _source(pipeline: SequencePipeline, item: Chosen) -> Loaded:
    """Sentences as a part of a data set; whoever has the part reads them."""
    size = item[0].n_bytes
    size = None if size is None else _BYTES_PER_BYTE * size
    return Loaded(partial(_labelled, pipeline, item), item[0].name, size=size)


def _labelled(pipeline: SequencePipeline, item: Chosen) -> tuple[Any, list[Any]]:
    """Attributes and labels of sentences."""
    sentences = choose(item[0].sentences(), item[1])
    return pipeline._attributes(sentences), [sentence[-1] for sentence in sentences]


def _check_sentence(number: int, sentence: Sentence, n_columns: int) -> None:
    """Refuse anything but a list of columns of equal length."""
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


# -- files in parts ------------------------------------------------------------------------------------------


def spans_by_file(source: Path, encoding: str | None) -> dict[Path, list[TokenSpan]]:
    """The spans of a token file, or of all files of a folder, in the order of their names."""
    place = seen_by_workers(source)
    files = [place]
    if place.is_dir():
        files = sorted(path for path in place.iterdir() if path.is_file() and not path.name.startswith("."))
        if not files:
            raise PotentiaError(f"{source} has no files.")
    return {path: token_spans(path, encoding, SPAN_BYTES) for path in files}


def choose(sentences: list[Any], numbers: Ints | None) -> list[Any]:
    """The sentences of these numbers; None for all."""
    return sentences if numbers is None else [sentences[k] for k in numbers]


class SpanFacts(NamedTuple):
    """What some sentences have.

    Attributes:
        breaks: counts of sentences that break a scheme.
        joined: whether any sentence has two tokens.
        first: the label of the file's first token, if it is among these sentences, and how often it occurs in them.
        numbers: columns before the label that hold many different numbers, and nothing else.
    """

    sentences: int
    tokens: int
    columns: int | None
    digest: str
    labels: Mapping[str, int]
    breaks: Mapping[str, int]
    joined: bool
    first: str | None
    numbers: frozenset[int]


def look(item: Chosen) -> SpanFacts:
    """Read sentences for a first time."""
    sentences = choose(item[0].sentences(labelled=True), item[1])
    labels = [sentence[-1] for sentence in sentences]
    return SpanFacts(
        len(sentences),
        sum(map(len, labels)),
        len(sentences[0]) if sentences else None,
        digest_of("\n".join("\t".join(column) for column in sentence) for sentence in sentences),
        Counter(label for row in labels for label in row),
        scheme_breaks(labels),
        any(len(row) > 1 for row in labels),
        labels[0][0] if labels and item[0].first == 0 else None,
        frozenset(_number_columns(sentences)),
    )


def _number_columns(sentences: Sequence[Any]) -> Iterator[int]:
    """Columns between words and labels that hold many different numbers."""
    for column in range(1, len(sentences[0]) - 1 if sentences else 0):
        values = [value for sentence in sentences for value in sentence[column]]
        different = len(set(values))
        if different >= max(_MANY_NUMBERS, _DIFFERENT * len(values)) and all(map(is_number, values)):
            yield column


def doubtful(span_facts: Sequence[SpanFacts]) -> Iterator[str]:
    """What to tell the user of lines that look like headers and of columns of numbers."""
    labels = sum((Counter(facts.labels) for facts in span_facts), Counter[str]())
    firsts = Counter(facts.first for facts in span_facts if facts.first is not None)
    for label, n in firsts.items():
        if labels[label] == n < len(labels) and labels.total() >= _MANY_NUMBERS:
            yield (
                f"the label {label!r} occurs in the first line only, which may be a header; if it is, delete that line."
            )
    for column in sorted(frozenset[int]().union(*(facts.numbers for facts in span_facts))):
        yield (
            f"column {column + 1} holds many different numbers, each of which is a separate feature, however close "
            "they are: round them, or train pt.ChainCRF in Python, which takes numbers."
        )


def split(run: Run, spans: Sequence[TokenSpan], counts: Sequence[int]) -> tuple[list[Chosen], list[Chosen]]:
    """Spans with the sentences to train on, and with those that are held out."""
    if run.validation is None:
        return [(span, None) for span in spans], []
    ends = np.cumsum([0, *counts])
    own, held = (
        [(span, part[(part >= a) & (part < b)] - a) for span, (a, b) in zip(spans, pairwise(ends), strict=True)]
        for part in run.split(int(ends[-1]))
    )
    return own, [item for item in held if len(item[1])]


def find_scheme(span_facts: Sequence[SpanFacts]) -> tuple[str | None, str | None]:
    """The first scheme that allows all labels, None without spans; and what to tell the user if a few sentences break
    the one that most keep to.
    """
    total = sum(facts.sentences for facts in span_facts)
    counts = {
        name: sum(facts.breaks[name] for facts in span_facts)
        for name in SCHEMES
        if all(name in facts.breaks for facts in span_facts)
    }
    name = min(counts, key=counts.__getitem__, default=None)
    spans = any(facts.labels.keys() - {"O"} for facts in span_facts)
    if name is None or not spans or counts[name] > _ALMOST * total:
        return None, None
    if not counts[name]:
        return name, None
    return None, (
        f"labels look like {name}, but {counts[name]} of {total} sentences break it (such as "
        f"{_BROKEN[name]}), so impossible sequences of labels may be predicted; correct these sentences "
        "to exclude them, or give --scheme none."
    )


def check_columns(source: Path, spans: Sequence[TokenSpan], span_facts: Sequence[SpanFacts]) -> int:
    """The number of columns of all files, which must be one and at least two."""
    numbers = {
        span.path: facts.columns for span, facts in zip(spans, span_facts, strict=True) if facts.columns is not None
    }
    if not numbers:
        raise no_tokens(source)
    first, wanted = next(iter(numbers.items()))
    other = next((path for path, number in numbers.items() if number != wanted), None)
    if other is not None:
        raise PotentiaError(f"{other} has {numbers[other]} columns, but {first} has {wanted}.")
    if wanted < 2:
        raise PotentiaError(f"{source}: sentences need at least two columns: words, and labels last.")
    return wanted


def check_labels(source: Path, span_facts: Sequence[SpanFacts]) -> None:
    """Refuse files that there is nothing to learn from."""
    values = frozenset[str]().union(*(facts.labels for facts in span_facts))
    if len(values) < 2:
        shown = next(iter(values), "")
        raise PotentiaError(f"{source}: the last column, which holds the labels, has only one value, {shown!r}.")
    if not any(facts.joined for facts in span_facts):
        raise PotentiaError(f"{source}: no two words to train on are neighbours: each stands alone.")
