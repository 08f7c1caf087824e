"""Borrowed arrays: memory comes back only when nothing looks at it any more."""

import gc

import numpy as np
import pytest

from potentia.base import resources
from potentia.base.resources import borrow, borrow_zeros

BIG = 2**17


@pytest.fixture(autouse=True, scope="module")
def frozen():
    """What other tests left would come back into the pool later, and take each collection a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def fresh_pool(monkeypatch):
    gc.collect()
    monkeypatch.setattr(resources, "_idle", [])
    resources._returned.clear()


def test_memory_is_used_again_once_free(monkeypatch):
    fresh_pool(monkeypatch)
    first = borrow((BIG,))
    where = first.ctypes.data
    del first
    gc.collect()
    assert borrow((BIG // 2 + 1, 1)).ctypes.data == where


def test_a_view_keeps_the_memory(monkeypatch):
    fresh_pool(monkeypatch)
    array = borrow_zeros((2, BIG))
    part = array[1].reshape(2, -1)[:, :5]
    where = array.ctypes.data
    del array
    gc.collect()
    other = borrow((2, BIG))
    assert other.ctypes.data != where
    other.fill(7.0)
    assert not part.any()


def test_arrays_much_larger_than_needed_and_small_ones_are_left_alone(monkeypatch):
    fresh_pool(monkeypatch)
    large = borrow((8 * BIG,))
    where = large.ctypes.data
    del large
    gc.collect()
    middle = borrow((BIG,))
    assert middle.ctypes.data != where
    del middle
    resources._returned.clear()
    assert borrow((3, 4)).shape == (3, 4)
    assert not resources._returned


def test_idle_memory_is_bounded(monkeypatch):
    fresh_pool(monkeypatch)
    monkeypatch.setattr(resources, "_IDLE", 3 * BIG)
    arrays = [borrow((BIG,)) for _ in range(6)]
    del arrays
    gc.collect()
    borrow((BIG,))
    assert sum(store.size for store in resources._idle) <= 3 * BIG


def test_borrowed_arrays_are_writable_and_zeroed_on_request():
    array = borrow((BIG,))
    array[:] = 1.0
    del array
    assert not borrow_zeros((BIG,)).any()
    assert borrow_zeros((BIG,)).dtype == np.float64
