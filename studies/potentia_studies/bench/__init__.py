"""Benchmarks: ratios measured in one run against stated floors."""
