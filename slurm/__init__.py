"""Slurm: its configuration, its jobs, and the gate that says a cluster is ready."""
