"""Predicted against measured for runs of the trainer: time split, scaling, utilisation, and what to change first."""
