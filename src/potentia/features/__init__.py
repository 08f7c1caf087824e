"""From images and sentences to examples: features of pixels, pairs, superpixels and tokens."""

from .bilateral import bilateral
from .edges import EDGE_SETS, edge_features, typical_contrast
from .filters import filter_bank
from .gazetteers import Gazetteer
from .hog import hog
from .image import image_example, image_examples
from .pixels import NODE_SETS, fourier, pixel_features
from .resize import reduce_labels, resize, upsample_marginals
from .spans import span_scores, span_table
from .superpixels import (
    superpixel_edges,
    superpixel_example,
    superpixel_features,
    superpixel_labels,
    superpixels,
)
from .tokens import TokenFeatures

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
