"""Several yes-or-no labels per row: large-margin networks, and the usual methods beside them."""
