"""How much the engines do."""

from potentia.inference.pair_engine import PairEngine


def counted_updates(monkeypatch):
    """A list that takes up how many blocks each call of a `PairEngine` updates."""
    counts, update = [], PairEngine._update

    def counted(engine, updates, *a, **k):
        counts.append(len(updates))
        return update(engine, updates, *a, **k)

    monkeypatch.setattr(PairEngine, "_update", counted)
    return counts
