"""The best labelling: reductions, moves, bounds, proofs."""
