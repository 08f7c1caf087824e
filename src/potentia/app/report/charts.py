"""Small SVG charts; colours come from the page's style, so that they follow dark mode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ...base.html import Markup, tag
from ..plot import Line

_WIDTH, _HEIGHT = 310, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 10, 10, 34


class Axis(NamedTuple):
    """A range of values on a linear or logarithmic scale, and its ticks."""

    low: float
    high: float
    log: bool
    ticks: list[float]

    def share(self, value: float) -> float:
        """Where a value lies, 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def make_axis(values: Sequence[float], log: bool = False) -> Axis:
    """An axis over finite values; logarithmic only where all of them are above zero."""
    finite = [v for v in values if math.isfinite(v)] or [0.0]
    low, high = min(finite), max(finite)
    if log and low > 0:
        return _log_axis(low, high)
    if low == high:
        low, high = low - 0.5, high + 0.5
    return Axis(low, high, False, _even_ticks(low, high))


def _log_axis(low: float, high: float) -> Axis:
    low, high = low / 1.1, high * 1.1
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = [m * 10.0**k for k in decades for m in (1, 2, 5)]
    ticks = [t for t in fine if low <= t <= high]
    if len(ticks) > 6:
        ticks = [t for t in (10.0**k for k in decades) if low <= t <= high]
    return Axis(low, high, True, ticks if len(ticks) > 2 else _even_ticks(low, high))


def _even_ticks(low: float, high: float) -> list[float]:
    """Three to seven round numbers of equal distance."""
    ticks: list[float] = []
    for parts in (6, 9):  # steps are 1, 2 or 5 times a power of ten, so that six parts may come out as two
        step = _step((high - low) / parts)
        ticks = [step * k for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
        if len(ticks) > 2:
            break
    return ticks


def _step(rough: float) -> float:
    """The round number (1, 2 or 5 times a power of ten) nearest above."""
    power = 10.0 ** math.floor(math.log10(rough))
    return power * next(m for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))


def chart(lines: Sequence[Line], x: Axis, y: Axis, x_name: str, y_name: str, title: str, text: str) -> Markup:
    """A chart as inline SVG; `title` and `text` are what a screen reader says."""
    size = {"viewBox": f"0 0 {_WIDTH} {_HEIGHT}", "role": "img", "class_": "chart"}
    label = f"{title}. {text}"
    parts = [*_grid(x, y), *(_line(line, x, y) for line in lines), *_titles(x_name, y_name)]
    return tag("svg", tag("title", title), *parts, aria_label=label, **size)


def _line(line: Line, x: Axis, y: Axis) -> Markup:
    """A polyline, broken where a value is not finite."""
    path, pen = [], "M"
    for a, b in zip(line.x, line.y, strict=True):
        if math.isfinite(b) and (b > 0 or not y.log):
            # a line of no length is a dot, which is all there is to see of a single point
            dot = "h0" if pen == "M" else ""
            path.append(f"{pen}{_across(x, a):.1f} {_down(y, b):.1f}{dot}")
            pen = "L"
        else:
            pen = "M"
    css = f"line c{line.colour % 8}{' dashed' if line.dashed else ''}"
    return tag("path", d="".join(path), class_=css)


def _grid(x: Axis, y: Axis) -> list[Markup]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for tick, text in zip(y.ticks, _texts(y.ticks), strict=True):
        at = _down(y, tick)
        parts.append(tag("line", x1=_LEFT, x2=right, y1=f"{at:.1f}", y2=f"{at:.1f}", class_="grid"))
        parts.append(tag("text", text, x=_LEFT - 5, y=f"{at + 3.5:.1f}", text_anchor="end"))
    for tick, text in zip(x.ticks, _texts(x.ticks), strict=True):
        at = _across(x, tick)
        parts.append(tag("line", x1=f"{at:.1f}", x2=f"{at:.1f}", y1=bottom, y2=bottom + 3, class_="axis"))
        parts.append(tag("text", text, x=f"{at:.1f}", y=bottom + 14, text_anchor="middle"))
    parts.append(tag("line", x1=_LEFT, x2=right, y1=bottom, y2=bottom, class_="axis"))
    return parts


def _titles(x_name: str, y_name: str) -> list[Markup]:
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    turned = f"rotate(-90 10 {middle})"
    return [
        tag("text", x_name, x=(_LEFT + _WIDTH - _RIGHT) / 2, y=_HEIGHT - 5, text_anchor="middle"),
        tag("text", y_name, x=10, y=middle, transform=turned, text_anchor="middle"),
    ]


def _across(x: Axis, value: float) -> float:
    return _LEFT + x.share(value) * (_WIDTH - _LEFT - _RIGHT)


def _down(y: Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - y.share(value) * (_HEIGHT - _TOP - _BOTTOM)


def _texts(ticks: Sequence[float]) -> list[str]:
    """Ticks as text, with as many digits as it takes to tell them apart."""
    nil = 1e-9 * max(map(abs, ticks), default=0.0)
    texts: list[str] = []
    for digits in range(3, 8):
        texts = ["0" if abs(t) <= nil else _text(t, digits) for t in ticks]
        if len(set(texts)) == len(ticks) and all(
            math.isclose(float(text.replace(",", "")), t, rel_tol=1e-9, abs_tol=nil)
            for text, t in zip(texts, ticks, strict=True)
        ):
            break
    return texts


def _text(value: float, digits: int) -> str:
    if 1e3 <= abs(value) < 1e7:
        return f"{float(f'{value:.{digits}g}'):,.0f}"
    return f"{value:.{digits}g}"
