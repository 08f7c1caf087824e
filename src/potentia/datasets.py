"""Data sets by name: synthetic ones, and readers of local copies of the public ones."""

from .data import (
    BACKGROUND_CLASSES,
    HORSE_CLASSES,
    LabelledImage,
    berkeley_denoising,
    conll,
    data_folder,
    denoising,
    horses,
    letters,
    stanford_backgrounds,
)

__all__ = [
    "BACKGROUND_CLASSES",
    "HORSE_CLASSES",
    "LabelledImage",
    "berkeley_denoising",
    "conll",
    "data_folder",
    "denoising",
    "horses",
    "letters",
    "stanford_backgrounds",
]
