"""The public data sets of the papers, as they lie packed in the folder that POTENTIA_DATA names."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from potentia import Example, Graph, PotentiaError
from potentia.base.types import Ints, check_choice, check_type
from potentia.features.datasets import FilePath, data_folder, open_image
from potentia.features.image import image_example, reduced_size


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


def image_examples(images: Iterable[LabelledImage], *, n_states: int, **options: Any) -> list[Example]:
    """`image_example` of every image with the same options; images of one size share one graph."""
    grids: dict[tuple[int, int], Graph] = {}
    examples = []
    if not np.iterable(images):
        raise PotentiaError(f"images must be a list of LabelledImage, not a {type(images).__name__}.")
    for number, labelled in enumerate(images):
        check_type(f"images[{number}]", labelled, LabelledImage)
        small = reduced_size(labelled.labels.shape, options.get("reduce", 1.0))
        if small not in grids:
            grids[small] = Graph.grid(small, n_states=n_states)
        options |= {"graph": grids[small], "name": labelled.name}
        examples.append(image_example(labelled.image, labelled.labels, n_states=n_states, **options))
    return examples


def read_arrays(path: Path, names: Sequence[str]) -> Mapping[str, Any]:
    """The named arrays of an `.npz` file, loaded without pickles."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [name for name in names if name not in archive]
            if missing:
                raise PotentiaError(f"{path}: the array {missing[0]!r} is missing.")
            return {name: archive[name] for name in names}
    except FileNotFoundError:
        raise PotentiaError(f"{path}: there is no such file.") from None
    except PotentiaError:
        raise
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise PotentiaError(f"{path}: this is not a readable .npz file ({error}).") from None


def read_pixels(path: Path, mode: str) -> np.ndarray:
    """An image file as a uint8 array: (h, w, 3) for mode "RGB", (h, w) for "L"."""
    return np.asarray(open_image(path).convert(mode))


_N_TRAIN = 32


def berkeley_denoising(
    folder: FilePath | None = None, split: str = "train", *, noise: float = 1.25, seed: int = 0
) -> list[Example]:
    """132 binarised Berkeley images of 200 x 300 with noise added [MBL-tpami sec. 8.2].

    The input is x_i (1 - t_i^n) + (1 - x_i) t_i^n with x_i the true label, t_i uniform in [0, 1] and n = `noise`:
    the lower, the noisier (the paper: 1.25, 1.5, 5). Features are (1, input) per pixel and (horizontal, vertical)
    indicators per pair. 32 images to train and 100 to test: the paper does not name them, here a permutation
    drawn with `seed`, which also draws the noise; an image's noise depends on no other choice.
    """
    check_choice("split", split, ("train", "test", "all"))
    if not noise > 0 or not np.isfinite(noise):
        raise PotentiaError(f"noise must be a positive number, not {noise}.")
    path = data_folder(folder) / "bsds_denoise" / "denoise132.npz"
    arrays = read_arrays(path, ("binary", "names"))
    truth, names = arrays["binary"], arrays["names"]
    if truth.ndim != 3 or len(truth) != len(names):
        raise PotentiaError(f"{path}: 'binary' has shape {truth.shape} for {len(names)} names.")
    order = np.random.default_rng(seed).permutation(len(truth))
    parts = {"train": order[:_N_TRAIN], "test": order[_N_TRAIN:], "all": order}
    graph = Graph.grid(truth.shape[1:], n_states=2)
    first, second = graph.scopes["edge"].T
    # one array for all images: the directions are the same
    edge = np.stack([second - first == 1, second - first != 1], axis=1).astype(np.float64)
    examples = []
    for i in np.sort(parts[split]):
        t = np.random.default_rng([seed, int(i)]).random(graph.n_variables) ** noise
        x = truth[i].ravel()
        node = np.stack([np.ones(len(x)), np.where(x, 1.0 - t, t)], axis=1)
        examples.append(Example(graph, {"node": node, "edge": edge}, x.astype(np.int64), name=str(names[i])))
    return examples


_N_LETTERS = 26
_N_LETTER_FOLDS = 10
_LETTER_ARRAYS = ("pixels", "labels", "offsets", "folds", "words")


def letters(folder: FilePath | None = None, folds: int | Iterable[int] | None = None) -> list[Example]:
    """The OCR words of Taskar et al. (2003): chains of 26 states (a..z) with 128 pixels per letter, 0 or 1, float32.

    `folds` are those wanted of 0..9, all if None. 6877 words in all; words of one length share a graph. Pairs have
    no features.
    """
    wanted = range(_N_LETTER_FOLDS) if folds is None else list(folds) if isinstance(folds, Iterable) else [folds]
    for fold in wanted:
        check_choice("folds", fold, range(_N_LETTER_FOLDS))
    path = data_folder(folder) / "letters" / "letters.npz"
    arrays = read_arrays(path, _LETTER_ARRAYS)
    offsets, labels = arrays["offsets"], arrays["labels"].astype(np.int64)
    pixels = np.unpackbits(arrays["pixels"], axis=1).astype(np.float32)
    if len(pixels) != len(labels) or offsets[-1] != len(labels) or len(offsets) != len(arrays["folds"]) + 1:
        raise PotentiaError(f"{path}: 'pixels', 'labels', 'offsets' and 'folds' do not fit each other.")
    graphs = {int(n): Graph.chain(int(n), n_states=_N_LETTERS) for n in np.unique(np.diff(offsets))}
    examples = []
    for i in np.flatnonzero(np.isin(arrays["folds"], list(wanted))):
        rows = slice(int(offsets[i]), int(offsets[i + 1]))
        graph = graphs[rows.stop - rows.start]
        examples.append(Example(graph, {"node": pixels[rows]}, labels[rows], name=f"{arrays['words'][i]}-{i}"))
    return examples


HORSE_CLASSES = ("background", "horse")
BACKGROUND_CLASSES = ("sky", "tree", "road", "grass", "water", "building", "mountain", "foreground")
NUCLEI_CLASSES = ("tissue", "nucleus")

_N_HORSES_TRAIN = 200
_N_NUCLEI_TRAIN = 20
_N_FOLDS = 5
_SPLITS = ("train", "test", "all")


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


#: The sets, by name.
MULTILABEL_SETS = (
    "scene", "yeast", "emotions", "enron", "medical", "bibtex", "birds", "corel5k", "delicious", "tmc2007_500",
    "rcv1_subset1_top944", "cal500",
)  # fmt: skip

#: Sets that come without training and test parts.
_WHOLE = ("cal500",)

_PARTS = ("X_train", "Y_train", "X_test", "Y_test")

#: Sets whose labels and features have no names but their numbers.
_NAMELESS = ("rcv1_subset1_top944",)


class MultiLabelData(NamedTuple):
    """Rows X (n, d), CSR where features are 0 or 1 and dense otherwise, and labels Y (n, K) of 0 and 1."""

    X_train: Any
    Y_train: np.ndarray
    X_test: Any
    Y_test: np.ndarray
    label_names: list[str]
    feature_names: list[str]


def multilabel(name: str, folder: FilePath | None = None) -> MultiLabelData:
    """A multi-label set by name, with its standard split; cal500 has none, and a third of it, drawn, is for testing.

    Column 0 of the test labels of rcv1_subset1_top944 is not known and all zero: leave it out of a test score.
    """
    check_choice("name", name, MULTILABEL_SETS)
    path = data_folder(folder) / "multilabel" / f"{name}.npz"
    arrays = _drawn(path) if name in _WHOLE else read_arrays(path, _PARTS)
    rows = [_rows(arrays[part]) for part in ("X_train", "X_test")]
    labels = [arrays[part].astype(np.int64) for part in ("Y_train", "Y_test")]
    if name in _NAMELESS:
        names = [[str(k) for k in range(width)] for width in (labels[0].shape[1], rows[0].shape[1])]
    else:
        names = [[str(n) for n in v] for v in read_arrays(path, ("label_names", "feature_names")).values()]
    return MultiLabelData(rows[0], labels[0], rows[1], labels[1], names[0], names[1])


def _drawn(path: Path) -> dict[str, np.ndarray]:
    """Two thirds of the rows for training, the rest for testing; always the same."""
    whole = read_arrays(path, ("X", "Y"))
    order = np.random.default_rng(0).permutation(len(whole["X"]))
    cut = 2 * len(order) // 3
    parts = {"train": order[:cut], "test": order[cut:]}
    return {f"{what}_{part}": whole[what][rows] for part, rows in parts.items() for what in ("X", "Y")}


def _rows(X: np.ndarray) -> Any:
    """Rows of 0 and 1, stored as bytes, as CSR; others as dense floats."""
    from scipy import sparse

    return sparse.csr_array(X.astype(float)) if X.dtype == np.uint8 else X.astype(float)
