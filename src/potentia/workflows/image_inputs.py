"""Images with what the user gives beside them: features, and probabilities of another model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .._types import PotentiaError
from .array_files import given_files, read_given
from .image_files import ImageFile, read_image


class Given(NamedTuple):
    """What the user gives beside an image: features and probabilities (*size, n), or None."""

    features: np.ndarray | None = None
    probabilities: np.ndarray | None = None


@dataclass(frozen=True)
class InputReader:
    """Reads image number k and the arrays given beside it; workers of a cluster can, too.

    Attributes:
        files: the images.
        features, probabilities: the array files of all images, or None.
        axes: 2 for images, 3 for volumes.
    """

    files: list[ImageFile]
    features: list[ImageFile] | None
    probabilities: list[ImageFile] | None
    axes: int

    def __call__(self, k: int) -> tuple[np.ndarray, Given]:
        image = read_image(self.files[k])
        if image.ndim not in (self.axes, self.axes + 1):
            raise PotentiaError(
                f"{self.files[k].path}: the image has shape {image.shape}, not {self.axes} axes and channels."
            )
        size = image.shape[: self.axes]
        beside = (self.features, self.probabilities)
        return image, Given(*(None if own is None else read_given(own[k], size) for own in beside))


def input_reader(
    files: list[ImageFile], features: Path | None, probabilities: Path | None, axes: int
) -> InputReader:
    """A reader of images and of the arrays of their names in folders."""
    beside = [
        None if folder is None else absolute(given_files(folder, files, option))
        for option, folder in (("features", features), ("probabilities", probabilities))
    ]
    return InputReader(absolute(files), beside[0], beside[1], axes)


def absolute(files: list[ImageFile]) -> list[ImageFile]:
    """The files with paths that hold in every folder."""
    return [file._replace(path=file.path.absolute()) for file in files]
