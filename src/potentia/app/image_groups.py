"""Groups of images that are held out together, such as those of one specimen, patient or tile."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..base.types import Ints, PotentiaError, shown
from .image_files import ImageFile
from .table_files import read_table


def find_groups(given: Any, files: Sequence[ImageFile]) -> Ints | None:
    """The number of each image's group; None if every image is a group by itself.

    given: "folder", a CSV file with the columns image and group, a regular expression whose first group is found in an
    image's name, or a list with a value for each image.
    """
    if given is None:
        return None
    if isinstance(given, str | os.PathLike):
        names = _names(str(given), files)
    elif isinstance(given, Sequence | np.ndarray):
        names = [str(value) for value in given]
    else:
        raise PotentiaError(f"groups must be a text or a list with a value for each image, not {shown(given)}.")
    if len(names) != len(files):
        raise PotentiaError(f"groups has {len(names)} values for {len(files)} images.")
    found, numbers = np.unique(names, return_inverse=True)
    if len(found) < 2:
        raise PotentiaError(f"all images are in the group {names[0]!r}, but cross-validation needs two groups or more.")
    return np.asarray(numbers, dtype=np.int64)


def _names(text: str, files: Sequence[ImageFile]) -> list[str]:
    """The name of each image's group."""
    if text == "folder":
        return [str(file.path.parent) for file in files]
    if Path(text).is_file():
        listed = _listed(Path(text))
        named = [next((listed[n] for n in (f.name, f.base, f.path.name) if n in listed), None) for f in files]
        source = text
    else:
        pattern = _pattern(text)
        matches = [pattern.search(file.name) for file in files]
        named = [None if match is None else match[1] for match in matches]
        source = f"the regular expression {text!r}"
    for file, name in zip(files, named, strict=True):
        if name is None:
            raise PotentiaError(f"--groups: {source} gives no group for the image {file.name}.")
    return [str(name) for name in named]


def _listed(path: Path) -> dict[str | None, str | None]:
    """The group of every image that a table names."""
    table = read_table(path)
    if len(table) != 2:
        raise PotentiaError(f"{path}: a file of groups has two columns, image and group, not {len(table)}.")
    listed: dict[str | None, str | None] = {}
    for image, group in zip(*table.values(), strict=True):
        if listed.setdefault(image, group) != group:
            raise PotentiaError(f"{path}: {image} is in the groups {listed[image]} and {group}.")
    return listed


def _pattern(text: str) -> re.Pattern[str]:
    """The regular expression, which has a group."""
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise PotentiaError(f"--groups {text}: this is no file and no regular expression ({error}).") from None
    if not pattern.groups:
        raise PotentiaError(
            f"--groups {text}: this is no file, and a regular expression needs a group in parentheses, such as (.*)_."
        )
    return pattern


def draw_folds(groups: Ints, n_folds: int, rng: np.random.Generator, known: np.ndarray | None = None) -> Ints:
    """The fold of every item, the same for items of a group; n_folds, or fewer where groups are fewer.

    known: items that can be learned from; every fold gets groups that have some, where there are enough.
    """
    _, numbers = np.unique(groups, return_inverse=True)
    useful = np.bincount(numbers, known).astype(bool) if known is not None else np.ones(numbers.max() + 1, dtype=bool)
    n_folds = max(1, min(n_folds, int(useful.sum())))
    folds = np.arange(len(useful)) % n_folds
    folds[useful] = rng.permutation(np.arange(useful.sum()) % n_folds)
    return np.asarray(folds[numbers])
