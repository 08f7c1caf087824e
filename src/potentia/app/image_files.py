"""Files of images, masks and arrays beside images: which belong together, reading and writing them."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..base.resources import check_memory
from ..base.types import PotentiaError, shown, warn_caller
from ..features.datasets import open_image

if TYPE_CHECKING:
    from ..features.image import RegionMeans

TIFF_SUFFIXES = (".tif", ".tiff")
#: Axes, in tifffile's letters, that are channels; all others but Y and X number pages.
_CHANNELS = "SC"


def is_tiff(path: Path) -> bool:
    """Whether a file is a TIFF file by its name."""
    return path.suffix.lower() in TIFF_SUFFIXES


def n_pages(path: Path, axes: str | None = None) -> int:
    """The number of images in a file, whose axes are those of `axes` or else as the file states."""
    _, axes, shape = _series(path, False, axes)
    count = math.prod(n for axis, n in zip(axes, shape, strict=True) if axis not in "YX" + _CHANNELS)
    _check_count(path, count)
    return count


def _check_count(path: Path, count: int) -> None:
    """Refuse a file that says that it has more images than bytes, before there is a list of them."""
    if count > path.stat().st_size:
        raise PotentiaError(f"{path}: the file says that it has {shown(count)} images, more than its size allows.")


def read_tiff(path: Path, page: int | None = None, axes: str | None = None) -> np.ndarray:
    """The images of a file (pages, h, w) or (pages, h, w, channels); with `page` one of them without the first axis.

    A file with one page has no first axis either way. An alpha channel is left out. axes: the file's axes in letters,
    see `checked_axes`; None for those that it states.
    """
    stack = _stack(path, path.stat().st_mtime_ns if path.exists() else 0, axes)
    pages = stack[..., 0] if stack.shape[-1] == 1 else stack
    if page is not None:
        return np.ascontiguousarray(pages[page])
    return np.ascontiguousarray(pages[0] if len(pages) == 1 else pages)


@lru_cache(maxsize=2)
def _stack(path: Path, changed: int, given: str | None) -> np.ndarray:
    """All images of a file, (pages, h, w, channels); those of an image and its mask are requested page by page."""
    values, axes, shape = _series(path, True, given)
    channels = [k for k, axis in enumerate(axes) if axis in _CHANNELS]
    pages = [k for k, axis in enumerate(axes) if axis not in "YX" + _CHANNELS]
    order = [*pages, axes.index("Y"), axes.index("X"), *channels]
    height, width = shape[axes.index("Y")], shape[axes.index("X")]
    n_channels = int(np.prod([shape[k] for k in channels]))
    stack: np.ndarray = np.transpose(values, order).reshape(-1, height, width, n_channels)
    return stack


def write_tiff(path: Path, values: np.ndarray) -> None:
    """A volume (d, h, w) or (d, h, w, 3) as pages of a TIFF file."""
    colours, axes = ("rgb", "ZYXS") if values.ndim == 4 else ("minisblack", "ZYX")
    _tifffile().imwrite(path, values, photometric=colours, compression="zlib", metadata={"axes": axes})


def checked_axes(axes: str | None) -> str | None:
    """Letters that say what the axes of TIFF files are: Y and X, C for channels; others number pages."""
    if axes is not None and not (set("YX") <= set(axes) <= set("YXCZTQ") and len(set(axes)) == len(axes)):
        raise PotentiaError(
            f"--axes {axes}: name every axis of the TIFF files by one letter, Y and X, C for channels and Z, T or Q "
            "for pages, such as CYX."
        )
    return axes


def _series(path: Path, read: bool, given: str | None = None) -> tuple[Any, str, tuple[int, ...]]:
    """The first series of a file: its values if requested, axes (`given` in place of the file's) and shape."""
    tifffile = _tifffile()
    try:
        with tifffile.TiffFile(path) as file:
            sizes = re.findall(r'\bSize[ZCT]="(\d{1,18})', file.ome_metadata or "")
            _check_count(path, math.prod(map(int, sizes[:3])))
            series = file.series[0]
            axes, shape = series.axes, series.shape
            if read:
                check_memory(float(math.prod(shape)) * series.dtype.itemsize, str(path), "cut it into smaller files")
            values = series.asarray() if read else None
            if (
                given is None and axes.endswith("S") and shape[-1] == 4 and file.pages[0].photometric == 2
            ):  # RGB and alpha
                shape = (*shape[:-1], 3)
                values = None if values is None else values[..., :3]
    except FileNotFoundError:
        raise PotentiaError(f"{path}: there is no such file.") from None
    except PotentiaError:
        raise
    except Exception as error:  # a damaged or compressed file fails in many ways
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PotentiaError(f"{path}: this is not a readable TIFF file ({reason}).") from None
    if given is not None and len(given) != len(shape):
        raise PotentiaError(f"{path}: --axes {given} names {len(given)} axes, but the file has the shape {shape}.")
    axes = given or axes
    if "Y" not in axes or "X" not in axes or 0 in shape:
        raise PotentiaError(f"{path}: the TIFF file holds no image (axes {axes}, shape {shape}).")
    if values is not None and values.shape != tuple(shape):
        raise PotentiaError(f"{path}: the TIFF file holds {values.shape} values instead of {tuple(shape)}.")
    return values, axes, shape


def _tifffile() -> Any:
    """The module, or a sentence that says how to install it."""
    try:
        import tifffile
    except ImportError:
        raise PotentiaError("TIFF files need tifffile: pip install potentia[images].") from None
    return tifffile


SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", *TIFF_SUFFIXES)
#: Endings by which a mask's name may differ from its image's.
_MASK_ENDINGS = ("", "_mask", "-mask", "_masks", "_label", "_labels")
#: How pages of a TIFF file are read.
STACKS = ("images", "volumes")


class ImageFile(NamedTuple):
    """An image in a file.

    name: without suffix, with subfolders. page: of a stack, None for all of it. axes: see `read_tiff`.
    """

    name: str
    path: Path
    page: int | None = None
    axes: str | None = None

    @property
    def base(self) -> str:
        """The name of the file, without the number of a page."""
        return self.name if self.page is None else self.name.rpartition("_")[0]


class Mask(NamedTuple):
    """A mask as its file has it.

    codes (h, w), of a volume (d, h, w): grey values or palette numbers, or 0xRRGGBB where `coloured`; -1 where unknown.
    palette: the file's colours as [r, g, b, r, g, b, ...], or None.
    """

    codes: np.ndarray
    coloured: bool
    palette: list[int] | None


def image_files(
    source: Path, stacks: str = "images", named: Path | None = None, axes: str | None = None
) -> list[ImageFile]:
    """The images of a folder, or of one file, in order of name; masks beside their images are left out.

    Where a folder has no images, those of its subfolders are taken, whose names then begin with the subfolder.

    stacks: pages of a
    TIFF file are separate images, with three digits after the name, or one volume. named: where masks are; in a folder
    that holds both, file name endings tell masks from images. axes: of TIFF files, see `read_tiff`.
    """
    paths = {_name(source): source} if source.is_file() else _listed(source, named)
    if source.is_dir() and (named is None or named == source):
        bases = (name.removesuffix(end) for name in paths for end in _MASK_ENDINGS[1:])
        twins = {base + end for base in bases if base in paths for end in _MASK_ENDINGS[1:]}
        paths = {name: path for name, path in paths.items() if name not in twins}
    if stacks == "volumes":
        return [ImageFile(name, path, None, _volume_axes(path, axes)) for name, path in paths.items()]
    files = []
    for name, path in paths.items():
        count = n_pages(path, axes) if is_tiff(path) else 1
        numbered = [ImageFile(f"{name}_{page:03d}", path, page, axes) for page in range(count)]
        files += [ImageFile(name, path, None, axes)] if count == 1 else numbered
    pages = {file.name: file.path for file in files if file.page is not None}
    for file in files:
        if pages.get(file.name, file.path) != file.path:
            raise PotentiaError(f"{file.path} has the name of an image in {pages[file.name]}: rename one of them.")
    return files


def _volume_axes(path: Path, axes: str | None) -> str | None:
    """The axes of a volume: three or four slices that were written as colours, one after the other, are slices."""
    if not is_tiff(path):
        raise PotentiaError(f"{path} is not a TIFF file, so it holds no volume: leave out --stacks volumes.")
    return "ZYX" if axes is None and _series(path, read=False)[1] == "SYX" else axes


def _name(path: Path, folder: Path | None = None) -> str:
    """A file's path from its folder, without suffix; .ome.tif is one suffix."""
    stem = path.stem.removesuffix(".ome") if is_tiff(path) else path.stem
    return stem if folder is None else path.relative_to(folder).with_name(stem).as_posix()


def _listed(folder: Path, without: Path | None = None) -> dict[str, Path]:
    """The image files of a folder by name, in order: its own, or else those of all subfolders but `without`."""
    by_name: dict[str, Path] = {}
    for path in _files_below(folder, SUFFIXES, without):
        if path.exists() and not path.is_file():
            raise PotentiaError(f"{path} is no regular file; {folder} must hold images only.")
        name = _name(path, folder)
        if name in by_name:
            both = f"{by_name[name].name} and {path.name}"
            raise PotentiaError(f"{path.parent} has {both}: names must differ without suffix.")
        by_name[name] = path
    if not by_name:
        raise PotentiaError(f"{folder} has no images ({', '.join(SUFFIXES)}).")
    return by_name


def _files_below(folder: Path, suffixes: Sequence[str], without: Path | None = None) -> list[Path]:
    """The files of a folder with one of these endings or, where it has none, those of all its subfolders."""
    if not folder.is_dir():
        raise PotentiaError(f"{folder}: there is no such folder.")
    for pattern in ("*", "**/*"):
        found = [path for path in sorted(folder.glob(pattern)) if path.suffix.lower() in suffixes]
        shown = [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
        inside = without if without is not None and folder in without.parents else None
        kept = [path for path in shown if inside not in path.parents]
        if kept:
            return kept
    return []


def paired_files(
    images: Path, masks: Path, stacks: str = "images", axes: str | None = None
) -> list[tuple[ImageFile, ImageFile]]:
    """Every image with the mask of its name, or of its name and an ending such as _mask; masks are no JPEG files."""
    files = image_files(images, stacks, masks, axes)
    if masks.is_file() and images.is_file():
        by_name = {_name(images): masks}
    elif masks.is_file():
        raise PotentiaError(f"{masks} is one mask, but {images} is a folder: give the folder of its masks.")
    else:
        by_name = {name: path for name, path in _listed(masks, images).items() if path != images}
    pairs = [(file, _mask_of(file, by_name, masks)) for file in files]
    lacking = [file for file, path in pairs if path is None]
    if lacking:
        more = f", nor have {len(lacking) - 1} other images one" if len(lacking) > 1 else ""
        raise PotentiaError(f"{lacking[0].path} has no mask {masks / lacking[0].base}.png{more}.")
    used = [path for _, path in pairs if path is not None]
    lossy = [path for path in used if _is_jpeg(path)]
    if lossy:
        named = (
            "" if lossy[0].suffix.lower() in (".jpg", ".jpeg") else f" (which the file is, despite {lossy[0].suffix})"
        )
        raise PotentiaError(
            f"{lossy[0]}: JPEG{named} does not keep the values of classes; masks must be PNG, GIF or TIFF files."
        )
    alone = sorted({path.name for path in by_name.values()} - {path.name for path in used})
    if alone and images != masks:
        warn_caller(
            f"{masks} has {len(alone)} mask{'s' * (len(alone) > 1)} without an image in {images}, such as {alone[0]}.",
            UserWarning,
        )
    return [(file, _same_page(file, path, stacks)) for file, path in pairs if path is not None]


def _is_jpeg(path: Path) -> bool:
    """Whether a file's content is JPEG, whatever its name."""
    with path.open("rb") as raw:
        return raw.read(3) == b"\xff\xd8\xff"


def _mask_of(file: ImageFile, by_name: Mapping[str, Path], masks: Path) -> Path | None:
    """The mask of an image by the file's name; None if there is none."""
    names = [file.base + end for end in _MASK_ENDINGS]
    candidates = [by_name[name] for name in names if name in by_name and by_name[name] != file.path]
    if len(candidates) > 1:
        both = f"{candidates[0].name} and {candidates[1].name}"
        raise PotentiaError(f"{file.path} has two masks in {masks}: {both}.")
    return candidates[0] if candidates else None


def _same_page(file: ImageFile, mask: Path, stacks: str) -> ImageFile:
    """The mask's page that belongs to an image's page."""
    if stacks == "volumes":
        return ImageFile(file.name, mask, None, _volume_axes(mask, None))
    if file.page is not None and (pages := n_pages(mask) if is_tiff(mask) else 1) != n_pages(file.path, file.axes):
        shape = _series(file.path, read=False)[2]
        size = read_mask(mask).codes.shape if pages == 1 else ()
        fitting = [order for order, axes in (("CYX", shape[1:]), ("YXC", shape[:2])) if axes == size]
        if fitting and len(shape) == 3:
            raise PotentiaError(
                f"{file.path} has the shape {shape}, but {mask} is one mask of {size}: if the other axis of the image "
                f"is channels, give --axes {fitting[0]}."
            )
        if pages == 1:
            raise PotentiaError(f"{mask} is one mask, but {file.path.name} is a stack: its masks must be a stack.")
        wanted = n_pages(file.path, file.axes)
        raise PotentiaError(f"{mask} has {pages} pages, but its image {file.path.name} has {wanted}.")
    return ImageFile(file.name, mask, file.page)


def read_image(file: ImageFile | Path) -> np.ndarray:
    """An image as it is meant to be seen: (h, w) or (h, w, channels), in the numbers of its file; volumes (d, h, w)."""
    path, page, axes = (file.path, file.page, file.axes) if isinstance(file, ImageFile) else (file, None, None)
    if is_tiff(path):
        return read_tiff(path, page, axes)
    from PIL import ImageOps

    loaded = ImageOps.exif_transpose(_still(path))
    if loaded.mode.startswith("I"):
        values = np.asarray(loaded)
        return values if values.dtype == np.uint16 else np.clip(values, 0, 65535).astype(np.uint16)
    if path.suffix.lower() == ".png":
        with path.open("rb") as raw:
            head = raw.read(25)
        if len(head) == 25 and head[24] == 16:  # bits of a channel
            return _read_deep_png(path)
    if loaded.mode in ("1", "L", "LA") and "transparency" not in loaded.info:
        return np.asarray(loaded.convert("L"))
    through = loaded.convert("RGBA") if "transparency" in loaded.info else loaded
    return np.asarray(through.convert("RGB"))


def _still(path: Path) -> Any:
    """An image file that is no animation, decoded."""
    from PIL import Image

    loaded = open_image(path)
    if path.suffix.lower() == ".gif":
        with Image.open(path) as file:
            if getattr(file, "is_animated", False):
                raise PotentiaError(f"{path} is an animation; save its frames as pages of a TIFF file.")
    return loaded


def _read_deep_png(path: Path) -> np.ndarray:
    """The colours, or grey values, of a PNG image of 16 bits, without its transparency.

    Pillow unpacks the upper byte of each number, and the lower one where it takes the file for little-endian. Grey with
    transparency is read as four channels of one byte.
    """
    from PIL import Image, ImageOps

    halves: list[np.ndarray] = []
    for end in "BL":
        with Image.open(path) as picture:
            (tile,) = picture.tile
            layout = str(tile[3])
            grey = layout.startswith("LA")
            wanted = "RGBA" if grey else layout[:-1] + end
            # Pillow lists a tile as a tuple or, of late, a named one
            other: Any = tile._replace(args=wanted) if hasattr(tile, "_replace") else (*tile[:3], wanted)
            picture.tile = [other]
            halves.append(np.asarray(ImageOps.exif_transpose(picture)).astype(np.uint16))
    upper, lower = (halves[0][..., 0], halves[0][..., 1]) if grey else (part[..., :3] for part in halves)
    return upper * 256 + lower


def read_mask(file: ImageFile | Path) -> Mask:
    """A mask, with nothing decided about what its values mean."""
    path, page, axes = (file.path, file.page, file.axes) if isinstance(file, ImageFile) else (file, None, None)
    if is_tiff(path):
        values = read_tiff(path, page, axes)
        if values.dtype.kind not in "uib" or values.min() < -1 or values.max() >= 2**24:
            raise PotentiaError(
                f"{path}: a mask holds whole numbers from 0, and -1 for unknown, not {values.dtype} from "
                f"{values.min()} to {values.max()}."
            )
        return Mask(values.astype(np.int32), False, None)
    loaded = _still(path)
    if path.suffix.lower() == ".gif":  # writers renumber the colours of every file
        rgb = np.asarray(loaded.convert("RGB"))
        coloured = bool((rgb != rgb[..., :1]).any())
        return Mask(colour_codes(rgb) if coloured else rgb[..., 0].astype(np.int32), coloured, None)
    if loaded.mode in ("P", "L", "I", "I;16"):
        palette = loaded.getpalette() if loaded.mode == "P" else None
        return Mask(np.asarray(loaded, dtype=np.int32), False, palette)
    if loaded.mode in ("1", "LA"):
        return Mask(np.asarray(loaded.convert("L"), dtype=np.int32), False, None)
    return Mask(colour_codes(np.asarray(loaded.convert("RGB"))), True, None)


def colour_codes(rgb: np.ndarray) -> np.ndarray:
    """0xRRGGBB of colours (..., 3)."""
    codes: np.ndarray = rgb.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1], dtype=np.int32)
    return codes


def code_colours(codes: np.ndarray) -> np.ndarray:
    """Colours (..., 3) uint8 of 0xRRGGBB."""
    return np.stack([codes >> 16 & 255, codes >> 8 & 255, codes & 255], axis=-1).astype(np.uint8)


def check_same_size(image: np.ndarray, codes: np.ndarray, path: Path) -> None:
    """Refuse a mask that is not as large as its image."""
    size = image.shape[: codes.ndim]
    if size != codes.shape:
        mask_size, image_size = (" x ".join(map(str, shape[::-1])) for shape in (codes.shape, size))
        raise PotentiaError(f"{path}: the mask is {mask_size}, but its image is {image_size}.")


def write_mask(path: Path, mask: Mask) -> None:
    """A label map as a PNG file, of a volume as a TIFF file, that `read_mask` reads back."""
    grey = np.uint8 if mask.codes.max() < 256 else np.uint16
    values = code_colours(mask.codes) if mask.coloured else mask.codes.astype(grey)
    if mask.codes.ndim == 3:
        write_tiff(path, values)
    else:
        write_image(path, values, mask.palette if values.dtype == np.uint8 else None)


def write_image(path: Path, values: np.ndarray, palette: list[int] | None = None) -> None:
    """An image (h, w) or (h, w, 3) as a PNG file, also of palette numbers; volumes (d, h, w, 3) as a TIFF file."""
    if path.suffix == ".tif":
        write_tiff(path, values)
        return
    from PIL import Image

    image = Image.fromarray(values)
    if palette is not None:
        image.putpalette(palette)
    image.save(path, format="PNG")


ARRAY_SUFFIXES = (".npy", ".npz", *TIFF_SUFFIXES)


def given_files(folder: Path, images: list[ImageFile], option: str) -> list[ImageFile]:
    """The array file of every image: NAME.npy, NAME.npz or NAME.tif."""
    by_name = {_name(path, folder): path for path in _files_below(folder, ARRAY_SUFFIXES)}
    lacking = [image for image in images if image.name not in by_name]
    if lacking:
        raise PotentiaError(
            f"--{option}: {lacking[0].path} has no array {folder / lacking[0].name}{ARRAY_SUFFIXES[0]} "
            f"(or {', '.join(ARRAY_SUFFIXES[1:])})."
        )
    return [ImageFile(image.name, by_name[image.name]) for image in images]


def read_given(file: ImageFile, size: tuple[int, ...]) -> np.ndarray:
    """The array of a file as float32 (*size, channels); channels may also come first."""
    values = read_tiff(file.path) if is_tiff(file.path) else _load(file.path)
    if values.dtype.kind not in "uibf":
        raise PotentiaError(f"{file.path}: the array holds {values.dtype}, not real numbers.")
    if values.shape == size:
        values = values[..., None]
    elif values.ndim == len(size) + 1 and values.shape[1:] == size and values.shape[:-1] != size:
        values = np.moveaxis(values, 0, -1)
    if values.shape[:-1] != size:
        needed = f"({', '.join(map(str, size))}, n)"
        raise PotentiaError(f"{file.path}: the array has shape {values.shape}, but its image needs {needed}.")
    with np.errstate(over="ignore"):
        array = np.asarray(values, dtype=np.float32)
    if not np.isfinite(array).all():
        raise PotentiaError(f"{file.path}: the array holds a value that is not finite, or too large for float32.")
    return array


def _load(path: Path) -> np.ndarray:
    """The array of a .npy file, or the only one of a .npz file, loaded without pickles."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded as archive:
            names = [name for name in ("features", "probabilities", "marginals") if name in archive.files]
            if not names and len(archive.files) != 1:
                raise PotentiaError(f"{path}: the file must hold one array, not {len(archive.files)}.")
            array: np.ndarray = archive[names[0] if names else archive.files[0]]
            return array
    except PotentiaError:
        raise
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise PotentiaError(f"{path}: this is not a readable array file ({error}).") from None


class Given(NamedTuple):
    """What belongs to an image: features and probabilities (*size, n) of the user, and its regions, or None."""

    features: np.ndarray | None = None
    probabilities: np.ndarray | None = None
    regions: RegionMeans | None = None


@dataclass(frozen=True)
class InputReader:
    """Reads image number k and the arrays given beside it; workers of a cluster can, too.

    Attributes:
        files: the images.
        features, probabilities: the array files of all images, or None.
        axes: 2 for images, 3 for volumes.
        arrays: the images where they are in no files.
    """

    files: list[ImageFile]
    features: list[ImageFile] | None
    probabilities: list[ImageFile] | None
    axes: int
    arrays: list[np.ndarray] | None = None

    def __call__(self, k: int) -> tuple[np.ndarray, Given]:
        image = read_image(self.files[k]) if self.arrays is None else self.arrays[k]
        if image.ndim not in (self.axes, self.axes + 1):
            wrong = f"the image has shape {image.shape}, not {self.axes} axes and channels"
            raise PotentiaError(f"{self.files[k].path}: {wrong}.")
        size = image.shape[: self.axes]
        beside = (self.features, self.probabilities)
        features, soft = (None if arrays is None else read_given(arrays[k], size) for arrays in beside)
        return image, Given(features, soft)


def input_reader(
    files: list[ImageFile], features: str | Path | None, probabilities: str | Path | None, axes: int
) -> InputReader:
    """A reader of images and of the arrays of their names in folders."""
    beside = [
        None if folder is None else absolute(given_files(Path(folder), files, option))
        for option, folder in (("features", features), ("probabilities", probabilities))
    ]
    return InputReader(absolute(files), beside[0], beside[1], axes)


def absolute(files: list[ImageFile]) -> list[ImageFile]:
    """The files with paths that hold in every folder."""
    return [file._replace(path=file.path.absolute()) for file in files]
