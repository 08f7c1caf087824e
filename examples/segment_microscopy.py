"""Segment microscopy images: train on a folder of images and masks, measure on others, write label maps.

    python examples/segment_microscopy.py --images images --masks masks --out results
    python examples/segment_microscopy.py --out results            (makes up cells to try it with)

Images are PNG, JPEG or TIFF, grey or with any number of channels, 8 or 16 bits; masks are PNG or TIFF of the same names
(or NAME_mask). A fifth of the images is held out to measure on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage

import potentia as pt
from potentia.app import Run, images


def make_cells(folder: Path, n: int = 10, side: int = 96, seed: int = 0) -> None:
    """Made-up images of bright cells, in 16 bits, with uneven light and noise; and their masks."""
    rng = np.random.default_rng(seed)
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    y, x = np.mgrid[:side, :side]
    for number in range(n):
        mask = np.zeros((side, side), dtype=bool)
        for _ in range(side // 8):
            centre, axes = rng.uniform(0, side, 2), rng.uniform(4, 9, 2)
            mask |= ((y - centre[0]) / axes[0]) ** 2 + ((x - centre[1]) / axes[1]) ** 2 < 1
        light = ndimage.gaussian_filter(rng.normal(size=mask.shape), side / 4) * side
        signal = ndimage.gaussian_filter(mask.astype(float), 1.0) + 0.3 * light
        values = 1000 + 400 * signal + 160 * rng.normal(size=mask.shape)
        Image.fromarray(np.clip(values, 0, 65535).astype(np.uint16)).save(folder / "images" / f"{number:02d}.png")
        Image.fromarray(mask.astype(np.uint8)).save(folder / "masks" / f"{number:02d}.png")


def hold_out(source: Path, masks: Path, folder: Path) -> dict[str, tuple[Path, Path]]:
    """Links to the images in two parts: every fifth is held out."""
    parts = {}
    for part in ("train", "test"):
        parts[part] = folder / part / "images", folder / part / "masks"
        for place in parts[part]:
            place.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(sorted(source.iterdir())):
        own = parts["test" if number % 5 == 4 else "train"]
        (mask,) = masks.glob(f"{path.stem}*")
        for target, place in zip((path, mask), own, strict=True):
            link = place / target.name
            link.unlink(missing_ok=True)
            link.symlink_to(target.resolve())
    return parts


def main(arguments: list[str] | None = None) -> float:
    """Train, evaluate, and predict; returns the mean IoU of the held-out images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="folder of images")
    parser.add_argument("--masks", type=Path, help="folder of their masks")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder to write to")
    parser.add_argument("--pixels", type=int, help="train pairs on at most this many pixels")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    if given.images is None:
        make_cells(given.out / "cells")
        given.images, given.masks = given.out / "cells" / "images", given.out / "cells" / "masks"
    parts = hold_out(given.images, given.masks, given.out / "parts")

    # what `potentia train --images ... --masks ... --out model` does
    pipeline, facts = images.train(*parts["train"], pixels=given.pixels, run=Run(progress=True, say=print))
    pipeline.save(given.out / "model")
    print(f"accuracy on training images, cross-fitted: {facts['cross_fitted_accuracy']:.4f}")

    # a saved model labels new images: arrays, or whole folders
    pipeline = pt.load(given.out / "model")
    scores = pipeline.evaluate_files(parts["test"][0], masks=parts["test"][1])
    for name in ("accuracy", "mean_iou", "mean_boundary_f1", "calibration_error"):
        print(f"held-out images, {name.replace('_', ' ')}: {scores[name]:.4f}")
    pipeline.predict_files(parts["test"][0], given.out / "predicted", marginals="png")
    print(f"label maps, overlays and marginals: {given.out / 'predicted'}")
    return float(scores["mean_iou"])


if __name__ == "__main__":
    main()
