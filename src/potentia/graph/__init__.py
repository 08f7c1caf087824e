"""What touches what: graphs, their regions, scores, labels, orders of update and files."""
