"""Features of the pixels in a window of an image, computed with a margin so that they are those of the whole image."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .._types import PotentiaError
from ..features.filters import filter_bank, filter_reach, n_filters
from .pixel_context import Context, places_in
from .windows import Window, inside, widened, window_size

#: Sides of the pieces in which features are computed and pixels scored, for two and for three axes.
TILE_SIDES = {2: 512, 3: 64}


@dataclass
class PixelRows:
    """What the features of a pixel are.

    Attributes:
        features: "filters", those of the filter bank and of the user, or "given", only the latter.
        position: whether the pixel's position, as a share of the image's sides, is among them.
        given: number of channels that the user gives with each image.
        channels: number of channels of the image.
        axes: 2 for images, 3 for volumes.
    """

    features: str
    position: bool
    given: int
    channels: int
    axes: int = 2

    def to_json(self) -> dict[str, Any]:
        """All attributes."""
        return asdict(self)

    @property
    def n_features(self) -> int:
        """The number of features."""
        filters = n_filters(self.channels, axes=self.axes) if self.features == "filters" else 0
        return filters + self.given + (self.axes if self.position else 0)

    def rows(
        self,
        values: np.ndarray,
        window: Window,
        given: np.ndarray | None,
        context: Context | None = None,
    ) -> np.ndarray:
        """Features (n, n_features) in float32 of a window's pixels, in raster order; then those of context.

        values: the whole image (*size, channels), normalised. given: (*size, n) of the user. Positions come last of
        the image's own features.
        """
        size = values.shape[:-1]
        n_features = self.n_features + (0 if context is None else context.n_features)
        found = np.empty((*window_size(window), n_features), dtype=np.float32)
        column = 0
        if self.features == "filters":
            around = widened(window, filter_reach(), size)
            bank = filter_bank(values[around], axes=self.axes)[inside(window, around)]
            column = bank.shape[-1]
            found[..., :column] = bank
        if self.given:
            if given is None or given.shape != (*size, self.given):
                shape = None if given is None else given.shape
                raise PotentiaError(
                    f"the image needs given features of shape {(*size, self.given)}, not {shape}."
                )
            found[..., column : column + self.given] = given[window]
            column += self.given
        if self.position:
            for axis, (own, side) in enumerate(zip(window, size, strict=True)):
                shares = (np.arange(own.start, own.stop, dtype=np.float32) + 0.5) / side
                shape_ = [-1 if a == axis else 1 for a in range(self.axes)]
                found[..., column + axis] = shares.reshape(shape_)
        flat = found.reshape(-1, n_features)
        if context is not None:
            flat[:, self.n_features :] = context.at(places_in(window))
        return flat
