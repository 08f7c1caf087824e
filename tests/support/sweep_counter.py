"""How much the engines do."""

from potentia.inference.pair_engine import PairEngine


def counted_updates(monkeypatch):
    """A list that takes up how many blocks each call of a `PairEngine` updates."""
    counts, sweep = [], PairEngine.sweep

    def counted(engine, units, iterations=1, **k):
        counts.append(iterations * len(units))
        return sweep(engine, units, iterations, **k)

    monkeypatch.setattr(PairEngine, "sweep", counted)
    return counts
