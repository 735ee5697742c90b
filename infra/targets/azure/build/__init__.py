"""Pulumi resources of a cluster on Azure: network, filesystems, machines and scale sets."""
