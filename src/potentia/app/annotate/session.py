"""Labels of a folder of images from strokes: what is drawn is saved at once, and the newest strokes are fitted."""

from __future__ import annotations

import base64
import io
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

from ...base.files import new_folder, replacing
from ...base.types import Ints, PotentiaError, shown
from ..image_files import code_colours, image_files, read_image, read_mask
from ..image_pipeline import ImagePipeline
from ..pipeline import file_digests, write_text
from ..pixel_values import Classes, as_shown, contours, learn_intensity, read_palette
from ..segment import Segmentation, segment

#: The value of pixels without a stroke, and classes at most.
VOID, MAX_CLASSES = 255, 20
#: Pixels of an image, points of a part of a stroke and its radius, at most.
_MAX_PIXELS, MAX_POINTS, MAX_RADIUS = 25_000_000, 4096, 256.0
#: Strokes that can be undone.
_MAX_UNDO = 200
#: Colours of classes in order, far apart also for the colour-blind [Okabe and Ito], and seen on dark and bright images.
COLOURS = (0x56B4E9, 0xE69F00, 0x009E73, 0xD55E00, 0xCC79A7, 0xF0E442, 0x0072B2, 0x999999, 0xFAFAFA, 0x882255)


class Patch(NamedTuple):
    """What part of a stroke covered: its stroke, its place and the values before it."""

    stroke: str
    place: tuple[slice, slice]
    before: np.ndarray


@dataclass(eq=False)
class Drawing:
    """An image and its strokes.

    Attributes:
        pixels: as in its file.
        marks: (h, w) uint8, class numbers, `VOID` where nothing is drawn.
        version: grows with every change.
        patches: for undo, the newest last.
    """

    pixels: np.ndarray
    marks: np.ndarray
    version: int = 0
    patches: list[Patch] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Labelling:
    """What a fit found for an image: of which version of its strokes, labels, uncertainty (0 to 1), the place to draw
    next (x, y, radius), the model, seconds; or a sentence that says why there is nothing.
    """

    version: int
    message: str = ""
    labels: np.ndarray | None = None
    uncertainty: np.ndarray | None = None
    place: tuple[int, int, int] | None = None
    model: ImagePipeline | None = None
    seconds: float = 0.0


class Session:
    """The images of a folder, their strokes and classes in files, and a thread that fits the newest strokes.

    In `out` are strokes/ (masks with 255 where nothing is drawn), masks/ (labels of accepted images), classes.csv (a
    --palette of both) and model: what `potentia train` and `potentia predict` read.
    """

    def __init__(self, source: Path, out: Path, palette: Path | None = None, names: Sequence[str] = ()) -> None:
        self.files = image_files(source)
        self.out = new_folder(out)
        self.classes = self._first_classes(palette, names)
        self._open: Drawing | None = None
        self._number = -1
        self._found: Labelling | None = None
        self._warm: Segmentation | None = None
        #: An image without strokes yet, and a segmentation that has its features.
        self._ready: tuple[int, Segmentation] | None = None
        #: Images whose strokes `_warm` has learned from.
        self._learned: set[int] = set()
        self._changed = threading.Condition(threading.RLock())
        self._ended = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="fits")
        self._thread.start()

    # -- classes -------------------------------------------------------------------------------------------------

    def _first_classes(self, palette: Path | None, names: Sequence[str]) -> list[tuple[int, str, int]]:
        """(value, name, colour) of every class: those of the folder, of a palette file, or of these names."""
        path = self.out / "classes.csv"
        known = path if path.is_file() else palette
        if known is not None:
            if known is path and (palette is not None or names):
                raise PotentiaError(f"{path} has the classes already: leave out --palette and --classes, or edit it.")
            listed = [row for row in read_palette(known, False) if row[1].casefold() != "void"]
            classes = [(code, name, _colour(k) if c is None else c) for k, (code, name, c) in enumerate(listed)]
        else:
            names = names or ("background", "object")
            for k, name in enumerate(names):
                _check_name(name, names[:k])
            classes = [(k, name, _colour(k)) for k, name in enumerate(names)]
        if not 2 <= len(classes) <= MAX_CLASSES or any(code >= VOID for code, _, _ in classes):
            what = known or "--classes"
            raise PotentiaError(f"{what}: there must be 2 to {MAX_CLASSES} classes, with values from 0 to {VOID - 1}.")
        self._write_classes(classes)
        return classes

    def _write_classes(self, classes: Sequence[tuple[int, str, int]]) -> None:
        codes, names, colours = (list(column) for column in zip(*classes, strict=True))
        text = Classes(codes, names, colours, [VOID], False, None).palette_text()
        write_text(self.out / "classes.csv", text)

    def add_class(self, name: object) -> None:
        """Add a class; its strokes have the next free value."""
        text = name.strip() if isinstance(name, str) else ""
        with self._changed:
            _check_name(text, [known for _, known, _ in self.classes])
            if len(self.classes) >= MAX_CLASSES:
                raise PotentiaError(f"There can be {MAX_CLASSES} classes.")
            code = max(code for code, _, _ in self.classes) + 1
            if code >= VOID:
                raise PotentiaError(f"The values of classes end at {VOID - 1}.")
            classes = [*self.classes, (code, text, _colour(len(self.classes)))]
            self._write_classes(classes)
            self.classes = classes

    def _palette(self) -> list[int]:
        """Colours by value, as PNG files have them."""
        colours = np.zeros((256, 3), dtype=np.uint8)
        for code, _, colour in self.classes:
            colours[code] = code_colours(np.array(colour))
        return [int(value) for value in colours.ravel()]

    # -- images and strokes --------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What the page lists: classes, images, and which of them have strokes and masks."""
        with self._changed:
            images = [
                {"name": file.name, "strokes": self._path("strokes", k).is_file(), "mask": self.mask_path(k).is_file()}
                for k, file in enumerate(self.files)
            ]
            classes = [{"value": code, "name": name, "colour": f"#{c:06x}"} for code, name, c in self.classes]
            return {"images": images, "classes": classes, "current": self._number, "out": str(self.out)}

    def _path(self, folder: str, number: int) -> Path:
        return self.out / folder / f"{self.files[number].name}.png"

    def mask_path(self, number: int) -> Path:
        """Where the labels of an accepted image are."""
        return self._path("masks", number)

    def open(self, number: int) -> dict[str, Any]:
        """Make an image the one that is drawn on."""
        with self._changed:
            if number != self._number or self._open is None:
                drawing = Drawing(*self._read(number))
                self._open, self._number, self._found = drawing, number, None
                self._changed.notify_all()
            height, width = self._open.marks.shape
            return {"width": width, "height": height, "version": self._open.version}

    def _read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """An image and its strokes."""
        file = self.files[number]
        pixels = read_image(file)
        if pixels.ndim not in (2, 3) or pixels.shape[0] * pixels.shape[1] > _MAX_PIXELS:
            wrong = f"the image has shape {pixels.shape}; images of up to {_MAX_PIXELS:,} pixels can be drawn on"
            raise PotentiaError(f"{file.path}: {wrong}.")
        return pixels, self._marks(number, pixels.shape[:2])

    def _marks(self, number: int, size: tuple[int, ...]) -> np.ndarray:
        path = self._path("strokes", number)
        if not path.is_file():
            return np.full(size, VOID, dtype=np.uint8)
        codes = read_mask(path).codes
        known = [code for code, _, _ in self.classes]
        if codes.shape != size or not np.isin(codes, [*known, VOID]).all():
            raise PotentiaError(f"{path} does not fit its image and classes.csv: move it elsewhere.")
        return codes.astype(np.uint8)

    def shown(self, number: int) -> bytes:
        """An image in 8 bits, as a PNG file."""
        with self._changed:
            drawing = self._drawing(number)
        intensity = learn_intensity([drawing.pixels], 2, None if drawing.pixels.dtype == np.uint8 else "image")
        return _png(as_shown(intensity.apply(drawing.pixels)))

    def strokes(self, number: int) -> bytes:
        """The strokes of an image as a PNG file, transparent elsewhere."""
        with self._changed:
            return _png(self._painted(self._drawing(number).marks, 255))

    def _painted(self, codes: np.ndarray, alpha: int) -> np.ndarray:
        """Colours and opacity (h, w, 4) of classes; nothing where there is none."""
        table = np.zeros((256, 4), dtype=np.uint8)
        for code, _, colour in self.classes:
            table[code] = (*code_colours(np.array(colour)), alpha)
        painted: np.ndarray = table[codes]
        return painted

    def _drawing(self, number: int) -> Drawing:
        if self._open is None or number != self._number:
            raise PotentiaError("Another image was opened meanwhile, perhaps in another tab: reload the page.")
        return self._open

    def draw(self, number: int, stroke: str, value: int, radius: float, points: np.ndarray) -> int:
        """Draw part of a stroke, or erase where `value` is `VOID`, and save; the version of the strokes."""
        with self._changed:
            drawing = self._drawing(number)
            if value != VOID and value not in [code for code, _, _ in self.classes]:
                raise PotentiaError(f"There is no class {value}.")
            place, covered = _covered(points, radius, drawing.marks.shape)
            before = drawing.marks[place].copy()
            marks = drawing.marks.copy()
            marks[place][covered] = value
            patches = [*drawing.patches[-_MAX_UNDO:], Patch(stroke, place, before)]
            return self._save(drawing, marks, patches)

    def undo(self, number: int) -> int:
        """Take the last stroke back, and save; the version of the strokes."""
        with self._changed:
            drawing = self._drawing(number)
            if not drawing.patches:
                raise PotentiaError("There is nothing to undo since the image was opened.")
            marks, patches = drawing.marks.copy(), list(drawing.patches)
            last = patches[-1].stroke
            while patches and patches[-1].stroke == last:
                patch = patches.pop()
                marks[patch.place] = patch.before
            return self._save(drawing, marks, patches)

    def _save(self, drawing: Drawing, marks: np.ndarray, patches: list[Patch]) -> int:
        """Save the strokes of the open image, and tell the thread; their version."""
        self._write_png(self._path("strokes", self._number), marks)
        drawing.marks, drawing.patches = marks, patches
        drawing.version += 1
        self._changed.notify_all()
        return drawing.version

    def _write_png(self, path: Path, codes: np.ndarray) -> None:
        """Values as a PNG file with the colours of the classes, whole or not at all."""
        image = Image.fromarray(codes)
        image.putpalette(self._palette())
        new_folder(path.parent)
        with replacing(path) as raw:
            image.save(raw, format="PNG")

    # -- fits ----------------------------------------------------------------------------------------------------

    def result(self, number: int, after: int, seconds: float) -> dict[str, Any]:
        """The labels of strokes newer than version `after`, waiting for them; an empty answer if there are none yet."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._ended or number != self._number or (self._found and self._found.version > after), seconds
            )
            if number != self._number:
                return {"elsewhere": True}
            found = self._found
            if found is None or found.version <= after:
                return {}
            newest = found.version == self._drawing(number).version
        answer = {"version": found.version, "message": found.message, "seconds": found.seconds, "newest": newest}
        if found.labels is None or found.uncertainty is None:
            return answer
        overlay = self._painted(found.labels, 60)
        overlay[contours(found.labels), 3] = 255
        unsure = np.zeros_like(overlay)
        unsure[..., 0] = unsure[..., 2] = 255
        unsure[..., 3] = np.rint(14 * found.uncertainty) * 15  # few levels compress
        return answer | {"overlay": _uri(overlay), "uncertainty": _uri(unsure), "place": found.place}

    def _work(self) -> None:
        """Fit the newest strokes of the open image, again and again."""
        done: tuple[Drawing, int] | None = None
        while True:
            with self._changed:
                while not self._ended and (self._open is None or done == (self._open, self._open.version)):
                    self._changed.wait()
                if self._ended or self._open is None:
                    return
                drawing, number, version, marks = self._open, self._number, self._open.version, self._open.marks
            found = self._labelling(number, version, drawing.pixels, marks)
            with self._changed:
                done = drawing, version
                # strokes that came meanwhile are fitted next; of another image this is of no use
                if drawing is self._open:
                    self._found = found
                    self._changed.notify_all()
                prepare = drawing is self._open and drawing.version == version and not (marks != VOID).any()
            if prepare:
                self._prepare(number, drawing.pixels)

    def _labelling(self, number: int, version: int, pixels: np.ndarray, marks: np.ndarray) -> Labelling:
        begun = time.perf_counter()
        try:
            p = self._segmented(number, pixels, marks)
        except PotentiaError as error:
            return Labelling(version, str(error))
        except Exception as error:  # the thread must live on, and the page say what happened
            return Labelling(version, f"The fit failed ({type(error).__name__}: {error}).")
        if p is None or self._warm is None:
            return Labelling(version, "Draw strokes of at least two classes.")
        labels = self._warm.classes[p.argmax(axis=-1)].astype(np.uint8)
        p = np.maximum(p, 1e-12)
        unsure = np.clip(-(p * np.log(p)).sum(axis=-1) / np.log(p.shape[-1]), 0.0, 1.0)
        seconds = time.perf_counter() - begun
        return Labelling(version, "", labels, unsure, _place_to_draw(unsure, marks), self._warm.model, seconds)

    def _segmented(self, number: int, pixels: np.ndarray, marks: np.ndarray) -> np.ndarray | None:
        """Probabilities (h, w, n) of the classes of `_warm`; None before there are two classes."""
        drawn = bool((marks != VOID).any())
        if self._warm is None or (number in self._learned and not drawn):
            self._learn_others(number)
        if drawn:
            if self._warm is None and len(np.unique(marks[marks != VOID])) < 2:
                return None
            ready = self._ready[1] if self._ready is not None and self._ready[0] == number else self._warm
            self._warm, self._ready = segment(pixels, _signed(marks), warm_start=ready), None
            self._learned.add(number)
            return self._warm.probabilities
        return None if self._warm is None else self._warm.model.predict_marginals(pixels)

    def _prepare(self, number: int, pixels: np.ndarray) -> None:
        """Compute the features of an image before its first stroke, by strokes of one pixel that are then forgotten."""
        marks = np.full(pixels.shape[:2], -1)
        marks.flat[0], marks.flat[-1] = (code for code, _, _ in self.classes[:2])
        with suppress(PotentiaError):
            self._ready = number, segment(pixels, marks, warm_start=self._warm)

    def _learn_others(self, number: int) -> None:
        """Learn from the strokes of all images but one, of a session before."""
        self._warm, self._ready, self._learned = None, None, set()
        for k in range(len(self.files)):
            if k != number and self._path("strokes", k).is_file():
                pixels, marks = self._read(k)
                with suppress(PotentiaError):  # strokes of a single class
                    self._warm = segment(pixels, _signed(marks), warm_start=self._warm)
                    self._learned.add(k)

    def accept(self, number: int, seconds: float) -> dict[str, Any]:
        """Save the labels of the newest strokes as a mask, and the model; the number of the next image without one."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._drawing(number).version == (self._found and self._found.version) or self._ended, seconds
            )
            drawing, found = self._drawing(number), self._found
            if found is None or found.version != drawing.version:
                raise PotentiaError("The labels are not ready yet: try again in a moment.")
            if found.labels is None or found.model is None:
                raise PotentiaError(found.message)
            self._write_png(self.mask_path(number), found.labels)
            self._save_model(found.model)
            order = [*range(number + 1, len(self.files)), *range(number)]
            left = [k for k in order if not self.mask_path(k).is_file()]
            return {"next": left[0] if left else None}

    def _save_model(self, model: ImagePipeline) -> None:
        by_code = {code: (name, colour) for code, name, colour in self.classes}
        codes = model.classes.codes
        names, colours = zip(*(by_code[code] for code in codes), strict=True)
        model.classes = Classes(codes, list(names), list(colours), [VOID], False, self._palette())
        model.trained_on = [digest for k in sorted(self._learned) for digest in file_digests(self.files[k].path)]
        model.save(self.out / "model")

    def close(self) -> None:
        """Save the model of the last fit, and end the thread."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            if self._found is not None and self._found.model is not None:
                self._save_model(self._found.model)
        self._thread.join(timeout=10.0)


def _check_name(name: str, taken: Sequence[str]) -> None:
    """Refuse what cannot be the name of a class beside others."""
    others = [known.casefold() for known in (*taken, "void")]
    if not 0 < len(name) <= 40 or not name.isprintable() or name.casefold() in others:
        raise PotentiaError(f"A class needs a name of up to 40 characters that no other class has, not {shown(name)}.")


def _signed(marks: np.ndarray) -> Ints:
    return np.where(marks == VOID, -1, marks.astype(np.int64))


def _covered(points: np.ndarray, radius: float, size: tuple[int, ...]) -> tuple[tuple[slice, slice], np.ndarray]:
    """The part of an image around a stroke through points (x, y), and which of its pixels the stroke covers."""
    margin = int(np.ceil(radius))
    cells = np.floor(points).astype(int)
    low, high = np.clip([cells.min(axis=0) - margin, cells.max(axis=0) + margin + 1], 0, size[::-1])
    width, height = (int(side) for side in high - low)
    place = (slice(int(low[1]), int(high[1])), slice(int(low[0]), int(high[0])))
    # the path may run outside the image as far as the brush reaches
    canvas = Image.new("1", (width + 2 * margin, height + 2 * margin), 1)
    path = [(int(x), int(y)) for x, y in cells - low + margin]
    brush = ImageDraw.Draw(canvas)
    brush.line(path, fill=0)
    brush.point(path, fill=0)
    away = np.asarray(canvas, dtype=bool)
    if away.all():
        return place, np.zeros((height, width), dtype=bool)
    near = ndimage.distance_transform_edt(away) < radius
    return place, near[margin : margin + height, margin : margin + width]


def _place_to_draw(unsure: np.ndarray, marks: np.ndarray) -> tuple[int, int, int] | None:
    """Centre and radius (x, y, r) of the region without strokes that is most uncertain."""
    step = max(1, -(-max(unsure.shape) // 256))
    small, drawn = unsure[::step, ::step], marks[::step, ::step] != VOID
    radius = max(2.0, 0.04 * max(small.shape))
    wide = ndimage.gaussian_filter(small.astype(np.float32), 0.6 * radius)
    if drawn.any():
        wide = np.where(ndimage.distance_transform_edt(~drawn) < 0.7 * radius, -1.0, wide)
    row, column = np.unravel_index(int(wide.argmax()), wide.shape)
    if wide[row, column] <= 0.02:
        return None
    return int(column * step), int(row * step), round(radius * step)


def _png(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(values).save(file, format="PNG", compress_level=3)
    return file.getvalue()


def _uri(values: np.ndarray) -> str:
    return "data:image/png;base64," + base64.b64encode(_png(values)).decode()


def _colour(number: int) -> int:
    return COLOURS[number % len(COLOURS)]
