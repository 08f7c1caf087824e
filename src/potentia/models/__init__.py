"""Estimators: fit, predict, save."""
