"""Pulumi resources of a local cluster: a network, volumes and a container for each node."""
