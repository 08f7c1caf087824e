"""One's own data, from files to a saved pipeline and from a pipeline to files.

`images` (folders of pictures and masks), `tables` (rows with several labels), `sequences` (tokens in columns): each
has `train`, which gives a `Pipeline`, and a pipeline class that predicts and evaluates.
"""
