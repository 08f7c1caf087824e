"""The user's own data, from files to a saved pipeline and from a pipeline to files.

`images` (folders of images and masks), `tables` (rows with several labels), `sequences` (tokens in columns): each
has `train`, which gives a `Pipeline`, and a pipeline class that predicts and evaluates; `cli` is the command line.
"""

from .pipeline import Pipeline
from .training import Run

__all__ = ["Pipeline", "Run"]
