"""The folder of data sets that tests read: the one in POTENTIA_DATA, and no other."""

import os
from pathlib import Path

import pytest

#: The folder; one that does not exist where the variable is not set.
DATA = Path(os.environ.get("POTENTIA_DATA") or os.devnull)


def needs(name):
    """Skips a test whose part of the data is not there."""
    return pytest.mark.skipif(not (DATA / name).is_dir(), reason=f"{name} is not there; set POTENTIA_DATA")
