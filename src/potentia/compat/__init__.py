"""Interfaces of other libraries, so that only an import changes; nothing else in the package uses them."""
