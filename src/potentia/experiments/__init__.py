"""The papers' tables and figures as grids of cells, ours beside theirs."""
