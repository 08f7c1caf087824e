"""Structured prediction with approximate inference."""
