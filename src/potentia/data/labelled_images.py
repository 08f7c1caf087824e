"""Images with a class per pixel: the Weizmann horses, the Stanford backgrounds, and nuclei in tissue."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._types import Ints, PotentiaError
from .loaders import FilePath, check_choice, data_folder, read_arrays, read_pixels

HORSE_CLASSES = ("background", "horse")
BACKGROUND_CLASSES = ("sky", "tree", "road", "grass", "water", "building", "mountain", "foreground")
NUCLEI_CLASSES = ("tissue", "nucleus")

_N_HORSES_TRAIN = 200
_N_NUCLEI_TRAIN = 20
_N_FOLDS = 5
_SPLITS = ("train", "test", "all")


@dataclass(frozen=True, eq=False)
class LabelledImage:
    """An image and its classes.

    Attributes:
        name: the image's name in its set.
        image: (h, w, 3) uint8, RGB.
        labels: (h, w) int8 classes, -1 where unknown.
    """

    name: str
    image: np.ndarray
    labels: np.ndarray

    def __post_init__(self) -> None:
        if self.image.ndim != 3 or self.image.shape[2] != 3:
            raise PotentiaError(f"{self.name}: image has shape {self.image.shape}, not (h, w, 3).")
        if self.labels.shape != self.image.shape[:2]:
            raise PotentiaError(
                f"{self.name}: labels has shape {self.labels.shape}, but the image is {self.image.shape[:2]}."
            )

    def __repr__(self) -> str:
        return f"LabelledImage({self.name!r}, {self.labels.shape[0]} x {self.labels.shape[1]})"


def horses(
    folder: FilePath | None = None, split: str = "train", *, size: str = "full", seed: int = 0
) -> list[LabelledImage]:
    """The 328 Weizmann horses: classes 0 background, 1 horse.

    MBL-tpami trains on 200 and tests on 128 without naming them; here a random permutation drawn with `seed` makes
    the 200 ("train") and the 128 ("test"); "all" is every image. `size` is "full" (about 265 x 212) or
    "quarter" (one packed file, a quarter of the sides, about 66 x 53).
    """
    check_choice("split", split, _SPLITS)
    check_choice("size", size, ("quarter", "full"))
    place = data_folder(folder) / "weizmann_horses"
    packed = _packed(place / "horses_quarter.npz", len(HORSE_CLASSES))
    order = np.random.default_rng(seed).permutation(len(packed))
    parts = {"train": order[:_N_HORSES_TRAIN], "test": order[_N_HORSES_TRAIN:], "all": order}
    chosen = np.sort(parts[split]).tolist()
    if size == "quarter":
        return [packed[i] for i in chosen]
    return [_pair(place, packed[i].name, "masks", len(HORSE_CLASSES)) for i in chosen]


def stanford_backgrounds(
    folder: FilePath | None = None, split: str = "train", *, size: str = "full", fold: int = 0
) -> list[LabelledImage]:
    """The 715 Stanford background scenes: eight classes (`BACKGROUND_CLASSES`), -1 unknown.

    Five folds by position in the order of names: fold k tests on images 4 - k, 9 - k, 14 - k, ... (counted from
    0) and trains on the others, 143 and 572, the counts of ILR-chapter. These are the folds of the toolbox that the
    author of MBL-tpami published; the papers do not print theirs. `size` is "full" (mostly 320 x 240) or "fifth" (one
    packed file, already reduced to 20 % of the sides, mostly 64 x 48).
    """
    check_choice("split", split, _SPLITS)
    check_choice("size", size, ("fifth", "full"))
    check_choice("fold", fold, range(_N_FOLDS))
    place = data_folder(folder) / "stanford_background"
    packed = _packed(place / "stanford_20pct.npz", len(BACKGROUND_CLASSES))
    tested = np.arange(len(packed)) % _N_FOLDS == _N_FOLDS - 1 - fold
    parts = {"train": ~tested, "test": tested, "all": np.ones(len(packed), dtype=bool)}
    chosen = np.flatnonzero(parts[split]).tolist()
    if size == "fifth":
        return [packed[i] for i in chosen]
    return [_pair(place, packed[i].name, "regions", len(BACKGROUND_CLASSES)) for i in chosen]


def nuclei(folder: FilePath | None = None, split: str = "train") -> list[LabelledImage]:
    """30 histology images of 512 x 512: classes 0 tissue, 1 nucleus; the first 20 train, the last 10 test."""
    check_choice("split", split, _SPLITS)
    place = data_folder(folder) / "nuclei"
    names = [f"{number:02d}" for number in range(1, 31)]
    parts = {"train": names[:_N_NUCLEI_TRAIN], "test": names[_N_NUCLEI_TRAIN:], "all": names}
    return [_pair(place, name, "masks", len(NUCLEI_CLASSES), ".png") for name in parts[split]]


def _packed(path: Path, n_classes: int) -> list[LabelledImage]:
    """Images of different sizes laid end to end in one file."""
    arrays = read_arrays(path, ("pixels", "labels", "offsets", "shapes", "names"))
    _check_packed(path, arrays, n_classes)
    pixels, labels = (np.split(arrays[name], arrays["offsets"][1:-1]) for name in ("pixels", "labels"))
    return [
        LabelledImage(str(name), x.reshape(h, w, 3), y.astype(np.int8).reshape(h, w))
        for name, x, y, (h, w) in zip(arrays["names"], pixels, labels, arrays["shapes"], strict=True)
    ]


def _check_packed(path: Path, arrays: Any, n_classes: int) -> None:
    """Refuse a packed file whose arrays do not fit each other, before anything is cut from it."""
    n, pixels, labels = len(arrays["names"]), arrays["pixels"], arrays["labels"]
    offsets: Ints = np.asarray(arrays["offsets"], dtype=np.int64)
    shapes: Ints = np.asarray(arrays["shapes"], dtype=np.int64)
    if shapes.shape != (n, 2) or offsets.shape != (n + 1,):
        raise PotentiaError(f"{path}: 'shapes' and 'offsets' do not fit the {n} names.")
    if offsets[0] != 0 or np.any(np.diff(offsets) != shapes.prod(axis=1)):
        raise PotentiaError(f"{path}: 'offsets' do not fit the 'shapes' of the images.")
    if pixels.shape != (offsets[-1], 3) or pixels.dtype != np.uint8 or labels.shape != (offsets[-1],):
        raise PotentiaError(f"{path}: 'pixels' and 'labels' do not hold {offsets[-1]} pixels.")
    if labels.size and (labels.min() < -1 or labels.max() >= n_classes):
        raise PotentiaError(f"{path}: 'labels' must lie in -1..{n_classes - 1}.")


def _pair(place: Path, name: str, folder: str, n_classes: int, suffix: str = ".jpg") -> LabelledImage:
    """An image and its label map from their own files; 255 (and white in a mask) as the sets mean them."""
    image = read_pixels(place / "images" / f"{name}{suffix}", "RGB")
    path = place / folder / f"{name}.png"
    classes = read_pixels(path, "L")
    if folder == "masks":
        labels = (classes > 127).astype(np.int8)
    else:
        labels = np.where(classes == 255, -1, classes.astype(np.int16)).astype(np.int8)
    if labels.max() >= n_classes or labels.min() < -1:
        raise PotentiaError(f"{path}: classes must be 0..{n_classes - 1} or 255 (unknown).")
    if labels.shape != image.shape[:2]:
        raise PotentiaError(f"{path}: the labels are {labels.shape}, but the image is {image.shape[:2]}.")
    return LabelledImage(name, image, labels)
