"""Ways to reach a node: over SSH, or on this machine."""
