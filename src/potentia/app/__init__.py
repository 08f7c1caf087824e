"""The user's own data, from files to a saved pipeline and from a pipeline to files.

`images` (folders of images and masks), `tables` (rows with several labels), `sequences` (tokens in columns): each
has `train`, which gives a `Pipeline`, and a pipeline class that predicts and evaluates; `forms` declares them to the
command line.
"""

from .forms import Form, Option
from .pipeline import Pipeline, check_target, write_text
from .training import Run, fit

__all__ = ["Form", "Option", "Pipeline", "Run", "check_target", "fit", "write_text"]
