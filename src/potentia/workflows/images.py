"""Pictures with masks: from folders of files to a pipeline that labels the pixels of new pictures."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .._digest import digest_of
from .._options import check_number
from .._progress import Bar
from .._schema import FLAG, TEXT, Count, Items, Number, Record, Schema
from .._types import Floats, Ints, PotentiaError
from ..data.example import Example
from ..data.parts import Examples, Loaded, Parts
from ..data.pictures import LabelledImage
from ..estimators import CRF
from ..features.image import image_example, reduced_size
from ..features.resize import upsample_marginals
from ..features.superpixels import superpixel_example
from ..graph.structure import Graph
from ..learn.dataset import PART_ENTRIES
from ..parallel.connection import current, iterate_anywhere
from .classes import Classes, find_classes, parse_void
from .image_files import (
    check_same_size,
    paired_files,
    picture_files,
    read_image,
    read_mask,
    write_mask,
    write_picture,
)
from .outputs import Staging
from .pipeline import Pipeline
from .training import Run, check_trainable, fit, make_learner, make_potential

#: Feature sets of pixels and of pairs: a linear function wants the papers' expanded ones.
_SETS = {"linear": "mbl", "constant": "ilr", "boosting": "ilr", "mlp": "ilr"}


@dataclass(repr=False)
class ImagePipeline(Pipeline):
    """A CRF over the pixels or superpixels of pictures.

    Attributes:
        model: the CRF.
        classes: what its states are in masks.
        node, edge: names of feature sets, see `image_example`; superpixels have their own.
        reduce: share of the sides that the CRF sees; predictions are at full size.
        superpixels: about how many variables a picture has; None for one per pixel.
    """

    model: CRF
    classes: Classes
    node: str
    edge: str
    reduce: float = 1.0
    superpixels: int | None = None

    form: ClassVar[str] = "images"
    saved: ClassVar[Schema] = {
        "node": TEXT,
        "edge": TEXT,
        "reduce": Number(),
        "superpixels": Count(least=1, optional=True),
        "classes": Record(
            {
                "codes": Items(Count(most=2**24 - 1), "K"),
                "names": Items(TEXT, "K"),
                "colours": Items(Count(most=2**24 - 1), "K"),
                "void": Items(Count(most=2**24 - 1)),
                "coloured": FLAG,
                "palette": Items(Count(most=255), optional=True),
            }
        ),
    }

    def settings(self) -> dict[str, Any]:
        """Classes, features and sizes."""
        kept = {name: getattr(self, name) for name in ("node", "edge", "reduce", "superpixels")}
        return kept | {"classes": self.classes.to_json()}

    @classmethod
    def restore(cls, settings: Mapping[str, Any], content: Any, arrays: Any) -> ImagePipeline:
        """The pipeline that `settings` and the model's state describe."""
        others = {name: value for name, value in settings.items() if name != "classes"}
        classes = Classes(**settings["classes"])
        check_number("reduce", settings["reduce"], 0.0, 1.0)
        return cls(CRF.from_state(content, arrays), classes, **others)

    def facts(self) -> dict[str, Any]:
        """Classes, what the variables are, and the model."""
        cells = f"{self.superpixels} superpixels" if self.superpixels is not None else "pixels"
        seen = cells if self.reduce == 1.0 else f"{cells} at {self.reduce:g} of the sides"
        return {"classes": ", ".join(self.classes.names), "variables": seen, **super().facts()}

    def example(
        self, image: np.ndarray, labels: Ints | None = None, name: str | None = None
    ) -> tuple[Example, Ints | None]:
        """A picture as an Example, and its superpixels (h, w) where those are its variables."""
        n = len(self.classes)
        if self.superpixels is not None:
            return superpixel_example(
                image, labels, n_states=n, n_segments=self.superpixels, pixel_weights=True, name=name
            )
        graph = _grid(reduced_size(image.shape[:2], self.reduce), n)
        return image_example(
            image, labels, n_states=n, node=self.node, edge=self.edge, reduce=self.reduce, graph=graph, name=name
        ), None  # fmt: skip

    def labelled(self, picture: LabelledImage) -> Example:
        """A picture with its mask's labels as an Example to train on."""
        return self.example(picture.image, picture.labels.astype(np.int64), picture.name)[0]

    def predict_marginals(self, image: np.ndarray) -> Floats:
        """Marginals (h, w, n_classes) of a picture (h, w, 3), at its full size."""
        return self._spread(image, self.model.predict_marginals)

    def predict(self, image: np.ndarray) -> Ints:
        """Class numbers (h, w) of a picture (h, w, 3)."""
        if self._by_marginals:
            return self.predict_marginals(image).argmax(axis=2)
        states = np.eye(len(self.classes))
        return self._spread(image, lambda seen: [states[y] for y in self.model.predict(seen)]).argmax(axis=2)

    @property
    def _by_marginals(self) -> bool:
        return (self.model.decode or getattr(self.model.learner, "decode", "mpm")) == "mpm"

    def _spread(self, image: np.ndarray, predict: Callable[[list[Example]], list[Floats]]) -> Floats:
        """Predicted values (n_variables, n_classes) over the picture's pixels."""
        example, segments = self.example(image)
        (values,) = predict([example])
        if segments is not None:
            return np.asarray(values[segments])
        full = image.shape[:2]
        return upsample_marginals(values, reduced_size(full, self.reduce), full)

    # -- files ---------------------------------------------------------------------------------------------

    def predict_files(
        self, source: Path, out: Path, *, marginals: str | None = None, progress: bool = False, **_: Any
    ) -> dict[str, Any]:
        """Label maps, overlays and, where asked for, marginals ("npz" or "png") of a folder's pictures."""
        files = [path.absolute() for path in picture_files(source).values()]
        for path in files:  # an unreadable picture ends this before hours of work rather than after
            read_image(path)
        with Staging(out) as staging, Bar(progress) as bar:
            done = iterate_anywhere(partial(self._predict_file, staging, marginals), files)
            for _file in bar.over(files, "predicting"):
                next(done)
        written = ["labels", "overlays", *(["marginals"] if marginals else [])]
        return {"pictures": len(files), "written": [str(out / part) for part in written]}

    def _predict_file(self, staging: Staging, marginals: str | None, path: Path) -> None:
        """Predict one picture and write what was found."""
        image = read_image(path)
        soft = self.predict_marginals(image) if marginals or self._by_marginals else None
        labels = soft.argmax(axis=2) if soft is not None and self._by_marginals else self.predict(image)
        write_mask(staging.path("labels", f"{path.stem}.png"), self.classes.mask(labels))
        mixed = image // 2 + self.classes.paint(labels) // 2
        write_picture(staging.path("overlays", f"{path.stem}.png"), mixed)
        if marginals and soft is not None:
            self._write_marginals(staging, path.stem, soft, marginals)

    def _write_marginals(self, staging: Staging, stem: str, values: Floats, how: str) -> None:
        if how == "npz":
            names, codes = np.array(self.classes.names), np.array(self.classes.codes)
            with staging.path("marginals", f"{stem}.npz").open("wb") as file:
                np.savez_compressed(file, marginals=values.astype(np.float32), names=names, values=codes)
            return
        for k, name in enumerate(self.classes.names):
            safe = re.sub(r"[^\w#-]", "_", name)
            grey = np.round(255 * values[..., k]).astype(np.uint8)
            write_picture(staging.path("marginals", f"{stem}.{k}-{safe}.png"), grey)

    def evaluate_files(
        self,
        source: Path,
        *,
        masks: Path | None = None,
        void: str | None = None,
        progress: bool = False,
        **_: Any,
    ) -> dict[str, Any]:
        """Accuracy, recall and intersection over union per class, and the confusion matrix (truth by prediction).

        void: values of these masks that mean unknown, beside those that training had.
        """
        if masks is None:
            raise PotentiaError("Pictures are evaluated against masks: give their folder.")
        unknown = [*self.classes.void, *parse_void(void, self.classes.coloured)]
        files = [(a.absolute(), b.absolute()) for a, b in paired_files(source, masks)]
        known = replace(self.classes, void=unknown)
        for pair in files:  # an unreadable one ends this before hours of work rather than after
            _read_pairs([pair], known)
        n = len(self.classes)
        confusion = np.zeros((n, n), dtype=np.int64)
        with Bar(progress) as bar:
            found = iterate_anywhere(partial(self._confusion, known), files)
            for _file in bar.over(files, "evaluating"):
                confusion += next(found)
        return {"pictures": len(files), **scores_of(confusion, self.classes.names)}

    def _confusion(self, classes: Classes, pair: tuple[Path, Path]) -> Ints:
        """Pixels of one picture by their class in its mask and by the one predicted."""
        (picture,) = _read_pairs([pair], classes)
        n, truth = len(self.classes), picture.labels.astype(np.int64)
        pairs = (truth * n + self.predict(picture.image))[truth >= 0]
        return np.bincount(pairs, minlength=n * n).reshape(n, n)


def scores_of(confusion: Ints, names: Sequence[str]) -> dict[str, Any]:
    """Accuracy, recall and IoU of a confusion matrix (truth by prediction); NaN for a class that is nowhere."""
    total, right = confusion.sum(), np.diag(confusion)
    if total == 0:
        raise PotentiaError("the masks have no pixel of a known class to compare with.")
    size, found = confusion.sum(axis=1), confusion.sum(axis=0)
    recall = np.where(size > 0, right / np.maximum(size, 1), np.nan)
    union = size + found - right
    iou = np.where(union > 0, right / np.maximum(union, 1), np.nan)
    classes = [
        {"class": name, "pixels": int(size[k]), "recall": float(recall[k]), "iou": float(iou[k])}
        for k, name in enumerate(names)
    ]
    return {
        "accuracy": float(right.sum() / total),
        "mean_recall": float(np.nanmean(recall)),
        "mean_iou": float(np.nanmean(iou)),
        "classes": classes,
        "confusion": confusion.tolist(),
    }


def train(
    images: Path,
    masks: Path,
    *,
    palette: Path | None = None,
    void: str | None = None,
    node: str | None = None,
    edge: str = "linear",
    learner: str = "ilr",
    iterations: int | None = None,
    reduce: float | None = None,
    superpixels: int | None = None,
    run: Run | None = None,
) -> tuple[ImagePipeline, dict[str, Any]]:
    """A pipeline fitted to the pictures of a folder and the masks of their names, and facts of the fit.

    palette: a file of lines `value,name[,#rrggbb]`; None takes every value in the masks as a class. void: values that
    mean unknown, with commas between. learner: of `TRAINABLE`. node, edge: functions that it
    can train; node None is boosting where it can, else linear. For the others see `ImagePipeline`.
    """
    run = run or Run()
    if superpixels is not None and reduce is not None:
        raise PotentiaError("superpixels are made of the whole picture: give --superpixels or --reduce.")
    node = node or ("boosting" if learner == "ilr" else "linear")
    check_trainable(learner, node=node, edge=edge)
    files = paired_files(images, masks)
    classes = find_classes([read_mask(mask) for _, mask in files], palette, void)
    pictures = _read_pairs(files, classes)
    for picture, (_, mask) in zip(pictures, files, strict=True):
        if not np.any(picture.labels >= 0):
            raise PotentiaError(f"{mask}: every pixel is void, so there is nothing to learn.")
    potentials = {"node": make_potential(node, run.seed), "edge": make_potential(edge, run.seed)}
    model = CRF(potentials, make_learner(learner, potentials, iterations, run))
    pipeline = ImagePipeline(
        model, classes, _SETS[node], _SETS[edge], 1.0 if reduce is None else reduce, superpixels
    )
    own, held = (_examples(pipeline, pictures, files, numbers) for numbers in run.split(len(pictures)))
    facts = fit(model, own, held, _digest(pipeline, pictures), run)
    return pipeline, {"pictures": len(pictures), "classes": classes.names, **facts}


def _examples(
    pipeline: ImagePipeline,
    pictures: Sequence[LabelledImage],
    files: Sequence[tuple[Path, Path]],
    numbers: Ints,
) -> Examples:
    """Some pictures as examples; on a cluster in parts whose files the workers read."""
    if current() is None or not len(numbers):
        return [pipeline.labelled(pictures[i]) for i in numbers]
    n = len(pipeline.classes)
    sizes = [pictures[i].labels.size * pipeline.reduce**2 * (n + 2 * n * n) for i in numbers]
    part = np.cumsum(sizes) // PART_ENTRIES
    groups = [numbers[part == k] for k in np.unique(part)]
    chosen = [[(files[i][0].absolute(), files[i][1].absolute()) for i in group] for group in groups]
    return Parts([Loaded(partial(_load, pipeline, pairs), f"{pairs[0][0]} and after") for pairs in chosen])


def _load(pipeline: ImagePipeline, files: Sequence[tuple[Path, Path]]) -> list[Example]:
    return [pipeline.labelled(picture) for picture in _read_pairs(files, pipeline.classes)]


def _read_pairs(files: Sequence[tuple[Path, Path]], classes: Classes) -> list[LabelledImage]:
    pictures = []
    for path, mask_path in files:
        image, mask = read_image(path), read_mask(mask_path)
        check_same_size(image, mask.codes, mask_path)
        labels = classes.labels(mask, mask_path).astype(np.int16)
        pictures.append(LabelledImage(path.stem, image, labels))
    return pictures


def _digest(pipeline: ImagePipeline, pictures: Sequence[LabelledImage]) -> str:
    parts: list[str | bytes] = [repr(pipeline.settings())]
    for picture in pictures:
        parts += [picture.name, picture.image.tobytes(), picture.labels.tobytes()]
    return digest_of(parts)


@lru_cache(maxsize=16)
def _grid(size: tuple[int, int], n_states: int) -> Graph:
    """One graph for all pictures of a size."""
    return Graph.grid(size, n_states=n_states)
