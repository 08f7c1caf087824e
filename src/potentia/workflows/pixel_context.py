"""Context: one classifier's probabilities around a pixel, as features for a second one [Tu and Bai 2010]."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import ndimage

from .windows import Window, window_size

#: Probabilities are computed at every n-th pixel along each axis.
STRIDE = 4
#: Standard deviations, in pixels, of the Gaussians that probabilities are averaged by.
_SCALES = (8.0, 32.0)


class Context:
    """Probabilities of all classes on a coarse grid over an image, averaged at several scales.

    Features of a pixel are, at each scale, the probabilities there and two standard deviations away in both directions
    along each axis. Beyond the image they are those at its border.

    Args:
        probabilities: (*coarse_size, n_states), see `coarse_window`.
    """

    def __init__(self, probabilities: np.ndarray) -> None:
        self.axes, self.n_states = probabilities.ndim - 1, probabilities.shape[-1]
        self.n_features = n_context(self.n_states, self.axes)
        self._smooth = [
            ndimage.gaussian_filter(probabilities, (*[scale / STRIDE] * self.axes, 0.0), mode="nearest")
            for scale in _SCALES
        ]

    def at(self, places: np.ndarray) -> np.ndarray:
        """Features (n, n_features) in float32 of pixels at (n, axes)."""
        found = np.empty((len(places), self.n_features), dtype=np.float32)
        centre = places.T / STRIDE
        column = 0
        for scale, smooth in zip(_SCALES, self._smooth, strict=True):
            for step in _steps(self.axes, 2 * scale / STRIDE):
                for k in range(self.n_states):
                    found[:, column] = ndimage.map_coordinates(
                        smooth[..., k], centre + step[:, None], order=1, mode="nearest", prefilter=False
                    )
                    column += 1
        return found


def n_context(n_states: int, axes: int) -> int:
    """The number of features that context has."""
    return len(_SCALES) * (1 + 2 * axes) * n_states


def coarse_size(size: Sequence[int]) -> tuple[int, ...]:
    """The size of the coarse grid over an image."""
    return tuple(-(-side // STRIDE) for side in size)


def coarse_window(window: Window) -> tuple[Window, Window]:
    """The coarse grid's pixels in a window of an image: where they are in the window, and where in the grid."""
    outer = tuple(slice(-(-own.start // STRIDE), -(-own.stop // STRIDE)) for own in window)
    inner = tuple(
        slice(g.start * STRIDE - own.start, None, STRIDE) for g, own in zip(outer, window, strict=True)
    )
    return inner, outer


def places_in(window: Window) -> np.ndarray:
    """The pixels (n, axes) of a window, in raster order."""
    starts = np.array([own.start for own in window], dtype=np.int32)
    found = np.indices(window_size(window), dtype=np.int32).reshape(len(window), -1).T + starts
    return np.asarray(found)


def _steps(axes: int, far: float) -> list[np.ndarray]:
    found = [np.zeros(axes)]
    for axis in range(axes):
        for sign in (-far, far):
            step = np.zeros(axes)
            step[axis] = sign
            found.append(step)
    return found
