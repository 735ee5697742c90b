"""The trainer: runs on the nodes and imports nothing of the other packages."""
