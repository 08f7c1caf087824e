"""What every room uses: types, options, saving, threads, memory, optimisers, progress."""
