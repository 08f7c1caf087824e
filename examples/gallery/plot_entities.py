"""
Named entities (NER)
====================

Words are tagged together: a tag says where an entity begins (B-) and continues (I-). Each entity comes with its exact
probability, also those that are not in the best tagging.
"""

import matplotlib.pyplot as plt
import numpy as np

import potentia as pt

# %%
# A few sentences of training; real corpora have thousands (``pt.datasets.conll`` reads files of columns).
train = [
    ("Ann Lee lives in New York", "B-PER I-PER O O B-LOC I-LOC"),
    ("Bob met Ann in Paris", "B-PER O B-PER O B-LOC"),
    ("New York is far from Paris", "B-LOC I-LOC O O O B-LOC"),
    ("Lee saw Bob", "B-PER O B-PER"),
]


def features(sentence):
    """The word, how it is written, and the word before."""
    words = sentence.split()
    before = ["<start>", *words]
    return [
        {"word": word, "title": word.istitle(), "ending": word[-2:], "before": last}
        for word, last in zip(words, before, strict=False)
    ]


crf = pt.ChainCRF(c2=0.1, scheme="BIO").fit([features(text) for text, _ in train], [tags.split() for _, tags in train])

# %%
# The tags of a new sentence, its three best taggings, and all entities of some probability.
new = features("Eve Lee met Bob in York")
print(crf.predict([new])[0])
for tags, log_probability in crf.k_best([new], 3)[0]:
    print(f"{log_probability:7.3f}", *tags)
for span in crf.predict_spans([new], min_probability=0.2)[0]:
    print(span)

# %%
# The probability of each tag of each word.
marginals = crf.predict_marginals([new])[0]
table = np.array([[token[tag] for token in marginals] for tag in crf.classes_])
plt.figure(figsize=(6, 2.4), layout="constrained")
plt.imshow(table, cmap="Blues", vmin=0, vmax=1, aspect="auto")
plt.xticks(range(len(new)), [token["word"] for token in new])
plt.yticks(range(len(table)), crf.classes_)
plt.colorbar(label="probability")
plt.show()
