"""Data sets by name: synthetic ones, and readers of local copies of the public ones."""

from .data.berkeley import berkeley_denoising
from .data.labelled_images import (
    BACKGROUND_CLASSES,
    HORSE_CLASSES,
    NUCLEI_CLASSES,
    LabelledImage,
    horses,
    nuclei,
    stanford_backgrounds,
)
from .data.loaders import data_folder
from .data.multilabel import MULTILABEL_SETS, MultiLabelData, multilabel
from .data.sequences import conll, letters
from .data.synthetic import denoising

__all__ = [
    "BACKGROUND_CLASSES",
    "HORSE_CLASSES",
    "MULTILABEL_SETS",
    "NUCLEI_CLASSES",
    "LabelledImage",
    "MultiLabelData",
    "berkeley_denoising",
    "conll",
    "data_folder",
    "denoising",
    "horses",
    "letters",
    "multilabel",
    "nuclei",
    "stanford_backgrounds",
]
