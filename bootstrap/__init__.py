"""From bare machines to a Slurm cluster: facts, steps, verify."""
