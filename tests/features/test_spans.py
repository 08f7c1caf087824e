"""Spans that labels encode: what schemes allow, and scores beside seqeval's."""

import warnings

import numpy as np
import pytest

from potentia.base.types import PotentiaError
from potentia.features import span_scores, span_table
from potentia.features.schemes import SCHEMES, find_scheme, spans
from tags import legal, tags


def test_spans_count_as_the_shared_task_does():
    truth = [["B-NP", "I-NP", "O", "B-VP", "B-VP"], ["I-PP", "O"]]
    assert span_scores(truth, truth)["f1"] == 1.0
    found = [["B-NP", "I-NP", "O", "B-VP", "I-VP"], ["B-PP", "O"]]
    # right: NP and PP; there are four spans, three were found
    assert span_scores(truth, found) == {"precision": 2 / 3, "recall": 0.5, "f1": pytest.approx(4 / 7)}
    assert span_scores([["O"]], [["O"]])["f1"] == 1.0
    assert span_table(truth, found)[2] == {
        "type": "VP", "precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 2
    }  # fmt: skip


def test_spans_of_bioes_are_whole_ones():
    truth, found = [["B-PER", "E-PER", "O", "S-LOC"]], [["B-PER", "O", "O", "O"]]
    assert span_scores(truth, found) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert list(spans(truth[0])) == list(spans(truth[0], "BIOES")) == [(0, 2, "PER"), (3, 4, "LOC")]
    assert list(spans(found[0])) == [(0, 1, "PER")]
    assert list(spans(found[0], "BIOES")) == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_legal_labels_mean_the_same_with_and_without_a_scheme(scheme):
    for n in range(1, 5):
        for row in legal(scheme, n):
            assert list(spans(row)) == list(spans(row, scheme))


@pytest.mark.parametrize("scheme", [None, *SCHEMES])
def test_scores_agree_with_seqeval(scheme):
    metrics = pytest.importorskip("seqeval.metrics")
    from seqeval import scheme as schemes

    strict = {"BIO": schemes.IOB2, "BIOES": schemes.IOBES, "IOB1": schemes.IOB1}
    options = {} if scheme is None else {"mode": "strict", "scheme": strict[scheme]}
    rng = np.random.default_rng(0)
    pool = [row for n in range(1, 5) for row in legal(scheme or "BIOES", n)]
    for _ in range(20):
        truth = [pool[k] for k in rng.integers(len(pool), size=40)]
        if scheme == "IOB1":  # seqeval drops spans that are cut off by an illegal B of another type
            found = [list(rng.permutation([row for row in pool if len(row) == len(a)])[0]) for a in truth]
        else:
            found = [list(rng.choice(tags(scheme or "BIOES"), size=len(row))) for row in truth]
        found = [a if rng.random() < 0.3 else b for a, b in zip(truth, found, strict=True)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = metrics.classification_report(truth, found, output_dict=True, digits=9, **options)
        table = span_table(truth, found, scheme)
        for row in table:
            theirs = report[row["type"]]
            assert row["support"] == theirs["support"]
            for name, key in (("precision", "precision"), ("recall", "recall"), ("f1", "f1-score")):
                assert row[name] == pytest.approx(theirs[key])
        micro = span_scores(truth, found, scheme)
        assert micro["f1"] == pytest.approx(report["micro avg"]["f1-score"])


def test_schemes_are_found_by_the_labels():
    for scheme in SCHEMES:
        rows = list(legal(scheme, 4))
        assert find_scheme(rows) == scheme
    assert find_scheme([["B-X", "I-X"], ["I-X", "B-Y"]]) is None
    assert find_scheme([["NN", "VB"]]) is find_scheme([["O", "O"]]) is find_scheme([]) is None
    assert find_scheme([[None, "I-X"], ["O", "B-X", None]]) == "BIO"


def test_wrong_arguments_get_a_sentence():
    with pytest.raises(PotentiaError, match=r"scheme must be one of .BIO., .BIOES., .IOB1. or None, not 'IOE2'"):
        span_scores([["O"]], [["O"]], "IOE2")
    with pytest.raises(PotentiaError, match="truth has 1 sequences, but predicted has 2"):
        span_scores([["O"]], [["O"], ["O"]])
    with pytest.raises(PotentiaError, match="sequence 1 has 1 true labels, but 2 predicted ones"):
        span_scores([["O"], ["O"]], [["O"], ["O", "O"]])
