"""What every room uses: types, options, saving, threads, memory, optimisers, progress."""

__version__ = "0.2.0"
