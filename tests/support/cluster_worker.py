"""Imported by the process that worker processes of tests are forks of: loads potentia and its kernels once."""

import warnings

from potentia.base.resources import using_threads
from test_cluster import CHAINS, NAMES, chains, fitted

with warnings.catch_warnings(), using_threads(1):  # a fork has no threads but one
    warnings.simplefilter("ignore")
    for name in NAMES:
        fitted(name)
    for model in CHAINS:
        model.fit(chains())
