"""Slurm's configuration files: the templates, and the code that renders them from spec and inventory."""
