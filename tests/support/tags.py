"""Tags of the usual encodings of spans, and all sequences of them that a scheme allows."""

import itertools

from potentia.features.schemes import allowed_tags

_MARKS = {"BIO": "BI", "BIOES": "BIES", "IOB1": "BI"}


def tags(scheme):
    return ["O", *(f"{mark}-{kind}" for mark in _MARKS[scheme] for kind in ("X", "Y-Z"))]


def legal(scheme, n):
    """All sequences of n tags that a scheme allows."""
    names = tags(scheme)
    allowed = allowed_tags(names, scheme)
    for row in itertools.product(range(len(names)), repeat=n):
        pairs = all(allowed.transitions[a, b] for a, b in itertools.pairwise(row))
        if pairs and allowed.start[row[0]] and allowed.end[row[-1]]:
            yield [names[k] for k in row]
