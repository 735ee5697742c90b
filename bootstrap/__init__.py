"""Turn bare machines into nodes of a Slurm cluster: read facts, plan steps, execute them, verify the result."""
