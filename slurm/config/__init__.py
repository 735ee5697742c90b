"""Slurm's configuration files: templates and the code that renders them from spec and inventory."""
