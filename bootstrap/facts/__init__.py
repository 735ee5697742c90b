"""Facts: the state of a node, read in one round trip and parsed into plain data."""
