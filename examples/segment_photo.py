"""Segment a photograph from a few scribbles: which pixels belong to the cup, its saucer and the spoon?

    python examples/segment_photo.py --out scribbles.png        (needs potentia[images])

The training data are the scribbled pixels of this one photograph; all other pixels are void. `potentia train --images
coffee.png --masks scribbles.png --void 255 --out model` does the same with files. The figure shows the photograph with
the scribbles, the labels of single pixels by the classifier alone, the labels by the CRF, and the truth, which was
drawn by hand and is used for nothing but the errors.

The photograph, by Rachel Michetti and courtesy of Pikolo Espresso Bar, is in the public domain (CC0) and comes with
scikit-image.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image, ImageDraw
from skimage import data

from potentia.workflows import Run, images
from potentia.workflows.image_inputs import Given
from potentia.workflows.windows import whole

#: Scribbles (x, y) on the table (0) and on the crockery (1).
STROKES = {
    0: [
        [(15, 160), (90, 80), (170, 20)], [(20, 330), (90, 370)], [(520, 60), (560, 200), (520, 330)],
        [(30, 20), (90, 15)], [(440, 60), (490, 130)],
    ],
    1: [
        [(110, 200), (150, 300), (230, 350)], [(420, 180), (430, 260), (330, 360)],
        [(190, 90), (210, 170), (300, 200), (380, 150)], [(230, 110), (330, 140)], [(340, 280), (390, 290)],
        [(225, 260), (240, 245)],
    ],
}  # fmt: skip
VOID = 255


def scribbles(size: tuple[int, int]) -> Image.Image:
    """Labels of the scribbled pixels, VOID elsewhere."""
    mask = Image.new("L", size, VOID)
    for label, lines in STROKES.items():
        for line in lines:
            ImageDraw.Draw(mask).line(line, fill=label, width=5, joint="curve")
    return mask


def truth(size: tuple[int, int]) -> np.ndarray:
    """Saucer, cup and spoon, drawn by hand."""
    mask = Image.new("L", size, 0)
    draw = ImageDraw.Draw(mask)
    draw.ellipse((77, 60, 480, 390), fill=1)
    draw.polygon([(77, 210), (80, 180), (93, 148), (113, 119), (142, 92), (182, 68), (200, 200)], fill=1)
    draw.ellipse((172, 18, 409, 209), fill=1)
    draw.polygon([(396, 75), (404, 67), (420, 68), (425, 78), (410, 120), (395, 150)], fill=1)
    return np.asarray(mask)


def segment(photo: Image.Image) -> tuple[np.ndarray, np.ndarray]:
    """Labels of all pixels by the classifier of single pixels, and by the CRF, both trained on the scribbles."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        photo.save(place / "photo.png")
        scribbles(photo.size).save(place / "scribbles.png")
        pipeline, _ = images.train(place / "photo.png", place / "scribbles.png", void=str(VOID), run=Run())
    values = pipeline.prepare(np.asarray(photo))
    alone = pipeline.node_scores(values, whole(values.shape[:-1]), Given(None, None))
    return alone.argmax(axis=-1), pipeline.predict(np.asarray(photo))


def tinted(photo: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The photograph with everything but label 1 faded to white."""
    return np.where((labels == 1)[..., None], photo / 255, 0.85 + 0.15 * photo / 255)


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    """Train, draw, and return the errors of both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("scribbles.png"), help="the figure to write")
    given = parser.parse_args(arguments)
    photo = Image.fromarray(data.coffee())
    pixels, right, marks = np.asarray(photo), truth(photo.size), np.asarray(scribbles(photo.size))
    alone, joint = segment(photo)
    errors = tuple(float((found != right).mean()) for found in (alone, joint))

    seen = pixels / 255
    seen[marks == 0], seen[marks == 1] = (0.1, 0.45, 1.0), (1.0, 0.85, 0.1)
    panels = {
        f"photograph, {np.mean(marks != VOID):.1%} scribbled": seen,
        f"independent pixels: {errors[0]:.1%} wrong": tinted(pixels, alone),
        f"CRF: {errors[1]:.1%} wrong": tinted(pixels, joint),
        "truth, drawn by hand": tinted(pixels, right),
    }
    figure, axes = plt.subplots(1, 4, figsize=(12, 2.3), layout="constrained")
    for axis, (title, shown) in zip(axes, panels.items(), strict=True):
        axis.imshow(shown)
        axis.set_title(title, fontsize=10)
        axis.axis("off")
    figure.savefig(given.out, dpi=110, facecolor="white")
    print(f"wrong pixels: {errors[0]:.2%} by independent pixels, {errors[1]:.2%} by the CRF; {given.out}")
    return errors[0], errors[1]


if __name__ == "__main__":
    main()
