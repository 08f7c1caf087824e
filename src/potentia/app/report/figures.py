"""Figures of the page: small SVG charts, and images kept in rows as PNG."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...base.html import Markup, tag

if TYPE_CHECKING:
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
    """A logarithmic axis with ticks at 1, 2, 5 or at powers of ten."""
    low, high = low / 1.1, high * 1.1
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine, coarse = (
        [t for k in decades for m in parts if low <= (t := m * 10.0**k) <= high] for parts in ((1, 2, 5), (1,))
    )
    ticks = fine if len(fine) <= 6 else coarse
    return Axis(low, high, True, ticks if len(ticks) > 2 else _even_ticks(low, high))


def _even_ticks(low: float, high: float) -> list[float]:
    """Three to seven round numbers of equal distance."""
    from matplotlib.ticker import MaxNLocator

    slack = 1e-9 * (high - low)
    ticks = MaxNLocator(6, steps=[1, 2, 5, 10], min_n_ticks=3).tick_values(low, high)
    return [float(tick) for tick in ticks if low - slack <= tick <= high + slack]


def chart(lines: Sequence[Line], x: Axis, y: Axis, x_name: str, y_name: str, title: str, text: str) -> Markup:
    """A chart as inline SVG; `title` and `text` are what a screen reader says."""
    size = {"viewBox": f"0 0 {_WIDTH} {_HEIGHT}", "role": "img", "class_": "chart"}
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    titles = [
        tag("text", x_name, x=(_LEFT + _WIDTH - _RIGHT) / 2, y=_HEIGHT - 5, text_anchor="middle"),
        tag("text", y_name, x=10, y=middle, transform=f"rotate(-90 10 {middle})", text_anchor="middle"),
    ]
    parts = [*_grid(x, y), *(_line(line, x, y) for line in lines), *titles]
    return tag("svg", tag("title", title), *parts, aria_label=f"{title}. {text}", **size)


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
    """Grid lines, ticks and their texts."""
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


def _across(x: Axis, value: float) -> float:
    """x in the figure of a value."""
    return _LEFT + x.share(value) * (_WIDTH - _LEFT - _RIGHT)


def _down(y: Axis, value: float) -> float:
    """y in the figure of a value."""
    return _HEIGHT - _BOTTOM - y.share(value) * (_HEIGHT - _TOP - _BOTTOM)


def _texts(ticks: Sequence[float]) -> list[str]:
    """Ticks as text, with as many digits as it takes to tell them apart."""
    nil = 1e-9 * max(map(abs, ticks), default=0.0)
    return [f"{0.0 if abs(t) <= nil else t:,.12g}" for t in ticks]


#: Images with longer sides are kept reduced: the page stays small.
_LARGEST = 1024
#: What rows may have as a panel.
_URI = re.compile(r"data:image/(png|jpeg);base64,[A-Za-z0-9+/]+={0,2}")
#: Grey levels an uncertainty is kept with: nobody sees more, and they compress.
_LEVELS = 31


def kept_image(image: Mapping[str, Any]) -> dict[str, Any]:
    """An image as rows keep it: its panels as PNG or JPEG in data URIs, at full size up to `_LARGEST`.

    image: "name", "truth" (-1 where unknown), "prediction", "colours" (n, 3) of the classes and, where known, "input"
    and "overlay" (h, w, 3) and "uncertainty" (h, w) as arrays; of a volume the middle plane is kept.
    """
    every = ("input", "truth", "prediction", "uncertainty", "overlay")
    names = [name for name in every if image.get(name) is not None]
    arrays = {name: np.asarray(image[name]) for name in names}
    if arrays["truth"].ndim == 3:
        arrays = {name: values[len(values) // 2] for name, values in arrays.items()}
    text = wrong_pixels(arrays["truth"], arrays["prediction"])
    step = -(-max(arrays["truth"].shape) // _LARGEST)
    small = {name: values[::step, ::step] for name, values in arrays.items()}
    colours = np.vstack([image["colours"], [[128, 128, 128]]]).astype(np.uint8)  # the last: unknown
    truth, prediction = small["truth"], small["prediction"]
    back = small["input"].mean(axis=-1) / 3 if "input" in small else np.zeros(truth.shape)
    errors = np.repeat(back[..., None], 3, axis=-1).astype(np.uint8)
    errors[truth < 0] = 128
    errors[(truth >= 0) & (truth != prediction)] = (255, 64, 64)
    panels = {"input": _jpeg_uri(small["input"])} if "input" in small else {}
    panels |= {"truth": png_uri(colours[truth]), "prediction": png_uri(colours[prediction]), "errors": png_uri(errors)}
    if "uncertainty" in small:
        grey = np.rint(_LEVELS * np.clip(small["uncertainty"], 0.0, 1.0)) * (255 // _LEVELS)
        panels["uncertainty"] = png_uri(np.repeat(grey[..., None], 3, axis=-1).astype(np.uint8))
    panels |= {"overlay": _jpeg_uri(small["overlay"])} if "overlay" in small else {}
    return {"name": str(image["name"]), "text": text, "panels": panels}


def png_uri(pixels: np.ndarray) -> str:
    return _uri("png", png(pixels))


def _jpeg_uri(pixels: np.ndarray) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, format="JPEG", quality=85)
    return _uri("jpeg", file.getvalue())


def _uri(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def with_images(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Which rows keep images, as `kept_image` makes them; what others have under their key is something else."""
    kept = [row.get("pictures") for row in rows]
    return [k for k, images in enumerate(kept) if isinstance(images, list) and images and "panels" in images[0]]


def panels_of(image: Mapping[str, Any]) -> dict[str, str]:
    """Data URIs of a kept image, by name; refuses anything else."""
    panels: dict[str, str] = image["panels"]
    if not all(isinstance(uri, str) and _URI.fullmatch(uri) for uri in panels.values()):
        raise ValueError("a panel is no PNG or JPEG file in a data URI")
    return panels


def wrong_pixels(truth: np.ndarray, states: np.ndarray) -> str:
    """How many known pixels differ; nothing of sizes that do."""
    if truth.shape != states.shape:
        return ""
    known = int(np.count_nonzero(truth >= 0))
    wrong = int(np.count_nonzero((truth != states) & (truth >= 0)))
    return f"{wrong} of {known} pixels wrong ({wrong / max(known, 1):.2%})"


def png(pixels: np.ndarray) -> bytes:
    """A PNG of pixels (h, w, 3) of bytes; with a palette where there are at most 256 colours."""
    from PIL import Image

    colours, which = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True)
    image = Image.fromarray(pixels)
    if len(colours) <= 256:
        image = Image.fromarray(which.astype(np.uint8).reshape(pixels.shape[:2]))
        image.putpalette(colours.tobytes())
    file = io.BytesIO()
    image.save(file, format="PNG", optimize=True)
    return file.getvalue()


def viewer_data(images: Sequence[Sequence[Mapping[str, Any]]], methods: Sequence[str]) -> dict[str, Any]:
    """What the page steps through: sources of images without repetition, and per method and image its panels."""
    sources: dict[str, int] = {}
    shown = []
    for of_method in images:
        line = []
        for image in of_method[: min(map(len, images))]:
            numbers = {name: sources.setdefault(uri, len(sources)) for name, uri in panels_of(image).items()}
            line.append({"panels": numbers, **{key: str(image.get(key, "")) for key in ("text", "name")}})
        shown.append(line)
    return {"methods": list(methods), "sources": list(sources), "shown": shown}
