"""How much the engines do."""

from potentia.inference.pair_engine import PairEngine


def counted_updates(monkeypatch):
    """A list that takes up how many blocks each call of `PairEngine.sweep` updates."""
    counts, sweep = [], PairEngine.sweep

    def counted(engine, units, *a, **k):
        counts.append(len(units))
        return sweep(engine, units, *a, **k)

    monkeypatch.setattr(PairEngine, "sweep", counted)
    return counts
