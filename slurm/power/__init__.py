"""Power saving on AWS: nodes are launched and given back as Slurm asks, and what went wrong in between is put right."""
