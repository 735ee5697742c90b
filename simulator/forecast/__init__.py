"""Predict one run of the trainer before it starts: its step, its memory, and the whole run."""
