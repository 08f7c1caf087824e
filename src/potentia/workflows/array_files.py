"""Arrays that the user gives beside images: features of pixels, and probabilities of another model."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from .._types import PotentiaError
from .image_files import ImageFile
from .tiff_files import SUFFIXES as TIFF_SUFFIXES
from .tiff_files import is_tiff, read_tiff

SUFFIXES = (".npy", ".npz", *TIFF_SUFFIXES)


def given_files(folder: Path, images: list[ImageFile], option: str) -> list[ImageFile]:
    """The array file of every image: NAME.npy, NAME.npz or NAME.tif."""
    if not folder.is_dir():
        raise PotentiaError(f"{folder}: there is no such folder.")
    own = {path.stem: path for path in sorted(folder.iterdir()) if path.suffix.lower() in SUFFIXES}
    lacking = [image for image in images if image.name not in own]
    if lacking:
        raise PotentiaError(
            f"--{option}: {lacking[0].path} has no array {folder / lacking[0].name}{SUFFIXES[0]} "
            f"(or {', '.join(SUFFIXES[1:])})."
        )
    return [ImageFile(image.name, own[image.name]) for image in images]


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
        sides = ", ".join(map(str, size))
        raise PotentiaError(
            f"{file.path}: the array has shape {values.shape}, but its image needs ({sides}, n)."
        )
    with np.errstate(over="ignore"):
        found = np.asarray(values, dtype=np.float32)
    if not np.isfinite(found).all():
        raise PotentiaError(
            f"{file.path}: the array holds a value that is not finite, or too large for float32."
        )
    return found


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
            found: np.ndarray = archive[names[0] if names else archive.files[0]]
            return found
    except PotentiaError:
        raise
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise PotentiaError(f"{path}: this is not a readable array file ({error}).") from None
