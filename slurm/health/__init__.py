"""Whether this node can do work: quick checks before each job and in between, for what breaks on GPU machines."""
