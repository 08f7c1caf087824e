"""Segment a photograph from a few scribbles: which pixels belong to the cup, its saucer and the spoon?

    python examples/segment_photo.py --out scribbles.png        (half a minute; needs potentia[images])

The training data are the scribbled pixels of this one photograph; the labels of all other pixels are hidden (-1). Three
models see the same features of pixels, a multi-scale filter bank: a linear function and boosted trees, which label each
pixel by itself, and a CRF with a linear function of pixels and one of pairs. The CRF is trained through inference on
the whole grid, so that pairs learn how far a scribble reaches, and where boundaries stop it. Options
are defaults; strokes were added where a first result was wrong, as a user would. The truth was drawn by hand and is
used for nothing but the errors.

The photograph, by Rachel Michetti and courtesy of Pikolo Espresso Bar, is in the public domain (CC0) and comes with
scikit-image.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image, ImageDraw
from skimage import data

import potentia as pt
from potentia.features import image_example

#: Scribbles (x, y) at full size: on the table (0) and on the crockery (1).
STROKES = {
    0: [
        [(5, 70), (60, 10)], [(12, 170), (95, 80), (185, 20)], [(15, 230), (50, 300), (110, 360)],
        [(30, 330), (90, 390)], [(150, 392), (215, 397)], [(60, 180), (85, 140), (135, 90)],
        [(420, 30), (480, 100), (505, 180)], [(520, 60), (575, 200), (520, 330)],
        [(505, 240), (480, 320), (430, 375)], [(250, 8), (360, 15)],
    ],
    1: [
        [(100, 190), (105, 260), (150, 320), (230, 360)], [(440, 170), (455, 230), (420, 300), (330, 368)],
        [(185, 80), (205, 165), (290, 200), (370, 170), (395, 100)], [(200, 60), (290, 28), (370, 70)],
        [(225, 110), (290, 150), (345, 140)], [(270, 100), (300, 110)], [(335, 290), (385, 260), (380, 310)],
        [(205, 285), (230, 255), (225, 240)], [(395, 175), (412, 78)], [(180, 170), (190, 230)],
        [(140, 200), (170, 250)],
    ],
}  # fmt: skip
#: The photograph is used at a quarter of its size, 150 x 100.
FACTOR = 4


def scribbles(size: tuple[int, int]) -> np.ndarray:
    """Labels of the scribbled pixels, -1 elsewhere."""
    mask = Image.new("I", size, -1)
    for label, lines in STROKES.items():
        for line in lines:
            points = [(x // FACTOR, y // FACTOR) for x, y in line]
            ImageDraw.Draw(mask).line(points, fill=label, width=2, joint="curve")
    return np.asarray(mask)


def truth(size: tuple[int, int]) -> np.ndarray:
    """Saucer, cup and spoon, drawn by hand."""
    mask = Image.new("L", (size[0] * FACTOR, size[1] * FACTOR), 0)
    draw = ImageDraw.Draw(mask)
    draw.ellipse((77, 60, 480, 390), fill=1)
    draw.polygon([(77, 210), (80, 180), (93, 148), (113, 119), (142, 92), (182, 68), (200, 200)], fill=1)
    draw.ellipse((172, 18, 409, 209), fill=1)
    draw.polygon([(396, 75), (404, 67), (420, 68), (425, 78), (410, 120), (395, 150)], fill=1)
    return np.asarray(mask.resize(size, Image.Resampling.NEAREST))


def models() -> dict[str, pt.CRF]:
    """Two that label single pixels, and a CRF."""
    learner = pt.MarginalRisk(
        "univariate_logistic", pt.TRW(iterations=20, tol=0), iterations=1000, tol=1e-3, track_error=False
    )
    trees = pt.IteratedLogistic(epsilon=1.0, iterations=1, delta=None, track_error=False)
    return {
        "linear pixels": pt.CRF({"node": pt.Linear(), "edge": pt.Zero()}, learner),
        "boosted pixels": pt.CRF({"node": pt.Boosting(rounds=100), "edge": pt.Zero()}, trees),
        "CRF": pt.CRF({"node": pt.Linear(), "edge": pt.Linear()}, learner),
    }


def tinted(photo: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The photograph with everything but label 1 faded to white."""
    return np.where((labels == 1)[..., None], photo / 255, 0.85 + 0.15 * photo / 255)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Train, draw, and return the share of wrong pixels of each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("scribbles.png"), help="the figure to write")
    given = parser.parse_args(arguments)
    photo = Image.fromarray(data.coffee())
    photo = photo.resize((photo.width // FACTOR, photo.height // FACTOR), Image.Resampling.LANCZOS)
    pixels, right, marks = np.asarray(photo), truth(photo.size), scribbles(photo.size)
    seen = pixels / 255
    seen[marks == 0], seen[marks == 1] = (0.1, 0.45, 1.0), (1.0, 0.85, 0.1)
    panels = {f"photograph, {np.mean(marks >= 0):.1%} scribbled": seen}
    example = image_example(pixels, marks, n_states=2)
    errors = {}
    for name, model in models().items():
        found = model.fit([example]).predict([example])[0].reshape(right.shape)
        errors[name] = float((found != right).mean())
        panels[f"{name}: {errors[name]:.1%} wrong"] = tinted(pixels, found)
        print(f"{name}: {errors[name]:.2%} of the pixels wrong", flush=True)
    panels["its probabilities"] = model.predict_marginals([example])[0][:, 1].reshape(right.shape)
    panels["truth, drawn by hand"] = tinted(pixels, right)

    figure, axes = plt.subplots(2, 3, figsize=(9, 4.5), layout="constrained")
    for axis, (title, shown) in zip(axes.flat, panels.items(), strict=True):
        axis.imshow(shown, cmap="gray", vmin=0, vmax=1)
        axis.set_title(title, fontsize=11)
        axis.axis("off")
    figure.savefig(given.out, dpi=100, facecolor="white")
    plt.close(figure)
    return errors


if __name__ == "__main__":
    main()
