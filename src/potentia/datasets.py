"""Data sets by name: synthetic ones, and readers of local copies of the public ones."""

from .data import (
    BACKGROUND_CLASSES,
    HORSE_CLASSES,
    MULTILABEL_SETS,
    LabelledImage,
    MultiLabelData,
    berkeley_denoising,
    conll,
    data_folder,
    denoising,
    horses,
    letters,
    multilabel,
    stanford_backgrounds,
)

__all__ = [
    "BACKGROUND_CLASSES",
    "HORSE_CLASSES",
    "MULTILABEL_SETS",
    "LabelledImage",
    "MultiLabelData",
    "berkeley_denoising",
    "conll",
    "data_folder",
    "denoising",
    "horses",
    "letters",
    "multilabel",
    "stanford_backgrounds",
]
