"""From images and sentences to examples: features of pixels, pairs, superpixels and tokens."""

from .colour import reduce_labels, resize, upsample_marginals
from .edges import EDGE_SETS, bilateral, edge_features, typical_contrast
from .image import image_example, image_examples
from .pixels import NODE_SETS, filter_bank, fourier, hog, pixel_features
from .spans import span_scores, span_table
from .superpixels import (
    superpixel_edges,
    superpixel_example,
    superpixel_features,
    superpixel_labels,
    superpixels,
)
from .tokens import Gazetteer, TokenFeatures

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
