"""Measurements on top of the library: the papers' studies, the demo, and benchmarks."""
