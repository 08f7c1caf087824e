"""Label documents: several topics per text, from words to predictions, probabilities and a saved model.

Run it as it is, or cell by cell. Replace `make_documents` by your own texts (a list of strings) and labels (a data
frame or an array of 0 and 1, one column per topic).
"""

# %% Documents and their labels
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

import potentia as pt

TOPICS = {
    "sport": ["match", "team", "goal", "player", "season", "coach", "league", "score", "final", "stadium"],
    "money": ["bank", "market", "price", "tax", "shares", "profit", "loan", "budget", "trade", "euro"],
    "law": ["court", "judge", "trial", "appeal", "lawyer", "case", "ruling", "police", "fraud", "verdict"],
    "health": ["doctor", "hospital", "patient", "drug", "virus", "clinic", "trial", "nurse", "vaccine", "cancer"],
    "travel": ["flight", "hotel", "beach", "ticket", "train", "city", "tour", "guide", "border", "summer"],
}
COMMON = ["the", "of", "to", "and", "in", "is", "was", "for", "with", "said", "that", "it", "by", "from"]


def make_documents(n, seed=0):
    """Texts of 30 words with one to three topics; money and law often come together, sport and law seldom."""
    rng = np.random.default_rng(seed)
    names = list(TOPICS)
    texts, labels = [], np.zeros((n, len(names)), dtype=int)
    for i in range(n):
        own = [names[rng.integers(len(names))]]
        if own[0] == "money" and rng.random() < 0.6:
            own.append("law")
        elif own[0] != "sport" and rng.random() < 0.3:
            own.append(names[rng.integers(len(names))])
        labels[i, [names.index(name) for name in own]] = 1
        words = [rng.choice(TOPICS[own[rng.integers(len(own))]] if rng.random() < 0.25 else COMMON) for _ in range(30)]
        texts.append(" ".join(words))
    return texts, labels, names


def main(n_train=600, n_test=300):
    """Train, predict, look at probabilities and certainty, save and load; returns the measures by model."""
    texts, labels, names = make_documents(n_train + n_test)

    # %% Words as features: learned from training texts only
    words = TfidfVectorizer(min_df=2, sublinear_tf=True)
    X_train, X_test = words.fit_transform(texts[:n_train]), words.transform(texts[n_train:])
    Y_train, Y_test = labels[:n_train], labels[n_train:]

    # %% A network of labels beside classifiers that do not know each other
    models = {
        "independent": pt.multilabel.IndependentClassifiers(alpha=1e-2),
        "network": pt.LabelNetwork(["linear"], n_trees=50),
    }
    measures = {}
    for name, model in models.items():
        model.fit(X_train, Y_train)
        measures[name] = pt.metrics.all_measures(Y_test, model.predict(X_test))
        shown = ", ".join(f"{measure.replace('_', ' ')} {value:.3f}" for measure, value in measures[name].items())
        print(f"{name}: {shown}")

    # %% What the network is sure of
    network = models["network"]
    found, probabilities = network.search(X_test), network.predict_proba(X_test)
    print(f"certainly the most probable labelling: {found.optimal.mean():.0%} of rows")
    for i in np.argsort(np.abs(probabilities - 0.5).min(axis=1))[:3]:
        topics = ", ".join(f"{name} {p:.2f}" for name, p in zip(names, probabilities[i], strict=True))
        print(f"least certain: {texts[n_train + i][:40]}... {topics}")

    # %% One file for later
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "topics.potentia"
        network.save(path)
        again = pt.load(path)
    assert np.array_equal(again.predict(X_test), found.labels)
    return measures


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:]))
