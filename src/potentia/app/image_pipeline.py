"""`ImagePipeline`: labels the pixels of new images, at any size in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..base.files import naming
from ..base.progress import Bar
from ..base.schema import FLAG, TEXT, Choice, Count, Items, Number, Schema, Section
from ..base.types import Floats, Ints, PotentiaError, check_number
from ..features.colour import resize, upsample_marginals
from ..features.example import Example
from ..features.image import (
    RegionMeans,
    image_example,
    log_probabilities,
    probability_pairs,
    reduced_size,
    superpixel_example,
)
from ..features.pixels import edge_features
from ..graph.structure import Graph
from ..learn.backends.connection import iterate_anywhere
from ..metrics import Calibration
from ..models.crf import CRF
from .image_files import (
    Given,
    ImageFile,
    InputReader,
    Mask,
    absolute,
    check_same_size,
    checked_axes,
    image_files,
    input_reader,
    paired_files,
    read_mask,
    write_image,
    write_mask,
)
from .label_maps import INSTANCE_COLUMNS, compare_maps, find_instances, score_tables, summed_scores
from .pipeline import Pipeline, Staging
from .pixel_functions import check_torch
from .pixel_values import NUMBER_TYPES, Classes, Intensity, as_shown, overlaid, parse_void
from .pixels import TILE_SIDES, PixelRows, PixelStage, Window, blend, whole, window_size
from .table_files import write_table

if TYPE_CHECKING:
    from .pixel_network import AnyStage

#: Images whose tables have more entries than this are predicted in tiles, which overlap by `_OVERLAP` pixels a side.
_MOST_ENTRIES = 16_000_000
_OVERLAP = {2: 32, 3: 8}
#: The set of pair features of a model that is no paper's.
BOUNDARY = "boundary"
#: A value of masks, or a colour.
_CODE = Count(most=2**24 - 1)
#: Attributes that are saved as they are.
_PLAIN = ("node", "edge", "reduce", "superpixels", "axes", "typical", "file_axes")


@dataclass(repr=False)
class ImagePipeline(Pipeline):
    """A CRF over the pixels or superpixels of images, or the voxels of volumes.

    Attributes:
        model: the CRF.
        classes: what its states are in masks.
        node, edge: feature sets. With edge "boundary" the CRF's node features are log-probabilities, made by `pixels`
            ("filters" or "given") or given ("probabilities"); others are the papers' sets, see `image_example`.
            Superpixels have their own.
        reduce: share of the sides that the CRF sees; predictions are at full size.
        superpixels: about how many variables an image has; None for one per pixel.
        intensity: how the numbers of images are normalised.
        pixels: the pixel classifier, if there is one.
        typical: units of pair features, see `typical_contrast`.
        axes: 2 for images, 3 for volumes.
        file_axes: the axes of TIFF files in letters, see `checked_axes`; empty for those that the files state.
    """

    model: CRF
    classes: Classes
    node: str
    edge: str
    reduce: float = 1.0
    superpixels: int | None = None
    intensity: Intensity = field(default_factory=lambda: Intensity("type", 3))
    pixels: AnyStage | None = None
    typical: list[float] | None = None
    axes: int = 2
    file_axes: str = ""

    form: ClassVar[str] = "images"
    saved: ClassVar[Schema] = {
        "node": TEXT,
        "edge": TEXT,
        "reduce": Number(),
        "superpixels": Count(least=1, nullable=True),
        "axes": Count(least=2, most=3),
        "typical": Items(Number(), nullable=True),
        "file_axes": TEXT,
        "intensity": Section({
            "how": TEXT, "channels": Count(least=1), "low": Items(Number()), "high": Items(Number()),
            "types": Items(Choice(NUMBER_TYPES), nullable=True),
        }),
        "rows": Section({
            "features": TEXT, "position": FLAG, "given": Count(), "channels": Count(least=1),
            "axes": Count(least=2, most=3), "regions": FLAG,
        }, nullable=True),
        "classes": Section({
            "codes": Items(_CODE, "K"), "names": Items(TEXT, "K"), "colours": Items(_CODE, "K"), "void": Items(_CODE),
            "coloured": FLAG, "palette": Items(Count(most=255), nullable=True), "nearest": FLAG,
        }),
    }  # fmt: skip

    def settings(self) -> dict[str, Any]:
        """Classes, features and sizes."""
        rows = None if self.pixels is None else asdict(self.pixels.rows)
        parts = {"classes": asdict(self.classes), "intensity": asdict(self.intensity), "rows": rows}
        return {name: getattr(self, name) for name in _PLAIN} | parts

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The model, with the pixel classifier's arrays beside its own."""
        content, arrays = self.model.state()
        if self.pixels is not None:
            classifiers, own = self.pixels.state()
            content, arrays = content | classifiers, arrays | own
        return content, arrays

    @classmethod
    def restore(cls, settings: Mapping[str, Any], content: Any, arrays: Any) -> ImagePipeline:
        """The pipeline that `settings` and the model's state describe."""
        check_number("reduce", settings["reduce"], 0.0, 1.0)
        checked_axes(settings["file_axes"] or None)
        own = {name: value for name, value in arrays.items() if not name.startswith(("pixels:", "second:"))}
        stage: AnyStage | None = None
        if settings["rows"] is not None:
            rows = PixelRows(**settings["rows"])
            kind: type[AnyStage] = PixelStage
            if "networks" in content:
                check_torch()
                kind = import_module(".pixel_network", __package__).NetworkStage
            stage = kind.restore(rows, content, arrays)
        return cls(
            CRF.from_state(content, own),
            Classes(**settings["classes"]),
            intensity=Intensity(**settings["intensity"]),
            pixels=stage,
            **{name: settings[name] for name in _PLAIN},
        )

    def facts(self) -> dict[str, Any]:
        """Classes, what the variables are, and the model."""
        cells = f"{self.superpixels} superpixels" if self.superpixels is not None else "pixels"
        seen = cells if self.reduce == 1.0 else f"{cells} at {self.reduce:g} of the sides"
        facts = {"classes": ", ".join(self.classes.names), "variables": seen}
        if self.pixels is not None:
            facts["pixel classifier"] = str(self.pixels.function)
        return facts | super().facts()

    # -- from images to examples -----------------------------------------------------------------------------

    def prepare(self, image: np.ndarray) -> np.ndarray:
        """An image's intensities (*size, channels), normalised and reduced."""
        return self.shrink(self.intensity.apply(np.asarray(image), self.axes))

    def shrink(self, values: np.ndarray) -> np.ndarray:
        """Values (*size, n) at the size that the CRF sees."""
        return values if self.axes == 3 else resize(values, self.small_size(values.shape[:-1]))

    def small_size(self, size: tuple[int, ...]) -> tuple[int, ...]:
        """The size that the CRF sees."""
        return size if self.axes == 3 else reduced_size(size, self.reduce)

    def prepare_given(self, given: Given, size: tuple[int, ...]) -> Given:
        """What the user gives, checked and reduced; probabilities as logarithms."""
        features, soft, _ = given
        if self.node == "probabilities":
            if soft is None:
                raise PotentiaError("the model needs another model's probabilities with every image.")
            maps = soft[..., 0] if soft.shape[-1] == 1 else soft
            soft = self.shrink(log_probabilities(maps, len(self.classes), size))
        wanted = 0 if self.pixels is None else self.pixels.rows.given
        if wanted and features is None:
            raise PotentiaError(f"the model needs {wanted} given features with every image.")
        return given._replace(features=None if features is None else self.shrink(features), probabilities=soft)

    def node_scores(self, values: np.ndarray, given: Given) -> np.ndarray:
        """Log-probabilities (*size, n_classes) of single pixels of an image, in float32."""
        if self.pixels is not None:
            return self.pixels.image_scores(values, given)
        assert given.probabilities is not None
        return given.probabilities

    def window_example(
        self,
        values: np.ndarray,
        window: Window,
        scores: np.ndarray,
        labels: np.ndarray | None = None,
        name: str | None = None,
    ) -> Example:
        """A window of an image as an Example, given the log-probabilities of its pixels."""
        graph = grid(window_size(window), len(self.classes))
        pairs = graph.scopes["edge"]
        contrast = edge_features(values[window], pairs, BOUNDARY, axes=self.axes, typical=self.typical)
        edge = np.concatenate([contrast, probability_pairs(scores, pairs)], axis=1)
        features = {"node": scores.reshape(-1, scores.shape[-1]), "edge": edge}
        return Example(graph, features, None if labels is None else labels.ravel(), name=name)

    def paper_example(
        self, image: np.ndarray, labels: Ints | None = None, name: str | None = None
    ) -> tuple[Example, Ints | None]:
        """A whole image as an Example of a paper's features, or of superpixels with their map (h, w)."""
        values = np.clip(self.intensity.apply(np.asarray(image)), 0.0, 1.0)
        if values.shape[-1] not in (1, 3):
            raise PotentiaError(f"these features need grey or RGB images, not {values.shape[-1]} channels.")
        n = len(self.classes)
        if self.superpixels is not None:
            return superpixel_example(
                values, labels, n_states=n, n_segments=self.superpixels, pixel_weights=True, name=name
            )
        graph = grid(reduced_size(values.shape[:2], self.reduce), n)
        return image_example(
            values, labels, n_states=n, node=self.node, edge=self.edge, reduce=self.reduce, graph=graph, name=name
        ), None  # fmt: skip

    # -- prediction --------------------------------------------------------------------------------------------

    def predict_marginals(
        self, image: np.ndarray, features: np.ndarray | None = None, probabilities: np.ndarray | None = None
    ) -> Floats:
        """Marginals (*size, n_classes) of an image (h, w) or (h, w, channels), at its full size.

        features, probabilities: what the model was trained with beside images, (h, w, n).
        """
        return self._spread(image, Given(features, probabilities), self.model.predict_marginals)

    def predict(
        self, image: np.ndarray, features: np.ndarray | None = None, probabilities: np.ndarray | None = None
    ) -> Ints:
        """Class numbers (*size) of an image (h, w) or (h, w, channels)."""
        return self._labels(image, Given(features, probabilities), soft=False)[0]

    @property
    def by_marginals(self) -> bool:
        """Whether predictions are the best states of marginals, not the best labelling."""
        return (self.model.decode or getattr(self.model.learner, "decode", "mpm")) == "mpm"

    def _spread(self, image: np.ndarray, given: Given, predict: Callable[[list[Example]], list[Floats]]) -> Floats:
        """Predicted values (n_variables, n_classes) over the image's pixels."""
        full = np.shape(image)[: self.axes]
        if self.edge != BOUNDARY:
            example, segments = self.paper_example(image)
            (values,) = predict([example])
            if segments is not None:
                return np.asarray(values[segments])
            return upsample_marginals(values, reduced_size(full, self.reduce), full)
        seen, beside = self.prepare(image), self.prepare_given(given, full)
        if self.pixels is not None and self.pixels.rows.regions:
            beside = beside._replace(regions=RegionMeans.of(seen))
        size, scores = seen.shape[:-1], self.node_scores(seen, beside)

        def of(window: Window) -> np.ndarray:
            """Predictions of a window, (*window, k)."""
            (predicted,) = predict([self.window_example(seen, window, scores[window])])
            return np.asarray(predicted, dtype=np.float32).reshape(*window_size(window), -1)

        n, in_tiles = int(np.prod(size)), partial(blend, size, self.tile_side(), _OVERLAP[self.axes])
        fits = n * self.axes * len(self.classes) ** 2 <= _MOST_ENTRIES and n <= 1.5 * TILE_SIDES[self.axes] ** self.axes
        predicted = of(whole(size)) if fits else in_tiles(of)
        if size == full:
            return predicted
        return upsample_marginals(predicted.reshape(-1, predicted.shape[-1]), size, full)

    def tile_side(self) -> int:
        """The side of tiles: smaller ones for many classes."""
        pixels = _MOST_ENTRIES / (self.axes * len(self.classes) ** 2)
        return max(8, min(TILE_SIDES[self.axes], int(pixels ** (1 / self.axes))))

    # -- files -----------------------------------------------------------------------------------------------

    def predict_files(
        self,
        source: Path,
        out: Path,
        *,
        marginals: str | None = None,
        instances: Sequence[str] | None = None,
        features: Path | None = None,
        probabilities: Path | None = None,
        progress: bool = False,
    ) -> dict[str, Any]:
        """Label maps, overlays and, if requested, marginals ("npz" or "png") of a folder's images.

        instances: classes whose connected regions are numbered and measured; none for all but the first.
        """
        if marginals == "png" and self.axes == 3:
            raise PotentiaError("marginals of volumes are written as npz: give --marginals npz.")
        chosen = self._instance_classes(instances)
        files = image_files(source, self._stacks, axes=self.file_axes or None)
        read = self._reader(files, features, probabilities)
        names = "|".join(re.escape(file.name) for file in files)
        stale = re.compile(rf"marginals/({names})(\.\d+-[^/]*)?\.(npz|png)")  # of a run with other options
        with Staging(out, stale) as staging, Bar(progress) as bar:
            one = partial(self._predict_file, staging, marginals, chosen, read)
            done = iterate_anywhere(one, range(len(files)))
            regions = [next(done) for _file in bar.over(files, "predicting")]
            staging.file("classes.csv").write_text(self.classes.palette_text(), encoding="utf-8")
            if chosen is not None:
                lines = [line for of_image in regions for line in of_image]
                columns = {key: [line[key] for line in lines] for key in INSTANCE_COLUMNS}
                write_table(staging.file("instances.csv"), columns)
        parts = {"labels": True, "overlays": True, "marginals": marginals, "instances": chosen, "instances.csv": chosen}
        written = [name for name, given in parts.items() if given not in (None, False)]
        facts: dict[str, Any] = {"n_images": len(files), "written": [str(out / part) for part in written]}
        if chosen is not None:
            counted = [self.classes.names[k] for k in chosen]
            facts["instances"] = {name: sum(line["class"] == name for line in lines) for name in counted}
        return facts

    def _instance_classes(self, names: Sequence[str] | None) -> list[int] | None:
        """Numbers of the classes whose regions are counted: all but the first where none is named."""
        if names is None:
            return None
        unknown = [name for name in names if name not in self.classes.names]
        if unknown:
            known = ", ".join(self.classes.names)
            raise PotentiaError(f"--instances: there is no class {unknown[0]!r}; there are {known}.")
        return [self.classes.names.index(name) for name in names] or list(range(1, len(self.classes)))

    def _predict_file(
        self, staging: Staging, marginals: str | None, instances: list[int] | None, read: InputReader, k: int
    ) -> list[dict[str, Any]]:
        """Predict one image and write what was found; a line for every instance."""
        name, (image, given) = read.files[k].name, read(k)
        labels, soft = self._labels(image, given, marginals is not None)
        suffix = "tif" if self.axes == 3 else "png"
        write_mask(staging.file("labels", f"{name}.{suffix}"), self.classes.mask(labels))
        shown = as_shown(self.intensity.apply(image, self.axes))
        overlay = overlaid(shown, labels, self.classes.paint(labels))
        write_image(staging.file("overlays", f"{name}.{suffix}"), overlay)
        if soft is not None and marginals == "npz":
            names, codes = np.array(self.classes.names), np.array(self.classes.codes)
            with staging.file("marginals", f"{name}.npz").open("wb") as file:
                np.savez_compressed(file, marginals=soft.astype(np.float32), names=names, values=codes)
        elif soft is not None and marginals == "png":
            for number, label in enumerate(self.classes.names):
                safe = re.sub(r"[^\w#-]", "_", label)
                grey = np.round(255 * soft[..., number]).astype(np.uint8)
                write_image(staging.file("marginals", f"{name}.{number}-{safe}.png"), grey)
        if instances is None:
            return []
        numbered, lines = find_instances(labels, instances)
        write_mask(staging.file("instances", f"{name}.{suffix}"), Mask(numbered, False, None))
        return [{"image": name, **line, "class": self.classes.names[line["class"]]} for line in lines]

    def _labels(self, image: np.ndarray, given: Given, soft: bool) -> tuple[Ints, Floats | None]:
        """Class numbers, and marginals where requested or where the former come from them."""
        table = self._spread(image, given, self.model.predict_marginals) if soft or self.by_marginals else None
        if table is not None and self.by_marginals:
            return table.argmax(axis=-1), table
        states = np.eye(len(self.classes))
        one_hot = self._spread(image, given, lambda seen: [states[y] for y in self.model.predict(seen)])
        return one_hot.argmax(axis=-1), table

    def evaluate_files(
        self,
        source: Path,
        *,
        masks: Path | None = None,
        void: str | None = None,
        features: Path | None = None,
        probabilities: Path | None = None,
        progress: bool = False,
    ) -> dict[str, Any]:
        """Accuracy, recall, precision, F1, IoU and boundary F1 per class, the confusion matrix (truth by prediction)
        and, where predictions come from marginals, calibration; the error of every image; and "shown": the worst and
        the best images as arrays, for a report.

        void: values of these masks that mean unknown, beside those that training had.
        """
        if masks is None:
            raise PotentiaError("Images are evaluated against masks: give their folder.")
        unknown = [*self.classes.void, *parse_void(void, self.classes.coloured)]
        classes = replace(self.classes, void=unknown)
        files = paired_files(source, masks, self._stacks, self.file_axes or None)
        targets = absolute([mask for _, mask in files])
        read = self._reader([file for file, _ in files], features, probabilities, classes, targets)
        calibration = Calibration()
        with Bar(progress) as bar:
            done = iterate_anywhere(partial(self._evaluate_file, classes, read, targets), range(len(files)))

            def compared() -> Iterator[tuple[dict[str, Any], Ints, Ints]]:
                for _file in bar.over(files, "evaluating"):
                    *one, measured = next(done)
                    calibration.merge(measured)
                    yield tuple(one)

            facts = summed_scores(compared(), classes)
        if self.by_marginals:
            facts |= {"calibration_error": calibration.error(), "reliability": calibration.curve()}
        return facts

    def _evaluate_file(
        self, classes: Classes, read: InputReader, masks: list[ImageFile], k: int
    ) -> tuple[dict[str, Any], Ints, Ints, Calibration]:
        """Predict one image and compare: what a report shows, the confusion matrix, boundary counts, calibration."""
        image, given = read(k)
        truth, calibration = _read_truth(classes, masks[k], image), Calibration()
        labels, soft = self._labels(image, given, False)
        if soft is not None:
            calibration.add(truth, soft)
        shown, confusion, borders = compare_maps(read.files[k].name, truth, labels, classes)
        seen = as_shown(self.intensity.apply(image, self.axes))
        shown |= {"input": seen, "overlay": overlaid(seen, labels, self.classes.paint(labels))}
        shown |= {} if soft is None else {"uncertainty": 1.0 - soft.max(axis=-1)}
        return shown, confusion, borders, calibration

    @property
    def _stacks(self) -> str:
        """Whether pages of TIFF files are images or volumes."""
        return "volumes" if self.axes == 3 else "images"

    def _reader(
        self,
        files: list[ImageFile],
        features: Path | None,
        probabilities: Path | None,
        classes: Classes | None = None,
        masks: list[ImageFile] | None = None,
    ) -> InputReader:
        """Reads image number k with what is given beside it; refuses before any work what is missing or unreadable."""
        needs = {
            "features": (features, bool(self.pixels is not None and self.pixels.rows.given)),
            "probabilities": (probabilities, self.node == "probabilities"),
        }
        for option, (folder, wanted) in needs.items():
            if wanted and folder is None:
                raise PotentiaError(f"the model was trained with --{option}: give their folder for these images.")
            if folder is not None and not wanted:
                raise PotentiaError(f"the model was trained without --{option}.")
        read = input_reader(files, features, probabilities, self.axes)
        for k, file in enumerate(files):
            image = read(k)[0]
            if classes is not None and masks is not None:
                _read_truth(classes, masks[k], image)
            with naming(file.path):
                self.intensity.apply(image, self.axes)
        return read

    def detail_tables(self, facts: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """Scores per class, the confusion matrix and the reliability curve."""
        return score_tables(facts)


def _read_truth(classes: Classes, mask: ImageFile, image: np.ndarray) -> Ints:
    """The classes of a mask, which must have the image's size."""
    raw = read_mask(mask)
    check_same_size(image, raw.codes, mask.path)
    return classes.labels(raw, mask.path)


@lru_cache(maxsize=16)
def grid(size: tuple[int, ...], n_states: int) -> Graph:
    """One graph for all images of a size."""
    return Graph.grid(size, n_states=n_states, neighbours=2 * len(size))
