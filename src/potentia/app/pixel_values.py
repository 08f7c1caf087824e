"""What the numbers in files of images mean: intensities of comparable range, and the classes of masks with void."""

from __future__ import annotations

import colorsys
import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy import ndimage

from ..base.types import Ints, PotentiaError, shown, warn_caller
from .image_files import Mask, code_colours, colour_codes

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
            has = f"the number of channels of the image is {pixels.shape[-1]}"
            raise PotentiaError(f"{has}, but the model was trained on {self.channels}.")
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
        raise PotentiaError(f"images have {', '.join(map(str, counts))} channels; all must have the same number.")
    names = names or [f"image {k}" for k in range(len(seen))]
    for name, image in zip(names, seen, strict=True):
        if image.dtype.kind not in "uibf" or (image.size and not -_LARGEST <= image.min() <= image.max() <= _LARGEST):
            raise PotentiaError(
                f"{name}: an image holds finite real numbers below {_LARGEST:.1e} only. Give missing pixels a "
                "number, and in the mask a void value."
            )
    chosen = how
    if how is None:
        how = "type" if all(image.dtype in (np.uint8, np.bool_) for image in seen) else "set"
    types = [_type_name(image, how) for image in seen]
    kinds = None if how == "image" else sorted(set(types))
    if kinds is not None and len(kinds) > 1 and not (chosen == "type" and all(k[0] == "u" for k in kinds)):
        other = next(k for k, name in enumerate(types) if name != types[0])
        raise PotentiaError(
            f"{names[other]} holds numbers of type {types[other]}, but {names[0]} {types[0]}: convert the images to "
            "one type, or use --normalise image (the range of each image) or, for unsigned integers, --normalise type "
            "(the range of the type)."
        )
    if how != "set":
        return Intensity(how, counts[-1], types=kinds)
    wide = [np.repeat(image, 3, axis=-1) if image.shape[-1] < counts[-1] else image for image in seen]
    return Intensity(how, counts[-1], *_range(wide), types=kinds)


def _range(images: list[np.ndarray]) -> tuple[list[float], list[float]]:
    """Low and high percentiles of each channel, of a regular sample of all pixels."""
    per_image = max(1, _MOST_PIXELS // len(images))
    rows = [image.reshape(-1, image.shape[-1]) for image in images]
    drawn = [flat[:: max(1, len(flat) // per_image)].astype(np.float64) for flat in rows]
    low, high = np.percentile(np.concatenate(drawn), _PERCENTILES, axis=0)
    return low.tolist(), high.tolist()


def as_shown(values: np.ndarray) -> np.ndarray:
    """Normalised intensities (..., channels) as colours (..., 3) in 8 bits; more than three channels as their mean."""
    seen = values if values.shape[-1] in (1, 3) else values.mean(axis=-1, keepdims=True)
    grey = np.clip(np.rint(255.0 * seen), 0, 255).astype(np.uint8)
    return np.repeat(grey, 3, axis=-1) if grey.shape[-1] == 1 else grey


def contours(labels: np.ndarray) -> np.ndarray:
    """Which pixels (..., h, w) have a neighbour of another class, without those of the most frequent class."""
    cross = ndimage.generate_binary_structure(2, 1).reshape(*[1] * (labels.ndim - 2), 3, 3)
    spread = ndimage.morphological_gradient(labels, footprint=cross, mode="nearest")
    return np.asarray((spread > 0) & (labels != np.bincount(labels.ravel()).argmax()))


def overlaid(shown: np.ndarray, labels: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """An image (..., h, w, 3) with the classes' contours and a tint inside; the most frequent class stays clear."""
    tinted = labels != np.bincount(labels.ravel()).argmax()
    painted: np.ndarray = shown.copy()
    painted[tinted] = (0.75 * shown[tinted] + 0.25 * colours[tinted]).astype(shown.dtype)
    outline = contours(labels)
    painted[outline] = colours[outline]
    return painted


#: More values than this in the masks are no classes, but a sign of smoothed or compressed masks.
_MOST = 256
#: Values in fewer pixels than this in all, or in less than this share of them and nowhere two by two, are questioned.
_HANDFUL, _THIN_SHARE = 5, 0.01
#: A class with more of the pixels than this, in masks of several classes, is questioned.
_MOSTLY = 0.9
#: Largest number of a class beside which 255 is questioned, and fewest numbers that may be those of instances.
_SMALL_CODE, _INSTANCES = 100, 8
#: What to do with such values: make them unknown, the class whose value is nearest, or classes.
RARE = ("void", "nearest", "keep")
_GOLDEN = 0.618034
_COLOUR = "#[0-9a-fA-F]{6}"


@dataclass
class Classes:
    """The classes of a set of masks, numbered in order.

    The value -1 always means unknown.

    Attributes:
        codes: the value of each class in masks, see `Mask`.
        names: what the classes are called.
        colours: 0xRRGGBB of each, for images.
        void: values of pixels whose class is unknown.
        coloured: masks hold colours.
        palette: colours of the masks' files, or None.
        nearest: other values mean the class whose value is nearest.
    """

    codes: list[int]
    names: list[str]
    colours: list[int]
    void: list[int]
    coloured: bool
    palette: list[int] | None
    nearest: bool = False

    def __len__(self) -> int:
        return len(self.codes)

    def labels(self, mask: Mask, path: Path) -> Ints:
        """A mask's class numbers (h, w), -1 where void; refuses values that are no class."""
        if mask.coloured != self.coloured:
            kinds = "colours", "grey values or palette numbers"
            has, wants = kinds if mask.coloured else kinds[::-1]
            raise PotentiaError(f"{path}: the mask holds {has}, but the classes are {wants}.")
        if self.nearest:
            return self._nearest_class(mask)
        number = dict.fromkeys([*self.void, -1], -1) | {code: k for k, code in enumerate(self.codes)}
        values, where = np.unique(mask.codes, return_inverse=True)
        strange = values[~np.isin(values, list(number))]
        if strange.size:
            shown = show_code(int(strange[0]), self.coloured)
            classes = ", ".join(show_code(code, self.coloured) for code in self.codes[:12])
            raise PotentiaError(f"{path}: the value {shown} is not a class; classes are {classes}.")
        self._check_palette(mask, values, path)
        labels = np.array([number[value] for value in values.tolist()], dtype=np.int64)
        return labels[where].reshape(mask.codes.shape)

    def _nearest_class(self, mask: Mask) -> Ints:
        """The class of the nearest value, or colour, of every pixel; -1 where a value is void."""
        values, where = np.unique(mask.codes, return_inverse=True)
        column, codes = values[:, None], np.array(self.codes)[None]
        if self.coloured:
            apart = ((code_colours(column).astype(int) - code_colours(codes).astype(int)) ** 2).sum(axis=-1)
        else:
            apart = np.abs(column - codes)
        labels = np.where(np.isin(values, [*self.void, -1]), -1, apart.argmin(axis=1))
        return labels[where].reshape(mask.codes.shape)

    def _check_palette(self, mask: Mask, values: Ints, path: Path) -> None:
        """Refuse a mask whose palette gives a class another colour: its numbers mean something else."""
        for code in values.tolist():
            colour, expected = _painted(mask.palette, code), _painted(self.palette, code)
            if colour is not None and expected is not None and colour != expected:
                raise PotentiaError(
                    f"{path}: the palette has the colour #{colour:06x} for {code}, but that of other masks "
                    f"#{expected:06x}."
                )

    def mask(self, labels: Ints) -> Mask:
        """Class numbers (h, w) as the masks would have them."""
        return Mask(np.array(self.codes)[labels], self.coloured, self.palette)

    def palette_text(self) -> str:
        """The classes as the lines of a palette file, which `find_classes` reads."""
        text = io.StringIO()
        rows = [
            *((show_code(code, self.coloured), name, f"#{colour:06x}")
              for code, name, colour in zip(self.codes, self.names, self.colours, strict=True)),
            *((show_code(code, self.coloured), "void") for code in self.void),
        ]  # fmt: skip
        csv.writer(text, lineterminator="\n").writerows(rows)
        return text.getvalue()

    def paint(self, labels: Ints) -> np.ndarray:
        """Class numbers (h, w) as colours (h, w, 3)."""
        return code_colours(np.array(self.colours)[labels])


def find_classes(
    masks: Sequence[Mask], palette_file: str | Path | None, void: str | None, rare: str | None = None
) -> Classes:
    """The classes of training masks: those a palette file lists, or else every value that occurs and is not void.

    A value that occurs in a few pixels only, or along edges only, is more likely a trace of a smoothed mask than a
    class: it is refused with what can be done about it, unless `rare` says so: "void", "nearest" (the class of the
    nearest value) or "keep". Numbers 1, 2, ... that differ from mask to mask are instances, and are refused. Values
    that often mean unknown, and a `void` that never occurs, give a warning.
    """
    coloured = masks[0].coloured
    palette = next((mask.palette for mask in masks if mask.palette is not None), None)
    unknown = parse_void(void, coloured)
    listed: list[tuple[int, str, int | None]]
    if palette_file is None:
        values = np.unique(np.concatenate([np.unique(mask.codes) for mask in masks]))
        absent = ", ".join(show_code(code, coloured) for code in unknown if code not in values)
        if absent:
            warn_caller(f"--void {absent}: no mask has this value, so nothing is left out.", UserWarning)
        values = values[~np.isin(values, [*unknown, -1])]
        if not coloured:
            _warn_of_unlabelled(masks, values)
            if rare != "keep":
                _refuse_instances(masks, unknown)
        doubtful = [] if rare == "keep" else _doubtful(masks, values)
        if doubtful and rare is None:
            shown = ", ".join([*(show_code(code, coloured) for code in doubtful[:6]), *["..."] * (len(doubtful) > 6)])
            raise PotentiaError(
                f"the masks have {shown} in a few pixels only, as smoothed masks do: say --rare void, nearest or keep "
                "(a separate class), or list the classes in a --palette."
            )
        values = values[~np.isin(values, doubtful)]
        unknown += doubtful if rare == "void" else []
        listed = [(int(v), show_code(int(v), coloured), None) for v in values]
    else:
        listed = read_palette(Path(palette_file), coloured)
        unknown += [code for code, name, _ in listed if name.lower() == "void"]
        listed = [row for row in listed if row[0] not in unknown]
    if not 2 <= len(listed) <= _MOST:
        where = "the masks have" if palette_file is None else f"{palette_file} lists"
        several = "class" if len(listed) == 1 else "classes"
        raise PotentiaError(f"{where} {len(listed)} {several}, but there must be 2 to {_MOST}.")
    codes, names, given = (list(column) for column in zip(*listed, strict=True))
    own = [_colour(k, code, coloured, palette) for k, code in enumerate(codes)]
    colours = [default if colour is None else colour for colour, default in zip(given, own, strict=True)]
    nearest = rare == "nearest" and palette_file is None
    return Classes(codes, names, colours, unknown, coloured, palette, nearest)


def _refuse_instances(masks: Sequence[Mask], unknown: Sequence[int]) -> None:
    """Refuse masks whose regions are numbered from 1 in each of them, with more regions in some than in others."""
    largest = []
    for mask in masks:
        numbers = [int(value) for value in np.unique(mask.codes) if value > 0 and value not in unknown]
        if numbers != list(range(1, len(numbers) + 1)):
            return
        largest.append(len(numbers))
    if max(largest) >= _INSTANCES and len(set(largest)) > 1:
        raise PotentiaError(
            f"every mask numbers its regions from 1, up to {max(largest)}, as masks of instances do: give masks of "
            "classes, or say --rare keep, or list the classes in a --palette, if the numbers are classes."
        )


def _warn_of_unlabelled(masks: Sequence[Mask], values: Ints) -> None:
    """Warn of 0 or 255 as a class where it more likely means that a pixel was not labelled."""
    if len(values) < 3:
        return
    total = sum(mask.codes.size for mask in masks)
    for code in (0, 255):
        share = sum(int(np.count_nonzero(mask.codes == code)) for mask in masks) / total
        # 255 beside small numbers is how many sets of masks mark borders and unknown pixels
        if share > _MOSTLY or (code == 255 and share > 0 and values[values != 255].max() <= _SMALL_CODE):
            warn_caller(
                f"the value {code}, {share:.0%} of all pixels in the masks, becomes a class; if it means unlabelled, "
                f"say --void {code}.",
                UserWarning,
            )


def _doubtful(masks: Sequence[Mask], values: Ints) -> list[int]:
    """Values that look like traces of smoothed masks."""
    counts = np.zeros(len(values), dtype=np.int64)
    solid = np.zeros(len(values), dtype=bool)
    for mask in masks:
        codes = mask.codes
        present, count = np.unique(codes, return_counts=True)
        known = np.isin(present, values)
        counts[np.searchsorted(values, present[known])] += count[known]
        corner = codes[..., :-1, :-1]
        others = (codes[..., 1:, :-1], codes[..., :-1, 1:], codes[..., 1:, 1:])
        block = np.unique(corner[np.logical_and.reduce([corner == other for other in others])])
        solid |= np.isin(values, block)
    thin = ~solid & (counts < _THIN_SHARE * counts.sum())
    rare = (counts < _HANDFUL) & (counts < _THIN_SHARE * counts.sum())
    return [int(value) for value in values[thin | rare]]


def parse_void(void: str | None, coloured: bool) -> list[int]:
    """Values of masks that mean unknown, from text with commas between them; -1 always does."""
    listed = void.split(",") if void else []
    return [parse_code(text, coloured, "--void") for text in listed if text.strip() != "-1"]


def parse_code(text: str, coloured: bool, source: str) -> int:
    """A value of masks as text: a whole number, or #rrggbb for masks of colours."""
    value = text.strip()
    if re.fullmatch(_COLOUR if coloured else r"\d{1,18}", value):
        return int(value.removeprefix("#"), 16 if coloured else 10)
    wanted = "a colour #rrggbb, as the masks hold colours" if coloured else "a whole number"
    raise PotentiaError(f"{source}: {shown(value)} is not {wanted}.")


def show_code(code: int, coloured: bool) -> str:
    """A value of masks as `parse_code` takes it."""
    return f"#{code:06x}" if coloured else str(code)


def read_palette(path: Path, coloured: bool) -> list[tuple[int, str, int | None]]:
    """(value, name, colour or None) of every line `value,name[,#rrggbb]`."""
    try:
        rows = list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PotentiaError(f"{path}: the palette file cannot be read ({error}).") from None
    listed: list[tuple[int, str, int | None]] = []
    for number, row in enumerate(rows, 1):
        if not row:
            continue
        place = f"{path}, line {number}"
        if len(row) not in (2, 3) or not row[1].strip():
            raise PotentiaError(f"{place}: a line is value,name or value,name,#rrggbb.")
        value, name, *colour = (cell.strip() for cell in row)
        if colour and not re.fullmatch(_COLOUR, colour[0]):
            raise PotentiaError(f"{place}: {colour[0]!r} is not a colour #rrggbb.")
        listed.append((parse_code(value, coloured, place), name, int(colour[0][1:], 16) if colour else None))
    for kind, column in (("value", [row[0] for row in listed]), ("name", [row[1] for row in listed])):
        twice = [v for k, v in enumerate(column) if v in column[:k] and str(v).lower() != "void"]
        if twice:
            raise PotentiaError(f"{path}: the {kind} {twice[0]} occurs twice.")
    return listed


def _colour(number: int, code: int, coloured: bool, palette: list[int] | None) -> int:
    """The class's own colour in its masks, or one of evenly spread hues."""
    if coloured:
        return code
    painted = _painted(palette, code)
    if painted is not None:
        return painted
    return int(colour_codes(np.rint(255 * np.array(colorsys.hsv_to_rgb(number * _GOLDEN % 1.0, 0.75, 0.95)))))


def _painted(palette: list[int] | None, code: int) -> int | None:
    """The colour of a value in a palette [r, g, b, ...], if it has one."""
    if palette is None or len(palette) < 3 * code + 3:
        return None
    return int(colour_codes(np.array(palette[3 * code : 3 * code + 3])))
