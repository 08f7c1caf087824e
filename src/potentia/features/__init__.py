"""From images and sentences to examples: features of pixels, pairs, superpixels and tokens."""

# ruff: noqa: I001 (several names of a module share a line)

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .colour import (
        bilateral as bilateral, reduce_labels as reduce_labels, resize as resize,
        upsample_marginals as upsample_marginals,
    )  # fmt: skip
    from .image import (
        image_example as image_example, superpixel_edges as superpixel_edges,
        superpixel_example as superpixel_example, superpixel_features as superpixel_features,
        superpixel_labels as superpixel_labels, superpixels as superpixels,
    )  # fmt: skip
    from .pixels import (
        EDGE_SETS as EDGE_SETS, NODE_SETS as NODE_SETS, edge_features as edge_features,
        filter_bank as filter_bank, fourier as fourier, hog as hog, pixel_features as pixel_features,
        typical_contrast as typical_contrast,
    )  # fmt: skip
    from .schemes import span_scores as span_scores, span_table as span_table
    from .template import Template as Template
    from .tokens import Clusters as Clusters, Gazetteer as Gazetteer, TokenFeatures as TokenFeatures

#: Names by module, which is imported at first use, because some bring parts of SciPy along.
_MODULES = {
    "colour": ("bilateral", "reduce_labels", "resize", "upsample_marginals"),
    "image": (
        "image_example", "superpixel_edges", "superpixel_example", "superpixel_features",
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
__all__ = sorted(name for names in _MODULES.values() for name in names)

if not TYPE_CHECKING:  # or a misspelt name would pass for one of these

    def __getattr__(name):
        for module, names in _MODULES.items():
            if name in names:
                return getattr(import_module(f".{module}", __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
