"""From scores to marginals, bounds and labellings."""
