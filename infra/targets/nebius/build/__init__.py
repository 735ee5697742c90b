"""Pulumi resources of a cluster on Nebius: network, security, GPU clusters, shared filesystems and instances."""
