"""`parsers`: the tasks of text parsers that run on CRFsuite or Wapiti today, beside CRFsuite on the same features.

grobid's fields in ten folds with its own templates; addresses with the features of the package usaddress, which this
part needs (`pip install usaddress`); references as AnyStyle has them; single sentences and files, loading; forty
million weights; and segments beside chains with tags.
"""

from __future__ import annotations

import io
import json
import lzma
import re
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

import potentia as pt
from potentia.app.report.rows import Cell, Column, Row, Table, grid
from potentia.features.schemes import count_tags
from potentia.features.template import Template

from .bench.sequences import TOKENS
from .bench.timing import in_fresh_process, peak_memory
from .study import Rows, Study, part_rows

GROBID = ("date", "affiliation-address", "name-citation")
FOLDS = 10
_ADDRESSES = ("test_us50", "test_labeled")
#: Coefficients of both systems: Wapiti's defaults, which grobid uses, and those of usaddress.
_PENALTIES = {"grobid": (0.5, 1e-4), "usaddress": (0.1, 0.01), "anystyle": (0.5, 1e-4)}
#: Labels that remember fields, of `_remembering`, and penalties; chosen on inner folds of fold 0's training part.
_REMEMBERING, _OWN_PENALTIES = "template, O by field", (0.1, 0.1)
#: Steps at most. Those with small penalties need many: after 100 steps neither system is near the minimum, and which
#: labels a sequence gets then depends on the way there.
_STEPS = {"grobid": 300, "usaddress": 1000, "anystyle": 1000}

#: Lines added to grobid's template of addresses: joint lower-case words, words with shapes, places farther away.
_MORE = """
UX0:%x[-1,1]/%x[0,1]
UX1:%x[0,1]/%x[1,1]
UX2:%x[-2,1]/%x[-1,1]/%x[0,1]
UX3:%x[0,1]/%x[1,1]/%x[2,1]
UX4:%x[-1,1]/%x[0,1]/%x[1,1]
UX5:%x[-3,1]
UX6:%x[3,1]
UX7:%x[-1,10]/%x[0,10]/%x[0,20]
UX8:%x[-1,20]/%x[0,20]/%x[1,20]
UX9:%x[-1,19]/%x[0,19]/%x[1,19]
UXA:%x[-1,9]/%x[0,20]
UXB:%x[-1,1]/%x[0,20]
UXC:%x[1,1]/%x[0,20]
"""


class Task(NamedTuple):
    """Names of features per token and labels, to train on and to test on."""

    X: list[Any]
    y: list[list[str]]
    X_test: list[Any]
    y_test: list[list[str]]


def run(cell: Cell, data: None) -> Row:
    """Both systems on one task."""
    parts: dict[str, Callable[[Cell], Row]] = {
        "grobid": _grobid, "usaddress": _usaddress, "anystyle": _anystyle, "calls": _calls, "job": _job,
        "segments": _segments,
    }  # fmt: skip
    return parts[cell["part"]](cell)


def _folder(name: str) -> Path:
    return pt.datasets.data_folder(None) / name


# -- both systems ----------------------------------------------------------------------------------------------


def _compare(task: Task, part: str, cell: Cell, judge: Callable[[list[Any], list[Any]], dict[str, Any]]) -> Row:
    """Quality, seconds of processor time for training, and tokens labelled per such second."""
    own = cell.get("features") == _REMEMBERING
    c1, c2 = _OWN_PENALTIES if own else _PENALTIES[part]
    steps = 10 if cell["quick"] else _STEPS[part]
    n_tokens = sum(map(len, task.y_test))
    row: Row = {"tokens": n_tokens}
    for name, fit in (("", _fit_potentia), ("crfsuite_", _fit_crfsuite))[: 1 if own else 2]:
        with tempfile.TemporaryDirectory() as folder:
            begun = time.process_time()
            predict, facts = fit(task, c1, c2, steps, Path(folder) / "model")
            row[f"{name}fit_seconds"] = time.process_time() - begun
            predict(task.X_test[:1])
            begun = time.process_time()
            guess = predict(task.X_test)
            row[f"{name}tokens_per_second"] = n_tokens / (time.process_time() - begun)
        row |= {f"{name}{key}": value for key, value in {**judge(task.y_test, guess), **facts}.items()}
    return row


#: A function that predicts, and the objective and steps of the fit.
Fitted = tuple[Callable[[list[Any]], list[list[str]]], dict[str, Any]]


def _fit_potentia(task: Task, c1: float, c2: float, steps: int, path: Path) -> Fitted:
    model = pt.ChainCRF(c1, c2, steps, threads=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pt.ConvergenceWarning)
        model.fit(task.X, task.y)
    return model.predict, {"objective": model.history_[-1]["objective"], "steps": model.n_iter_}


def _fit_crfsuite(task: Task, c1: float, c2: float, steps: int, path: Path) -> Fitted:
    import pycrfsuite

    trainer = pycrfsuite.Trainer(verbose=False)
    for tokens, labels in zip(task.X, task.y, strict=True):
        trainer.append(tokens, labels)
    trainer.set_params({"c1": c1, "c2": c2, "max_iterations": steps})
    trainer.train(str(path))
    tagger = pycrfsuite.Tagger()
    tagger.open(str(path))
    last = trainer.logparser.last_iteration
    return lambda X: [tagger.tag(tokens) for tokens in X], {"objective": last["loss"], "steps": last["num"]}


def _errors(truth: Sequence[Sequence[str]], guess: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Shares of tokens and of sequences that are wrong."""
    wrong = [[a != b for a, b in zip(p, q, strict=True)] for p, q in zip(truth, guess, strict=True)]
    tokens = sum(map(len, truth))
    return {"token_error": sum(map(sum, wrong)) / tokens, "sequence_error": sum(map(any, wrong)) / len(wrong)}


# -- grobid ----------------------------------------------------------------------------------------------------


def read_grobid(name: str) -> tuple[list[list[list[str]]], list[list[str]]]:
    """Rows of columns and tags in BIO of the fields of a training file; others are outside."""
    X, y = [], []
    with lzma.open(_folder("grobid") / f"{name}-180506.train.xz", "rt", encoding="utf-8") as file:
        for group in re.split(r"\n\s*\n", file.read()):
            rows = [line.split() for line in group.splitlines() if line.strip()]
            if rows:
                X.append([row[:-1] for row in rows])
                y.append([_tag(row[-1]) for row in rows])
    return X, y


def _tag(label: str) -> str:
    """`I-<day>`, which begins a field, as B-day, and `<day>` as I-day."""
    field = label.removeprefix("I-").strip("<>")
    mark = "B" if label.startswith("I-") else "I"
    return "O" if field == "other" else f"{mark}-{field}"


def _grobid(cell: Cell) -> Row:
    X, y = read_grobid(cell["data"])
    template = (_folder("grobid") / f"{cell['data']}.template").read_text(encoding="utf-8")
    fold = np.random.default_rng(0).permutation(len(X)) % FOLDS
    text = f"{_MORE}\n{template}" if cell["features"] == "more" else template
    names = list(_names(Template(text, dialect="crf++"), X))
    if cell["features"] == _REMEMBERING:
        y = [_remembering(row) for row in y]
    own, held = (np.flatnonzero(fold != cell["fold"]).tolist(), np.flatnonzero(fold == cell["fold"]).tolist())
    task = Task([names[k] for k in own], [y[k] for k in own], [names[k] for k in held], [y[k] for k in held])
    return _compare(task, "grobid", cell, _fields)


def _remembering(tags: list[str]) -> list[str]:
    """Tags where tokens outside of fields are told apart by the field before, O:day, as chains do not look so far."""
    found, before = [], ""
    for tag in tags:
        before = tag[2:] or before
        found.append(tag if tag[2:] else f"O:{before}")
    return found


def _names(template: Template, X: Sequence[Any]) -> Iterator[list[list[str]]]:
    """Names of the attributes that a template makes of each token, without the one that all have for transitions."""
    names, codes, lengths = template.items(X)
    rows = iter([[names[k] for k in row if names[k] != template.constant] for row in codes.tolist()])
    for n in lengths.tolist():
        yield list(islice(rows, n))


def _fields(truth: list[list[str]], guess: list[list[str]]) -> dict[str, Any]:
    """Counts of fields, from which F1 of all folds together is found."""
    truth, guess = ([[tag.partition("O:")[0] or "O" for tag in row] for row in rows] for rows in (truth, guess))
    counts = count_tags(truth, guess)
    return {
        "right": counts.right.total(), "true": counts.true.total(), "predicted": counts.predicted.total(),
        "f1": counts.span_scores()["f1"],
    }  # fmt: skip


# -- addresses -------------------------------------------------------------------------------------------------


def read_addresses(name: str) -> list[tuple[tuple[str, ...], list[str]]]:
    """Tokens and labels of a file of addresses."""
    found = []
    for address in ElementTree.parse(_folder("usaddress") / f"{name}.xml").getroot():
        parts = [(part.text or "", part.tag) for part in address]
        if parts:
            found.append((tuple(text for text, _ in parts), [tag for _, tag in parts]))
    return found


def _usaddress(cell: Cell) -> Row:
    import pycrfsuite
    import usaddress

    names = sorted(path.stem for path in _folder("usaddress").glob("train_*.xml"))
    train = [pair for name in names for pair in read_addresses(name)]
    known = {tokens for tokens, _ in train}
    test = [pair for pair in read_addresses(cell["data"]) if pair[0] not in known]

    def features(tokens: Sequence[str]) -> list[list[str]]:
        # as both systems name nested dictionaries
        return pycrfsuite.ItemSequence(usaddress.tokens2features(list(tokens))).items()

    X, X_test = ([_flat(features(tokens)) for tokens, _ in pairs] for pairs in (train, test))
    task = Task(X, [labels for _, labels in train], X_test, [labels for _, labels in test])
    judge = _coarse_errors if cell["data"] == "test_us50" else _errors
    return {"addresses": len(test)} | _compare(task, "usaddress", cell, judge)


def _coarse_errors(truth: Sequence[Sequence[str]], guess: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Errors where all parts of a street's name count as one, and those of its number, as that file labels them."""
    street = re.compile(r"^(StreetName|AddressNumber|USPSBoxGroup)\w*")
    coarse = ([[street.sub(r"\1", label) for label in row] for row in rows] for rows in (truth, guess))
    return _errors(*coarse)


def _flat(items: Sequence[Any]) -> list[dict[str, float]]:
    """Values by name."""
    return [dict(token) for token in items]


# -- references ------------------------------------------------------------------------------------------------


def read_references(name: str) -> list[tuple[list[str], list[str]]]:
    """Tokens and labels of references, whose fields are elements."""
    with lzma.open(_folder("anystyle") / f"{name}.xml.xz") as file:
        sequences = ElementTree.parse(file).getroot()
    found = []
    for sequence in sequences:
        parts = [(word, field.tag) for field in sequence for word in (field.text or "").split()]
        if parts:
            found.append(([word for word, _ in parts], [tag for _, tag in parts]))
    return found


def _reference_features(words: Sequence[str]) -> list[list[str]]:
    """Words, ends, shapes, punctuation, numbers and positions of tokens and of their neighbours."""
    n = len(words)
    own = []
    for t, word in enumerate(words):
        core = word.strip(".,;:()[]\"'“”").lower()
        shape = re.sub(r"(.)\1+", r"\1", re.sub(r"\d", "9", re.sub(r"[^\W\d_]", "x", re.sub(r"[A-Z]", "X", word))))
        marks = "".join(sorted(set(re.sub(r"\w", "", word))))
        digits = len(re.sub(r"\D", "", word))
        number = "year" if re.search(r"\b(1[6-9]|20)\d\d[a-z]?\b", word) else f"{min(digits, 5)}"
        own.append({
            "word": word, "core": core, "first": word[0], "last": word[-1], "prefix": core[:3], "suffix": core[-3:],
            "suffix2": core[-2:], "shape": shape, "marks": marks, "number": number, "place": str(10 * t // n),
        })  # fmt: skip
    rows = []
    for t, token in enumerate(own):
        row = [f"{key}={value}" for key, value in token.items()]
        for d in (-2, -1, 1, 2):
            if 0 <= t + d < n:
                other = own[t + d]
                row += [f"{d}:{key}={other[key]}" for key in ("core", "last", "shape", "number")]
                if abs(d) == 1:
                    row += [f"{d}:both:{key}={other[key]}|{token[key]}" for key in ("core", "last", "shape", "number")]
            else:
                row.append(f"{d}:edge")
        rows.append([*row, "bias"])
    return rows


def _anystyle(cell: Cell) -> Row:
    train, test = (read_references(name) for name in ("core", "gold"))
    X, X_test = ([_reference_features(words) for words, _ in pairs] for pairs in (train, test))
    task = Task(X, [labels for _, labels in train], X_test, [labels for _, labels in test])
    return {"references": len(test)} | _compare(task, "anystyle", cell, _errors)


# -- calls -----------------------------------------------------------------------------------------------------


def _word_features(words: Sequence[str], t: int) -> dict[str, Any]:
    """A token as tutorials of CRFsuite describe it."""
    word = words[t]
    found: dict[str, Any] = {
        "bias": 1.0, "lower": word.lower(), "suffix3": word[-3:], "suffix2": word[-2:], "upper": word.isupper(),
        "title": word.istitle(), "digit": word.isdigit(),
    }  # fmt: skip
    for d in (-1, 1):
        if 0 <= t + d < len(words):
            other = words[t + d]
            found |= {f"{d}:lower": other.lower(), f"{d}:title": other.istitle(), f"{d}:upper": other.isupper()}
        else:
            found[f"{d}:edge"] = True
    return found


def _calls(cell: Cell) -> Row:
    """Microseconds of a sentence of 20 tokens, tokens a second of many, and milliseconds of loading; interleaved.

    Both have the same model, which CRFsuite trained.
    """
    import pycrfsuite

    sentences = pt.datasets.conll(_folder("sequences") / "conll2000_train.tsv.gz")[:2500]
    X = [[_word_features(words, t) for t in range(len(words))] for words, *_ in sentences]
    simple = [[{"w": w, "-1": a, "+1": b} for w, a, b in _around(words)] for words, *_ in sentences]
    y, tokens = [sentence[-1] for sentence in sentences], sum(map(len, X))
    with tempfile.TemporaryDirectory() as folder:
        theirs, own = str(Path(folder) / "crfsuite"), str(Path(folder) / "own")
        trainer = pycrfsuite.Trainer(verbose=False)
        for rows, labels in zip(X, y, strict=True):
            trainer.append(rows, labels)
        trainer.set_params({"c1": 0.0, "c2": 1.0, "max_iterations": 5 if cell["quick"] else 30})
        trainer.train(theirs)
        pt.ChainCRF.from_crfsuite(theirs).save(own)
        model, tagger = pt.ChainCRF.load(own), pycrfsuite.Tagger()
        tagger.open(theirs)
        of_words = pt.ChainCRF(max_iterations=2, delta=0.0, threads=1).fit(simple[:1000], y[:1000])
        few = [rows for rows in X if len(rows) == 20]
        assert [tagger.tag(rows) for rows in few] == [model.predict_single(rows) for rows in few]
        row = _interleaved({
            "sentence_us": (1e6 / len(few), lambda: [model.predict([rows]) for rows in few]),
            "crfsuite_sentence_us": (1e6 / len(few), lambda: [tagger.tag(rows) for rows in few]),
            "load_ms": (1e3, lambda: pt.load(own)),
            "crfsuite_load_ms": (1e3, lambda: pycrfsuite.Tagger().open(theirs)),
            "file_us": (1e6 / tokens, lambda: model.predict(X)),
            "crfsuite_file_us": (1e6 / tokens, lambda: [tagger.tag(rows) for rows in X]),
            "simple_us": (1e6 / tokens, lambda: of_words.predict(simple)),
        })  # fmt: skip
        row["cold_s"] = _cold_prediction(Path(folder), sentences[:200])
    rates = {f"{key[:-2]}rate": 1e6 / row.pop(key) for key in ("file_us", "crfsuite_file_us", "simple_us")}
    return {"attributes": len(model.index_.numbers)} | row | rates


def _cold_prediction(folder: Path, sentences: Sequence[Sequence[Sequence[str]]]) -> float:
    """Processor seconds of the command `potentia predict` for one sentence, with its start; the least of seven."""

    def write(name: str, chosen: Sequence[Sequence[Sequence[str]]]) -> str:
        rows = ("".join("\t".join(row) + "\n" for row in zip(*sentence, strict=True)) for sentence in chosen)
        (folder / name).write_text("\n".join(rows), encoding="utf-8")
        return str(folder / name)

    def command(verb: str, *arguments: str) -> float:
        begun = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "potentia", verb, *arguments, "--quiet"], check=True)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return ended.ru_utime - begun.ru_utime + ended.ru_stime - begun.ru_stime

    model, one = str(folder / "trained"), write("one.tsv", sentences[:1])
    command("train", "--sequences", write("train.tsv", sentences), "--out", model)
    return min(command("predict", model, "--sequences", one, "--out", str(folder / f"{k}.tsv")) for k in range(7))


def _around(words: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    return zip(words, ["", *words[:-1]], [*words[1:], ""], strict=True)


def _interleaved(calls: dict[str, tuple[float, Callable[[], Any]]], rounds: int = 7) -> Row:
    """The median of each call's processor time, in its unit; one of each in turn.

    Each is made once before it is timed, so that it finds in the cache what it uses and not what the one before used.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, (unit, call) in calls.items():
            call()
            begun = time.process_time()
            call()
            taken[name].append(unit * (time.process_time() - begun))
    return {name: float(np.median(values)) for name, values in taken.items()}


# -- many weights ----------------------------------------------------------------------------------------------

#: Labels of the generated job, tokens, attributes of a token, and all attributes: 40 million weights.
_LABELS, _TOKENS, _ITEMS, _ATTRIBUTES = 20, 60_000, 50, 2_000_000
_JOB_STEPS = 3


def _job(cell: Cell) -> Row:
    """Seconds of a step, of processor time, and memory; each system in a fresh process, potentia with threads."""
    return in_fresh_process("potentia_studies.parsers", cell["data"], "10" if cell["quick"] else "1")


def _generated(scale: int) -> tuple[list[Any], list[list[str]]]:
    """Sentences of 20 tokens, whose first attribute says the label in three of four cases."""
    rng, n = np.random.default_rng(0), _TOKENS // scale
    drawn = rng.integers(0, _ATTRIBUTES // scale, (n, _ITEMS))
    # every attribute occurs, so that each has its weights
    drawn.ravel()[: _ATTRIBUTES // scale] = rng.permutation(_ATTRIBUTES // scale)
    label = np.where(rng.random(n) < 0.75, drawn[:, 0] % _LABELS, rng.integers(0, _LABELS, n))
    X = [[[f"a{k}" for k in row] for row in drawn[t : t + 20].tolist()] for t in range(0, n, 20)]
    return X, [[str(k) for k in label[t : t + 20].tolist()] for t in range(0, n, 20)]


def _run_job(system: str, scale: int) -> Row:
    X, y = _generated(scale)
    before, times = peak_memory(), [time.process_time()]
    if system == "potentia":
        model = pt.ChainCRF(c2=1.0, max_iterations=_JOB_STEPS, delta=0.0, all_possible_states=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pt.ConvergenceWarning)
            model.fit(X, y, callback=lambda history: times.append(time.process_time()))
        weights, objective = len(model.state_features_), model.history_[-1]["objective"]
    else:
        import pycrfsuite

        class Trainer(pycrfsuite.Trainer):
            def on_iteration(self, log: Any, info: dict[str, Any]) -> None:
                times.append(time.process_time())

        trainer = Trainer(verbose=True)
        for tokens, labels in zip(X, y, strict=True):
            trainer.append(tokens, labels)
        trainer.set_params({"c2": 1.0, "max_iterations": _JOB_STEPS, "feature.possible_states": True})
        # its log goes to standard output, where the row is expected
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
            trainer.train(str(Path(folder) / "model"))
        weights, objective = trainer.logparser.featgen_num_features, trainer.logparser.last_iteration["loss"]
    # of a step: the last ones, since the first comes after reading
    step = (times[-1] - times[1]) / max(len(times) - 2, 1)
    return {"weights": weights, "objective": objective, "step_seconds": step, "seconds": times[-1] - times[0],
            "memory_mib": peak_memory(), "before_mib": before}  # fmt: skip


# -- segments --------------------------------------------------------------------------------------------------


def _segments(cell: Cell) -> Row:
    """`SegmentCRF` and a chain with BIO tags, both with the same features of tokens."""
    features, name = pt.features.TokenFeatures(spelling=True), TOKENS[cell["data"]]
    n = 200 if cell["quick"] else cell["sentences"]
    train, test = (
        pt.datasets.conll(_folder("sequences") / f"{name}_{which}.tsv.gz") for which in ("train", "test")
    )  # fmt: skip
    X, X_test = ([[*features.names(s[:-1])] for s in part] for part in (train[:n], test))
    y, y_test = ([s[-1] for s in part] for part in (train[:n], test))
    row: Row = {}
    options: dict[str, Any] = {"c1": 0.1, "c2": 0.1, "max_iterations": 60, "delta": 1e-3, "scheme": "BIO", "threads": 1}
    for prefix, model in (("", pt.SegmentCRF(**options)), ("chain_", pt.ChainCRF(**options))):
        begun = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pt.ConvergenceWarning)
            model.fit(X, y)
        row[f"{prefix}fit_seconds"] = time.process_time() - begun
        begun = time.process_time()
        guess = model.predict(X_test)
        row[f"{prefix}tokens_per_second"] = sum(map(len, y_test)) / (time.process_time() - begun)
        row |= {f"{prefix}{key}": value for key, value in _fields(y_test, guess).items()}
        row[f"{prefix}iterations"] = model.n_iter_
    return row


# -- tables ----------------------------------------------------------------------------------------------------


def _joined(rows: Rows) -> list[dict[str, Any]]:
    """Micro F1 of all folds of a data set, and sums of seconds."""
    lines = []
    cells = dict.fromkeys((row["data"], row["features"]) for row in rows)
    for data, features in cells:
        own = [row for row in rows if (row["data"], row["features"]) == (data, features)]
        line: dict[str, Any] = {"data": data, "features": features, "folds": len(own)}
        for name in ("", "crfsuite_") if "crfsuite_f1" in own[0] else ("",):
            right, true, found = (sum(row[f"{name}{key}"] for row in own) for key in ("right", "true", "predicted"))
            line[f"{name}f1"] = 2 * right / (true + found)
            line[f"{name}fit_seconds"] = sum(row[f"{name}fit_seconds"] for row in own) / len(own)
            line[f"{name}rate"] = sum(row[f"{name}tokens_per_second"] for row in own) / len(own)
        lines.append(line)
    return lines


def tables(rows: Rows) -> list[Table]:
    """Scores and speeds beside CRFsuite's."""
    score, seconds, rate = "{:.4f}".format, "{:.2f}".format, "{:,.0f}".format
    fields = [
        Column("data", "data"), Column("features", "features"), Column("folds", "folds", str),
        Column("field F1", "f1", score), Column("CRFsuite", "crfsuite_f1", score),
        Column("training, s", "fit_seconds", seconds), Column("CRFsuite", "crfsuite_fit_seconds", seconds),
        Column("tokens a second", "rate", rate), Column("CRFsuite", "crfsuite_rate", rate),
    ]  # fmt: skip
    errors = [
        Column("data", "data"), Column("token error", "token_error", score),
        Column("CRFsuite", "crfsuite_token_error", score), Column("sequence error", "sequence_error", score),
        Column("CRFsuite", "crfsuite_sequence_error", score),
        Column("objective", "objective", "{:.2f}".format), Column("CRFsuite", "crfsuite_objective", "{:.2f}".format),
        Column("steps", "steps", str), Column("CRFsuite", "crfsuite_steps", str),
        Column("training, s", "fit_seconds", seconds), Column("CRFsuite", "crfsuite_fit_seconds", seconds),
        Column("tokens a second", "tokens_per_second", rate),
        Column("CRFsuite", "crfsuite_tokens_per_second", rate),
    ]  # fmt: skip
    calls = [
        Column("attributes", "attributes", "{:,}".format),
        Column("sentence, microseconds", "sentence_us", "{:.0f}".format),
        Column("CRFsuite", "crfsuite_sentence_us", "{:.0f}".format), Column("load, ms", "load_ms", seconds),
        Column("CRFsuite", "crfsuite_load_ms", seconds), Column("tokens a second", "file_rate", rate),
        Column("CRFsuite", "crfsuite_file_rate", rate), Column("simple features", "simple_rate", rate),
        Column("cold `potentia predict`, s", "cold_s", seconds),
    ]  # fmt: skip
    job = [
        Column("system", "data"), Column("weights", "weights", "{:,}".format),
        Column("seconds a step", "step_seconds", seconds), Column("objective", "objective", "{:.1f}".format),
        Column("peak MiB", "memory_mib", rate), Column("of it data", "before_mib", rate),
    ]  # fmt: skip
    segments = [
        Column("data", "data"), Column("sentences", "sentences", rate), Column("segments: F1", "f1", score),
        Column("chain", "chain_f1", score), Column("training, s", "fit_seconds", seconds),
        Column("chain", "chain_fit_seconds", seconds), Column("tokens a second", "tokens_per_second", rate),
        Column("chain", "chain_tokens_per_second", rate),
    ]  # fmt: skip
    found = [
        Table("grobid's fields", fields, _joined(part_rows(rows, "grobid"))),
        Table("Addresses (usaddress)", errors, part_rows(rows, "usaddress")),
        Table("References (AnyStyle: core to gold)", errors, part_rows(rows, "anystyle")),
        Table("One sentence of 20 tokens, loading, and many sentences", calls, part_rows(rows, "calls")),
        Table("A generated job of 40 million weights", job, part_rows(rows, "job")),
        Table("`SegmentCRF` beside `ChainCRF` with BIO tags", segments, part_rows(rows, "segments")),
    ]
    return [table for table in found if table.lines]


#: Cells of the same parts that have no rows yet; move them to the study to run them.
LONG = [
    *grid(part=("job",), data=("potentia", "CRFsuite")),
    *grid(part=("grobid",), data=("affiliation-address",), features=("more",), fold=range(2, FOLDS)),
]

STUDY = Study(
    "parsers",
    [
        *grid(part=("usaddress",), data=_ADDRESSES),
        *grid(part=("anystyle",), data=("core to gold",)),
        *grid(part=("calls",), data=("CoNLL-2000",)),
        *grid(part=("segments",), data=("WNUT-17", "CoNLL-2000"), sentences=(2000,)),
        *grid(part=("grobid",), data=GROBID, features=("template",), fold=range(FOLDS)),
        *grid(part=("grobid",), data=("affiliation-address",), features=(_REMEMBERING,), fold=range(FOLDS)),
        *grid(part=("grobid",), data=("affiliation-address",), features=("more",), fold=range(2)),
    ],
    grid(part=("grobid",), data=("date",), features=("template",), fold=(0,)),
    run,
    tables,
)

if __name__ == "__main__":
    print(json.dumps(_run_job(sys.argv[1], int(sys.argv[2]))))
