"""Intensity normalisation: from the numbers in image files to floats of a comparable range."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from .._types import PotentiaError

#: "type": unsigned integers divided by the largest of their type; "set": the range of the training images becomes
#: [0, 1]; "image": the range of each image does.
NORMALISATIONS = ("type", "set", "image")
# a few extreme pixels do not decide the range; fewer are looked at of a whole set
_PERCENTILES = (0.5, 99.5)
_MOST_PIXELS = 100_000


@dataclass
class Intensity:
    """How intensities are normalised.

    Attributes:
        how: one of `NORMALISATIONS`.
        channels: number of channels.
        low, high: per channel the range that becomes [0, 1], for "set".
    """

    how: str
    channels: int
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """All attributes."""
        return asdict(self)

    def apply(self, image: np.ndarray, axes: int = 2) -> np.ndarray:
        """An image or volume (*size) or (*size, channels) of any numbers as float32 (*size, channels)."""
        given = image[..., None] if image.ndim == axes else image
        if given.ndim != axes + 1:
            raise PotentiaError(f"an image has {axes} axes and its channels, not shape {image.shape}.")
        if given.shape[-1] == 1 and self.channels == 3:  # a grey image among colours
            given = np.repeat(given, 3, axis=-1)
        if given.shape[-1] != self.channels:
            raise PotentiaError(
                f"the image has {given.shape[-1]} channels, but the model was trained on {self.channels}."
            )
        values: np.ndarray = given.astype(np.float32)
        if given.dtype.kind not in "uibf" or not np.isfinite(values).all():
            raise PotentiaError("an image holds finite real numbers only.")
        if self.how == "type":
            return values / np.iinfo(given.dtype).max if given.dtype.kind == "u" else values
        low, high = (self.low, self.high) if self.how == "set" else _range([values])
        scale = [1.0 / (b - a) if b > a else 1.0 for a, b in zip(low, high, strict=True)]
        values -= np.asarray(low, dtype=np.float32)
        values *= np.asarray(scale, dtype=np.float32)
        return values


def learn_intensity(images: Iterable[np.ndarray], axes: int, how: str | None) -> Intensity:
    """The normalisation of a training set; None is "type" where all images have 8 bits, else "set"."""
    seen = [image if image.ndim > axes else image[..., None] for image in images]
    counts = sorted({image.shape[-1] for image in seen})
    if len(counts) > 1 and counts != [1, 3]:
        raise PotentiaError(
            f"images have {', '.join(map(str, counts))} channels; all must have the same number."
        )
    if how is None:
        how = "type" if all(image.dtype in (np.uint8, np.bool_) for image in seen) else "set"
    if how not in NORMALISATIONS:
        raise PotentiaError(f"normalise must be one of {', '.join(NORMALISATIONS)}, not {how!r}.")
    if how != "set":
        return Intensity(how, counts[-1])
    wide = [np.repeat(i, 3, axis=-1) if i.shape[-1] < counts[-1] else i for i in seen]
    return Intensity(how, counts[-1], *_range(wide))


def _range(images: list[np.ndarray]) -> tuple[list[float], list[float]]:
    """Low and high percentiles of each channel, of a regular sample of all pixels."""
    per_image = max(1, _MOST_PIXELS // len(images))
    drawn = []
    for image in images:
        flat = image.reshape(-1, image.shape[-1])
        drawn.append(flat[:: max(1, len(flat) // per_image)].astype(np.float64))
    low, high = np.percentile(np.concatenate(drawn), _PERCENTILES, axis=0)
    return low.tolist(), high.tolist()


def as_shown(values: np.ndarray) -> np.ndarray:
    """Normalised intensities (..., channels) as colours (..., 3) in 8 bits; more than three channels as their mean."""
    seen = values if values.shape[-1] in (1, 3) else values.mean(axis=-1, keepdims=True)
    grey = np.clip(np.rint(255.0 * seen), 0, 255).astype(np.uint8)
    return np.repeat(grey, 3, axis=-1) if grey.shape[-1] == 1 else grey
