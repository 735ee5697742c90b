"""Tests of slurm/jobs/train.sbatch."""
