"""Features of pairs of neighbouring pixels: contrast at several scales, and those that the papers list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..base.options import check_positive
from ..base.types import ArrayLike, Floats, Ints, PotentiaError, plain_array, real_numbers, shown
from .colour import Stack, as_channels, as_rgb, grey
from .pixels import feature_blocks

#: Blocks of the sets: 9 features of boundaries; the papers' 3 [ILR-nips sec. 8, ILR-chapter sec. 1.10], 42 for horses
#: and 22 for backgrounds [MBL-tpami sec. 8.3, 8.4].
EDGE_SETS = {
    "boundary": ("constant", "similarity", "contrast", "gradient"),
    "ilr": ("constant", "difference", "sobel"),
    "mbl": ("constant", "difference_steps", "sobel_steps", "directions"),
    "mbl-backgrounds": ("constant", "difference_steps", "directions"),
}
EDGE_BLOCKS = (
    "constant",
    "similarity",
    "contrast",
    "gradient",
    "difference",
    "sobel",
    "difference_steps",
    "sobel_steps",
    "directions",
)

#: Ten thresholds each. The paper prints none; these are those of the toolbox its author published.
DIFFERENCE_STEPS = np.arange(1, 11) * 0.05
SOBEL_STEPS = np.arange(1, 11) * 0.02

#: Scales, in pixels, at which a boundary is looked for: differences of Gaussians, and gradients.
CONTRAST_SCALES = (0.0, 1.0, 2.0)
GRADIENT_SCALES = (1.0, 2.0)
_ANY_CHANNELS = EDGE_SETS["boundary"]

# row and column steps of a grid's pairs in the order of their copies: horizontal, vertical, two diagonals
_DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))


def edge_features(
    image: ArrayLike,
    edges: ArrayLike,
    edge: str | Sequence[str] = "boundary",
    *,
    axes: int = 2,
    typical: Sequence[float] | None = None,
    dtype: Any = np.float32,
) -> Stack:
    """Features (m, n_features) of pairs of pixels.

    Args:
        image: of any number of channels, see `as_channels`; with the papers' blocks see `as_rgb`.
        edges: (m, 2) pixels in raster order, such as `Graph.grid((h, w), ...).scopes["edge"]`.
        edge: a set of `EDGE_SETS`, or blocks to put side by side: "constant" (1); with d the l2 distance of the
            pixels' channels in Gaussians of standard deviation 0, 1 and 2, in units of its typical value,
            "similarity" (3: exp(-d^2 / 2)) and "contrast" (3: log(1 + d)); "gradient" (2: log(1 + g) of the larger of
            the two pixels' gradient magnitudes at scales 1 and 2). The papers' blocks: "difference" (1: the l2 distance
            of the two RGB vectors), "sobel" (1: the larger of the two pixels' Sobel responses, see `sobel`),
            "difference_steps" and "sobel_steps" (10 each: 1 where the value exceeds a threshold), and last
            "directions": one copy of all blocks before it for each direction, zero for pairs of another one
            (horizontal first, then vertical; also the diagonals where there are such pairs).
        axes: 2 for images, 3 for volumes, whose features are those of the set "boundary".
        typical: the units of distances and gradients as `typical_contrast` finds them, by default in these pairs.
        dtype: float32 or float64.
    """
    names = feature_blocks(edge, EDGE_SETS, EDGE_BLOCKS, "edge")
    if axes != 2 or all(name in _ANY_CHANNELS for name in names):
        return _boundary(as_channels(image, axes, dtype), edges, names, typical)
    if "directions" in names and (
        names[-1] != "directions" or len(names) == 1 or names.count("directions") > 1
    ):
        raise PotentiaError('the block "directions" copies the blocks before it, so it comes last.')
    rgb = as_rgb(image, dtype)
    pairs = _check_edges(edges, rgb.shape[0] * rgb.shape[1])
    base = [_block(name, rgb, pairs) for name in names if name != "directions"]
    features = np.concatenate(base, axis=1, dtype=dtype)
    return _by_direction(features, pairs, rgb.shape[1]) if names[-1] == "directions" else features


def typical_contrast(image: ArrayLike, edges: ArrayLike, *, axes: int = 2) -> list[float]:
    """Mean distance of pairs at each of the three scales, then mean gradient at each of the two; 1 for a flat image."""
    values = as_channels(image, axes)
    pairs = _check_edges(edges, values[..., 0].size)
    means = [float(v.mean()) if v.size else 0.0 for v in _responses(values, pairs)]
    return [mean if mean > 0 else 1.0 for mean in means]


def _boundary(
    values: Stack, edges: ArrayLike, names: Sequence[str], typical: Sequence[float] | None
) -> Stack:
    """Blocks that need no colours, of pairs of an image or volume (*size, channels)."""
    papers = [name for name in names if name not in _ANY_CHANNELS]
    if papers:
        raise PotentiaError(f"volumes have no pair features {papers[0]!r}: take {', '.join(_ANY_CHANNELS)}.")
    n_distances = len(CONTRAST_SCALES)
    n_units = n_distances + len(GRADIENT_SCALES)
    units = None if typical is None else real_numbers(typical, "typical")
    if units is not None and (units.shape != (n_units,) or not np.all((units > 0) & (units < np.inf))):
        raise PotentiaError(f"typical must be {n_units} finite numbers above zero, not {shown(typical)}.")
    pairs = _check_edges(edges, values[..., 0].size)
    responses = list(_responses(values, pairs))
    for k, response in enumerate(responses):
        mean = float(response.mean()) if response.size else 0.0
        response /= units[k] if units is not None else (mean or 1.0)
    made = {
        "constant": [np.ones(len(pairs), dtype=values.dtype)],
        "similarity": [np.exp(-0.5 * d * d) for d in responses[:n_distances]],
        "contrast": [np.log1p(d) for d in responses[:n_distances]],
        "gradient": [np.log1p(g) for g in responses[n_distances:]],
    }
    return np.stack([column for name in names for column in made[name]], axis=1)


def _responses(values: Stack, pairs: Ints) -> Iterator[Stack]:
    """Distance of every pair at each scale, then its gradient at each scale."""
    first, second = pairs.T
    for scale in CONTRAST_SCALES:
        flat = _smooth(values, scale).reshape(-1, values.shape[-1])
        total = np.zeros(len(pairs), dtype=values.dtype)
        for channel in flat.T:
            total += (channel[first] - channel[second]) ** 2
        yield np.sqrt(total)
    for scale in GRADIENT_SCALES:
        smooth = _smooth(values, scale)
        slopes = (np.gradient(smooth, axis=a) for a in range(smooth.ndim - 1) if smooth.shape[a] > 1)
        square = sum(((slope**2).sum(axis=-1) for slope in slopes), np.zeros(smooth.shape[:-1], smooth.dtype))
        magnitude = np.sqrt(square).ravel()
        yield np.maximum(magnitude[first], magnitude[second])


def _smooth(values: Stack, scale: float) -> Stack:
    from scipy import ndimage

    return values if scale == 0.0 else ndimage.gaussian_filter(values, (*[scale] * (values.ndim - 1), 0.0))


def sobel(image: ArrayLike, dtype: Any = np.float64) -> Stack:
    """Magnitude (h, w) of the Sobel gradient of an image's luma, mirrored at the border.

    Kernels are divided by 8, so a step of height 1 has response .5 on both of its sides.
    """
    from scipy import ndimage

    luma = grey(as_rgb(image, dtype))
    return np.hypot(*(ndimage.sobel(luma, axis=axis, mode="reflect") / 8 for axis in (0, 1)))


def _block(name: str, rgb: Stack, pairs: Ints) -> Stack:
    """One block (m, k)."""
    if name == "constant":
        return np.ones((len(pairs), 1), dtype=rgb.dtype)
    flat = rgb.reshape(-1, 3)
    if name.startswith("difference"):
        value = np.sqrt(((flat[pairs[:, 0]] - flat[pairs[:, 1]]) ** 2).sum(axis=1))
        steps = DIFFERENCE_STEPS
    else:
        value = sobel(rgb, rgb.dtype).ravel()[pairs].max(axis=1, initial=0.0)
        steps = SOBEL_STEPS
    return (value[:, None] > steps).astype(rgb.dtype) if name.endswith("steps") else value[:, None]


def _by_direction(features: Stack, pairs: Ints, width: int) -> Stack:
    """Copies side by side, each zero outside its direction."""
    rows, columns = np.abs(pairs[:, 1] // width - pairs[:, 0] // width), pairs % width
    across = np.where(pairs[:, 1] > pairs[:, 0], columns[:, 1] - columns[:, 0], columns[:, 0] - columns[:, 1])
    is_direction = [(rows == a) & (across == b) for a, b in _DIRECTIONS]
    if not np.logical_or.reduce(is_direction).all():
        raise PotentiaError('the block "directions" needs pairs of pixels that touch.')
    wanted = is_direction if np.any(is_direction[2:]) else is_direction[:2]
    return np.concatenate([features * chosen[:, None] for chosen in wanted], axis=1)


def _check_edges(edges: ArrayLike, n_pixels: int) -> Ints:
    pairs = plain_array(edges, "edges")
    if pairs.ndim != 2 or pairs.shape[1] not in (0, 2) or pairs.dtype.kind not in "iu":
        raise PotentiaError(
            f"edges must be whole numbers of shape (m, 2), not {pairs.dtype} of shape {pairs.shape}."
        )
    pairs = pairs.reshape(-1, 2).astype(np.int64, copy=False)
    if pairs.size and (pairs.min() < 0 or pairs.max() >= n_pixels):
        raise PotentiaError(f"edges name a pixel outside 0..{n_pixels - 1}.")
    return pairs


def bilateral(image: ArrayLike, sd_position: float, sd_colour: float | None = None) -> Floats:
    """Positions of pixels, and with `sd_colour` their colours, over standard deviations, for `pt.DenseGaussian`.

    Args:
        image: (h, w) or (h, w, channels); of any unit, which is also that of sd_colour.
        sd_position: in pixels.
        sd_colour: of each channel; None leaves colours out.

    Returns:
        (h * w, 2) or (h * w, 2 + channels), pixels in raster order.
    """
    check_positive("sd_position", sd_position)
    given = real_numbers(image, "image")
    if given.ndim not in (2, 3) or 0 in given.shape:
        raise PotentiaError(f"an image has shape (h, w) or (h, w, channels), not {given.shape}.")
    height, width = given.shape[:2]
    places = np.indices((height, width)).reshape(2, -1).T / float(sd_position)
    if sd_colour is None:
        return places
    check_positive("sd_colour", sd_colour)
    return np.hstack([places, given.reshape(height * width, -1) / float(sd_colour)])
