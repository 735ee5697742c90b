"""Measure a machine or a cluster with micro-benchmarks of the trainer's own code; runs where the trainer runs."""
