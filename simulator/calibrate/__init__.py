"""Micro-benchmarks of a machine or a cluster, through the trainer's own parts; runs where the trainer does."""
