"""Slurm: its commands and configuration, the ready gate, health checks, the fabric proof, power saving and jobs."""
