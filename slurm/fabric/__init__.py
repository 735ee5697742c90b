"""Proof that a job used the fabric it was given: what NCCL said, what the devices moved, how fast it was."""
