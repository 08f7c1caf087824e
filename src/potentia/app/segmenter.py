"""`ImageSegmenter`: the models of `potentia train --images`, fitted to and predicting arrays, files or folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..base.params import Params
from ..base.types import PotentiaError, check_flag, plain_array, shown, whole_numbers
from .image_files import Given, ImageFile, Mask, check_same_size, code_colours, colour_codes, image_files, read_image
from .image_pipeline import ImagePipeline
from .images import ImageOptions, fit_images, train
from .pixel_values import find_classes
from .training import Run

#: The value of masks that stands for -1.
_UNKNOWN = 2**24 - 1


@dataclass(frozen=True)
class ArrayReader:
    """Gives image number k of a list of arrays, as `InputReader` does of files."""

    files: list[ImageFile]
    arrays: list[np.ndarray]

    def __call__(self, k: int) -> tuple[np.ndarray, Given]:
        return self.arrays[k], Given()


class ImageSegmenter(Params):
    """Labels the pixels of images: what `potentia train --images` trains, in scikit-learn's manner.

    Args:
        seed: of everything that is random.
        options: those of `potentia train --images`, with underscores, such as `superpixels=300`, `position="no"`,
            `class_weight="balanced"`; paths are texts or paths.

    After `fit`: `pipeline_`, what `pt.load` gives of a saved model, and `facts_`, what the command prints.
    """

    def __init__(self, *, seed: int = 0, **options: Any) -> None:
        unknown = sorted(set(options) - {field.name for field in fields(ImageOptions)})
        if unknown:
            raise PotentiaError(f"ImageSegmenter has no option {unknown[0]!r}; see `potentia train --help`.")
        self.seed = seed
        for field in fields(ImageOptions):
            setattr(self, field.name, options.get(field.name, field.default))

    @classmethod
    def _names(cls) -> list[str]:
        return ["seed", *(field.name for field in fields(ImageOptions))]

    def fit(self, images: Any, masks: Any, *, progress: bool = False) -> Self:
        """Train on images and their masks.

        Args:
            images: a folder, or a list of arrays (h, w) or (h, w, channels).
            masks: a folder of masks of the same names, or a list of arrays (h, w) of classes, -1 where unknown, or
                (h, w, 3) of colours.
            progress: show a progress bar.
        """
        check_flag("progress", progress)
        options = {name: getattr(self, name) for name in self._defaults() if name != "seed"}
        for name in ("palette", "features", "probabilities"):
            options[name] = None if options[name] is None else Path(options[name])
        run = Run(seed=self.seed, progress=progress)
        if isinstance(images, str | os.PathLike):
            if not isinstance(masks, str | os.PathLike):
                raise PotentiaError("masks must be a folder, as images is one.")
            self.pipeline_, self.facts_ = train(Path(images), Path(masks), run=run, **options)
            return self
        chosen = ImageOptions(**options)
        chosen.check()
        if chosen.features is not None or chosen.probabilities is not None:
            raise PotentiaError("features and probabilities are folders beside a folder of images.")
        arrays, raw = _arrays("images", images), [_mask(mask, k) for k, mask in enumerate(_arrays("masks", masks))]
        if len(arrays) != len(raw):
            raise PotentiaError(f"there are {len(arrays)} images, but {len(raw)} masks.")
        files = [ImageFile(f"image {k}", Path(f"image {k}")) for k in range(len(arrays))]
        for array, mask, file in zip(arrays, raw, files, strict=True):
            check_same_size(array, mask.codes, file.path)
        hidden = any(np.any(mask.codes == _UNKNOWN) for mask in raw)
        void = ",".join([*([chosen.void] if chosen.void else []), *([str(_UNKNOWN)] if hidden else [])]) or None
        classes = find_classes(raw, chosen.palette, void, chosen.rare)
        labels = [classes.labels(mask, file.path).astype(np.int16) for mask, file in zip(raw, files, strict=True)]
        reader: Any = ArrayReader(files, arrays)
        self.pipeline_, self.facts_ = fit_images(reader, labels, classes, chosen, run)
        return self

    def predict(self, images: Any) -> Any:
        """Masks, in the values of those trained on: one for an image, a list for a list or a folder."""
        return _each(lambda image: self._values(self._fitted().predict(image)), images)

    def predict_proba(self, images: Any) -> Any:
        """Probabilities (h, w, n_classes) of one image, or a list of them."""
        return _each(lambda image: self._fitted().predict_marginals(image), images)

    def score(self, images: Any, masks: Any) -> float:
        """Share of pixels of known class that are predicted correctly; of arrays."""
        right = total = 0
        for k, (found, mask) in enumerate(zip(self.predict(list(images)), list(masks), strict=True)):
            truth, codes = _mask(np.asarray(mask), k), _mask(found, k).codes
            known = ~np.isin(truth.codes, [_UNKNOWN, *self._fitted().classes.void])
            right, total = right + int(np.sum((truth.codes == codes) & known)), total + int(known.sum())
        if total == 0:
            raise PotentiaError("no pixel of the masks has a known class.")
        return right / total

    @property
    def classes_(self) -> list[str]:
        """Names of the classes, in the order of `predict_proba`."""
        return self._fitted().classes.names

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model for `pt.load` and `potentia predict`."""
        self._fitted().save(path)

    def _values(self, labels: Any) -> np.ndarray:
        classes = self._fitted().classes
        codes = np.array(classes.codes)[labels]
        return code_colours(codes) if classes.coloured else codes

    def _fitted(self) -> ImagePipeline:
        if not hasattr(self, "pipeline_"):
            raise PotentiaError("this ImageSegmenter is not fitted: call fit first.")
        return self.pipeline_

    def __repr__(self) -> str:
        plain = ImageSegmenter().get_params()
        changed = {name: value for name, value in self.get_params().items() if value != plain[name]}
        return f"ImageSegmenter({', '.join(f'{name}={value!r}' for name, value in changed.items())})"


def _arrays(name: str, given: Any) -> list[np.ndarray]:
    if isinstance(given, str | os.PathLike) or not np.iterable(given):
        raise PotentiaError(f"{name} must be a folder or a list of arrays, as the other one, not {shown(given)}.")
    found = [plain_array(image, f"{name}[{k}]") for k, image in enumerate(given)]
    if not found or any(image.ndim < 2 for image in found):
        raise PotentiaError(f"{name} must be a list of at least one array (h, w) or (h, w, channels).")
    return found


def _mask(values: np.ndarray, number: int) -> Mask:
    """A mask of an array of classes, -1 where unknown, or of colours."""
    if values.ndim == 3 and values.shape[2] == 3 and values.dtype == np.uint8:
        return Mask(colour_codes(values), True, None)
    codes = whole_numbers(values, f"masks[{number}]")
    if codes.min() < -1 or codes.max() >= _UNKNOWN:
        raise PotentiaError(
            f"masks[{number}] holds {codes.min()} to {codes.max()}; classes count from 0, -1 is unknown."
        )
    return Mask(np.where(codes < 0, _UNKNOWN, codes), False, None)


def _each(predict: Any, images: Any) -> Any:
    """What a function gives for an image, or for each of a list or a folder."""
    if isinstance(images, str | os.PathLike):
        path = Path(images)
        if not path.is_dir():
            return predict(read_image(path))
        return [predict(read_image(file)) for file in image_files(path)]
    if isinstance(images, Sequence):
        return [predict(read_image(Path(i)) if isinstance(i, str | os.PathLike) else np.asarray(i)) for i in images]
    return predict(np.asarray(images))
