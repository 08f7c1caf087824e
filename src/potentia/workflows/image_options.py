"""The options of training on images, checked against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .._types import PotentiaError
from .image_files import STACKS
from .image_search import NODES
from .training import PIXEL_FUNCTIONS, TRAINABLE, check_trainable


@dataclass(frozen=True)
class ImageOptions:
    """What `images.train` can be told beside where the images and masks are.

    Attributes:
        palette: a file of lines `value,name[,#rrggbb]`; None takes every value in the masks as a class.
        void: values that mean unknown, with commas between. rare: what to do with values in a few pixels only, see
            `find_classes`.
        node, edge: functions of pixels and of pairs; node None is boosting, with the papers' features where the
            learner can train it, else linear. edge None is potts, and linear with the papers' features, of superpixels
            and where the learner cannot train potts. learner: of `TRAINABLE`.
        iterations, epsilon, inference, class_weight: see `make_learner`.
        feature_set: "filters" (default), "papers", or "given": only what `features` has.
        features, probabilities: folders with an array (h, w, n) for each image. Probabilities replace the classifier.
        position: "yes", "no" or None to find out by cross-validation whether the classifier sees positions.
        normalise: see `Intensity`; stacks: whether pages of TIFF files are "images" or "volumes".
        reduce, superpixels: see `ImagePipeline`.
        pixels: number of pixels that pairs are trained on, at most.
        search: choose node, edge, learner and epsilon by cross-validation over images; budget: seconds for pairs.
    """

    palette: Path | None = None
    void: str | None = None
    rare: str | None = None
    node: str | None = None
    edge: str | None = None
    learner: str = "ilr"
    iterations: int | None = None
    epsilon: float | None = None
    inference: str | None = None
    class_weight: str | None = None
    feature_set: str | None = None
    features: Path | None = None
    probabilities: Path | None = None
    position: str | None = None
    normalise: str | None = None
    stacks: str = "images"
    reduce: float | None = None
    superpixels: int | None = None
    pixels: int | None = None
    search: bool = False
    budget: float = 600.0

    @property
    def single_stage(self) -> bool:
        """Whether the CRF is fitted to features at once, without a classifier of pixels before it."""
        return self.superpixels is not None or self.feature_set == "papers"

    @property
    def axes(self) -> int:
        """2 for images, 3 for volumes."""
        return 3 if self.stacks == "volumes" else 2

    @property
    def functions(self) -> tuple[str, str]:
        """The functions of pixels and of pairs."""
        node, edge = self.node, self.edge
        if node is None:
            node = "boosting" if self.learner == "ilr" or not self.single_stage else "linear"
        if edge is None:
            edge = "linear" if self.single_stage or "potts" not in TRAINABLE[self.learner] else "potts"
        return node, edge

    @property
    def nodes(self) -> Sequence[str]:
        """The functions of pixels to try."""
        return NODES if self.search else (self.functions[0],)

    def check(self) -> None:
        """Refuse options that exclude each other."""
        self._check_inputs()
        if self.search and (self.single_stage or self.node is not None):
            raise PotentiaError(
                "--search chooses functions itself: leave out --node, --superpixels and the papers' features."
            )
        node, edge = self.functions
        if node not in PIXEL_FUNCTIONS:
            raise PotentiaError(f"node must be one of {', '.join(PIXEL_FUNCTIONS)}, not {node!r}.")
        check_trainable(self.learner, **({"node": node} if self.single_stage else {}), edge=edge)

    def _check_inputs(self) -> None:
        if self.stacks not in STACKS:
            raise PotentiaError(f"stacks must be one of {', '.join(STACKS)}, not {self.stacks!r}.")
        if self.superpixels is not None and self.reduce is not None:
            raise PotentiaError("superpixels are made of the whole image: give --superpixels or --reduce.")
        if self.axes == 3 and (self.single_stage or self.reduce is not None):
            raise PotentiaError(
                "--stacks volumes goes with neither --superpixels, --reduce nor the papers' features."
            )
        alone = "--superpixels" if self.superpixels is not None else "--feature-set papers"
        for option in ("features", "probabilities"):
            if self.single_stage and getattr(self, option) is not None:
                raise PotentiaError(f"{alone} cannot be combined with --{option}.")
        if self.probabilities is not None and self.feature_set is not None:
            raise PotentiaError(
                "--probabilities take the classifier's place: to use them beside filters, give --features."
            )
        if self.feature_set == "given" and self.features is None:
            raise PotentiaError("--feature-set given takes the features in --features, which is missing.")
