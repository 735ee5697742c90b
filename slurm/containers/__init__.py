"""Containers of jobs: what Slurm runs on a node for a task of `srun --container` or `sbatch --container`."""
