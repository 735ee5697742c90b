"""Slurm: its commands and configuration, the ready gate, health checks, the fabric check, power saving and jobs."""
