"""Images kept in rows, as PNG inside the page."""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

#: One colour per state, far apart also for the colour-blind [Okabe and Ito].
PALETTE = np.array(
    [
        [24, 36, 52], [240, 228, 66], [0, 158, 115], [86, 180, 233], [213, 94, 0], [204, 121, 167],
        [0, 114, 178], [230, 159, 0], [250, 250, 250], [150, 150, 150],
    ]
) / 255.0  # fmt: skip
#: Images with longer sides are reduced: the page stays small.
_LONGEST = 128
#: Grey levels a marginal is kept with: nobody sees more, and they compress.
_LEVELS = 31

Panels = dict[str, np.ndarray]
#: What was seen, (h, w) or (h, w, 3) in [0, 1], and the classes (h, w), -1 where unknown.
Original = tuple[np.ndarray, np.ndarray]


def pack(marginals: np.ndarray) -> dict[str, Any]:
    """Numbers in [0, 1] of any shape as text."""
    levels = np.rint(np.clip(marginals, 0.0, 1.0) * _LEVELS).astype(np.uint8)
    text = base64.b64encode(zlib.compress(levels.tobytes(), 9)).decode()
    return {"shape": list(marginals.shape), "levels": text}


def unpack(packed: Mapping[str, Any]) -> np.ndarray:
    """The array that `pack` packed, rounded."""
    levels = np.frombuffer(zlib.decompress(base64.b64decode(packed["levels"])), dtype=np.uint8)
    return levels.reshape(packed["shape"]) / _LEVELS


def with_images(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Which rows keep images (a dictionary under their key is something else)."""
    return [k for k, row in enumerate(rows) if isinstance(row.get("pictures"), list) and row["pictures"]]


def panels_of(image: Any, original: Original | None = None) -> tuple[Panels, str]:
    """What a row keeps of one image, as colours (h, w, 3) in [0, 1] by name, and what is said about it.

    An image is a string of predicted states, packed marginals, or a mapping with "input", "truth", "marginals" and
    "prediction"; of the first two, the original adds input and truth. Without it a string is that of a square.
    """
    marginals = states = None
    if isinstance(image, str):
        side = round(len(image) ** 0.5)
        size = (side, side) if original is None else original[1].shape
        if size[0] * size[1] != len(image):
            return {}, ""
        states = _states(image, size)
    elif "levels" in image:
        marginals = _spread(unpack(image))
    else:
        marginals = _spread(unpack(image["marginals"]))
        truth, states = (_states(image[key], marginals.shape[:2]) for key in ("truth", "prediction"))
        original = unpack(image["input"]), truth
    if states is None and marginals is not None:
        states = marginals.argmax(axis=2)
    assert states is not None
    n_states = int(states.max()) + 1 if marginals is None else marginals.shape[2]
    panels: Panels = {}
    if original is not None:
        panels = {"input": _input(original[0]), "truth": _colours(_one_hot(original[1], n_states))}
    if marginals is not None:
        panels["marginals"] = _mixed(marginals)
    panels["prediction"] = _colours(_one_hot(states, n_states))
    if isinstance(image, Mapping) and "input" in image:
        panels["overlay"] = 0.5 * (panels["input"] + panels["prediction"])
    return panels, "" if original is None else _wrong(original[1], states)


def _wrong(truth: np.ndarray, states: np.ndarray) -> str:
    """How many known pixels differ; nothing of sizes that do."""
    if truth.shape != states.shape:
        return ""
    known = int(np.count_nonzero(truth >= 0))
    wrong = int(np.count_nonzero((truth != states) & (truth >= 0)))
    return f"{wrong} of {known} pixels wrong ({wrong / max(known, 1):.2%})"


def _states(digits: str, size: tuple[int, ...]) -> np.ndarray:
    # unknown states are one below zero
    return (np.frombuffer(digits.encode(), dtype=np.uint8).astype(np.int16) - ord("0")).reshape(size)


def _one_hot(states: np.ndarray, n_states: int = 0) -> np.ndarray:
    shown: np.ndarray = states[..., None] == np.arange(max(n_states, int(states.max()) + 1, 2))
    return shown.astype(float)


def _spread(marginals: np.ndarray) -> np.ndarray:
    """(h, w, states); of two states a row may keep the second only."""
    if marginals.ndim == 2:
        marginals = marginals[..., None]
    return np.concatenate([1.0 - marginals, marginals], axis=2) if marginals.shape[2] == 1 else marginals


def _colours(marginals: np.ndarray) -> np.ndarray:
    """The states' colours mixed by probability."""
    mixed: np.ndarray = marginals @ PALETTE[np.arange(marginals.shape[2]) % len(PALETTE)]
    return mixed


def _mixed(marginals: np.ndarray) -> np.ndarray:
    """Colours of marginals with 32 levels, as rows keep them: fewer colours compress."""
    return np.rint(_LEVELS * _colours(marginals)) / _LEVELS


def _input(values: np.ndarray) -> np.ndarray:
    grey = values if values.ndim == 2 else values[..., 0]
    return values if values.ndim == 3 and values.shape[2] == 3 else np.repeat(grey[..., None], 3, axis=2)


def data_uri(image: np.ndarray) -> str:
    """Colours (h, w, 3) in [0, 1] as a PNG in a data URI."""
    factor = -(-max(image.shape[:2]) // _LONGEST)
    small = image[::factor, ::factor]
    bytes_ = np.rint(np.clip(small, 0.0, 1.0) * 255).astype(np.uint8)
    return "data:image/png;base64," + base64.b64encode(png(bytes_)).decode()


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


def viewer_data(
    images: Sequence[Sequence[Any]],
    methods: Sequence[str],
    originals: Sequence[Sequence[Original]] | None = None,
) -> dict[str, Any] | None:
    """What the page steps through: sources of images without repetition, and per method and image its panels.

    originals: per method what its images show, where that is known.
    """
    sources: dict[str, int] = {}
    shown = []
    for of_method, of_originals in zip(images, originals or [()] * len(images), strict=True):
        line = []
        for number, image in enumerate(of_method[: min(map(len, images))]):
            panels, text = panels_of(image, of_originals[number] if number < len(of_originals) else None)
            numbers = {name: sources.setdefault(data_uri(p), len(sources)) for name, p in panels.items()}
            line.append({"panels": numbers, "text": text, "name": _name(image)})
        shown.append(line)
    if not any(entry["panels"] for line in shown for entry in line):
        return None
    return {"methods": list(methods), "sources": list(sources), "shown": shown}


def _name(image: Any) -> str:
    return str(image.get("name", "")) if isinstance(image, Mapping) else ""
