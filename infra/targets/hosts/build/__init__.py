"""Pulumi resources of a cluster of hosts: one for each machine, adopted and released."""
