"""From images and sentences to examples: features of pixels, pairs, superpixels and tokens."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .colour import reduce_labels, resize, upsample_marginals
    from .edges import EDGE_SETS, bilateral, edge_features, typical_contrast
    from .image import image_example, image_examples
    from .pixels import NODE_SETS, filter_bank, fourier, hog, pixel_features
    from .schemes import span_scores, span_table
    from .superpixel import (
        superpixel_edges,
        superpixel_example,
        superpixel_features,
        superpixel_labels,
        superpixels,
    )
    from .tokens import Gazetteer, TokenFeatures

#: Modules of the names, which are imported at first use, because they bring parts of SciPy along.
_MODULES = {
    "EDGE_SETS": "edges",
    "Gazetteer": "tokens",
    "NODE_SETS": "pixels",
    "TokenFeatures": "tokens",
    "bilateral": "edges",
    "edge_features": "edges",
    "filter_bank": "pixels",
    "fourier": "pixels",
    "hog": "pixels",
    "image_example": "image",
    "image_examples": "image",
    "pixel_features": "pixels",
    "reduce_labels": "colour",
    "resize": "colour",
    "span_scores": "schemes",
    "span_table": "schemes",
    "superpixel_edges": "superpixel",
    "superpixel_example": "superpixel",
    "superpixel_features": "superpixel",
    "superpixel_labels": "superpixel",
    "superpixels": "superpixel",
    "typical_contrast": "edges",
    "upsample_marginals": "colour",
}

if not TYPE_CHECKING:  # or a misspelt name would pass for one of these

    def __getattr__(name):
        if name in _MODULES:
            return getattr(import_module(f".{_MODULES[name]}", __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "EDGE_SETS",
    "NODE_SETS",
    "Gazetteer",
    "TokenFeatures",
    "bilateral",
    "edge_features",
    "filter_bank",
    "fourier",
    "hog",
    "image_example",
    "image_examples",
    "pixel_features",
    "reduce_labels",
    "resize",
    "span_scores",
    "span_table",
    "superpixel_edges",
    "superpixel_example",
    "superpixel_features",
    "superpixel_labels",
    "superpixels",
    "typical_contrast",
    "upsample_marginals",
]
