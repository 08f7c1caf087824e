"""The command line's larger commands: their options, examples and what they print."""
