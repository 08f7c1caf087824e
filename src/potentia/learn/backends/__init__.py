"""Work on parts of a data set, wherever they are: in this process, or elsewhere behind the same two verbs."""
