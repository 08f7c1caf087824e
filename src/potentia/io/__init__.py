"""Saving and loading: JSON and arrays in one file, versioned, no pickle."""
