"""The local target: nodes are Docker containers on this machine."""
