"""Keeping a run alive on a cluster: stop requests, votes, hang detection, health of the loss, failures, outcome."""
