"""Intensity normalisation: from the numbers in image files to floats of a comparable range."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..base.types import PotentiaError

#: "type": unsigned integers divided by the largest of their type; "set": the range of the training images becomes
#: [0, 1]; "image": the range of each image does.
NORMALISATIONS = ("type", "set", "image")
#: The number types of images; "float" for all floats.
NUMBER_TYPES = ("bool", "float", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
# a few extreme pixels do not decide the range; fewer are looked at of a whole set
_PERCENTILES = (0.5, 99.5)
_MOST_PIXELS = 100_000
# what the features of pixels compute with
_LARGEST = float(np.finfo(np.float32).max)


@dataclass
class Intensity:
    """How intensities are normalised.

    Attributes:
        how: one of `NORMALISATIONS`.
        channels: number of channels.
        low, high: per channel the range that becomes [0, 1], for "set".
        types: the number types that are taken, "float" for all floats; None for any, as for "image".
    """

    how: str
    channels: int
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    types: list[str] | None = None

    def apply(self, image: np.ndarray, axes: int = 2) -> np.ndarray:
        """An image or volume (*size) or (*size, channels) as float32 (*size, channels).

        Its number type must be one of `types`, or a wider signed integer with all values in the range of one.
        """
        pixels = image[..., None] if image.ndim == axes else image
        if pixels.ndim != axes + 1:
            raise PotentiaError(f"an image has {axes} axes and its channels, not shape {image.shape}.")
        if pixels.shape[-1] == 1 and self.channels == 3:  # a grey image among colours
            pixels = np.repeat(pixels, 3, axis=-1)
        if pixels.shape[-1] != self.channels:
            raise PotentiaError(
                f"the number of channels of the image is {pixels.shape[-1]}, but the model was trained on "
                f"{self.channels}."
            )
        if pixels.dtype.kind not in "uibf":
            raise PotentiaError(f"an image holds real numbers, not {pixels.dtype}.")
        pixels = self._typed(pixels)
        with np.errstate(over="ignore"):
            values: np.ndarray = pixels.astype(np.float32)
        if not np.isfinite(values).all():
            raise PotentiaError(
                f"an image holds finite numbers below {_LARGEST:.1e} only. Give missing pixels a number."
            )
        if self.how == "type":
            return values / np.iinfo(pixels.dtype).max if pixels.dtype.kind == "u" else values
        low, high = (self.low, self.high) if self.how == "set" else _range([values])
        scale = [1.0 / (b - a) if b > a else 1.0 for a, b in zip(low, high, strict=True)]
        values -= np.asarray(low, dtype=np.float32)
        values *= np.asarray(scale, dtype=np.float32)
        return values

    def _typed(self, pixels: np.ndarray) -> np.ndarray:
        """The image in a number type of training; refuses others, whose numbers mean other intensities."""
        name = _type_name(pixels, self.how)
        if self.types is None or name in self.types:
            return pixels
        for wanted in self.types:
            if _fits(pixels, wanted):
                return pixels.astype(wanted)
        raise PotentiaError(
            f"the image holds numbers of type {name}, but the model was trained on {' and '.join(self.types)}: "
            "convert the image to that type and range, or train with --normalise image, which takes any."
        )


def _type_name(image: np.ndarray, how: str) -> str:
    """The number type as `Intensity` keeps it; by type, black and white is comparable with 8 bits."""
    black_white = "uint8" if how == "type" else "bool"
    return {"f": "float", "b": black_white}.get(image.dtype.kind, image.dtype.name)


def _fits(image: np.ndarray, wanted: str) -> bool:
    """Whether these are signed integers, as arithmetic on an image gives, all in the range of a narrower type.

    A wider unsigned type is another image format, in which the same numbers mean other intensities.
    """
    if wanted in ("bool", "float") or image.dtype.kind != "i" or not image.size:
        return False
    bounds = np.iinfo(wanted)
    narrower = bounds.bits < np.iinfo(image.dtype).bits
    return bool(narrower and image.min() >= bounds.min and image.max() <= bounds.max)


def learn_intensity(
    images: Iterable[np.ndarray], axes: int, how: str | None, names: Sequence[str] | None = None
) -> Intensity:
    """The normalisation of a training set; None is "type" where all images have 8 bits, else "set".

    Images of different number types are refused unless they become comparable: with "image", and unsigned ones with
    "type". names: what messages call the images.
    """
    seen = [image if image.ndim > axes else image[..., None] for image in images]
    counts = sorted({image.shape[-1] for image in seen})
    if len(counts) > 1 and counts != [1, 3]:
        raise PotentiaError(
            f"images have {', '.join(map(str, counts))} channels; all must have the same number."
        )
    for name, image in zip(names or [f"image {k}" for k in range(len(seen))], seen, strict=True):
        if image.dtype.kind not in "uibf" or not np.all(np.abs(_ends(image)) <= _LARGEST):
            raise PotentiaError(
                f"{name}: an image holds finite real numbers below {_LARGEST:.1e} only. Give missing pixels a "
                "number, and in the mask a void value."
            )
    chosen = how
    if how is None:
        how = "type" if all(image.dtype in (np.uint8, np.bool_) for image in seen) else "set"
    if how not in NORMALISATIONS:
        raise PotentiaError(f"normalise must be one of {', '.join(NORMALISATIONS)}, not {how!r}.")
    types = [_type_name(image, how) for image in seen]
    kinds = None if how == "image" else sorted(set(types))
    if kinds is not None and len(kinds) > 1 and not (chosen == "type" and all(k[0] == "u" for k in kinds)):
        _refuse_mixed(types, names)
    if how != "set":
        return Intensity(how, counts[-1], types=kinds)
    wide = [np.repeat(i, 3, axis=-1) if i.shape[-1] < counts[-1] else i for i in seen]
    return Intensity(how, counts[-1], *_range(wide), types=kinds)


def _refuse_mixed(types: Sequence[str], names: Sequence[str] | None) -> None:
    other = next(k for k, name in enumerate(types) if name != types[0])
    first, second = ("image 0", f"image {other}") if names is None else (names[0], names[other])
    raise PotentiaError(
        f"{second} holds numbers of type {types[other]}, but {first} {types[0]}: convert the images to one type, or "
        "use --normalise image (the range of each image) or, for unsigned integers, --normalise type (the range of "
        "the type)."
    )


def _ends(image: np.ndarray) -> np.ndarray:
    """The smallest and the largest number, NaN if one is."""
    return np.array([image.min(), image.max()], dtype=np.float64) if image.size else np.zeros(2)


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
