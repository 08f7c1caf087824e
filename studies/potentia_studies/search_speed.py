"""`search-speed`: figure 3 of [LMSBN], branch and bound against linear programming as labels grow, and Theorem 9."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import combinations
from typing import TypeVar

import numpy as np
from scipy import sparse
from sklearn.svm import LinearSVC

import potentia as pt
from potentia.app.report.rows import Cell, Column, Row, Table, grid
from potentia.base.types import Floats
from potentia.models.multilabel.constraints import make_rules
from potentia.models.multilabel.machine import Relaxation
from potentia.models.multilabel.network import DirectedNetwork

from . import public_sets
from .bounds import states_below
from .figures import Figure, panels
from .study import Originals, Rows, Study, part_rows

T = TypeVar("T")

SET = "rcv1_subset1_top944"
ALPHA = 1e-3
LABELS = (5, 10, 20, 30, 40, 60, 80, 101)
SIZES = (10, 100, 1000, 3000)
BOUNDS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0)
#: Searches of an untrained model: limit on visited states, and number of rows.
_BUDGET, _RANDOM_ROWS = 5_000_000, 20
#: States per row and S where certainty is measured; rows cut short count as not certain.
_BOUND_BUDGET = 100_000


class DirectedRelaxation(Relaxation):
    """The linear program of a directed network: as a machine's, but a pair's weight is in the later label's z only."""

    def __init__(self, couplings: Floats) -> None:
        K = len(couplings)
        pairs = list(combinations(range(K), 2))
        super().__init__(pairs, np.zeros(len(pairs)), K, make_rules([], np.arange(K)))
        i, j = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        value, label = np.concatenate([couplings[i, j], couplings[j, i]]), np.concatenate([i, j])
        column = K + np.tile(np.arange(len(pairs)), 2)
        self.coupling = sparse.csr_array((-value, (label, column)), shape=(K, self.n_moments))


def load(quick: bool) -> public_sets.MultiLabelData:
    """The set; quick: some rows and 30 labels."""
    whole = public_sets.multilabel(SET)
    if not quick:
        return whole
    return public_sets.MultiLabelData(
        whole.X_train[:500], whole.Y_train[:500, :30], whole.X_test[:200], whole.Y_test[:200, :30],
        whole.label_names[:30], whole.feature_names,
    )  # fmt: skip


def run(cell: Cell, data: public_sets.MultiLabelData) -> Row:
    """One part: times, probabilities, or the whole set."""
    return {"time": _time, "bound": _bound, "whole": _whole}[cell["part"]](cell, data)


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    """Seconds that a call takes, and what it gives."""
    begun = time.perf_counter()
    found = work()
    return time.perf_counter() - begun, found


def _time(cell: Cell, data: public_sets.MultiLabelData) -> Row:
    """Seconds per row of branch and bound and of the linear program on the most frequent labels."""
    kept = np.argsort(-data.Y_train.sum(axis=0), kind="stable")[: cell["labels"]]
    network = pt.LMSBN(ALPHA).fit(data.X_train, data.Y_train[:, kept]).network_
    if cell["model"] == "random":
        network = randomised(network, cell["seed"])
    base = network.base(data.X_test)
    base = base if cell["model"] == "trained" else base[:_RANDOM_ROWS]
    network.search(base[:1], np.inf, 1)
    seconds, found = _timed(lambda: network.search(base, np.inf, _BUDGET))
    program = DirectedRelaxation(network.couplings())
    rows = base[: 10 if cell["labels"] <= 30 else 3]
    lp_seconds, (_, value) = _timed(lambda: program.solve(rows, np.zeros(rows.shape)))
    search, lp = seconds / len(base), lp_seconds / len(rows)
    return {
        "search_seconds": search,
        "lp_seconds": lp,
        "ratio": lp / search,
        "states_median": float(np.median(found.states)),
        "states_mean": float(found.states.mean()),
        "states_deviation": float(found.states.std()),
        "states_largest": int(found.states.max()),
        "certain": float(found.optimal.mean()),
        "rows_searched": len(base),
        "rows_lp": len(rows),
        "lp_below": bool(np.all(value <= found.loss[: len(rows), 0] + 1e-6)),
    }


def randomised(network: DirectedNetwork, seed: int) -> DirectedNetwork:
    """The same network with normal weights, of the trained weights' deviations."""
    rng = np.random.default_rng(seed)
    K = len(network.order)
    links = network.links
    below = np.tril(np.ones((K, K)), -1)
    deviation = float(np.std(links.coupling[below > 0])) if K > 1 else 0.0
    return network._replace(
        coef=rng.normal(size=network.coef.shape) * np.std(network.coef),
        bias=rng.normal(size=K) * np.std(network.bias),
        links=links._replace(coupling=rng.normal(size=(K, K)) * deviation * below),
    )


def _bound(cell: Cell, data: public_sets.MultiLabelData) -> Row:
    """Share of test rows with a certain optimum below each S, and Theorem 9's bound; rows 0 is an untrained model."""
    n = cell["rows"] or len(data.Y_train)
    trained = pt.LMSBN(ALPHA).fit(data.X_train[:n], data.Y_train[:n])
    network = trained.network_ if cell["rows"] else randomised(trained.network_, cell["seed"])
    varying = np.sort(trained.order_)
    base = network.base(data.X_test)
    signs = 2.0 * data.Y_test[:, varying] - 1.0
    loss = float(np.mean(network.losses(base, np.ascontiguousarray(signs))))
    found = [network.search(base, bound, _BOUND_BUDGET) for bound in BOUNDS]
    return {
        "bounds": list(BOUNDS),
        "mean_loss": loss,
        "certain": [float(search.optimal.mean()) for search in found],
        "cut_short": [float(np.mean(search.states >= _BOUND_BUDGET)) for search in found],
        "guaranteed": [max(0.0, 1.0 - loss / bound) for bound in BOUNDS],
        "states_largest": [int(search.states.max()) for search in found],
        "states_limit": [float(states_below(len(varying), bound)) for bound in BOUNDS],
        "labels": len(varying),
    }


def _whole(cell: Cell, data: public_sets.MultiLabelData) -> Row:
    """Exact prediction of all test rows, and training beside as many independent LinearSVC fits."""
    X, Y = data.X_train, data.Y_train
    pt.LMSBN(ALPHA).fit(X[:100], Y[:100, :3])

    def fit_each() -> None:
        for y in Y.T[Y.any(axis=0)]:
            LinearSVC(C=1 / (ALPHA * len(y)), loss="hinge", random_state=0).fit(X, y)

    runs = [(_timed(lambda: pt.LMSBN(ALPHA).fit(X, Y)), _timed(fit_each)) for _ in range(3)]
    fit, svm = min(own[0] for own, _ in runs), min(svms[0] for _, svms in runs)
    model = runs[-1][0][1]
    model.predict(data.X_test[:2])
    seconds, found = _timed(lambda: model.search(data.X_test))
    return {
        "predict_seconds": seconds,
        "rows_predicted": len(found.loss),
        "states_median": float(np.median(found.states)),
        "states_largest": int(found.states.max()),
        "certain": float(found.optimal.mean()),
        "fit_seconds": fit,
        "svm_seconds": svm,
        "fit_ratio": fit / svm,
    }


def tables(rows: Rows) -> list[Table]:
    """Times by labels; certainty by bound; the whole set."""
    number, seconds = "{:.0f}".format, "{:.2e}".format
    times = [
        Column("labels", "labels", str), Column("model", "model"), Column("search, s / row", "search_seconds", seconds),
        Column("LP, s / row", "lp_seconds", seconds), Column("LP / search", "ratio", number),
        Column("states, median", "states_median", number), Column("largest", "states_largest", str),
        Column("certain", "certain", "{:.3f}".format),
    ]  # fmt: skip
    bounds = [Column("training rows", "rows", lambda n: str(n) if n else "untrained")]
    bounds += [Column("mean loss", "mean_loss", "{:.1f}".format)]
    bounds += [Column(f"S = {b:g}", f"S{b:g}", str) for b in BOUNDS]
    lines = []
    for row in part_rows(rows, "bound"):
        pairs = zip(row["bounds"], row["certain"], row["guaranteed"], strict=True)
        lines.append(row | {f"S{b:g}": f"{c:.2f} / {g:.2f}" for b, c, g in pairs})
    whole = [Column(k.replace("_", " "), k, lambda v: f"{v:.4g}") for k in _WHOLE]
    return [
        Table("Branch and bound and the linear program", times, part_rows(rows, "time")),
        Table("Rows with a certain optimum / Theorem 9's bound", bounds, lines),
        Table("All test rows, exactly; training beside LinearSVC", whole, part_rows(rows, "whole")),
    ]


_WHOLE = (
    "rows_predicted", "predict_seconds", "states_median", "states_largest", "certain", "fit_seconds", "svm_seconds",
    "fit_ratio",
)  # fmt: skip


def draw(rows: Rows, originals: Originals) -> Figure:
    """Figure 3: seconds per row against labels; share of certain rows against S with the theoretical bounds."""
    figure, ((left, right),) = panels(1, 2, (5.5, 4))
    for number, model in enumerate(("trained", "random")):
        part = [row for row in part_rows(rows, "time") if row["model"] == model]
        labels, colour = [row["labels"] for row in part], f"C{number}"
        mean = np.array([row["search_seconds"] for row in part])
        spread = np.array([row["states_deviation"] / max(row["states_mean"], 1.0) for row in part])
        left.plot(labels, mean, color=colour, marker="o", label=f"branch and bound, {model}")
        short = np.array([row["certain"] < 1.0 for row in part])
        left.plot(
            np.array(labels)[short], mean[short], "^", color="black", ms=9, mfc="none",
            label="cut short: takes longer" if short.any() else None,
        )  # fmt: skip
        left.plot(labels, mean * (1.0 + spread), color=colour, linestyle="--", linewidth=1)
        lp = [row["lp_seconds"] for row in part]
        left.plot(labels, lp, color=colour, marker="s", mfc="white", label=f"LP, {model}")
    left.set(yscale="log", xlabel="labels", ylabel="seconds per row (dashed: + 1 deviation)")
    for number, row in enumerate(part_rows(rows, "bound")):
        name = f"{row['rows']} rows" if row["rows"] else "untrained"
        right.plot(row["bounds"], row["certain"], color=f"C{number}", label=name)
        right.plot(row["bounds"], row["guaranteed"], color=f"C{number}", linestyle=":")
    right.set(xscale="log", xlabel="S", ylabel="share of rows certain (dotted: Theorem 9)", ylim=(-0.02, 1.02))
    for ax in (left, right):
        ax.legend(fontsize=8)
    return figure


def _cells(labels: tuple[int, ...], sizes: tuple[int, ...]) -> list[Cell]:
    """Times by number of labels, trained and untrained; probabilities by training rows; the whole set at once."""
    times = grid(part=["time"], labels=labels, model=("trained", "random"))
    return times + grid(part=["bound"], rows=(*sizes, 0)) + grid(part=["whole"])


STUDY = Study(
    "search-speed", _cells(LABELS, SIZES), _cells((5, 10, 20), (10, 100)), run, tables, {"search_speed": draw}, load
)
