"""Graphs, their regions, scores, labels, orders of update and files."""
