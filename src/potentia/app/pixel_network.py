"""Scores of pixels by small convolutional networks: training on crops, and prediction in tiles. Needs PyTorch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..base.progress import Bar
from ..base.resources import thread_count
from ..base.schema import Count, check
from ..base.types import Floats, Ints, PotentiaError, prefixed
from ..models.torch.network import check_without_memory, load_arrays, seeded, to_arrays
from .image_files import Given
from .image_groups import draw_folds
from .pixels import PixelRows, PixelStage, Window, blend, draw_window, inside, whole, widened, window_size

if TYPE_CHECKING:
    from .image_stages import TrainingImages

#: Folds of images, each with a network that does not see it; together they predict new images.
_FOLDS = 3
#: Channels at the full sides, a half, a quarter, ... of them.
_WIDTHS = (12, 24, 48, 64, 64)
#: Pixels that a tile sees around it, and the sides of tiles.
_MARGIN, _TILE = 64, 512
#: Crops in a step, their sides, and steps.
_BATCH, _CROP, _STEPS = 8, 128, 500
#: Largest step size; share of the steps in which it rises.
_RATE, _RISE, _DECAY = 3e-3, 0.15, 1e-4
#: Spread of the factors and shifts, in standard deviations of a channel, that crops are changed by.
_JITTER = 0.15
#: Classes lie unevenly along an axis if the mean difference of their shares in both halves is as many standard errors.
_UNEVEN = 3.0


class PixelUNet(nn.Module):
    """Scores (B, n_states, H, W) of images (B, channels, H, W) of any size [Ronneberger et al. 2015], far smaller."""

    mean: Tensor
    scale: Tensor

    def __init__(self, channels: int, n_states: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("scale", torch.ones(channels, 1, 1))
        pairs = list(itertools.pairwise(_WIDTHS))
        self.down = nn.ModuleList(_layers(a, b, 2) for a, b in [(channels, _WIDTHS[0]), *pairs])
        self.up = nn.ModuleList(_layers(a + b, a, 1) for a, b in reversed(pairs))
        self.last = nn.Conv2d(_WIDTHS[0], n_states, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Scores of all pixels."""
        height, width = image.shape[-2:]
        step = 2 ** (len(_WIDTHS) - 1)
        values = (image - self.mean) * self.scale
        values, kept = functional.pad(values, (0, -width % step, 0, -height % step), mode="replicate"), []
        for k, block in enumerate(self.down):
            values = block(functional.max_pool2d(values, 2) if k else values)
            kept.append(values)
        for block, fine in zip(self.up, kept[-2::-1], strict=True):
            values = block(torch.cat([fine, functional.interpolate(values, scale_factor=2.0)], dim=1))
        scores: Tensor = self.last(values)
        return scores[..., :height, :width]


def _layers(n_in: int, n_out: int, count: int) -> nn.Sequential:
    """Convolutions of three by three with normalisation, which tiles do not change."""
    layers: list[nn.Module] = []
    for n in (n_in, *[n_out] * (count - 1)):
        layers += [nn.Conv2d(n, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class LabelledPart(NamedTuple):
    """An image or a part of it: input (h, w, channels) in float32, labels (h, w), -1 where unknown."""

    values: np.ndarray
    labels: np.ndarray


def allowed_flips(parts: Sequence[LabelledPart], n_states: int) -> tuple[bool, bool]:
    """Whether images may be mirrored along each axis: no class lies more in one half in image after image."""
    allowed = []
    for axis in (0, 1):
        halves = [np.array_split(part.labels, 2, axis=axis) for part in parts]
        counts = np.array([[np.bincount(y[y >= 0], minlength=n_states) for y in pair] for pair in halves])
        gaps = (counts[:, 0] - counts[:, 1]) / np.maximum(counts.sum(axis=(1, 2)), 1)[:, None]
        error = gaps.std(axis=0, ddof=1) / math.sqrt(len(parts)) if len(parts) > 2 else np.full(n_states, np.inf)
        allowed.append(bool(np.all(np.abs(gaps.mean(axis=0)) <= _UNEVEN * error)))
    return allowed[0], allowed[1]


def train_network(
    parts: Sequence[LabelledPart],
    n_states: int,
    weights: Floats | None,
    flips: tuple[bool, bool],
    seed: Sequence[int],
    step_done: Callable[[], None],
) -> dict[str, Any]:
    """The state of a network trained on crops of these parts, mirrored, turned and with other contrasts.

    weights: of classes. flips: axes that crops are mirrored along; they are turned where both are allowed. seed: of the
    first weights and of the crops; the result has the same bits for the same number of threads. step_done: called
    after each step.
    """
    parts = [part for part in parts if np.any(part.labels >= 0)]
    if not parts:
        raise PotentiaError("no pixel of the images to train on has a known class.")
    rng = np.random.default_rng(seed)
    channels = parts[0].values.shape[-1]
    with seeded(torch.device("cpu"), *seed), own_threads():
        network = PixelUNet(channels, n_states).to(memory_format=torch.channels_last)
        sums = np.array([[p.values.mean((0, 1), float), (p.values**2).mean((0, 1), dtype=float)] for p in parts])
        mean, square = sums.mean(axis=0)
        network.mean[:] = torch.from_numpy(mean)[:, None, None]
        network.scale[:] = torch.from_numpy(1 / np.sqrt(np.maximum(square - mean**2, 1e-8)))[:, None, None]
        spread = 1.0 / network.scale.numpy().ravel()
        known = [np.flatnonzero(part.labels >= 0).astype(np.int32) for part in parts]
        side = min(_CROP, 32 * -(-max(max(part.labels.shape) for part in parts) // 32))
        optimiser = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=_DECAY)
        weight = None if weights is None else torch.from_numpy(np.asarray(weights, dtype=np.float32))
        for step in range(_STEPS):
            share = (step + 0.5) / _STEPS
            fall = 0.5 * (1 + math.cos(math.pi * max(0.0, share - _RISE) / (1 - _RISE)))
            optimiser.param_groups[0]["lr"] = _RATE * min(1.0, share / _RISE) * fall
            chosen = rng.integers(len(parts), size=_BATCH)
            crops = [_crop(parts[k], known[k], side, flips, spread, rng) for k in chosen]
            x, y = (np.ascontiguousarray(np.stack(column)) for column in zip(*crops, strict=True))
            scores = network(torch.from_numpy(x).permute(0, 3, 1, 2))
            loss = functional.cross_entropy(scores, torch.from_numpy(y), weight, ignore_index=-1)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            step_done()
        return to_arrays(network.state_dict())


def _crop(
    part: LabelledPart, known: Ints, side: int, flips: tuple[bool, bool], spread: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, Ints]:
    """A square around a pixel with a label, mirrored at the borders of the image, flipped, turned, brightened."""
    size = part.labels.shape
    centre = np.unravel_index(known[rng.integers(len(known))], size)
    places = []
    for at, length in zip(centre, size, strict=True):
        first = int(np.clip(at - rng.integers(side), -side // 8, max(-side // 8, length - side + side // 8)))
        places.append(np.pad(np.arange(length), side, mode="reflect")[first + side :][:side])
    x, y = part.values[np.ix_(*places)], part.labels[np.ix_(*places)]
    for axis, allowed in enumerate(flips):
        if allowed and rng.random() < 0.5:
            x, y = np.flip(x, axis), np.flip(y, axis)
    if all(flips) and rng.random() < 0.5:
        x, y = x.swapaxes(0, 1), y.swapaxes(0, 1)
    factor, shift = 1.0 + _JITTER * rng.standard_normal((2, len(spread)))
    return (x * factor + (shift - 1.0) * spread).astype(np.float32), y.astype(np.int64)


@contextmanager
def own_threads() -> Iterator[None]:
    """PyTorch takes as many threads as the library does."""
    before = torch.get_num_threads()
    torch.set_num_threads(thread_count(None))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass
class NetworkStage:
    """Networks whose mean log-probabilities are the CRF's features.

    Attributes:
        rows: what they see.
        n_states: number of classes.
        weights: the state of each network.
    """

    rows: PixelRows
    n_states: int
    weights: list[dict[str, Any]]
    _built: list[PixelUNet] = field(default_factory=list, repr=False, compare=False)

    @property
    def function(self) -> str:
        """What the classifier is, for facts of a model."""
        return f"{len(self.weights)} U-Nets"

    @property
    def n_features(self) -> int:
        """The number of channels that networks see."""
        return self.rows.n_features

    def image_scores(self, values: np.ndarray, given: Given) -> np.ndarray:
        """Log-probabilities (*size, n_classes) in float32 of all pixels of an image."""
        return self.scores(values, whole(values.shape[:-1]), given)

    def scores(self, values: np.ndarray, window: Window, given: Given, context: Any = None) -> np.ndarray:
        """Log-probabilities (*window, n_classes) in float32 of a window's pixels, tile by tile."""
        around = widened(window, _MARGIN, values.shape[:-1])
        seen = self.rows.rows(values, around, given).reshape(*window_size(around), -1)
        networks = self._networks()

        def of(tile: Window) -> np.ndarray:
            """The networks' mean of a tile."""
            x = torch.from_numpy(seen[tile]).permute(2, 0, 1)[None].contiguous(memory_format=torch.channels_last)
            with torch.no_grad():
                each = torch.stack([functional.log_softmax(network(x)[0], dim=0) for network in networks])
                return each.mean(0).permute(1, 2, 0).numpy()

        with own_threads():
            mean = torch.from_numpy(blend(seen.shape[:-1], _TILE, _MARGIN, of))
            found = functional.log_softmax(mean, dim=-1).clamp_min(math.log(1e-4)).numpy()
        return np.ascontiguousarray(found[inside(window, around)])

    def _networks(self) -> list[PixelUNet]:
        """The networks, built once."""
        if not self._built:
            sizes = {"channels": self.rows.n_features, "n_states": self.n_states}
            for state in self.weights:
                check_without_memory(PixelUNet, sizes, state)
                network = PixelUNet(**sizes)
                load_arrays(network, state)
                self._built.append(network.eval().to(memory_format=torch.channels_last))
        return self._built

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The number of networks and their arrays, by name."""
        arrays = {f"pixels:{k}:{name}": array for k, own in enumerate(self.weights) for name, array in own.items()}
        return {"networks": len(self.weights), "states": self.n_states}, arrays

    @classmethod
    def restore(cls, rows: PixelRows, content: Mapping[str, Any], arrays: Mapping[str, Any]) -> Self:
        """The stage that `state` describes."""
        sizes = check({"networks": Count(least=1, most=_FOLDS), "states": Count(least=1)}, content, "pipeline")
        stage = cls(rows, sizes["states"], [prefixed(arrays, f"pixels:{k}:") for k in range(sizes["networks"])])
        stage._networks()
        return stage


#: A classifier of pixels.
AnyStage = PixelStage | NetworkStage


def cross_fit_networks(
    images: TrainingImages, rows: PixelRows, n_pixels: int
) -> tuple[NetworkStage, list[NetworkStage], float]:
    """All networks together, for every unit the one that did not see it, and the mean log-loss of the latter.

    n_pixels: that the loss is measured on, about.
    """
    run, n_states, rng = images.run, len(images.pipeline.classes), np.random.default_rng([images.run.seed, 1])
    parts = []
    for k, window in images.units:
        values, given = images.image(k)
        x, y = rows.rows(values, window, given), images.labels[k][window]
        parts.append(LabelledPart(x.reshape(*y.shape, -1), y))
    folds = draw_folds(images.unit_groups, _FOLDS, rng, np.array([bool(np.any(part.labels >= 0)) for part in parts]))
    n_folds, flips = int(folds.max()) + 1, allowed_flips(parts, n_states)
    states = []
    with Bar(run.progress) as bar:
        bar.begin("networks", n_folds * _STEPS)

        def step_done() -> None:
            """Show how far training is, and end it in time."""
            bar.advance()
            run.check_time()

        for fold in range(n_folds):
            own = [part for part, f in zip(parts, folds, strict=True) if f != fold or n_folds == 1]
            states.append(train_network(own, n_states, images.weights, flips, [run.seed, fold], step_done))
    together = NetworkStage(rows, n_states, states)
    alone = [replace(together, weights=[state], _built=[]) for state in states]
    unseen, losses = [alone[fold] for fold in folds], []
    for (k, window), stage in zip(images.units, unseen, strict=True):
        values, given = images.image(k)
        seen = draw_window(window, max(1, n_pixels // len(images.units)), images.labels[k][window] >= 0, rng)
        y = images.labels[k][seen]
        scores = stage.scores(values, seen, given)[y >= 0]
        losses.append(-np.take_along_axis(scores, y[y >= 0][:, None].astype(np.int64), axis=1).ravel())
    turned = "turned and mirrored" if all(flips) else "mirrored" if any(flips) else "neither turned nor mirrored"
    run.say(f"{n_folds} networks are trained on parts of the images, {turned}.")
    return together, unseen, float(np.concatenate(losses).mean())
