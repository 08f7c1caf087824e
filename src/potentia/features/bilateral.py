"""Features of the Gaussian kernels of dense CRFs."""

from __future__ import annotations

import numpy as np

from .._options import check_positive
from .._types import ArrayLike, Floats, PotentiaError, real_numbers


def bilateral(image: ArrayLike, sd_position: float, sd_colour: float | None = None) -> Floats:
    """Positions of pixels, and with `sd_colour` their colours, over standard deviations, for `pt.DenseGaussian`.

    Args:
        image: (h, w) or (h, w, channels); of any unit, which is also that of sd_colour.
        sd_position: in pixels.
        sd_colour: of each channel; None leaves colours out.

    Returns:
        (h * w, 2) or (h * w, 2 + channels), pixels in raster order.
    """
    check_positive("sd_position", sd_position)
    given = real_numbers(image, "image")
    if given.ndim not in (2, 3) or 0 in given.shape:
        raise PotentiaError(f"an image has shape (h, w) or (h, w, channels), not {given.shape}.")
    height, width = given.shape[:2]
    places = np.indices((height, width)).reshape(2, -1).T / float(sd_position)
    if sd_colour is None:
        return places
    check_positive("sd_colour", sd_colour)
    return np.hstack([places, given.reshape(height * width, -1) / float(sd_colour)])
