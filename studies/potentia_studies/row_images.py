"""Images in the studies' rows: a string of predicted states or packed marginals, and what they are images of."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from potentia.app.report.figures import png_uri, wrong_pixels

#: One colour per state, far apart also for the colour-blind [Okabe and Ito].
PALETTE = np.array(
    [
        [24, 36, 52], [240, 228, 66], [0, 158, 115], [86, 180, 233], [213, 94, 0], [204, 121, 167],
        [0, 114, 178], [230, 159, 0], [250, 250, 250], [150, 150, 150],
    ]
) / 255.0  # fmt: skip
#: Images with longer sides are reduced on the page.
_LONGEST = 128
#: Grey levels a marginal is kept with: nobody sees more, and they compress.
_LEVELS = 31

#: What was seen, (h, w) or (h, w, 3) in [0, 1], and the classes (h, w), -1 where unknown.
Original = tuple[np.ndarray, np.ndarray]
#: Colours (h, w, 3) in [0, 1] by name.
Panels = dict[str, np.ndarray]


def pack(marginals: np.ndarray) -> dict[str, Any]:
    """Numbers in [0, 1] of any shape as text."""
    levels = np.rint(np.clip(marginals, 0.0, 1.0) * _LEVELS).astype(np.uint8)
    text = base64.b64encode(zlib.compress(levels.tobytes(), 9)).decode()
    return {"shape": list(marginals.shape), "levels": text}


def unpack(packed: Mapping[str, Any]) -> np.ndarray:
    """The array that `pack` packed, rounded."""
    levels = np.frombuffer(zlib.decompress(base64.b64decode(packed["levels"])), dtype=np.uint8)
    return levels.reshape(packed["shape"]) / _LEVELS


def panels_of(image: Any, original: Original | None = None) -> tuple[Panels, str]:
    """What a row keeps of one image, as colours by name, and how many pixels are wrong.

    An image is a string of predicted states or packed marginals; the original adds input and truth. Without it a
    string is that of a square.
    """
    panels: Panels = {}
    if isinstance(image, str):
        side = round(len(image) ** 0.5)
        size = (side, side) if original is None else original[1].shape
        if size[0] * size[1] != len(image):
            return {}, ""
        # unknown states are one below zero
        states = (np.frombuffer(image.encode(), dtype=np.uint8).astype(np.int16) - ord("0")).reshape(size)
        n_states = int(states.max()) + 1
    else:
        marginals = _spread(unpack(image))
        states, n_states = marginals.argmax(axis=2), marginals.shape[2]
        # 32 levels, as rows keep them: fewer colours compress
        panels["marginals"] = np.rint(_LEVELS * _colours(marginals)) / _LEVELS
    panels["prediction"] = _state_colours(states, n_states)
    if original is None:
        return panels, ""
    seen, truth = original
    return {"input": _input(seen), "truth": _state_colours(truth, n_states), **panels}, wrong_pixels(truth, states)


def kept(image: Any, original: Original | None) -> dict[str, Any]:
    """An image of a row as pages show it, see `potentia.app.report.figures.kept_image`."""
    panels, text = panels_of(image, original)
    return {"text": text, "panels": {name: data_uri(colours) for name, colours in panels.items()}}


def data_uri(colours: np.ndarray) -> str:
    """Colours (h, w, 3) in [0, 1] as a PNG in a data URI."""
    factor = -(-max(colours.shape[:2]) // _LONGEST)
    return png_uri(np.rint(np.clip(colours[::factor, ::factor], 0.0, 1.0) * 255).astype(np.uint8))


def _spread(marginals: np.ndarray) -> np.ndarray:
    """(h, w, states); of two states a row may keep the second only."""
    if marginals.ndim == 2:
        marginals = marginals[..., None]
    return np.concatenate([1.0 - marginals, marginals], axis=2) if marginals.shape[2] == 1 else marginals


def _state_colours(states: np.ndarray, n_states: int) -> np.ndarray:
    """A label map in the classes' colours."""
    one_hot: np.ndarray = states[..., None] == np.arange(max(n_states, int(states.max()) + 1, 2))
    return _colours(one_hot.astype(float))


def _colours(marginals: np.ndarray) -> np.ndarray:
    """The states' colours mixed by probability."""
    mixed: np.ndarray = marginals @ PALETTE[np.arange(marginals.shape[2]) % len(PALETTE)]
    return mixed


def _input(values: np.ndarray) -> np.ndarray:
    """An image in colours; one of other than three channels in grey, by its first channel."""
    grey = values if values.ndim == 2 else values[..., 0]
    return values if values.ndim == 3 and values.shape[2] == 3 else np.repeat(grey[..., None], 3, axis=2)
