"""Pulumi resources of a cluster on AWS, one file per kind of resource."""
