"""Compare runs of the trainer with predictions: time split, scaling, utilization, and what to change first."""
