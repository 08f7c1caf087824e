"""Numba functions on flat arrays: no classes with behaviour, no validation."""
