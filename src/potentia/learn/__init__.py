"""Learners: from examples to fitted potentials."""
