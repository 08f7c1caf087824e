"""`potentia annotate`: a page where strokes become labels of all pixels."""
