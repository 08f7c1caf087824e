"""Where the data lies, and reading its files with errors that name them."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..base.types import PotentiaError, shown

#: A file's or folder's path, as text or as a path object.
FilePath = str | os.PathLike[str]

_VARIABLE = "POTENTIA_DATA"


def data_folder(option: FilePath | None = None) -> Path:
    """The folder of the public data sets: `option` if given, else the environment variable POTENTIA_DATA."""
    for given, source in ((option, "the folder given"), (os.environ.get(_VARIABLE), _VARIABLE)):
        if given:
            if not Path(given).is_dir():
                raise PotentiaError(f"{source} names {os.fspath(given)}, which is not a folder.")
            return Path(given)
    raise PotentiaError(f"No folder of data sets is known; pass folder= or set {_VARIABLE} to it.")


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


def open_image(path: Path) -> Any:
    """An image file as a Pillow image, decoded."""
    from PIL import Image

    try:
        with Image.open(path) as loaded:
            loaded.load()
            return loaded.copy()
    except FileNotFoundError:
        raise PotentiaError(f"{path}: there is no such file.") from None
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PotentiaError(f"{path}: this is not a readable image ({reason}).") from None


def read_pixels(path: Path, mode: str) -> np.ndarray:
    """An image file as a uint8 array: (h, w, 3) for mode "RGB", (h, w) for "L"."""
    return np.asarray(open_image(path).convert(mode))


def check_choice(name: str, given: Any, choices: Sequence[Any]) -> None:
    """Refuse an option that is not one of the choices."""
    if given not in choices:
        raise PotentiaError(f"{name} must be one of {', '.join(map(repr, choices))}, not {shown(given)}.")
