"""Evaluation on held-out samples: the samples, the figures, the passes over them, and `python -m trainer evaluate`."""
