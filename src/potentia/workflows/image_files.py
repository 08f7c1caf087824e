"""Folders of pictures and masks: which files belong together, reading them, and writing label maps and overlays."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from .._types import PotentiaError
from ..data.loaders import open_picture

SUFFIXES = (".png", ".jpg", ".jpeg")


class Mask(NamedTuple):
    """A mask as its file has it.

    codes (h, w): grey values or palette numbers, or 0xRRGGBB where `coloured`. palette: the file's colours as
    [r, g, b, r, g, b, ...], or None.
    """

    codes: np.ndarray
    coloured: bool
    palette: list[int] | None


def picture_files(folder: Path) -> dict[str, Path]:
    """The pictures of a folder by their names without suffix, in order of name."""
    if not folder.is_dir():
        raise PotentiaError(f"{folder}: there is no such folder.")
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in SUFFIXES and not path.name.startswith("."):
            if path.stem in found:
                raise PotentiaError(
                    f"{folder} has {found[path.stem].name} and {path.name}: names must differ without suffix."
                )
            found[path.stem] = path
    if not found:
        raise PotentiaError(f"{folder} has no pictures ({', '.join(SUFFIXES)}).")
    return found


def paired_files(images: Path, masks: Path) -> list[tuple[Path, Path]]:
    """Every picture with the mask of its name; masks are PNG files."""
    pictures, own = picture_files(images), picture_files(masks)
    lacking = [name for name in pictures if name not in own]
    if lacking:
        more = f", nor have {len(lacking) - 1} other pictures one" if len(lacking) > 1 else ""
        raise PotentiaError(f"{pictures[lacking[0]]} has no mask {masks / lacking[0]}.png{more}.")
    lossy = [own[name] for name in pictures if own[name].suffix.lower() != ".png"]
    if lossy:
        raise PotentiaError(f"{lossy[0]}: JPEG does not keep the values of classes; masks must be PNG files.")
    return [(path, own[name]) for name, path in pictures.items()]


def read_image(path: Path) -> np.ndarray:
    """A picture as it is meant to be seen, (h, w, 3) uint8."""
    picture = ImageOps.exif_transpose(open_picture(path))
    if picture.mode.startswith("I"):  # 16 bits, which a conversion would clip to 8
        grey = np.clip(np.asarray(picture, dtype=np.int64) >> 8, 0, 255).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=2)
    through = picture.convert("RGBA") if "transparency" in picture.info else picture
    return np.asarray(through.convert("RGB"))


def read_mask(path: Path) -> Mask:
    """A mask, with nothing decided about what its values mean."""
    picture = open_picture(path)
    if picture.mode in ("P", "L", "I", "I;16"):
        palette = picture.getpalette() if picture.mode == "P" else None
        return Mask(np.asarray(picture, dtype=np.int32), False, palette)
    if picture.mode in ("1", "LA"):
        return Mask(np.asarray(picture.convert("L"), dtype=np.int32), False, None)
    return Mask(colour_codes(np.asarray(picture.convert("RGB"))), True, None)


def colour_codes(rgb: np.ndarray) -> np.ndarray:
    """0xRRGGBB of colours (..., 3)."""
    codes: np.ndarray = rgb.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1], dtype=np.int32)
    return codes


def code_colours(codes: np.ndarray) -> np.ndarray:
    """Colours (..., 3) uint8 of 0xRRGGBB."""
    return np.stack([codes >> 16 & 255, codes >> 8 & 255, codes & 255], axis=-1).astype(np.uint8)


def check_same_size(image: np.ndarray, codes: np.ndarray, path: Path) -> None:
    """Refuse a mask that is not as large as its picture."""
    if image.shape[:2] != codes.shape:
        (h, w), (mask_h, mask_w) = image.shape[:2], codes.shape
        raise PotentiaError(f"{path}: the mask is {mask_w} x {mask_h}, but its picture is {w} x {h}.")


def write_mask(path: Path, mask: Mask) -> None:
    """A label map as a PNG file that `read_mask` reads back."""
    if mask.coloured:
        values = code_colours(mask.codes)
    else:
        values = mask.codes.astype(np.uint8 if mask.codes.max() < 256 else np.uint16)
    picture = Image.fromarray(values)
    if mask.palette is not None and values.dtype == np.uint8:
        picture.putpalette(mask.palette)
    picture.save(path, format="PNG")


def write_picture(path: Path, values: np.ndarray) -> None:
    """A picture (h, w) or (h, w, 3) uint8 as a PNG file."""
    Image.fromarray(values).save(path, format="PNG")
