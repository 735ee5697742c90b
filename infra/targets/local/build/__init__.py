"""Pulumi resources of a local cluster: network, volumes, a container per node."""
