"""Upgrade the release of Slurm on running nodes: the steps, and how they are carried out."""
