"""Tag a corpus: from a file of tokens to a tagger, its scores, its mistakes, and a file of predictions.

Run `python examples/tag_corpus.py train.tsv test.tsv`, or without arguments on a small corpus that the script makes.
Files have one token per line in columns, words first and labels last, and a blank line between sentences.
"""

# %% Imports
import argparse
import random
from pathlib import Path

import potentia as pt
from potentia.features import span_scores, span_table
from potentia.features.schemes import find_scheme


# %% Features: what the tagger looks at, as a dictionary per token
def describe(words, t, cities):
    """Features of word t; texts, numbers, booleans and lists all work."""
    word = words[t]
    return {
        "bias": 1.0,
        "word": word.lower(),
        "is_title": word.istitle(),
        "is_digit": word.isdigit(),
        "affixes": [word[:2], word[-2:], word[-3:]],
        "before": words[t - 1].lower() if t > 0 else "<start>",
        "after": words[t + 1].lower() if t + 1 < len(words) else "<end>",
        "city": cities[t] or False,
    }


def features(sentences, gazetteer):
    """Dictionaries of all tokens of all sentences, one sentence at a time."""
    for columns in sentences:
        cities = gazetteer.mark(columns[0])
        yield [describe(columns[0], t, cities) for t in range(len(columns[0]))]


# %% A small corpus, for trying things out
def make_corpus(path, n, seed):
    """Sentences about people who travel, with labels in BIO."""
    rng = random.Random(seed)
    people, cities = ["Ada", "Grace Hopper", "Alan Turing"], ["Paris", "New York", "Rio de Janeiro"]
    blocks = []
    for _ in range(n):
        parts = [
            (rng.choice(people), "PER"),
            ("travels to", ""),
            (rng.choice(cities), "LOC"),
            (rng.choice([".", "today ."]), ""),
        ]
        lines = []
        for text, kind in parts:
            for k, word in enumerate(text.split()):
                lines.append(f"{word}\t{'O' if not kind else 'BI'[min(k, 1)] + '-' + kind}\n")
        blocks.append("".join(lines))
    path.write_text("\n".join(blocks), encoding="utf-8")


# %% Train, evaluate, look at mistakes, predict
def main(arguments=None):
    """All steps; returns the scores of spans."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", nargs="?", type=Path, help="file to train on")
    parser.add_argument("test", nargs="?", type=Path, help="file to test on")
    parser.add_argument("--folder", type=Path, default=Path(), help="where to write (default: here)")
    parser.add_argument("--iterations", type=int, default=100)
    given = parser.parse_args(arguments)
    if given.test is None:
        given.train, given.test = given.folder / "corpus_train.tsv", given.folder / "corpus_test.tsv"
        make_corpus(given.train, 60, seed=0)
        make_corpus(given.test, 20, seed=1)
    train, test = pt.datasets.conll(given.train), pt.datasets.conll(given.test)
    labels, truth = [s[-1] for s in train], [s[-1] for s in test]
    gazetteer = pt.features.Gazetteer(["New York", "Paris", "London"])

    # c1 makes the model small, c2 keeps its weights from growing; the scheme forbids impossible labels
    crf = pt.ChainCRF(c1=0.05, c2=0.1, max_iterations=given.iterations, scheme=find_scheme(labels))
    crf.fit(features(train, gazetteer), labels)
    found = crf.predict(features(test, gazetteer))

    print(f"{len(crf.state_features_)} weights after {crf.n_iter_} iterations")
    for row in span_table(truth, found):
        print(f"{row['type']:>8}: precision {row['precision']:.3f}, recall {row['recall']:.3f}, F1 {row['f1']:.3f}")
    scores = span_scores(truth, found)
    print(f"     all: precision {scores['precision']:.3f}, recall {scores['recall']:.3f}, F1 {scores['f1']:.3f}")

    # what the model has learned, and what it is least sure of
    for (name, label), weight in sorted(crf.state_features_.items(), key=lambda item: -item[1])[:5]:
        print(f"{weight:6.2f}  {name} -> {label}")
    sure = [min(max(token.values()) for token in row) for row in crf.predict_marginals(features(test, gazetteer))]
    doubtful = min(range(len(test)), key=sure.__getitem__)
    print("least sure of:", " ".join(f"{w}/{y}" for w, y in zip(test[doubtful][0], found[doubtful], strict=True)))

    crf.save(given.folder / "tagger.potentia")
    tagger = pt.load(given.folder / "tagger.potentia")
    lines = [
        "".join(f"{word}\t{label}\n" for word, label in zip(columns[0], row, strict=True))
        for columns, row in zip(test, tagger.predict(features(test, gazetteer)), strict=True)
    ]
    (given.folder / "tagged.tsv").write_text("\n".join(lines), encoding="utf-8")
    return scores


if __name__ == "__main__":
    main()
