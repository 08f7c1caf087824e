"""Examples to learn from: the container, synthetic sets, and readers of local copies of public sets."""
