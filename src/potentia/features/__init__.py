"""From images and sentences to examples: features of pixels, pairs, superpixels and tokens."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .colour import bilateral, reduce_labels, resize, upsample_marginals
    from .image import (
        image_example,
        image_examples,
        superpixel_edges,
        superpixel_example,
        superpixel_features,
        superpixel_labels,
        superpixels,
    )
    from .pixels import EDGE_SETS, NODE_SETS, edge_features, filter_bank, fourier, hog, pixel_features, typical_contrast
    from .schemes import span_scores, span_table
    from .template import Template
    from .tokens import Clusters, Gazetteer, TokenFeatures

__all__ = [
    "EDGE_SETS", "NODE_SETS", "Clusters", "Gazetteer", "Template", "TokenFeatures", "bilateral", "edge_features",
    "filter_bank", "fourier", "hog", "image_example", "image_examples", "pixel_features", "reduce_labels", "resize",
    "span_scores", "span_table", "superpixel_edges", "superpixel_example", "superpixel_features", "superpixel_labels",
    "superpixels", "typical_contrast", "upsample_marginals",
]  # fmt: skip

#: Names by module, which is imported at first use, because some bring parts of SciPy along.
_MODULES = {
    "colour": ("bilateral", "reduce_labels", "resize", "upsample_marginals"),
    "image": (
        "image_example", "image_examples", "superpixel_edges", "superpixel_example", "superpixel_features",
        "superpixel_labels", "superpixels",
    ),
    "pixels": (
        "EDGE_SETS", "NODE_SETS", "edge_features", "filter_bank", "fourier", "hog", "pixel_features",
        "typical_contrast",
    ),
    "schemes": ("span_scores", "span_table"),
    "template": ("Template",),
    "tokens": ("Clusters", "Gazetteer", "TokenFeatures"),
}  # fmt: skip

if not TYPE_CHECKING:  # or a misspelt name would pass for one of these

    def __getattr__(name):
        for module, names in _MODULES.items():
            if name in names:
                return getattr(import_module(f".{module}", __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
