"""Where a plot puts the variables of a graph: grids as grids, trees below their roots, others by springs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..base.figures import draw_marginals, new_axes
from ..base.types import (
    ArrayLike,
    Floats,
    Ints,
    PotentiaError,
    check_type,
    plain_array,
    real_numbers,
    shown,
    whole_numbers,
)
from ..features.example import Example
from ..graph.builders import grid_edges
from ..graph.structure import Graph
from ..inference.base import Result
from ..learn.data import checked_examples
from ..models.crf import CRF
from .pipeline import Pipeline
from .pixel_values import as_shown, learn_intensity

#: Positions (n, 2), and the roots of trees.
Placement = tuple[Floats, Ints]
_NO_ROOTS = np.empty(0, dtype=np.int64)


def _grid(n: int, pairs: Ints) -> Floats | None:
    """Rows below each other, if the pairs are exactly those of a grid with 4 or 8 neighbours."""
    of_first = np.unique(pairs[pairs[:, 0] == 0, 1])
    given = {tuple(sorted(pair)) for pair in pairs.tolist()}
    for width in dict.fromkeys([n, *of_first.tolist()]):
        for neighbours in (4, 8) if n % width == 0 else ():
            edges, _ = grid_edges((n // width, width), neighbours)
            if given == {tuple(sorted(pair)) for pair in edges.tolist()}:
                down, right = np.divmod(np.arange(n), width)
                return np.stack([right, -down], axis=1).astype(float)
    return None


def _forest(n: int, pairs: Ints) -> Placement | None:
    """Children below their parents, leaves side by side; None if a variable has two parents or there is a cycle."""
    parent = np.full(n, -1)
    parent[pairs[:, 1]] = pairs[:, 0]
    if len(pairs) == 0 or np.count_nonzero(parent >= 0) < len(pairs):
        return None
    children: list[list[int]] = [[] for _ in range(n)]
    for above, below in pairs.tolist():
        children[above].append(below)
    roots, where, order = np.flatnonzero(parent < 0), np.zeros((n, 2)), list[int]()
    stack = roots[::-1].tolist()
    while stack:
        order.append(stack.pop())
        stack += reversed(children[order[-1]])
        where[children[order[-1]], 1] = where[order[-1], 1] - 1.0
    leaves = [variable for variable in order if not children[variable]]
    where[leaves, 0] = np.arange(len(leaves))
    for variable in reversed(order):
        if children[variable]:
            where[variable, 0] = where[children[variable], 0].mean()
    return (where, roots) if len(order) == n else None


def springs(ties: Floats) -> Floats:
    """Positions by springs along ties (n, n) and repulsion between all variables [Fruchterman and Reingold]."""
    n = len(ties)
    angle = 2 * np.pi * np.arange(n) / n
    where = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if n > 2:
        # the smoothest functions on the graph unfold it; the circle keeps parts without ties apart
        where = 0.1 * where + np.linalg.eigh(np.diag(ties.sum(axis=1)) - ties)[1][:, 1:3] * np.sqrt(n)
    rest = 1.0 / np.sqrt(n)
    for heat in np.linspace(0.2, 0.002, 200):
        apart = where[:, None] - where[None]
        distance = np.maximum(np.linalg.norm(apart, axis=2), 1e-3)
        force = rest**2 / distance**2 - ties * distance / rest
        push = np.einsum("ij,ijd->id", force, apart)
        size = np.maximum(np.linalg.norm(push, axis=1, keepdims=True), 1e-12)
        where = where + push / size * np.minimum(size, heat)
    return where


#: Curves of a history where errors were tracked: key, name, number of the colour, whether dashed.
_ERRORS = (("train_error", "training", 1, True), ("validation_error", "validation", 0, False))
_OBJECTIVE = (("objective", "objective", 2, False),)


class Line(NamedTuple):
    """A named line: points, the number of its colour, and whether it is dashed."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    dashed: bool = False


def history_lines(history: Sequence[Mapping[str, Any]], *, objective: bool = False) -> list[Line]:
    """Tracked errors by learning iteration, without those never tracked; or the objective."""
    lines = []
    for key, name, colour, dashed in _OBJECTIVE if objective else _ERRORS:
        points = [row for row in history if key in row]
        if points:
            x, y = ([row[k] for row in points] for k in ("iteration", key))
            lines.append(Line(name, x, y, colour, dashed))
    return lines


def score_lines(x: Sequence[float], scores: ArrayLike, kind: str) -> list[Line]:
    """Scores (points, configurations) of a kind's regions as functions of x; only their differences matter."""
    f = np.asarray(scores, dtype=float)
    f = f - f.mean(axis=1, keepdims=True)
    n = f.shape[1]
    side = round(n**0.5)
    names = [f"{k // side}{k % side}" if kind == "edge" and side * side == n else str(k) for k in range(n)]
    return [Line(f"y = {name}", x, f[:, k].tolist(), k) for k, name in enumerate(names)]


if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Variables up to which a graph is laid out by springs.
_MOST = 500


def history(model: Any, ax: Axes | None = None) -> Axes:
    """Errors by learning iteration, on a logarithmic axis, or the objective where no error was tracked.

    model: a fitted CRF or ChainCRF, a pipeline around one, or its `history_`.
    """
    inner = model.model if isinstance(model, Pipeline) else model
    rows = inner.history_ if hasattr(inner, "history_") else model
    if isinstance(rows, CRF | Pipeline):
        rows = _fitted(rows).history_
    if not isinstance(rows, Sequence) or not all(isinstance(row, Mapping) for row in rows):
        given = shown(model) if isinstance(rows, Sequence) else f"a {type(model).__name__}"
        raise PotentiaError(f"model must be a fitted CRF or ChainCRF, or its history_, not {given}.")
    if not rows:
        raise PotentiaError("the history of the model is empty.")
    errors = history_lines(rows)
    axes = ax or new_axes()[0]
    draw_lines(axes, errors or history_lines(rows, objective=True), text="{} error" if errors else "{}")
    if errors and all(value > 0 for line in errors for value in line.y):
        axes.set_yscale("log")
    axes.set(xlabel="iteration", ylabel="error" if errors else "objective")
    if len(errors) > 1:
        axes.legend()
    return axes


def draw_lines(ax: Axes, lines: Sequence[Line], text: str = "{}") -> None:
    """Lines with their colours, dashed ones thinner; text: what their names become in a legend."""
    for line in lines:
        dashed: dict[str, Any] = {"linestyle": "--", "linewidth": 1} if line.dashed else {}
        ax.plot(line.x, line.y, color=f"C{line.colour}", label=text.format(line.name), **dashed)


def marginals(
    found: Result | ArrayLike, shape: Sequence[int] | None = None, state: int = 1, ax: Axes | None = None
) -> Axes:
    """Marginals of variables: P(state) as an image of the given shape, or without one all states as a map.

    found: a result, or marginals (n_variables, states). shape: height and width of a grid in raster order.
    """
    table = found.variable_marginals if isinstance(found, Result) else real_numbers(found, "found")
    return draw_marginals(table, shape, state, ax)


def labels(
    image: ArrayLike,
    found: ArrayLike,
    names: Sequence[str] | Mapping[int, str] | None = None,
    opacity: float = 0.35,
    ax: Axes | None = None,
) -> Axes:
    """An image with its labels: tinted regions with contours, and a legend; pixels of -1 are left as they are.

    image: (h, w) or (h, w, channels). found: labels (h, w), or (h * w,) in raster order. names: of the labels.
    """
    pixels, given = plain_array(image, "image"), whole_numbers(found, "found")
    if pixels.ndim not in (2, 3):
        raise PotentiaError(f"image must have shape (h, w) or (h, w, channels), not {pixels.shape}.")
    if given.shape != pixels.shape[:2] and given.shape != (pixels.shape[0] * pixels.shape[1],):
        raise PotentiaError(f"found has shape {given.shape}; the image needs {pixels.shape[:2]}.")
    from matplotlib.colors import to_rgba

    table, axes = given.reshape(pixels.shape[:2]), ax or new_axes()[0]
    channels = pixels[..., None] if pixels.ndim == 2 else pixels
    axes.imshow(as_shown(learn_intensity([channels], 2, None).apply(channels)))
    for value in np.unique(table[table >= 0]).tolist():
        colour, inside = f"C{value % 10}", table == value
        tint = np.zeros((*table.shape, 4))
        tint[inside] = to_rgba(colour, opacity)
        axes.imshow(tint)
        if inside.any() and not inside.all():
            axes.contour(inside, levels=[0.5], colors=colour, linewidths=1.0)
        known = names is not None and (value in names if isinstance(names, Mapping) else value < len(names))
        axes.plot([], [], "s", color=colour, label=names[value] if names is not None and known else str(value))
    axes.set_axis_off()
    axes.figure.legend(loc="outside right upper", fontsize="small")
    return axes


def potentials(
    crf: CRF | Pipeline,
    examples: Sequence[Example] | None = None,
    feature: int = -1,
    axes: Sequence[Axes] | None = None,
) -> list[Axes]:
    """Learned scores theta, an axis per kind: as functions of one feature, or as a table where they are constant.

    Only differences between configurations matter, so their mean is subtracted. The feature varies over its range
    in `examples`, with the other features at their means; without examples it varies over 0..1 and the others are 1.
    """
    model = _fitted(crf)
    check_type("examples", examples, Sequence, optional=True)
    examples = None if examples is None else list(checked_examples(examples))
    kinds = list(model.potentials_)
    if axes is not None and len(axes) != len(kinds):
        raise PotentiaError(f"{len(axes)} axes for {len(kinds)} kinds of potentials.")
    places = list(axes) if axes is not None else new_axes(len(kinds))
    for place, kind in zip(places, kinds, strict=True):
        potential = model.potentials_[kind]
        x, rows = _probe(potential.n_features_, kind, examples, feature)
        lines = score_lines(x.tolist(), potential.scores(rows) * model.scales_[kind], kind)
        if all(np.ptp(line.y) == 0 for line in lines):
            _table(place, np.array([line.y[0] for line in lines]), kind)
        else:
            draw_lines(place, lines)
            place.set(xlabel=f"feature {feature % potential.n_features_}", ylabel="score")
            if len(lines) <= 10:
                place.legend(fontsize="small")
        place.set_title(f"{kind}: {type(potential).__name__}")
    return places


def _probe(n_features: int, kind: str, examples: Sequence[Example] | None, feature: int) -> tuple[Floats, Floats]:
    """Values of the feature, and rows that have them."""
    if n_features == 0:
        return np.zeros(1), np.zeros((1, 0))
    if isinstance(feature, bool) or not isinstance(feature, int | np.integer):
        raise PotentiaError(f"feature must be a whole number, not {shown(feature)}.")
    if not -n_features <= feature < n_features:
        raise PotentiaError(f"feature must be one of the {n_features} features of {kind!r}, not {feature}.")
    middle, low, high = np.ones(n_features), 0.0, 1.0
    if examples is not None:
        seen = [e.features[kind] for e in examples if kind in e.features]
        if not seen:
            raise PotentiaError(f"none of the {len(examples)} examples has features of kind {kind!r}.")
        dense = np.concatenate([m.toarray() if hasattr(m, "toarray") else m for m in seen])
        middle, low, high = dense.mean(axis=0), dense[:, feature].min(), dense[:, feature].max()
    x = np.linspace(low, high, 201)
    rows = np.tile(middle, (len(x), 1))
    rows[:, feature] = x
    return x, rows


def _table(ax: Axes, scores: Floats, kind: str) -> None:
    """Constant scores: a square image of pairs, or bars."""
    side = round(len(scores) ** 0.5)
    if kind == "edge" and side * side == len(scores):
        shown = ax.imshow(scores.reshape(side, side), cmap="viridis")
        ax.figure.colorbar(shown, ax=ax, label="score")
        ax.set(xticks=range(side), yticks=range(side), xlabel="second state", ylabel="first state")
    else:
        ax.bar(range(len(scores)), scores)
        ax.set(xticks=range(len(scores)), xlabel="configuration", ylabel="score")


def graph(
    g: Graph, labels: ArrayLike | None = None, positions: ArrayLike | None = None, ax: Axes | None = None
) -> Axes:
    """Variables as dots, pairs as lines, larger regions as squares tied to their variables.

    labels: (n_variables,), shown as colours. positions: (n_variables, 2); None draws 2-D grids and chains as such,
    forests below their roots, which have a ring, and other graphs by springs.
    """
    check_type("g", g, Graph)
    where, roots = _layout(g) if positions is None else (real_numbers(positions, "positions"), _NO_ROOTS)
    if where.shape != (g.n_variables, 2):
        raise PotentiaError(f"positions must have shape ({g.n_variables}, 2), not {where.shape}.")
    labels = None if labels is None else plain_array(labels, "labels")
    if labels is not None and labels.shape != (g.n_variables,):
        raise PotentiaError(f"labels must have shape ({g.n_variables},), not {labels.shape}.")
    axes = ax or new_axes()[0]
    for number, (kind, scopes) in enumerate(g.scopes.items()):
        if scopes.shape[1] == 2:
            _lines(axes, where[scopes], "0.6")
        elif scopes.shape[1] > 2:
            centres = where[scopes].mean(axis=1)
            for place in range(scopes.shape[1]):
                _lines(axes, np.stack([centres, where[scopes[:, place]]], axis=1), f"C{number}")
            axes.scatter(centres[:, 0], centres[:, 1], marker="s", s=30, color=f"C{number}", label=kind, zorder=2)
    colours: dict[str, Any] = {"color": "C0"} if labels is None else {"c": labels, "cmap": "viridis"}
    size = max(8.0, 150.0 - 2.0 * g.n_variables)
    if len(roots):
        ring: dict[str, Any] = {"facecolors": "none", "edgecolors": "C3", "linewidths": 2.0, "label": "root"}
        axes.scatter(where[roots, 0], where[roots, 1], s=3 * size, zorder=2, clip_on=False, **ring)
    axes.scatter(where[:, 0], where[:, 1], s=size, zorder=3, clip_on=False, **colours)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    axes.set_aspect("equal")
    axes.set_axis_off()
    return axes


def _lines(ax: Axes, ends: Floats, colour: str) -> None:
    """Draw straight lines between points, ends (m, 2, 2)."""
    from matplotlib.collections import LineCollection

    ax.add_collection(LineCollection(list(ends), colors=colour, linewidths=1.0, zorder=1))


def _layout(g: Graph) -> Placement:
    """Where to draw the variables: grids and trees as such, others by springs."""
    pairs = [scopes for scopes in g.scopes.values() if scopes.shape[1] == 2 and len(scopes)]
    if len(pairs) == 1 and g.max_order == 2:
        positions = _grid(g.n_variables, pairs[0])
        placement = _forest(g.n_variables, pairs[0]) if positions is None else (positions, _NO_ROOTS)
        if placement is not None:
            return placement
    n = g.n_variables
    if n > _MOST:
        raise PotentiaError(f"a graph of {n} variables needs positions to be drawn, unless it is a grid or a tree.")
    ties = np.zeros((n, n))
    for scopes in g.scopes.values():
        ties[scopes[:, :, None], scopes[:, None]] = 1.0
    np.fill_diagonal(ties, 0.0)
    return springs(ties), _NO_ROOTS


def _fitted(model: CRF | Pipeline) -> CRF:
    """The fitted CRF of a model."""
    crf = model.model if isinstance(model, Pipeline) else model
    if not isinstance(crf, CRF):
        raise PotentiaError(f"only a CRF has potentials and a history to plot, not a {type(crf).__name__}.")
    if not hasattr(crf, "history_"):
        raise PotentiaError("this CRF is not fitted: call fit first.")
    return crf
