"""Examples to learn from: the container, synthetic sets, and readers of local copies of public sets."""

from .berkeley import berkeley_denoising
from .example import Example
from .loaders import data_folder
from .multilabel import MULTILABEL_SETS, MultiLabelData, multilabel
from .pictures import BACKGROUND_CLASSES, HORSE_CLASSES, LabelledImage, horses, stanford_backgrounds
from .sequences import conll, letters
from .synthetic import denoising

__all__ = [
    "BACKGROUND_CLASSES",
    "HORSE_CLASSES",
    "MULTILABEL_SETS",
    "Example",
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
